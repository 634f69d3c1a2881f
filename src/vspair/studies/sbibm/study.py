"""Posterior samples against the benchmark of simulation-based inference, by C2ST.

Lueckmann et al., "Benchmarking Simulation-Based Inference", AISTATS 2021. Every method learns from
the same pairs, with its defaults, and answers ten observations of each task; a classifier then
tries to tell its samples from those of the exact posterior. Observations and reference samples are
the benchmark's where its package is at hand, and made from the same laws elsewhere. Beside the
default of ``fit`` stand a conditional flow, and the package ``sbi`` where it is installed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.anchored_fit import MINUTES
from vspair.config import PresetName
from vspair.data import Pairs
from vspair.datasets.sbibm import OBSERVATIONS, Reference, find_sbibm, load_reference
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.methods.flow import train_flow
from vspair.methods.npe import has_sbi, train_npe
from vspair.metrics import c2st
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior, Method
from vspair.problems.sbibm import TASKS
from vspair.runs import Groups
from vspair.studies.answers import digest
from vspair.studies.jobs import each_done
from vspair.studies.results import Row, over_seeds
from vspair.studies.sbibm import drawing, tables
from vspair.studies.study import Records, Report, Stage, Study, Workspace

__all__ = ["METHODS", "PRESET", "SMOKE", "STUDY", "Case", "Data", "Scale"]

PRESET: PresetName = "anchored"
"""The preset of :func:`vspair.fit` that the study measures."""

WITHOUT_NOISE = ("paper", "calibrated")
"""The presets whose samples leave out the decoder's noise, unless they are asked for it."""

BRIEF: Mapping[str, Mapping[str, Any]] = {
    "calibrated": {"epochs": 2},
    "anchored": {"minutes": 0.005},
    "flow": {"epochs": 1},
    "npe": {"epochs": 1},
}
"""What makes a training of each method short, to see that everything runs."""

ROUNDS = 500
"""How often samples are drawn, at most, where some are not kept."""

TOGETHER = 5
"""Observations whose classifiers are trained side by side."""

SHOWN = 1000
"""Samples of the first observation that the figure shows."""


def at_hand() -> str:
    """Return the methods that can be measured on this machine, with commas between them."""
    return ",".join((PRESET, "flow", *["npe"] * has_sbi()))


@dataclass(frozen=True)
class Scale:
    """How much is made and trained.

    Arguments:
        pairs: Training pairs, of which the benchmark has up to 100,000.
        observations: Observations that are answered, at most the benchmark's ten.
        samples: Posterior samples of each, at most the 10,000 reference samples.
        seeds: How many sets of pairs and trainings.
        task: A task that is measured alone; all where empty.
        inside: Whether samples outside the prior's box are drawn anew, as ``sbi`` does; no method
            is told the box elsewhere.
        brief: Whether trainings are cut short, to see that everything runs.
        methods: What is measured, with commas between the names of :data:`METHODS`; all that can
            be where not given.
    """

    pairs: int = 10_000
    observations: int = OBSERVATIONS
    samples: int = 10_000
    seeds: int = 3
    task: str = ""
    inside: bool = False
    brief: bool = False
    methods: str = field(default_factory=at_hand)

    def __post_init__(self) -> None:
        if self.task and self.task not in TASKS:
            raise VspairError(f"task = {self.task!r}: expected one of {', '.join(TASKS)}.")

    @property
    def tasks(self) -> list[str]:
        """The tasks that are measured."""
        return [self.task] if self.task else list(TASKS)

    @property
    def chosen(self) -> list[str]:
        """The methods that are measured, in the order of :data:`METHODS`."""
        names = self.methods.split(",")
        if unknown := [name for name in names if name not in METHODS]:
            raise VspairError(
                f"methods = {unknown[0]!r}: expected some of {', '.join(METHODS)}, with commas "
                "between them."
            )
        return [name for name in METHODS if name in names]


SMOKE = Scale(pairs=300, observations=2, samples=300, seeds=1, brief=True)


@dataclass(frozen=True)
class Data:
    """What methods are judged by.

    Arguments:
        source: What reference samples come from: the package's file, or ``made here``.
        references: Observations and reference samples of each task.
    """

    source: str
    references: Mapping[str, Reference]


Work = Workspace[Scale, Data]


# -- methods --------------------------------------------------------------------------------


@dataclass(frozen=True)
class WithNoise:
    """A model whose samples include the decoder's noise, as those of a posterior must."""

    model: InverseModel

    def posterior(self, y: Tensor) -> LatentPosterior:
        """Return what the model believes of x, noise included."""
        return self.model.posterior(y, noise=True)


def _fitted(pairs: Pairs, seed: int, **changes: Any) -> Method:
    model = fit(pairs.x, pairs.y, preset=PRESET, seed=seed, progress=False, **changes)
    return WithNoise(model) if PRESET in WITHOUT_NOISE else model


