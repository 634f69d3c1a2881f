"""Rows, tables and words of the study of own pairs, from what methods answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vspair.datasets.own import OwnSet
from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.results import Row, format_spread, metrics_of, over_seeds
from vspair.studies.words import read_words

__all__ = [
    "OURS", "RIVALS", "WORDS", "figure_numbers", "measures", "ratios", "rows_of", "text_of",
]  # fmt: skip

OURS, PRESET = "vsPAIR", "anchored"
"""What the library's default is called in rows, and its preset."""

RIVALS = ("ridge", "ridge-shifts", "network")
"""The simple methods that the best of is taken, as far as they can answer."""

RATIOS = {"mse_over_best_simple": "mse_mean", "crps_over_best_simple": "crps"}
"""Ratios to the best simple method, and the metric that each is of."""

WORDS = read_words("own")
METHODS, COMPARED, MORE = WORDS.names, WORDS.labels["compared"], WORDS.labels["more"]
KEPT = (*COMPARED, *MORE)
"""The metrics that are published."""

Found = Mapping[str, Mapping[str, float]]
"""What was measured in one case: metrics by method."""


# -- rows -----------------------------------------------------------------------------------


def ratios(found: Found) -> dict[str, float]:
    """Return vsPAIR's error and CRPS over the least of the simple methods, below 1 if better.

    Arguments:
        found: The metrics of each method on the same pairs.
    """
    return {
        name: found[OURS][metric] / min(found[rival][metric] for rival in RIVALS if rival in found)
        for name, metric in RATIOS.items()
    }


def measures(answers: Mapping[str, Groups]) -> dict[str, dict[str, float]]:
    """Return the published metrics of each method in one case, with the ratios.

    Arguments:
        answers: What each method answered.
    """
    every = {name: metrics_of(answer) for name, answer in answers.items()}
    ours = every[OURS]
    if "variance_factors" in ours:
        ours["share_in_factors"] = ours["variance_factors"] / ours["variance"]
    found = {name: {k: v for k, v in m.items() if k in KEPT} for name, m in every.items()}
    found[OURS] |= ratios(every)
    return found


def rows_of(measured: Mapping[str, Sequence[Found]]) -> list[Row]:
    """Return means over seeds with their deviation.

    Arguments:
        measured: The metrics by method of each seed, by the name of the set.
    """
    rows = []
    for condition, seeds in measured.items():
        for name in seeds[0]:
            preset, found = PRESET if name == OURS else "", [m[name] for m in seeds if name in m]
            rows += over_seeds(found, model=name, preset=preset, condition=condition)
    return rows


def figure_numbers(measured: Mapping[str, Sequence[Found]]) -> Groups:
    """Return what the figure shows: both ratios of every seed, by set and name."""
    return {
        name: {ratio: np.array([each[OURS][ratio] for each in seeds]) for ratio in RATIOS}
        for name, seeds in measured.items()
    }


# -- words ----------------------------------------------------------------------------------


def _compared(rows: Sequence[Row], metric: str, sets: Sequence[str]) -> Table:
    """Return a metric with a row for each set and a column for each method."""
    found = {(r.condition, r.model): r for r in rows if r.metric == metric}
    shown = [model for model in METHODS if any((name, model) in found for name in sets)]
    lines = [[name, *(format_spread(found.get((name, m))) for m in shown)] for name in sets]
    return Table(["", *(METHODS[model] for model in shown)], lines)


def _more(rows: Sequence[Row], sets: Sequence[str]) -> Table:
    """Return what is said of vsPAIR alone, with a row for each set."""
    found = {(r.condition, r.metric): r for r in rows if r.model == OURS}
    shown = [metric for metric in MORE if any((name, metric) in found for name in sets)]
    lines = [[name, *(format_spread(found.get((name, m))) for m in shown)] for name in sets]
    return Table(["", *(MORE[metric] for metric in shown)], lines)


def _sets(sets: Sequence[OwnSet]) -> str:
    """Return what the sets are, as a list."""
    chosen = {True: "; settings were chosen on pairs of this kind", False: ""}
    return "\n".join(f"- `{each.name}`: {each.words}{chosen[each.tuned]}." for each in sets)


def text_of(
    rows: Sequence[Row],
    about: Mapping[str, Any],
    sets: Sequence[OwnSet],
    text: str = WORDS.text["report"],
) -> str:
    """Return tables and words as Markdown.

    Arguments:
        rows: Every number.
        about: How much was computed, as ``summary.json`` has it.
        sets: The sets.
        text: What to say, with places for sets and tables.
    """
    names = [each.name for each in sets]
    tables = [
        f"## {title}\n\n{_compared(rows, metric, names).markdown()}"
        for metric, title in COMPARED.items()
    ]
    parts = {"tables": "\n\n".join(tables), "more": _more(rows, names).markdown()}
    return text.format(**{**about, "sets": _sets(sets)}, **parts)
