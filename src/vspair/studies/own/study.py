"""Pairs that nobody made for this library: the defaults of ``vspair.fit`` beside simple methods.

The paper's problems are made, and settings were chosen on them. Here are sets of real pairs (see
:mod:`vspair.datasets.own`), on which ``fit`` is called as a user calls it, without any setting.
Beside it stand ridge regression, a plain regression network, the mean of the training unknowns
and, where x and y have one shape, y itself and, of images, ridge with shifts. These are trained
twice: on all pairs, for the answer, and without about a tenth of them, whole sources where there
are few, for Gaussian residuals, entry by entry, of that tenth. The network's best epoch and the
penalty of ridge are chosen by whole sources too, as everything in ``fit`` is.
Around the anchor of the default itself stand Gaussian residuals and a dense code, which tell what
its own code is worth.

Each seed makes its own patches, noise and weights; settings were chosen on seed 0 of the sets,
which the study leaves out.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vspair.anchored import AnchoredModel
from vspair.data import Pairs
from vspair.datasets.own import SETS, OwnSet, Part, Split, package_versions
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.methods import (
    AnswerMean,
    AnswerY,
    GaussianResiduals,
    PointMethod,
    Ridge,
    ShiftRidge,
)
from vspair.methods.plain import train_plain
from vspair.posterior import Method, Posterior
from vspair.problems.heat import HeatProblem
from vspair.runs import Groups
from vspair.studies.answers import Question, digest, library_digest, made_once
from vspair.studies.jobs import each_done
from vspair.studies.own import drawing, tables
from vspair.studies.own.around import AROUND, Around
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.training.held import held_rows

__all__ = ["ANSWERS", "MADE", "SMOKE", "STUDY", "Case", "Scale", "Timed", "load", "report"]

FIRST_SEED = 100
"""What is added to a seed to make the pairs: settings were chosen on the pairs of seed 0."""

HELD = 0.1
"""The share of the training pairs whose residuals are the spread of simple methods."""

BLOCK = 100
"""Test observations that are answered at once."""


def _make_fields(rng: np.random.Generator) -> tuple[Part, Part]:
    """Return a few pairs of the heat equation, to see that everything runs."""
    problem, seed = HeatProblem(size=8, modes=2, noise=0.1), int(rng.integers(2**31))
    x, y = (t.flatten(1).numpy() for t in problem.pairs(140, seed=seed))
    return Part(x[:100], y[:100]), Part(x[100:], y[100:])


MADE = OwnSet("made", "fields of the heat equation as vectors", (), _make_fields, tuned=False)
"""The one set of ``--smoke``, which needs no package."""


@dataclass(frozen=True)
class Scale:
    """How much is made and trained.

    Arguments:
        sets: The names of the sets, with commas between them; all where empty.
        seeds: How many seeds of each.
        samples: Posterior samples that a test pair is judged by.
        seconds: Of the training of the plain network, at most.
        passes: How often the plain network sees each pair, at most.
        around: Seconds of the training of others around the anchor, of each.
        epochs: Passes of vsPAIR's training over the pairs; 0 leaves the default.
    """

    sets: str = ""
    seeds: int = 3
    samples: int = 100
    seconds: float = 150.0
    passes: int = 150
    around: float = 60.0
    epochs: int = 0

    def known(self, data_dir: Path | None = None) -> dict[str, OwnSet]:
        """Return every set by its name; data are read when pairs are asked for."""
        return SETS | ({MADE.name: MADE} if MADE.name in self.sets.split(",") else {})

    def chosen(self, data_dir: Path | None = None) -> list[OwnSet]:
        """Return the sets that are asked for."""
        known = self.known(data_dir)
        names = self.sets.split(",") if self.sets else list(known)
        if unknown := [name for name in names if name not in known]:
            raise VspairError(
                f"sets = {unknown[0]!r}: expected some of {', '.join(known)}, with commas between "
                "them."
            )
        return [known[name] for name in names]


SMOKE = Scale(sets=MADE.name, seeds=2, samples=20, seconds=1.0, around=1.0, epochs=2)


@dataclass(frozen=True)
class Case:
    """One set and one seed, whose pairs are made when they are asked for."""

    own: OwnSet
    seed: int

    def load(self) -> Split:
        """Return the pairs."""
        return self.own.load(FIRST_SEED + self.seed)

    def name(self, method: str) -> str:
        """Return what the answer of a method in this case is called."""
        return f"{method.replace(' + ', '-')}-{self.own.name}-{self.seed}"


Work = Workspace[Scale, list[Case]]


def load(scale: Scale, data_dir: Path | None = None) -> list[Case]:
    """Return every set with its seeds; refuse where a package is missing."""
    chosen = scale.chosen(data_dir)
    for each in chosen:
        each.check_packages()
    return [Case(each, seed) for each in chosen for seed in range(scale.seeds)]


# -- methods --------------------------------------------------------------------------------


class Timed:
    """A method, and the seconds that it took to make it.

    Arguments:
        make: Makes the method, from pairs.
    """

    def __init__(self, make: Callable[[], Method]) -> None:
        start = time.perf_counter()
        self.method = make()
        self.seconds = time.perf_counter() - start

    def posterior(self, y: Tensor) -> Posterior:
        """Return what the method believes of x, given observations of shape (B, *y_shape)."""
        return self.method.posterior(y)

    def costs(self) -> dict[str, float]:
        """Return the seconds, and the number of trained parameters."""
        found = self.method
        inner: Any = found.method if isinstance(found, GaussianResiduals) else found
        return {"training_seconds": self.seconds, "parameters": float(inner.n_parameters)}

    def error(self, test: Pairs) -> dict[str, float]:
        """Return the exact MSE of a simple method's estimates; nothing of any other.

        The mean of samples has a little more, a share of the residuals that falls with their
        number.
        """
        if not isinstance(self.method, GaussianResiduals):
            return {}
        parts = zip(test.x.split(BLOCK), test.y.split(BLOCK), strict=True)
        errors = [(self.posterior(y).mean() - x).double().square() for x, y in parts]
        return {"mse_mean": float(torch.cat(errors).mean())}


def _network(pairs: Pairs, groups: Tensor | None, scale: Scale, seed: int) -> PointMethod:
    """Return a plain network, of the time and the passes of a scale."""
    most: dict[str, Any] = {"seconds": scale.seconds, "passes": scale.passes}
    return train_plain(pairs.x, pairs.y, groups=groups, seed=seed, **most)


SIMPLE: dict[str, Callable[[Pairs, Tensor | None, Scale, int], PointMethod]] = {
    "ridge": lambda pairs, groups, _, seed: Ridge(pairs.x, pairs.y, groups=groups, seed=seed),
    "network": _network,
    "ridge-shifts": lambda pairs, *_: ShiftRidge(pairs),
    "trivial-y": lambda *_: AnswerY(),
    "trivial-mean": lambda pairs, *_: AnswerMean(pairs.x),
}
"""The methods that answer with one estimate: from pairs, their sources, the scale and a seed."""

OF_ONE_SHAPE = {"trivial-y": (2, 3, 4), "ridge-shifts": (3, 4)}
"""Methods for x and y of one shape, with the dimensions that both may have."""


def _with_residuals(name: str, split: Split, scale: Scale, seed: int) -> GaussianResiduals:
    """Return a simple method of all training pairs.

    Its spread is the residuals of a tenth of them, or of whole sources, after learning from the
    others.
    """
    train, groups = split.train, split.groups
    kept, rest = held_rows(len(train), HELD, seed, groups, kept=2)
    others, held = None if groups is None else groups[kept], train[rest]
    found = GaussianResiduals(SIMPLE[name](train[kept], others, scale, seed), held.x, held.y)
    found.method = SIMPLE[name](train, groups, scale, seed)
    return found


def _fit_defaults(work: Work, split: Split, seed: int) -> Method:
    """Call ``fit`` as a user does, who knows no more than the pairs and where they are from."""
    how: dict[str, Any] = {"device": str(work.device), "progress": work.show}
    if split.groups is not None:
        how["groups"] = split.groups
    if work.scale.epochs:
        how["epochs"] = work.scale.epochs
    return fit(split.train.x, split.train.y, seed=seed, **how)


def _makers(work: Work, split: Split, seed: int) -> dict[str, Callable[[], Method]]:
    """Return what makes each simple method that can answer, by the method's name."""
    same, dims = len({*split.train.shapes}) == 1, split.train.x.ndim
    names = [n for n in SIMPLE if n not in OF_ONE_SHAPE or (same and dims in OF_ONE_SHAPE[n])]
    return {name: partial(_with_residuals, name, split, work.scale, seed) for name in names}


