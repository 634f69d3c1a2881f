"""The figures of section 4.4, drawn from the numbers that ``studies.heat_figures`` saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vspair.report import figures as plots
from vspair.report.figures import FAINT, GREY, INK, MAPS, PALETTE, ImageRow, new_figure, quiet
from vspair.uncertainty import uncertainty_error

__all__ = [
    "draw_all",
    "draw_noise",
    "draw_perturbation",
    "draw_reconstruction",
    "draw_source",
    "draw_uncertainty_error",
    "gallery",
]

Numbers = dict[str, dict[str, Any]]

COLOURS = {"paper": PALETTE[1], "calibrated": PALETTE[3]}
STEPS = ("$-2\\sigma$", "$-\\sigma$", "mean", "$+\\sigma$", "$+2\\sigma$")
MARKS = {
    "exact inversion": (PALETTE[0], "o", "-"),
    "Tikhonov": (PALETTE[5], "s", "-"),
    "Wiener": (PALETTE[2], "D", "-"),
    "ridge": (PALETTE[4], "^", "-"),
    "ridge with shifts": (INK, "v", "--"),
    "y itself": (GREY, "x", ":"),
    "mean field": (GREY, "|", "-."),
    "vsPAIR (paper)": (COLOURS["paper"], "P", "-"),
    "vsPAIR (calibrated)": (COLOURS["calibrated"], "*", "-"),
}
"""Colour, marker and line of each method in the figure of errors over noise."""

LEAST, MOST = 5e-5, 20.0
"""The ends of the axis of errors; what lies beyond is written in words."""


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(values)


def _presets(numbers: Numbers) -> Numbers:
    return {preset: numbers[preset] for preset in COLOURS if preset in numbers}


# -- single pairs ---------------------------------------------------------------------------


def draw_reconstruction(numbers: Numbers, preset: str) -> Any:
    """Draw observations, truths, means of samples and their variance, row under row."""
    part = {k: _tensor(numbers[preset][k]) for k in ("y", "x", "mean", "variance")}
    seen = torch.stack([part[k] for k in ("y", "x", "mean")])
    limits = (float(seen.min()), float(seen.max()))
    # A single pixel may stand out so far that all others would look the same.
    top = float(part["variance"].quantile(0.995))
    rows = [
        ImageRow("observation y", part["y"], limits=limits),
        ImageRow("truth x", part["x"], limits=limits),
        ImageRow("reconstruction", part["mean"], limits=limits),
        ImageRow("variance", part["variance"], "spread", limits=(0.0, top)),
    ]
    titles = [f"test {i + 1}" for i in range(len(part["y"]))]
    figure = plots.image_grid(rows, titles, cell=1.4)
    figure.suptitle(f"vsPAIR ({preset})", fontsize=12, color=INK)
    return figure


def draw_perturbation(numbers: Numbers, preset: str) -> Any:
    """Draw what moving each of four factors does to two decoded mean codes."""
    part = numbers[preset]
    change = part["walk_change"]
    images, factors = change.shape[:2]
    largest = float(np.abs(change).max()) or 1.0
    centre = part["walk_centre"]
    limits = float(centre.min()), float(centre.max())
    figure = new_figure(0.95 * 5 * images + 1.8, 0.95 * factors + 1.0)
    figure.suptitle(f"vsPAIR ({preset})", fontsize=12, color=INK)
    *blocks, edge = figure.subfigures(1, images + 1, width_ratios=[1] * images + [0.17])
    for b, block in enumerate(blocks):
        block.suptitle(f"test {b + 1}", fontsize=11, color=INK)
        grid = block.subplots(factors, len(STEPS), squeeze=False)
        for k, row in enumerate(grid):
            shown = _walk(row, change[b, k], centre[b], largest, limits)
            label = f"no. {part['walk_dims'][k]}\n$\\hat\\omega$ = {part['walk_omega'][b, k]:.2f}"
            row[0].set_ylabel(label, fontsize=9, color=INK)
        for ax, step in zip(grid[-1], STEPS, strict=True):
            ax.set_xlabel(step, fontsize=10, color=INK)
    bar = figure.colorbar(shown, cax=edge.subplots())
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=10, colors=INK, length=0)
    bar.set_label("difference to the mean", fontsize=10, color=INK)
    return figure


def _walk(
    row: Sequence[Any], change: Any, centre: Any, largest: float, limits: tuple[float, float]
) -> Any:
    """Show the differences (5, H, W) of one factor around the decoded mean code (H, W)."""
    middle = len(STEPS) // 2
    for i, ax in enumerate(row):
        _bare(ax)
        if i == middle:
            ax.imshow(centre, cmap=MAPS["values"], vmin=limits[0], vmax=limits[1])
        else:
            shown = ax.imshow(change[i], cmap=MAPS["change"], vmin=-largest, vmax=largest)
    return shown


def _bare(axes: Any) -> None:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


# -- all test pairs -------------------------------------------------------------------------


def draw_uncertainty_error(numbers: Numbers) -> Any:
    """Draw predicted variance over error, one point a test pair, with the line and r."""
    found = _presets(numbers)
    figure = new_figure(3.9 * len(found) + 0.3, 3.5)
    for axes, (preset, part) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        error, variance = (_tensor(part[f"image_{k}"]) for k in ("mse", "variance"))
        fit = uncertainty_error(variance, error)
        axes.scatter(error, variance, s=16, alpha=0.6, linewidths=0, color=COLOURS[preset])
        line = torch.linspace(float(error.min()), float(error.max()), 100, dtype=torch.float64)
        axes.fill_between(line, *fit.band(line), color=INK, alpha=0.15, linewidth=0)
        axes.plot(line, fit.predict(line), color=INK, linewidth=1.4)
        known = f"$r$ = {fit.r:.3f}" if math.isfinite(fit.r) else "no correlation"
        axes.set_title(f"vsPAIR ({preset}): {known}")
        axes.set_xlabel("mean MSE of samples")
        axes.locator_params(nbins=5)
        quiet(axes)
    figure.axes[0].set_ylabel("mean pixelwise variance")
    return figure


def draw_source(numbers: Numbers) -> Any:
    """Draw variance maps with the source's disc, and the share of variance inside it."""
    found = _presets(numbers)
    shown = min(3, *(len(part["variance"]) for part in found.values()))
    figure = new_figure(1.6 * shown + 4.1, 2.7 * len(found))
    grid = figure.subplots(len(found), shown + 1, squeeze=False, width_ratios=[1] * shown + [1.75])
    for row, (preset, part) in zip(grid, found.items(), strict=True):
        top = float(part["variance"][:shown].max()) or 1.0
        for i, ax in enumerate(row[:shown]):
            _bare(ax)
            ax.imshow(part["variance"][i], cmap=MAPS["spread"], vmin=0, vmax=top)
            _outline(ax, part["disc"][i])
            ax.set_xlabel(f"test {i + 1}", fontsize=10, color=INK)
        row[0].set_title(f"vsPAIR ({preset}): variance", loc="left", fontsize=11, color=INK)
        _shares(row[-1], part, COLOURS[preset])
    return figure


