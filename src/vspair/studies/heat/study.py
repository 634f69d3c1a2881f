"""The heat equation, section 4.4 and appendix D.4, with floors and observation noise beside it.

The paper calls the problem nonlinear; the equation is linear, and without noise it is inverted by
dividing in Fourier space. So the learned answers stand beside answers that are given the equation,
and both presets are also trained on noisy observations, where the problem is ill-posed. Each seed
draws its own pairs, weights and noise; settings were chosen on seeds from 100 on.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vspair import config as configs
from vspair import runs
from vspair.config import Config
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.fitting import split_pairs, start_or_resume_training
from vspair.problems.heat import PAPER_TEST, PAPER_TRAIN, HeatPairs, HeatProblem
from vspair.studies.heat.figures import illustrate, numbers
from vspair.studies.heat.measures import FLOORS, floors, measure
from vspair.studies.results import Row, epochs_in_words, markdown, write_summary
from vspair.training.side_by_side import MOST_LANES, deadline_in, train_side_by_side
from vspair.training.trainer import Trainer

__all__ = [
    "PROBLEM", "SMOKE", "Job", "Scale", "draw", "noise_table", "plan", "reproduce", "train",
]  # fmt: skip

PROBLEM = HeatProblem(
    size=16, kappa=0.02, time=3.0, modes=4, decay=1.25, series=0.7, source_amplitude=(3.0, 6.0),
    source_width=(0.4, 0.8),
)  # fmt: skip
"""The equation as printed. The paper gives neither amplitudes nor decay nor the source's size:
these make fields of variance 1.77, for which y itself has a squared error of 0.12."""

NOISE = (0.0, 0.01, 0.05, 0.1)
"""Observation noise as a share of the observations' deviation; the paper has none."""

PRESETS = ("paper", "calibrated")

PAPER = {
    "mse": 0.071, "nnz": 120.6, "nnz_std": 3.7, "active_share": 0.237,
    "uncertainty_error_r": 0.721, "std_omega_over_y": 0.0014, "std_sigma_over_y": 0.0078,
    "std_mu_over_y": 0.1310,
}  # fmt: skip
"""What section 4.4 prints, for the preset ``paper`` without noise."""

TABLES = {
    "Reconstruction and sparsity": {
        "mse": "MSE of a sample",
        "relative_mse": "the same over the field's variance",
        "mse_mean": "MSE of the mean of samples",
        "relative_mse_mean": "the same over the field's variance",
        "mse_approximate_mean": "MSE of the decoded mean code",
        "nnz": "average nnz",
        "nnz_std": "its deviation over observations",
        "active_share": "share of all indices",
        "ever_active": "indices with omega above 0.5 for some observation",
    },
    "Uncertainty": {
        "variance_50": "mean pixelwise variance of 50 samples",
        "uncertainty_error_r": "Pearson r of variance and mean MSE of samples",
        "uncertainty_error_r_mean": "Pearson r of variance and MSE of their mean",
        "std_omega_over_y": "deviation of omega over y",
        "std_sigma_over_y": "deviation of sigma over y",
        "std_mu_over_y": "deviation of mu over y",
        "coverage_90": "share inside the 90 % interval",
        "coverage_90_with_noise": "the same with the decoder's noise",
        "crps": "CRPS",
        "crps_with_noise": "the same with the decoder's noise",
    },
    "On the heat source": {
        "variance_inside": "share of the variance in the two-sigma disc",
        "error_inside": "share of the squared error in it",
        "area_inside": "share of the area in it",
    },
}
"""The rows of each table of the paper's setting, without noise."""


@dataclass(frozen=True)
class Scale:
    """How much is drawn and trained.

    Arguments:
        train: Training pairs, at most the paper's 972.
        test: Test pairs, at most the paper's 52.
        samples: Posterior samples that a test pair is judged by.
        epochs: Passes over the pairs; 0 takes the configuration's.
        small: Whether networks are tiny, to see that everything runs.
    """

    train: int = PAPER_TRAIN
    test: int = PAPER_TEST
    samples: int = 1000
    epochs: int = 0
    small: bool = False


SMOKE = Scale(train=40, test=8, samples=60, epochs=2, small=True)

_TINY: dict[str, Any] = {
    "x_size": 16,
    "y_size": 16,
    "x_network": {"width": 4},
    "y_network": {"width": 4},
}


