"""``fit``: from pairs to a trained model, with everything chosen that was not given.

The default is the anchored model (:mod:`vspair.anchored`); ``paper`` and ``calibrated`` train a
paired one.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from pathlib import Path
from typing import Any

import torch

from vspair import config as configs
from vspair.anchored import First
from vspair.anchored_fit import KEYS, AnchorChoice, AnchoredFit, suggest_kinds
from vspair.config import Config, PresetName, TrainingConfig
from vspair.data import Pairs, fingerprint
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.objective import Objective
from vspair.runs import Run, pick_device
from vspair.training.prepared import domain_of, tell_domain
from vspair.training.trainer import Trainer

__all__ = [
    "fit",
    "resume_training",
    "split_pairs",
    "start_or_resume_training",
    "start_training",
    "suggest_settings",
]

LEAST_STEPS = 5000
"""The steps below which a training of few pairs gets more epochs than a hundred."""

HARMLESS = {"capture": False, "compile": False, "precision": "float32", "patience": 0}
"""Keys of the training section that the anchored model does not read, with what it does anyway."""

EXECUTION_KEYS = ("capture", "compile", "precision", "checkpoint_seconds")
"""Keys of the training section that say how it is executed, not what it computes."""


def suggest_settings(
    x_shape: tuple[int, ...], y_shape: tuple[int, ...], pairs: int = 10_000, active: int = 0
) -> dict[str, Any]:
    """Return the settings that suit data of these shapes, as changes to a preset.

    Images are halved until about seven pixels are left on a side; vectors get an MLP, a larger
    step and decoder noise that is annealed, because few factors can describe a vector exactly
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


def _preset_config(preset: PresetName, active: int, pairs: Pairs) -> Config:
    """Return a preset with the settings that suit the pairs."""
    config = configs.preset(preset, active)
    if preset == "anchored":
        return config  # its sizes are planned, as those of a file are
    settings = suggest_settings(*pairs.shapes, len(pairs), active)
    if preset == "paper":
        settings.pop("objective", None)
    return configs.override(config, settings)


def _complete_config(
    config: Config | None,
    preset: PresetName | None,
    active: int,
    pairs: Pairs,
    changes: dict[str, Any],
) -> Config:
    """Return a configuration that is complete and checked, however it was given."""
    if active < 0:
        raise VspairError(f"active = {active}: expected the number of factors, or 0 to choose it.")
    if active and (config is not None or preset == "paper"):
        raise VspairError(
            f"active = {active} steers the presets anchored and calibrated. With a configuration, "
            "set anchored.active, or objective.rho = 'dual' and objective.active, in it; the "
            "paper's objective has no number of factors to set, only alpha0 and beta0."
        )
    if config is not None and preset is not None:
        raise VspairError(
            f"preset = {preset!r} and a configuration: give one of them. A configuration names "
            "its preset in its first line."
        )
    config = config or _preset_config(preset or "anchored", active, pairs)
    config = configs.override(config, {"training": changes})
    if config.model.kind == "anchored":
        _expect_read(config)
        return _for_unknowns(config, pairs.x)
    asked, kind = config.objective.active, config.model.kind
    if asked and kind in ("PAIR", "vPAIR"):
        raise VspairError(f"active = {asked}, but {kind} has no gates: leave it out.")
    if asked > config.model.x_size:
        raise VspairError(
            f"active = {asked}, but the code has only x_size = {config.model.x_size} factors. "
            "Raise model.x_size or ask for fewer."
        )
    return config


def _expect_read(config: Config) -> None:
    """Refuse what was named for the anchored model and would be ignored, or break its stages."""
    usual = configs.preset("anchored")
    for section in ("model", "objective", "training"):
        for name, value in dataclasses.asdict(getattr(config, section)).items():
            key = f"{section}.{name}"
            same = value == dataclasses.asdict(getattr(usual, section))[name]
            named = section == "training" and key in config.named
            read = name in KEYS if section == "training" else name == "temperature"
            if read or (same and not named) or HARMLESS.get(name) == value:
                continue
            raise VspairError(_unread(key, value))


def _unread(key: str, value: Any) -> str:
    shown = "" if isinstance(value, dict) else f" ({value!r} would be ignored)"
    return (
        f"{key} was given, but the stages of the anchored model set it themselves{shown}: "
        f"expected {', '.join(KEYS)}, or keys of [anchored]. Leave it out, or use "
        "preset = 'calibrated'."
    )


