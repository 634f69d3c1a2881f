"""The figures of section 4.2, drawn from saved numbers: arrays by model and name.

Digits are dark on white; variance has one colour scale for all models; the corrupted region, the
pixels that differ between x and y, is outlined. A figure is made of the models that have what it
shows, and left out where none has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vspair.report import curves, figures
from vspair.report.figures import GREY, INK, MINUS, PALETTE, PRESETS, ColourScale, finite
from vspair.report.images import ImageRow, image_grid, perturbation
from vspair.runs.files import Groups
from vspair.studies.fits import error_fit
from vspair.studies.words import read_words

__all__ = ["CAPTIONS", "draw_all"]

Part = Mapping[str, Any]

COLOURS = {"PAIR": INK, "vPAIR": PALETTE[0], "sVAE": PALETTE[2]}
COLOURS |= {f"vsPAIR ({preset})": colour for preset, colour in PRESETS.items()}
NAMED = ("25th percentile", "50th percentile", "96th percentile")
"""The percentiles of the error that images are chosen by."""
OPEN = 0.9
"""A gate that opens with at least this probability is drawn in full colour."""
SIDE, SMALL = 0.7, 0.5833
"""Of images, in inches: 6 and 5 points for each of their pixels."""


def _first(found: Groups) -> Part:
    return next(iter(found.values()))


def _vspair(found: Groups) -> Groups:
    """Return the presets of vsPAIR, or all models where there are none."""
    return {k: part for k, part in found.items() if k.startswith("vsPAIR")} or found


def _colour(model: str) -> str:
    return COLOURS.get(model, INK)


def _digits(found: Groups) -> ColourScale:
    low, high = _first(found)["range"]
    return ColourScale("pixel", "gray_r", (float(low), float(high)))


def _spread(found: Groups, name: str, label: str, colours: str = "spread") -> ColourScale:
    """Return one scale from zero up for a number of all models."""
    shown = [part[name] for part in found.values() if name in part]
    return ColourScale.spread(label, *shown, colours=colours)


def _two_lines(model: str) -> str:
    return model.replace(" ", "\n", 1)


def _percent(factor: float) -> str:
    return f"{100 * factor:+.0f} %".replace("-", MINUS) if factor else "0"


def _changes(walk: Any) -> Any:
    """Return walks (..., F, H, W) less the unperturbed image, which is in the middle."""
    middle = walk.shape[-3] // 2
    return walk - walk[..., middle : middle + 1, :, :]


def _turns(*parts: Any) -> list[Any]:
    """Return the items of several sequences in turns: the first of each, the second, ..."""
    return [item for turn in zip(*parts, strict=True) for item in turn]


# -- single images --------------------------------------------------------------------------


def _reconstructions(found: Groups) -> Any:
    """Draw x, y and every model's mean and variance for the images that all models share."""
    digits, first = _digits(found), _first(found)
    spread = replace(_spread(found, "shared_variance", "variance of 30 samples"), law="root")
    count = len(first["shared_x"])
    titles = _turns([f"{name}\ntruth" for name in NAMED[:count]], ["observed"] * count)
    given = _turns(first["shared_x"], first["shared_y"])
    rows = [ImageRow("given", given, digits, titles)]
    for model, part in found.items():
        mse = np.square(part["shared_mean"] - part["shared_x"]).mean((1, 2))
        images = _turns(part["shared_mean"], part.get("shared_variance", [None] * count))
        below = _turns([f"MSE {v:.3f}" for v in mse], [""] * count)
        titles = [] if rows[1:] else ["mean", "variance"] * count
        rows.append(ImageRow(_two_lines(model), images, [digits, spread] * count, titles, below))
    return image_grid(rows, SIDE, groups=[2] * count).figure


