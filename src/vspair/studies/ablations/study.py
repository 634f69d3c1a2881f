"""What each part of the anchored model is worth: each of them off in turn, all else the same.

Every variant is trained on the same pairs, those of the study of own pairs, with the same seed,
the same number of factors asked for and the same passes over the pairs: those that the full model
gets for some minutes. A part that a kind of unknowns does not have, such as places for vectors, is
left out there.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vspair import config as configs
from vspair.anchored_fit import MOST_KINDS, planned, suggest_kinds
from vspair.config import AnchoredConfig, Config
from vspair.datasets.own import OwnSet, Split, package_versions
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.runs import Groups
from vspair.studies.ablations import drawing, tables
from vspair.studies.answers import Question, as_array, digest, library_digest
from vspair.studies.jobs import do_missing
from vspair.studies.own import study as own
from vspair.studies.own.study import BLOCK, MADE, Case, Timed
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.training.prepared import plain_modes, tell_domain
from vspair.verdict import Verdict

__all__ = ["PARTS", "SMOKE", "STUDY", "Job", "Scale", "full_config", "load", "variants"]

MODES = 4
"""How many modes codes get, to be compared with one, where one is the default."""


def _without_places(a: AnchoredConfig) -> AnchoredConfig:
    """Return settings of a dense code, with as many factors as that of a vector."""
    if not a.spatial:
        return a
    return replace(a, spatial=False, kinds=suggest_kinds((MOST_KINDS,), "vector", a.active))


PARTS: dict[str, Callable[[AnchoredConfig], AnchoredConfig]] = {
    "anchor": lambda a: replace(a, anchor="none"),
    "networks": lambda a: replace(a, anchor="ridge"),
    "out-of-fold": lambda a: replace(a, out_of_fold=False),
    "grain": lambda a: replace(a, grain="constant"),
    "crps": lambda a: replace(a, grain_loss="likelihood"),
    "budget": lambda a: replace(a, budget=False),
    "beta": lambda a: replace(a, beta=1.0),
    "reach": lambda a: replace(a, reach=False),
    "mirrors": lambda a: replace(a, mirrors=False),
    "places": _without_places,
    "modes": lambda a: replace(a, modes=1),
    "one-mode": lambda a: replace(a, modes=max(a.modes, MODES)),
}
"""What is changed of the full model to be without a part; nothing where it has it not."""


@dataclass(frozen=True)
class Scale:
    """How much is trained.

    Arguments:
        sets: The names of sets of own pairs, with commas between them.
        seeds: How many seeds of each.
        samples: Posterior samples that a test pair is judged by.
        active: The number of factors that is asked for.
        minutes_each: How long a training of the full model may take on two cores, about.
    """

    sets: str = "digits,motions,signals,rgb"
    seeds: int = 3
    samples: int = 100
    active: int = 20
    minutes_each: float = 1.0

    @property
    def is_part(self) -> bool:
        """Whether this is less than the whole study, or another one."""
        return replace(self, seeds=0) != replace(Scale(), seeds=0)

    def chosen(self) -> list[OwnSet]:
        """Return the sets that are asked for."""
        return own.Scale(sets=self.sets).chosen()


SMOKE = Scale(sets=MADE.name, seeds=1, samples=20, minutes_each=0.001)

Work = Workspace[Scale, list[Case]]


def load(scale: Scale, data_dir: Path | None = None) -> list[Case]:
    """Return every set with its seeds; refuse where a package is missing."""
    if not scale.minutes_each > 0:
        raise VspairError(f"minutes_each = {scale.minutes_each:g}: expected a number above 0.")
    return own.load(own.Scale(sets=scale.sets, seeds=scale.seeds))


# -- variants -------------------------------------------------------------------------------


def full_config(x: Tensor, scale: Scale, seed: int = 0) -> Config:
    """Return the settings that ``fit`` chooses for unknowns (N, *x_shape), all of them named."""
    domain = tell_domain(x, "auto")
    named = {
        "domain": domain,
        "kinds": suggest_kinds(tuple(x.shape[1:]), domain, scale.active),
        "modes": plain_modes(domain, x[0].numel()),
        "spatial": domain != "vector",
        "mirrors": domain == "image",
    }
    config = configs.preset("anchored", scale.active)
    config = configs.override(config, {"anchored": named, "training": {"seed": seed}})
    held = round(config.training.validation * len(x))  # about: of groups, whole ones
    return planned(config, x[held:], scale.minutes_each)


def variants(full: Config) -> dict[str, Config]:
    """Return the settings of the full model and those without each part that it has, by name."""
    changed = {name: replace(full, anchored=off(full.anchored)) for name, off in PARTS.items()}
    return {tables.FULL: full} | {k: config for k, config in changed.items() if config != full}


@dataclass(frozen=True)
class Job:
    """One variant of the model, to be trained on the pairs of one case.

    Arguments:
        sets: The name of the set.
        seed: The seed of the case.
        part: The part that is off, or :data:`tables.FULL`.
        config: The settings.
        samples: Posterior samples that a test pair is judged by.
        key: What its answer is known again by.
    """

    sets: str
    seed: int
    part: str
    config: Config
    samples: int
    key: str

    @property
    def case(self) -> Case:
        """The pairs, to be loaded in the process that needs them."""
        return Case(Scale(sets=self.sets).chosen()[0], self.seed)

    @property
    def name(self) -> str:
        """What its answer is called."""
        return self.case.name(self.part)


def _jobs(case: Case, scale: Scale) -> list[Job]:
    """Return every variant of a case."""
    split = case.load()
    asked = Question(split.test, samples=scale.samples, block=BLOCK).key
    pairs = digest(library_digest(), asked, split.train.x, split.train.y, split.groups)
    full = full_config(split.train.x, scale, case.seed)
    return [
        Job(case.own.name, case.seed, part, config, scale.samples, digest(pairs, config))
        for part, config in variants(full).items()
    ]


# -- the stage ------------------------------------------------------------------------------


def answer(work: Work) -> bool:
    """Train and measure every variant in every case."""
    jobs = [job for case in work.data for job in _jobs(case, work.scale)]
    return do_missing(work, jobs, partial(_answer, deadline=work.deadline))


def _answer(job: Job, deadline: float | None) -> Groups | None:
    """Train and measure one variant; return its scores, or nothing where time ran out."""
    if deadline is not None and time.monotonic() > deadline:
        return None
    split = job.case.load()
    found = Timed(partial(_train, split, job.config))
    question = Question(split.test, samples=job.samples, block=BLOCK)
    scores = question.scores(found, torch.arange(len(split.test)))
    row = found.costs() | _in_use(found.method)
    return {"scores": {k: as_array(v) for k, v in scores.items()}, "row": row}


def _train(split: Split, config: Config) -> Any:
    """Return the model of some settings, with whole sources held out where there are few."""
    how: dict[str, Any] = {} if split.groups is None else {"groups": split.groups}
    return fit(split.train.x, split.train.y, config=config, device="cpu", progress=False, **how)


def _in_use(model: Any) -> dict[str, float]:
    """Return how many factors are present in an answer to some held-out pair."""
    verdict = getattr(model, "verdict", None)
    if not isinstance(verdict, Verdict):
        return {}
    return {"ever_active": float(verdict.factors - verdict.dead)}


# -- the report -----------------------------------------------------------------------------


def report(work: Work, records: Records) -> Report:
    """Return tables, words and the figure's numbers from what was kept."""
    scale, found = work.scale, defaultdict[str, list[tables.Found]](list)
    for chosen in scale.chosen():
        for case in (Case(chosen, seed) for seed in range(scale.seeds)):
            found[chosen.name].append(tables.measures(_kept(work, case)))
    rows = tables.rows_of(found)
    about = dataclasses.asdict(scale) | {"sets": list(found)}
    text = tables.text_of(rows, about, scale.chosen())
    return Report(rows, text, tables.figure_numbers(found), about)


def _kept(work: Work, case: Case) -> dict[str, Groups]:
    """Return the answers of one case by part, of the parts that the full model has."""
    names = [tables.FULL, *(part for part in PARTS if work.answers.has(case.name(part)))]
    return {name: work.answers.read(case.name(name)) for name in names}


ASKED = ("samples", "active", "minutes_each")
"""What of a scale answers depend on, beside the seed; sets may be added one by one."""

STUDY = Study(
    name="ablations",
    title=tables.WORDS.text["title"],
    load=load,
    describe=lambda cases: {"packages": package_versions()},
    stages={"answers": Stage(answer, (*ASKED, "seeds"), grows=("seeds",), renews=ASKED)},
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
)
