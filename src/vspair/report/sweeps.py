"""The table and the figure of a sweep, made from its finished trials (:mod:`vspair.records`)."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from vspair import runs
from vspair.records import Settings, rows, short
from vspair.report.cells import heat_map
from vspair.report.figures import INK, PALETTE, new_figure, png, quiet

__all__ = ["draw", "line", "write"]

SHOWN = {
    "mse_mean": "MSE of the mean",
    "mse": "MSE of a sample",
    "crps": "CRPS",
    "energy_score": "energy score",
    "mse_approximate_mean": "MSE of the decoded mean",
    "coverage_90": "share in the 90 % interval",
    "nnz": "nnz",
    "active": "active",
}
"""The columns of the table, by score."""

ASKED = ("energy_score", "mse_approximate_mean")
"""The scores that have a column only where they are looked for."""


def line(row: Settings, metric: str) -> str:
    """Say in a line how a trial ended."""
    ended = f"{metric} {row['scores'][metric]:.4g}" if "scores" in row else row["error"]
    return f"{row['trial']}: {ended} ({row['seconds']:.0f} s)"


def _points(
    found: list[Settings], base: Settings, axes: dict[str, str], metric: str
) -> list[Settings]:
    """Return the settings of each point with the means of its scores over seeds."""
    named = {key for row in found for key in row["settings"]} | set(axes)
    keys = [*axes, *sorted(named - {"training.seed", *axes})]
    groups: dict[str, list[Settings]] = {}
    for row in found:
        settings = {key: row["settings"].get(key, base[key]) for key in keys}
        groups.setdefault(json.dumps(settings), []).append(row)
    points = []
    for text, group in groups.items():
        scored = [row["scores"] for row in group if "scores" in row]
        every = {k: [s[k] for s in scored] for k in (scored[0] if scored else {})}
        point = {"settings": json.loads(text), "seeds": len(scored)}
        point["scores"] = {k: statistics.fmean(v) for k, v in every.items()}
        point["spread"] = {k: statistics.stdev(v) for k, v in every.items() if len(v) > 1}
        point["failed"] = [row["error"] for row in group if "error" in row]
        points.append(point)
    searched = any(axes.values())

    def order(point: Settings) -> Any:
        if searched:
            return point["scores"].get(metric, math.inf)
        values = point["settings"].values()
        return [(0, v, "") if isinstance(v, int | float) else (1, 0, str(v)) for v in values]

    return sorted(points, key=order)


def write(
    sweep: Path,
    axes: dict[str, str],
    metric: str,
    command: str,
    device: str,
    proposed: list[Settings],
) -> str:
    """Write ``sweep.json``, ``README.md`` and ``sweep.png``; return the table with its words.

    Arguments:
        sweep: The sweep's folder.
        axes: The keys that differ, with the scale that a search has, or nothing for a grid.
        metric: The score whose least value is looked for.
        command: What was typed.
        device: Where it ran.
        proposed: The settings of each point that a search proposed; nothing for a grid.
    """
    repeats = len(proposed) - len({json.dumps(point, sort_keys=True) for point in proposed})
    found, base = rows(sweep), json.loads((sweep / "settings.json").read_bytes())
    points = _points(found, base, axes, metric)
    about: Settings = {"study": "sweep", "command": command, "commit": runs.commit()}
    about |= {"machine": runs.machine(device), "versions": runs.versions(), "metric": metric}
    document = about | {"settings": base, "points": points, "rows": found}
    runs.write_text(sweep / "sweep.json", json.dumps(document, indent=1) + "\n")
    text = _text(points, base, metric, command, repeats)
    runs.write_text(sweep / "README.md", text)
    drawn = png(draw(points, axes, metric))
    runs.atomically(sweep / "sweep.png", lambda part: part.write_bytes(drawn))
    return text


# -- words ----------------------------------------------------------------------------------


def _best(points: list[Settings], metric: str) -> Settings | None:
    scored = [point for point in points if metric in point["scores"]]
    return min(scored, key=lambda point: float(point["scores"][metric]), default=None)


def _cell(point: Settings, name: str) -> str:
    if name not in point["scores"]:
        return "-"
    spread = f" ± {point['spread'][name]:.2g}" if name in point["spread"] else ""
    return f"{point['scores'][name]:.4g}{spread}"


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(points: list[Settings], base: Settings, metric: str, command: str, repeats: int) -> str:
    """Return the table with what is needed to read it."""
    columns = [k for k in SHOWN if any(k in point["scores"] for point in points)]
    columns = [k for k in columns if k not in ASKED or k == metric]
    keys, best = list(points[0]["settings"]), _best(points, metric)
    heads = [*(f"`{key}`" for key in keys), "seeds", *(SHOWN[k] for k in columns)]
    table = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for point in points:
        cells = [_value(v) for v in point["settings"].values()] + [str(point["seeds"])]
        cells += [_cell(point, k) for k in columns]
        bold = [f"**{cell}**" for cell in cells] if point is best else cells
        table.append(f"| {' | '.join(bold)} |")
    words = [f"Made by `{command}` at commit {runs.commit()}. " if command else ""]
    words[0] += (
        f"A {base['kind']} on {base['pairs']}: {100 * base['held_out']:g} % of them held out, and "
    )
    words[0] += f"scored with {base['samples']} samples each."
    if "training.epochs" not in keys:
        words[0] += f" Trainings of {base['training.epochs']:,} epochs."
    if repeats:
        words[0] += f" Proposals that repeat an earlier point, and were not trained: {repeats}."
    if best is not None:
        floor = best["scores"]["floor_mean"]
        words.append(
            f"In bold: the least {SHOWN[metric]}. It was chosen on these held-out pairs, so its "
            "scores are a little too good: judge it on others with `vspair evaluate`. Answering "
            f"with the mean of x has an MSE of {floor:.4g}."
        )
    failed = [f"- {_settings(p)}: {error}" for p in points for error in dict.fromkeys(p["failed"])]
    words += ["Failed:\n\n" + "\n".join(failed)] if failed else []
    parts = ["# Sweep", words[0], "\n".join(table), *words[1:], "![Scores](sweep.png)"]
    return "\n\n".join(parts) + "\n"


def _settings(point: Settings) -> str:
    return ", ".join(f"{short(key)} = {_value(v)}" for key, v in point["settings"].items())


# -- the figure -----------------------------------------------------------------------------


def draw(points: list[Settings], axes: dict[str, str], metric: str) -> Any:
    """Draw scores over settings: a line for one key, a map for two, a panel for each of more.

    Arguments:
        points: Settings and scores, as ``sweep.json`` keeps them.
        axes: The keys, with the scale that a search has.
        metric: The score that is looked for; non-zeros and coverage stand beside it.
    """
    scored = [point for point in points if metric in point["scores"]]
    keys = [k for k in points[0]["settings"] if len(_values(points, k)) > 1] or list(axes)[:1]
    shown = [metric, *(k for k in ("nnz", "coverage_90") if scored and k in scored[0]["scores"])]
    if any(axes.values()) or len(keys) > 2:
        panels = [(key, metric) for key in keys]
    else:
        panels = [(keys[0], name) for name in shown]
    wide = min(len(panels), 4)
    figure = new_figure(3.9 * wide, 3.2 * math.ceil(len(panels) / wide))
    grid = figure.subplots(math.ceil(len(panels) / wide), wide, squeeze=False).flatten()
    for ax, (key, name) in zip(grid, panels, strict=False):
        if len(keys) == 2 and not any(axes.values()):
            _map(ax, points, keys, name)
        else:
            _curve(ax, points, key, name, joined=len(keys) == 1 and not any(axes.values()))
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    return figure


def _values(points: list[Settings], key: str) -> list[Any]:
    """Return the values of a key, each once: numbers in their order, words as they come."""
    values = [point["settings"][key] for point in points]
    if all(isinstance(v, int | float) for v in values):
        return sorted(set(values))
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]


def _curve(ax: Any, points: list[Settings], key: str, name: str, joined: bool) -> None:
    """Draw a score over one key, with its deviation over seeds."""
    values = _values(points, key)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if not numbers:
        ax.set_xticks(range(len(values)), [_value(v) for v in values])
        ax.margins(x=0.2)
    elif min(values) > 0 and max(values) >= 10 * min(values):
        ax.set_xscale("log")
        room = (max(values) / min(values)) ** 0.06
        ax.set_xlim(min(values) / room, max(values) * room)
        ax.xaxis.set_minor_formatter("")
    scored = [p for p in points if name in p["scores"]]
    at = [p["settings"][key] if numbers else values.index(p["settings"][key]) for p in scored]
    placed = sorted(zip(at, scored, strict=True), key=lambda pair: pair[0])
    ax.errorbar(
        [x for x, _ in placed],
        [p["scores"][name] for _, p in placed],
        yerr=[p["spread"].get(name, 0.0) for _, p in placed],
        color=PALETTE[0],
        linestyle="-" if joined else "none",
        marker="o",
        markersize=4,
        capsize=2,
    )
    ax.set_xlabel(key)
    ax.set_ylabel(SHOWN[name])
    quiet(ax)


def _map(ax: Any, points: list[Settings], keys: list[str], name: str) -> None:
    """Draw a score over two keys, with its value in each cell."""
    down, right = (_values(points, key) for key in keys)
    cells = [[math.nan] * len(right) for _ in down]
    for point in points:
        i, j = (v.index(point["settings"][k]) for v, k in zip((down, right), keys, strict=True))
        cells[i][j] = point["scores"].get(name, math.nan)
    heat_map(ax, np.array(cells, float))
    quiet(ax)
    ax.set_yticks(range(len(down)), [_value(v) for v in down])
    ax.set_xticks(range(len(right)), [_value(v) for v in right])
    ax.set_ylabel(keys[0])
    ax.set_xlabel(keys[1])
    ax.set_title(SHOWN[name], fontsize=11, color=INK)