def _percentiles(found: Groups) -> Any:
    """Draw vsPAIR's answers to its own easy, medium and hard image."""
    digits, found = _digits(found), _vspair(found)
    kinds = {
        "x": ("truth", digits),
        "y": ("observed", digits),
        "sample": ("sample", digits),
        "mean": ("mean of 30", digits),
        "variance": ("variance", _spread(found, "percentile_variance", "variance")),
        "error": ("error", _spread(found, "percentile_error", "|mean $-$ $x$|", "Greens")),
    }
    titles, scales = zip(*kinds.values(), strict=True)
    rows = []
    for model, part in found.items():
        for i, mse in enumerate(part["percentile_mse"]):
            label = f"{_two_lines(NAMED[i])}\nMSE {mse:.3f}"
            top: dict[str, Any] = {"near": True} if i else {"heading": model, "above": titles}
            images = [part[f"percentile_{kind}"][i] for kind in kinds]
            rows.append(ImageRow(label, images, scales, **top))
    return image_grid(rows, SIDE, groups=[4, 2]).figure


def _perturbation(found: Groups) -> Any:
    """Draw mean reconstructions along three leading factors of the medium image."""
    images = [part["walk_images"] for part in found.values()]
    change = [_changes(walks) for walks in images]
    labels = {
        model: [
            f"dim. {k}{_star(s)}" for k, s in zip(p["walk_dims"], p["walk_stable"], strict=True)
        ]
        for model, p in found.items()
    }
    scales = ColourScale.change("change", *change), _digits(found)
    steps = [_percent(factor) for factor in _first(found)["factors"]]
    return perturbation(labels, change, steps, scales, SMALL, images=images)


def _star(stable: bool) -> str:
    return "" if stable else "*"


def _localised(found: Groups) -> Any:
    """Draw what the best localised factor of every model changes in the shared images."""
    digits, first = _digits(found), _first(found)
    scale = ColourScale("squared change / largest in the image", "spread", (0.0, 1.0))
    x, y, region = (first[f"shared_{kind}"] for kind in ("x", "y", "region"))
    count, none, blank = len(x), [None] * len(x), [""] * len(x)
    outlined: dict[str, Any] = {"regions": _turns(none, none, region)}
    titles = ["truth", "observed", "corrupted"] * count
    rows = [ImageRow("given", _turns(x, y, y), digits, titles, **outlined)]
    for model, part in found.items():
        change = np.asarray(part["localised_change"])
        most = change.max((1, 2), keepdims=True)
        images = part["localised_before"], part["localised_after"], change / (most + (most == 0))
        words = [_which(part, s, _ratio(change[s], region[s])) for s in range(count)]
        titles, below = ["mean", "+400 %", "change"] * count, _turns(blank, words, blank)
        shown = _two_lines(model), _turns(*images), [digits, digits, scale] * count
        rows.append(ImageRow(*shown, [] if rows[1:] else titles, below, **outlined))
    return image_grid(rows, SMALL, groups=[3] * count).figure


def _ratio(change: Any, region: Any) -> float:
    """Return the mean change (H, W) in a region over that outside."""
    inside, outside = (
        float(change[part].sum()) / max(part.sum(), 1) for part in (region, ~region)
    )
    return inside / outside if outside else float("nan")


def _which(part: Part, s: int, ratio: float) -> str:
    """Return the best localised factor of an image and a ratio, in words."""
    dim, star = int(part["localised_dim"][s]), _star(part["localised_stable"][s])
    return "no active dimension" if dim < 0 else f"dim. {dim}{star}, ratio {ratio:.3g}"


def _localised_walks(found: Groups) -> Any:
    """Draw the shared images along vsPAIR's best localised factor, as the paper does."""
    digits, found = _digits(found), _vspair(found)
    spread = _spread(found, "shared_variance", "variance")
    walks = {model: _changes(part["localised_walk"]) for model, part in found.items()}
    change = ColourScale.change("change", *walks.values())
    rows = [
        row
        for model, part in found.items()
        for s in range(len(part["shared_x"]))
        for row in _walk_rows("" if s else model, part, s, (digits, spread, change))
    ]
    return image_grid(rows, SMALL, groups=[2, len(_first(found)["factors"])]).figure


