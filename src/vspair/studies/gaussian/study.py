"""The Gaussian study, section 4.1: how near the learned posterior is to the exact one.

Every seed makes its own operator, pairs and initial weights. The learned posterior has no
density, so it is compared through the mean and covariance of many samples, as if it were
Gaussian: KL(learned || exact) and the 2-Wasserstein distance, medians over the test observations.
Beside them stands the energy distance of samples, which assumes nothing. The settings of the
calibrated preset were chosen on other operators than those reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair import config as configs
from vspair.config import Config
from vspair.data import Pairs
from vspair.fitting import split_pairs, start_or_resume_training, suggest_settings
from vspair.metrics import energy_distance, gaussian_kl, gaussian_w2, sample_moments
from vspair.posterior import LatentPosterior
from vspair.problems.gaussian import GaussianProblem
from vspair.runs import Groups, Run
from vspair.studies.answers import digest
from vspair.studies.gaussian import drawing
from vspair.studies.gaussian.theorem import theorem1
from vspair.studies.jobs import do_missing
from vspair.studies.results import Row, table_of
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.studies.words import read_words
from vspair.training.side_by_side import train_side_by_side
from vspair.uncertainty import traversal

__all__ = ["SMOKE", "STUDY", "Job", "Scale", "alignment", "exact_distances"]

MODELS = {
    "paper": ("paper", ""),
    "calibrated": ("calibrated", ""),
    "default": ("calibrated", "defaults of vspair.fit"),
}
"""What is trained on every seed, with the preset and condition of its rows."""

CONVENTIONS: dict[str, tuple[str, dict[str, str | bool]]] = {
    "no-half": ("without 1/2", {"half": False}),
    "mean": ("mean instead of sum", {"reduction": "mean"}),
    "sigma": ("sigma instead of log variance", {"sigma": "sigma"}),
    "variance": ("variance instead of log variance", {"sigma": "variance"}),
    "detached": ("targets detached", {"target": "detached"}),
}
"""Where the text leaves a choice: other forms of the paper's objective, and what they change."""

WORDS = read_words("gaussian")
METRICS = WORDS.labels["measures"]


@dataclass(frozen=True)
class Scale:
    """How much is made and trained.

    Arguments:
        observations: Training observations (the paper's 1,024).
        each: Posterior unknowns for each of them (10).
        test: Test observations (200).
        samples: Posterior samples a test observation is judged by.
        epochs: Passes over the pairs; 0 takes the configuration's.
        seeds: How many problems; other conventions are tried on the first two.
    """

    observations: int = 1024
    each: int = 10
    test: int = 200
    samples: int = 4000
    epochs: int = 0
    seeds: int = 10


SMOKE = Scale(observations=64, each=4, test=20, samples=400, epochs=2, seeds=2)

Work = Workspace[Scale, None]


@dataclass(frozen=True)
class Job:
    """One method on the problem of one seed."""

    method: str
    seed: int
    scale: Scale

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.method.replace(' ', '-')}-{self.seed}"

    @property
    def key(self) -> str:
        """What its answer is known again by, whatever the number of seeds."""
        settings = None if self.method in (*FLOORS, "theorem") else self.config
        return digest(self.name, replace(self.scale, seeds=0), settings)

    @property
    def problem(self) -> GaussianProblem:
        """The problem of the seed; seeds below 100 were used to choose settings."""
        return GaussianProblem.random(100 + self.seed)

    @property
    def pairs(self) -> Pairs:
        """The pairs to learn from."""
        sizes = self.scale.observations, self.scale.each
        return Pairs(*self.problem.pairs(*sizes, seed=1000 + self.seed))

    @property
    def y(self) -> Tensor:
        """The test observations, with shape (test, 4)."""
        return self.problem.observe(self.scale.test, Generator().manual_seed(2000 + self.seed))

    @property
    def config(self) -> Config:
        """The configuration of its training."""
        if self.method == "default":
            settings = suggest_settings(*self.pairs.shapes, len(self.pairs), active=2)
            config = configs.override(configs.preset("calibrated", active=2), settings)
        else:
            _, changes = CONVENTIONS.get(self.method, ("", {}))
            config = configs.shipped(f"gaussian-{'paper' if changes else self.method}")
            config = configs.override(config, {"objective": changes})
        epochs = {"epochs": self.scale.epochs} if self.scale.epochs else {}
        return configs.override(config, {"training": {"seed": self.seed, **epochs}})


# -- measures -------------------------------------------------------------------------------


