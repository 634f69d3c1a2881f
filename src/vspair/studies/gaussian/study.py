"""The Gaussian study, section 4.1: how near the learned posterior is to the exact one.

Every seed draws its own operator, pairs and initial weights. The learned posterior has no
density, so it is compared through the mean and covariance of many samples, as if it were
Gaussian: KL(learned || exact) and the 2-Wasserstein distance, medians over the test observations.
Beside them stands the energy distance of samples, which assumes nothing. The settings of the
calibrated preset were chosen on other operators than those reported.
"""

from __future__ import annotations

import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair import runs
from vspair.codes import SpikeSlab
from vspair.fitting import fit
from vspair.metrics import energy_distance, gaussian_kl, gaussian_w2
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior
from vspair.problems.gaussian import GaussianProblem
from vspair.runs.files import read_groups, write_groups
from vspair.studies.gaussian.theorem import theorem1
from vspair.studies.results import Row, markdown, write_summary

__all__ = ["Scale", "measure", "redraw", "reproduce", "train"]

PRESETS = ("paper", "calibrated")
DEFAULT = "default"
LEARNED = {
    "paper": ("paper", ""),
    "calibrated": ("calibrated", ""),
    DEFAULT: ("calibrated", "defaults of vspair.fit"),
}
"""What is trained on every seed, with the preset and condition of its rows."""

CONVENTIONS: dict[str, dict[str, Any]] = {
    "without 1/2": {"half": False},
    "mean instead of sum": {"reduction": "mean"},
    "sigma instead of log variance": {"sigma": "sigma"},
    "variance instead of log variance": {"sigma": "variance"},
    "targets detached": {"target": "detached"},
}
"""Readings of the paper's objective where the text leaves a choice."""

METRICS = {
    "mean_error": "error of the mean (exact deviations)",
    "kl_exact": "KL to the exact posterior (nats)",
    "w2_exact": "2-Wasserstein distance",
    "energy_exact": "energy distance of samples",
    "trace_ratio": "trace of covariance / exact",
    "active": "active dimensions",
    "alignment": "alignment with eigenvectors",
}


@dataclass(frozen=True)
class Scale:
    """How much is drawn and trained.

    Arguments:
        observations: Training observations (the paper's 1,024).
        each: Posterior unknowns for each of them (10).
        test: Test observations (200).
        samples: Posterior samples a test observation is judged by.
        epochs: Passes over the pairs; 0 takes the configuration's.
    """

    observations: int = 1024
    each: int = 10
    test: int = 200
    samples: int = 4000
    epochs: int = 0


SMOKE = Scale(observations=64, each=4, test=20, samples=400, epochs=2)


def draw(seed: int) -> GaussianProblem:
    """Return the problem of a seed; seeds below 100 were used to choose settings."""
    return GaussianProblem.random(100 + seed)


def train(
    seed: int, preset: str, scale: Scale, changes: dict[str, Any] | None = None
) -> tuple[GaussianProblem, InverseModel]:
    """Draw a problem and its pairs, and train vsPAIR on them."""
    problem = draw(seed)
    x, y = problem.pairs(scale.observations, scale.each, seed=1000 + seed)
    more: dict[str, Any] = {"epochs": scale.epochs} if scale.epochs else {}
    if preset == DEFAULT:
        return problem, fit(x, y, active=2, seed=seed, progress=False, **more)
    config = configs.shipped(f"gaussian-{preset}")
    config = configs.override(config, {"objective": changes or {}})
    return problem, fit(x, y, config=config, seed=seed, progress=False, **more)


def observations(problem: GaussianProblem, seed: int, scale: Scale) -> Tensor:
    """Return the test observations of a seed, with shape (test, 4)."""
    return problem.observe(scale.test, Generator().manual_seed(2000 + seed))


def moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (B, n) and covariance (B, n, n) of samples (N, B, n)."""
    mean = samples.mean(0)
    centred = samples - mean
    return mean, torch.einsum("nbi,nbj->bij", centred, centred) / (len(samples) - 1)


def measure(
    problem: GaussianProblem, mean: Tensor, covariance: Tensor, y: Tensor
) -> dict[str, float]:
    """Return how far Gaussian answers are from the exact posterior: medians over y."""
    exact_mean = problem.posterior_mean(y)
    exact = problem.covariance.expand_as(covariance)
    trace = exact.diagonal(dim1=-2, dim2=-1).sum(-1)
    values = {
        "mean_error": (mean - exact_mean).norm(dim=-1) / trace.sqrt(),
        "kl_exact": gaussian_kl(mean, covariance, exact_mean, exact),
        "w2_exact": gaussian_w2(mean, covariance, exact_mean, exact),
        "trace_ratio": covariance.diagonal(dim1=-2, dim2=-1).sum(-1) / trace,
    }
    return {k: float(v.median()) for k, v in values.items()}


def directions(post: LatentPosterior, most: int = 2) -> Tensor:
    """Return how x moves along the likeliest factors, unit vectors of shape (B, most, n).

    A factor k is moved from -sigma to +sigma about the mean code, all others fixed.
    """
    code = post.code
    assert isinstance(code, SpikeSlab)
    likely = code.omega.topk(most, dim=-1).indices
    step = torch.zeros(len(post), most, code.mu.shape[-1])
    step.scatter_(
        -1, likely.unsqueeze(-1), code.slab.variance.sqrt().gather(-1, likely)[..., None]
    )
    centre = code.mean.unsqueeze(1)
    moved = post.decode(centre + step) - post.decode(centre - step)
    return torch.nn.functional.normalize(moved.double(), dim=-1)


def alignment(problem: GaussianProblem, post: LatentPosterior) -> float:
    """Return the mean |cosine| of active directions with the nearest eigenvector.

    A random direction of the plane scores 0.900, an eigenvector 1.
    """
    vectors = torch.linalg.eigh(problem.covariance).eigenvectors
    return float((directions(post) @ vectors).abs().amax(-1).mean())


def least_squares(
    problem: GaussianProblem, seed: int, scale: Scale, y: Tensor
) -> dict[str, float]:
    """Measure the classical answer from the same pairs: linear regression and its residuals."""
    x, seen = problem.pairs(scale.observations, scale.each, seed=1000 + seed)
    x, seen = x.double(), seen.double()
    gain = torch.linalg.lstsq(seen, x).solution
    residual = x - seen @ gain
    covariance = residual.T @ residual / len(x)
    return measure(problem, y @ gain, covariance.expand(len(y), -1, -1), y)


def prior(problem: GaussianProblem, y: Tensor) -> dict[str, float]:
    """Measure the trivial answer: the prior, whatever was observed."""
    n = problem.operator.shape[1]
    eye = torch.eye(n, dtype=torch.float64).expand(len(y), -1, -1)
    return measure(problem, torch.zeros(len(y), n, dtype=torch.float64), eye, y)


def energy(problem: GaussianProblem, samples: Tensor, y: Tensor) -> float:
    """Return the median energy distance of samples (n, B, 2) to as many exact ones."""
    exact = problem.sample_posterior(y, len(samples), Generator().manual_seed(5))
    return float(energy_distance(samples, exact).median())


def _learned(
    seed: int, preset: str, scale: Scale, changes: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and measure one model; return its metrics and the numbers behind its figures."""
    problem, model = train(seed, preset, scale, changes)
    y = observations(problem, seed, scale)
    post = model.posterior(y.float())
    samples = post.sample(scale.samples, Generator().manual_seed(3000 + seed)).double()
    counts = post.active().sum(-1)
    values: dict[str, Any] = measure(problem, *moments(samples), y)
    values["energy_exact"] = energy(problem, samples[:500], y)
    values |= {"active": float(counts.double().mean()), "alignment": alignment(problem, post)}
    values |= {"active_least": int(counts.min()), "active_most": int(counts.max())}
    drawn = seed == 0 and preset in PRESETS and not changes
    return values, _figure_numbers(problem, post, samples, y) if drawn else {}


def _figure_numbers(
    problem: GaussianProblem, post: LatentPosterior, samples: Tensor, y: Tensor
) -> dict[str, Any]:
    """Return what both figures show for the first three test observations."""
    code = post.code
    assert isinstance(code, SpikeSlab)
    truth = problem.sample_posterior(y[:3], 500, Generator().manual_seed(0))
    likely = code.omega[:3].topk(4, dim=-1).indices
    steps = torch.linspace(-3, 3, 31)
    walks = []
    for b in range(3):
        sigma = code.slab.variance[b].sqrt()
        z = code.mean[b].repeat(4, len(steps), 1)
        for row, k in enumerate(likely[b]):
            z[row, :, k] += steps * sigma[k]
        walks.append(post.decode(z))
    numbers = {
        "truth": truth,
        "learned": samples[:500, :3],
        "mean": problem.posterior_mean(y[:3]),
        "covariance": problem.covariance,
        "approximate_mean": post.approximate_mean()[:3],
        "omega": code.omega[:3],
        "likely": likely,
        "walks": torch.stack(walks),
        "steps": steps,
    }
    return {
        k: v.float().numpy() if v.is_floating_point() else v.numpy() for k, v in numbers.items()
    }


