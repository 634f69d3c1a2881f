"""Figures in one style, drawn without any global state.

Colours are told apart with the usual kinds of colour blindness: viridis for values, a single
hue for spreads, red and blue around white for changes, and Okabe and Ito's palette for lines.
Text is large for the size of a figure, so that it can be read on a phone.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from vspair.errors import VspairError
from vspair.runs import files

__all__ = ["ColourScale", "ImageRow", "Sheet", "image_grid", "lines", "png", "write_all"]

DPI = 160
"""Pixels an inch; the page shows an inch as 96 CSS pixels, so figures stay sharp."""

INK = "#2b2f36"
GREY = "#7d8694"
FAINT = "#c9ced6"
MISSING = "#fbdcae"
"""What stands in an image where there is no number."""
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


def new_figure(width: float, height: float, *, fine: float = 1.0) -> Any:
    """Return an empty figure, its size in inches; ``fine`` multiplies the pixels an inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    dots = fine * DPI
    figure = Figure(figsize=(width, height), dpi=dots, layout="constrained", facecolor="white")
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


def finite(*parts: Any) -> Any:
    """Return the finite values of arrays of any shape, float64 with shape (n,)."""
    every = np.concatenate([np.asarray(part, dtype=np.float64).ravel() for part in parts])
    return every[np.isfinite(every)]


@dataclass(frozen=True)
class ColourScale:
    """What colours mean in the images that share them.

    Arguments:
        label: What is shown.
        colours: The name of a colour map.
        limits: The ends, which are never equal.
        extend: Beyond which ends values lie: ``neither``, ``min``, ``max`` or ``both``.
        log: Whether colours go by the logarithm; then the lower end is above 0.
    """

    label: str
    colours: str
    limits: Limits
    extend: str = "neither"
    log: bool = False

    @classmethod
    def of(cls, label: str, colours: str, shown: Sequence[Any], limits: Limits) -> ColourScale:
        """Return the scale of arrays between two ends, wherever their values lie."""
        values = finite(*shown)
        low, high = limits if limits[1] > limits[0] else (limits[0] - 0.5, limits[0] + 0.5)
        over = bool((values < low).any()), bool((values > high).any())
        return cls(label, colours, (low, high), _EXTEND[over])

    @classmethod
    def greys(cls, label: str, base: Any, *others: Any) -> ColourScale:
        """Return a grey scale for all arrays whose ends are those of the first, or near 0, 0."""
        values = finite(base)
        low, high = np.quantile(values, [0.0, 0.9995]) if len(values) else (0.0, 1.0)
        low = 0.0 if 0 <= low < 0.1 * high else low
        return cls.of(label, "gray", [base, *others], (float(low), float(high)))

    @classmethod
    def spread(cls, label: str, *shown: Any, share: float = 0.999) -> ColourScale:
        """Return a scale from 0 up to what all but a few values lie below."""
        values = finite(*shown)
        top = float(np.quantile(values, share)) if len(values) else 1.0
        top = top if top > 0 else float(values.max(initial=0.0)) or 1.0
        return cls.of(label, MAPS["spread"], [np.maximum(values, 0)], (0.0, top))

    @classmethod
    def change(cls, label: str, *shown: Any, share: float = 0.999) -> ColourScale:
        """Return a scale around 0 as far as all but a few values reach."""
        top = cls.spread(label, np.abs(finite(*shown)), share=share).limits[1]
        return cls.of(label, MAPS["change"], shown, (-top, top))