class Ours:
    """The defaults of ``fit``, trained when they are first asked for, and what stands around.

    Arguments:
        make: Calls ``fit``.
        around: From the trained model to what stands around its anchor.
    """

    def __init__(
        self, make: Callable[[], Method], around: Callable[[AnchoredModel], Around]
    ) -> None:
        self._make, self._around = make, around

    @cached_property
    def timed(self) -> Timed:
        """The trained model, with the seconds of its training alone."""
        return Timed(self._make)

    @cached_property
    def around(self) -> Around:
        """What stands around its anchor; none where it has none."""
        model = self.timed.method
        assert isinstance(model, AnchoredModel)
        return self._around(model)

    def numbers(self, first: bool) -> Groups:
        """Return the numbers of all test pairs together; the first seed is also taken apart."""
        row = self.timed.costs()
        if not first or not isinstance(self.timed.method, AnchoredModel):
            return {"row": row}
        return {"row": row | self.around.taken_apart(), "has": {"anchor": 1}}

    def rival(self, name: str) -> Timed:
        """Return another account of the doubt about the same answer."""
        self.around.known  # noqa: B018 - not among the seconds of the rival
        return Timed(partial(AROUND[name], self.around))


# -- the stage ------------------------------------------------------------------------------


def answer(work: Work) -> bool:
    """Ask every method about the test observations of every case, in one process or more."""
    return each_done(work, work.data, _ask_all, list)


