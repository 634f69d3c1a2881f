"""Training: one plain loop for every model.

Orders and noise are drawn from a generator that is seeded anew for each epoch, and a checkpoint
holds the generator's state, so a run that was stopped anywhere continues to the same bits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from collections.abc import Generator as Steps
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from vspair.codes import Code, SpikeSlab
from vspair.config import Config
from vspair.data import Pairs, random_shift
from vspair.errors import VspairError
from vspair.metrics import energy_score
from vspair.model import InverseModel, PairedAutoencoder
from vspair.objective import Objective, Stage
from vspair.runs import Run, fill, read_tensors, write_tensors, write_text
from vspair.training.acceleration import Captured, compiled, eagerly, networks, precision, products
from vspair.training.batch_norms import answering_norms, refresh_norms
from vspair.training.interrupts import Interrupted, stop_on_interrupt
from vspair.training.progress import Progress

__all__ = ["Trainer"]


@dataclass
class _State:
    """Where a training stands: whole epochs done, and steps done in the current one."""

    epoch: int = 0
    step: int = 0
    best: float = math.inf
    best_epoch: int = 0
    stale: int = 0
    seconds: float = 0.0


class Trainer:
    """Trains one model on pairs, in memory or into a run folder.

    Arguments:
        model: The model; its normalisation is set already.
        config: Objective and training.
        train: Pairs to train on, in their own units.
        held: Pairs to compare epochs by, in their own units; none where not given.
        run: Where to save; nothing is saved without it.
    """

    def __init__(
        self,
        model: InverseModel,
        config: Config,
        train: Pairs,
        held: Pairs | None = None,
        run: Run | None = None,
    ) -> None:
        self.model, self.config, self.run = model, config, run
        self.device = model.device
        self._check_augment()
        if len(train) < 2:
            raise VspairError(f"{len(train)} pairs are left to train on: expected at least 2.")
        self.x, self.y = self._normalised(train, "train")
        self.x_held, self.y_held = self._normalised(train[:0] if held is None else held, "held")
        self.steps = self._steps()
        self._two_stages = config.training.stages == "two-stage" and isinstance(
            model, PairedAutoencoder
        )
        self.objective = Objective(config.objective, self.steps * config.training.epochs)
        self.state = _State()
        self.names: list[str] = []
        self.sums = torch.zeros(16, device=self.device)
        self.generator = Generator(self.device)
        self.best_weights: dict[str, Tensor] | None = None
        self.write_end = True  # whoever reads the weights from memory need not wait for gigabytes
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = list(model.parameters())
        self.trainable = [p.requires_grad for p in self.parameters]
        self.optimiser = self._adam()

    @torch.no_grad()
    def _normalised(self, pairs: Pairs, name: str) -> tuple[Tensor, Tensor]:
        """Return pairs as the networks see them, on the device."""
        shapes = self.model.x_shape, self.model.y_shape
        if pairs.shapes != shapes:
            raise VspairError(
                f"{name}: x and y have shapes {pairs.shapes}: expected {shapes}, those of the "
                "model."
            )
        x, y = pairs.x.to(self.device), pairs.y.to(self.device)
        return self.model.x_normaliser(x), self.model.y_normaliser(y)

    def _check_augment(self) -> None:
        """Refuse shifts of what is not an image, or where each pixel has a scale of its own."""
        if self.config.training.augment != "shift":
            return
        shapes, scales = (self.model.x_shape, self.model.y_shape), self.config.model.normalise
        if scales == "feature" or any(len(shape) < 2 for shape in shapes):
            raise VspairError(
                f"augment = 'shift' moves images; x and y have shapes {shapes[0]} and "
                f"{shapes[1]}, and normalise = {scales!r}. Leave out either."
            )

    @property
    def _captures(self) -> bool:
        return self.config.training.capture and self.device.type == "cuda"

    def _adam(self) -> torch.optim.Adam:
        """Return the optimiser; a captured step reads its rate from the device."""
        rate: float | Tensor = self.config.training.learning_rate
        if self._captures:
            rate = torch.tensor(rate, device=self.device)
        return torch.optim.Adam(self.parameters, lr=rate, fused=True, capturable=self._captures)

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
        return [*self.parameters, *self.model.buffers(), self.sums, *moments]

    # -- schedule ---------------------------------------------------------------------------

    def _steps(self) -> int:
        """Return the steps of an epoch; a last batch of a single pair is left out."""
        size, n = self.config.training.batch_size, len(self.x)
        return max(1, n // size + (n % size > 1))

    def _first_epochs(self) -> int:
        """Epochs of the first stage; of the whole training where it is joint."""
        t = self.config.training
        if not self._two_stages:
            return t.epochs
        return min(round(t.first_stage * t.epochs), t.epochs - 1)

    def _stage(self) -> tuple[Stage, float]:
        """Return the current stage and the share of it that is done."""
        total = self.config.training.epochs
        done = self.state.epoch + self.state.step / self.steps
        if not self._two_stages:
            return "joint", done / total
        first = self._first_epochs()
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
            self.sums.zero_()
        return order.to(self.device)

    def _schedule(self, stage: Stage, progress: float) -> None:
        """Set the decoder's width and the step size for a share of the stage."""
        t = self.config.training
        self.objective.at(self.model, progress if stage != "map" else 1.0)
        if t.schedule == "cosine":
            self.rate = t.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

    def _step(self, batch: Tensor, stage: Stage) -> None:
        """Move the weights once; all on the device, nothing waits for it."""
        t = self.config.training
        x, y = self.x[batch], self.y[batch]
        if t.augment == "shift":
            x, y = random_shift(x, y, self.generator)
        with products(self.device, t.precision):
            with precision(self.device, t.precision):
                loss, terms = self.objective(self.model, x, y, self.generator, stage)
            for parameter in self.parameters:
                parameter.grad = None
            loss.backward()
        if t.clip:
            nn.utils.clip_grad_norm_(self.parameters, t.clip)
        self.optimiser.step()
        with torch.no_grad():
            self.sums[: len(terms) + 1] += torch.stack((loss, *terms.values()))
        self.names = ["loss", *terms]

    def _epoch(self, step: Callable[[Tensor, Stage], None]) -> Iterator[None]:
        """Run what is left of an epoch, pausing after each step."""
        size, order = self.config.training.batch_size, self._order()
        self._enter(self._stage()[0])
        for i in range(self.state.step, self.steps):
            stage, progress = self._stage()
            self._schedule(stage, progress)
            step(order[i * size : (i + 1) * size], stage)
            self.state.step = i + 1
            if self._checkpoint_due():
                self.save()
            yield

    # -- validation -------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self, most: int = 1024) -> dict[str, float]:
        """Return held-out terms, the energy score of the posterior, and how many gates are open.

        The energy score, E|X - x| - E|X - X'| / 2 for samples X of the posterior, is proper and
        does not depend on the objective's weights: it compares epochs, presets and models.
        """
        self.model.eval()
        x, y = self.x_held[:most], self.y_held[:most]
        if not len(x):
            return self._active(self.model.latent(self.y[:most]))
        noise = Generator(self.device).manual_seed(0)
        stage, _ = self._stage()
        loss, terms = self.objective(self.model, x, y, noise, "joint" if stage == "map" else stage)
        with answering_norms(self.model, self.y, self.config.training.norms):
            code = self.model.latent(y)
            drawn = [self.model.x_decoder(code.rsample(noise)) for _ in range(4)]
        row = {"val_loss": loss, **{f"val_{k}": v for k, v in terms.items()}}
        row["val_score"] = energy_score(torch.stack(drawn), x).mean()
        values = torch.stack(list(row.values())).tolist()
        return dict(zip(row, values, strict=True)) | self._active(code)

    def _active(self, code: Code) -> dict[str, float]:
        """Return how many gates are more open than not, on average; nothing without gates."""
        if not isinstance(code, SpikeSlab):
            return {}
        return {"active": float((code.omega > 0.5).float().sum(-1).mean())}

    def _row(self, stage: Stage, seconds: float) -> dict[str, Any]:
        row: dict[str, Any] = {"epoch": self.state.epoch, "stage": stage}
        means = (self.sums[: len(self.names)] / self.steps).tolist()
        row |= dict(zip(self.names, means, strict=True))
        t = self.config.training
        if self.state.epoch % t.validate_every == 0 or self.state.epoch == t.epochs:
            with eagerly() if t.compile else nullcontext():
                row |= self.validate()
        self._expect_finite(row)
        if self.model.rho_logit is not None:
            row["rho"] = float(torch.sigmoid(self.model.rho_logit.detach()))
        row["width"] = float(self.model.log_width.detach().exp())
        return row | {"rate": self.rate, "seconds": round(seconds, 3)}

    def _expect_finite(self, row: dict[str, Any]) -> None:
        """Stop before anything is saved that is not a number."""
        sums = torch.stack([p.detach().sum() for p in self.parameters])
        sick = [k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)]
        if sick or not bool(sums.isfinite().all()):
            what = f"{sick[0]} is {row[sick[0]]}" if sick else "A weight is not finite"
            raise VspairError(
                f"{what} in epoch {self.state.epoch}: training has diverged. Lower the learning "
                "rate, or set training.clip. Nothing of this epoch was saved."
            )

    def _judge(self, row: dict[str, Any], progress: float) -> None:
        """Remember the best epoch among those whose schedules have ended."""
        second = not self._two_stages or self.state.epoch > self._first_epochs()
        comparable = self.objective.settled(progress) and second
        if "val_score" not in row or not comparable:
            return
        if row["val_score"] < self.state.best:
            self.state.best, self.state.best_epoch = row["val_score"], self.state.epoch
            self.state.stale = 0
            if self.config.training.keep == "best":
                self._keep()
        else:
            self.state.stale += 1

    def _keep(self) -> None:
        """Remember the weights as the best."""
        self.best_weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        t = self.config.training
        return self.state.epoch >= t.epochs or 0 < t.patience <= self.state.stale

    # -- the whole training -----------------------------------------------------------------

    def train(self, show: bool = True) -> list[dict[str, Any]]:
        """Train to the end and return one dictionary an epoch.

        Raises:
            Interrupted: After Ctrl-C, once the state is saved.
        """
        rows: list[dict[str, Any]] = []
        with stop_on_interrupt() as stop, Progress(self.config.training.epochs, show) as bar:
            for _ in self.run_steps(rows):
                if stop.is_set():
                    self.save()
                    raise Interrupted
                if bar.due():
                    done = self.state.epoch + self.state.step / self.steps
                    bar.advance(done, rows[-1] if rows else None)
            bar.advance(self.state.epoch, rows[-1] if rows else None)
        return rows

    def run_steps(self, rows: list[dict[str, Any]]) -> Steps[None, None, None]:
        """Train, pausing after each step, so that several trainings can take turns.

        Arguments:
            rows: Filled with one dictionary an epoch.
        """
        if self.run:
            rows += [row for row in self.run.metrics() if row["epoch"] <= self.state.epoch]
            self._rewrite(rows)
        self._saved = time.monotonic()
        start = self._saved - self.state.seconds
        t = self.config.training
        step: Callable[[Tensor, Stage], None] = self._step
        with compiled(*networks(self.model)) if t.compile else nullcontext():
            if self._captures:
                step = Captured(step, t.batch_size, self.generator, self._mutable)
            while not self.finished:
                stage, _ = self._stage()
                for _ in self._epoch(step):
                    self.state.seconds = time.monotonic() - start
                    yield
                _, done = self._stage()
                self.state.epoch, self.state.step = self.state.epoch + 1, 0
                rows.append(self._row(stage, self.state.seconds))
                self._judge(rows[-1], done if stage != "map" else 1.0)
                self._log(rows)
        self._finish()

    def _finish(self) -> None:
        for parameter, trainable in zip(self.parameters, self.trainable, strict=True):
            parameter.requires_grad_(trainable)
        # As a reloaded model is laid out: another layout rounds otherwise.
        self.model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        if self.config.training.norms == "answer":
            refresh_norms(self.model, self.y)
            if self.best_weights is not None:
                self._keep()
        if self.write_end:
            self.save()

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Drop what was logged after the checkpoint that the training continues from."""
        assert self.run is not None
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(self.run.path / "metrics.jsonl", lines)

    def _log(self, rows: list[dict[str, Any]]) -> None:
        if self.run is None:
            return
        path = self.run.path / "metrics.jsonl"
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
        if self.run is None or not bool(self.sums.isfinite().all()):
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, state in ({} if self.finished else self.optimiser.state_dict()["state"]).items():
            tensors |= {f"adam.{i}.{k}": v for k, v in state.items()}
        tensors |= {f"best.{k}": v for k, v in (self.best_weights or {}).items()}
        tensors |= {"sums": self.sums, "generator": self.generator.get_state()}
        if self.best_weights is None:
            self.run.save_weights(self.model, self.state.epoch)
        else:
            self.run.save_weights(self.best_weights, self.state.best_epoch)
        header = asdict(self.state) | {"names": self.names, "rate": self.rate}
        write_tensors(self.run.path / "checkpoint.safetensors", tensors, header)
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Continue from the run's checkpoint."""
        assert self.run is not None
        path = self.run.path / "checkpoint.safetensors"
        tensors, header = read_tensors(path)
        groups: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            head, _, tail = name.partition(".")
            groups.setdefault(head, {})[tail] = value
        fill(self.model, groups.get("model", {}), path)
        try:
            self.names, self.rate = header.pop("names"), header.pop("rate")
            self.state = _State(**header)
            if not all(isinstance(v, int | float) for v in asdict(self.state).values()):
                raise TypeError("its header holds words for numbers")
            self.sums.copy_(tensors["sums"])
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
