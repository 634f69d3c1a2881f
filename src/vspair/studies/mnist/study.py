"""Blind inpainting on MNIST, section 4.2 and appendix D.2: four models, and the calibrated one.

Every table and figure comes from numbers that are measured here for any trained model; see
``report.mnist`` for the pictures. Errors are in the units of the data, [-1, 1] by default.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair import runs
from vspair.codes import SpikeSlab
from vspair.config import Config
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.fitting import split_pairs, start_or_resume_training
from vspair.metrics import central_interval, coverage, crps
from vspair.model import InverseModel, PairedAutoencoder
from vspair.posterior import LatentPosterior
from vspair.problems.inpainting import InpaintingData, InpaintingProblem, floors
from vspair.studies.mnist.figures import illustrate, scattered
from vspair.studies.results import Row, epochs_in_words, markdown, write_summary
from vspair.training.side_by_side import deadline_in, train_side_by_side
from vspair.training.trainer import Trainer
from vspair.uncertainty import (
    always_active,
    best_localised,
    draw_active,
    localisation,
    spread_over_y,
    uncertainty_error,
    variance_ratio,
)

__all__ = ["NAMES", "Job", "measure", "reproduce", "train"]

NAMES = {
    "PAIR": ("PAIR", ""),
    "vPAIR": ("vPAIR", ""),
    "sVAE": ("sVAE", ""),
    "vsPAIR": ("vsPAIR", "paper"),
    "calibrated": ("vsPAIR", "calibrated"),
}
"""The models of the study, with the model and preset of their rows."""

_MEANS = (
    "mse", "mse30", "mse_approximate_mean", "crps", "coverage_90", "coverage_90_with_noise",
    "variance", "nnz", "active",
)  # fmt: skip

PAPER: dict[str, dict[str, float]] = {
    "PAIR": {"mse": 0.0576},
    "vPAIR": {
        "mse": 0.0661, "mse30": 0.0539, "always_active": 32.0, "always_active_min": 32.0,
        "always_active_max": 32.0, "localization_median_stable": 14.9,
        "localization_corrupted_mse_stable": 0.044, "localization_median_any": 14.9,
        "localization_mean_any": 17.1,
    },
    "sVAE": {
        "nnz": 24.0, "sparsity": 0.969, "mse": 0.0841, "mse30": 0.0685, "always_active": 2.6,
        "always_active_min": 0.0, "always_active_max": 9.0, "localization_median_stable": 6.5,
        "localization_corrupted_mse_stable": 0.121, "localization_median_any": 8.7,
        "localization_mean_any": 9.7, "uncertainty_error_r": 0.67,
    },
    "vsPAIR": {
        "nnz": 39.0, "sparsity": 0.95, "mse": 0.0762, "mse30": 0.0643, "always_active": 11.5,
        "always_active_min": 0.0, "always_active_max": 18.0, "localization_median_stable": 14.0,
        "localization_corrupted_mse_stable": 0.057, "localization_median_any": 15.1,
        "localization_mean_any": 17.7,
    },
}  # fmt: skip
"""What the paper prints (tables rec_summary, consistency and localization_stats)."""

TABLES = {
    "Reconstruction and sparsity": {
        "nnz": "average nnz",
        "sparsity": "sparsity",
        "mse": "MSE of one sample",
        "mse30": "MSE of the mean of 30",
        "crps": "CRPS",
    },
    "Consistency of active dimensions over 30 samples": {
        "always_active": "always active, mean",
        "always_active_min": "always active, least",
        "always_active_max": "always active, most",
    },
    "Localisation ratio": {
        "localization_median_stable": "consistently active: median ratio",
        "localization_corrupted_mse_stable": "consistently active: mean corrupted MSE",
        "localization_median_any": "all dimensions: median ratio",
        "localization_mean_any": "all dimensions: mean ratio",
        "localization_without": "images without a consistently active dimension",
    },
    "Uncertainty": {
        "uncertainty_error_r": "Pearson r of variance and error",
        "variance_ratio": "median variance ratio, corrupted / uncorrupted",
        "coverage_90": "share inside the 90 % interval",
        "coverage_90_with_noise": "the same with the decoder's noise",
    },
}
"""The rows of each table."""

SQUARED = {
    "mse": "MSE of one sample",
    "mse30": "MSE of the mean of 30",
    "localization_corrupted_mse_stable": "mean corrupted MSE of the best localised",
}
"""Squared errors, which are shown in both units."""

SAMPLES = 30
FACTOR = 0.5
"""How far a factor of a sample is perturbed for the localisation ratio: by half of its value.