def _flow(pairs: Pairs, seed: int, **changes: Any) -> Method:
    """Train a flow of splines for as long as ``fit`` may take, by its own reckoning."""
    return train_flow(pairs.x, pairs.y, seed=seed, seconds=60 * MINUTES, **changes)


def _npe(pairs: Pairs, seed: int, **changes: Any) -> Method:
    return train_npe(pairs.x, pairs.y, seed=seed, **changes)


METHODS: dict[str, Callable[..., Method]] = {PRESET: _fitted, "flow": _flow, "npe": _npe}
"""What is measured, by name: from pairs and a seed to a method that has learned from them, with
its own defaults. Any other method is added here."""

PACKAGES = {
    "flow": ("zuko", "pip install 'vspair[benchmarks]'"),
    "npe": ("sbi", "pip install sbi"),
}
"""What methods need beside this package, and how to install it."""

LABELS = {PRESET: ("vsPAIR", PRESET), "npe": ("NPE", "")}
"""Model and preset of rows, where they are not a method's name alone."""


@dataclass(frozen=True)
class Case:
    """One method on one task with one seed."""

    method: str
    task: str
    seed: int

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.task}-{self.method}-{self.seed}"

    def pairs(self, n: int) -> Pairs:
        """Return the pairs to learn from, the same for all methods."""
        return TASKS[self.task].pairs(n, Generator().manual_seed(self.seed))

    def train(self, scale: Scale) -> Method:
        """Return the trained method."""
        short = BRIEF.get(self.method, {}) if scale.brief else {}
        return METHODS[self.method](self.pairs(scale.pairs), self.seed, **short)


def cases(scale: Scale) -> list[Case]:
    """Return every case, seed after seed."""
    return [
        Case(method, task, seed)
        for seed in range(scale.seeds)
        for task in scale.tasks
        for method in scale.chosen
    ]


# -- data -----------------------------------------------------------------------------------


def load(scale: Scale, data_dir: Path | None = None) -> Data:
    """Return observations and reference samples: the benchmark's, or made where it is not."""
    _check_packages(scale.chosen)
    source = find_sbibm(data_dir)
    found = {}
    for task in scale.tasks:
        whole = _made(task, scale) if source is None else load_reference(source, TASKS[task])
        y, samples = whole.y[: scale.observations], whole.samples[:, : scale.samples]
        if len(y) < scale.observations or samples.shape[1] < scale.samples:
            raise VspairError(
                f"observations = {scale.observations}, samples = {scale.samples}: expected at "
                f"most {len(whole.y)} observations of {task} and {whole.samples.shape[1]} samples."
            )
        found[task] = Reference(y, samples[: scale.observations])
    return Data("made here" if source is None else source.name, found)


def _check_packages(methods: Sequence[str]) -> None:
    """Refuse methods whose package is missing before anything is trained."""
    for method in methods:
        package, install = PACKAGES.get(method, ("vspair", ""))
        if find_spec(package) is None:
            raise VspairError(
                f"methods = {method!r} needs {package}, which is not installed: {install}, or "
                "name others by --methods."
            )


def _made(task: str, scale: Scale) -> Reference:
    """Draw observations, and samples of their exact posteriors."""
    generator = Generator().manual_seed(10_000)
    y = TASKS[task].pairs(scale.observations, generator).y
    samples = [TASKS[task].sample_posterior(each, scale.samples, generator) for each in y]
    return Reference(y, torch.stack(samples))


def describe(data: Data) -> dict[str, Any]:
    """Return what is recorded of the data."""
    known = [part for each in data.references.values() for part in (each.y, each.samples)]
    return {"references": data.source, "digest": digest(*known)}


# -- stages ---------------------------------------------------------------------------------


def train(work: Work) -> bool:
    """Train every method on every task, and keep its samples for each observation."""
    return _each_done(work, _sampled)


def _each_done(work: Work, do: Callable[[Work, Case], bool]) -> bool:
    """Do every case, in one process or more; return whether all are done."""
    found = work.data
    return each_done(work, cases(work.scale), do, partial(Data, found.source, found.references))


def _key(work: Work, case: Case) -> str:
    """Return what the samples of a case are known again by, whatever else is measured."""
    settings = dataclasses.replace(work.scale, seeds=0, task="", methods="")
    return digest(case, settings, work.data.references[case.task].y)


