"""The table and the figure of a sweep, drawn from the points that ``sweep.json`` keeps."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report.figures import INK, PALETTE, new_figure, png, style_axes
from vspair.report.heat_map import heat_map
from vspair.runs import files

__all__ = ["ERRORS", "draw", "line", "write"]

Point = dict[str, Any]

ERRORS = {
    "mse_mean": "MSE of the mean",
    "mse_sample": "MSE of a sample",
    "mse_code": "MSE of the decoded mean",
    "crps": "CRPS",
    "energy_score": "energy score",
}
"""The scores that are better the smaller they are, in words."""

LABELS = ERRORS | {"coverage_90": "share in the 90 % interval", "nnz": "nnz", "active": "active"}
"""The columns of the table, by score."""


def line(row: Point, metric: str) -> str:
    """Say in a line how a trial ended."""
    ended = f"{metric} {row['scores'][metric]:.4g}" if "scores" in row else row["error"]
    return f"{row['trial']}: {ended} ({row['seconds']:.0f} s)"


def write(folder: Path, document: dict[str, Any]) -> str:
    """Write ``sweep.json``, ``README.md`` and ``sweep.png``; return the table with its words.

    Arguments:
        folder: Where the files go.
        document: The ``points``, each with ``settings`` and ``scores`` or ``error``; the
            ``metric`` that is minimised; the ``settings`` that all share; ``repeats``, how many
            proposals were points again; ``command``, ``commit``, ``machine``, ``versions``.
    """
    metric, searched = document["metric"], document["settings"]["kind"] == "search"
    values = {key: _values(document["points"], key) for key in document["points"][0]["settings"]}

    def order(point: Point) -> Any:
        if searched:
            return point.get("scores", {}).get(metric, math.inf)
        return [values[key].index(value) for key, value in point["settings"].items()]

    points = sorted(document["points"], key=order)
    document = document | {"points": points}
    files.write_text(folder / "sweep.json", json.dumps(document, indent=1) + "\n")
    text = _text(document)
    files.write_text(folder / "README.md", text)
    picture = png(draw(points, metric, searched))
    files.atomically(folder / "sweep.png", partial(Path.write_bytes, data=picture))
    return text


# -- words ----------------------------------------------------------------------------------


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _score(point: Point, name: str) -> str:
    scores = point.get("scores", {})
    spread = f" ± {scores[name + '_std']:.2g}" if name + "_std" in scores else ""
    return f"{scores[name]:.4g}{spread}" if name in scores else "-"


def _table(points: list[Point], metric: str, best: Point | None) -> str:
    scored = {name for point in points for name in point.get("scores", {})}
    columns = [k for k in LABELS if k in scored]
    heads = [*(f"`{key}`" for key in points[0]["settings"]), *(LABELS[k] for k in columns)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for point in points:
        texts = [_value(v) for v in point["settings"].values()]
        texts += [_score(point, k) for k in columns]
        bold = [f"**{text}**" for text in texts] if point is best else texts
        lines.append(f"| {' | '.join(bold)} |")
    return "\n".join(lines)


def _text(document: dict[str, Any]) -> str:
    """Return the table with what is needed to read it."""
    points, metric, shared = document["points"], document["metric"], document["settings"]
    scored = [point for point in points if "scores" in point]
    best = min(scored, key=lambda point: float(point["scores"][metric]), default=None)
    words = ""
    if document["command"]:
        words = f"Made by `{document['command']}` at commit {document['commit']}. "
    words += f"A {shared['kind']} on {shared['pairs']}: {100 * shared['held_out']:g} % of them "
    words += f"held out, and scored with {shared['samples']} samples each."
    if "training.epochs" not in points[0]["settings"]:
        words += f" Trainings of {shared['training.epochs']:,} epochs."
    if shared["seeds"] > 1:
        words += f" Means and standard deviations of {shared['seeds']} seeds."
    if repeats := document["repeats"]:
        words += f" Proposals that repeat an earlier point, and were not trained: {repeats}."
    parts = ["# Sweep", words, _table(points, metric, best)]
    if best is not None:
        parts.append(
            f"In bold: the least {LABELS[metric]}. It was chosen on these held-out pairs, so its "
            "scores are a little too good: judge it on others with `vspair evaluate`. Answering "
            f"with the mean of x has an MSE of {best['scores']['floor_mean']:.4g}."
        )
    if failed := [f"- {_setting(p)}: {p['error']}" for p in points if "error" in p]:
        parts.append("Failed:\n\n" + "\n".join(failed))
    return "\n\n".join([*parts, "![Scores](sweep.png)"]) + "\n"


def _setting(point: Point) -> str:
    return ", ".join(f"{k.rpartition('.')[2]} = {_value(v)}" for k, v in point["settings"].items())


# -- the figure -----------------------------------------------------------------------------


def draw(points: list[Point], metric: str, searched: bool = False) -> Any:
    """Draw scores over settings: a line for one key, a map for two, a panel for each of more.

    Arguments:
        points: Settings and scores, as ``sweep.json`` keeps them.
        metric: The score that is minimised; non-zeros and coverage stand beside it.
        searched: Whether the points are a search's; then each key has a panel.
    """
    every = list(points[0]["settings"])
    keys = [key for key in every if len(_values(points, key)) > 1] or every[:1]
    scored = {name for point in points for name in point.get("scores", {})}
    panels = [(keys[0], name) for name in (metric, "nnz", "coverage_90") if name in scored]
    if searched or len(keys) > 2 or not panels:
        panels = [(key, metric) for key in keys]
    wide, high = min(len(panels), 4), math.ceil(len(panels) / 4)
    figure = new_figure(3.9 * wide, 3.2 * high)
    grid = figure.subplots(high, wide, squeeze=False).flatten()
    for ax, (key, name) in zip(grid, panels, strict=False):
        if len(keys) == 2 and not searched:
            _map(ax, points, keys, name)
        else:
            _curve(ax, points, key, name, joined=len(keys) == 1 and not searched)
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    return figure


def _values(points: list[Point], key: str) -> list[Any]:
    """Return the values of a key, each once: numbers in their order, words as they come."""
    values = [point["settings"][key] for point in points]
    if all(isinstance(v, int | float) for v in values):
        return sorted(set(values))
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]


def _curve(ax: Any, points: list[Point], key: str, name: str, joined: bool) -> None:
    """Draw a score over one key, with its deviation over seeds."""
    values = _values(points, key)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers:
        ax.set_xticks(range(len(values)), [_value(v) for v in values])
        ax.margins(x=0.2)
    elif min(values) > 0 and max(values) >= 10 * min(values):
        ax.set_xscale("log")
        room = (max(values) / min(values)) ** 0.06  # for one point that did not fail, too
        ax.set_xlim(min(values) / room, max(values) * room)
        ax.xaxis.set_minor_formatter("")
    scored = [p for p in points if name in p.get("scores", {})]
    scored.sort(key=lambda p: values.index(p["settings"][key]))
    at = [p["settings"][key] if numbers else values.index(p["settings"][key]) for p in scored]
    heights = [p["scores"][name] for p in scored]
    bars = [p["scores"].get(f"{name}_std", 0.0) for p in scored]
    style = {"fmt": "o-" if joined else "o", "color": PALETTE[0], "markersize": 4, "capsize": 2}
    ax.errorbar(at, heights, bars, **style)
    ax.set(xlabel=key, ylabel=LABELS[name])
    style_axes(ax)


def _map(ax: Any, points: list[Point], keys: list[str], name: str) -> None:
    """Draw a score over two keys, with its value at each point."""
    down, right = (_values(points, key) for key in keys)
    values = np.full((len(down), len(right)), math.nan)
    for point in points:
        place = down.index(point["settings"][keys[0]]), right.index(point["settings"][keys[1]])
        values[place] = point.get("scores", {}).get(name, math.nan)
    heat_map(ax, values)
    style_axes(ax)
    ax.set_yticks(range(len(down)), [_value(v) for v in down])
    ax.set_xticks(range(len(right)), [_value(v) for v in right])
    ax.set(ylabel=keys[0], xlabel=keys[1])
    ax.set_title(LABELS[name], fontsize=11, color=INK)
