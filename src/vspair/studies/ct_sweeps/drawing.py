"""The figures of appendix B, drawn from saved numbers: what the Beta prior and gamma_x do.

Numbers are arrays by group and name; a group that is not there is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report import curves, figures
from vspair.report.figures import DASHES, GREY, INK, PALETTE, ColourScale, finite, style_axes
from vspair.report.heat_map import heat_map
from vspair.report.images import ImageRow, image_grid
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

Part = Mapping[str, Any]

TITLES = {"prior": "$\\alpha_0$ and $\\beta_0$", "gamma": "$\\gamma_x$"}
"""What differs between the trainings of each study."""


def _beta(part: Part) -> Any:
    """Draw how many indices are active, and the error, over both parameters of the Beta prior."""
    panels = {"nnz": "active indices", "mse": "MSE of a sample"}
    found = {name: title for name, title in panels.items() if name in part}
    if not found:
        return None
    figure = figures.new_figure(3.4 * len(found), 0.62 * len(part["alpha0"]) + 0.95)
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, title) in zip(grid, found.items(), strict=True):
        heat_map(axes, np.asarray(part[name], dtype=float))
        axes.set(title=title, xlabel="$\\beta_0$", ylabel="$\\alpha_0$")
        axes.set_xticks(range(len(part["beta0"])), [f"{v:g}" for v in part["beta0"]])
        axes.set_yticks(range(len(part["alpha0"])), [f"{v:g}" for v in part["alpha0"]])
        style_axes(axes)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return figure


# -- gamma_x --------------------------------------------------------------------------------


def _gamma(part: Part) -> Any:
    """Draw truth, mean, variance and the histogram of omega, one row a value of gamma_x."""
    if "gamma_x" not in part:
        return None
    grey = ColourScale.greys("attenuation", part["truth"], part["mean"])
    scales = [grey, grey, _variance_scale(part["variance"])]
    rows = [
        ImageRow(f"$\\gamma_x$ = {value:g}", [part["truth"], mean, variance], scales)
        for value, mean, variance in zip(
            part["gamma_x"], part["mean"], part["variance"], strict=True
        )
    ]
    rows[0] = replace(rows[0], above=["truth", "mean", "variance"])
    side, width = 1.1, 1.7
    sheet = image_grid(rows, side, right=0.75 + width + 0.2, bottom=0.35)
    edges = np.linspace(0, 1, 41)
    heights = [curves.shares(values, edges) for values in part["omega"]]
    left, pitch = sheet.width - width - 0.2, (sheet.height - 0.72 - side) / max(len(rows) - 1, 1)
    for i, high in enumerate(heights):
        axes = sheet.axes(left, 0.31 + i * pitch, width, side - 0.08)
        floor, most = curves.least_share(heights), max(float(h.max()) for h in heights) or 1.0
        curves.histogram(axes, {"": high}, edges, {"": PALETTE[0]}, floor=floor)
        axes.set_ylim(floor, 8 * most if floor else 1.25 * most)
        style_axes(axes, 8)
        values = finite(part["omega"][i])
        words = f"mean {values.mean():.2f}" if len(values) else "no value"
        axes.text(0.5, 0.83, words, transform=axes.transAxes, ha="center", size=8, color=INK)
        axes.tick_params(labelbottom=i == len(rows) - 1)
        axes.set_ylabel("share (%)")
    axes.set_xlabel("$\\hat\\omega_x$")
    return sheet.figure


def _variance_scale(variance: Any) -> ColourScale:
    """Return one scale for all rows (g, H, W), a logarithmic one where they are far apart."""
    linear = ColourScale.spread("variance", variance)
    tops = [ColourScale.spread("", row).limits[1] for row in variance if (finite(row) > 0).any()]
    if not tops or max(tops) < 6 * min(tops):
        return linear
    high = linear.limits[1]
    extend = "both" if linear.extend == "max" else "min"
    return replace(linear, limits=(min(min(tops), high) / 30, high), law="log", extend=extend)


# -- learning curves ------------------------------------------------------------------------


def _curves(part: Part) -> Any:
    """Draw rho and the KL of x over the epochs, a column a study, a line a training."""
    studies = [name for name in TITLES if f"{name}_epoch" in part]
    if not studies:
        return None
    figure = figures.new_figure(3.4 * len(studies) + 0.2, 4.8)
    grid = figure.subplots(2, len(studies), sharex="col", squeeze=False)
    for name, (above, below) in zip(studies, grid.T, strict=True):
        styles, named = _styles(part, name)
        for axes, key in ((above, "rho"), (below, "kl")):
            for values, style in zip(part[f"{name}_{key}"], styles, strict=True):
                axes.plot(part[f"{name}_epoch"], values, linewidth=1.2, **style)
            style_axes(axes)
        above.set(ylim=(0, 1), title=TITLES[name])
        curves.even_axis(below, part[f"{name}_kl"])
        below.set_xlabel("epoch")
        handles = [below.plot([], [], label=label, **style)[0] for label, style in named.items()]
        figures.legend(above, "lower left", handles=handles, ncols=2, fontsize=9)
    grid[0, 0].set_ylabel("$\\rho$")
    grid[1, 0].set_ylabel("KL of x (nats)")
    return figure


def _styles(part: Part, name: str) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return colour and dashes of each training of a study, and what the legend says of them."""
    if name == "gamma":
        words = [f"$\\gamma_x$ = {value:g}" for value in part["gamma_gamma_x"]]
        shades = [{"color": PALETTE[i]} for i in range(len(words))]
        return shades, dict(zip(words, shades, strict=True))
    alpha, beta = part["prior_alpha0"], part["prior_beta0"]
    colours = dict(zip(sorted(set(beta)), PALETTE, strict=False))
    dashes = dict(zip(sorted(set(alpha)), DASHES, strict=False))
    named = {f"$\\beta_0$ = {b:g}": {"color": colour} for b, colour in colours.items()}
    named |= {
        f"$\\alpha_0$ = {a:g}": {"color": GREY, "linestyle": dash} for a, dash in dashes.items()
    }
    return [
        {"color": colours[b], "linestyle": dashes[a]} for a, b in zip(alpha, beta, strict=True)
    ], named


# -- all figures ----------------------------------------------------------------------------

CAPTIONS = read_words("ct_sweeps").captions
"""What each figure shows, by its file name."""


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths."""
    draws = {"beta_prior": (_beta, "beta"), "gamma_x": (_gamma, "gamma")}
    draws["curves"] = _curves, "curves"
    found = {name: partial(draw, numbers.get(k, {})) for name, (draw, k) in draws.items()}
    return figures.write_figures(found, folder)
