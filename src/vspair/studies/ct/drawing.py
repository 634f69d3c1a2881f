"""The figures of section 4.3, drawn from saved numbers, arrays by group and name.

A group, or a method in it, that is not there is left out. Images of chests are grey and have the
scale of the truth, so that methods can be compared; a pixel without a number is orange. Anterior
is up, as in the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report import curves, figures
from vspair.report.figures import PRESETS, ColourScale, finite
from vspair.report.images import ImageRow, image_grid, in_deviations, perturbation
from vspair.runs.files import Groups
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

Part = Mapping[str, Any]

METHODS = read_words("ct").names
ADDED = ("ridge_unet", "fbp_unet", "vspair_anchored", "vspair_fbp")
"""The methods of a comparison of their own: with all of them a sheet would be too long."""
LOSSES = {
    "train": ("training", figures.GREY, "--"),
    "validation": ("held out", figures.PALETTE[0], "-"),
}
"""Name, colour and dashes of each loss."""


# -- images ---------------------------------------------------------------------------------


def _grey(truth: Any, *others: Any) -> ColourScale:
    """Return the scale of chests: that of the truth, or of all where there is no truth."""
    return ColourScale.greys("attenuation", finite(*others) if truth is None else truth, *others)


def _rows(
    part: Part, names: Part, ending: str, scale: ColourScale, words: Callable[[Any], str]
) -> Iterator[ImageRow]:
    """Yield the truth, and images of each method over what it says of them (with an ending)."""
    grey = _grey(part.get("truth"), *(part[name] for name in names if name in part))
    for name, label in {"truth": "truth", **names}.items():
        label, near = label.replace(" ", "\n"), name in part
        if near:
            yield ImageRow(label, part[name], grey)
        if (other := part.get(name + ending)) is not None:
            label = words(other) if near else f"{label}\n{words(other)}"
            yield ImageRow(label, other, scale, near=near)


def _comparison(part: Part, names: Sequence[str]) -> Any:
    """Draw sinograms, truths and the answer and deviation of methods; columns by noise."""
    stds = [part[f"{name}_std"] for name in names if f"{name}_std" in part]
    spread = ColourScale.spread("standard deviation", *stds)
    labels = {name: METHODS[name] for name in names}
    rows = list(_rows(part, labels, "_std", spread, lambda _: "deviation"))
    if (seen := part.get("sinogram")) is not None:
        scale = ColourScale.greys("sinogram", np.maximum(seen, 0), seen)
        rows.insert(0, ImageRow("sinogram", seen, scale))
    if not rows:
        return None
    levels = [f"{level:.1f} %" for level in part["noise"]]
    rows[0] = replace(rows[0], above=levels, heading="noise of the sinogram")
    return image_grid(rows, 0.7333).figure


def _comparison_anchored(part: Part) -> Any:
    """Draw the same of the default of ``fit`` and what stands beside it, if they are there."""
    if not any(name in part for name in ADDED):
        return None
    return _comparison(part, ("regression", *ADDED))


def _hallucination(part: Part) -> Any:
    """Draw estimates, and by how much each is further from the truth than it says it may be."""
    over = finite(*(values for name, values in part.items() if name.endswith("_excess")))
    scale = ColourScale.spread("error beyond two deviations", over[over > 0], share=0.98)
    names = {"vspair": "vsPAIR", "anchored": "vsPAIR (anchored)", "dps": "DPS"}
    rows = list(_rows(part, names, "_excess", scale, _share_beyond))
    if not rows:
        return None
    titles = [f"test {i + 1}" for i in range(len(rows[0].images))]
    return image_grid([replace(rows[0], above=titles), *rows[1:]], 1.1).figure


def _share_beyond(excess: Any) -> str:
    share = 100 * float((values > 0).mean()) if len(values := finite(excess)) else 0.0
    return f"beyond two\ndeviations:\n{share:.1f} %\nof pixels"


def _perturbation(part: Part, preset: str) -> Any:
    """Draw what moving each of four factors does to decoded mean codes."""
    if "difference" not in part:
        return None
    change, centre, truth = part["difference"], part["centre"], part.get("truth")
    labels = {
        f"vsPAIR ({preset}), test {b + 1}": [f"no. {k}" for k in index]
        for b, index in enumerate(part["index"])
    }
    scales = ColourScale.change("difference to the mean", change), _grey(truth, centre)
    steps = [in_deviations(float(step)) for step in part["steps"]]
    return perturbation(labels, change, steps, scales, centre=centre, truth=truth)


# -- curves ---------------------------------------------------------------------------------


def _omega(part: Part) -> Any:
    """Draw the histogram of the probabilities, arrays of any length, of each preset."""
    edges = np.linspace(0, 1, 51)
    heights = {k: curves.shares(part[k], edges) for k in PRESETS if k in part}
    if not heights:
        return None
    figure = figures.new_figure(5.2, 3.2)
    axes = figure.subplots()
    floor = curves.least_share(list(heights.values()))
    curves.histogram(axes, heights, edges, PRESETS, floor=floor)
    axes.set_xlabel("probability $\\hat\\omega_x$ that an index is active")
    axes.set_ylabel("share of values (%)")
    figures.legend(figure, ncols=2)
    return figure


def _noise(part: Part) -> Any:
    """Draw the error of every method over the noise."""
    errors = {METHODS.get(name, name): part[name] for name in part if name != "levels"}
    words = "noise (% of the sinogram's range)"
    # DPS answers few slices of a bin: a line would show chance.
    return curves.errors_over_noise(part.get("levels"), errors, words, loose=["DPS"])


def _overfitting(part: Part) -> Any:
    """Draw the loss over the epochs, in training and on held-out images, a panel a preset."""
    found = [name for name in PRESETS if f"{name}_epoch" in part]
    if not found:
        return None
    figure = figures.new_figure(3.3 * len(found) + 0.2, 3.2)
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, name in zip(grid, found, strict=True):
        _losses(axes, {k.removeprefix(f"{name}_"): values for k, values in part.items()})
        axes.set_title(f"vsPAIR ({name})")
        figures.style_axes(axes)
    grid[0].set_ylabel("loss")
    if named := grid[0].get_lines():
        figures.legend(figure, handles=named, ncols=3)
    return figure


def _losses(axes: Any, history: Part) -> None:
    """Draw both losses of one preset and mark the epoch of the weights."""
    axes.set_xlabel("epoch")
    found = {key: style for key, style in LOSSES.items() if key in history}
    for key, (name, colour, dash) in found.items():
        measured = np.isfinite(history["epoch"]) & np.isfinite(history[key])
        x, y = history["epoch"][measured], history[key][measured]
        axes.plot(x, y, color=colour, linestyle=dash, linewidth=1.4, label=name)
        kept = np.isin(x, history.get("best", ()))
        if key == "validation" and kept.any():
            style = {"color": figures.INK, "markersize": 5, "label": "weights kept"}
            axes.plot(x[kept], y[kept], "o", **style)
            axes.set_xlabel(f"epoch (kept: {x[kept][0]:g})")
    every = finite(*(history[key] for key in found))
    curves.even_axis(axes, every)
    if axes.get_yscale() != "log" and len(every):
        low, high = float(every.min()), float(np.quantile(every, 0.98))
        edge = 0.06 * (high - low) or 0.5
        axes.set_ylim(low - edge, high + edge)  # the first epochs may be far above


# -- all figures ----------------------------------------------------------------------------

CAPTIONS = read_words("ct").captions
"""What each figure shows, by its file name."""

_DRAWS: dict[str, tuple[str, Callable[[Part], Any]]] = {
    "comparison": (
        "comparison", partial(_comparison, names=[name for name in METHODS if name not in ADDED])
    ),
    "comparison_anchored": ("comparison", _comparison_anchored),
    "omega": ("omega", _omega),
    "perturbation_paper": ("perturbation_paper", partial(_perturbation, preset="paper")),
    "perturbation_calibrated": (
        "perturbation_calibrated", partial(_perturbation, preset="calibrated")
    ),
    "perturbation_anchored": ("perturbation_anchored", partial(_perturbation, preset="anchored")),
    "noise": ("by_noise", _noise),
    "overfitting": ("history", _overfitting),
    "hallucination": ("hallucination", _hallucination),
}  # fmt: skip
"""By file name, the group of numbers that a figure needs, and what draws it."""


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths."""
    draws = {k: partial(draw, numbers.get(group, {})) for k, (group, draw) in _DRAWS.items()}
    return figures.write_figures(draws, folder)
