"""Heat maps with the numbers in their cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vspair.report.figures import FAINT, GREY, MAPS, finite

__all__ = ["heat_map", "readable"]


def heat_map(axes: Any, values: Any) -> None:
    """Draw values (a, b) as cells with the numbers in them; what was not measured is hatched."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    known = finite(values)
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    wide = low > 0 and high > 20 * low
    norm = (LogNorm if wide else Normalize)(low, high if high > low else low + 1)
    colours = colormaps[MAPS["values"]]
    for (i, j), value in np.ndenumerate(values):
        there = bool(np.isfinite(value))
        face = colours(float(norm(value))) if there else (1.0, 1.0, 1.0, 1.0)
        style: dict[str, Any] = {"facecolor": face, "edgecolor": "white", "linewidth": 1.5}
        if not there:
            style |= {"hatch": "////", "edgecolor": FAINT}
        axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, **style))
        ink = readable(face) if there else GREY
        words = _figures(value, high, wide) if there else "none"
        axes.text(j, i, words, ha="center", va="center", fontsize=10, color=ink)
    rows, columns = values.shape
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))


def readable(colour: Sequence[float]) -> str:
    """Return black or white, whichever stands out more from a colour (red, green, blue, ...)."""
    linear = [(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4) for c in colour[:3]]
    luminance = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return "black" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "white"


def _figures(value: float, largest: float, wide: bool) -> str:
    """Return a number with as many decimals as three digits of the largest have, or its own."""
    if wide or abs(largest) >= 1e6:
        return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
    decimals = 2 - int(np.floor(np.log10(abs(largest) or 1.0)))
    return f"{value:.{max(decimals, 0)}f}" if decimals < 7 else f"{value:.1e}"
