"""The trainings of the CT study: both presets of vsPAIR, the regression and the prior.

Each can be stopped in time and goes on when it is called again. All keep the weights that are best
on the validation patients.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vspair import config as configs
from vspair import runs
from vspair.config import Config
from vspair.data import Pairs, fingerprint
from vspair.errors import VspairError
from vspair.fitting import start_or_resume_training
from vspair.methods.dps import Prior, train_prior
from vspair.methods.fbp import Fbp
from vspair.methods.regression import Regression, train_regression
from vspair.model import InverseModel
from vspair.networks.unet import WIDTHS
from vspair.problems.ct import CtPairs
from vspair.studies.ct.data import GEOMETRY, CtData, Scale
from vspair.training.batch_norms import refresh_norms
from vspair.training.networks import Plan, Trainable
from vspair.training.side_by_side import train_side_by_side
from vspair.training.trainer import Trainer

__all__ = [
    "PRESETS",
    "Bench",
    "first_guess",
    "load_prior",
    "load_regression",
    "load_vspair",
    "train_preset",
    "train_prior_in_time",
    "train_regression_in_time",
    "vspair_config",
    "vspair_trainer",
]

PRESETS = ("paper", "calibrated")

_TINY: dict[str, Any] = {
    "x_size": 16,
    "y_size": 8,
    "x_network": {"width": 2},
    "y_network": {"width": 2},
}
_TINY_WIDTHS = (4, 8)


def over_copies(epochs: int, copies: int) -> int:
    """Return the passes over so many copies of each slice that have the steps of epochs."""
    return max(1, epochs // copies)


@dataclass(frozen=True)
class Bench:
    """What every stage of the study works with.

    Arguments:
        scale: How much to do.
        data: The pairs.
        folder: Where trainings and answers are kept.
        device: Where to compute.
        deadline: Save and stop at this time of ``time.monotonic``.
        compile: Whether to compile networks on a GPU.
        show: Whether to say what is done and show how far it is.
    """

    scale: Scale
    data: CtData
    folder: Path
    device: torch.device
    deadline: float | None = None
    compile: bool = False
    show: bool = False

    def say(self, text: str) -> None:
        """Say what is done, if that is wanted."""
        if self.show:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    @property
    def answers(self) -> Path:
        """The folder of everything that tables and figures are made from."""
        return self.folder / "answers"

    @property
    def widths(self) -> Sequence[int]:
        """The widths of U-Nets."""
        return _TINY_WIDTHS if self.scale.small else WIDTHS

    @property
    def compiles(self) -> bool:
        """Whether networks are compiled here."""
        return self.compile and self.device.type == "cuda"

    def late(self, needed: float = 0.0) -> bool:
        """Return whether there are fewer seconds left than needed."""
        return self.deadline is not None and time.monotonic() + needed > self.deadline

    def pairs(self, preset: str) -> CtPairs:
        """Return what a preset is trained on: moved copies too, but for the paper's."""
        return self.data.train if preset == "calibrated" else self.data.plain

    def epochs(self, planned: int) -> int:
        """Return the epochs over all copies that have the steps of those planned."""
        return over_copies(planned, self.scale.copies)

    def plan(self, epochs: int) -> Plan:
        """Return how a U-Net is trained here."""
        fast = self.device.type == "cuda"
        return Plan(epochs=epochs, keep="best", precision="bfloat16" if fast else "float32")


# -- vsPAIR ---------------------------------------------------------------------------------


def vspair_config(preset: str, scale: Scale) -> Config:
    """Return the configuration of a preset at a scale.

    Arguments:
        preset: ``paper``, ``calibrated``, or another name of a shipped configuration.
        scale: How much to train.
    """
    config = configs.shipped(f"ct-{preset}")
    copies = scale.copies if preset == "calibrated" else 1
    epochs = over_copies(scale.epochs or config.training.epochs, copies)
    changes: dict[str, Any] = {"training": {"epochs": epochs}}
    if scale.small:
        changes["model"] = _TINY
        changes["objective"] = {"active": 6} if preset == "calibrated" else {}
    return configs.override(config, changes)


def vspair_trainer(
    bench: Bench, preset: str, out: Path, changes: Mapping[str, Any] | None = None
) -> Trainer:
    """Return the training of a preset, new or where its run folder was left.

    Arguments:
        bench: The pairs, how much to train and where.
        preset: ``paper``, ``calibrated``, or another name of a shipped configuration.
        out: The run folder.
        changes: Other values for some keys of the configuration, by section.
    """
    fast = bench.device.type == "cuda"
    train, held = (Pairs(p.x, p.y) for p in (bench.pairs(preset), bench.data.validation))
    how: dict[str, Any] = {"capture": fast, "compile": bench.compiles}
    how["precision"] = "bfloat16" if fast else "float32"
    config = configs.override(vspair_config(preset, bench.scale), {"training": how})
    config = configs.override(config, changes or {})
    return start_or_resume_training(train, held, config, out, bench.device)


