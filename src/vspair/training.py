"""Training: one plain loop for every model.

Orders and noise are drawn from a generator that is seeded anew for each epoch, and a checkpoint
holds the generator's state, so a run that was stopped anywhere continues to the same bits.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair import config as configs
from vspair.codes import SpikeSlab
from vspair.config import Config, ModelConfig, PresetName
from vspair.data import as_pairs, split
from vspair.errors import VspairError
from vspair.metrics import energy_score
from vspair.model import InverseModel, PairedAutoencoder, build
from vspair.networks import NetworkConfig
from vspair.objective import Objective, Stage
from vspair.progress import Progress
from vspair.runs import Run, pick_device, read_tensors, write_tensors, write_text

__all__ = ["Interrupted", "Trainer", "fit", "suggest"]


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C, between two steps; what was reached is saved."""


@dataclass
class _State:
    """Where a training stands: whole epochs done, and steps done in the current one."""

    epoch: int = 0
    step: int = 0
    best: float = math.inf
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that no step is left half done."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Trainer:
    """Trains one model on pairs, in memory or into a run folder.

    Arguments:
        model: The model; its normalisation is set already.
        config: Objective and training.
        x: Unknowns in their own units, with shape (N, *x_shape).
        y: Observations in their own units, with shape (N, *y_shape).
        run: Where to save; nothing is saved without it.
    """

    def __init__(
        self, model: InverseModel, config: Config, x: Tensor, y: Tensor, run: Run | None = None
    ) -> None:
        self.model, self.config, self.run = model, config, run
        self.device = model.log_width.device
        train, held = split(len(x), config.training.validation, config.training.seed)
        with torch.no_grad():
            x, y = model.x_normaliser(x.to(self.device)), model.y_normaliser(y.to(self.device))
        self.x, self.y = x[train], y[train]
        self.x_held, self.y_held = x[held], y[held]
        if len(self.x) < 2:
            raise VspairError(f"{len(self.x)} pairs are left to train on: expected at least 2.")
        self.objective = Objective(config.objective, self.steps * config.training.epochs)
        self.state = _State()
        self.names: list[str] = []
        self.sums = torch.zeros(0, device=self.device)
        self.generator = Generator(self.device)
        self.best_weights: dict[str, Tensor] | None = None
        self.parameters = list(model.parameters())
        self.optimiser = torch.optim.Adam(
            self.parameters, lr=config.training.learning_rate, fused=True
        )

    # -- schedule ---------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps in an epoch; a last batch of a single pair is left out."""
        size, n = self.config.training.batch_size, len(self.x)
        return max(1, n // size + (n % size > 1))

    def _first_epochs(self) -> int:
        """Epochs of the first stage; of the whole training where it is joint."""
        t = self.config.training
        two = t.stages == "two-stage" and isinstance(self.model, PairedAutoencoder)
        return max(1, round(t.first_stage * t.epochs)) if two else t.epochs

    def _stage(self) -> tuple[Stage, float]:
        """Return the current stage and the share of it that is done."""
        first, total = self._first_epochs(), self.config.training.epochs
        done = self.state.epoch + self.state.step / self.steps
        if first == total:
            return "joint", done / total
        if self.state.epoch < first:
            return "autoencoders", done / first
        return "map", (done - first) / (total - first)

    def _enter(self, stage: Stage) -> None:
        """Let only the parameters of a stage move."""
        self.model.train()
        if stage != "map":
            return
        assert isinstance(self.model, PairedAutoencoder)
        self.model.eval().requires_grad_(False)
        for module in self.model.maps():
            module.train().requires_grad_(True)

    # -- one epoch --------------------------------------------------------------------------

    def _order(self) -> Tensor:
        """Return the epoch's order; start its noise where an epoch begins."""
        seed = (self.config.training.seed << 24) + self.state.epoch
        order = torch.randperm(len(self.x), generator=Generator().manual_seed(seed))
        if self.state.step == 0:
            self.generator.manual_seed(seed)
            self.names = []
        return order.to(self.device)

    def _step(self, batch: Tensor, stage: Stage, progress: float) -> None:
        t = self.config.training
        self.objective.at(self.model, progress if stage != "map" else 1.0)
        if t.schedule == "cosine":
            rate = t.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
            self.optimiser.param_groups[0]["lr"] = rate
        loss, terms = self.objective(
            self.model, self.x[batch], self.y[batch], self.generator, stage
        )
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        if t.clip:
            nn.utils.clip_grad_norm_(self.parameters, t.clip)
        self.optimiser.step()
        values = torch.stack((loss, *terms.values())).detach()
        self.sums = self.sums + values if self.names else values
        self.names = ["loss", *terms]

    def _epoch(self, stop: threading.Event, progress: Progress) -> bool:
        """Run what is left of an epoch; return whether it was finished."""
        size, order = self.config.training.batch_size, self._order()
        stage, _ = self._stage()
        self._enter(stage)
        for step in range(self.state.step, self.steps):
            self._step(order[step * size : (step + 1) * size], *self._stage())
            self.state.step = step + 1
            if stop.is_set():
                return False
            if progress.due():
                progress.advance(self.state.epoch + self.state.step / self.steps)
            if self._checkpoint_due():
                self.save()
        return True

    # -- validation -------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self, most: int = 1024) -> dict[str, float]:
        """Return held-out terms, the energy score of the posterior, and how many gates are open.

        The energy score, E|X - x| - E|X - X'| / 2 for samples X of the posterior, is proper and
        does not depend on the objective's weights: it compares epochs, presets and models.
        """
        if not len(self.x_held):
            return {}
        self.model.eval()
        x, y = self.x_held[:most], self.y_held[:most]
        noise = Generator(self.device).manual_seed(0)
        stage, _ = self._stage()
        loss, terms = self.objective(self.model, x, y, noise, "joint" if stage == "map" else stage)
        code = self.model.latent(y)
        drawn = [self.model.x_decoder(code.rsample(noise)) for _ in range(4)]
        row = {"val_loss": loss, **{f"val_{k}": v for k, v in terms.items()}}
        row["val_score"] = energy_score(torch.stack(drawn), x).mean()
        if isinstance(code, SpikeSlab):
            row["active"] = (code.omega > 0.5).float().sum(-1).mean()
        return {k: float(v) for k, v in row.items()}

    def _row(self, stage: Stage, seconds: float) -> dict[str, Any]:
        row: dict[str, Any] = {"epoch": self.state.epoch, "stage": stage}
        row |= dict(zip(self.names, (self.sums / self.steps).tolist(), strict=True))
        row |= self.validate()
        if self.model.rho_logit is not None:
            row["rho"] = float(torch.sigmoid(self.model.rho_logit.detach()))
        row["width"] = float(self.model.log_width.detach().exp())
        return row | {"rate": self.optimiser.param_groups[0]["lr"], "seconds": round(seconds, 3)}

    def _judge(self, row: dict[str, Any], progress: float) -> None:
        """Remember the best epoch among those whose schedules have ended."""
        first, total = self._first_epochs(), self.config.training.epochs
        comparable = self.objective.settled(progress) and (
            first == total or self.state.epoch > first
        )
        if "val_score" not in row or not comparable:
            return
        if row["val_score"] < self.state.best:
            self.state.best, self.state.best_epoch = row["val_score"], self.state.epoch
            self.state.stale = 0
            if self.config.training.keep == "best":
                state = self.model.state_dict()
                self.best_weights = {k: v.detach().clone() for k, v in state.items()}
        else:
            self.state.stale += 1

    def _exhausted(self) -> bool:
        patience = self.config.training.patience
        return bool(patience) and self.state.stale >= patience

    # -- the whole training -----------------------------------------------------------------

    def train(self, show: bool = True) -> list[dict[str, Any]]:
        """Train to the end and return one dictionary an epoch.

        Raises:
            Interrupted: After Ctrl-C, once the state is saved.
        """
        rows = self.run.metrics()[: self.state.epoch] if self.run else []
        epochs = self.config.training.epochs
        self._saved = start = time.monotonic()
        before = self.state.seconds
        with _stop_on_interrupt() as stop, Progress(epochs, show) as progress:
            while self.state.epoch < epochs and not self._exhausted():
                stage, _ = self._stage()
                finished = self._epoch(stop, progress)
                self.state.seconds = before + time.monotonic() - start
                if not finished:
                    self.save()
                    raise Interrupted
                _, done = self._stage()
                self.state.epoch, self.state.step = self.state.epoch + 1, 0
                rows.append(self._row(stage, self.state.seconds))
                self._judge(rows[-1], done if stage != "map" else 1.0)
                self._log(rows)
                progress.advance(self.state.epoch, rows[-1])
            self._finish()
        return rows

    def _finish(self) -> None:
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        self.model.eval()
        if self.run:
            self.save()

    def _log(self, rows: list[dict[str, Any]]) -> None:
        if self.run is None:
            return
        path = self.run.path / "metrics.jsonl"
        if len(rows) == 1 or not path.exists():
            write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
            return
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        except OSError as error:
            raise VspairError(f"Could not write {path}: {error}.") from None

    # -- checkpoints ------------------------------------------------------------------------

    def _checkpoint_due(self) -> bool:
        if self.run is None:
            return False
        return time.monotonic() - self._saved >= self.config.training.checkpoint_seconds

    def save(self) -> None:
        """Write weights to use and a checkpoint to resume from."""
        if self.run is None:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, state in self.optimiser.state_dict()["state"].items():
            tensors |= {f"adam.{i}.{k}": v for k, v in state.items()}
        tensors |= {f"best.{k}": v for k, v in (self.best_weights or {}).items()}
        tensors |= {"sums": self.sums, "generator": self.generator.get_state()}
        self.run.save_weights(self.best_weights or self.model, self.state.epoch)
        header = asdict(self.state) | {"names": self.names}
        write_tensors(self.run.path / "checkpoint.safetensors", tensors, header)
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Continue from the run's checkpoint, where there is one."""
        assert self.run is not None
        path = self.run.path / "checkpoint.safetensors"
        if not path.exists():
            return
        tensors, header = read_tensors(path)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            head, _, tail = name.partition(".")
            groups.setdefault(head, {})[tail] = value
        self.names = header.pop("names")
        self.state = _State(**header)
        self.model.load_state_dict(groups["model"])
        self.best_weights = groups.get("best")
        self.sums = tensors["sums"].to(self.device)
        self.generator.set_state(tensors["generator"])
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in groups.get("adam", {}).items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = value
        plain = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**plain, "state": moments})