def _for_unknowns(config: Config, x: torch.Tensor) -> Config:
    """Return settings of the anchored model that say what x is, and its kinds of factors.

    Decided once, as a part of the unknowns may look like something else.
    """
    found: dict[str, Any] = {"domain": tell_domain(x, config.anchored.domain)}
    config = configs.override(config, {"anchored": found})
    if config.names("anchored.kinds"):
        return config
    a = config.anchored
    kinds = suggest_kinds(tuple(x.shape[1:]), domain_of(a, x), a.active)
    return configs.override(config, {"anchored": {"kinds": kinds}})


def fit(
    x: Any,
    y: Any,
    *,
    held: tuple[Any, ...] | None = None,
    groups: Any = None,
    anchor: AnchorChoice | First = "auto",
    first: Any = None,
    active: int = 0,
    preset: PresetName | None = None,
    config: Config | None = None,
    minutes: float | None = None,
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
        held: Held-out pairs (x, y) that epochs are compared by, where you have your own, with
            first guesses as a third where the others have them; a share ``training.validation``
            of the pairs where not given.
        groups: Which pairs belong together, such as slices of one patient, as labels (N,). What
            is held out, and answered out of fold, is whole groups then.
        anchor: What answers: ``none``, ``ridge``, ``network``, the best of them (``auto``), or a
            function of your own from observations (B, *y_shape) to guesses (B, *x_shape), which
            a network corrects where that helps.
        first: First guesses of x, with shape (N, *x_shape), in place of such a function. They
            must be given with every y later on.
        active: How many factors answers have on average; 0 chooses.
        preset: ``anchored``, which is the default, ``calibrated`` or ``paper``; not with a config.
        config: Everything in detail; nothing is chosen for you then (see
            :func:`suggest_settings`), except epochs and kinds of the anchored model where the
            configuration does not name them.
        minutes: How long the training of the anchored model may take on two CPU cores, about.
        out: A folder to save the run in; it must not exist, unless it is resumed.
        resume: Continue the run in ``out`` where it was stopped.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        progress: Whether to show a progress bar, and the verdict in the end.
        changes: Keys of the training section, such as ``epochs=50`` or ``seed=1``.

    Example:
        >>> x = torch.randn(64, 2)
        >>> model = fit(x, x + 0.1 * torch.randn(64, 2), epochs=2, progress=False)
        >>> model.posterior(x[0]).sample(5).shape
        torch.Size([5, 2])
    """
    pairs = Pairs.of(x, y)
    _expect_finite(minutes)
    given, guesses = _read_held(held, known=first is not None)
    if resume:
        other = isinstance(anchor, str) and anchor != "auto"
        changed = bool(changes or config or active or preset or other or minutes is not None)
        run = _run_to_resume(out, changed)
        config = run.config
    else:
        run = None
        config = _complete_config(config, preset, active, pairs, changes)
    if config.model.kind == "anchored":
        wanted = AnchoredFit(config, pairs, given, groups, anchor, first, guesses)
        del pairs  # which are divided by now: sinograms may be too large to be kept twice
        how = (pick_device(device), progress, config.names("training.epochs"))
        return wanted.run(out, run, minutes, changes, *how)
    _expect_plain(config, groups=groups, first=first, minutes=minutes, anchor=anchor)
    parts = split_pairs(pairs, config) if given is None else (pairs, given)
    if run is not None:
        trainer = resume_training(*parts, run, pick_device(device))
    else:
        trainer = start_training(*parts, config, out=out, device=pick_device(device))
    trainer.train(progress)
    return trainer.model


def _expect_finite(minutes: float | None) -> None:
    if not isinstance(minutes, numbers.Real | None) or isinstance(minutes, bool):
        raise VspairError(f"minutes = {minutes!r}: expected a number above 0.")
    if minutes is not None and math.isinf(minutes):
        raise VspairError(
            f"minutes = {minutes:g}: expected a finite number above 0. Leave minutes out for the "
            "usual time, or say how many passes by epochs."
        )


def _read_held(held: tuple[Any, ...] | None, known: bool) -> tuple[Pairs | None, tuple[Any, ...]]:
    """Return held-out pairs and first guesses of theirs, as a tuple of one or none.

    Arguments:
        held: What was given.
        known: Whether there are first guesses of the pairs to train on.
    """
    if held is None:
        return None, ()
    if len(held) not in (2, 3):
        raise VspairError(f"held has {len(held)} parts: expected (x, y), or (x, y, first).")
    if len(held) == 3 and held[2] is not None and not known:
        raise VspairError(
            "held has first guesses as a third, but the pairs to train on have none: give "
            "first = guesses too, or held = (x, y)."
        )
    return Pairs.of(*held[:2], vary=False, prefix="held "), tuple(held[2:])


def _expect_plain(config: Config, anchor: Any, **others: Any) -> None:
    """Refuse what only the anchored model knows."""
    given = [name for name, value in others.items() if value is not None]
    given += [] if isinstance(anchor, str) and anchor == "auto" else ["anchor"]
    if given:
        raise VspairError(
            f"{given[0]} was given, but {config.model.kind} is not anchored: leave it out, or use "
            "preset = 'anchored'."
        )


def split_pairs(pairs: Pairs, config: Config) -> tuple[Pairs, Pairs]:
    """Return the pairs to train on and those to hold out, as the training section says."""
    return pairs.split(config.training.validation, config.training.seed)


def start_training(
    train: Pairs,
    held: Pairs | None,
    config: Config,
    *,
    out: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Trainer:
    """Return a training that has not begun: weights sampled, normalisation set, folder made.

    Arguments:
        train: The pairs to train on, which also set the normalisation.
        held: The held-out pairs, if any.
        config: The settings.
        out: The run folder; nothing is saved without it.
        device: Where to train.
    """
    trainer = Trainer(_build_model(train, config).to(device), config, train, held)
    if out is not None:
        trainer.folder = Run.create(out, config, train.shapes, _fingerprint(train, held)).path
    return trainer


def start_or_resume_training(
    train: Pairs, held: Pairs | None, config: Config, out: Path, device: torch.device
) -> Trainer:
    """Return a new training, or that of a folder where it was stopped, or ended.

    A folder of other settings is refused, unless they are :data:`EXECUTION_KEYS`. Arguments are
    those of :func:`start_training`.
    """
    if not out.exists():
        return start_training(train, held, config, out=out, device=device)
    run = Run(out)
    for section in ("model", "objective", "training"):
        there, here = (dataclasses.asdict(getattr(c, section)) for c in (run.config, config))
        for key, value in there.items():
            if value != here[key] and key not in EXECUTION_KEYS:
                raise VspairError(
                    f"{out} was trained with other settings: {section}.{key} is {value} there "
                    f"and {here[key]} here. Name another folder by --runs, or remove it."
                )
    return resume_training(train, held, run, device)


def resume_training(train: Pairs, held: Pairs | None, run: Run, device: torch.device) -> Trainer:
    """Return the training of a run folder where it was stopped; at its beginning, if before.

    Training and held-out pairs must be those that it was started with.
    """
    if train.shapes != (known := run.shapes):
        raise VspairError(
            f"x and y have shapes {train.shapes}; {run.path} was trained on {known}. Give the "
            "pairs that it was started with."
        )
    if run.pairs != _fingerprint(train, held):
        raise VspairError(
            f"These are not the pairs that {run.path} was started with: their number or values "
            "differ. Give the same files, in the same order."
        )
    trainer = Trainer(_build_model(train, run.config).to(device), run.config, train, held, run)
    if (run.path / "checkpoint.safetensors").exists():
        trainer.resume()
    return trainer


def _build_model(train: Pairs, config: Config) -> InverseModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        model = build(config.model, *train.shapes)
    model.x_normaliser.fit(train.x, config.model.normalise)
    model.y_normaliser.fit(train.y, config.model.normalise)
    Objective(config.objective).prepare(model)
    return model


def _run_to_resume(out: str | Path | None, changed: bool) -> Run:
    if out is None:
        raise VspairError("resume = True needs the run folder: give out = FOLDER.")
    if changed:
        raise VspairError("A resumed run keeps its configuration: leave out every other setting.")
    return Run(out)


def _fingerprint(train: Pairs, held: Pairs | None) -> str:
    """Return what a resumed run knows its pairs again by, those held out included."""
    return fingerprint(train.x, train.y, *((held.x, held.y) if held else ()))