@torch.no_grad()
def _draw(
    method: Method, y: Tensor, n: int, seed: int, keep: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return posterior samples of observations (B, y_size), with shape (B, n, x_size).

    Arguments:
        method: What answers.
        y: The observations.
        n: How many samples of each.
        seed: Fixes the samples.
        keep: Says which samples (n, x_size) are kept, bool (n,); all where not given.
    """
    post = method.posterior(y)
    generator = Generator(post.device).manual_seed(seed)
    kept: list[list[Tensor]] = [[] for _ in y]
    for _ in range(ROUNDS):
        samples = post.sample(n, generator).transpose(0, 1).float().cpu()
        for found, each in zip(kept, samples, strict=True):
            if sum(map(len, found)) < n:
                found.append(each if keep is None else each[keep(each)])
        if (least := min(sum(map(len, found)) for found in kept)) >= n:
            return torch.stack([torch.cat(found)[:n] for found in kept])
    raise VspairError(
        f"Of {ROUNDS * n:,} samples of an observation {least:,} lie in the prior's box and {n:,} "
        "are needed: the method answers outside of it. Measure it without --inside."
    )


def _sampled(work: Work, case: Case) -> bool:
    """Keep the samples of one case; return whether that is done."""
    name, key = f"samples/{case.name}", _key(work, case)
    if work.answers.has(name, key):
        return True
    if work.late():
        return False
    work.say(f"  {case.name}")
    reference, start = work.data.references[case.task], time.perf_counter()
    with torch.enable_grad():
        method = case.train(work.scale)
    seconds = time.perf_counter() - start
    keep = TASKS[case.task].inside if work.scale.inside else None
    samples = _draw(method, reference.y, work.scale.samples, case.seed, keep)
    work.answers.write(name, key, {"drawn": {"samples": samples, "seconds": np.array(seconds)}})
    return True


def score(work: Work) -> bool:
    """Measure how far the samples of every case are from the reference samples."""
    return _each_done(work, _scored)


def _scored(work: Work, case: Case) -> bool:
    """Keep the C2ST of one case, one number an observation; return whether that is done."""
    reference = work.data.references[case.task]
    kept = work.answers.read(f"samples/{case.name}")["drawn"]
    samples = torch.from_numpy(kept["samples"])
    key = digest(samples, reference.samples)
    if work.answers.has(case.name, key):
        return True
    work.say(f"  {case.name}")
    both = zip(reference.samples.split(TOGETHER), samples.split(TOGETHER), strict=True)
    tries = [partial(_measured, *each, work.device) for each in both]
    parts = work.answers.blocks(case.name, key, tries)
    if parts is None:
        return False
    values = np.concatenate([part["c2st"] for part in parts])
    row = {"c2st": np.median(values), "c2st_mean": values.mean(), "seconds": kept["seconds"]}
    shown = {"reference": reference.samples[0, :SHOWN], "samples": samples[0, :SHOWN]}
    work.answers.write(case.name, key, {"scores": {"c2st": values}, "row": row, "shown": shown})
    return True


def _measured(reference: Tensor, samples: Tensor, device: torch.device) -> dict[str, Any]:
    return {"c2st": c2st(reference, samples, device=device)}


# -- the report -----------------------------------------------------------------------------


def report(work: Work, records: Records) -> Report:
    """Return tables, words and the figures' numbers from what was kept."""
    scale = work.scale
    kept = {case: work.answers.read(case.name) for case in cases(scale)}
    rows, numbers = _rows(kept, scale), _figure_numbers(kept)
    whole = scale == Scale(seeds=scale.seeds, methods=scale.methods)
    about = dataclasses.asdict(scale) | {"paper_scale": whole}
    return Report(rows, tables.text_of(rows, PRESET, about, records.data), numbers, about)


def _rows(kept: Mapping[Case, Groups], scale: Scale) -> list[Row]:
    """Return means over seeds with their deviation."""
    rows = []
    for method in scale.chosen:
        for task in scale.tasks:
            found = [
                {name: float(value) for name, value in answer["row"].items()}
                for case, answer in kept.items()
                if (case.method, case.task) == (method, task)
            ]
            model, preset = LABELS.get(method, (method, ""))
            rows += over_seeds(found, model=model, preset=preset, condition=task)
    return rows


def _figure_numbers(kept: Mapping[Case, Groups]) -> dict[str, Any]:
    """Return what the figure shows of the first seed, by task: samples of each method."""
    numbers: dict[str, dict[str, Any]] = {}
    for case, answer in kept.items():
        if case.seed == 0:
            part = numbers.setdefault(case.task, {"reference": answer["shown"]["reference"]})
            part[case.method] = answer["shown"]["samples"]
    return numbers


MADE = ("pairs", "observations", "samples", "inside", "brief", "task", "seeds", "methods")
MORE: dict[str, Any] = {"grows": ("seeds", "methods"), "renews": ("methods",)}
"""What may be added to what is there: every case is known again by itself."""

STUDY = Study(
    name="sbibm",
    title=tables.WORDS.text["title"],
    load=load,
    describe=describe,
    stages={
        "train": Stage(train, MADE, **MORE),
        "answers": Stage(score, MADE, **MORE, reads=("train",)),
    },
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
)
