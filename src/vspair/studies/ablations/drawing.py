"""The figure of the ablations, drawn from saved numbers: arrays by set and part."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from vspair.report import figures
from vspair.report.figures import FAINT, GREY, PALETTE
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

MARKERS = "osD^vP"
"""The marker of each set, so that points can be told apart without colours."""

ENDS = 0.6, 1.7
"""The farthest ends of the axis: what lies beyond is at an end, with its number."""

TICKS = [0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
"""What is written on the axis, where there is room."""

APART = 0.09
"""The least distance of two numbers on the axis, as a share of it."""

_WORDS = read_words("ablations")
CAPTIONS = _WORDS.captions
"""What each figure shows, by its file name."""


def _ticks(low: float, high: float) -> list[float]:
    """Return the numbers on a logarithmic axis, 1 and others that are far enough apart."""
    shown: list[float] = []
    least = APART * math.log(high / low)
    for tick in sorted(TICKS, key=lambda t: abs(math.log(t))):
        if low < tick < high and all(abs(math.log(tick / other)) > least for other in shown):
            shown.append(tick)
    return sorted(shown)


def _limits(numbers: Groups) -> tuple[float, float]:
    """Return the ends of the axis: all ratios and 1 are between them, if not too far away."""
    every = figures.finite(*(v for found in numbers.values() for v in found.values()))
    low, high = min([0.95, *every]), max([1.05, *every])
    return max(0.97 * low, ENDS[0]), min(1.03 * high, ENDS[1])


def _points(axes: Any, found: dict[str, Any], at: list[float], marker: str, **style: Any) -> None:
    """Draw the means and ranges of one set, at their heights; numbers where the axis ends."""
    low, high = axes.get_xlim()
    least, most = ([float(f(v)) for v in found.values()] for f in (min, max))
    axes.hlines(at, least, most, color=style["color"], linewidth=1.4)
    means = [float(v.mean()) for v in found.values()]
    inside = [min(max(mean, low), high) for mean in means]
    axes.plot(inside, at, marker, markersize=5, clip_on=False, **style)
    for mean, shown, height in zip(means, inside, at, strict=True):
        if mean != shown:
            side, align = (-7, "right") if mean > shown else (7, "left")
            how = {"textcoords": "offset points", "ha": align, "va": "center", "fontsize": 8}
            axes.annotate(f"{mean:.3g}", (shown, height), (side, 0), color=style["color"], **how)


def _ratios(numbers: Groups) -> Any:
    """Draw a line for each part and a point for each set, with a bar from least to greatest."""
    parts = [name for name in _WORDS.names if any(name in found for found in numbers.values())]
    figure = figures.new_figure(5.6, 1.3 + len(parts) * max(0.32, 0.08 + 0.13 * len(numbers)))
    axes = figure.add_subplot()
    axes.axvline(1.0, color=GREY, linewidth=1.0, linestyle="--")
    for line in range(len(parts) - 1):
        axes.axhline(line + 0.5, color=FAINT, linewidth=0.5)
    axes.set(xscale="log", xlim=_limits(numbers), ylim=(len(parts) - 0.5, -0.5))
    for i, (name, found) in enumerate(numbers.items()):
        shift = 0.22 * (i - (len(numbers) - 1) / 2)
        at = [parts.index(part) + shift for part in found]
        style = {"color": PALETTE[i % len(PALETTE)], "label": name}
        _points(axes, found, at, MARKERS[i % len(MARKERS)], **style)
    axes.set(xlabel="CRPS over that of the full model")
    axes.set_yticks(range(len(parts)), [_WORDS.names[part] for part in parts])
    ticks = _ticks(*axes.get_xlim())
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    figures.style_axes(axes)
    figures.legend(figure, ncols=min(4, len(numbers)))
    return figure


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw the figure into a folder; return its path."""
    return figures.write_figures({"parts": partial(_ratios, numbers)}, folder)