def suggest(x_shape: tuple[int, ...], y_shape: tuple[int, ...], active: int = 0) -> ModelConfig:
    """Return a network size that suits data of these shapes.

    Images are halved until about seven pixels are left on a side; vectors get an MLP. There are
    four times as many latent dimensions as factors asked for, and at least 64.
    """

    def network(shape: tuple[int, ...]) -> NetworkConfig:
        if len(shape) == 1:
            return NetworkConfig("mlp", width=64, depth=2)
        depth = max(1, round(math.log2(min(shape[-2:]) / 7)))
        return NetworkConfig("conv", width=16, depth=depth)

    size = max(64, 2 ** math.ceil(math.log2(4 * max(active, 1))))
    return ModelConfig(
        x_size=size, y_size=64, x_network=network(x_shape), y_network=network(y_shape)
    )


def _configure(
    config: Config | None,
    preset: PresetName,
    active: int,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    changes: dict[str, Any],
) -> Config:
    if config is None:
        base = configs.preset(preset, active)
        model = asdict(base.model) | {
            k: v
            for k, v in asdict(suggest(*shapes, active)).items()
            if k in {"x_size", "y_size", "x_network", "y_network"}
        }
        config = configs.override(base, {"model": model})
    elif active:
        steer = {"rho": "dual", "gate_prior": "price", "map": "kl", "active": active}
        config = configs.override(config, {"objective": steer})
    if changes:
        config = configs.override(config, {"training": changes})
    if config.objective.active > config.model.x_size:
        raise VspairError(
            f"active = {config.objective.active}, but the code has only x_size = "
            f"{config.model.x_size} factors. Raise model.x_size or ask for fewer."
        )
    return config