def exact_distances(
    problem: GaussianProblem, mean: Tensor, covariance: Tensor, y: Tensor
) -> dict[str, float]:
    """Return how far Gaussians are from the exact posterior: medians over observations y (B, m).

    Their means have shape (B, n), their covariances (B, n, n), or (n, n) where all have one.
    """
    covariance = covariance.expand(len(y), *covariance.shape[-2:])
    exact_mean, exact = problem.posterior_mean(y), problem.covariance.expand_as(covariance)
    trace = exact.diagonal(dim1=-2, dim2=-1).sum(-1)
    values = {
        "mean_error": (mean - exact_mean).norm(dim=-1) / trace.sqrt(),
        "kl_exact": gaussian_kl(mean, covariance, exact_mean, exact),
        "w2_exact": gaussian_w2(mean, covariance, exact_mean, exact),
        "trace_ratio": covariance.diagonal(dim1=-2, dim2=-1).sum(-1) / trace,
    }
    return {k: float(v.median()) for k, v in values.items()}


def _sample_distances(job: Job, samples: Tensor) -> dict[str, float]:
    """Return how far samples (N, B, 2) are from the exact posterior: medians over y."""
    problem, y, few = job.problem, job.y, samples[:500]
    exact = problem.sample_posterior(y, len(few), Generator().manual_seed(5))
    energy = float(energy_distance(few, exact).median())
    return exact_distances(problem, *sample_moments(samples), y) | {"energy_exact": energy}


def alignment(problem: GaussianProblem, post: LatentPosterior) -> float:
    """Return the mean absolute cosine of the two leading factors with the nearest eigenvector.

    The direction of a factor is from -sigma to +sigma. A random one scores 0.900.
    """
    moved = traversal(post, post.factors(2).index, (-1.0, 1.0))
    directions = F.normalize((moved[:, :, 1] - moved[:, :, 0]).double(), dim=-1)
    vectors = torch.linalg.eigh(problem.covariance).eigenvectors
    return float((directions @ vectors).abs().amax(-1).mean())


# -- answers --------------------------------------------------------------------------------


def _prior(job: Job) -> dict[str, float]:
    """Measure the trivial answer: the prior, whatever was observed."""
    mean = torch.zeros(job.scale.test, 2, dtype=torch.float64)
    return exact_distances(job.problem, mean, torch.eye(2, dtype=torch.float64), job.y)


def _least_squares(job: Job) -> dict[str, float]:
    """Measure the classical answer from the same pairs: linear regression and its residuals."""
    x, seen = job.pairs.x.double(), job.pairs.y.double()
    gain = torch.linalg.lstsq(seen, x).solution
    residual = x - seen @ gain
    return exact_distances(job.problem, job.y @ gain, residual.T @ residual / len(x), job.y)


def _exact(job: Job) -> dict[str, float]:
    """Measure exact samples: what their finite number adds to each distance."""
    how = job.scale.samples, Generator().manual_seed(6)
    return _sample_distances(job, job.problem.sample_posterior(job.y, *how))


FLOORS: dict[str, Callable[[Job], dict[str, float]]] = {
    "trivial-prior": _prior,
    "least squares": _least_squares,
    "exact samples": _exact,
}
"""The methods without a network."""

EVERY = [*FLOORS, *MODELS]


def _trained(job: Job, folder: Path, deadline: float | None) -> Groups | None:
    """Train and measure a model; return nothing where time runs out, to be continued."""
    config, out = job.config, folder / job.name
    parts = split_pairs(job.pairs, config)
    trainer = start_or_resume_training(*parts, config, out, torch.device("cpu"))
    if not (trainer.finished or train_side_by_side([trainer], deadline)):
        return None
    post = Run(out).load().posterior(job.y.float())
    generator = Generator().manual_seed(3000 + job.seed)
    samples = post.sample(job.scale.samples, generator).double()
    counts = post.active().double().sum(-1)
    row: dict[str, Any] = _sample_distances(job, samples)
    row |= {"alignment": alignment(job.problem, post)}
    row |= {"active": counts.mean(), "active_least": counts.min(), "active_most": counts.max()}
    return {"row": row, "figure": _figure(job, post, samples)}


def _figure(job: Job, post: LatentPosterior, samples: Tensor) -> dict[str, Tensor]:
    """Return what both figures show of the first three test observations."""
    problem, y, steps = job.problem, job.y[:3], torch.linspace(-3, 3, 31)
    likely = post.factors(4).index
    walks = traversal(post, likely, steps.tolist())
    return {
        "truth": problem.sample_posterior(y, 500, Generator().manual_seed(0)),
        "learned": samples[:500, :3],
        "mean": problem.posterior_mean(y),
        "covariance": problem.covariance,
        "approximate_mean": post.approximate_mean()[:3],
        "omega": post.parameters()["omega"][:3],
        "likely": likely[:3],
        "walks": walks[:3],
        "steps": steps,
    }