@dataclass(frozen=True)
class Job:
    """One training: the preset, the observation noise, and the seed of pairs and weights."""

    preset: str
    noise: float = 0.0
    seed: int = 0

    @property
    def label(self) -> str:
        """The name of its run folder."""
        return f"{self.preset}-noise{100 * self.noise:g}-{self.seed}"

    def config(self, scale: Scale) -> Config:
        """Return its configuration at a scale."""
        changes: dict[str, Any] = {"training": {"seed": self.seed}}
        if scale.epochs:
            changes["training"]["epochs"] = scale.epochs
        if scale.small:
            changes["model"] = _TINY
            changes["objective"] = {"active": 6} if self.preset == "calibrated" else {}
        return configs.override(configs.shipped(f"heat-{self.preset}"), changes)


def plan(seeds: int, only: str = "") -> list[Job]:
    """Return the trainings: so many seeds of both presets without noise, one with each noise.

    Arguments:
        seeds: How many seeds without noise.
        only: A preset that is trained alone, without noise.
    """
    if only and only not in PRESETS:
        raise VspairError(f"only = {only!r}: expected one of {', '.join(PRESETS)}.")
    return [
        Job(preset, noise, seed)
        for noise in (NOISE[:1] if only else NOISE)
        for preset in ([only] if only else PRESETS)
        for seed in range(1 if noise else seeds)
    ]


def draw(noise: float, seed: int, scale: Scale) -> tuple[HeatProblem, HeatPairs, HeatPairs]:
    """Return a problem with its training and test pairs; noise does not change the fields."""
    problem = replace(PROBLEM, noise=noise)
    train, test = (
        HeatPairs(p.x[:n], p.y[:n], p.source[:n])
        for p, n in zip(problem.paper_pairs(seed), (scale.train, scale.test), strict=True)
    )
    return problem, train, test


# -- training -------------------------------------------------------------------------------


def train(
    jobs: list[Job],
    folder: Path,
    *,
    scale: Scale | None = None,
    device: str = "auto",
    fast: bool = False,
    deadline: float | None = None,
) -> bool:
    """Train what is not trained yet, side by side, each in its run folder.

    Arguments:
        jobs: What to train.
        folder: Where the run folders are; a stopped training continues.
        scale: How much to train; the paper's where not given.
        device: Where to train; on a GPU, steps are replayed as CUDA graphs.
        fast: Whether networks run in bfloat16.
        deadline: Save and stop at this time of ``time.monotonic``.

    Returns:
        Whether everything is trained.
    """
    where, scale = runs.pick_device(device), scale or Scale()
    for start in range(0, len(jobs), MOST_LANES):
        some = jobs[start : start + MOST_LANES]
        lanes = [_trainer(job, folder, scale, where, fast) for job in some]
        if not train_side_by_side([t for t in lanes if t is not None], deadline):
            return False
    return True


def _trainer(
    job: Job, folder: Path, scale: Scale, device: torch.device, fast: bool
) -> Trainer | None:
    """Return a training that is new or was stopped, or nothing where it is done."""
    _, pairs, _ = draw(job.noise, job.seed, scale)
    execution: dict[str, Any] = {"capture": device.type == "cuda"}
    execution["precision"] = "bfloat16" if fast else "float32"
    config = configs.override(job.config(scale), {"training": execution})
    parts = split_pairs(Pairs(pairs.x, pairs.y), config)
    trainer = start_or_resume_training(*parts, config, folder / job.label, device)
    return None if trainer.finished else trainer


# -- the whole study ------------------------------------------------------------------------


def reproduce(
    out: Path,
    *,
    folder: Path,
    seeds: int = 3,
    only: str = "",
    scale: Scale | None = None,
    device: str = "auto",
    fast: bool = False,
    minutes: float = 0.0,
    command: str = "",
) -> str | None:
    """Train both presets with every noise, measure them, and write tables and figures.

    Arguments:
        out: The folder of the results; files of an earlier study in it are replaced.
        folder: The folder of the runs; what is trained there is not trained again.
        seeds: How many seeds without noise.
        only: A preset that is trained alone, without noise.
        scale: How much to train; the paper's where not given.
        device: Where to train.
        fast: Whether networks run in bfloat16.
        minutes: Save and stop after so many minutes; 0 trains to the end.
        command: What made the results.

    Returns:
        The tables as Markdown, or nothing where time ran out: call again to continue.
    """
    runs.make_folder(out)
    scale, jobs = scale or Scale(), plan(seeds, only)
    how: dict[str, Any] = {"scale": scale, "device": device, "fast": fast}
    if not train(jobs, folder, deadline=deadline_in(minutes), **how):
        return None
    rows, shown = _floor_rows(jobs, scale), {}
    measured = []
    for job in jobs:
        model, (_, _, test) = runs.load(folder / job.label, device), _data(job, scale)
        row, images = measure(model, test, samples=scale.samples)
        measured.append((job, row))
        if job in (Job("paper"), Job("calibrated")):
            shown[job.preset] = numbers(model, test, images)
    rows += _learned_rows(measured)
    about = dataclasses.asdict(scale) | {
        "epochs": scale.epochs or {j.preset: j.config(scale).training.epochs for j in jobs},
        "paper_scale": scale == Scale(),
        "precision": "bfloat16" if fast else "float32",
        "problem": dataclasses.asdict(PROBLEM),
    }
    where = runs.pick_device(device)
    write_summary(out / "summary.json", "heat", command, about, rows, str(where))
    each = {job.label: row for job, row in measured}
    runs.write_text(out / "seeds.json", json.dumps(each, indent=1) + "\n")
    noise = {} if only else {"noise": _noise_numbers(rows)}
    figures = illustrate(shown | noise, out)
    text = _text(rows, seeds, about, command, runs.machine(where))
    text += f"\n## Figures\n\n{figures}\n"
    runs.write_text(out / "README.md", text)
    return text