The paper does not say; this comes nearest to its table (see `mnist_perturbations`)."""
FURTHEST = 4.0
"""How far factors are perturbed in figures: by 400 % of their value."""


@dataclass(frozen=True)
class Job:
    """One training: a configuration under a name, and its seed."""

    name: str
    config: Config
    seed: int = 0

    @property
    def label(self) -> str:
        """The name of its run folder."""
        return f"{self.name}-{self.seed}"


def shipped(name: str) -> Config:
    """Return the configuration of one of the study's models."""
    return configs.shipped(f"mnist-{name.lower()}")


def train(
    jobs: list[Job],
    data: InpaintingData,
    folder: Path,
    *,
    device: str = "auto",
    fast: bool = False,
    epochs: int = 0,
    deadline: float | None = None,
) -> bool:
    """Train what is not trained yet, all side by side, each in its run folder.

    Arguments:
        jobs: What to train.
        data: The pairs.
        folder: Where the run folders are; a stopped training continues.
        device: Where to train.
        fast: Whether to use CUDA graphs and bfloat16, on a GPU.
        epochs: Another number of epochs than configured.
        deadline: Save and stop at this time of ``time.monotonic``.

    Returns:
        Whether everything is trained.
    """
    where = runs.pick_device(device)
    trainers = [_trainer(job, data, folder / job.label, where, fast, epochs) for job in jobs]
    return train_side_by_side([t for t in trainers if t is not None], deadline)


def _trainer(
    job: Job, data: InpaintingData, out: Path, device: torch.device, fast: bool, epochs: int
) -> Trainer | None:
    """Return a training that is new or was stopped, or nothing where it is done."""
    changes: dict[str, Any] = {"seed": job.seed}
    changes |= {"epochs": epochs} if epochs else {}
    if fast and device.type == "cuda":
        changes |= {"capture": True, "precision": "bfloat16"}
    config = configs.override(job.config, {"training": changes})
    parts = split_pairs(Pairs(data.x_train, data.y_train), config)
    trainer = start_or_resume_training(*parts, config, out, device)
    return None if trainer.finished else trainer


@torch.no_grad()
def _per_image(
    post: LatentPosterior, noisy: LatentPosterior, x: Tensor, region: Tensor, generator: Generator
) -> dict[str, Tensor]:
    """Return one value an image for each metric, and the variance map."""
    samples = post.sample(SAMPLES, generator)
    mean, variance = samples.mean(0), samples.var(0)
    values = {
        "mse": (samples[0] - x).square().flatten(1).mean(1),
        "mse30": (mean - x).square().flatten(1).mean(1),
        "mse_approximate_mean": (post.approximate_mean() - x).square().flatten(1).mean(1),
        "crps": crps(samples, x).flatten(1).mean(1),
        "coverage_90": coverage(*central_interval(samples, 0.9), x),
        "coverage_90_with_noise": coverage(*noisy.interval(0.9, 100, generator), x),
        "variance": variance.flatten(1).mean(1),
        "variance_ratio": variance_ratio(variance, region),
    }
    if isinstance(post.code, SpikeSlab):
        values["nnz"] = (post.code.rsample(generator) != 0).sum(-1)
        values["active"] = post.active().sum(-1)
    return values


