"""The figures of appendix B, drawn from saved numbers: what the Beta prior and gamma_x do.

Numbers are arrays by group and name, as in :mod:`vspair.studies.ct.drawing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report.figures import (
    GREY,
    INK,
    PALETTE,
    ColourScale,
    Sheet,
    captioned,
    even_axis,
    finite,
    floor_of,
    new_figure,
    outline,
    plain,
    quiet,
    share_of,
    write_figures,
)
from vspair.report.heat_map import heat_map

__all__ = ["FIGURES", "draw_beta", "draw_curves", "draw_gamma", "draw_sweeps", "gallery"]

Part = Mapping[str, Any]


# -- the Beta prior -------------------------------------------------------------------------


def draw_beta(part: Part) -> Any:
    """Draw how many indices are active, and the error, over both parameters of the Beta prior.

    Arguments:
        part: ``alpha0`` (a,), ``beta0`` (b,), and ``nnz`` and ``mse`` (a, b); what was not
            measured is NaN.
    """
    panels = {"nnz": "active indices", "mse": "MSE of a sample"}
    found = {name: title for name, title in panels.items() if name in part}
    if not found:
        return None
    rows, columns = len(part["alpha0"]), len(part["beta0"])
    figure = new_figure(3.5 * len(found), 0.62 * rows + 0.95)
    for axes, (name, title) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        heat_map(axes, np.asarray(part[name], dtype=float))
        axes.set_title(title, pad=6)
        axes.set_xticks(range(columns), [f"{v:g}" for v in part["beta0"]])
        axes.set_yticks(range(rows), [f"{v:g}" for v in part["alpha0"]])
        axes.set_xlabel("$\\beta_0$")
        axes.set_ylabel("$\\alpha_0$")
        quiet(axes)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return figure


# -- gamma_x --------------------------------------------------------------------------------


def draw_gamma(part: Part) -> Any:
    """Draw truth, mean, variance and the histogram of omega, one row a value of gamma_x.

    Arguments:
        part: ``gamma_x`` (g,), ``truth`` (H, W), ``mean`` and ``variance`` (g, H, W), and
            ``omega`` (g, n).
    """
    grey = ColourScale.greys("attenuation", part["truth"], part["mean"])
    spread = _variance_scale(part["variance"])
    side, left, top, gap = 1.1, 0.92, 0.26, 0.1
    columns = [left, left + side + 0.04, left + 2 * (side + 0.04)]
    place = columns[-1] + side + 0.62
    count = len(part["gamma_x"])
    bottom = top + count * (side + gap) - gap
    sheet = Sheet(place + 1.95, bottom + 0.56)
    for x, title in zip(columns, ("truth", "mean", "variance"), strict=True):
        sheet.text(x + side / 2, top - 0.06, title, ha="center")
    sheet.text(place + 0.87, top - 0.06, "histogram of $\\hat\\omega_x$", ha="center")
    for i, value in enumerate(np.asarray(part["gamma_x"], dtype=float)):
        y = top + i * (side + gap)
        words = f"$\\gamma_x$ = {value:g}"
        sheet.text(left - 0.08, y + side / 2, words, ha="right", va="center")
        image = sheet.image(columns[0], y, side, part["truth"], grey)
        sheet.image(columns[1], y, side, part["mean"][i], grey)
        variance = sheet.image(columns[2], y, side, part["variance"][i], spread)
    width = 2 * side + 0.04
    sheet.bar(image, grey, (left + 0.15 * width, bottom + 0.08, 0.7 * width, 0.09))
    sheet.bar(variance, spread, (columns[2] + 0.04, bottom + 0.08, side - 0.08, 0.09))
    _histograms(sheet, part["omega"], [top + i * (side + gap) for i in range(count)], place)
    return sheet.figure


def _variance_scale(variance: Any) -> ColourScale:
    """Return one scale for all rows (g, H, W), a logarithmic one where they are far apart."""
    linear = ColourScale.spread("variance", variance)
    tops = [ColourScale.spread("", row).limits[1] for row in variance if (finite(row) > 0).any()]
    if not tops or max(tops) < 6 * min(tops):
        return linear
    high = linear.limits[1]
    extend = "both" if linear.extend == "max" else "min"
    return replace(linear, limits=(min(min(tops), high) / 30, high), log=True, extend=extend)


def _histograms(sheet: Sheet, omega: Any, tops: Sequence[float], left: float) -> None:
    """Draw one histogram a row, all with the same axes, and the mean of each."""
    side, width = 1.1, 1.75
    edges = np.linspace(0, 1, 41)
    shares = [share_of(row, edges) for row in omega]
    floor = floor_of(shares)
    most = max((float(s.max()) for s in shares), default=1.0) or 1.0
    for i, (top, heights) in enumerate(zip(tops, shares, strict=True)):
        axes = sheet.axes(left, top + 0.04, width, side - 0.08)
        if floor:
            axes.set_yscale("log")
        outline(axes, heights, edges, floor, color=PALETTE[0])
        axes.set(xlim=(0, 1), ylim=(floor, 8 * most if floor else 1.25 * most))
        quiet(axes)
        axes.tick_params(labelsize=8, labelbottom=i == len(tops) - 1, pad=2)
        mean = finite(omega[i])
        words = f"mean {mean.mean():.2f}" if len(mean) else "no value"
        axes.text(
            0.5,
            0.97,
            words,
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=8,
            color=INK,
        )
        axes.set_ylabel("share (%)", fontsize=8)
        if floor:
            ticks = [10.0**p for p in range(-9, 3) if floor <= 10.0**p <= 2 * most]
            axes.set_yticks(ticks[::2] if len(ticks) > 4 else ticks)
            axes.minorticks_off()
            plain(axes)


# -- learning curves ------------------------------------------------------------------------

_DASHES = ("-", "--", "-.", ":")
_TITLES = {"prior": "$\\alpha_0$ and $\\beta_0$", "gamma": "$\\gamma_x$"}


def draw_curves(part: Part) -> Any:
    """Draw rho and the KL of x over the epochs, a column a study, a line a training.

    Arguments:
        part: For each study, ``prior`` and ``gamma``, of those that are there: ``<study>_epoch``
            (e,), ``<study>_rho`` and ``<study>_kl`` (n, e), not finite where nothing was
            measured; ``prior_alpha0``, ``prior_beta0`` and ``gamma_gamma_x`` (n,).
    """
    studies = [name for name in _TITLES if f"{name}_epoch" in part]
    if not studies:
        return None
    figure = new_figure(3.6 * len(studies) + 0.3, 4.6)
    grid = figure.subplots(2, len(studies), sharex="col", squeeze=False)
    for name, (above, below) in zip(studies, grid.T, strict=True):
        styles = _curve_styles(part, name)
        for axes, key in ((above, "rho"), (below, "kl")):
            for values, style in zip(part[f"{name}_{key}"], styles, strict=True):
                axes.plot(part[f"{name}_epoch"], values, linewidth=1.2, **style)
            quiet(axes)
        above.set(ylim=(0, 1), title=_TITLES[name])
        even_axis(below, part[f"{name}_kl"])
        below.set_xlabel("epoch")
        _curve_legend(above, part, name)
    for axes, words in zip(grid[:, 0], ("$\\rho$", "KL of x (nats)"), strict=True):
        axes.set_ylabel(words)
    return figure


def _dashes(part: Part) -> dict[float, Any]:
    """Return the dashes of each alpha0."""
    return dict(zip(sorted(set(part["prior_alpha0"])), _DASHES, strict=False))


def _curve_styles(part: Part, name: str) -> list[dict[str, Any]]:
    """Return colours, dashes and, once a colour, labels."""
    if name == "gamma":
        values = [f"$\\gamma_x$ = {value:g}" for value in part["gamma_gamma_x"]]
        return [{"color": c, "label": v} for c, v in zip(PALETTE, values, strict=False)]
    alpha, beta, dashes = list(part["prior_alpha0"]), list(part["prior_beta0"]), _dashes(part)
    colours = dict(zip(sorted(set(beta)), PALETTE, strict=False))
    styles = [
        {"color": colours[b], "linestyle": dashes[a]} for a, b in zip(alpha, beta, strict=True)
    ]
    for b in colours:
        i = beta.index(b)
        styles[i] = styles[i] | {"label": f"$\\beta_0$ = {b:g}"}
    return styles


def _curve_legend(axes: Any, part: Part, name: str) -> None:
    """Name the colours and, in grey, the dashes."""
    from matplotlib.lines import Line2D

    handles = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    handles = [Line2D([], [], color=h.get_color(), label=h.get_label()) for h in handles]
    if name == "prior":
        handles += [
            Line2D([], [], color=GREY, linestyle=dash, label=f"$\\alpha_0$ = {a:g}")
            for a, dash in _dashes(part).items()
        ]
    style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "loc": "lower left"}
    axes.legend(handles=handles, ncols=2, **style)


# -- all figures ----------------------------------------------------------------------------

FIGURES: dict[str, str] = {
    "beta_prior": "Average number of active indices and average MSE of a sample on test images "
    "over the parameters of the Beta prior.",
    "gamma_x": "One test image under models that differ in gamma_x: truth, mean and pixelwise "
    "variance of samples, and the probabilities that an index is active. All rows have the "
    "same scales.",
    "curves": "rho, and the KL of x as a mean over training images, over the epochs of every "
    "training, a column a study.",
}
"""What each figure shows, by its file name."""

_DRAWS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "beta_prior": ("beta", draw_beta),
    "gamma_x": ("gamma", draw_gamma),
    "curves": ("curves", draw_curves),
}


def draw_sweeps(numbers: dict[str, Any], folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths.

    Arguments:
        numbers: Arrays by group and name.
        folder: Where the PNG files go.
    """
    return write_figures(_DRAWS, numbers, folder)


def gallery(paths: Sequence[Path], more: Mapping[str, str] | None = None) -> str:
    """Return figures that :func:`draw_sweeps` drew with their captions, as Markdown.

    Arguments:
        paths: The figures.
        more: What to say in the captions of some of them, by file name without its ending.
    """
    more = more or {}
    return captioned(
        paths, {k: f"{text} {more.get(k, '')}".strip() for k, text in FIGURES.items()}
    )
