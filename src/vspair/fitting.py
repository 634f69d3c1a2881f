"""``fit``: from pairs to a trained model, with everything chosen that was not given."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vspair import config as configs
from vspair.config import Config, ModelConfig, PresetName
from vspair.data import as_pairs, split
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.networks import NetworkConfig
from vspair.objective import Objective
from vspair.runs import Run, pick_device
from vspair.training import Trainer

__all__ = ["fit", "prepare", "resumed", "suggest"]


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
    if resume:
        trainer = _resume(x, y, out, pick_device(device), bool(changes or config or active))
    else:
        shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
        config = _configure(config, preset, active, shapes, changes)
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
    model = _fresh(x, y, config)
    run = None if out is None else Run.create(out, config, model)
    return Trainer(model.to(device), config, x, y, run)


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
    trainer = Trainer(_fresh(x, y, run.config).to(device), run.config, x, y, run)
    if (run.path / "checkpoint.safetensors").exists():
        trainer.resume()
    return trainer
