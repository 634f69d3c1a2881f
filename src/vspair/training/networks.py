"""The training of U-Nets, and folders that make them again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor, nn

from vspair import runs
from vspair.config import Config, TrainingConfig, override
from vspair.data import fingerprint
from vspair.errors import VspairError
from vspair.training.acceleration import Precision
from vspair.training.loop import Loop, Row

__all__ = ["Loss", "NetworkTraining", "Plan", "Trainable"]

Loss = Callable[[tuple[Tensor, ...], Generator], Tensor]
"""From a batch and a source of noise to a scalar."""


@dataclass(frozen=True)
class Plan:
    """How a network is trained, with Adam.

    Arguments:
        epochs: How often each image is seen.
        batch_size: The images in a step. The paper does not give its own.
        learning_rate: Adam's step size.
        average: The decay of the exponential average of the weights that is kept in the end, as
            Song et al. do; 0 keeps the last weights. The paper does not speak of it. Step k uses
            at most (1 + k) / (10 + k), so that the average forgets where it started.
        keep: Whether the average that is kept is that of the ``last`` epoch or of the ``best``, by
            the loss of held-out data.
        precision: What the convolutions compute in.
        seed: Fixes the first weights, the orders and the noise.
    """

    epochs: int = 500
    batch_size: int = 32
    learning_rate: float = 1e-4
    average: float = 0.999
    keep: Literal["last", "best"] = "last"
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.average < 1:
            raise VspairError(f"average = {self.average}: expected a number from 0 to below 1.")
        self.settings()

    def settings(self, **execution: Any) -> TrainingConfig:
        """Return what the loop needs to know, checked, with how steps are executed."""
        known = {k: v for k, v in asdict(self).items() if k != "average"}
        return override(Config(), {"training": known | execution}).training


class Trainable(nn.Module):
    """A model that its folder can make again: weights, and the settings of its constructor.

    Arguments:
        settings: What the constructor was called with, as JSON can hold it.
    """

    network: nn.Module

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = json.loads(json.dumps(settings))
        self.epochs = 0  # that it has been trained for

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Self:
        """Return the trained model of a folder.

        Arguments:
            folder: Where it was trained into.
            device: Where to put it: ``cpu``, ``cuda``, or ``auto``.
        """
        path = Path(folder) / "weights.safetensors"
        tensors, header = runs.read_tensors(path)
        if header.get("model") != cls.__name__:
            raise VspairError(f"{path} holds a {header.get('model')}: expected a {cls.__name__}.")
        with torch.random.fork_rng(devices=[]):
            model = cls(**header["settings"])
        runs.fill(model, tensors, path)
        model.epochs = header["epoch"]
        return model.to(runs.pick_device(device)).eval()


class NetworkTraining(Loop):
    """Trains a model so that an average of its weights over the last steps is left in it.

    Called again with a folder that it was stopped in, it goes on to the same bits on a CPU; with
    one that it finished in, it reads the weights, or goes on if there are more epochs.

    Arguments:
        model: The model, on the device to train on.
        loss: What to lessen.
        data: Tensors with the same first dimension N, of which batches are given to the loss.
        plan: Epochs, batches, step size, averaging and seed.
        held: Tensors as in data, whose loss is logged as ``held``; needed to keep the best.
        folder: Where to write weights, metrics and checkpoints; nothing is written without it.
        deadline: Finish before an epoch that would likely end after this time of
            ``time.monotonic``; one is trained in any case.
        capture: Whether to replay steps as CUDA graphs, on a GPU.
        compile: Whether to compile the network, which takes a minute.
        decay: AdamW's decay of the weights; 0 is plain Adam.
    """

    model: Trainable
    extensible = True

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        data: tuple[Tensor, ...],
        plan: Plan,
        *,
        held: tuple[Tensor, ...] | None = None,
        folder: str | Path | None = None,
        deadline: float | None = None,
        capture: bool = True,
        compile: bool = False,
        decay: float = 0.0,
    ) -> None:
        if not data or len({len(t) for t in data}) != 1 or not len(data[0]):
            raise VspairError(
                f"data has lengths {[len(t) for t in data]}: expected the same for each, above 0."
            )
        if plan.keep == "best" and held is None:
            raise VspairError("keep = 'best' compares epochs by held-out data: give held.")
        if next(model.parameters()).device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        how = {"capture": capture, "compile": compile, "checkpoint_seconds": 300.0}
        how["weight_decay"] = decay
        path = None if folder is None else Path(folder)
        super().__init__(model, plan.settings(**how), len(data[0]), [model.network], path)
        self.loss, self.plan, self.deadline = loss, plan, deadline
        self.identity = {
            "model": type(model).__name__,
            "settings": model.settings,
            "plan": {k: v for k, v in asdict(plan).items() if k != "epochs"},
            "data": fingerprint(data[0].cpu(), data[-1].cpu()),
        }
        self.data = tuple(t.to(self.device) for t in data)
        self.held = None if held is None else tuple(t.to(self.device) for t in held)
        self.average = {k: p.detach().clone() for k, p in model.named_parameters()}
        self.weight = torch.zeros((), device=self.device)
        self._late, self._clock = False, time.monotonic()
        if path is not None:
            runs.make_folder(path)
            self._resume_in(path)

    def _begin_step(self) -> tuple[()]:
        """Set the weight of the next step in the average."""
        k = self.state.epoch * self.steps + self.state.step
        decay = min(self.plan.average, (1 + k) / (10 + k)) if self.plan.average else 0.0
        self.weight.fill_(1 - decay)
        return ()

    def _loss(self, batch: Tensor, *_: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.loss(tuple(t[batch] for t in self.data), self.generator)
        return loss, {"loss": loss.detach() * len(batch)}

    def _step(self, batch: Tensor, *kind: Any) -> None:
        """Move the weights, and their average towards them."""
        super()._step(batch, *kind)
        self._follow_weights()

    @torch.no_grad()
    def _follow_weights(self) -> None:
        average = list(self.average.values())
        way = torch._foreach_sub(self.parameters, average)
        torch._foreach_mul_(way, self.weight)
        torch._foreach_add_(average, way)

    def _describe_epoch(self) -> tuple[Row, float | None]:
        row: Row = {"loss": float(self.sums[0]) / self.count}
        if self.held is not None:
            row["held"] = self._held_loss(self.held)
        before, self._clock = self._clock, time.monotonic()
        took = self._clock - before
        self._late = self.deadline is not None and self._clock + took > self.deadline
        return row, row["held"] if self.plan.keep == "best" else None

    @torch.no_grad()
    def _held_loss(self, held: tuple[Tensor, ...]) -> float:
        """Return the loss of held-out data by the average, with the same noise each time."""
        generator = Generator(self.device).manual_seed(self.plan.seed)
        parts = zip(*(t.split(self.plan.batch_size) for t in held), strict=True)
        # The weights take other values for a while; where they lie does not change.
        now = [p.detach().clone() for p in self.parameters]
        torch._foreach_copy_(self.parameters, list(self.average.values()))
        total = sum(float(self.loss(p, generator)) * len(p[0]) for p in parts)
        torch._foreach_copy_(self.parameters, now)
        return total / len(held[0])

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the deadline is nearer than the end of another."""
        return super().finished or self._late

    def _weights(self) -> dict[str, Tensor]:
        return self.model.state_dict() | self.average

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | {f"average.{k}": v for k, v in self.average.items()}

    def _resume_in(self, folder: Path) -> None:
        """Continue from a folder's checkpoint, where it has one."""
        if not (folder / "checkpoint.safetensors").exists():
            return
        self.resume()
        if self.state.epoch > self.plan.epochs:
            raise VspairError(
                f"{folder} holds another training: epochs differ. Name another folder, or remove "
                "it."
            )
        if len(runs.read_metrics(folder / "metrics.jsonl")) < self.state.epoch:
            raise VspairError(f"{folder} lacks lines of metrics.jsonl: train anew.")

    def _weights_header(self) -> dict[str, Any]:
        return {**self.identity, "epoch": self.state.epoch, "best_epoch": self.state.best_epoch}

    def _finish(self) -> None:
        """Save, and leave the average that is kept in the model."""
        self.save()
        self.model.load_state_dict(self.best_weights or self._weights())
        self.model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.model.epochs = self.state.epoch
        if self.folder is not None:
            text = json.dumps(runs.versions(), indent=2) + "\n"
            runs.write_text(self.folder / "versions.json", text)