def _walk_rows(
    heading: str, part: Part, s: int, scales: tuple[ColourScale, ColourScale, ColourScale]
) -> Iterator[ImageRow]:
    """Yield two rows for one image: reconstructions, and changes with the region outlined."""
    (digits, spread, change), walk = scales, part["localised_walk"][s]
    x, y, mean, variance = (part[f"shared_{k}"][s] for k in ("x", "y", "mean", "variance"))
    steps, middle = len(walk), 2 + len(walk) // 2
    titles = ["truth", "observed", *map(_percent, part["factors"])] if heading else []
    yield ImageRow("", [x, y, *walk], digits, titles, heading=heading, marked=middle)
    words = ["mean", "variance", *[""] * steps]
    words[middle] = _which(part, s, float(part["localised_ratio"][s]))
    regions = [None, None, *[part["shared_region"][s]] * steps]
    images, shades = [mean, variance, *_changes(walk)], [digits, spread, *[change] * steps]
    yield ImageRow("", images, shades, [], words, regions=regions, near=True)


def _codes(found: Groups) -> Any:
    """Draw a latent sample of every model for the shared images, as bars."""
    first, high = _first(found), 1.15
    x, y = first["shared_x"], first["shared_y"]
    titles = ["truth", "observed"] * len(x)
    row = ImageRow(" " * 10, _turns(x, y), _digits(found), above=titles)
    sheet = image_grid([row], 0.9, groups=[2] * len(x), bottom=len(found) * high + 0.3)
    top, width = sheet.height - len(found) * high - 0.3, (sheet.width - 0.9) / len(x)
    for i, (model, part) in enumerate(found.items()):
        for s in range(len(x)):
            axes = sheet.axes(0.9 + s * width, top + i * high + 0.2, width - 0.2, high - 0.5)
            _bars(axes, part, s, _colour(model))
            axes.set_xlabel("latent dimension $j$" if i == len(found) - 1 else "")
            axes.set_ylabel("" if s else f"{_two_lines(model)}\n$|z_j|$")
            axes.yaxis.set_label_coords(-0.2, 0.5)
            figures.style_axes(axes, 8)
            axes.tick_params(labelleft=s == 0)
    return sheet.figure


def _bars(axes: Any, part: Part, s: int, colour: str) -> None:
    """Draw |z| of one image; dimensions whose gate is often closed are grey."""
    sizes = np.abs(part["code_sample"])
    z, width = sizes[s], 2.0 if sizes.shape[1] < 100 else 1.0
    sure = part["code_omega"][s] >= OPEN if "code_omega" in part else np.ones(len(z), bool)
    for chosen, shade in ((~sure, GREY), (sure, colour)):
        where = np.flatnonzero(chosen & (z != 0))
        axes.vlines(where, 0, z[where], color=shade, linewidth=width)
    most = finite(sizes).max(initial=0.0) or 1.0
    axes.set(xlim=(-len(z) / 60, len(z) * (1 + 1 / 60)), ylim=(0, 1.05 * most))
    axes.set_title(f"{int(part['code_nnz'][s])} of {len(z)} not zero", pad=3)


# -- all test images ------------------------------------------------------------------------


def _uncertainty_error(found: Groups) -> Any:
    """Draw predicted variance over error, one point an image, with line, band and correlation."""
    fits = {
        model: error_fit(part["scatter_error"], part["scatter_variance"], _colour(model))
        for model, part in found.items()
    }
    unit = "pixels in [{:g}, {:g}]".format(*_digits(found).limits).replace("-", MINUS)
    words = f"MSE of the mean of 30 samples ({unit})", "mean variance of 30 samples"
    return curves.uncertainty_against_error(fits, *words, shared=True)


def _positive(values: Any) -> Any:
    some = finite(values)
    return some[some > 0]