def _data(job: Job, scale: Scale) -> tuple[HeatProblem, HeatPairs, HeatPairs]:
    return draw(job.noise, job.seed, scale)


# -- rows -----------------------------------------------------------------------------------


def _condition(noise: float) -> str:
    return f"noise={noise:g}"


def _summaries(found: list[dict[str, float]]) -> Iterator[tuple[str, float, float | None, int]]:
    """Yield each metric's name, mean over seeds, deviation and number of seeds.

    The error of the first seed alone is yielded too: with noise there is no other.
    """
    if "mse_mean" in found[0]:
        yield "mse_mean_first", found[0]["mse_mean"], None, 1
    for metric in found[0]:
        values = [f[metric] for f in found]
        spread = statistics.stdev(values) if len(values) > 1 else None
        yield metric, statistics.fmean(values), spread, len(values)


def _floor_rows(jobs: list[Job], scale: Scale) -> list[Row]:
    rows = []
    for noise in dict.fromkeys(job.noise for job in jobs):
        seeds = sorted({job.seed for job in jobs if job.noise == noise})
        data = [draw(noise, seed, scale) for seed in seeds]
        field = statistics.fmean(float(test.x.double().var()) for _, _, test in data)
        n = len(seeds)
        rows.append(Row("field", "", "variance", field, None, n, condition=_condition(noise)))
        found = [floors(*part) for part in data]
        for name, value, spread, n in _summaries(found):
            condition = _condition(noise)
            rows.append(Row(name, "", "mse_mean", value, spread, n, condition=condition))
            rows.append(Row(name, "", "mse_mean_first", found[0][name], condition=condition))
    return rows


def _learned_rows(measured: list[tuple[Job, dict[str, float]]]) -> list[Row]:
    """Return means over seeds with their deviation, the paper's values beside them."""
    rows = []
    for preset, noise in dict.fromkeys((job.preset, job.noise) for job, _ in measured):
        found = [row for job, row in measured if (job.preset, job.noise) == (preset, noise)]
        paper = PAPER if preset == "paper" and not noise else {}
        rows += [
            Row("vsPAIR", preset, name, value, spread, n, "", paper.get(name), _condition(noise))
            for name, value, spread, n in _summaries(found)
        ]
    return [row for row in rows if math.isfinite(row.value)]


def _methods() -> dict[str, tuple[str, str]]:
    """Return the model and preset of each method of the noise table, by the name in it."""
    learned = {f"vsPAIR ({preset})": ("vsPAIR", preset) for preset in PRESETS}
    return {name: (model, "") for model, name in FLOORS.items()} | learned


def _levels(rows: list[Row]) -> list[float]:
    """Return the noise levels that there are rows of."""
    return [noise for noise in NOISE if _condition(noise) in {row.condition for row in rows}]


def _by_noise(rows: list[Row]) -> dict[str, list[float]]:
    """Return the MSE of the best estimate of each method in rows, one value a noise level.

    All are of the first seed, so that noise is all that differs.
    """
    first = [row for row in rows if row.metric == "mse_mean_first"]
    found = {(r.model, r.preset, r.condition): r.value for r in first}
    return {
        name: [found[(*key, _condition(noise))] for noise in _levels(rows)]
        for name, key in _methods().items()
        if (*key, _condition(0.0)) in found
    }


def _noise_numbers(rows: list[Row]) -> dict[str, Any]:
    """Return what the figure of errors over noise shows."""
    levels = {"levels": np.array(_levels(rows))}
    return levels | {name: np.array(values) for name, values in _by_noise(rows).items()}


