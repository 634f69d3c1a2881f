"""The figures of section 4.2, drawn from saved numbers.

Every function takes the numbers of each model by the name that it is shown under, as
``studies.mnist_figures.numbers`` returns them. Here are the figures over all test images; those
that show single images are in :mod:`vspair.studies.mnist.drawing_images`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vspair import runs
from vspair.report.figures import GREY, INK, new_figure, quiet
from vspair.runs.files import read_groups, write_groups
from vspair.studies.mnist.drawing_images import (
    Limits,
    Numbers,
    colour_of,
    draw_codes,
    draw_localised,
    draw_localised_walks,
    draw_percentiles,
    draw_perturbation,
    draw_reconstructions,
    having,
    limits_of,
    two_lines,
    write,
)
from vspair.uncertainty import uncertainty_error

__all__ = [
    "FIGURES",
    "draw_all",
    "draw_localisation",
    "draw_uncertainty_error",
    "draw_variance_ratio",
    "gallery",
    "load",
    "save",
]

DASHES = ("-", "--", "-.", ":")


def save(numbers: Numbers, path: Path) -> None:
    """Write the numbers of all models to one compressed ``.npz`` file."""
    write_groups(path, numbers)


def load(path: Path) -> Numbers:
    """Read what :func:`save` wrote."""
    return read_groups(path, "|", "Run the study first, without --draw.")


# -- all test images ------------------------------------------------------------------------


def draw_uncertainty_error(numbers: Numbers, path: Path) -> None:
    """Draw predicted variance over error, one point an image, with line, band and correlation."""
    found = having(numbers, "scatter_variance")
    rows = -(-len(found) // 2)
    figure = new_figure(8.0, 2.9 * rows + 0.2)
    grid = figure.subplots(rows, min(2, len(found)), squeeze=False, sharex=True, sharey=True)
    for ax, (model, part) in zip(grid.flat, found.items(), strict=False):
        _scatter(ax, model, part)
    for ax in list(grid.flat)[len(found) :]:
        ax.remove()
    grid[0, 0].set(xlim=(0, None), ylim=(0, None))
    unit = "pixels in [{:g}, {:g}]".format(*limits_of(found))
    figure.supxlabel(f"MSE of the mean of 30 samples ({unit})", fontsize=11, color=INK)
    figure.supylabel("mean variance of 30 samples", fontsize=11, color=INK)
    write(figure, path)


def _scatter(axes: Any, model: str, part: dict[str, Any]) -> None:
    error, variance = (torch.from_numpy(part[f"scatter_{k}"]) for k in ("error", "variance"))
    fit = uncertainty_error(variance, error)
    colour = colour_of(model)
    axes.scatter(error, variance, s=9, alpha=0.55, linewidths=0, color=colour)
    line = torch.linspace(float(error.min()), float(error.max()), 100, dtype=torch.float64)
    axes.fill_between(line, *fit.band(line), color=INK, alpha=0.25, linewidth=0)
    axes.plot(line, fit.predict(line), color=INK, linewidth=1.4)
    correlation = f"$r$ = {fit.r:.2f}" if math.isfinite(fit.r) else "no correlation"
    axes.set_title(f"{model}: {correlation}, {fit.n} images")
    quiet(axes)


def _logarithmic(axis: Any) -> None:
    """Label an axis that holds logarithms to base ten with the numbers themselves."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda v, _: _power(v)))


def _power(exponent: float) -> str:
    """Return ten to an exponent in figures, or as a power where that would be long."""
    return f"{10**exponent:.6g}" if -3.5 < exponent < 4.5 else f"$10^{{{exponent:.0f}}}$"


def _logarithms(values: Any) -> Any:
    """Return logarithms to base ten of the values that have one."""
    return np.log10(values[np.isfinite(values) & (values > 0)].astype(np.float64))


def draw_variance_ratio(numbers: Numbers, path: Path) -> None:
    """Draw the ratio of variance in the corrupted region to that outside, over all images."""
    kept = having(numbers, "variance_ratio")
    found = {model: _logarithms(part["variance_ratio"]) for model, part in kept.items()}
    figure = new_figure(1.7 * len(found) + 1.4, 3.8)
    axes = figure.subplots()
    places = range(len(found))
    drawn = axes.violinplot(list(found.values()), places, widths=0.8, showextrema=False)
    for body, model in zip(drawn["bodies"], found, strict=True):
        body.set(facecolor=colour_of(model), edgecolor=colour_of(model), alpha=0.55)
    for place, values in zip(places, found.values(), strict=True):
        low, middle, high = np.percentile(values, [25, 50, 75])
        axes.vlines(place, low, high, color=INK, linewidth=7)
        axes.plot(place, middle, "o", color="white", markersize=4.5)
        axes.annotate(
            f"{10**middle:.3g}", (place, middle), xytext=(9, 0), textcoords="offset points",
            va="center", fontsize=10, color=INK,
        )  # fmt: skip
    axes.axhline(0, color=GREY, linewidth=1, linestyle="--")
    axes.set_xticks(places, [two_lines(name) for name in found])
    axes.set_ylabel("variance ratio, corrupted / uncorrupted")
    axes.set_yticks(_round_ticks(axes.get_ylim()))
    _logarithmic(axes.yaxis)
    quiet(axes)
    write(figure, path)


def _round_ticks(limits: Limits) -> list[float]:
    """Return logarithms of round numbers between two logarithms: 1, 2, 5, 10, ... or 1, 10, ..."""
    low, high = limits
    steps = (1,) if high - low > 2.5 else (1, 2, 5)
    powers = range(int(np.floor(low)), int(np.ceil(high)) + 1, 1 if high - low < 5 else 2)
    every = [float(np.log10(step * 10.0**p)) for p in powers for step in steps]
    return [tick for tick in every if low <= tick <= high]


