"""One stage of a training in stages: some parts of a model, a loss of its own, a score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.config import TrainingConfig
from vspair.training.budget import one_cycle
from vspair.training.loop import Loop, Row

__all__ = ["Stage", "StageLoss"]

StageLoss = Callable[[Tensor, Generator, float], tuple[Tensor, dict[str, Tensor]]]
"""From indices of pairs, a source of noise and the share of the stage that is done, to the loss
and scalars to be logged."""

WARM_UP = 0.1
"""The share of a stage in which the step size rises."""


class Stage(Loop):
    """Trains parts of a model by a loss, and leaves those weights that scored best.

    Arguments:
        parts: The parts to train, on the device to train on.
        loss: What to lessen.
        score: Returns what is logged after an epoch; its ``score``, if it has one, compares.
        rows: The indices of the pairs to train on, with shape (M,).
        settings: Epochs, batches, step size and seed.
        settled: The share of the stage after which epochs are compared.
        folder: Where to save and go on from; nothing is saved without it.
    """

    smallest_batch = 2  # batch norm has no variance of a single pair
    steadier = "Look for values in x and y that are far from all others, and try another seed."

    def __init__(
        self,
        parts: nn.Module,
        loss: StageLoss,
        score: Callable[[float], dict[str, float]],
        rows: Tensor,
        settings: TrainingConfig,
        settled: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        super().__init__(parts, settings, len(rows), [], folder)
        self.loss, self.score, self.rows, self.settled = loss, score, rows, settled

    @property
    def progress(self) -> float:
        """The share of the stage that is done."""
        return self.epochs_done / self.settings.epochs

    def _begin_step(self) -> tuple[()]:
        self.rate = self.settings.learning_rate * one_cycle(self.progress, WARM_UP)
        return ()

    def _loss(self, batch: Tensor, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, terms = self.loss(self.rows[batch], self.generator, self.progress)
        return loss, {"loss": loss.detach(), **terms}

    @torch.no_grad()
    def _describe_epoch(self) -> tuple[Row, float | None]:
        means = (self.sums[: len(self.names)] / self.steps).tolist()
        row: Row = dict(zip(self.names, means, strict=True))
        self.model.eval()
        row |= self.score(self.progress)
        return row, row.get("score") if self.progress > self.settled else None

    def _finish(self) -> None:
        self.model.eval()
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        self.save()