# -- words ----------------------------------------------------------------------------------


def noise_table(rows: list[Row]) -> str:
    """Return the MSE of every method for each noise, the least in bold."""
    table = _by_noise(rows)
    lines = [f"| noise | {' | '.join(table)} |", "|---" * (len(table) + 1) + "|"]
    for i, noise in enumerate(_levels(rows)):
        values = [column[i] for column in table.values()]
        cells = [f"**{v:.3g}**" if v == min(values) else f"{v:.3g}" for v in values]
        lines.append(f"| {100 * noise:g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdict(rows: list[Row]) -> str:
    """Say for each noise which methods the learned ones are better than."""
    table, lines = _by_noise(rows), []
    learned = [name for name in table if name not in FLOORS.values()]
    for i, noise in enumerate(_levels(rows)):
        words = []
        for name in learned:
            beaten = [floor for floor in FLOORS.values() if table[name][i] < table[floor][i]]
            words.append(f"{name} than {', '.join(beaten) or 'none'}")
        lines.append(f"- Better with {100 * noise:g} % noise: {'; '.join(words)}.")
    return "\n".join(lines)


def _text(rows: list[Row], seeds: int, about: dict[str, Any], command: str, machine: str) -> str:
    plain = [
        replace(row, condition="")
        for row in rows
        if row.model == "vsPAIR" and row.condition == _condition(0)
    ]
    field = next(r.value for r in rows if r.model == "field")
    parts = [
        "# The heat equation (section 4.4)",
        f"Made by `{command}` at commit {runs.commit()} on {machine}: {about['train']:,} training "
        f"and {about['test']:,} test pairs, {epochs_in_words(about['epochs'])} epochs in "
        f"{about['precision']}, {about['samples']:,} samples. Seeds without noise: {seeds}, each "
        f"with its own pairs and weights; means plus or minus the deviation over them."
        f"{' Seeds with noise: 1.' if len(_levels(rows)) > 1 else ''} The paper's value stands "
        f"behind ours. Our test fields have variance {field:.3g}; the paper does not say its own, "
        "so that only shares of the variance can be compared between the two.",
        "The fields' law, which the paper does not print either: "
        + ", ".join(f"{k} {v}" for k, v in about["problem"].items() if k in _LAW)
        + " (see `vspair.problems.heat`); solved exactly, Nyquist modes kept.",
    ]
    for title, metrics in TABLES.items():
        parts += [f"## {title}", markdown(plain, metrics)]
    sizes = {r.preset: int(r.value) for r in plain if r.metric == "parameters"}
    words = ", ".join(f"`{preset}` has {n:,} parameters" for preset, n in sizes.items())
    parts += [f"The preset {words}. {_PRESETS}" if len(sizes) > 1 else f"The preset {words}."]
    parts += [_REMARKS, "## Beside methods that are given the equation", noise_table(rows)]
    parts += [_METHODS, _verdict(rows)]
    return "\n\n".join(parts) + "\n"


_LAW = ("size", "kappa", "time", "modes", "decay", "series", "source_amplitude", "source_width")
_PRESETS = (
    "They differ in more than the objective: `calibrated` has a map without hidden layers, larger "
    "steps that fall along a cosine, shifts of its pairs, and the best epoch by held-out pairs."
)
_REMARKS = (
    "The paper does not say whether its MSE is of samples, of their mean or of the decoded mean "
    "code; it stands beside that of samples, as in its MNIST table. The mean MSE of samples is "
    "the MSE of their mean plus their variance, so that it correlates with the variance by "
    "construction; the second r is free of that. The decoder's noise of the preset `paper` is the "
    "unit width of its likelihood, which it never draws from. The share of the error says where "
    "doubt is due: variance that sits on the source is right as far as the error does too."
)
_METHODS = (
    "MSE of each method's best estimate, for vsPAIR the mean of its samples; of seed 0. `exact "
    "inversion` divides each Fourier mode by its decay; `Tikhonov` has the penalty that is best "
    "on the training pairs; `Wiener` is also given the noise level and learns the spectrum of the "
    "fields: no answer that is linear in y and treats every place alike has a smaller expected "
    "error. `ridge` learns a linear answer from the same pairs as vsPAIR, without the equation; "
    "`ridge with shifts` also knows that every place is alike, as the preset `calibrated` does, "
    "which sees its pairs moved around. `mean field` answers with the mean of the training "
    "fields. Without noise, differences below 1e-6 are rounding."
)
