"""Sweeps of a configuration's settings on pairs, as ``vspair sweep`` makes them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import statistics
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from vspair import config as configs
from vspair import runs
from vspair.config import Config, PresetName
from vspair.data import Pairs, as_pairs, fingerprint, split
from vspair.errors import VspairError
from vspair.evaluation import evaluate
from vspair.fitting import fit, resume_training, split_pairs, suggest_settings
from vspair.report import sweeps as report
from vspair.sweeps.trials import Settings, Trial, Trials, load_optuna

__all__ = ["METRICS", "Axis", "Sweep", "flat", "run"]

METRICS = tuple(report.ERRORS)
"""The scores that a sweep can look for the least of."""


def flat(config: Config) -> Settings:
    """Return a configuration as one dictionary of dotted keys, of values that JSON knows."""

    def walk(values: Settings, prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, list(value) if isinstance(value, tuple) else value

    return dict(walk(dataclasses.asdict(config), ""))


def with_settings(config: Config, settings: Settings) -> Config:
    """Return a configuration with other values at dotted keys."""
    nested: Settings = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        if not sections and (near := [k for k in flat(config) if k.endswith(f".{key}")]):
            raise VspairError(f"Unknown key {key}. Did you mean {near[0]}?")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return configs.override(config, nested)


def _value(text: str) -> Any:
    """Read a value as TOML does, and what is no TOML as a word."""
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"value = {text}")["value"]
    return text.strip()


@dataclass(frozen=True)
class Axis:
    """A key of the configuration with the values that it takes.

    Arguments:
        key: The key with its section, such as ``objective.gamma_x``.
        values: The values, or the lower and the upper end of a range.
        scale: How to search in a range, ``linear`` or ``log``; empty for a list of values.

    Example:
        >>> Axis.parse("training.learning_rate=1e-4..1e-2:log")
        Axis(key='training.learning_rate', values=(0.0001, 0.01), scale='log')
    """

    key: str
    values: tuple[Any, ...]
    scale: Literal["", "linear", "log"] = ""

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read ``key=value,value``, ``key=low..high`` or ``key=low..high:log``."""
        key, _, right = (part.strip() for part in text.partition("="))
        parts = re.split(r",(?![^\[]*\])", right)
        if not (key and all(map(str.strip, parts))):
            fault = "a key or a value is empty" if "=" in text else "there is no ="
            raise VspairError(f"{text!r}: {fault}; expected KEY=VALUE,VALUE or KEY=LOW..HIGH.")
        if found := re.fullmatch(r"([^,]+?)\.\.([^,]+?)(:log)?", right):
            ends = _value(found[1]), _value(found[2])
            return cls(key, ends, "log" if found[3] else "linear")
        return cls(key, tuple(map(_value, parts)))

    def __str__(self) -> str:
        texts = (v if isinstance(v, str) else json.dumps(v) for v in self.values)
        joined = (".." if self.scale else ",").join(texts)
        return f"{self.key}={joined}" + ":log" * (self.scale == "log")

    def checked(self, base: Config) -> Axis:
        """Return the axis with its values as the configuration keeps them."""
        if not self.values:
            raise VspairError(f"{self.key} is empty: expected at least one value.")
        kept = [flat(with_settings(base, {self.key: value}))[self.key] for value in self.values]
        if self.scale:
            if any(type(value) not in (int, float) for value in kept):
                raise VspairError(f"{self}: only numbers have a range. List the values.")
            if not kept[0] < kept[1] or (self.scale == "log" and not kept[0] > 0):
                raise VspairError(f"{self}: expected a lower and an upper end, with log above 0.")
        return replace(self, values=tuple(kept))

    def suggest(self, trial: Any) -> Any:
        """Return the value that an optuna trial proposes, or has proposed before."""
        if not self.scale:
            return json.loads(trial.suggest_categorical(self.key, [*map(json.dumps, self.values)]))
        whole = isinstance(self.values[0], int)
        suggest = trial.suggest_int if whole else trial.suggest_float
        return suggest(self.key, *self.values, log=self.scale == "log")


