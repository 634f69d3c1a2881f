"""Figures in one style, drawn without any global state.

Colours are told apart with the usual kinds of colour blindness: viridis for values, a single
hue for spreads, red and blue around white for changes, and Okabe and Ito's palette for lines.
Text is large for the size of a figure, so that it can be read on a phone.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from vspair.errors import VspairError

__all__ = ["ImageRow", "image_grid", "lines", "load_numbers", "png"]

DPI = 160
"""Pixels an inch; the page shows an inch as 96 CSS pixels, so figures stay sharp."""

INK = "#2b2f36"
GREY = "#7d8694"
FAINT = "#c9ced6"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MAPS = {"values": "viridis", "spread": "Purples", "change": "RdBu_r"}

Limits = tuple[float, float]


@dataclass(frozen=True)
class ImageRow:
    """One row of a grid of images, with one colour bar for all of them.

    Arguments:
        label: What the row shows.
        images: The images, with shape (n, H, W); the first index runs downwards.
        kind: ``values``, ``spread`` (from zero up) or ``change`` (around zero).
        limits: The ends of the colour scale; from the images where not given. Rows with the
            same limits can be compared by colour.
    """

    label: str
    images: Tensor
    kind: Literal["values", "spread", "change"] = "values"
    limits: Limits | None = None

    def scale(self) -> Limits:
        """Return the ends of the colour scale, which are never equal."""
        low, high = self.limits or (float(self.images.min()), float(self.images.max()))
        if self.kind == "spread":
            low = min(low, 0.0)
        if self.kind == "change":
            high = max(abs(low), abs(high))
            low = -high
        return (low, high) if high > low else (low - 0.5, high + 0.5)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def quiet(axes: Any) -> None:
    """Give axes thin, faint lines and dark text of one size."""
    axes.tick_params(colors=INK, labelsize=10, length=3, width=0.6, color=FAINT)
    for side, spine in axes.spines.items():
        spine.set_color(FAINT)
        spine.set_linewidth(0.8)
        spine.set_visible(side in ("left", "bottom"))
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(INK)
        label.set_fontsize(11)


def _show(axes: Any, image: Tensor, row: ImageRow) -> Any:
    low, high = row.scale()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    shown = image.detach().cpu().double().numpy()
    return axes.imshow(shown, cmap=MAPS[row.kind], vmin=low, vmax=high, interpolation="nearest")


def _colour_bar(figure: Any, drawn: Any, axes: Any) -> None:
    """Draw a colour bar as high as the image that it stands beside."""
    from matplotlib.ticker import MaxNLocator

    place = axes.inset_axes((1.06, 0, 0.1, 1))
    bar = figure.colorbar(drawn, cax=place, ticks=MaxNLocator(4))
    bar.outline.set_visible(False)
    place.tick_params(labelsize=10, colors=INK, length=0)


def image_grid(
    rows: Sequence[ImageRow], titles: Sequence[str] | None = None, *, cell: float = 1.25
) -> Any:
    """Return a figure with one row of images under another.

    Arguments:
        rows: The rows, each with the same number of images.
        titles: What each column shows.
        cell: The side of one image in inches.
    """
    counts = {len(row.images) for row in rows}
    if len(counts) != 1 or not rows[0].images.numel():
        raise VspairError(
            f"The rows hold {[len(row.images) for row in rows]} images: expected at least one "
            "row, and as many images in each."
        )
    n = counts.pop()
    figure = new_figure(cell * n + 0.8, (cell + 0.32) * len(rows) + (0.3 if titles else 0))
    grid = figure.subplots(len(rows), n, squeeze=False)
    for row, axes in zip(rows, grid, strict=True):
        for image, ax in zip(row.images, axes, strict=True):
            drawn = _show(ax, image, row)
        axes[0].set_title(row.label, loc="left", fontsize=11, color=INK, pad=4)
        _colour_bar(figure, drawn, axes[-1])
    for ax, title in zip(grid[-1], titles or [""] * n, strict=True):
        ax.set_xlabel(title, fontsize=10, color=INK)
    return figure


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    *,
    diagonal: bool = False,
) -> Any:
    """Return a figure of named curves.

    Arguments:
        series: The horizontal and vertical positions of each curve.
        x_label: What the horizontal axis shows.
        y_label: What the vertical axis shows.
        diagonal: Whether to draw the line on which both are equal.
    """
    figure = new_figure(4.4, 3.4)
    axes = figure.subplots()
    if diagonal:
        ends = [min(min(x) for x, _ in series.values()), max(max(x) for x, _ in series.values())]
        axes.plot(ends, ends, color=GREY, linewidth=1.2, linestyle="--", label="ideal")
    for (name, (x, y)), colour in zip(series.items(), PALETTE, strict=False):
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, label=name)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    quiet(axes)
    axes.legend(frameon=False, fontsize=10, labelcolor=INK)
    return figure


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file, with nothing in it that changes from run to run."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def load_numbers(path: Path, separator: str) -> dict[str, dict[str, Any]]:
    """Return the arrays that figures are drawn from, by group and name.

    Arguments:
        path: An ``.npz`` file whose arrays are named group, separator, name.
        separator: What stands between group and name.
    """
    if not path.is_file():
        raise VspairError(
            f"There is no file {path}, which figures are drawn from. Run the study first, without "
            "--draw."
        )
    numbers: dict[str, dict[str, Any]] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                group, _, name = key.partition(separator)
                numbers.setdefault(group, {})[name] = file[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise VspairError(f"{path} is damaged: {error}. Run the study again.") from None
    return numbers
