"""The figures of section 4.1, drawn from saved numbers: arrays by preset and name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report import figures
from vspair.report.figures import INK, PALETTE, Sheet
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

Part = Mapping[str, Any]

EXACT, LEARNED = PALETTE[:2]
SIDE, STEP, HIGH = 1.75, 2.3, 3.95
"""In inches: the side of a panel, from one to the next, and the height of a preset."""


def _panels(numbers: Groups, draw: Callable[[Sheet, Any, Part, int, float], None]) -> Any:
    """Return a sheet with a row of panels a preset, one panel an observation."""
    found = {preset: numbers[preset] for preset in figures.PRESETS if preset in numbers}
    if not found:
        return None
    first = next(iter(found.values()))
    count = len(first["mean"])
    sheet = Sheet(STEP * count + 0.1, HIGH * len(found))
    for row, (preset, part) in enumerate(found.items()):
        top = row * HIGH + 0.6
        sheet.text(sheet.width / 2, top - 0.35, f"vsPAIR ({preset})", 11, ha="center")
        for b in range(count):
            axes = sheet.axes(0.5 + b * STEP, top, SIDE, SIDE)
            draw(sheet, axes, part, b, top)
            _frame(axes, first["truth"][:, b])
            axes.set(title=f"observation {b + 1}", xlabel="$x_1$", ylabel="" if b else "$x_2$")
            axes.locator_params(nbins=4)
            figures.style_axes(axes, 9)
    return sheet.figure


def _frame(axes: Any, truth: Any) -> None:
    """Make a square around the exact samples (n, 2) of one observation."""
    low, high = truth.min(0), truth.max(0)
    half = 0.65 * (high - low).max() or 1.0
    if np.isfinite(half):
        centre = (low + high) / 2
        axes.set(xlim=centre[0] + (-half, half), ylim=centre[1] + (-half, half))


def _samples(sheet: Sheet, axes: Any, part: Part, b: int, top: float) -> None:
    """Draw exact and learned samples, the ellipse of two deviations, means and the gates."""
    for name, label, colour in (("truth", "exact", EXACT), ("learned", "learned", LEARNED)):
        dots: dict[str, Any] = {"s": 4, "alpha": 0.45, "linewidths": 0, "label": label}
        axes.scatter(*part[name][:, b].T, color=colour, **dots)
    angle = np.linspace(0, 2 * np.pi, 200)
    values, vectors = np.linalg.eigh(np.nan_to_num(part["covariance"]))
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.sqrt(np.maximum(values, 0))
    axes.plot(*(part["mean"][b] + 2 * circle @ vectors.T).T, color=EXACT, linewidth=1.2)
    for name, colour in (("mean", "#003a5c"), ("approximate_mean", "#7a3000")):
        axes.plot(*part[name][b], "x", color=colour, markersize=8, markeredgewidth=2)
    if b == 0:
        figures.legend(axes, "upper left", fontsize=9, markerscale=3, handletextpad=0)
    gates, omega = sheet.axes(0.5 + b * STEP, top + SIDE + 0.55, SIDE, 0.5), part["omega"][b]
    gates.bar(range(1, len(omega) + 1), omega, color=LEARNED)
    gates.set(ylim=(0, 1.05), xlabel="latent dimension", xticks=range(1, len(omega) + 1))
    gates.set_ylabel("" if b else "$\\hat\\omega$")
    figures.style_axes(gates, 9)


def _traversal(_: Sheet, axes: Any, part: Part, b: int, __: float) -> None:
    """Draw how x moves along the four likeliest dimensions, over the eigenvectors."""
    axes.scatter(*part["truth"][:, b].T, s=4, alpha=0.2, linewidths=0, color=EXACT)
    values, vectors = np.linalg.eigh(np.nan_to_num(part["covariance"]))
    for value, vector in zip(np.maximum(values, 0), vectors.T, strict=True):
        ends = part["mean"][b] + np.outer((-3, 3), vector * np.sqrt(value))
        axes.plot(*ends.T, color=INK, linewidth=1.0, linestyle="--", zorder=1)
    for walk, k, colour in zip(part["walks"][b], part["likely"][b], PALETTE[1:], strict=False):
        label = f"dim. {k + 1}: $\\hat\\omega$ = {part['omega'][b][k]:.2f}"
        axes.plot(*walk.T, ".", markersize=4, color=colour, label=label)
    # Below the axes: inside, it would cover points for some operator.
    below: dict[str, Any] = {"bbox_to_anchor": (0.5, -0.25), "fontsize": 9, "markerscale": 2}
    figures.legend(axes, "upper center", **below)


CAPTIONS = read_words("gaussian").captions
"""What each figure shows, by its file name."""


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw both figures from the numbers of each preset into a folder; return their paths."""
    draws = {"samples": _samples, "traversal": _traversal}
    found = {name: partial(_panels, numbers, draw) for name, draw in draws.items()}
    return figures.write_figures(found, folder)
