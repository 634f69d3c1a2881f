"""The figures of section 4.3, drawn from saved numbers.

Numbers are arrays by group and name. A group, or a method in it, that is not there is left out.
Images of chests are grey and have the scale of the truth, so that methods can be compared; a
pixel without a number is orange. Anterior is up, as in the arrays. Appendix B is in
:mod:`vspair.studies.ct_sweeps.drawing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report.figures import (
    FAINT,
    GREY,
    INK,
    MINUS,
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

__all__ = [
    "FIGURES",
    "draw_all",
    "draw_comparison",
    "draw_hallucination",
    "draw_noise",
    "draw_omega",
    "draw_overfitting",
    "draw_perturbation",
    "gallery",
]

Part = Mapping[str, Any]

CELL, GAP, APART = 0.7333, 0.03, 0.09
"""In inches: the side of a small image, between images, and between methods."""

PRESETS = {"paper": PALETTE[1], "calibrated": PALETTE[3]}
METHODS = {
    "fbp": ("FBP", PALETTE[5], "s", "-"),
    "tv": ("TV-ADMM", PALETTE[0], "o", "-"),
    "regression": ("regression", PALETTE[4], "^", "--"),
    "vspair_paper": ("vsPAIR (paper)", PRESETS["paper"], "P", "-"),
    "vspair_calibrated": ("vsPAIR (calibrated)", PRESETS["calibrated"], "*", "-"),
    "dps": ("DPS", PALETTE[2], "D", "-."),
}
"""Name, colour, marker and line of each method."""


# -- grids of images ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """One row of a grid: its name, images of shape (n, H, W) and their scale."""

    label: str
    images: Any
    scale: ColourScale
    near: bool = False
    """Whether it belongs to the row above."""


def _greys(truth: Any, *others: Any) -> ColourScale:
    """Return the scale of chests: that of the truth, or of all where there is no truth."""
    base = finite(*others) if truth is None else truth
    return ColourScale.greys("attenuation", base, *others)


def _grid(rows: Sequence[_Row], titles: Sequence[str], side: float, corner: str = "") -> Any:
    """Return a figure of rows of images, a bar beside the first rows of each scale."""
    if not rows:
        return None
    left, top = 1.02, 0.26
    count = len(titles)
    tops = [top]
    for row in rows[1:]:
        tops.append(tops[-1] + side + (GAP if row.near else APART))
    right = left + count * (side + GAP) - GAP
    sheet = Sheet(right + 0.8, tops[-1] + side + 0.06)
    for i, title in enumerate(titles):
        sheet.text(left + i * (side + GAP) + side / 2, top - 0.05, title, ha="center")
    sheet.text(left - 0.08, top - 0.05, corner, ha="right")
    drawn: dict[ColourScale, Any] = {}
    for row, at in zip(rows, tops, strict=True):
        sheet.text(left - 0.08, at + side / 2, row.label, ha="right", va="center", linespacing=1.1)
        for i, image in enumerate(row.images):
            drawn[row.scale] = sheet.image(left + i * (side + GAP), at, side, image, row.scale)
    starts = {scale: tops[[row.scale for row in rows].index(scale)] for scale in drawn}
    ends = [*list(starts.values())[1:], tops[-1] + side + 0.15]
    for (scale, start), end in zip(starts.items(), ends, strict=True):
        height = min(end - 0.15 - start, 3.2 * side)
        sheet.bar(drawn[scale], scale, (right + 0.08, start, 0.1, height))
    return sheet.figure


def _two_lines(name: str) -> str:
    return name.replace(" ", "\n", 1)


def draw_comparison(part: Part) -> Any:
    """Draw sinograms, truths and every method's answer; columns by noise.

    Arguments:
        part: ``noise`` in per cent with shape (n,), ``sinogram`` (n, A, D), ``truth``, and under
            the names of :data:`METHODS` images and, ending in ``_std``, deviations (n, H, W).
    """
    known = [name for name in METHODS if name in part]
    images = [part[name] for name in known]
    spreads = [part[f"{name}_std"] for name in METHODS if f"{name}_std" in part]
    grey = _greys(part.get("truth"), *images) if images or "truth" in part else None
    wide = ColourScale.spread("standard deviation", *spreads) if spreads else None
    rows = []
    if "sinogram" in part:
        scale = ColourScale.greys("sinogram", np.maximum(part["sinogram"], 0), part["sinogram"])
        rows.append(_Row("sinogram", part["sinogram"], scale))
    if grey and "truth" in part:
        rows.append(_Row("truth", part["truth"], grey))
    for name, (label, *_) in METHODS.items():
        if grey and name in part:
            rows.append(_Row(_two_lines(label), part[name], grey))
        if wide and f"{name}_std" in part:
            near = name in part
            words = "deviation" if near else f"{_two_lines(label)}\ndeviation"
            rows.append(_Row(words, part[f"{name}_std"], wide, near))
    titles = [f"{level:.1f} %" for level in np.asarray(part["noise"], dtype=float)]
    return _grid(rows, titles, CELL, "noise")


def draw_hallucination(part: Part) -> Any:
    """Draw estimates, and by how much each is further from the truth than it says it may be.

    Arguments:
        part: ``truth``, ``vspair``, ``dps``, ``vspair_excess`` and ``dps_excess``, the part of
            the distance that is beyond two reported deviations, each with shape (n, H, W).
    """
    named = {"vspair": "vsPAIR", "dps": "DPS"}
    shown = [part[name] for name in named if name in part]
    grey = _greys(part.get("truth"), *shown) if shown or "truth" in part else None
    over = [part[f"{name}_excess"] for name in named if f"{name}_excess" in part]
    some = finite(*over) if over else np.zeros(0)
    beyond = ColourScale.spread("error beyond two deviations", some[some > 0], share=0.98)
    rows = []
    if grey and "truth" in part:
        rows.append(_Row("truth", part["truth"], grey))
    for name, label in named.items():
        if grey and name in part:
            rows.append(_Row(label, part[name], grey))
        if f"{name}_excess" in part:
            excess, near = part[f"{name}_excess"], name in part
            known = finite(excess)
            share = 100 * float((known > 0).mean()) if len(known) else 0.0
            words = f"beyond two\ndeviations:\n{share:.1f} %\nof pixels"
            rows.append(_Row(words if near else f"{label}\n{words}", excess, beyond, near))
    count = len(rows[0].images) if rows else 0
    return _grid(rows, [f"test {i + 1}" for i in range(count)], 1.5 * CELL)


# -- factors --------------------------------------------------------------------------------


def draw_perturbation(part: Part, preset: str) -> Any:
    """Draw what moving each of four factors does to decoded mean codes.

    Arguments:
        part: ``index`` (n, K), ``steps`` (S,) in deviations, ``centre`` and, if at hand,
            ``truth`` (n, H, W), and ``difference`` (n, K, S, H, W).
        preset: Whose factors they are.
    """
    difference, truth = part["difference"], part.get("truth")
    count, factors, steps = difference.shape[:3]
    moved = ColourScale.change("difference to the mean", difference)
    grey = _greys(truth, part["centre"])
    side, left, head = 1.29, 2.14, 0.52
    height = factors * (CELL + GAP) + 0.42
    right = left + steps * (CELL + GAP)
    sheet = Sheet(right + 0.9, head + count * height - 0.25)
    sheet.text((right + 0.9) / 2, 0.2, f"vsPAIR ({preset})", 11, ha="center")
    for b in range(count):
        top = head + b * height
        middle = top + (factors * (CELL + GAP) - GAP) / 2
        pictures = {"decoded mean": part["centre"][b]}
        if truth is not None:
            pictures = {f"test {b + 1}: truth": truth[b]} | pictures
        for i, (words, image) in enumerate(pictures.items()):
            at = middle + (i - len(pictures) / 2) * (side + 0.24) + 0.21
            sheet.text(0.08 + side / 2, at - 0.05, words, ha="center")
            shown = sheet.image(0.08, at, side, image, grey)
        change = _walks(sheet, part, b, (left, top), (moved, grey))
    middle = head + (count * height - 0.42) / 2
    if change is not None:
        sheet.bar(change, moved, (right + 0.08, middle - 2.5, 0.1, 2.7))
    sheet.bar(shown, grey, (right + 0.08, middle + 0.6, 0.1, 1.9))
    return sheet.figure


def _walks(
    sheet: Sheet,
    part: Part,
    b: int,
    corner: tuple[float, float],
    scales: tuple[ColourScale, ColourScale],
) -> Any:
    """Show the differences of one image, one row a factor, around its decoded mean code."""
    left, top = corner
    drawn = None
    for i, step in enumerate(np.asarray(part["steps"], dtype=float)):
        x = left + i * (CELL + GAP)
        sheet.text(x + CELL / 2, top - 0.05, _step(step), ha="center")
        for k, index in enumerate(part["index"][b]):
            y = top + k * (CELL + GAP)
            if i == 0:
                sheet.text(left - 0.08, y + CELL / 2, f"no. {index}", ha="right", va="center")
            if step == 0:
                sheet.image(x, y, CELL, part["centre"][b], scales[1])
            else:
                drawn = sheet.image(x, y, CELL, part["difference"][b, k, i], scales[0])
    return drawn


def _step(step: float) -> str:
    if step == 0:
        return "mean"
    size = "" if abs(step) == 1 else f"{abs(step):g}"
    return f"{MINUS if step < 0 else '+'}{size}$\\sigma$"


# -- curves ---------------------------------------------------------------------------------


def draw_omega(part: Part) -> Any:
    """Draw the histogram of the probabilities, arrays of any length, of each preset."""
    edges = np.linspace(0, 1, 51)
    shares = {name: share_of(part[name], edges) for name in PRESETS if name in part}
    if not shares:
        return None
    floor = floor_of(list(shares.values()))
    figure = new_figure(5.2, 3.2)
    axes = figure.subplots()
    for (name, heights), line in zip(shares.items(), cycle(("-", "--")), strict=False):
        style = {"color": PRESETS[name], "linestyle": line, "label": f"vsPAIR ({name})"}
        outline(axes, heights, edges, floor, **style)
    if floor:
        axes.set_yscale("log")
        plain(axes)
    axes.set(xlim=(0, 1), ylim=(floor, 2 * axes.get_ylim()[1] if floor else None))
    axes.set_xlabel("probability $\\hat\\omega_x$ that an index is active")
    axes.set_ylabel("share of values (%)")
    quiet(axes)
    _legend_above(figure, len(shares))
    return figure


def _legend_above(figure: Any, columns: int, **more: Any) -> None:
    if columns:
        style: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": INK}
        figure.legend(loc="outside upper center", ncols=columns, **style, **more)


def _style(name: str, spare: Iterator[str]) -> tuple[str, str, str, str]:
    """Return name, colour, marker and line of a method, by its key or by its name."""
    for key, style in METHODS.items():
        if name in (key, style[0]):
            return style
    return name, next(spare), "x", ":"


def draw_noise(part: Part) -> Any:
    """Draw the error of every method over the noise; the legend has the order of the lines' ends.

    Arguments:
        part: ``levels`` of noise in per cent and errors by method, each with shape (bins,).
    """
    levels = np.asarray(part["levels"], dtype=float)
    found = {name: np.asarray(part[name], dtype=float) for name in part if name != "levels"}
    kept = {name: values for name, values in found.items() if np.isfinite(values).any()}
    order = sorted(kept, key=lambda name: -float(finite(kept[name])[-1]))
    figure = new_figure(6.8, 3.7)
    axes = figure.subplots()
    spare = cycle((GREY, INK))
    for name in order:
        label, colour, marker, line = _style(name, spare)
        style: dict[str, Any] = {"marker": marker, "markersize": 9 if marker == "*" else 5}
        line = "none" if name == "DPS" else line  # few slices a bin: chance, no course
        axes.plot(levels, kept[name], color=colour, linestyle=line, label=label, **style)
    even_axis(axes, *kept.values())
    axes.set_xlim(left=0)
    axes.set_xlabel("noise (% of the sinogram's range)")
    axes.set_ylabel("MSE")
    quiet(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.5, alpha=0.6)
    if kept:
        style = {"frameon": False, "fontsize": 10, "labelcolor": INK, "handlelength": 2.6}
        figure.legend(loc="outside right center", **style)
    return figure


def draw_overfitting(part: Part) -> Any:
    """Draw the loss over the epochs, in training and on held-out images, a panel a preset.

    Arguments:
        part: ``<preset>_epoch``, ``<preset>_train`` and ``<preset>_validation``, each with shape
            (epochs,), and ``<preset>_best`` (1,), the epoch of the weights; what was not measured
            is NaN.
    """
    found = sorted(key.removesuffix("_epoch") for key in part if key.endswith("_epoch"))
    if not found:
        return None
    found.sort(key=lambda name: [*PRESETS, name].index(name))
    figure = new_figure(max(3.4 * len(found), 4.4), 3.2)
    grid = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, name in zip(grid, found, strict=True):
        history = {k: part.get(f"{name}_{k}") for k in _HISTORY}
        _losses(axes, history)
        axes.set_title(f"vsPAIR ({name})" if name in PRESETS else name)
        quiet(axes)
    grid[0].set_ylabel("loss")
    _legend_above(figure, len(grid[0].get_lines()), handles=grid[0].get_lines())
    return figure


_HISTORY = ("epoch", "train", "validation", "best")


def _losses(axes: Any, history: Part) -> None:
    """Draw both losses of one preset and mark the epoch of the weights."""
    epoch, label, drawn = np.asarray(history["epoch"], dtype=float), "epoch", []
    best = [] if history["best"] is None else history["best"]
    looks = {"train": ("training", GREY, "--"), "validation": ("held out", PALETTE[0], "-")}
    for key, (name, shade, line) in looks.items():
        if history[key] is None:
            continue
        values = np.asarray(history[key], dtype=float)
        known = np.isfinite(values) & np.isfinite(epoch)
        style = {"color": shade, "linestyle": line, "linewidth": 1.4, "label": name}
        axes.plot(epoch[known], values[known], **style)
        drawn.append(values[known])
        kept = np.flatnonzero(known & np.isin(epoch, best))
        if key == "validation" and len(kept):
            style = {"color": INK, "markersize": 5, "label": "weights kept"}
            axes.plot(epoch[kept], values[kept], "o", **style)
            label = f"epoch (kept: {epoch[kept[0]]:g})"
    axes.set_xlabel(label)
    even_axis(axes, *drawn)
    every = finite(*drawn) if drawn else np.zeros(0)
    if axes.get_yscale() != "log" and len(every):
        low, high = float(every.min()), float(np.quantile(every, 0.98))
        edge = 0.06 * (high - low) or 0.5
        axes.set_ylim(low - edge, high + edge)  # the first epochs may be far above


# -- all figures ----------------------------------------------------------------------------


_FACTORS = (
    "The four factors of highest variance of mu over the test set among those with open gates, "
    "moved by multiples of their sigma: the difference to the decoded mean code, which stands in "
    "the middle, for two test images. One colour scale for all differences."
)

FIGURES: dict[str, str] = {
    "comparison": "Test images by rising noise: sinogram, truth, and the answers of all methods "
    "to the same noise, with the pixelwise standard deviation where a method reports one. Images "
    "have the grey scale of the truth, and what is beyond it is cut off; deviations have one "
    "colour scale. vsPAIR's images are means of samples, and their deviation is without the "
    "decoder's noise; DPS's are one trajectory. Attenuation is a share of 81.36 per metre, and "
    "sinograms are that times half sides of the image.",
    "omega": "Probabilities that an index is active, over all indices and test images. A "
    "logarithmic axis begins at 0.001 % or above.",
    "perturbation_paper": f"vsPAIR (paper). {_FACTORS}",
    "perturbation_calibrated": f"vsPAIR (calibrated). {_FACTORS}",
    "noise": "MSE of each method on test images over the noise of their sinograms; DPS, without a "
    "line, answers few of them.",
    "overfitting": "Loss in training and on held-out images, epoch by epoch; a dot marks the "
    "epoch whose weights are kept, that of the least energy score on held-out images, which need "
    "not be that of the least loss. Each preset has its own loss and axis.",
    "hallucination": "Estimates of four test images, and the part of their distance to the truth "
    "that is beyond two reported deviations; a well calibrated normal posterior has some at about "
    "5 % of the pixels, at 9 % if the deviation is of 10 samples as DPS's is; shares are of the "
    "images shown. One colour scale for both methods. vsPAIR is the calibrated preset, if it "
    "is there, and its deviation has the decoder's noise in it.",
}
"""What each figure shows, by its file name."""

_DRAWS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "comparison": ("comparison", draw_comparison),
    "omega": ("omega", draw_omega),
    "perturbation_paper": ("perturbation_paper", partial(draw_perturbation, preset="paper")),
    "perturbation_calibrated": (
        "perturbation_calibrated",
        partial(draw_perturbation, preset="calibrated"),
    ),
    "noise": ("by_noise", draw_noise),
    "overfitting": ("history", draw_overfitting),
    "hallucination": ("hallucination", draw_hallucination),
}
"""By file name: the group of numbers that a figure needs, and what draws it."""


def draw_all(numbers: dict[str, Any], folder: Path) -> list[Path]:
    """Draw every figure whose numbers are at hand into a folder; return their paths.

    Arguments:
        numbers: Arrays by group and name.
        folder: Where the PNG files go.
    """
    return write_figures(_DRAWS, numbers, folder)


def gallery(paths: Sequence[Path]) -> str:
    """Return figures that :func:`draw_all` drew with their captions, as Markdown."""
    return captioned(paths, FIGURES)
