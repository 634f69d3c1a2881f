"""The heat equation, section 4.4 and appendix D.4, with floors and observation noise beside it.

The paper calls the problem nonlinear; the equation is linear, and without noise it is inverted by
dividing in Fourier space. So the learned answers stand beside answers that are given the equation,
and all presets are also trained on noisy observations, where the problem is ill-posed. Each seed
makes its own pairs, weights and noise; settings were chosen on seeds from 100 on. The preset
``anchored`` is trained as :func:`vspair.fit` does by its defaults, in a stage of its own.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair.anchored_fit import MINUTES
from vspair.codes import SpikeSlab
from vspair.config import Config
from vspair.data import Pairs
from vspair.methods import AnswerMean, AnswerY, PointMethod, Ridge, ShiftRidge, Tikhonov, Wiener
from vspair.model import InverseModel
from vspair.problems.heat import PAPER_TEST, PAPER_TRAIN, HeatPairs, HeatProblem
from vspair.runs import Groups
from vspair.studies.answers import Question, digest, made_once
from vspair.studies.heat import drawing, tables
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.studies.trainings import load_trained, train_all, train_anchored, weights_digest
from vspair.uncertainty import DEVIATIONS, summarise_codes, traversal

__all__ = ["PROBLEM", "SMOKE", "STUDY", "Case", "Scale"]

PROBLEM = HeatProblem(
    size=16, kappa=0.02, time=3.0, modes=4, decay=1.25, series=0.7, source_amplitude=(3.0, 6.0),
    source_width=(0.4, 0.8),
)  # fmt: skip
"""The equation as printed. The paper gives neither amplitudes nor decay nor the source's size:
these make fields of variance 1.77, for which y itself has a squared error of 0.12."""

NOISE = (0.0, 0.01, 0.05, 0.1)
"""Observation noise as a share of the observations' deviation; the paper has none."""

FEW = 50
"""Samples that the paper takes pixelwise variances over."""

SHOWN, PERTURBED = 4, 2
"""Test pairs that are shown, and those of them whose factors are moved: the first ones."""


@dataclass(frozen=True)
class Scale:
    """How much is made and trained.

    Arguments:
        train: Training pairs, at most the paper's 972.
        test: Test pairs, at most the paper's 52.
        samples: Posterior samples that a test pair is judged by.
        epochs: Passes over the pairs; 0 takes the configuration's.
        seeds: How many seeds without noise; with noise there is one.
        preset: A preset that is trained alone, without noise; all where empty.
        precision: What networks of paired models compute in, ``float32`` or ``bfloat16``.
        small: Whether networks are tiny, to see that everything runs.
        anchored_minutes: How long ``fit`` is told that each of its trainings may take.
    """

    train: int = PAPER_TRAIN
    test: int = PAPER_TEST
    samples: int = 1000
    epochs: int = 0
    seeds: int = 3
    preset: str = ""
    precision: str = "float32"
    small: bool = False
    anchored_minutes: float = MINUTES

    @property
    def presets(self) -> tuple[str, ...]:
        """The paired models that are trained."""
        return (self.preset,) if self.preset else tables.PRESETS

    def config(self, preset: str, seed: int = 0) -> Config:
        """Return the configuration of a training."""
        training: dict[str, Any] = {"seed": seed, "precision": self.precision}
        changes: dict[str, Any] = {"training": training}
        if self.epochs:
            training["epochs"] = self.epochs
        if self.small:
            network = {"width": 4}
            sizes = {"x_size": 16, "y_size": 16, "x_network": network, "y_network": network}
            few = {"active": 6} if preset == "calibrated" else {}
            changes |= {"model": sizes, "objective": few}
        return configs.override(configs.shipped(f"heat-{preset}"), changes)


SMOKE = Scale(train=40, test=8, samples=60, epochs=2, small=True, anchored_minutes=0.001)


@dataclass(frozen=True)
class Case:
    """A level of noise and a seed, with pairs to learn from and pairs to be tested on."""

    noise: float
    seed: int
    scale: Scale

    def name(self, method: str) -> str:
        """Return what the files of a method in this case are called."""
        return f"{method}-noise{100 * self.noise:g}-{self.seed}"

    @property
    def problem(self) -> HeatProblem:
        """The equation with the noise."""
        return replace(PROBLEM, noise=self.noise)

    @cached_property
    def pairs(self) -> tuple[HeatPairs, HeatPairs]:
        """Training and test pairs, with their sources; noise does not change the fields."""
        sizes = self.scale.train, self.scale.test
        every = zip(self.problem.paper_pairs(self.seed), sizes, strict=True)
        train, test = (HeatPairs(p.x[:n], p.y[:n], p.source[:n]) for p, n in every)
        return train, test

    @property
    def train(self) -> Pairs:
        """The pairs to learn from."""
        return Pairs(self.pairs[0].x, self.pairs[0].y)


Work = Workspace[Scale, list[Case]]
Answerer = PointMethod | InverseModel

FLOORS: dict[str, Callable[[Case], PointMethod]] = {
    "exact": lambda case: Tikhonov(case.problem),
    "tikhonov": lambda case: Tikhonov.best(case.problem, case.train),
    "wiener": lambda case: Wiener(case.problem, case.train.x),
    "ridge": lambda case: Ridge(case.train.x, case.train.y),
    "ridge-shifts": lambda case: ShiftRidge(case.train),
    "trivial-y": lambda case: AnswerY(),
    "trivial-mean": lambda case: AnswerMean(case.train.x),
}
"""The methods without a network. The first three are given the equation, the third the noise level
too; the ridges learn from the same pairs as the networks."""


