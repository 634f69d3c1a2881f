"""Results as data: the rows of ``summary.json`` and the tables made from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vspair import runs

__all__ = ["Row", "epochs_in_words", "markdown", "write_summary"]


@dataclass(frozen=True)
class Row:
    """One number of a study.

    Arguments:
        model: The method.
        preset: ``paper`` or ``calibrated``; empty for methods without one.
        metric: What was measured.
        value: The number.
        spread: Its spread over seeds.
        seeds: How many seeds.
        unit: The unit, where there is one.
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


def write_summary(
    path: Path,
    study: str,
    command: str,
    scale: dict[str, Any],
    rows: list[Row],
    device: str = "cpu",
    made: Mapping[str, str] | None = None,
) -> None:
    """Write the rows with the command, commit and machine that made them.

    Arguments:
        path: The file.
        study: Its name.
        command: What makes the rows again.
        scale: How much was drawn and trained.
        rows: The numbers.
        device: Where they were computed.
        made: ``commit`` and ``machine`` where the rows were not computed here; ``versions`` are
            those of the tables.
    """
    document = {
        "study": study,
        "command": command,
        **(made or {"commit": runs.commit(), "machine": runs.machine(device)}),
        "versions": runs.versions(),
        "scale": scale,
        "rows": [{k: v for k, v in asdict(row).items() if v not in ("", None)} for row in rows],
    }
    runs.write_text(path, json.dumps(document, indent=1) + "\n")


def markdown(rows: list[Row], metrics: dict[str, str]) -> str:
    """Return a table with a column for each method and a row for each metric."""
    names = list(dict.fromkeys((r.model, r.preset, r.condition) for r in rows))
    found = {(r.model, r.preset, r.condition, r.metric): r for r in rows}
    head = " | ".join(_head(*name) for name in names)
    lines = [f"| | {head} |", "|---" * (len(names) + 1) + "|"]
    for metric, words in metrics.items():
        cells = [_cell(found.get((*name, metric))) for name in names]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _head(model: str, preset: str, condition: str) -> str:
    inside = ", ".join(filter(None, (preset, condition)))
    return f"{model} ({inside})" if inside else model


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    spread = "" if row.spread is None else f" ± {row.spread:.2g}"
    paper = "" if row.paper is None else f" (paper {_number(row.paper)})"
    return f"{_number(row.value)}{spread}{paper}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e5 else f"{value:.4g}"


def epochs_in_words(epochs: int | dict[str, int]) -> str:
    """Return a number of epochs, or one for each model."""
    if isinstance(epochs, int):
        return str(epochs)
    if len(set(epochs.values())) == 1:
        return str(next(iter(epochs.values())))
    return ", ".join(f"{n} ({name})" for name, n in epochs.items())