@dataclass(frozen=True)
class Sweep:
    """Trainings that differ in a few settings, in one folder.

    Arguments:
        folder: Where everything is kept; an earlier sweep in it is continued.
        axes: What differs.
        base: All other settings: a configuration; ``paper`` or ``calibrated``, with what suits
            the pairs; or the name of a shipped configuration such as ``gaussian-paper``.
        epochs: Passes over the pairs; 0 keeps the base's.
        seeds: Trainings of each point, from the base's seed on.
        trials: The points that a search proposes; 0 trains the whole grid.
        metric: The score whose least value is looked for, one of :data:`METRICS`.
        held_out: The share of the pairs that no trial trains on, and all are scored on.
        samples: Posterior samples for each of those pairs.
        storage: The URL of optuna's database; a file in the folder where not given.
    """

    folder: Path
    axes: tuple[Axis, ...]
    base: Config | str = "calibrated"
    epochs: int = 0
    seeds: int = 1
    trials: int = 0
    metric: str = "mse_mean"
    held_out: float = 0.2
    samples: int = 50
    storage: str = ""

    @property
    def config(self) -> Config:
        """The base, once it is a configuration."""
        assert isinstance(self.base, Config)
        return self.base

    def resolved(self, x: Tensor, y: Tensor) -> Sweep:
        """Return the sweep with a whole configuration for these pairs, and checked axes."""
        if (base := self.base) in get_args(PresetName):
            fitting = suggest_settings(tuple(x.shape[1:]), tuple(y.shape[1:]), len(x))
            if base == "paper":
                fitting.pop("objective", None)
            base = configs.override(configs.preset(cast(PresetName, base)), fitting)
        elif isinstance(base, str):
            base = configs.shipped(base)
        if self.epochs:
            base = with_settings(base, {"training.epochs": self.epochs})
        return replace(self, base=base, axes=tuple(axis.checked(base) for axis in self.axes))

    def check(self) -> None:
        """Refuse axes that make no sweep."""
        keys = [axis.key for axis in self.axes]
        self._expect_paired()
        for axis in self.axes:
            if keys.count(axis.key) > 1:
                raise VspairError(f"{axis.key} is given twice: expected each key once.")
            if axis.scale and not self.trials:
                raise VspairError(f"{axis}: a grid needs values, not a range. Or --search it.")
        if self.metric not in METRICS:
            raise VspairError(f"metric = {self.metric!r}: expected one of {', '.join(METRICS)}.")
        if not keys or self.seeds < 1:
            raise VspairError(f"{len(keys)} axes, seeds = {self.seeds}: expected 1 or more each.")
        if "training.seed" in keys and self.seeds > 1:
            raise VspairError("training.seed is an axis: leave out the number of seeds.")
        steers = {"objective.rho", "objective.active"} & set(keys) == {"objective.active"}
        if steers and self.config.objective.rho != "dual":
            raise VspairError("objective.active needs objective.rho=dual: set that too.")

    def _expect_paired(self) -> None:
        """Refuse the anchored model, whose trainings are neither planned nor continued here."""
        of_axes = {v for axis in self.axes for v in axis.values if axis.key == "model.kind"}
        if "anchored" in of_axes | {self.config.model.kind}:
            raise VspairError(
                "A sweep trains paired models, not the anchored one: expected the preset "
                "calibrated or paper, or a configuration of theirs. To compare settings of the "
                "anchored model, call 'vspair fit' with a --config and an --out for each."
            )

    def planned(self, pairs: str) -> Trials:
        """Return the trials on pairs that are known again by these words."""
        shared: Settings = {"kind": "grid", "pairs": pairs, "held_out": self.held_out}
        shared |= {"samples": self.samples, "seeds": self.seeds} | flat(self.config)
        if self.trials:
            axes = " ".join(sorted(map(str, self.axes)))
            shared |= {"kind": "search", "metric": self.metric, "axes": axes}
        trials = Trials(self.folder, shared, self.metric, storage=self.storage)
        if not self.trials:
            return replace(trials, points=self.points())
        seed = self.config.training.seed
        return replace(trials, propose=self.propose, proposals=self.trials, seed=seed)

    def propose(self, trial: Any) -> Settings:
        """Return the settings that an optuna trial proposes, or has proposed before."""
        return {axis.key: axis.suggest(trial) for axis in self.axes}

    def points(self) -> list[Settings]:
        """Return where each point of the grid differs from the base, once."""
        base, found = flat(self.config), list[Settings]()
        for values in itertools.product(*(axis.values for axis in self.axes)):
            pairs = sorted(zip((axis.key for axis in self.axes), values, strict=True))
            settings = {key: value for key, value in pairs if value != base[key]}
            with_settings(self.config, settings)  # refused together, if not one by one
            found += [settings] * (settings not in found)
        return found