def _outline(axes: Any, region: Any) -> None:
    """Draw the edge of a region along the edges of its pixels, around the periodic square."""
    rows, columns = region.shape
    for i, j in np.argwhere(region):
        for di, dj, ends in (
            (-1, 0, ((j - 0.5, j + 0.5), (i - 0.5, i - 0.5))),
            (1, 0, ((j - 0.5, j + 0.5), (i + 0.5, i + 0.5))),
            (0, -1, ((j - 0.5, j - 0.5), (i - 0.5, i + 0.5))),
            (0, 1, ((j + 0.5, j + 0.5), (i - 0.5, i + 0.5))),
        ):
            if not region[(i + di) % rows, (j + dj) % columns]:
                axes.plot(*ends, color=PALETTE[1], linewidth=1.4, solid_capstyle="round")


def _shares(axes: Any, part: dict[str, Any], colour: str) -> None:
    """Draw the share of variance and of error inside the disc over the share of area."""
    area, variance, error = (
        100 * part[f"image_{k}"] for k in ("area_inside", "variance_inside", "error_inside")
    )
    axes.plot((0, 100), (0, 100), color=GREY, linewidth=1.2, linestyle="--")
    rings: dict[str, Any] = {"facecolors": "none", "edgecolors": GREY, "linewidths": 0.8}
    axes.scatter(area, error, s=18, label="error", **rings)
    axes.scatter(area, variance, s=18, alpha=0.8, linewidths=0, color=colour, label="variance")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left", handletextpad=0.2)
    axes.set_title(
        f"area {area.mean():.0f} %, variance {variance.mean():.0f} %, error {error.mean():.0f} %",
        fontsize=10,
    )
    most = float(max(variance.max(), error.max()))
    axes.set(xlim=(0, 1.15 * float(area.max())), ylim=(0, 1.3 * most))
    axes.set_xlabel("share of the area in the disc (%)")
    axes.set_ylabel("share in the disc (%)")
    quiet(axes)
    axes.title.set_fontsize(10)


