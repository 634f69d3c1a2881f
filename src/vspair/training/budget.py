"""The training of small networks in a budget: AdamW, one cycle of the rate, the best epoch.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; Smith and Topin,
"Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates", 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from vspair.errors import VspairError
from vspair.training.held import apart
from vspair.training.networks import Loss, NetworkTraining, Plan, Trainable

__all__ = ["BudgetTraining", "one_cycle", "train_in_budget"]

_LEAST = 10
"""The fewest data of which a tenth can be held out."""

_FOREVER = 2**20
"""Epochs where the time alone is limited."""


def one_cycle(progress: float, warm: float = 0.2, start: float = 0.04) -> float:
    """Return the step size as a share of the largest: up in a line, down to 0 as a cosine.

    Arguments:
        progress: The share of the training that is done.
        warm: The share of the training after which the step size is largest.
        start: The share of the largest step size that it begins with.

    Example:
        >>> [round(one_cycle(p), 2) for p in (0.0, 0.1, 0.2, 0.6, 1.0)]
        [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    if progress < warm:
        return start + (1 - start) * progress / warm
    return 0.5 * (1 + math.cos(math.pi * (progress - warm) / (1 - warm)))


class BudgetTraining(NetworkTraining):
    """Trains until the epochs of the plan are done, or a time is over, whichever is first.

    Arguments:
        model: The model, on the device to train on.
        loss: What to lessen.
        data: Tensors with the same first dimension N, of which batches are given to the loss.
        plan: Epochs, batches, the largest step size, and seed. The step size falls with them.
        held: Tensors as in data, by whose loss the best epoch is known.
        seconds: The time, with which the step size falls if it is over before the epochs are
            done; the last epoch may be cut short. Without it, a training can be had again to the
            same bits.
        decay: AdamW's decay of the weights.
        where: ``folder`` and ``deadline`` of a training that is to be continued.
    """

    smallest_batch = 2  # batch norm has no variance of a single datum

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        data: tuple[Tensor, ...],
        plan: Plan,
        *,
        held: tuple[Tensor, ...] | None = None,
        seconds: float | None = None,
        decay: float = 0.01,
        **where: Any,
    ) -> None:
        super().__init__(model, loss, data, plan, held=held, decay=decay, **where)
        self.seconds = seconds

    @property
    def progress(self) -> float:
        """The share of the budget that is spent."""
        done = self.epochs_done / self.plan.epochs
        if self.seconds is None:
            return done
        return min(1.0, max(done, self.state.seconds / self.seconds))

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, which is never before the first step."""
        return super().finished or (self.progress >= 1 and self.state.epoch > 0)

    def _begin_step(self) -> tuple[()]:
        self.rate = self.plan.learning_rate * one_cycle(self.progress)
        return super()._begin_step()

    def _epoch(self, step: Callable[..., None]) -> Iterator[None]:
        """Run what is left of an epoch, or of the time."""
        for _ in super()._epoch(step):
            yield
            if self.seconds is not None and self.progress >= 1:
                seen = min(self.state.step * self.settings.batch_size, self.count)
                self.sums *= self.count / seen  # as if of the whole epoch
                return


def train_in_budget(
    model: Trainable,
    loss: Loss,
    data: tuple[Tensor, ...],
    *,
    seconds: float | None,
    epochs: int | None,
    seed: int,
    passes: int | None = None,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
    groups: Any = None,
    held: tuple[Tensor, ...] | None = None,
    show: bool = False,
    **where: Any,
) -> None:
    """Train a model and keep the epoch that held-out data find best.

    Arguments:
        model: The model, on the device to train on.
        loss: What to lessen.
        data: Tensors with the same first dimension N, at least 10 if some are to be held out.
        seconds: How long to train, where no epochs are given.
        epochs: How often to see each datum, whatever time that takes.
        seed: Fixes the tenth and the orders.
        passes: How often to see each datum at most, where no epochs are given.
        batch_size: The data in a step.
        learning_rate: The largest step size.
        groups: Labels (N,) of data that belong together and are held out together.
        held: The held-out data; a tenth of the others where not given.
        show: Whether to show a progress bar.
        where: ``folder`` and ``deadline``; see :class:`NetworkTraining`.
    """
    if epochs is None and (seconds is None or not seconds > 0):
        raise VspairError(
            f"seconds = {seconds}: expected a time above 0, or a number of epochs instead."
        )
    if held is None:
        if len(data[0]) < _LEAST:
            raise VspairError(
                f"{len(data[0])} pairs: expected at least {_LEAST}, of which a tenth is held out."
            )
        data, held = apart(data, groups, seed)
    limit = next((n for n in (epochs, passes) if n is not None), _FOREVER)
    plan = Plan(limit, batch_size, learning_rate, 0.0, "best", seed=seed)
    time = seconds if epochs is None else None
    BudgetTraining(model, loss, data, plan, held=held, seconds=time, **where).train(show)