def load(scale: Scale, data_dir: Path | None = None) -> list[Case]:
    """Return every level of noise with its seeds; pairs are made when they are asked for."""
    levels = NOISE[:1] if scale.preset else NOISE
    seeds = {noise: range(1 if noise else scale.seeds) for noise in levels}
    return [Case(noise, seed, scale) for noise in levels for seed in seeds[noise]]


# -- stages ---------------------------------------------------------------------------------


def train(work: Work) -> bool:
    """Train every preset in every case, side by side, each in its run folder."""
    every = {
        case.name(preset): (case, preset) for case in work.data for preset in work.scale.presets
    }
    jobs = {name: work.scale.config(preset, case.seed) for name, (case, preset) in every.items()}
    return train_all(work, jobs, {name: case.train for name, (case, _) in every.items()})


def answer(work: Work) -> bool:
    """Ask every method, trained or not, about the test observations of every case."""
    names = [*FLOORS, *work.scale.presets]
    return all(_ask(work, case, name) for case in work.data for name in names)


def answer_anchored(work: Work) -> bool:
    """Train the preset ``anchored`` in every case by the defaults of ``fit``, and ask it."""
    name, minutes = tables.ANCHORED, work.scale.anchored_minutes
    return bool(work.scale.preset) or all(
        train_anchored(work, case.name(name), case.train, minutes=minutes, seed=case.seed)
        and _ask(work, case, name)
        for case in work.data
    )


def _ask(work: Work, case: Case, name: str) -> bool:
    """Keep the answer of one method in one case; return whether that is done."""
    (x, y, source), file = case.pairs[1], case.name(name)
    how: dict[str, Any] = {"samples": work.scale.samples, "block": len(x)}
    question = Question(Pairs(x, y), region=source.disc(x.shape[-1]), **how)
    floor, known = FLOORS.get(name), (case.problem, case.train.x, case.train.y)
    made_from = digest(*known) if floor else weights_digest(work, file)
    make = partial(floor, case) if floor else partial(load_trained, work, file)
    method_for: Callable[[Tensor], Answerer] = made_once(make)
    more = partial(_more, method_for, case.pairs[1])
    return work.answers.ask(file, method_for, question, made_from, more)


@torch.no_grad()
def _more(method_for: Callable[[Tensor], Answerer], test: HeatPairs) -> Groups:
    """Return what is kept beside scores: numbers of all test pairs together, and of figures."""
    method = method_for(test.y)
    row = {"field_variance": test.x.double().var(), "parameters": float(method.n_parameters)}
    if not isinstance(method, InverseModel):
        return {"row": row}
    post, generator = method.posterior(test.y), Generator(method.device).manual_seed(0)
    assert isinstance(post.code, SpikeSlab)
    mean, std = post.moments(FEW, generator)
    mean = mean if post.answer is None else post.mean()
    row |= summarise_codes(post, generator) | {"variance_50": std.square().mean()}
    factors = method.posterior(test.y[:SHOWN]).factors(4, shared=True).index[0]
    few = method.posterior(test.y[:PERTURBED])
    centre = few.approximate_mean()
    figure = {
        "x": test.x[:SHOWN],
        "y": test.y[:SHOWN],
        "mean": mean[:SHOWN],
        "variance": std[:SHOWN].square(),
        "disc": test.source[:SHOWN].disc(test.x.shape[-1]),
        "walk_dims": factors,
        "walk_omega": post.code.omega[:PERTURBED, factors],
        "walk_centre": centre,
        "walk_change": traversal(few, factors, DEVIATIONS) - centre[:, None, None],
    }
    return {"row": row, "figure": figure}


# -- the report -----------------------------------------------------------------------------


def report(work: Work, records: Records) -> Report:
    """Return tables, words and the figures' numbers from what was kept."""
    scale, answers = work.scale, defaultdict[tuple[str, float], list[Groups]](list)
    names = [*FLOORS, *scale.presets] if "answers" in records.stages else []
    learned = [*scale.presets] if names else []
    if "anchored" in records.stages and not scale.preset:
        names, learned = [*names, tables.ANCHORED], [*learned, tables.ANCHORED]
    for case in load(scale):
        for name in names:
            answers[name, case.noise].append(work.answers.read(case.name(name)))
    rows = tables.rows_of(answers)
    numbers = {preset: tables.figure_numbers(answers[preset, 0.0][0]) for preset in learned}
    if not scale.preset:
        numbers["noise"] = tables.noise_numbers(rows)
    epochs = {preset: scale.config(preset).training.epochs for preset in scale.presets}
    own = replace(Scale(), seeds=scale.seeds, precision=scale.precision)
    about = dataclasses.asdict(scale) | {"epochs": epochs, "paper_scale": scale == own}
    return Report(rows, partial(tables.text_of, records.data["problem"]), numbers, about)


TRAINED = ("train", "epochs", "preset", "precision", "small", "seeds")
ASKED = ("test", "samples")
"""What of a scale trainings depend on, and what answers depend on too."""

OF_ANCHORED = ("train", "preset", "small", "seeds", *ASKED, "anchored_minutes")

STUDY = Study(
    name="heat",
    title=tables.WORDS.text["title"],
    load=load,
    # As JSON reads it again, to be compared.
    describe=lambda cases: {"problem": json.loads(json.dumps(dataclasses.asdict(PROBLEM)))},
    stages={
        "train": Stage(train, TRAINED, grows=("seeds",)),
        "answers": Stage(answer, (*TRAINED, *ASKED), ("seeds",), renews=ASKED, reads=("train",)),
        "anchored": Stage(answer_anchored, OF_ANCHORED, ("seeds",), renews=ASKED),
    },
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
    joins=True,
)
