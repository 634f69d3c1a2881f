"""The loop that trains every model: paired models and U-Nets.

Orders and noise are sampled from a generator that is seeded anew for each epoch, and a checkpoint
holds the generator's state, so a training that was stopped anywhere continues to the same bits.
What is trained and how epochs are compared is said by :class:`vspair.training.trainer.Trainer` for
paired models and by :class:`vspair.training.networks.NetworkTraining` for U-Nets.
"""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Generator as Steps
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.config import TrainingConfig
from vspair.errors import VspairError
from vspair.runs import fill, read_metrics, read_tensors, write_tensors, write_text
from vspair.training.acceleration import Captured, compiled, eagerly, precision, products
from vspair.training.interrupts import Interrupted, stop_on_interrupt
from vspair.training.progress import Progress

__all__ = ["Loop", "Row"]

Row = dict[str, Any]
"""What is logged of an epoch."""


@dataclass
class _State:
    """Where a training stands: whole epochs done, and steps done in the current one."""

    epoch: int = 0
    step: int = 0
    best: float = math.inf
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0


class Loop(ABC):
    """Trains a model step by step, in memory or into a folder.

    Arguments:
        model: The model, on the device to train on.
        settings: Epochs, batches, step size, seed and how steps are executed.
        count: The number N of training data.
        networks: The parts of the model that are compiled, if the settings say so.
        folder: Where to save; nothing is saved without it.
    """

    smallest_batch = 1  # a last batch of fewer data is left out
    extensible = False  # whether a finished training may be given more epochs
    steadier = "Lower the learning rate, or set training.clip."  # what helps if it diverges

    def __init__(
        self,
        model: nn.Module,
        settings: TrainingConfig,
        count: int,
        networks: list[nn.Module],
        folder: Path | None,
    ) -> None:
        self.model, self.settings, self.count, self.folder = model, settings, count, folder
        self.networks = networks if settings.compile else []
        self.identity: dict[str, Any] = {}  # what only checkpoints of this training say
        self.parameters: list[Tensor] = list(model.parameters())
        self.device = self.parameters[0].device
        whole, rest = divmod(count, settings.batch_size)
        self.steps = max(1, whole + (rest >= self.smallest_batch))
        self.state = _State()
        self.names: list[str] = []
        self.sums = torch.zeros(16, device=self.device)
        self.generator = Generator(self.device)
        self.best_weights: dict[str, Tensor] | None = None
        self.captures = settings.capture and self.device.type == "cuda"
        rate: float | Tensor = settings.learning_rate
        if self.captures:  # a captured step reads its rate from the device
            rate = torch.tensor(rate, device=self.device)
        how: dict[str, Any] = {"fused": True, "capturable": self.captures}
        self.optimiser: torch.optim.Adam = (
            torch.optim.AdamW(self.parameters, rate, weight_decay=settings.weight_decay, **how)
            if settings.weight_decay
            else torch.optim.Adam(self.parameters, rate, **how)
        )
        self._saved = time.monotonic()

    # -- what a kind of training says ---------------------------------------------------------

    @abstractmethod
    def _loss(self, batch: Tensor, *kind: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a batch of indices, and scalars to be summed over an epoch."""

    @abstractmethod
    def _describe_epoch(self) -> tuple[Row, float | None]:
        """Return what is logged of an ended epoch, and a score to compare it by, if it is."""

    @abstractmethod
    def _finish(self) -> None:
        """Leave the weights to use in the model, and save."""

    @abstractmethod
    def _begin_step(self) -> tuple[Hashable, ...]:
        """Set what a step reads; return what tells its kind from others, if there are several."""

    def _begin_epoch(self) -> None:
        """Get ready for an epoch, or for the rest of one."""
        self.model.train()

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights that would be used if the training ended here."""
        return self.model.state_dict()

    def _weights_header(self) -> dict[str, Any]:
        """Return what the file of the weights says of them."""
        return {"epoch": self.state.best_epoch if self.best_weights else self.state.epoch}

    def _tensors(self) -> dict[str, Tensor]:
        """Return what a step changes beside weights and moments, by its name in checkpoints."""
        return {"sums": self.sums}

    # -- one step -----------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """The step size."""
        return float(self.optimiser.param_groups[0]["lr"])

    @rate.setter
    def rate(self, value: float) -> None:
        group = self.optimiser.param_groups[0]
        group["lr"] = group["lr"].fill_(value) if isinstance(group["lr"], Tensor) else value

    def _mutable(self) -> list[Tensor]:
        """Return every tensor that a step changes in place."""
        moments = [t for state in self.optimiser.state.values() for t in state.values()]
        return [*self.parameters, *self.model.buffers(), *self._tensors().values(), *moments]

    def _step(self, batch: Tensor, *kind: Any) -> None:
        """Move the weights once; all on the device, nothing waits for it."""
        with products(self.device, self.settings.precision):
            with precision(self.device, self.settings.precision):
                loss, terms = self._loss(batch, *kind)
            for parameter in self.parameters:
                parameter.grad = None
            loss.backward()
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimiser.step()
        with torch.no_grad():
            self.sums[: len(terms)] += torch.stack(tuple(terms.values()))
        self.names = list(terms)

    # -- one epoch ----------------------------------------------------------------------------

    @property
    def epochs_done(self) -> float:
        """The epochs done, with the part of the current one."""
        return self.state.epoch + self.state.step / self.steps

    def _order(self) -> Tensor:
        """Return the epoch's order; start its noise where an epoch begins."""
        seed = (self.settings.seed << 24) + self.state.epoch
        order = torch.randperm(self.count, generator=Generator().manual_seed(seed))
        if self.state.step == 0:
            self.generator.manual_seed(seed)
            self.sums.zero_()
        return order.to(self.device)

    def _epoch(self, step: Callable[..., None]) -> Iterator[None]:
        """Run what is left of an epoch, pausing after each step."""
        size, order = self.settings.batch_size, self._order()
        self._begin_epoch()
        for i in range(self.state.step, self.steps):
            step(order[i * size : (i + 1) * size], *self._begin_step())
            self.state.step = i + 1
            if time.monotonic() - self._saved >= self.settings.checkpoint_seconds:
                self.save()
            yield

    def _end_epoch(self) -> Row:
        """Return the row of an epoch that has no steps left, and judge it."""
        self.state.epoch, self.state.step = self.state.epoch + 1, 0
        with eagerly() if self.networks else nullcontext():
            row, score = self._describe_epoch()
        self._expect_finite(row)
        if score is not None:
            self._judge(score)
        return {"epoch": self.state.epoch, **row, "seconds": round(self.state.seconds, 3)}

    def _expect_finite(self, row: Row) -> None:
        """Stop before anything is saved that is not a number."""
        sums = torch.stack([p.detach().sum() for p in self.parameters])
        sick = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
        if sick or not bool(sums.isfinite().all()):
            what = f"{sick[0]} is {row[sick[0]]}" if sick else "A weight is not finite"
            raise VspairError(
                f"{what} in epoch {self.state.epoch}: training has diverged. {self.steadier} "
                "Nothing of this epoch was saved."
            )

    def _judge(self, score: float) -> None:
        """Remember the epoch of the least score."""
        if score < self.state.best:
            self.state.best, self.state.best_epoch = score, self.state.epoch
            self.state.stale = 0
            if self.settings.keep == "best":
                self._keep_weights()
        else:
            self.state.stale += 1

    def _keep_weights(self) -> None:
        """Remember the weights as the best."""
        self.best_weights = {k: v.detach().clone() for k, v in self._weights().items()}

    # -- the whole training -------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return self.state.epoch >= self.settings.epochs

    def train(self, show: bool = True) -> list[Row]:
        """Train to the end and return one dictionary an epoch.

        Raises:
            Interrupted: After Ctrl-C, once the state is saved.
        """
        rows: list[Row] = []
        with stop_on_interrupt() as stop, Progress(self.settings.epochs, show) as bar:
            for _ in self.run_steps(rows):
                if stop.is_set():
                    self.save()
                    raise Interrupted
                if bar.due():
                    bar.advance(self.epochs_done, rows[-1] if rows else None)
            bar.advance(self.state.epoch, rows[-1] if rows else None)
        return rows

    def run_steps(self, rows: list[Row]) -> Steps[None, None, None]:
        """Train, pausing after each step, so that several trainings can take turns.

        Arguments:
            rows: Filled with one dictionary an epoch.
        """
        if self.folder:
            log = read_metrics(self.folder / "metrics.jsonl")
            rows += [row for row in log if row["epoch"] <= self.state.epoch]
            # What was logged after the checkpoint that the training continues from is dropped.
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            write_text(self.folder / "metrics.jsonl", lines)
        self._saved = time.monotonic()
        start = self._saved - self.state.seconds
        step: Callable[..., None] = self._step
        with compiled(*self.networks):
            if self.captures:
                step = Captured(step, self.settings.batch_size, self.generator, self._mutable)
            while not self.finished:
                for _ in self._epoch(step):
                    self.state.seconds = time.monotonic() - start
                    yield
                rows.append(self._end_epoch())
                self._log(rows[-1])
        self._finish()

    def _log(self, row: Row) -> None:
        if self.folder is None:
            return
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise VspairError(f"Could not write {path}: {error}.") from None

    # -- checkpoints --------------------------------------------------------------------------

    def save(self) -> None:
        """Write weights to use and a checkpoint to resume from."""
        if self.folder is None or not bool(self.sums.isfinite().all()):
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        ended = self.finished and not self.extensible
        for i, state in ({} if ended else self.optimiser.state_dict()["state"]).items():
            tensors |= {f"adam.{i}.{k}": v for k, v in state.items()}
        tensors |= {f"best.{k}": v for k, v in (self.best_weights or {}).items()}
        tensors |= self._tensors() | {"generator": self.generator.get_state()}
        weights = self.best_weights or self._weights()
        write_tensors(self.folder / "weights.safetensors", weights, self._weights_header())
        header = {**self.identity, **asdict(self.state), "names": self.names, "rate": self.rate}
        write_tensors(self.folder / "checkpoint.safetensors", tensors, header)
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Continue from the folder's checkpoint."""
        assert self.folder is not None
        path = self.folder / "checkpoint.safetensors"
        tensors, header = read_tensors(path)
        if other := [k for k, v in self.identity.items() if header.get(k) != v]:
            raise VspairError(
                f"{self.folder} holds another training: {', '.join(other)} differ. Name another "
                "folder, or remove it."
            )
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            head, _, tail = name.partition(".")
            groups.setdefault(head, {})[tail] = value
        fill(self.model, groups.get("model", {}), path)
        try:
            self.names, self.rate = header["names"], header["rate"]
            self.state = _State(**{f.name: header[f.name] for f in fields(_State)})
            if not all(isinstance(v, int | float) for v in asdict(self.state).values()):
                raise TypeError("its header holds words for numbers")
            for name, tensor in self._tensors().items():
                tensor.copy_(tensors[name])
            self.generator.set_state(tensors["generator"])
            self._restore_moments(groups.get("adam", {}))
        except (IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise VspairError(
                f"{path} cannot be continued from: {error}. It may be damaged, or come from "
                f"another kind of device than {self.device.type}."
            ) from None
        self.best_weights = groups.get("best")

    def _restore_moments(self, named: dict[str, Tensor]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in named.items():
            index, _, key = name.partition(".")
            like = self.parameters[int(index)]
            if value.ndim:
                # The optimiser reads weights and moments side by side, in one memory format.
                value = torch.empty_like(like, device="cpu").copy_(value)
            moments.setdefault(int(index), {})[key] = value
        plain = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**plain, "state": moments})