def _answer(job: Job, folder: Path, deadline: float | None) -> Groups | None:
    """Do a job; return what is kept of it, or nothing where time ran out."""
    if deadline is not None and time.monotonic() > deadline:
        return None
    if job.method == "theorem":
        return theorem1(epochs=job.scale.epochs or 60)
    if job.method in FLOORS:
        return {"row": FLOORS[job.method](job)}
    return _trained(job, folder, deadline)


def _work(work: Work, methods: Iterable[str], seeds: int) -> bool:
    """Make and keep the answers that are missing; return whether all are there."""
    every = [Job(method, seed, work.scale) for method in methods for seed in range(seeds)]
    return do_missing(work, every, partial(_answer, folder=work.folder, deadline=work.deadline))


# -- the report -----------------------------------------------------------------------------


def report(work: Work, records: Records) -> Report:
    """Return tables, words and the figures' numbers from what was kept."""
    scale, few = work.scale, min(work.scale.seeds, 2)
    names = dict.fromkeys(EVERY, scale.seeds) | dict.fromkeys(CONVENTIONS, few) | {"theorem": 1}
    jobs = {name: [Job(name, seed, scale) for seed in range(n)] for name, n in names.items()}
    kept = {name: [work.answers.read(j.name) for j in found] for name, found in jobs.items()}
    epochs = {name: jobs[name][0].config.training.epochs for name in ("paper", "calibrated")}
    about = {"epochs": epochs, "train": scale.observations * scale.each, "test": scale.test}
    about |= {"samples": scale.samples, "paper_scale": scale == Scale(seeds=scale.seeds)}
    main = [row for name in EVERY for row in _medians(kept[name], name, *MODELS.get(name, ()))]
    others = _medians(kept["paper"][:few], "paper", "paper", "as printed")
    for name, (words, _) in CONVENTIONS.items():
        others += _medians(kept[name], name, "paper", words)
    theorem = [
        Row(way, "", f"theorem_{name}", float(value))
        for way, found in kept["theorem"][0].items()
        for name, value in found.items()
        if way != "key"
    ]
    text = _text(main, others, theorem, [_verdict(name, kept[name]) for name in MODELS], scale)
    numbers = {name: kept[name][0]["figure"] for name in epochs}
    return Report([*main, *others, *theorem], text, numbers, about)


def _medians(
    answers: Sequence[Groups], name: str, preset: str = "", condition: str = ""
) -> list[Row]:
    """Return medians over seeds, with half the distance of the quartiles as spread."""
    rows, model = [], "vsPAIR" if preset else name
    for metric in METRICS:
        values = [float(a["row"][metric]) for a in answers if metric in a["row"]]
        if values:
            spread = float(np.subtract(*np.percentile(values, [75, 25]))) / 2
            middle, seeds = statistics.median(values), len(values)
            rows.append(Row(model, preset, metric, middle, spread, seeds, condition=condition))
    return rows


def _verdict(name: str, answers: Sequence[Groups]) -> str:
    """Say on how many seeds a model has two factors, and is near the exact posterior."""
    rows = [answer["row"] for answer in answers]
    exact = sum(bool(row["active_least"] == row["active_most"] == 2) for row in rows)
    distances = [float(row["kl_exact"]) for row in rows]
    return WORDS.text["verdict"].format(
        model=", ".join(filter(None, MODELS[name])), exact=exact, seeds=len(rows),
        near=sum(d <= 0.01 for d in distances), worst=max(distances),
    )  # fmt: skip


def _text(
    main: list[Row], others: list[Row], theorem: list[Row], verdicts: list[str], scale: Scale
) -> str:
    """Return tables and words as Markdown."""
    named = [replace(row, model=row.condition, preset="", condition="") for row in others]
    shown = {k: METRICS[k] for k in ("mean_error", "kl_exact", "trace_ratio", "active")}
    return WORDS.text["report"].format(
        seeds=scale.seeds, samples=scale.samples, few=others[0].seeds,
        table=table_of(main, METRICS).markdown(), verdicts="\n".join(verdicts),
        conventions=table_of(named, shown).markdown(),
        theorem=table_of(theorem, WORDS.labels["theorem"]).markdown(),
    )  # fmt: skip


_SIZES = ("observations", "each", "test", "samples", "epochs")
STUDY = Study(
    name="gaussian",
    title=WORDS.text["title"],
    load=lambda scale, data_dir: None,
    describe=lambda data: {},
    stages={
        "models": Stage(
            lambda w: _work(w, EVERY, w.scale.seeds), (*_SIZES, "seeds"), grows=("seeds",)
        ),
        "conventions": Stage(lambda w: _work(w, CONVENTIONS, min(w.scale.seeds, 2)), _SIZES),
        "theorem": Stage(lambda w: _work(w, ["theorem"], 1), ("epochs",)),
    },
    report=report,
    draw=drawing.draw_all,
    captions=drawing.CAPTIONS,
)
