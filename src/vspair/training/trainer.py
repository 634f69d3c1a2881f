"""The training of paired models, in one stage or two."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from vspair.codes import Code, SpikeSlab
from vspair.config import Config
from vspair.data import Pairs, random_shift
from vspair.errors import VspairError
from vspair.metrics import energy_score
from vspair.model import InverseModel, PairedAutoencoder
from vspair.objective import Objective, Stage
from vspair.runs import Run
from vspair.training.acceleration import networks
from vspair.training.batch_norms import answering_norms, refresh_norms
from vspair.training.loop import Loop, Row

__all__ = ["Trainer"]


class Trainer(Loop):
    """Trains one model on pairs, in memory or into a run folder.

    Arguments:
        model: The model; its normalisation is set already.
        config: Objective and training.
        train: Pairs to train on, in their own units.
        held: Pairs to compare epochs by, in their own units; none where not given.
        run: Where to save; nothing is saved without it.
    """

    model: InverseModel
    smallest_batch = 2  # batch norm has no variance of a single pair

    def __init__(
        self,
        model: InverseModel,
        config: Config,
        train: Pairs,
        held: Pairs | None = None,
        run: Run | None = None,
    ) -> None:
        if len(train) < 2:
            raise VspairError(f"{len(train)} pairs are left to train on: expected at least 2.")
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        folder = run.path if run else None
        super().__init__(model, config.training, len(train), networks(model), folder)
        self.config = config
        self._check_augment()
        self.x, self.y = self._normalised(train, "train")
        self.x_held, self.y_held = self._normalised(train[:0] if held is None else held, "held")
        two = config.training.stages == "two-stage"
        self._two_stages = two and isinstance(model, PairedAutoencoder)
        self.objective = Objective(config.objective, self.steps * config.training.epochs)
        self.trainable = [p.requires_grad for p in self.parameters]

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

    def _first_epochs(self) -> int:
        """Epochs of the first stage; of the whole training where it is joint."""
        t = self.settings
        if not self._two_stages:
            return t.epochs
        return min(round(t.first_stage * t.epochs), t.epochs - 1)

    def _stage_of(self, epoch: int) -> Stage:
        """Return the stage of an epoch, counted from 0."""
        if not self._two_stages:
            return "joint"
        return "autoencoders" if epoch < self._first_epochs() else "map"

    def _stage(self) -> tuple[Stage, float]:
        """Return the current stage and the share of it that is done."""
        stage, first = self._stage_of(self.state.epoch), self._first_epochs()
        if stage != "map":
            return stage, self.epochs_done / first
        return stage, (self.epochs_done - first) / (self.settings.epochs - first)

    def _begin_epoch(self) -> None:
        """Let only the parameters of the current stage move."""
        stage, _ = self._stage()
        self.model.train()
        if stage != "map":
            return
        assert isinstance(self.model, PairedAutoencoder)
        self.model.eval().requires_grad_(False)
        for module in self.model.maps():
            module.train().requires_grad_(True)

    def _begin_step(self) -> tuple[Stage]:
        """Set the decoder's noise and the step size for the share of the stage that is done."""
        stage, progress = self._stage()
        self.objective.at(self.model, progress if stage != "map" else 1.0)
        if self.settings.schedule == "cosine":
            self.rate = self.settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        return (stage,)

    def _loss(self, batch: Tensor, *kind: Stage) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = self.x[batch], self.y[batch]
        if self.settings.augment == "shift":
            x, y = random_shift(x, y, self.generator)
        loss, terms = self.objective(self.model, x, y, self.generator, *kind)
        return loss, {"loss": loss, **terms}

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
        with answering_norms(self.model, self.y, self.settings.norms):
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

    def _describe_epoch(self) -> tuple[Row, float | None]:
        t, epoch = self.settings, self.state.epoch
        means = (self.sums[: len(self.names)] / self.steps).tolist()
        row: Row = {"stage": self._stage_of(epoch - 1)}
        row |= dict(zip(self.names, means, strict=True))
        if epoch % t.validate_every == 0 or epoch == t.epochs:
            row |= self.validate()
        if self.model.rho is not None:
            row["rho"] = float(self.model.rho)
        row |= {"width": float(self.model.noise_std), "rate": self.rate}
        return row, row.get("val_score") if self._comparable() else None

    def _comparable(self) -> bool:
        """Whether schedules have ended, so that epochs can be compared with each other."""
        if self._two_stages:
            return self.state.epoch > self._first_epochs()
        return self.objective.settled(self.state.epoch / self.settings.epochs)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience is at its end."""
        return super().finished or 0 < self.settings.patience <= self.state.stale

    def _finish(self) -> None:
        for parameter, trainable in zip(self.parameters, self.trainable, strict=True):
            parameter.requires_grad_(trainable)
        # As a reloaded model is laid out: another layout rounds otherwise.
        self.model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
        if self.settings.norms == "answer":
            refresh_norms(self.model, self.y)
            if self.best_weights is not None:
                self._keep_weights()
        self.save()
