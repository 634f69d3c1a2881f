"""Rows, tables and words of the ablations, from what variants of the model answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vspair.anchored_fit import MINUTES
from vspair.datasets.own import OwnSet
from vspair.report.tables import Table
from vspair.runs import Groups
from vspair.studies.results import Row, format_spread, metrics_of, over_seeds
from vspair.studies.words import read_words

__all__ = [
    "FULL", "SHOWN", "WORDS", "figure_numbers", "measures", "ratios", "rows_of", "text_of",
]  # fmt: skip

FULL = "full"
"""What the model with all its parts is called among variants."""

RATIOS = {
    "mse_over_full": "mse_mean", "crps_over_full": "crps", "energy_over_full": "energy_score",
}  # fmt: skip
"""Ratios to the full model, and the metric that each is of."""

SHOWN = "crps_over_full"
"""The ratio that the figure shows."""

WORDS = read_words("ablations")
NAMES = WORDS.names
HEADS, RATIO_TITLES, MORE = (WORDS.labels[name] for name in ("heads", "ratios", "more"))
KEPT = (*RATIOS.values(), *MORE)
"""The metrics that are published, beside ratios."""

Found = dict[str, dict[str, float]]
"""What was measured in one case: metrics by the part that is off."""


# -- rows -----------------------------------------------------------------------------------


def ratios(mine: Mapping[str, float], full: Mapping[str, float]) -> dict[str, float]:
    """Return errors and scores over those of the full model: above 1, the part that is off helps.

    Arguments:
        mine: The metrics of a variant.
        full: Those of the full model of the same seed on the same pairs.
    """
    return {name: mine[metric] / full[metric] for name, metric in RATIOS.items()}


def measures(answers: Mapping[str, Groups]) -> Found:
    """Return the published metrics of each variant in one case, with the ratios.

    Arguments:
        answers: What each variant answered, by the part that is off.
    """
    found = {}
    for name, answer in answers.items():
        every = metrics_of(answer)
        if "variance_factors" in every:
            every["share_in_factors"] = every["variance_factors"] / every["variance"]
        found[name] = {k: v for k, v in every.items() if k in KEPT}
    for name in found.keys() - {FULL}:
        found[name] |= ratios(found[name], found[FULL])
    return found


def _condition(name: str, part: str) -> str:
    """Return the condition of rows: the set, and what is off."""
    return name if part == FULL else f"{name}, {NAMES[part]}"


def rows_of(measured: Mapping[str, Sequence[Found]]) -> list[Row]:
    """Return means over seeds with their deviation.

    Arguments:
        measured: The metrics by part of each seed, by the name of the set.
    """
    rows = []
    for name, seeds in measured.items():
        for part in seeds[0]:
            found, condition = [each[part] for each in seeds], _condition(name, part)
            rows += over_seeds(found, model="vsPAIR", preset="anchored", condition=condition)
    return rows


def figure_numbers(measured: Mapping[str, Sequence[Found]]) -> Groups:
    """Return what the figure shows: the ratio of every seed, by set and part."""
    return {
        name: {
            part: np.array([each[part][SHOWN] for each in seeds])
            for part in seeds[0]
            if part != FULL
        }
        for name, seeds in measured.items()
    }


# -- words ----------------------------------------------------------------------------------


def _overview(found: Mapping[tuple[str, str], Row], sets: Sequence[str]) -> Table:
    """Return the ratios of errors and CRPS, with a row for each part, in few digits."""
    columns = [f"{name}: {head}" for name in sets for head in HEADS.values()]
    lines = []
    for part in _parts(found, sets):
        cells = [found.get((_condition(name, part), m)) for name in sets for m in HEADS]
        lines.append([NAMES[part], *(f"{cell.value:.2f}" if cell else "-" for cell in cells)])
    return Table(["", *columns], lines)


def _parts(found: Mapping[tuple[str, str], Row], sets: Sequence[str]) -> list[str]:
    """Return the parts that some set has, in their order."""
    parts = [part for part in NAMES if part != FULL]
    return [p for p in parts if any((_condition(s, p), SHOWN) in found for s in sets)]


def _by_part(found: Mapping[tuple[str, str], Row], metric: str, sets: Sequence[str]) -> str:
    """Return a metric with a row for each variant and a column for each set, as Markdown."""
    parts = [*([] if metric in RATIOS else [FULL]), *_parts(found, sets)]
    lines = [
        [NAMES[p], *(format_spread(found.get((_condition(s, p), metric))) for s in sets)]
        for p in parts
    ]
    return Table(["", *sets], lines).markdown()


def text_of(rows: Sequence[Row], about: Mapping[str, Any], sets: Sequence[OwnSet]) -> str:
    """Return tables and words as Markdown.

    Arguments:
        rows: Every number.
        about: How much was computed, as ``summary.json`` has it.
        sets: The sets.
    """
    found, names = {(row.condition, row.metric): row for row in rows}, [s.name for s in sets]
    parts = [f"- {NAMES[part]}: {WORDS.text[part]}" for part in _parts(found, names)]
    measured = {row.metric for row in rows}
    tables = [
        f"## {title}\n\n{_by_part(found, metric, names)}"
        for metric, title in (RATIO_TITLES | MORE).items()
        if metric in measured
    ]
    said: dict[str, str] = {
        "sets": "\n".join(f"- `{each.name}`: {each.words}." for each in sets),
        "parts": "\n".join(parts),
        "overview": _overview(found, names).markdown(),
        "tables": "\n\n".join(tables),
    }
    return WORDS.text["report"].format(**{**about, **said}, plain_minutes=MINUTES)