def draw_noise(numbers: Numbers) -> Any:
    """Draw the error of every method over the observation noise."""
    part = numbers["noise"]
    levels, places = 100 * part["levels"], range(len(part["levels"]))
    figure = new_figure(6.6, 4.2)
    axes = figure.subplots()
    for name, (colour, marker, line) in MARKS.items():
        # No line to what is beyond the axes: it would cross others at places of its own making.
        shown = np.where((part[name] < LEAST) | (part[name] > MOST), np.nan, part[name])
        style = {"color": colour, "marker": marker, "linestyle": line, "linewidth": 1.6}
        axes.plot(places, shown, label=name, markersize=10 if marker == "*" else 6, **style)
    axes.set_yscale("log")
    axes.set(ylim=(LEAST, MOST), xticks=list(places))
    axes.set_xticklabels([f"{level:g}" for level in levels])
    axes.set_xlabel("observation noise (% of the observations' deviation)")
    axes.set_ylabel("MSE of the best estimate")
    quiet(axes)
    axes.tick_params(which="minor", length=2, width=0.5, color=FAINT)
    figure.legend(
        loc="outside right center", frameon=False, fontsize=10, labelcolor=INK, handlelength=2.2
    )
    return figure


# -- all figures ----------------------------------------------------------------------------


def _figures(numbers: Numbers) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the file name of each figure and what draws it."""
    for name, draw in (
        ("reconstruction", draw_reconstruction),
        ("perturbation", draw_perturbation),
    ):
        for preset in _presets(numbers):
            yield f"{name}_{preset}", partial(draw, numbers, preset)
    yield "uncertainty_error", partial(draw_uncertainty_error, numbers)
    yield "source", partial(draw_source, numbers)
    if "noise" in numbers:
        yield "noise", partial(draw_noise, numbers)


CAPTIONS = {
    "reconstruction": "Four test pairs of seed 0 without noise: observation, truth, mean of 50 "
    "samples and their pixelwise variance. The first three rows have one colour scale; that of "
    "the variance leaves out the highest pixels, one in 200.",
    "perturbation": "The four factors of highest variance of mu over the test set among those "
    "with open gates, moved by multiples of their sigma: the difference to the decoded mean code, "
    "which stands in the middle, for two test pairs of seed 0.",
    "uncertainty_error": "Mean pixelwise variance of samples over their mean MSE, one point a "
    "test pair of seed 0, with the line of least squares and its 95 % confidence band.",
    "source": "Left, the variance of 50 samples with the two-sigma disc of the source outlined. "
    "Right, the share of the variance of all samples in that disc over its share of the area, "
    "one point a test pair of seed 0; rings are the share of the squared error, points on the "
    "dashed line would be no more than chance.",
    "noise": "MSE of each method's best estimate over the observation noise, seed 0. What is not "
    "drawn is beyond the axes, and in the table: without noise, answers that are linear in y are "
    "right to rounding, and with it exact inversion is of no use.",
}
"""What each figure shows, by its name."""


def draw_all(numbers: Numbers, folder: Path) -> list[Path]:
    """Draw every figure into a folder; return their paths."""
    return plots.write_all(dict(_figures(numbers)), folder)


def _caption(path: Path) -> str:
    name, _, preset = path.stem.partition("_")
    if preset in COLOURS:
        return f"vsPAIR ({preset}). {CAPTIONS[name]}"
    return CAPTIONS[path.stem]


def gallery(paths: Sequence[Path]) -> str:
    """Return figures that :func:`draw_all` drew with their captions, as Markdown."""
    return "\n\n".join(f"![{_caption(p)}]({p.name})\n\n{_caption(p)}" for p in paths)
