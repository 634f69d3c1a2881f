"""Sweeps: one training for each point of a grid, or for each proposal of a search.

Any number of processes, on one machine or on several that share a file system, may work on one
folder: each claims a trial (see :mod:`vspair.claims`) and writes its scores at the end. What a
dead process left is taken over, and continues to the bits that it would have reached.

Each trial has a run folder in ``trials/``, with ``scores.json`` once it is finished; at the end
there are ``sweep.json`` with every setting and score, ``README.md`` and ``sweep.png``.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from vspair import config as configs
from vspair import runs
from vspair.claims import Claim, alone
from vspair.config import Config, PresetName
from vspair.data import Pairs, as_pairs, fingerprint, split
from vspair.errors import VspairError
from vspair.evaluation import evaluate
from vspair.fitting import fit, resume_training, split_pairs, suggest_settings
from vspair.records import Settings, flat, folder_name, mend, read_row, rows, settle
from vspair.report import sweeps as report
from vspair.training.interrupts import Interrupted

__all__ = ["METRICS", "Axis", "Sweep", "flat", "run"]

METRICS = ("mse_mean", "mse", "mse_approximate_mean", "crps", "energy_score")
"""The scores that a sweep can look for the least of."""

POLL = 0.5
"""Seconds between two looks at what other processes do."""


def _value(text: str) -> Any:
    """Read a value as TOML does, and what is no TOML as a word."""
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"value = {text}")["value"]
    return text.strip()


def _changed(config: Config, settings: Settings) -> Config:
    """Return a configuration with other values at dotted keys."""
    changes: Settings = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        if not sections and (near := [k for k in flat(config) if k.endswith(f".{key}")]):
            raise VspairError(f"Unknown key {key}. Did you mean {near[0]}?")
        inner = changes
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return configs.override(config, changes)


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
        kept = [flat(_changed(base, {self.key: value}))[self.key] for value in self.values]
        if self.scale:
            if any(type(value) not in (int, float) for value in kept):
                raise VspairError(f"{self}: only numbers have a range. List the values.")
            if not kept[0] < kept[1] or (self.scale == "log" and not kept[0] > 0):
                raise VspairError(f"{self}: expected a lower and an upper end, with log above 0.")
        return replace(self, values=tuple(kept))


class Trial(NamedTuple):
    """One training: its run folder, its configuration, and where that differs from the base."""

    path: Path
    config: Config
    settings: Settings

    @property
    def row(self) -> Settings | None:
        """Its settings and scores, or nothing where it is not finished."""
        return read_row(self.path)


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
            base = _changed(base, {"training.epochs": self.epochs})
        return replace(self, base=base, axes=tuple(axis.checked(base) for axis in self.axes))

    def check(self) -> None:
        """Refuse axes that make no sweep."""
        keys = [axis.key for axis in self.axes]
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

    def joined(self, pairs: str) -> Sweep:
        """Open the folder, or say how its sweep differs; return the sweep with its base."""
        shared: Settings = {"kind": "grid", "pairs": pairs, "held_out": self.held_out}
        shared |= {"samples": self.samples} | flat(self.config)
        if self.trials:
            shared |= {"kind": "search", "axes": " ".join(sorted(map(str, self.axes)))}
            shared |= {"seeds": self.seeds, "metric": self.metric}
        keys = [axis.key for axis in self.axes]
        kept = settle(self.folder, shared, keys)
        return replace(self, base=_changed(self.config, {key: kept[key] for key in keys}))

    def grid(self) -> list[Settings]:
        """Return the settings of each point of the grid."""
        values = itertools.product(*(axis.values for axis in self.axes))
        return [dict(zip((a.key for a in self.axes), v, strict=True)) for v in values]

    def trials_of(self, points: list[Settings]) -> list[Trial]:
        """Return a training for each point and seed; points that are the same give one."""
        found, base = {}, flat(self.config)
        for point, seed in itertools.product(points, range(self.seeds)):
            first = point.get("training.seed", self.config.training.seed)
            config = _changed(self.config, point | {"training.seed": first + seed})
            settings = {k: v for k, v in sorted(flat(config).items()) if v != base[k]}
            path = self.folder / "trials" / folder_name(settings)
            found[path] = Trial(path, config, settings)
        return list(found.values())


def _finish(sweep: Sweep, trial: Trial, claim: Claim, pairs: list[Tensor], device: str) -> None:
    """Train, or continue, and score a trial; a training that fails is a result too."""
    start, (x, y, x_held, y_held) = time.monotonic(), pairs
    row: Settings = {"trial": trial.path.name, "settings": trial.settings}
    try:
        try:
            parts = split_pairs(Pairs(x, y), (run := runs.Run(trial.path)).config)
            trainer = resume_training(*parts, run, torch.device(device))
        except VspairError:  # nothing to continue, or not on this kind of device
            shutil.rmtree(trial.path, ignore_errors=True)
            fit(x, y, config=trial.config, out=trial.path, device=device, progress=False)
        else:
            trainer.train(show=False)
        model = runs.load(trial.path, device)
        row["scores"] = evaluate(model, x_held, y_held, samples=sweep.samples)
    except (VspairError, torch.OutOfMemoryError) as error:
        if isinstance(error.__context__, OSError):
            raise
        row["error"] = str(error).splitlines()[0]
    except KeyboardInterrupt:
        if claim.held:
            raise
    row |= {"seconds": round(time.monotonic() - start, 3), "attempts": claim.number}
    if claim.held:
        runs.make_folder(trial.path)
        runs.write_text(trial.path / "scores.json", json.dumps(row, indent=1) + "\n")


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise VspairError("A search needs optuna: pip install 'vspair[sweep]'.") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _Search:
    """The points that optuna proposes, in a journal that several processes share."""

    def __init__(self, sweep: Sweep) -> None:
        self.optuna, self.sweep = _optuna(), sweep
        self.journal = sweep.folder / "study.journal"
        journal = self.optuna.storages.journal
        with alone(sweep.folder):
            mend(self.journal)
            path = str(self.journal)
            file = journal.JournalFileBackend(path, journal.JournalFileOpenLock(path))
            storage, create = self.optuna.storages.JournalStorage(file), self.optuna.create_study
            self.study = create(storage=storage, study_name="sweep", load_if_exists=True)

    def points(self, *states: Any) -> dict[int, Settings]:
        """Return the settings of proposals in some states, or in any, by number."""
        listed = {axis.key for axis in self.sweep.axes if not axis.scale}
        return {
            t.number: {k: json.loads(v) if k in listed else v for k, v in t.params.items()}
            for t in self.study.get_trials(deepcopy=False, states=states or None)
            if len(t.params) == len(self.sweep.axes)
        }

    def tell(self) -> list[Trial]:
        """Give optuna the mean over seeds of each finished point; return what is not finished."""
        states, left = self.optuna.trial.TrialState, []
        for number, point in self.points(states.RUNNING).items():
            trials = self.sweep.trials_of([point])
            rows = [trial.row or {} for trial in trials]
            scores = [row["scores"][self.sweep.metric] for row in rows if "scores" in row]
            whole = len(scores) == len(rows)
            result = {"values": statistics.fmean(scores)} if whole else {"state": states.FAIL}
            if not all(rows):
                left += trials
                continue
            with alone(self.sweep.folder):
                mend(self.journal)
                self.study.tell(number, **result, skip_if_finished=True)
        return left

    def ask(self) -> bool:
        """Propose one more point; say whether there was one to propose."""
        kinds, space = self.optuna.distributions, {}
        for axis in self.sweep.axes:
            if axis.scale:
                whole = isinstance(axis.values[0], int)
                kind = kinds.IntDistribution if whole else kinds.FloatDistribution
                space[axis.key] = kind(*axis.values, log=axis.scale == "log")
            else:
                space[axis.key] = kinds.CategoricalDistribution([*map(json.dumps, axis.values)])
        with alone(self.sweep.folder):
            mend(self.journal)
            if len(self.points()) >= self.sweep.trials:
                return False
            # Seeded by its number, so that a search that was stopped goes on as it would have.
            number = len(self.study.get_trials(deepcopy=False))
            seed = (self.sweep.config.training.seed + 100_003 * number) % 2**32
            self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
            self.study.ask(space)
        return True


def _work(sweep: Sweep, pairs: list[Tensor], device: str, notice: Callable[[], None]) -> None:
    """Work on what is free until every trial is finished, by whomever."""
    search = _Search(sweep) if sweep.trials else None
    trials = [] if search else sweep.trials_of(sweep.grid())
    while True:
        left = [t for t in (search.tell() if search else trials) if t.row is None]
        for trial in left:
            if claim := Claim.take(sweep.folder, trial.path.name):
                with claim:
                    if trial.row is None:  # as before it was claimed
                        _finish(sweep, trial, claim, pairs, device)
                break
        else:
            if search and search.ask():
                continue
            if not left:
                return
            time.sleep(POLL)
        notice()


def _worker(sweep: Sweep, pairs: list[Any], device: str, threads: int) -> None:
    """Work in a process of its own, which ends with the one that started it."""

    def follow() -> None:
        cast(Any, parent_process()).join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        _work(sweep, [torch.from_numpy(array) for array in pairs], device, lambda: None)
    except KeyboardInterrupt:
        sys.exit(130)
    except (VspairError, OSError) as error:
        sys.exit(f"Error: {error}")


def _share(jobs: int, arguments: tuple[Any, ...], notice: Callable[[], None]) -> None:
    """Work in several processes; what one leaves behind that is killed, the others finish."""
    context = get_context("spawn")
    workers = [context.Process(target=_worker, args=arguments) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.start()
        while alive := [worker.sentinel for worker in workers if worker.is_alive()]:
            connection.wait(alive, timeout=POLL)
            notice()
    except KeyboardInterrupt:  # which a terminal sends to the workers too
        for worker in workers:
            worker.join(4 * POLL)
            worker.terminate()
        raise Interrupted from None
    if all(worker.exitcode for worker in workers):
        raise VspairError("Every worker has failed. The same command continues.")


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
        threads: Threads of each.
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        command: What was typed, for the record.
        say: Called with a line for each trial that is finished.

    Returns:
        The table as Markdown, of all that is in the folder.

    Raises:
        VspairError: The pairs or the sweep are not right, or every trial asked for has failed.
    """
    x, y = as_pairs(x, y)
    train, held = split(len(x), sweep.held_out if 0 < sweep.held_out < 1 else 0.0, 0)
    if not len(held):
        raise VspairError(f"held_out = {sweep.held_out} of {len(x)} pairs: expected some of them.")
    pairs, device = [x[train], y[train], x[held], y[held]], str(runs.pick_device(device))
    sweep = sweep.resolved(*pairs[:2])
    sweep.check()
    if sweep.trials:
        _optuna()
    sweep = sweep.joined(fingerprint(x, y))
    seen = {row["trial"] for row in rows(sweep.folder)}

    def notice() -> None:
        for row in rows(sweep.folder):
            if row["trial"] not in seen:
                seen.add(row["trial"])
                say(report.line(row, sweep.metric))

    if jobs > 1:
        _share(jobs, (sweep, [t.numpy() for t in pairs], device, threads), notice)
    else:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            _work(sweep, pairs, device, notice)
        finally:
            torch.set_num_threads(before)
    proposed = list(_Search(sweep).points().values()) if sweep.trials else []
    with alone(sweep.folder):
        axes: dict[str, str] = {axis.key: axis.scale for axis in sweep.axes}
        text = report.write(sweep.folder, axes, sweep.metric, command, device, proposed)
    asked = sweep.trials_of(proposed if sweep.trials else sweep.grid())
    if all("error" in (trial.row or {}) for trial in asked):
        raise VspairError(f"Every trial has failed. {sweep.folder / 'README.md'} says why.")
    return text