def train_preset(bench: Bench, preset: str) -> bool:
    """Train a preset into its run folder; return whether it is trained to its end."""
    trainer = vspair_trainer(bench, preset, bench.folder / preset)
    return trainer.finished or train_side_by_side([trainer], bench.deadline, bench.show)


def load_vspair(bench: Bench, preset: str) -> InverseModel | None:
    """Return a preset as far as it is trained, or nothing where it is not.

    The averages of batch norm are measured at the end of a training; of one that was stopped
    before, they are measured here.
    """
    run = runs.Run(bench.folder / preset)
    if not (run.path / "weights.safetensors").is_file() or not run.metrics():
        return None
    model, training = run.load(bench.device), run.config.training
    if training.norms == "answer" and run.metrics()[-1]["epoch"] < training.epochs:
        refresh_norms(model, model.y_normaliser(bench.pairs(preset).y.to(bench.device)))
    return model


# -- U-Nets ---------------------------------------------------------------------------------


def _reached(folder: Path, plan: Plan, data: tuple[Tensor, Tensor]) -> int:
    """Return the epochs that a folder's U-Net has been trained for, to be continued by a plan."""
    path = folder / "weights.safetensors"
    if not path.is_file():
        return 0
    _, header = runs.read_tensors(path)
    how = {k: v for k, v in asdict(plan).items() if k != "epochs"}
    same = header.get("plan") == how and header.get("data") == fingerprint(*data)
    if not same or header["epoch"] > plan.epochs:
        raise VspairError(
            f"{folder} was trained with other settings or other slices. Name another folder by "
            "--runs, or remove it."
        )
    return int(header["epoch"])


def _in_time(
    bench: Bench,
    folder: Path,
    planned: int,
    data: tuple[Tensor, Tensor],
    train: Callable[[Plan], Trainable],
) -> bool:
    """Train a U-Net, unless that is done or it is late; return whether all epochs are done."""
    plan = bench.plan(bench.epochs(planned))
    if _reached(folder, plan, data) == plan.epochs:
        return True
    return not bench.late() and train(plan).epochs == plan.epochs


def first_guess(bench: Bench, y: Tensor) -> Tensor:
    """Return what the regression starts from, filtered back-projections, on the CPU, (N, R, C)."""
    fbp = Fbp(GEOMETRY)
    return torch.cat([fbp(part.to(bench.device)).cpu() for part in y.split(256)])


def train_regression_in_time(bench: Bench) -> bool:
    """Train the regression, keeping what is best on the validation patients."""
    folder, data = bench.folder / "regression", bench.data
    guess, held = (first_guess(bench, part.y) for part in (data.train, data.validation))

    def train(plan: Plan) -> Trainable:
        return train_regression(
            guess, data.train.x, plan, widths=bench.widths, held=(held, data.validation.x),
            folder=folder, device=str(bench.device), deadline=bench.deadline,
            compile=bench.compiles, show=bench.show,
        )  # fmt: skip

    return _in_time(bench, folder, bench.scale.regression_epochs, (guess, data.train.x), train)


def train_prior_in_time(bench: Bench) -> bool:
    """Train the diffusion prior on the training slices, keeping what is best on validation."""
    folder, data = bench.folder / "prior", bench.data

    def train(plan: Plan) -> Trainable:
        return train_prior(
            data.train.x, plan, widths=bench.widths, held=data.validation.x, folder=folder,
            device=str(bench.device), deadline=bench.deadline, compile=bench.compiles,
            show=bench.show,
        )  # fmt: skip

    slices = data.train.x, data.train.x
    return _in_time(bench, folder, bench.scale.prior_epochs, slices, train)


def load_regression(bench: Bench) -> Regression | None:
    """Return the regression of least error on the validation patients, where there is one."""
    folder = bench.folder / "regression"
    if not (folder / "weights.safetensors").is_file():
        return None
    return Regression.load(folder, str(bench.device))


def load_prior(bench: Bench) -> Prior | None:
    """Return the prior as far as it is trained, where there is one."""
    folder = bench.folder / "prior"
    if not (folder / "weights.safetensors").is_file():
        return None
    return Prior.load(folder, str(bench.device)).requires_grad_(False)
