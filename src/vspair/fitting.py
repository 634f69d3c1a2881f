"""``fit``: from pairs to a trained model, with everything chosen that was not given."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vspair import config as configs
from vspair.config import Config, PresetName, TrainingConfig
from vspair.data import as_pairs, fingerprint, split
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.objective import Objective
from vspair.runs import Run, pick_device
from vspair.training.trainer import Trainer

__all__ = ["continued", "fit", "prepare", "resumed", "suggest"]


LEAST_STEPS = 5000
"""The steps below which a training of few pairs gets more epochs than a hundred."""


MEANS = ("capture", "compile", "precision", "checkpoint_seconds")
"""Settings of how a training is done, not of what it gives."""


def suggest(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], pairs: int = 10_000, active: int = 0
) -> dict[str, Any]:
    """Return the settings that suit data of these shapes, as changes to a preset.

    Images are halved until about seven pixels are left on a side; vectors get an MLP, a larger
    step and a decoder whose width is annealed, because few factors can describe a vector exactly
    and an image seldom. There are four times as many latent dimensions as factors asked for, at
    least 64, and so many epochs that there are 5,000 steps.
    """

    def network(shape: tuple[int, ...]) -> dict[str, Any]:
        if len(shape) == 1:
            return {"kind": "mlp", "width": 64, "depth": 2}
        depth = max(1, round(math.log2(min(shape[-2:]) / 7)))
        return {"kind": "conv", "width": 16, "depth": depth}

    batch = TrainingConfig().batch_size
    sizes = {"x_size": max(64, 2 ** math.ceil(math.log2(4 * max(active, 1)))), "y_size": 64}
    networks = {"x_network": network(x_shape), "y_network": network(y_shape)}
    epochs = max(100, math.ceil(LEAST_STEPS / math.ceil(pairs / batch)))
    changes = {"model": sizes | networks, "training": {"epochs": epochs}}
    if len(x_shape) == 1:
        changes["objective"] = {"width": "annealed", "width_start": 0.5, "width_end": 0.03}
        changes["training"]["learning_rate"] = 3e-3
    return changes


def _configure(
    config: Config | None,
    preset: PresetName | None,
    active: int,
    x: Tensor,
    y: Tensor,
    changes: dict[str, Any],
) -> Config:
    """Return a configuration that is complete and checked, however it was given."""
    if active and (config is not None or preset == "paper"):
        raise VspairError(
            f"active = {active} steers the calibrated preset. With a configuration, set "
            "objective.rho = 'dual' and objective.active in it; the paper's objective has no "
            "number of factors to set, only alpha0 and beta0."
        )
    if config is not None and preset is not None:
        raise VspairError(
            f"preset = {preset!r} and a configuration: give one of them. A configuration names "
            "its preset in its first line."
        )
    if config is None:
        preset = preset or "calibrated"
        config = configs.preset(preset, active)
        fitting = suggest(tuple(x.shape[1:]), tuple(y.shape[1:]), len(x), active)
        if preset == "paper":
            fitting.pop("objective", None)
        config = configs.override(config, fitting)
    config = configs.override(config, {"training": changes})
    asked, kind = config.objective.active, config.model.kind
    if asked and kind in ("PAIR", "vPAIR"):
        raise VspairError(f"active = {asked}, but {kind} has no gates: leave it out.")
    if asked > config.model.x_size:
        raise VspairError(
            f"active = {asked}, but the code has only x_size = {config.model.x_size} factors. "
            "Raise model.x_size or ask for fewer."
        )
    return config


def fit(
    x: Any,
    y: Any,
    *,
    active: int = 0,
    preset: PresetName | None = None,
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
        active: How many factors should be open on average; 0 keeps those worth a small price.
        preset: ``calibrated``, which is the default, or ``paper``; not with a config.
        config: Everything in detail; nothing is chosen for you then (see :func:`suggest`).
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
    if resume:
        changed = bool(changes or config or active or preset)
        trainer = _resume(x, y, out, pick_device(device), changed)
    else:
        config = _configure(config, preset, active, x, y, changes)
        trainer = prepare(x, y, config, out=out, device=pick_device(device))
    trainer.train(progress)
    return trainer.model


def prepare(
    x: Tensor,
    y: Tensor,
    config: Config,
    *,
    out: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Trainer:
    """Return a training that has not begun: weights drawn, normalisation set, folder made."""
    trainer = Trainer(_fresh(x, y, config).to(device), config, x, y)
    if out is not None:
        trainer.run = Run.create(out, config, trainer.model, fingerprint(x, y))
    return trainer


def continued(x: Tensor, y: Tensor, config: Config, out: Path, device: torch.device) -> Trainer:
    """Return a new training, or that of a folder where it was stopped, or ended.

    Arguments:
        x: The unknowns.
        y: The observations.
        config: The settings; a folder of others is refused, whatever the means.
        out: The run folder.
        device: Where to train.
    """
    if not out.exists():
        return prepare(x, y, config, out=out, device=device)
    run = Run(out)
    for section in ("model", "objective", "training"):
        there, here = (dataclasses.asdict(getattr(c, section)) for c in (run.config, config))
        for key, value in there.items():
            if value != here[key] and key not in MEANS:
                raise VspairError(
                    f"{out} was trained with other settings: {section}.{key} is {value} there "
                    f"and {here[key]} here. Name another folder by --runs, or remove it."
                )
    return resumed(x, y, run, device)


def _fresh(x: Tensor, y: Tensor, config: Config) -> InverseModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build(config.model, tuple(x.shape[1:]), tuple(y.shape[1:]))
    train, _ = split(len(x), config.training.validation, config.training.seed)
    model.x_normaliser.fit(x[train], config.model.normalise)
    model.y_normaliser.fit(y[train], config.model.normalise)
    Objective(config.objective).prepare(model)
    return model


def _resume(
    x: Tensor, y: Tensor, out: str | Path | None, device: torch.device, changed: bool
) -> Trainer:
    if out is None:
        raise VspairError("resume = True needs the run folder: give out = FOLDER.")
    if changed:
        raise VspairError("A resumed run keeps its configuration: leave out every other setting.")
    return resumed(x, y, Run(out), device)


def resumed(x: Tensor, y: Tensor, run: Run, device: torch.device) -> Trainer:
    """Return the training of a run folder where it was stopped; at its beginning, if before.

    Arguments:
        x: The unknowns that it was started with.
        y: The observations that it was started with.
        run: The run folder.
        device: Where to train.
    """
    shapes, known = (tuple(x.shape[1:]), tuple(y.shape[1:])), run.shapes
    if shapes != known:
        raise VspairError(
            f"x and y have shapes {shapes}; {run.path} was trained on {known}. Give the pairs "
            "that it was started with."
        )
    if run.pairs != fingerprint(x, y):
        raise VspairError(
            f"These are not the pairs that {run.path} was started with: their number or values "
            "differ. Give the same files, in the same order."
        )
    trainer = Trainer(_fresh(x, y, run.config).to(device), run.config, x, y, run)
    if (run.path / "checkpoint.safetensors").exists():
        trainer.resume()
    return trainer
