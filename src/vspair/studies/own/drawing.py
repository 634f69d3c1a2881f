"""The figure of the study of own pairs, drawn from saved numbers: arrays by set and name."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from vspair.report import figures
from vspair.report.figures import GREY, PALETTE
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

SHOWN = {"mse_over_best_simple": "MSE", "crps_over_best_simple": "CRPS"}
"""The ratios that are drawn, and what the legend calls them."""

TICKS = [2.0**k for k in range(-6, 7)]
"""What is written on the axis of ratios, where it reaches so far."""

CAPTIONS = read_words("own").captions
"""What each figure shows, by its file name."""


def _ratios(numbers: Groups) -> Any:
    """Draw both ratios of every seed, one line of points a set, around 1."""
    figure = figures.new_figure(5.2, 1.4 + 0.4 * len(numbers))
    axes = figure.add_subplot()
    axes.axvline(1.0, color=GREY, linewidth=1.0, linestyle="--")
    for shift, (name, label), colour in zip((-0.12, 0.12), SHOWN.items(), PALETTE, strict=False):
        points = [
            (v, row + shift) for row, part in enumerate(numbers.values()) for v in part[name]
        ]
        axes.plot(*zip(*points, strict=True), "o", markersize=5, color=colour, label=label)
    axes.set(xscale="log", xlabel="over the best simple method", ylim=(len(numbers) - 0.5, -0.5))
    axes.set_yticks(range(len(numbers)), list(numbers))
    every = figures.finite(*(part[name] for part in numbers.values() for name in SHOWN))
    axes.set_xlim(0.9 * min([0.5, *every]), 1.1 * max([2.0, *every]))
    low, high = axes.get_xlim()
    ticks = [tick for tick in TICKS if low < tick < high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    figures.style_axes(axes)
    figures.legend(figure, ncols=2)
    return figure


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw the figure into a folder; return its path."""
    return figures.write_figures({"ratios": partial(_ratios, numbers)}, folder)
