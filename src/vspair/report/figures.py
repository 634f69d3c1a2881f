"""The style that figures share, the sheet that images are placed on, and how files are written.

Colours can be told apart with the usual kinds of colour blindness: viridis for values, a single
hue for spreads, red and blue around white for changes, and Okabe and Ito's palette for lines.
Figures are narrow and their text is large, so that they can be read on a phone. Nothing global
of matplotlib is changed.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vspair.runs.files import atomically, make_folder

__all__ = ["ColourScale", "Sheet", "captioned", "new_figure", "png", "write_figures"]

DPI = 240
"""Pixels an inch; the page shows an inch as 96 CSS pixels, so figures stay sharp."""
LARGE = 400_000
"""Bytes beyond which a file is written with 256 colours."""
SHADES = 64
"""Colours of a colour map: those of three maps and of text are no more than 256."""

INK, GREY, FAINT = "#2b2f36", "#7d8694", "#c9ced6"
MISSING = "#fbdcae"
"""What stands in an image where there is no number."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PRESETS = {"paper": PALETTE[1], "calibrated": PALETTE[3], "anchored": "#882255"}
"""The colour of each preset, the same in every study."""
MAPS = {"values": "viridis", "spread": "Purples", "change": "RdBu_r", "grey": "gray"}
DASHES = ("-", "--", "-.", ":")
MINUS = "\N{MINUS SIGN}"

Limits = tuple[float, float]


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure, its size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Any, size: float = 10) -> None:
    """Give axes thin, faint lines and dark text of one size."""
    axes.tick_params(colors=INK, labelsize=size, length=3, width=0.6, color=FAINT)
    for side, spine in axes.spines.items():
        spine.set(color=FAINT, linewidth=0.8, visible=side in ("left", "bottom"))
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set(color=INK, fontsize=size + 1)


def legend(place: Any, where: str = "outside upper center", **options: Any) -> None:
    """Name the lines of a figure, above it where not said otherwise, or of one axes."""
    style: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": INK}
    place.legend(loc=where, **style | options)


def finite(*parts: Any) -> Any:
    """Return the finite values of arrays of any shape, float64 with shape (n,)."""
    every = [np.asarray(part, dtype=np.float64).ravel() for part in parts]
    values = np.concatenate([np.zeros(0), *every])
    return values[np.isfinite(values)]


# -- colours --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColourScale:
    """The values that colours stand for, in all images that share them.

    Arguments:
        label: What is shown.
        colours: The name of a colour map, or of its use in :data:`MAPS`.
        limits: The ends, which are never equal.
        extend: Beyond which ends values lie: ``neither``, ``min``, ``max`` or ``both``.
        law: Whether colours go by the value, its root or its logarithm; the lower end of the
            latter is above 0.
    """

    label: str
    colours: str
    limits: Limits
    extend: str = "neither"
    law: Literal["linear", "root", "log"] = "linear"

    @classmethod
    def between(cls, label: str, colours: str, limits: Limits, *shown: Any) -> ColourScale:
        """Return the scale between two ends, of arrays that may lie beyond them."""
        values = finite(*shown)
        low, high = limits if limits[1] > limits[0] else (limits[0] - 0.5, limits[0] + 0.5)
        beyond = bool((values < low).any()) + 2 * bool((values > high).any())
        return cls(label, colours, (low, high), ("neither", "min", "max", "both")[beyond])

    @classmethod
    def values(cls, label: str, *shown: Any) -> ColourScale:
        """Return the scale from the least to the greatest value of arrays."""
        some = finite(*shown)
        ends = (float(some.min()), float(some.max())) if len(some) else (0.0, 1.0)
        return cls.between(label, "values", ends)

    @classmethod
    def greys(cls, label: str, base: Any, *others: Any) -> ColourScale:
        """Return a grey scale for all arrays whose ends are those of the first, or near 0, 0."""
        some = finite(base)
        low, high = np.quantile(some, [0.0, 0.9995]) if len(some) else (0.0, 1.0)
        low = 0.0 if 0 <= low < 0.1 * high else low
        return cls.between(label, "grey", (float(low), float(high)), base, *others)

    @classmethod
    def spread(
        cls, label: str, *shown: Any, share: float = 0.999, colours: str = "spread"
    ) -> ColourScale:
        """Return a scale from 0 up to what all but a few values lie below."""
        some = np.maximum(finite(*shown), 0)
        top = float(np.quantile(some, share)) if len(some) else 1.0
        top = top if top > 0 else float(some.max(initial=0.0)) or 1.0
        return cls.between(label, colours, (0.0, top), some)

    @classmethod
    def change(cls, label: str, *shown: Any, share: float = 0.999) -> ColourScale:
        """Return a scale around 0 as far as all but a few values reach."""
        top = cls.spread(label, np.abs(finite(*shown)), share=share).limits[1]
        return cls.between(label, "change", (-top, top), *shown)

    def style(self) -> dict[str, Any]:
        """Return colour map and norm, as matplotlib takes them."""
        from matplotlib import colormaps
        from matplotlib.colors import LogNorm, Normalize, PowerNorm

        shades = colormaps[MAPS.get(self.colours, self.colours)].resampled(SHADES)
        laws: dict[str, Any] = {
            "linear": Normalize,
            "root": partial(PowerNorm, 0.5),
            "log": LogNorm,
        }
        norm = laws[self.law](*self.limits, clip=self.law == "log")
        return {"cmap": shades.with_extremes(bad=MISSING), "norm": norm}


# -- sheets ---------------------------------------------------------------------------------