@torch.no_grad()
def _localised(
    post: LatentPosterior, region: Tensor, generator: Generator, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """Return the best localisation ratio of each image, among stable factors and among all."""
    counts = draw_active(post, SAMPLES, generator)
    stable = always_active(counts, SAMPLES)
    found = localisation(
        post, region, FACTOR, base="sample", dims=counts > 0, generator=generator, dtype=dtype
    )
    values = {"always_active": stable.sum(-1)}
    for name, allowed in (("stable", stable), ("any", counts > 0)):
        best = best_localised(found, allowed)
        values |= {f"ratio_{name}": best.ratio, f"inside_{name}": best.inside}
        values[f"dim_{name}"] = best.dim
    return values


def measure(
    model: InverseModel, data: InpaintingData, *, seed: int = 0, chunk: int = 500
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return a model's row of every table, and the values per test image behind it.

    Arguments:
        model: A trained model.
        data: The pairs; only the test pairs are used.
        seed: Fixes samples.
        chunk: Images that are treated at once.
    """
    device = model.device
    generator = Generator(device).manual_seed(seed)
    parts = []
    for x, y in zip(data.x_test.split(chunk), data.y_test.split(chunk), strict=True):
        x, y = x.to(device), y.to(device)
        post, region = model.posterior(y), InpaintingProblem.changed(x, y)
        values = _per_image(post, model.posterior(y, noise=True), x, region, generator)
        if model.config.kind != "PAIR":
            dtype = torch.bfloat16 if device.type == "cuda" else None
            values |= _localised(post, region, generator, dtype)
        parts.append({k: v.cpu() for k, v in values.items()})
    images = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
    return _row(model, data, images) | _checks(model, data), images


def _row(model: InverseModel, data: InpaintingData, images: dict[str, Tensor]) -> dict[str, float]:
    """Return the means over images that the tables show."""
    row = {k: float(images[k].double().mean()) for k in _MEANS if k in images}
    if model.config.kind == "PAIR":
        return {k: row[k] for k in ("mse",)}
    if "nnz" in row:
        row["sparsity"] = 1 - row["nnz"] / model.config.x_size
    counts = images["always_active"].double()
    row |= {"always_active": float(counts.mean())}
    row |= {"always_active_min": float(counts.min()), "always_active_max": float(counts.max())}
    for name in ("stable", "any"):
        ratio, inside = images[f"ratio_{name}"], images[f"inside_{name}"]
        kept = ratio.isfinite()
        row[f"localization_median_{name}"] = float(ratio[kept].double().median())
        row[f"localization_mean_{name}"] = float(ratio[kept].double().mean())
        row[f"localization_corrupted_mse_{name}"] = float(inside[kept].double().mean())
    row["localization_without"] = float((counts == 0).sum())
    ratio = images["variance_ratio"]
    row["variance_ratio"] = float(ratio[ratio.isfinite()].median())
    chosen = scattered(len(ratio))
    fit = uncertainty_error(images["variance"][chosen], images["mse30"][chosen])
    return row | {"uncertainty_error_r": float(fit.r)}


@torch.no_grad()
def _checks(model: InverseModel, data: InpaintingData) -> dict[str, float]:
    """Return what explains a row: batch norm's train/eval gap, and the autoencoder alone."""
    device = model.device
    x, y = data.x_test[:2048].to(device), data.y_test[:2048].to(device)
    seen = {"parameters": float(model.n_parameters)}
    if isinstance(model, PairedAutoencoder):
        code = model.x_encoder(model.x_normaliser(x))
        again = model.x_normaliser.inverse(model.x_decoder(code.mean))
        seen["mse_autoencoder"] = float((again - x).square().mean())
        if isinstance(code, SpikeSlab):
            seen["nnz_encoder"] = float(code.omega.sum(-1).mean())
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    codes = [model.latent(model.y_normaliser(part)) for part in y.split(64)]
    parts = [model.x_decoder(code.rsample()) for code in codes]
    model.load_state_dict(kept)
    model.eval()
    answer = model.x_normaliser.inverse(torch.cat(parts))
    seen["mse_training_mode"] = float((answer - x).square().mean())
    post = model.posterior(y)
    return seen | (spread_over_y(post) if isinstance(post.code, SpikeSlab) else {})


def load(job: Job, folder: Path, device: str) -> InverseModel:
    """Return a trained model of the study."""
    path = folder / job.label
    if not path.exists():
        raise VspairError(f"There is no run {path}: train it first.")
    return runs.load(path, device)


def reproduce(
    data: InpaintingData,
    out: Path,
    *,
    folder: Path,
    seeds: dict[str, int] | None = None,
    device: str = "auto",
    fast: bool = True,
    epochs: int = 0,
    minutes: float = 0.0,
    command: str = "",
) -> str | None:
    """Train every model side by side, measure it, and write tables, figures and ``summary.json``.

    Arguments:
        data: The pairs.
        out: The folder of the results.
        folder: The folder of the runs; what is trained there is not trained again.
        seeds: How many seeds of each model; one of each where not given.
        device: Where to train.
        fast: Whether to use CUDA graphs and bfloat16, on a GPU.
        epochs: Another number of epochs than configured.
        minutes: Save and stop after so many minutes; 0 trains to the end.
        command: What made the results.

    Returns:
        The tables as Markdown, or nothing where time ran out: call again to continue.
    """
    runs.make_folder(out)
    counts = seeds or dict.fromkeys(NAMES, 1)
    jobs = [Job(name, shipped(name), seed) for name, n in counts.items() for seed in range(n)]
    more: dict[str, Any] = {"device": device, "fast": fast, "epochs": epochs}
    if not train(jobs, data, folder, deadline=deadline_in(minutes), **more):
        return None
    measured, shown = [], {}
    for job in jobs:
        row, images = measure(model := load(job, folder, device), data)
        measured.append((job, row))
        if job.seed == 0:
            shown[_display(job.name)] = (model, images)
    rows = _floors(data) + _rows(measured)
    scale = {
        "epochs": epochs or {job.name: job.config.training.epochs for job in jobs},
        "train": len(data.x_train),
        "test": len(data.x_test),
        "paper_scale": not epochs and (len(data.x_train), len(data.x_test)) == (54000, 6000),
    }
    write_summary(out / "summary.json", "mnist", command, scale, rows, device)
    each = {job.label: row for job, row in measured}
    runs.write_text(out / "seeds.json", json.dumps(each, indent=1) + "\n")
    figures = illustrate(shown, data, out, samples=SAMPLES, factor=FURTHEST)
    text = _text(rows, data, scale, command, device) + f"\n## Figures\n\n{figures}\n"
    runs.write_text(out / "README.md", text)
    return text


def _display(name: str) -> str:
    """Return a model's name in figures, such as ``vsPAIR (paper)``."""
    model, preset = NAMES[name]
    return f"{model} ({preset})" if preset else model


def _floors(data: InpaintingData) -> list[Row]:
    """Return the MSE of predictors that need no network."""
    unit = f"[{data.low:g},{data.high:g}]"
    names = {"y": "trivial-y", "mean": "trivial-mean", "ridge": "ridge"}
    return [Row(names[k], "", "mse", v, unit=unit) for k, v in floors(data).items()]


def _rows(measured: list[tuple[Job, dict[str, float]]]) -> list[Row]:
    """Return means over seeds with their standard deviation, the paper's values beside them."""
    rows = []
    for name in dict.fromkeys(job.name for job, _ in measured):
        found = [values for job, values in measured if job.name == name]
        model, preset = NAMES[name]
        for metric in found[0]:
            values = [f[metric] for f in found]
            spread = statistics.stdev(values) if len(values) > 1 else None
            paper = PAPER.get(name, {}).get(metric)
            value = statistics.fmean(values)
            rows.append(Row(model, preset, metric, value, spread, len(values), paper=paper))
    return [row for row in rows if math.isfinite(row.value)]


def _text(
    rows: list[Row], data: InpaintingData, scale: dict[str, Any], command: str, device: str
) -> str:
    where, (here, unit, factor) = runs.machine(device), units(data)
    parts = [
        "# Blind inpainting on MNIST (section 4.2)",
        f"Made by `{command}` at commit {runs.commit()} on {where}: {scale['train']:,} training "
        f"and {scale['test']:,} test pairs, {epochs_in_words(scale['epochs'])} epochs. Errors on "
        f"{here}; times {factor:g} on {unit}. "
        "The paper's value stands behind ours; where its text leaves a choice, `--readings` says "
        "what was tried. vsPAIR (paper) is trained without the penalty on undecided gates that "
        "the paper prints, lambda_b = 0.05.",
    ]
    for title, metrics in TABLES.items():
        shown = [row for row in rows if row.metric in metrics]
        parts += [f"## {title}", markdown(shown, metrics)]
    untouched = int((data.x_test == data.y_test).flatten(1).all(1).sum())
    parts += [_REMARKS.format(untouched=untouched)]
    parts += [f"## Squared errors in units of {unit}: ours times {factor:g}"]
    parts += [markdown(_scaled(rows, factor), SQUARED), "The paper's values are as printed."]
    return "\n\n".join(parts) + "\n"


_REMARKS = (
    f"For the localisation ratio a dimension is perturbed by {100 * FACTOR:g} % of its value in "
    "one sample; all dimensions are those that are not zero in it. Images without a dimension to "
    "perturb have no ratio, nor have the {untouched} test images that lost nothing, where x = y. "
    "Coverage is of single pixels."
)


def units(data: InpaintingData) -> tuple[str, str, float]:
    """Return the unit of pixels, the one they do not have, and the factor of squared errors."""
    other = ("[-1, 1]", 4 * data.scale) if data.low == 0 else ("[0, 1]", data.scale)
    return f"[{data.low:g}, {data.high:g}]", *other


def in_both_units(data: InpaintingData) -> str:
    """Say in which unit errors are, what they are in the other, and what needs no network."""
    here, other, factor = units(data)
    names = {"y": "y itself", "mean": "the mean digit", "ridge": "linear regression"}
    known = [f"{names[k]} has {v:.3g} ({factor * v:.3g})" for k, v in floors(data).items()]
    return (
        f"Squared errors are on {here}; times {factor:g} on {other}. On {len(data.x_test):,} test "
        f"pairs {', '.join(known)}."
    )


def _scaled(rows: list[Row], scale: float) -> list[Row]:
    """Return squared errors times a factor; the paper's values, as printed, stay as they are."""
    return [
        replace(row, value=row.value * scale, spread=row.spread and row.spread * scale)
        for row in rows
        if row.metric in SQUARED
    ]
