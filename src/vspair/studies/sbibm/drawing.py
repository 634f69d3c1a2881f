"""The figure of the study, drawn from saved numbers: samples by task and method."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report import figures
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

WORDS = read_words("sbibm")
CAPTIONS = WORDS.captions
"""What each figure shows, by its file name."""

AXES = {"slcp": (2, 3)}
"""The parameters that are shown, where they are not the first two."""


def _samples(numbers: Groups) -> Any:
    """Draw a row for each method below the reference, and a column for each task."""
    methods = list(dict.fromkeys(name for part in numbers.values() for name in part))
    if not methods:
        return None
    figure = figures.new_figure(1.7 * len(numbers) + 0.3, 1.7 * len(methods) + 0.3)
    grid = figure.subplots(len(methods), len(numbers), squeeze=False)
    for column, (task, part) in enumerate(numbers.items()):
        i, j = AXES.get(task, (0, 1))
        for row, name in enumerate(methods):
            axes, points = grid[row, column], part[name]
            colour = figures.GREY if name == "reference" else figures.PALETTE[row - 1]
            style: dict[str, Any] = {"color": colour, "alpha": 0.5, "linewidths": 0}
            axes.scatter(points[:, i], points[:, j], s=3, **style)
            axes.set_title("" if row else WORDS.names[task])
            axes.set_ylabel("" if column else name)
            figures.style_axes(axes, 8)
            axes.set(xlim=_ends(part, i), ylim=_ends(part, j))
    return figure


def _ends(part: Mapping[str, Any], i: int) -> tuple[float, float]:
    """Return the ends of an axis on which nearly all samples of every method are seen."""
    ends = [np.quantile(values[:, i], [0.005, 0.995]) for values in part.values()]
    low, high = float(np.min(ends)), float(np.max(ends))
    room = 0.1 * (high - low) or 1.0
    return low - room, high + room


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw the figure whose numbers are at hand into a folder; return its path."""
    return figures.write_figures({"samples": partial(_samples, numbers)}, folder)
