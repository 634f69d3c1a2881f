"""Lines, points and histograms: errors over noise, variance against error, shares of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from vspair.report import figures
from vspair.report.figures import FAINT, GREY, INK, PALETTE, PRESETS, Limits, finite, style_axes

__all__ = ["ErrorFit", "errors_over_noise", "histogram", "lines", "uncertainty_against_error"]

METHODS = {
    "FBP": (PALETTE[5], "s", "-"),
    "TV-ADMM": (PALETTE[0], "o", "-"),
    "regression": (PALETTE[4], "^", "--"),
    "DPS": (PALETTE[2], "D", "-."),
    "exact inversion": (PALETTE[0], "o", "-"),
    "Tikhonov": (PALETTE[5], "s", "-"),
    "Wiener": (PALETTE[2], "D", "-"),
    "ridge": (PALETTE[4], "^", "-"),
    "ridge with shifts": (INK, "v", "--"),
    "y itself": (GREY, "x", ":"),
    "mean field": (GREY, "|", "-."),
    "vsPAIR (paper)": (PRESETS["paper"], "P", "-"),
    "vsPAIR (calibrated)": (PRESETS["calibrated"], "*", "-"),
    "vsPAIR (anchored)": (PRESETS["anchored"], "p", "-"),
    "vsPAIR with FBP (anchored)": (PRESETS["anchored"], "h", "--"),
    "ridge + U-Net": (INK, "v", ":"),
    "FBP + U-Net": (PALETTE[5], "D", ":"),
}
"""Colour, marker and line of each method."""


# -- axes -----------------------------------------------------------------------------------


def logarithmic(axes: Any, limits: Limits, which: str = "y") -> None:
    """Make an axis logarithmic, its numbers round and, where short, written in figures."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def words(value: float, _: Any) -> str:
        short = f"{value:g}"
        return short if "e" not in short else f"$10^{{{round(math.log10(value))}}}$"

    axis, wide = getattr(axes, f"{which}axis"), limits[1] > 300 * limits[0]
    axes.set(**{f"{which}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(words))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=2, width=0.5, color=FAINT)


def even_axis(axes: Any, *parts: Any) -> None:
    """Make the vertical axis logarithmic where positive values are far apart."""
    values = finite(*parts)
    if len(values) and values.min() > 0 and values.max() > 8 * values.min():
        logarithmic(axes, (values.min(), values.max()))


# -- lines ----------------------------------------------------------------------------------


def lines(series: Mapping[str, tuple[Any, Any]], x_label: str, y_label: str) -> Any:
    """Return a figure of named curves (x, y), and of the line on which both are equal."""
    figure = figures.new_figure(4.4, 3.4)
    axes = figure.subplots()
    every = finite(*(x for x, _ in series.values()))
    ends = every[[every.argmin(), every.argmax()]] if len(every) else []
    axes.plot(ends, ends, color=GREY, linewidth=1.2, linestyle="--", label="ideal")
    for (name, (x, y)), colour in zip(series.items(), PALETTE, strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, label=name)
    axes.set(xlabel=x_label, ylabel=y_label)
    style_axes(axes)
    figures.legend(axes, "best")
    return figure


def errors_over_noise(
    levels: Any,
    errors: Mapping[str, Any],
    x_label: str,
    *,
    y_label: str = "MSE",
    beyond: Limits = (0.0, math.inf),
    loose: Sequence[str] = (),
    spaced: bool = False,
) -> Any:
    """Return a figure of errors over noise; the legend has the order of the lines' ends.

    Arguments:
        levels: The noise in per cent, with shape (n,).
        errors: The errors of each method, each with shape (n,).
        x_label: What the noise is a part of.
        y_label: Which error it is.
        beyond: Errors outside these ends are left out, and the lines to them.
        loose: Methods whose points are not joined.
        spaced: Whether levels stand at the same distance, however far they are apart.
    """
    shown = {k: np.asarray(v, dtype=float) for k, v in errors.items()}
    shown = {k: np.where((v < beyond[0]) | (v > beyond[1]), np.nan, v) for k, v in shown.items()}
    ends = {name: -finite(v)[-1] for name, v in shown.items() if np.isfinite(v).any()}
    if not ends:
        return None
    figure = figures.new_figure(6.8, 3.9)
    axes, spare = figure.subplots(), cycle(((GREY, "x", ":"), (INK, "x", ":")))
    places = range(len(levels)) if spaced else levels
    for name in sorted(ends, key=lambda name: float(ends[name])):
        colour, marker, line = METHODS.get(name) or next(spare)
        style: dict[str, Any] = {"color": colour, "linestyle": "none" if name in loose else line}
        style |= {"marker": marker, "markersize": 9 if marker == "*" else 5.5}
        # Ours is not to be hidden where methods are equal.
        axes.plot(places, shown[name], label=name, zorder=3 if "vsPAIR" in name else 2, **style)
    if spaced:
        axes.set_xticks(list(places), [f"{level:g}" for level in levels])
    else:
        axes.set_xlim(left=0)
    even_axis(axes, *shown.values())
    axes.set(xlabel=x_label, ylabel=y_label)
    style_axes(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    figures.legend(figure, "outside right center", handlelength=2.6)
    return figure


# -- variance against error -----------------------------------------------------------------


@dataclass(frozen=True)
class ErrorFit:
    """Predicted variance and error of images, and the line through them.

    Arguments:
        error: The error of each image, with shape (n,).
        variance: The variance that was predicted, with shape (n,).
        colour: Of the points.
        r: Their correlation; NaN where there is none.
        line: Where the line is drawn, the line and the ends of its band, with shape (4, m).
    """

    error: Any
    variance: Any
    colour: str
    r: float
    line: Any


def uncertainty_against_error(
    fits: Mapping[str, ErrorFit], x_label: str, y_label: str, *, shared: bool = False
) -> Any:
    """Return a figure of predicted variance over error, a panel each, one point an image.

    Arguments:
        fits: What is drawn, by the title of its panel.
        x_label: Which error it is.
        y_label: Which variance it is.
        shared: Whether panels have the same axes, which begin at 0.
    """
    if not fits:
        return None
    rows, columns = -(-len(fits) // 2), min(2, len(fits))
    figure = figures.new_figure(3.4 * columns + 0.2, 2.7 * rows + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
    for axes, (title, fit) in zip(grid.flat, fits.items(), strict=False):
        axes.scatter(fit.error, fit.variance, s=12, alpha=0.55, linewidths=0, color=fit.colour)
        x, line, low, high = fit.line
        axes.fill_between(x, low, high, color=INK, alpha=0.2, linewidth=0)
        axes.plot(x, line, color=INK, linewidth=1.4)
        words = f"$r$ = {fit.r:.2f}" if math.isfinite(fit.r) else "no $r$"
        axes.set_title(f"{title}: {words.replace('-', figures.MINUS)}")
        axes.locator_params(nbins=4)
        style_axes(axes)
    for axes in list(grid.flat)[len(fits) :]:
        axes.remove()
    if shared:
        grid[0, 0].set(xlim=(0, None), ylim=(0, None))
    figure.supxlabel(x_label, fontsize=11, color=INK)
    figure.supylabel(y_label, fontsize=11, color=INK)
    return figure


# -- histograms -----------------------------------------------------------------------------


def shares(values: Any, edges: Any) -> Any:
    """Return how many per cent of finite values lie in each bin, or beyond it, (bins,)."""
    kept = np.clip(finite(values), edges[0], edges[-1])
    return 100 * np.histogram(kept, edges)[0] / max(len(kept), 1)


def least_share(heights: Sequence[Any]) -> float:
    """Return where a logarithmic axis of per cents begins, or 0 where a plain one will do."""
    some = np.concatenate([h[h > 0] for h in heights])
    wide = len(some) and some.max() > 50 * some.min()
    return max(float(10 ** np.floor(np.log10(some.min()))), 0.001) if wide else 0.0


def histogram(
    axes: Any,
    heights: Mapping[str, Any],
    edges: Any,
    colours: Mapping[str, str],
    *,
    floor: float = 0.0,
    filled: bool = True,
) -> None:
    """Draw shares of values as outlines, on a logarithmic axis where it has a floor.

    Arguments:
        axes: Where to draw.
        heights: The shares in per cent of each name, each with shape (bins,).
        edges: The ends of the bins, with shape (bins + 1,).
        colours: The colour of each name.
        floor: Where the vertical axis begins; it is logarithmic above 0.
        filled: Whether the outlines are filled.
    """
    for (name, high), dash in zip(heights.items(), cycle(figures.DASHES), strict=False):
        high, colour = np.maximum(high, floor), colours[name]
        if filled:
            axes.stairs(high, edges, baseline=floor, fill=True, alpha=0.25, color=colour)
        style = {"color": colour, "linestyle": dash, "linewidth": 1.4, "label": name}
        axes.stairs(high, edges, baseline=floor if filled else None, **style)
    most = max((float(h.max()) for h in heights.values()), default=1.0) or 1.0
    axes.locator_params(axis="y", nbins=4, steps=[1, 2, 5, 10])
    if floor:
        logarithmic(axes, (floor, 100.0))
    axes.set(xlim=(edges[0], edges[-1]), ylim=(floor, 2 * most if floor else 1.1 * most))
    style_axes(axes)