def _made_from(split: Split, scale: Scale) -> str:
    """Return what the methods of one case are known again by."""
    trained = scale.seconds, scale.passes, scale.around, scale.epochs
    return digest(library_digest(), split.train.x, split.train.y, split.groups, *trained)


def _ask_all(work: Work, case: Case) -> bool:
    """Keep the answers of all methods in one case; return whether that is done."""
    split, scale = case.load(), work.scale
    question = Question(split.test, samples=scale.samples, block=BLOCK)
    made_from = _made_from(split, scale)

    def ask(name: str, make: Callable[[], Timed], numbers: Callable[[Timed], Groups]) -> bool:
        work.say(f"{case.own.name}, seed {case.seed}: {name}")
        method_for = made_once(make)

        def more() -> Groups:
            return numbers(method_for(split.test.y))

        return work.answers.ask(case.name(name), method_for, question, made_from, more)

    def simple(method: Timed) -> Groups:
        return {"row": method.costs() | method.error(split.test)}

    for name, make in _makers(work, split, case.seed).items():
        if not ask(name, partial(Timed, make), simple):
            return False
    how = partial(
        Around, split=split, seed=case.seed, seconds=scale.around, device=str(work.device)
    )
    ours = Ours(partial(_fit_defaults, work, split, case.seed), how)
    if not ask(tables.OURS, lambda: ours.timed, lambda _: ours.numbers(case.seed == 0)):
        return False
    if "has" not in work.answers.read(case.name(tables.OURS)):
        return True  # another seed than the first, or a preset without an anchor
    return all(ask(name, partial(ours.rival, name), simple) for name in AROUND)


# -- the report -----------------------------------------------------------------------------


def report(work: Work, records: Records, text: str = tables.WORDS.text["report"]) -> Report:
    """Return tables, words and the figure's numbers from what was kept."""
    scale, found = work.scale, defaultdict[str, list[dict[str, Groups]]](list)
    for own in scale.chosen():
        for case in (Case(own, seed) for seed in range(scale.seeds)):
            found[own.name].append(_kept(work, case))
    measured = {name: [tables.measures(each) for each in seeds] for name, seeds in found.items()}
    rows = tables.rows_of(measured)
    about = dataclasses.asdict(scale) | {"sets": [own.name for own in scale.chosen()]}
    said = tables.text_of(rows, about, scale.chosen(), text)
    return Report(rows, said, tables.figure_numbers(measured), about)


def _kept(work: Work, case: Case) -> dict[str, Groups]:
    """Return the answers of one case by method, of those that can answer it."""
    names: Iterable[str] = (*SIMPLE, tables.OURS, *AROUND)
    optional = {*OF_ONE_SHAPE, *AROUND}
    return {
        name: work.answers.read(case.name(name))
        for name in names
        if name not in optional or work.answers.has(case.name(name))
    }


ASKED = ("samples", "seconds", "passes", "around", "epochs")
"""What of a scale answers depend on, beside the seed; sets may be added one by one."""

ANSWERS = Stage(answer, (*ASKED, "seeds"), grows=("seeds",), renews=ASKED)
"""The one stage: every method in every case."""

STUDY = Study(
    name="own",
    title=tables.WORDS.text["title"],
    load=load,
    describe=lambda cases: {"packages": package_versions()},
    stages={"answers": ANSWERS},
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
)
