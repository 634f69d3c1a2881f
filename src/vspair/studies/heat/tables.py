"""Rows, tables and words of the heat study, from what methods answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.results import Row, epochs_in_words, metrics_of, over_seeds, table_of

__all__ = ["PRESETS", "figure_numbers", "noise_numbers", "noise_table", "rows_of", "text_of"]

PRESETS = ("paper", "calibrated")

FLOORS = {
    "exact": "exact inversion",
    "tikhonov": "Tikhonov",
    "wiener": "Wiener",
    "ridge": "ridge",
    "ridge-shifts": "ridge with shifts",
    "trivial-y": "y itself",
    "trivial-mean": "mean field",
}
LEARNED = {preset: f"vsPAIR ({preset})" for preset in PRESETS}
"""What the table over noise calls the methods without and with a network."""

PAPER = {
    "mse_sample": 0.071, "nnz": 120.6, "nnz_std": 3.7, "active_share": 0.237,
    "uncertainty_error_r_sample": 0.721, "std_omega_over_y": 0.0014, "std_sigma_over_y": 0.0078,
    "std_mu_over_y": 0.1310,
}  # fmt: skip
"""What section 4.4 prints, for the preset ``paper`` without noise."""

TABLES = {
    "Reconstruction and sparsity": {
        "mse_sample": "MSE of a sample",
        "relative_mse_sample": "the same over the field's variance",
        "mse_mean": "MSE of the mean of samples",
        "relative_mse_mean": "the same over the field's variance",
        "mse_code": "MSE of the decoded mean code",
        "nnz": "average nnz",
        "nnz_std": "its deviation over observations",
        "active_share": "share of all indices",
        "ever_active": "indices with omega above 0.5 for some observation",
        "parameters": "trainable parameters",
    },
    "Uncertainty": {
        "variance_50": "mean pixelwise variance of 50 samples",
        "uncertainty_error_r_sample": "Pearson r of variance and mean MSE of samples",
        "uncertainty_error_r": "Pearson r of variance and MSE of their mean",
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

IMAGES = ("mse_mean", "variance", "variance_inside", "error_inside", "area_inside")
"""The scores of each test pair that figures show, beside ``mse_sample``."""


# -- rows -----------------------------------------------------------------------------------


def rows_of(answers: Mapping[tuple[str, float], Sequence[Groups]]) -> list[Row]:
    """Return means over seeds with their deviation, the paper's values beside them.

    The error of seed 0 alone is a row too: with noise there is no other.

    Arguments:
        answers: What each method answered, by its name and the noise, one a seed.
    """
    rows = []
    for (name, noise), each in answers.items():
        found, learned = [metrics_of(answer) for answer in each], name in PRESETS
        named: dict[str, Any] = {"model": "vsPAIR" if learned else name}
        named |= {"preset": name if learned else "", "condition": _condition(noise)}
        rows += over_seeds(found, PAPER if (name, noise) == ("paper", 0) else {}, **named)
        rows.append(Row(metric="mse_mean_first", value=found[0]["mse_mean"], **named))
    return [row for row in rows if math.isfinite(row.value)]


def _condition(noise: float) -> str:
    return f"noise={noise:g}"


def _by_noise(rows: Sequence[Row]) -> tuple[list[float], dict[str, list[float]]]:
    """Return the levels of noise, and each method's MSE of its best estimate for each of them.

    All are of the first seed, so that noise is all that differs.
    """
    first = [row for row in rows if row.metric == "mse_mean_first"]
    found = {(row.preset or row.model, row.condition): row.value for row in first}
    levels = sorted({float(row.condition.removeprefix("noise=")) for row in first})
    errors = {
        words: [found[name, _condition(noise)] for noise in levels]
        for name, words in (FLOORS | LEARNED).items()
        if (name, _condition(0.0)) in found
    }
    return levels, errors


def figure_numbers(answer: Groups) -> dict[str, Any]:
    """Return what the figures show of one trained model, as arrays by name."""
    scores = answer["scores"]
    images = {"image_mse": scores["mse_sample"]} | {f"image_{k}": scores[k] for k in IMAGES}
    return answer["figure"] | images


def noise_numbers(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what the figure of errors over noise shows, as arrays by name."""
    levels, errors = _by_noise(rows)
    return {name: np.array(values) for name, values in ({"levels": levels} | errors).items()}


# -- words ----------------------------------------------------------------------------------


def noise_table(rows: Sequence[Row]) -> Table:
    """Return the MSE of every method for each noise, the least in bold."""
    levels, errors = _by_noise(rows)
    lines = []
    for noise, *values in zip(levels, *errors.values(), strict=True):
        words = [f"**{v:.3g}**" if v == min(values) else f"{v:.3g}" for v in values]
        lines.append([f"{100 * noise:g} %", *words])
    return Table(["noise", *errors], lines)


def text_of(rows: Sequence[Row], about: Mapping[str, Any], problem: Mapping[str, Any]) -> str:
    """Return tables and words as Markdown.

    Arguments:
        rows: Every number.
        about: How much was computed, as ``summary.json`` has it.
        problem: The settings of the equation and of its fields.
    """
    clean = [row for row in rows if row.condition == _condition(0)]
    plain = [replace(row, condition="") for row in clean if row.preset]
    field = next(row.value for row in clean if row.metric == "field_variance")
    law = ", ".join(
        f"{k} {v}" for k, v in problem.items() if k not in ("noise", "step", "nyquist")
    )
    parts = [
        f"{about['train']:,} training and {about['test']:,} test pairs, "
        f"{epochs_in_words(about['epochs'])} epochs in {about['precision']}, "
        f"{about['samples']:,} samples. Seeds without noise: {about['seeds']}, each with its own "
        "pairs and weights; means plus or minus the deviation over them. With noise there is one "
        "seed. The paper's value stands behind ours. Our test fields have variance "
        f"{field:.3g}; the paper does not say its own, so that only shares of the variance can be "
        "compared between the two.",
        f"The fields' law, which the paper does not print either: {law} (see "
        "`vspair.problems.heat`); solved exactly, Nyquist modes kept.",
    ]
    for title, metrics in TABLES.items():
        parts += [f"## {title}", table_of(plain, metrics).markdown()]
    parts += [_REMARKS, "## Beside methods that are given the equation"]
    return "\n\n".join([*parts, noise_table(rows).markdown(), _METHODS])


_LAW = ("modes", "decay", "series", "source_amplitude", "source_width")
_REMARKS = (
    "The presets differ in more than the objective: `calibrated` has a map without hidden layers, "
    "larger steps that fall along a cosine, shifts of its pairs, and the best epoch by held-out "
    "pairs. The paper does not say whether its MSE is of samples, of their mean or of the decoded "
    "mean code; it stands beside that of samples, as in its MNIST table. The mean MSE of samples "
    "is the MSE of their mean plus their variance, so that it correlates with the variance by "
    "construction; the second r is free of that. The decoder's noise of the preset `paper` is the "
    "unit deviation of its likelihood, which it never samples. The share of the error says where "
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
