"""Results as data: the rows of ``summary.json``, and tables made from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vspair import runs
from vspair.report.tables import Table, format_number
from vspair.runs import Groups
from vspair.uncertainty import uncertainty_error
from vspair.vocabulary import look_up

__all__ = [
    "Row", "epochs_in_words", "format_spread", "metrics_of", "over_seeds", "summary", "table_of",
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One number of a study.

    Arguments:
        model: The method.
        preset: ``paper``, ``calibrated`` or ``anchored``; empty for methods without one.
        metric: What was measured, a name of :mod:`vspair.vocabulary`.
        value: The number.
        spread: Its spread over seeds.
        seeds: How many seeds.
        unit: The unit, where it is not the vocabulary's.
        paper: What the paper reports, where it does.
        condition: The setting, such as ``noise=0.05``.
    """

    model: str
    preset: str
    metric: str
    value: float
    spread: float | None = None
    seeds: int = 1
    unit: str = ""
    paper: float | None = None
    condition: str = ""

    def __post_init__(self) -> None:
        look_up(self.metric)

    @property
    def label(self) -> str:
        """The method with preset and condition, such as ``vsPAIR (paper, noise=0.05)``."""
        inside = ", ".join(filter(None, (self.preset, self.condition)))
        return f"{self.model} ({inside})" if inside else self.model


def metrics_of(answer: Groups) -> dict[str, float]:
    """Return every metric of a kept answer: means of its scores, and the numbers of its ``row``.

    Where there is a variance its correlation with the error is added, and relative errors where
    the variance of the truths is known.

    Arguments:
        answer: Groups of arrays, among them ``scores``, one value an observation, and ``row``.
    """
    each = {name: torch.from_numpy(values).double() for name, values in answer["scores"].items()}
    found = {name: float(values.mean()) for name, values in each.items()}
    found |= {name: float(value) for name, value in answer.get("row", {}).items()}
    for name, ending in (("mse_mean", ""), ("mse_sample", "_sample")):
        if "variance" in each:
            r = uncertainty_error(each["variance"], each[name]).r
            found[f"uncertainty_error_r{ending}"] = r
        if "field_variance" in found:
            found[f"relative_{name}"] = found[name] / found["field_variance"]
    return found


def over_seeds(
    found: Sequence[Mapping[str, float]], paper: Mapping[str, float] | None = None, **named: Any
) -> list[Row]:
    """Return the mean of each metric over seeds, with its standard deviation.

    Arguments:
        found: The metrics of each seed; those that the first has count.
        paper: What the paper reports of some of them.
        named: ``model``, ``preset``, and ``condition`` or ``unit`` of the rows.
    """
    rows = []
    for metric in found[0]:
        values = [each[metric] for each in found if metric in each]
        spread = statistics.stdev(values) if len(values) > 1 else None
        reported = (paper or {}).get(metric)
        count: dict[str, Any] = {"spread": spread, "seeds": len(values), "paper": reported}
        rows.append(Row(metric=metric, value=statistics.fmean(values), **count, **named))
    return rows


def summary(
    study: str, made: Mapping[str, Any], scale: Mapping[str, Any], rows: Iterable[Row]
) -> dict[str, Any]:
    """Return what ``summary.json`` holds.

    Arguments:
        study: Its name.
        made: The ``command``, ``commit``, ``machine`` and ``versions`` that made the rows.
        scale: How much was computed.
        rows: The numbers.
    """
    return {
        "study": study,
        **{"versions": runs.versions(), **made},
        "scale": dict(scale),
        "rows": [{k: v for k, v in asdict(row).items() if v not in ("", None)} for row in rows],
    }


def table_of(rows: Sequence[Row], metrics: Mapping[str, str]) -> Table:
    """Return a table with a column for each method and a row for each metric, by its words."""
    labels = list(dict.fromkeys(row.label for row in rows))
    found = {(row.label, row.metric): row for row in rows}
    lines = [
        [words, *(format_spread(found.get((label, metric))) for label in labels)]
        for metric, words in metrics.items()
    ]
    return Table(["", *labels], lines)


def format_spread(row: Row | None) -> str:
    """Return a number with its spread and the paper's; a dash where there is none."""
    if row is None:
        return "-"
    spread = "" if row.spread is None else f" ± {row.spread:.2g}"
    paper = "" if row.paper is None else f" (paper {format_number(row.paper)})"
    return f"{format_number(row.value)}{spread}{paper}"


def epochs_in_words(epochs: int | Mapping[str, int]) -> str:
    """Return a number of epochs, or one for each model."""
    if isinstance(epochs, int):
        return str(epochs)
    if len(set(epochs.values())) == 1:
        return str(next(iter(epochs.values())))
    return ", ".join(f"{n} ({name})" for name, n in epochs.items())