def _variance_ratio(found: Groups) -> Any:
    """Draw the ratio of variance in the corrupted region to that outside, over all images."""
    ratios = {model: _positive(part["variance_ratio"]) for model, part in found.items()}
    ratios = {model: np.log10(v) for model, v in ratios.items() if len(np.unique(v)) > 1}
    if not ratios:
        return None
    figure = figures.new_figure(1.4 * len(ratios) + 1.0, 3.8)
    axes, places = figure.subplots(), range(len(ratios))
    bodies = axes.violinplot(list(ratios.values()), places, widths=0.8, showextrema=False)
    for place, body, model in zip(places, bodies["bodies"], ratios, strict=True):
        body.set(facecolor=_colour(model), edgecolor=_colour(model), alpha=0.55)
        low, middle, high = np.percentile(ratios[model], [25, 50, 75])
        axes.vlines(place, low, high, color=INK, linewidth=7)
        axes.plot(place, middle, "o", color="white", markersize=4.5)
        words: dict[str, Any] = {"va": "center", "fontsize": 10, "color": INK}
        axes.text(place + 0.08, middle, f"{10**middle:.3g}", **words)
    axes.axhline(0, color=GREY, linewidth=1, linestyle="--")
    axes.set_xticks(places, [_two_lines(name) for name in ratios])
    axes.set_ylabel("variance ratio, corrupted / uncorrupted")
    powers = range(int(np.ceil(axes.get_ylim()[0])), int(np.floor(axes.get_ylim()[1])) + 1)
    axes.set_yticks(powers, [f"{10.0**power:g}" for power in powers])
    figures.style_axes(axes)
    return figure


def _localisation(found: Groups) -> Any:
    """Draw histograms of the best localisation ratio, and of its change in the region."""
    panels = {
        "ratio_stable": "best localisation ratio, consistently active dimensions",
        "ratio_any": "best localisation ratio, all active dimensions",
        "inside_stable": "MSE change in the region, consistently active dimensions",
    }
    figure = figures.new_figure(5.8, 2.5 * len(panels) + 0.3)
    grid = figure.subplots(len(panels), 1)
    for axes, (name, label) in zip(grid, panels.items(), strict=True):
        _histograms(axes, {model: _positive(part[name]) for model, part in found.items()})
        axes.set(xlabel=label, ylabel="share of images (%)")
    figures.legend(figure, handles=grid[0].get_legend_handles_labels()[0], ncols=2)
    return figure


def _histograms(axes: Any, values: Mapping[str, Any]) -> None:
    """Draw the share of images in logarithmic bins for each model, and mark the medians."""
    every = finite(*values.values())
    low, high = np.percentile(every, [0.2, 99.8]) if len(every) else (1.0, 10.0)
    edges = np.geomspace(low, max(high, 1.25 * low), 36)
    heights = {model: curves.shares(some, edges) for model, some in values.items()}
    curves.histogram(axes, heights, edges, {k: _colour(k) for k in values}, filled=False)
    curves.logarithmic(axes, (edges[0], edges[-1]), "x")
    none = [model for model, some in values.items() if not len(some)]
    for i, model in enumerate(model for model in values if model not in none):
        # One above the other, so that equal medians do not hide each other.
        place = np.median(values[model]), 1.02 + 0.045 * i
        style: dict[str, Any] = {"color": _colour(model), "markersize": 6, "clip_on": False}
        axes.plot(*place, "v", transform=axes.get_xaxis_transform(), **style)
    if none:
        where: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "fontsize": 9}
        axes.text(0.98, 0.9, "none: " + ", ".join(none), in_layout=False, **where)


# -- all figures ----------------------------------------------------------------------------

_DRAWS: dict[str, tuple[Callable[[Groups], Any], str]] = {
    "reconstructions": (_reconstructions, "shared_mean"),
    "percentiles": (_percentiles, "percentile_variance"),
    "codes": (_codes, "code_sample"),
    "perturbation": (_perturbation, "walk_images"),
    "localised": (_localised, "localised_change"),
    "localised_walks": (_localised_walks, "localised_walk"),
    "uncertainty_error": (_uncertainty_error, "scatter_variance"),
    "variance_ratio": (_variance_ratio, "variance_ratio"),
    "localisation": (_localisation, "ratio_stable"),
}
"""By file name, what draws a figure, and a number that models need for it."""

CAPTIONS = read_words("mnist").captions
"""What each figure shows, by its file name."""


def draw_all(numbers: Groups, folder: Path) -> list[Path]:
    """Draw every figure that at least one model has the numbers for; return their paths."""
    draws = {}
    for name, (draw, needed) in _DRAWS.items():
        if found := {model: part for model, part in numbers.items() if needed in part}:
            draws[name] = partial(draw, found)
    return figures.write_figures(draws, folder)