def _whole(inches: float) -> float:
    """Return a length of whole pixels, so that those of images are all alike."""
    return round(inches * DPI) / DPI


class Sheet:
    """A figure whose parts are placed by hand, in inches from its top left corner.

    Arguments:
        width: Of the figure, in inches.
        height: Of the figure, in inches.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height = _whole(width), _whole(height)
        self.figure = new_figure(width, height)
        self.figure.set_layout_engine("none")
        # All images are in one axes: hundreds of axes would take seconds.
        self.ground = self.axes(0, 0, width, height)
        self.ground.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
        self.ground.set_axis_off()

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        """Return new axes at a place."""
        low = 1 - (top + height) / self.height
        size = width / self.width, height / self.height
        return self.figure.add_axes((left / self.width, low, *size))

    def text(self, left: float, top: float, words: str, size: float = 10, **more: Any) -> None:
        """Write words at a place."""
        self.ground.text(left, top, words, fontsize=size, color=INK, linespacing=1.1, **more)

    def image(
        self, place: tuple[float, float, float], image: Any, scale: ColourScale, marked: bool
    ) -> None:
        """Show an image (H, W) in a square (left, top, side); a marked one has a dark frame."""
        from matplotlib.patches import Rectangle

        left, top, side = _whole(place[0]), _whole(place[1]), place[2]
        shown = np.ma.masked_invalid(np.asarray(image, dtype=np.float64))
        style: dict[str, Any] = {"extent": (left, left + side, top + side, top), "aspect": "auto"}
        self.ground.imshow(shown, interpolation="nearest", **style, **scale.style())
        edge = {"edgecolor": INK, "linewidth": 1.6} if marked else {"edgecolor": FAINT}
        style = {"linewidth": 0.6, "facecolor": "none"} | edge
        self.ground.add_patch(Rectangle((left, top), side, side, **style))

    def outline(self, place: tuple[float, float, float], region: Any) -> None:
        """Draw the edge of a region (H, W) along its pixels, but not along the image's edges."""
        from matplotlib.collections import LineCollection

        inside = np.asarray(region, dtype=bool)
        down, across = np.eye(2)
        beside = np.argwhere(inside[:, 1:] != inside[:, :-1]) + across
        below = np.argwhere(inside[1:] != inside[:-1]) + down
        edges = [(beside, beside + down), (below, below + across)]
        places = np.concatenate([np.stack(ends, axis=1) for ends in edges])[..., ::-1]
        places = np.array(place[:2]) + places * (place[2] / np.array(inside.T.shape))
        style: dict[str, Any] = {"colors": PALETTE[1], "linewidths": 1.1, "capstyle": "round"}
        self.ground.add_collection(LineCollection(list(places), **style))

    def bar(self, scale: ColourScale, left: float, top: float, height: float) -> None:
        """Draw an upright colour bar; a power of ten goes to its label."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        place, label = self.axes(left, top, 0.1, height), scale.label
        bar = self.figure.colorbar(ScalarMappable(**scale.style()), cax=place, extend=scale.extend)
        if scale.law != "log":
            most = max(abs(end) for end in scale.limits)
            power = 0 if 0.05 <= most < 1e4 else int(np.floor(np.log10(most)))
            bar.locator = MaxNLocator(5 if height > 1.6 else 3, steps=[1, 2, 5, 10])
            bar.formatter = FuncFormatter(lambda v, _: f"{v / 10**power:.6g}".replace("-", MINUS))
            bar.update_ticks()
            label += f" ($10^{{{power}}}$)" if power else ""
        bar.outline.set(edgecolor=FAINT, linewidth=0.6)
        place.tick_params(labelsize=9, colors=INK, length=2, width=0.6, color=GREY, pad=2)
        place.minorticks_off()
        bar.set_label(label, fontsize=10, color=INK)
        place.yaxis.set_label_coords(5.8, 0.5)  # in widths of the bar: labels stand in line


# -- files ----------------------------------------------------------------------------------


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file, with nothing in it that changes from run to run."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return _fewer_colours(buffer) if buffer.tell() > LARGE else buffer.getvalue()


def _fewer_colours(file: io.BytesIO) -> bytes:
    """Return a PNG file in its 256 most frequent colours, others as the nearest of them."""
    from PIL import Image

    pixels = np.asarray(Image.open(file).convert("RGB")).astype(np.int32)
    codes, places, counts = np.unique(
        pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True
    )
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    kept = colours[np.argsort(-counts, kind="stable")[:256]]
    nearest = np.square(colours[:, None] - kept).sum(2).argmin(1).astype(np.uint8)
    image = Image.fromarray(nearest[places].reshape(pixels.shape[:2]))
    image.putpalette(kept.astype(np.uint8).tobytes())
    smaller = io.BytesIO()
    image.save(smaller, format="png", optimize=True)
    return smaller.getvalue()


def write_figures(figures: Mapping[str, Callable[[], Any]], folder: Path) -> list[Path]:
    """Draw figures into a folder as PNG files, each whole or not at all; return their paths.

    Arguments:
        figures: What draws each figure, by its name, or returns None to leave it out.
        folder: Made where it is missing.
    """
    make_folder(folder)
    paths = []
    for name, draw in figures.items():
        if (figure := draw()) is not None:
            paths.append(folder / f"{name}.png")
            atomically(paths[-1], partial(Path.write_bytes, data=png(figure)))
    return paths


def captioned(paths: Sequence[Path], captions: Mapping[str, str]) -> str:
    """Return figures with their captions, by file name without its ending, as Markdown."""
    return "\n\n".join(f"![{captions[p.stem]}]({p.name})\n\n{captions[p.stem]}" for p in paths)