def draw_localisation(numbers: Numbers, path: Path) -> None:
    """Draw histograms of the best localisation ratio, and of its change in the region."""
    found = having(numbers, "ratio_stable")
    panels = {
        "ratio_stable": ("Consistently active dimensions", "best localisation ratio"),
        "ratio_any": ("All active dimensions", "best localisation ratio"),
        "inside_stable": ("Consistently active dimensions", "MSE change in the corrupted region"),
    }
    figure = new_figure(10.5, 3.9)
    grid = figure.subplots(1, len(panels))
    for ax, (name, (title, label)) in zip(grid, panels.items(), strict=True):
        _histograms(ax, {model: part[name] for model, part in found.items()})
        ax.set_title(title, pad=10 + 7 * len(found))  # above the marks of the medians
        ax.set_xlabel(label)
        quiet(ax)
    grid[0].set_ylabel("share of images (%)")
    figure.legend(
        *grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(found),
        frameon=False, fontsize=10, labelcolor=INK,
    )  # fmt: skip
    write(figure, path)


def _histograms(axes: Any, values: dict[str, Any]) -> None:
    """Draw the share of images in logarithmic bins for each model, and mark the medians."""
    kept = {model: _logarithms(v) for model, v in values.items()}
    every = np.concatenate(list(kept.values()))
    low, high = np.percentile(every, [0.2, 99.8]) if len(every) else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 0.1), 36)
    for i, ((model, v), dash) in enumerate(zip(kept.items(), cycle(DASHES), strict=False)):
        heights = np.histogram(np.clip(v, edges[0], edges[-1]), edges)[0] * 100 / max(len(v), 1)
        style: dict[str, Any] = {"color": colour_of(model), "linestyle": dash}
        axes.stairs(heights, edges, baseline=None, linewidth=1.6, label=model, **style)
        if len(v):
            # One above the other, so that equal medians do not hide each other.
            axes.plot(
                np.median(v), 1.02 + 0.045 * i, "v", color=colour_of(model), markersize=6,
                clip_on=False, transform=axes.get_xaxis_transform(),
            )  # fmt: skip
    none = [model for model, v in kept.items() if not len(v)]
    if none:
        axes.text(0.98, 0.95, "none: " + ", ".join(none), transform=axes.transAxes, ha="right")
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.06 * axes.get_ylim()[1]))
    axes.set_xticks(_round_ticks(axes.get_xlim()))
    _logarithmic(axes.xaxis)


# -- all figures ----------------------------------------------------------------------------

Draw = Callable[[Numbers, Path], None]

FIGURES: dict[str, tuple[Draw, str, str]] = {
    "reconstructions": (
        draw_reconstructions,
        "shared_mean",
        "Mean and pixelwise variance of 30 samples for three test images, at the 25th, 50th and "
        "96th percentile of the error, averaged over vPAIR, sVAE and vsPAIR (paper). One colour "
        "scale for all variances, of which colours show the root.",
    ),
    "percentiles": (
        draw_percentiles,
        "percentile_variance",
        "Each preset of vsPAIR on the images at the 25th, 50th and 96th percentile of its own "
        "error.",
    ),
    "codes": (
        draw_codes,
        "code_sample",
        "One latent sample of each model for the same three images. Grey: the gate is open with "
        "probability below 0.9.",
    ),
    "perturbation": (
        draw_perturbation,
        "walk_images",
        "The medium image along three leading dimensions that are consistently active (*: not "
        "active in all 30 samples, where those are too few), and the change.",
    ),
    "localised": (
        draw_localised,
        "localised_change",
        "The dimension of highest localisation ratio (*: not consistently active, where none "
        "is), perturbed by +400 % of its value in the mean code; the corrupted region outlined. "
        "The ratio is that of the change shown; the dimension was chosen by the table's, a step "
        "of 50 % in one sample.",
    ),
    "localised_walks": (
        draw_localised_walks,
        "localised_walk",
        "The same dimensions of vsPAIR from -400 % to +400 %: mean reconstructions of 30 samples "
        "and their change, the corrupted region outlined. The ratio is the table's.",
    ),
    "uncertainty_error": (
        draw_uncertainty_error,
        "scatter_variance",
        "Predicted variance over error for the same random test images, at most 500, with the "
        "line of least squares and its 95 % confidence band.",
    ),
    "variance_ratio": (
        draw_variance_ratio,
        "variance_ratio",
        "Mean variance in the corrupted region over that outside, for all test images that lost "
        "something: quartiles "
        "as a bar, the median as a white dot.",
    ),
    "localisation": (
        draw_localisation,
        "ratio_stable",
        "The highest localisation ratio of each test image, among consistently active and among "
        "all active dimensions, and the squared change in the region of the former. Triangles "
        "mark medians; values beyond the axis are counted in its outermost bins.",
    ),
}
"""By file name: what draws the figure, a number that it needs, and its caption."""


def draw_all(numbers: Numbers, folder: Path) -> list[Path]:
    """Draw every figure that at least one model has the numbers for; return their paths."""
    runs.make_folder(folder)
    paths = []
    for name, (draw, needed, _) in FIGURES.items():
        if having(numbers, needed):
            paths.append(folder / f"{name}.png")
            draw(numbers, paths[-1])
    return paths


def gallery(paths: Sequence[Path]) -> str:
    """Return figures that :func:`draw_all` drew with their captions, as Markdown."""
    return "\n\n".join(f"![{FIGURES[p.stem][2]}]({p.name})\n\n{FIGURES[p.stem][2]}" for p in paths)
