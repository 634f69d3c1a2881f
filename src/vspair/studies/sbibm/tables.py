"""Tables and words of the study, from its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vspair.anchored_fit import MINUTES
from vspair.report.tables import Table, format_number
from vspair.studies.results import Row
from vspair.studies.words import read_words

__all__ = ["WORDS", "c2st_table", "text_of"]

WORDS = read_words("sbibm")


def c2st_table(rows: Sequence[Row], metric: str = "c2st") -> Table:
    """Return a line for each task: what was measured here, then what others have published.

    Arguments:
        rows: Every number.
        metric: ``c2st`` or ``c2st_mean``; medians alone are published.
    """
    found = {(_label(row), row.condition): row for row in rows if row.metric == metric}
    labels = list(dict.fromkeys(label for label, _ in found))
    published = WORDS.paper if metric == "c2st" else {}
    lines = []
    for task in dict.fromkeys(row.condition for row in rows):
        others = [format_number(each.get(f"c2st, {task}"), 3) for each in published.values()]
        ours = [_words(found[label, task]) for label in labels]
        lines.append([WORDS.names[task], *ours, *others])
    return Table(["", *labels, *published], lines)


def _label(row: Row) -> str:
    return f"{row.model} ({row.preset})" if row.preset else row.model


def _words(row: Row) -> str:
    return f"{row.value:.3f}" + ("" if row.spread is None else f" ± {row.spread:.2g}")


def _seconds(rows: Sequence[Row]) -> str:
    """Return how long one training of each method took on each task, in words."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.metric == "seconds":
            words = f"{WORDS.names[row.condition]} {row.value:,.0f} s"
            found.setdefault(_label(row), []).append(words)
    return "; ".join(f"{label}: {', '.join(each)}" for label, each in found.items())


def text_of(
    rows: Sequence[Row], preset: str, about: Mapping[str, Any], data: Mapping[str, Any]
) -> str:
    """Return tables and words as Markdown.

    Arguments:
        rows: Every number.
        preset: The preset of ours.
        about: How much was computed, as ``summary.json`` has it.
        data: What is recorded of observations and reference samples.
    """
    source = "made" if data["references"] == "made here" else "read"
    return WORDS.text["report"].format(
        **about,
        minutes=MINUTES,
        preset=preset,
        box=WORDS.text["kept inside" if about["inside"] else "free"],
        references=WORDS.text[source].format(**data),
        medians=c2st_table(rows).markdown(),
        means=c2st_table(rows, "c2st_mean").markdown(),
        seconds=_seconds(rows),
    )
