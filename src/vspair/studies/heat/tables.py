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
from vspair.studies.words import read_words

__all__ = [
    "ANCHORED",
    "PRESETS",
    "figure_numbers",
    "noise_numbers",
    "noise_table",
    "rows_of",
    "text_of",
]

PRESETS = ("paper", "calibrated")
"""The paired models."""

ANCHORED = "anchored"
"""The preset that a stage of its own trains and asks, by the defaults of ``fit``."""

WORDS = read_words("heat")
PAPER, TABLES = WORDS.paper["vsPAIR"], WORDS.tables
"""What the paper prints, and the rows of each table of its setting, without noise."""

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
        found, learned = [metrics_of(answer) for answer in each], name in (*PRESETS, ANCHORED)
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
        for name, words in WORDS.names.items()
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


def text_of(problem: Mapping[str, Any], rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Return tables and words as Markdown.

    Arguments:
        problem: The settings of the equation and of its fields.
        rows: Every number.
        about: How much was computed, as ``summary.json`` has it.
    """
    clean = [row for row in rows if row.condition == _condition(0)]
    plain = [replace(row, condition="") for row in clean if row.preset]
    field = next(row.value for row in clean if row.metric == "field_variance")
    law = ", ".join(
        f"{k} {v}" for k, v in problem.items() if k not in ("noise", "step", "nyquist")
    )
    tables = [
        f"## {title}\n\n{table_of(plain, each).markdown()}" for title, each in TABLES.items()
    ]
    named = {**about, "epochs": epochs_in_words(about["epochs"]), "field": field, "law": law}
    ours = any(row.preset == ANCHORED for row in rows)
    named["anchored"] = WORDS.text["anchored"].format(**about) if ours else ""
    return WORDS.text["report"].format(
        **named, tables="\n\n".join(tables), noise=noise_table(rows).markdown()
    )