def fit(
    x: Any,
    y: Any,
    *,
    active: int = 0,
    preset: PresetName = "calibrated",
    config: Config | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    **changes: Any,
) -> InverseModel:
    """Learn to invert from pairs, and return the trained model.

    Arguments:
        x: The unknowns, with shape (N, n), (N, H, W) or (N, C, H, W).
        y: The observations, pair by pair, with a shape of the same kinds.
        active: How many factors should be open on average; 0 lets the objective decide.
        preset: ``calibrated`` or ``paper``, where no config is given.
        config: Everything in detail.
        out: A folder to save the run in; it must not exist, unless it is resumed.
        resume: Continue the run in ``out`` where it was stopped.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        progress: Whether to show a progress bar.
        changes: Keys of the training section, such as ``epochs=50`` or ``seed=1``.

    Example:
        >>> x = torch.randn(64, 2)
        >>> model = fit(x, x + 0.1 * torch.randn(64, 2), epochs=1, progress=False)
        >>> model.posterior(x[0]).sample(5).shape
        torch.Size([5, 2])
    """
    x, y = as_pairs(x, y)
    where = pick_device(device)
    if resume:
        if out is None:
            raise VspairError("resume = True needs the run folder: give out = FOLDER.")
        return _resume(x, y, Run(out), where, progress, bool(changes or config or active))
    shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
    config = _configure(config, preset, active, shapes, changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build(config.model, *shapes)
    train, _ = split(len(x), config.training.validation, config.training.seed)
    model.x_normaliser.fit(x[train], config.model.normalise)
    model.y_normaliser.fit(y[train], config.model.normalise)
    Objective(config.objective).prepare(model)
    run = Run.create(out, config, model) if out is not None else None
    Trainer(model.to(where), config, x, y, run).train(progress)
    return model


def _resume(
    x: Tensor, y: Tensor, run: Run, device: torch.device, progress: bool, changed: bool
) -> InverseModel:
    if changed:
        raise VspairError("A resumed run keeps its configuration: leave out every other setting.")
    config, model = run.config, run.blank().to(device)
    shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
    if shapes != (model.x_shape, model.y_shape):
        raise VspairError(
            f"x and y have shapes {shapes}; {run.path} was trained on "
            f"{(model.x_shape, model.y_shape)}. Give the pairs that it was started with."
        )
    checkpoint = run.path / "checkpoint.safetensors"
    if not checkpoint.exists():
        raise VspairError(f"{run.path} has no checkpoint to resume from: train it anew.")
    Objective(config.objective).prepare(model)
    tensors, _ = read_tensors(checkpoint)
    state = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    model.load_state_dict(state)
    trainer = Trainer(model, config, x, y, run)
    trainer.resume()
    trainer.train(progress)
    return model