_EXTEND = {
    (False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both",
}  # fmt: skip


class Sheet:
    """A figure whose parts are placed by hand, in inches from its top left corner.

    Arguments:
        width: Of the figure, in inches.
        height: Of the figure, in inches.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = new_figure(width, height, fine=1.5)
        self.figure.set_layout_engine("none")

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Return new axes at a place."""
        low = 1 - (top + height) / self.height
        size = width / self.width, height / self.height
        return self.figure.add_axes((left / self.width, low, *size))

    def image(self, left: float, top: float, side: float, image: Any, scale: ColourScale) -> Any:
        """Show an image of shape (H, W) in a square; return what a colour bar is made from."""
        from matplotlib.colors import LogNorm, Normalize

        axes = self.axes(left, top, side, side)
        axes.set_facecolor(MISSING)
        axes.xaxis.set_visible(False)
        axes.yaxis.set_visible(False)
        for spine in axes.spines.values():
            spine.set(color=FAINT, linewidth=0.6)
        norm = (LogNorm if scale.log else Normalize)(*scale.limits, clip=scale.log)
        shown = np.ma.masked_invalid(np.asarray(image, dtype=np.float64))
        style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
        return axes.imshow(shown, cmap=scale.colours, norm=norm, **style)

    def text(self, left: float, top: float, words: str, size: float = 9.0, **more: Any) -> None:
        """Write words at a place."""
        place = left / self.width, 1 - top / self.height
        self.figure.text(*place, words, fontsize=size, color=INK, **more)

    def bar(
        self, drawn: Any, scale: ColourScale, place: tuple[float, float, float, float]
    ) -> None:
        """Draw a colour bar, upright or flat; a power of ten goes to its label.

        Arguments:
            drawn: What :meth:`image` returned.
            scale: Its scale.
            place: Left, top, width and height of the bar without its numbers.
        """
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        flat = place[2] > place[3]
        more: dict[str, Any] = {"orientation": "horizontal" if flat else "vertical"}
        bar = self.figure.colorbar(drawn, cax=self.axes(*place), extend=scale.extend, **more)
        label = scale.label
        if not scale.log:
            power = _power(scale.limits)
            most = 5 if max(place[2:]) > 1.6 else 3
            bar.locator = MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
            bar.formatter = FuncFormatter(lambda v, _: f"{v / 10**power:.6g}".replace("-", MINUS))
            bar.update_ticks()
            label += f" ($10^{{{power}}}$)" if power else ""
        bar.outline.set(edgecolor=FAINT, linewidth=0.6)
        bar.ax.tick_params(labelsize=8, colors=INK, length=2, width=0.6, color=GREY, pad=2)
        bar.ax.minorticks_off()
        bar.set_label(label, fontsize=9, color=INK)


MINUS = "\N{MINUS SIGN}"


def _power(limits: Limits) -> int:
    """Return the power of ten to take out of numbers: 0 where they are short without it."""
    most = max(abs(limits[0]), abs(limits[1]))
    return 0 if 0.02 <= most < 1e4 else int(np.floor(np.log10(most)))


def share_of(values: Any, edges: Any) -> Any:
    """Return how many per cent of finite values lie in each bin, with shape (bins,)."""
    kept = np.clip(finite(values), edges[0], edges[-1])
    return 100 * np.histogram(kept, edges)[0] / max(len(kept), 1)


def floor_of(shares: Sequence[Any]) -> float:
    """Return where a logarithmic axis of per cents begins, or 0 where a plain one will do."""
    some = np.concatenate([s[s > 0] for s in shares])
    wide = len(some) and some.max() > 50 * some.min()
    return max(float(10 ** np.floor(np.log10(some.min()))), 0.001) if wide else 0.0


def outline(axes: Any, heights: Any, edges: Any, floor: float, **style: Any) -> None:
    """Draw a histogram as a filled outline that also a logarithmic axis can hold."""
    high = np.maximum(heights, floor)
    axes.stairs(high, edges, baseline=floor, fill=True, alpha=0.25, color=style["color"])
    axes.stairs(high, edges, baseline=floor, linewidth=1.4, **style)


def plain(axes: Any) -> None:
    """Write the numbers of a logarithmic vertical axis in figures, not as powers."""
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.tick_params(which="minor", length=2, width=0.5, color=FAINT)


def even_axis(axes: Any, *parts: Any) -> None:
    """Make the vertical axis logarithmic where positive values are far apart."""
    from matplotlib.ticker import LogLocator

    values = finite(*parts) if parts else np.zeros(0)
    if len(values) and values.min() > 0 and values.max() > 8 * values.min():
        axes.set_yscale("log")
        subs = (1.0,) if values.max() > 300 * values.min() else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(lambda *_: "")
        plain(axes)


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file, with nothing in it that changes from run to run."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def write_all(figures: Mapping[str, Callable[[], Any]], folder: Path) -> list[Path]:
    """Draw figures into a folder as PNG files; return their paths.

    Arguments:
        figures: What draws each figure, by its name, or returns None to leave it out.
        folder: Made where it is missing.
    """
    files.make_folder(folder)
    paths = []
    for name, draw in figures.items():
        figure = draw()
        if figure is None:
            continue
        picture = png(figure)
        paths.append(folder / f"{name}.png")
        files.atomically(paths[-1], partial(Path.write_bytes, data=picture))
    return paths


def write_figures(
    draws: Mapping[str, tuple[str, Callable[[Any], Any]]], numbers: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths.

    Arguments:
        draws: By file name, the group of numbers that a figure needs, and what draws it.
        numbers: Arrays by group and name.
        folder: Where the PNG files go.
    """
    found = {
        name: partial(draw, numbers[group])
        for name, (group, draw) in draws.items()
        if numbers.get(group)
    }
    return write_all(found, folder)


def captioned(paths: Sequence[Path], captions: Mapping[str, str]) -> str:
    """Return figures with their captions, as Markdown."""
    return "\n\n".join(f"![{captions[p.stem]}]({p.name})\n\n{captions[p.stem]}" for p in paths)
