"""One plain loop that trains the learned baselines, and folders that make them again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor, nn

from vspair.data import fingerprint
from vspair.errors import VspairError
from vspair.runs import (
    make_folder,
    pick_device,
    read_metrics,
    read_tensors,
    versions,
    write_tensors,
    write_text,
)
from vspair.training.acceleration import (
    Captured,
    Precision,
    compiled,
    eagerly,
    precision,
    products,
)
from vspair.training.progress import Progress

__all__ = ["Loss", "Plan", "Trainable", "Training", "train"]

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
        for name, good, wish in (
            ("epochs", self.epochs >= 1, "1 or more"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
            ("learning_rate", self.learning_rate > 0, "a number above 0"),
            ("average", 0 <= self.average < 1, "a number from 0 to below 1"),
            ("seed", 0 <= self.seed < 2**32, "a number from 0 to below 2^32"),
        ):
            if not good:
                raise VspairError(f"{name} = {getattr(self, name)}: expected {wish}.")


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
        tensors, header = read_tensors(path)
        if header.get("model") != cls.__name__:
            raise VspairError(f"{path} holds a {header.get('model')}: expected a {cls.__name__}.")
        with torch.random.fork_rng(devices=[]):
            model = cls(**header["settings"])
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise VspairError(f"{path} does not fit its own settings: {error}") from None
        model.epochs = header["epoch"]
        return model.to(pick_device(device)).eval()


class Training:
    """A training between two epochs: a folder holds all that is needed to go on."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        data: tuple[Tensor, ...],
        plan: Plan,
        folder: Path | None,
    ) -> None:
        self.model, self.loss, self.plan, self.folder = model, loss, plan, folder
        self.parameters: list[Tensor] = list(model.parameters())
        self.device = self.parameters[0].device
        if self.device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.header = {
            "model": type(model).__name__,
            "settings": model.settings,
            "plan": {k: v for k, v in asdict(plan).items() if k != "epochs"},
            "data": fingerprint(data[0].cpu(), data[-1].cpu()),
        }
        self.data = tuple(t.to(self.device) for t in data)
        on_gpu = self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=plan.learning_rate, fused=True, capturable=on_gpu
        )
        self.average = [p.detach().clone() for p in self.parameters]
        self.total, self.weight = (torch.zeros((), device=self.device) for _ in range(2))
        self.generator = Generator(self.device)
        self.step: Callable[[Tensor], None] = self._step
        if on_gpu:
            self.step = Captured(self._step, plan.batch_size, self.generator, self._mutable)
        self.rows: list[dict[str, Any]] = []
        self.best: list[Tensor] = []
        self.best_epoch = 0
        self.steps = math.ceil(len(data[0]) / plan.batch_size)

    def epoch(self) -> dict[str, Any]:
        """See each image once."""
        number = len(self.rows)
        seed = (self.plan.seed << 24) + number
        self.generator.manual_seed(seed)
        self.total.zero_()
        order = torch.randperm(len(self.data[0]), generator=Generator().manual_seed(seed))
        for i, batch in enumerate(order.to(self.device).split(self.plan.batch_size)):
            k = number * self.steps + i
            decay = min(self.plan.average, (1 + k) / (10 + k)) if self.plan.average else 0.0
            self.weight.fill_(1 - decay)
            self.step(batch)
        mean = float(self.total) / len(order)
        if not math.isfinite(mean):
            raise VspairError(
                f"The loss is {mean} in epoch {number + 1}: training has diverged. Lower the "
                "learning rate. The last checkpoint is older."
            )
        return {"epoch": number + 1, "loss": mean}

    def _step(self, batch: Tensor) -> None:
        """Move the weights, and their average towards them; nothing waits for the device."""
        how = self.device, self.plan.precision
        with products(*how):
            with precision(*how):
                loss = self.loss(tuple(t[batch] for t in self.data), self.generator)
            self.optimiser.zero_grad()
            loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            self.total += loss * len(batch)
            way = torch._foreach_sub(self.parameters, self.average)
            torch._foreach_mul_(way, self.weight)
            torch._foreach_add_(self.average, way)

    def _mutable(self) -> list[Tensor]:
        """Return every tensor that a step changes in place."""
        moments = [t for state in self.optimiser.state.values() for t in state.values()]
        return [*self.parameters, *self.average, *moments, self.total]

    @torch.no_grad()
    def held(self, held: tuple[Tensor, ...]) -> float:
        """Return the loss of held-out data by the average, with the same noise each time."""
        generator = Generator(self.device).manual_seed(self.plan.seed)
        parts = zip(*(t.to(self.device).split(self.plan.batch_size) for t in held), strict=True)
        with self._averaged():
            total = sum(float(self.loss(p, generator)) * len(p[0]) for p in parts)
        return total / len(held[0])

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Let the weights be their average for a while; where they lie does not change."""
        now = [p.detach().clone() for p in self.parameters]
        _fill(self.parameters, self.average)
        try:
            yield
        finally:
            _fill(self.parameters, now)

    def judge(self) -> None:
        """Remember the average of the last epoch if none was better."""
        if self.plan.keep == "best" and self.rows[-1]["held"] <= min(r["held"] for r in self.rows):
            self.best, self.best_epoch = [m.clone() for m in self.average], len(self.rows)

    def save(self) -> None:
        """Write all that is needed to go on."""
        if self.folder is None:
            return
        tensors: dict[str, Tensor] = {}
        for i, (p, mean) in enumerate(zip(self.parameters, self.average, strict=True)):
            tensors |= {f"weight.{i}": p, f"average.{i}": mean}
            tensors |= {f"best.{i}": self.best[i]} if self.best else {}
            tensors |= {f"adam.{i}.{k}": v for k, v in self.optimiser.state[p].items()}
        header = self.header | {"epoch": len(self.rows), "best_epoch": self.best_epoch}
        write_tensors(self.folder / "checkpoint.safetensors", tensors, header)

    def resume(self) -> None:
        """Go on from the folder's checkpoint, where it has one."""
        path = (self.folder or Path()) / "checkpoint.safetensors"
        if self.folder is None or not path.exists():
            return
        tensors, header = read_tensors(path)
        other = [k for k, v in self.header.items() if header.get(k) != v]
        if other or header["epoch"] > self.plan.epochs:
            raise VspairError(
                f"{self.folder} holds another training: {', '.join(other) or 'epochs'} differ. "
                "Name another folder, or remove it."
            )
        state = {}
        for i, (p, mean) in enumerate(zip(self.parameters, self.average, strict=True)):
            p.data.copy_(tensors[f"weight.{i}"])
            mean.copy_(tensors[f"average.{i}"])
            if header["best_epoch"]:
                self.best.append(torch.empty_like(mean).copy_(tensors[f"best.{i}"]))
            state[i] = {"step": tensors[f"adam.{i}.step"]}
            for k in ("exp_avg", "exp_avg_sq"):
                # The optimiser reads weights and moments side by side, in one memory format.
                state[i][k] = torch.empty_like(p, device="cpu").copy_(tensors[f"adam.{i}.{k}"])
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.best_epoch = header["best_epoch"]
        self.rows = read_metrics(self.folder / "metrics.jsonl")[: header["epoch"]]
        if len(self.rows) != header["epoch"]:
            raise VspairError(f"{self.folder} lacks lines of metrics.jsonl: train anew.")

    def finish(self) -> None:
        """Leave the average that is kept in the model, and write it."""
        self.save()
        self.model.epochs = len(self.rows)
        _fill(self.parameters, self.best or self.average)
        self.model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.folder is not None:
            header = self.header | {"epoch": len(self.rows), "best_epoch": self.best_epoch}
            write_tensors(self.folder / "weights.safetensors", self.model.state_dict(), header)
            write_text(self.folder / "versions.json", json.dumps(versions(), indent=2) + "\n")