@dataclass(frozen=True)
class _Training:
    """Trains, or continues, and scores a point; holds arrays, as other processes get it."""

    sweep: Sweep
    pairs: tuple[Any, ...]
    device: str

    def __call__(self, trial: Trial) -> dict[str, float]:
        """Return the means of the scores over seeds, and their deviations."""
        config = with_settings(self.sweep.config, trial.settings)
        first, seeds = config.training.seed, self.sweep.seeds
        scored = []
        for seed in range(first, first + seeds):
            folder = trial.folder / f"seed-{seed}" if seeds > 1 else trial.folder
            scored.append(self._scores(with_settings(config, {"training.seed": seed}), folder))
        names = [name for name in scored[0] if all(name in scores for scores in scored)]
        every = {name: [scores[name] for scores in scored] for name in names}
        spread = {f"{k}_std": statistics.stdev(v) for k, v in every.items() if len(v) > 1}
        return {name: statistics.fmean(values) for name, values in every.items()} | spread

    def _scores(self, config: Config, folder: Path) -> dict[str, float]:
        x, y, *held = map(torch.from_numpy, self.pairs)
        try:
            run = runs.Run(folder)
            parts = split_pairs(Pairs(x, y), run.config)
            trainer = resume_training(*parts, run, torch.device(self.device))
        except VspairError:  # nothing to continue, or not on this kind of device
            shutil.rmtree(folder, ignore_errors=True)
            fit(x, y, config=config, out=folder, device=self.device, progress=False)
        else:
            trainer.train(show=False)
        return evaluate(runs.load(folder, self.device), *held, samples=self.sweep.samples)


def run(
    sweep: Sweep,
    x: Any,
    y: Any,
    *,
    jobs: int = 1,
    threads: int = 1,
    device: str = "auto",
    command: str = "",
    say: Callable[[str], object] = lambda _: None,
) -> str:
    """Train and score what is not finished, and write tables and figures of all there is.

    Several calls, also in other processes, may work on the same folder at the same time.

    Arguments:
        sweep: What to try.
        x: The unknowns, with shape (N, *x_shape).
        y: The observations, pair by pair.
        jobs: Processes to work in; one is this process itself.
        threads: Threads of each of several processes.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        command: What was typed, for the record.
        say: Called with a line for each trial that is finished.

    Returns:
        The table as Markdown, of all that is in the folder.

    Raises:
        VspairError: The pairs or the sweep are not right, or every trial asked for has failed.
    """
    load_optuna()
    x, y = as_pairs(x, y)
    train, held = split(len(x), sweep.held_out if 0 < sweep.held_out < 1 else 0.0, 0)
    if not len(held):
        raise VspairError(f"held_out = {sweep.held_out} of {len(x)} pairs: expected some of them.")
    device = str(runs.pick_device(device))
    sweep = sweep.resolved(x[train], y[train])
    sweep.check()
    trials = sweep.planned(fingerprint(x, y))
    pairs = tuple(t.numpy() for t in (x[train], y[train], x[held], y[held]))
    rows = trials.run(
        _Training(sweep, pairs, device),
        jobs=jobs,
        threads=threads,
        notice=lambda row: say(report.line(row, sweep.metric)),
    )
    text = _write(sweep, trials.shared, rows, {"command": command, "machine": device})
    asked = [row for row in rows if sweep.trials or row["settings"] in trials.points]
    if all("error" in row for row in asked):
        raise VspairError(f"Every trial has failed. {sweep.folder / 'README.md'} says why.")
    return text


def _write(sweep: Sweep, shared: Settings, rows: list[Settings], made: Settings) -> str:
    """Write what the report makes of the rows, and return its text."""
    axes = [axis.key for axis in sweep.axes]
    others = {key for row in rows for key in row["settings"]} - set(axes)
    keys = [*axes, *sorted(others)]
    points = [row | {"settings": {k: (shared | row["settings"])[k] for k in keys}} for row in rows]
    document = made | {"study": "sweep", "metric": sweep.metric, "settings": shared}
    document |= {"commit": runs.commit(), "machine": runs.machine(made["machine"])}
    document |= {"versions": runs.versions(), "repeats": max(sweep.trials - len(rows), 0)}
    with tempfile.TemporaryDirectory(prefix=".report-", dir=sweep.folder) as folder:
        text = report.write(Path(folder), document | {"points": points})
        for path in Path(folder).iterdir():  # others that work on the sweep may write as well
            path.replace(sweep.folder / path.name)
    return text