def _seed(job: tuple[int, Scale]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Run everything for one seed, in a process of its own."""
    seed, scale = job
    torch.set_num_threads(1)
    problem = draw(seed)
    y = observations(problem, seed, scale)
    exact = problem.sample_posterior(y, scale.samples, Generator().manual_seed(6))
    values = {
        "trivial-prior": prior(problem, y),
        "least squares": least_squares(problem, seed, scale, y),
        "exact samples": measure(problem, *moments(exact), y),
    }
    values["exact samples"]["energy_exact"] = energy(problem, exact[:500], y)
    numbers = {}
    for preset in LEARNED:
        values[preset], numbers[preset] = _learned(seed, preset, scale)
    return values, {preset: numbers[preset] for preset in PRESETS}


def _reading(job: tuple[str, int, Scale]) -> dict[str, Any]:
    """Measure one reading of the paper's objective on one seed, in a process of its own."""
    torch.set_num_threads(1)
    name, seed, scale = job
    return {"reading": name, "seed": seed} | _learned(seed, "paper", scale, CONVENTIONS[name])[0]


def _theorem(epochs: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return theorem1(epochs=epochs)


def _rows(results: list[dict[str, dict[str, Any]]]) -> list[Row]:
    """Return medians over seeds, with half the distance of the quartiles as spread."""
    rows = []
    for name in results[0]:
        learned = name in LEARNED
        preset, condition = LEARNED.get(name, ("", ""))
        for metric in METRICS:
            values = [r[name][metric] for r in results if metric in r[name]]
            if not values:
                continue
            spread = float(np.subtract(*np.percentile(values, [75, 25]))) / 2
            rows.append(
                Row(
                    model="vsPAIR" if learned else name,
                    preset=preset,
                    condition=condition,
                    metric=metric,
                    value=statistics.median(values),
                    spread=spread,
                    seeds=len(values),
                )
            )
    return rows


def _verdict(results: list[dict[str, dict[str, Any]]]) -> str:
    lines = []
    for preset in LEARNED:
        exact = sum(r[preset]["active_least"] == r[preset]["active_most"] == 2 for r in results)
        below = sum(r[preset]["kl_exact"] <= 0.01 for r in results)
        worst = max(r[preset]["kl_exact"] for r in results)
        lines.append(
            f"- {_name(preset)}: exactly 2 active dimensions for every test observation in "
            f"{exact} of {len(results)} seeds; median KL at most 0.01 nats in {below}; worst "
            f"{worst:.4f}."
        )
    return "\n".join(lines)


def _name(preset: str) -> str:
    return ", ".join(filter(None, LEARNED[preset]))


def _readings_table(readings: list[dict[str, Any]]) -> str:
    """Return the readings of the paper's objective as a table of medians."""
    lines = [
        "| reading | error of the mean | KL | trace ratio | active |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(r["reading"] for r in readings):
        rows = [r for r in readings if r["reading"] == name]
        keys = ("mean_error", "kl_exact", "trace_ratio", "active")
        cells = [f"{statistics.median(r[k] for r in rows):.3g}" for k in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def reproduce(
    out: Path, *, seeds: int = 10, jobs: int = 2, smoke: bool = False, scale: Scale | None = None
) -> str:
    """Train both presets on every seed and write tables, figures and ``summary.json``.

    Arguments:
        out: The folder; files of an earlier study in it are replaced.
        seeds: How many problems.
        jobs: How many processes.
        smoke: A few seconds' worth, to see that everything runs.
        scale: Something between the two.

    Returns:
        The table, as Markdown.
    """
    scale = scale or (SMOKE if smoke else Scale())
    runs.make_folder(out)
    work = [(seed, scale) for seed in range(seeds)]
    tries = [(name, seed, scale) for name in CONVENTIONS for seed in range(min(seeds, 2))]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        theorem = pool.submit(_theorem, scale.epochs or 60)
        done = list(pool.map(_seed, work))
        readings = list(pool.map(_reading, tries))
        check = theorem.result()
    printed = [{"reading": "as printed", "seed": s} | done[s][0]["paper"] for _, s, _ in tries]
    readings = printed[: min(seeds, 2)] + readings
    results, numbers = [values for values, _ in done], done[0][1]
    rows = _rows(results)
    command = f"vspair reproduce gaussian --seeds {seeds}" + (" --smoke" if smoke else "")
    config = {p: configs.shipped(f"gaussian-{p}").training.epochs for p in PRESETS}
    about = {
        "epochs": scale.epochs or config,
        "train": scale.observations * scale.each,
        "test": scale.test,
        "samples": scale.samples,
        "paper_scale": scale == Scale(),
    }
    write_summary(out / "summary.json", "gaussian", command, about, rows)
    runs.write_text(out / "seeds.json", json.dumps(results, indent=1) + "\n")
    runs.write_text(out / "readings.json", json.dumps(readings, indent=1) + "\n")
    runs.write_text(out / "theorem1.json", json.dumps(check, indent=1) + "\n")
    text = _text(rows, results, readings, check, command)
    runs.write_text(out / "README.md", text)
    _draw(out, numbers)
    return text


def _text(
    rows: list[Row],
    results: list[dict[str, dict[str, Any]]],
    readings: list[dict[str, Any]],
    check: dict[str, Any],
    command: str,
) -> str:
    n = len(results)
    return (
        "# Gaussian linear model (section 4.1)\n\n"
        f"Made by `{command}` at commit {runs.commit()} on {runs.machine()}. Medians over {n} "
        "seeds (each its own operator, pairs and weights), plus or minus half the distance of the "
        "quartiles. The paper prints no table for this problem; it reports, from one run, nearly "
        "identical means and two consistently active dimensions.\n\n"
        f"{markdown(rows, METRICS)}\n\n"
        "`trivial-prior` answers with the prior whatever was observed; `least squares` is linear "
        "regression on the same pairs with the covariance of its residuals, which on this "
        "problem is the right model class; `exact samples` shows what the finite number of "
        "samples adds to each measure. KL and 2-Wasserstein distance compare means and "
        "covariances of 4,000 samples, as if the learned posterior were Gaussian; the energy "
        "distance compares 500 samples with 500 exact ones and assumes nothing. A random "
        "direction has alignment 0.900. The settings of the calibrated preset were chosen on "
        "other operators than these.\n\n"
        f"{_verdict(results)}\n\n"
        "![Samples](samples.png)\n\n![Traversal](traversal.png)\n\n"
        "## The paper's objective, read in other ways\n\n"
        "The paper shows one run in which samples and exact posterior nearly coincide. Ours of "
        "the objective as printed do not, so the choices that the text leaves open were tried on "
        f"{len({r['seed'] for r in readings})} seeds (medians):\n\n"
        f"{_readings_table(readings)}\n\n"
        "## Theorem 1\n\n"
        "An affine encoder of constant covariance. How far the mean and the covariance of Z_x "
        "given y (root mean square, relative) and its variances (mean relative error of a "
        "dimension) are from the theorem's formula, over 200 test observations. A map's "
        "covariance is diagonal by construction.\n\n"
        "| | mean | variances | covariance |\n|---|---|---|---|\n"
        + "".join(
            f"| {name} | {v['mean']:.4f} | {v['variance']:.4f} | {v['covariance']:.4f} |\n"
            for name, v in check["distances"].items()
        )
        + "\nThe map that is fitted by the KL learns the theorem's variance. The map that is "
        "fitted to the encoder's parameters (eq. 16) learns the encoder's own variance and misses "
        "the part that comes from Cov(X | Y): the reason why the paper's objective is not "
        "calibrated.\n"
    )


def _draw(out: Path, numbers: dict[str, dict[str, Any]]) -> None:
    write_groups(out / "figures.npz", numbers)
    redraw(out)


def redraw(out: Path) -> list[Path]:
    """Draw both figures again from the saved numbers of a results folder; return their paths."""
    from vspair.studies.gaussian.drawing import draw_samples, draw_traversal

    numbers = read_groups(out / "figures.npz", "Run the study first, without --draw.")
    paths = [out / "samples.png", out / "traversal.png"]
    draw_samples(numbers, paths[0])
    draw_traversal(numbers, paths[1])
    return paths