def _fill(parameters: list[Tensor], values: list[Tensor]) -> None:
    """Put values into parameters, where these are."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data.copy_(value)


def train(
    model: Trainable,
    loss: Loss,
    data: tuple[Tensor, ...],
    plan: Plan,
    *,
    folder: str | Path | None = None,
    held: tuple[Tensor, ...] | None = None,
    checkpoint_seconds: float = 300.0,
    deadline: float | None = None,
    compile: bool = False,
    show: bool = False,
) -> list[dict[str, Any]]:
    """Train a model, leave its averaged weights in it, and return one dictionary an epoch.

    Called again with a folder that it was stopped in, it goes on to the same bits on a CPU; with
    one that it finished in, it reads the weights.

    Arguments:
        model: The model, on the device to train on.
        loss: What to lessen.
        data: Tensors with the same first dimension N, of which batches are given to the loss.
        plan: Epochs, batches, step size, averaging and seed.
        folder: Where to write weights, metrics and checkpoints; nothing is written without it.
        held: Tensors as in data, whose loss is logged as ``held``; needed to keep the best.
        checkpoint_seconds: How long to train between two checkpoints, at least.
        deadline: Save and stop before an epoch that would likely end after this time of
            ``time.monotonic``; one is trained in any case.
        compile: Whether to compile the network, which takes a minute.
        show: Whether to show a progress bar.
    """
    if not data or len({len(t) for t in data}) != 1 or not len(data[0]):
        raise VspairError(
            f"data has lengths {[len(t) for t in data]}: expected the same for each, above 0."
        )
    if plan.keep == "best" and held is None:
        raise VspairError("keep = 'best' compares epochs by held-out data: give held.")
    path = None if folder is None else Path(folder)
    if path is not None:
        make_folder(path)
    training = Training(model.train(), loss, data, plan, path)
    training.resume()
    saved = time.monotonic()
    start = saved - (training.rows[-1]["seconds"] if training.rows else 0)
    way = compiled(model.network) if compile else nullcontext()
    with way, Progress(plan.epochs, show) as bar:
        while len(training.rows) < plan.epochs:
            began, row = time.monotonic(), training.epoch()
            with eagerly() if compile else nullcontext():
                row |= {} if held is None else {"held": training.held(held)}
            now = time.monotonic()
            training.rows.append(row | {"seconds": round(now - start, 3)})
            training.judge()
            bar.advance(row["epoch"], row)
            if path is not None:
                lines = "".join(json.dumps(r) + "\n" for r in training.rows)
                write_text(path / "metrics.jsonl", lines)
            if now - saved >= checkpoint_seconds:
                training.save()
                saved = now
            if deadline is not None and time.monotonic() + now - began > deadline:
                break
    training.finish()
    return training.rows
