"""The figures of section 4.2 that show images and codes, drawn from saved numbers.

Digits are dark on white; variance has one colour scale for all models; the corrupted region, the
pixels that differ between x and y, is outlined; :mod:`vspair.studies.mnist.drawing` has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vspair import runs
from vspair.report.figures import FAINT, GREY, INK, MAPS, PALETTE, new_figure, png, quiet

__all__ = [
    "draw_codes",
    "draw_localised",
    "draw_localised_walks",
    "draw_percentiles",
    "draw_perturbation",
    "draw_reconstructions",
]

Numbers = dict[str, dict[str, Any]]
Limits = tuple[float, float]

COLOURS = {
    "PAIR": INK,
    "vPAIR": PALETTE[0],
    "sVAE": PALETTE[2],
    "vsPAIR (paper)": PALETTE[1],
    "vsPAIR (calibrated)": PALETTE[3],
}
DIGITS = "gray_r"
OUTLINE = PALETTE[1]
GAP = 3
"""Pixels between the images of a strip."""
NAMED = ("25th", "50th", "96th")
"""The percentiles of the error that images are chosen by."""
OPEN = 0.9
"""A gate that opens with at least this probability is drawn in full colour."""


# -- parts of figures -----------------------------------------------------------------------


def write(figure: Any, path: Path) -> None:
    data = png(figure)
    runs.atomically(path, lambda part: part.write_bytes(data))


def having(numbers: Numbers, name: str) -> Numbers:
    """Return the models that have a number."""
    return {model: part for model, part in numbers.items() if name in part}


def colour_of(model: str) -> str:
    return COLOURS.get(model, INK)


def two_lines(model: str) -> str:
    """Return a model's name on two lines."""
    return model.replace(" ", "\n", 1)


def limits_of(numbers: Numbers) -> Limits:
    low, high = next(iter(numbers.values()))["range"]
    return float(low), float(high)


def _top(numbers: Numbers, name: str) -> Limits:
    """Return a scale from zero to nearly the largest value in any model.

    The one pixel in a thousand beyond it would leave little colour for all others.
    """
    parts = [part[name].astype(np.float32) for part in having(numbers, name).values()]
    return 0.0, max((float(np.quantile(v, 0.999)) for v in parts), default=0.0) or 1.0


def _image(axes: Any, image: Any, colours: str, limits: Limits, root: bool = False) -> Any:
    """Show an image in a thin frame; an axis without a label takes no time in layout.

    With ``root``, colours go with the root of the value, so that small ones can be seen.
    """
    from matplotlib.colors import Normalize, PowerNorm

    axes.set(xticks=[], yticks=[])
    axes.xaxis.set_visible(bool(axes.get_xlabel()))
    axes.yaxis.set_visible(bool(axes.get_ylabel()))
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.6)
    norm = PowerNorm(0.5, *limits) if root else Normalize(*limits)
    shown = np.asarray(image, dtype=np.float32)
    return axes.imshow(shown, cmap=colours, norm=norm, interpolation="nearest")


def _outline(axes: Any, region: Any) -> None:
    """Draw the edge of a region along the edges of its pixels."""
    if not region.any():
        return
    fine = 8
    inside = np.kron(np.pad(region, 1), np.ones((fine, fine)))
    rows, columns = ((np.arange(n) + 0.5) / fine - 1.5 for n in inside.shape)
    axes.contour(columns, rows, inside, levels=[0.5], colors=[OUTLINE], linewidths=0.8)
    axes.set(xlim=(-0.5, region.shape[1] - 0.5), ylim=(region.shape[0] - 0.5, -0.5))


def _strip(axes: Any, images: Any, colours: str, limits: Limits, region: Any = None) -> Any:
    """Show images (F, H, W) side by side in one axes, which is far faster than one for each."""
    count, height, width = images.shape
    wide = np.pad(np.float32(images), ((0, 0), (0, 0), (0, GAP)), constant_values=np.nan)
    drawn = _image(axes, np.concatenate(wide, axis=1)[:, :-GAP], colours, limits)
    if region is not None:
        again = np.concatenate([np.pad(region, ((0, 0), (0, GAP)))] * count, axis=1)
        _outline(axes, again[:, :-GAP])
    axes.spines[:].set_visible(False)
    for i in range(count):
        _frame(axes, i * (width + GAP), width, height)
    return drawn


def _strip_width(images: Any) -> float:
    """Return the width of a strip in widths of one image."""
    return len(images) + (len(images) - 1) * GAP / images.shape[-1]


def _frame(axes: Any, left: float, width: int, height: int, **more: Any) -> None:
    """Draw a frame around one image of a strip."""
    from matplotlib.patches import Rectangle

    style: dict[str, Any] = {"edgecolor": FAINT, "linewidth": 0.6, "clip_on": False} | more
    axes.add_patch(Rectangle((left - 0.5, -0.5), width, height, facecolor="none", **style))


def _mark_middle(axes: Any, images: Any) -> None:
    """Frame the unperturbed image in the middle of a strip."""
    count, height, width = images.shape
    _frame(axes, count // 2 * (width + GAP), width, height, edgecolor=INK, linewidth=1.6)


def _label_strip(axes: Any, images: Any, labels: Sequence[str]) -> None:
    """Write a label above each image of a strip."""
    width = images.shape[-1]
    centres = [i * (width + GAP) + width / 2 - 0.5 for i in range(len(labels))]
    axes.xaxis.set_visible(True)
    axes.set_xticks(centres, labels, fontsize=8.5, color=INK)
    axes.tick_params(top=False, bottom=False, labeltop=True, labelbottom=False, pad=1)


def _beside(axes: Any, text: str) -> None:
    """Write the name of a row to the left of its first image."""
    axes.yaxis.set_visible(True)
    axes.set_ylabel(text, rotation=0, ha="right", va="center", color=INK, fontsize=9.5)


def _above(axes: Any, text: str, size: float = 9.0) -> None:
    axes.set_title(text, fontsize=size, color=INK, pad=3)


def _below(axes: Any, text: str, size: float = 8.0) -> None:
    axes.xaxis.set_visible(True)
    axes.set_xlabel(text, fontsize=size, color=INK, labelpad=2)


def _bar(figure: Any, drawn: Any, axes: Any, label: str, **more: Any) -> None:
    """Add a colour bar for several axes."""
    bar = figure.colorbar(drawn, ax=axes, **more)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.locator = _few()
    bar.update_ticks()
    bar.set_label(label, fontsize=9, color=INK)


def _few() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4, steps=[1, 2, 5, 10])


def _grid(figure: Any, rows: int, groups: Sequence[int], gap: float = 0.18) -> list[list[Any]]:
    """Return axes row by row, with groups of so many columns a little apart."""
    widths: list[float] = []
    for count in groups:
        widths += [gap] * bool(widths) + [1.0] * count
    grid = figure.add_gridspec(rows, len(widths), width_ratios=widths)
    columns = [i for i, width in enumerate(widths) if width == 1.0]
    return [[figure.add_subplot(grid[row, i]) for i in columns] for row in range(rows)]


def _percent(factor: float) -> str:
    return f"{100 * factor:+.0f} %".replace("-", "\N{MINUS SIGN}") if factor else "0"


# -- reconstructions ------------------------------------------------------------------------


def draw_reconstructions(numbers: Numbers, path: Path) -> None:
    """Draw x, y and every model's mean and variance for the images that all models share."""
    first = next(iter(numbers.values()))
    count, ends = len(first["shared_x"]), limits_of(numbers)
    top = _top(numbers, "shared_variance")
    figure = new_figure(2.05 * count + 2.0, 1.2 * (len(numbers) + 1))
    grid = _grid(figure, len(numbers) + 1, [2] * count)
    for s in range(count):
        left, right = grid[0][2 * s : 2 * s + 2]
        _image(left, first["shared_x"][s], DIGITS, ends)
        _image(right, first["shared_y"][s], DIGITS, ends)
        _above(left, f"{NAMED[s]} percentile\ntruth $x$")
        _above(right, "observed $y$")
    _beside(grid[0][0], "given")
    for row, (model, part) in zip(grid[1:], numbers.items(), strict=True):
        _beside(row[0], two_lines(model))
        nothing = np.zeros_like(part["shared_mean"])
        for s in range(count):
            mean, variance = row[2 * s : 2 * s + 2]
            _image(mean, part["shared_mean"][s], DIGITS, ends)
            wrong = np.square(np.float32(part["shared_mean"][s]) - part["shared_x"][s]).mean()
            _below(mean, f"MSE {wrong:.3f}")
            spread = part.get("shared_variance", nothing)[s]
            drawn = _image(variance, spread, MAPS["spread"], top, root=True)
            if "shared_variance" not in part:
                variance.text(
                    0.5, 0.5, "none", transform=variance.transAxes, ha="center", color=GREY
                )
    for i, ax in enumerate(grid[1]):
        _above(ax, "variance" if i % 2 else "mean")
    every = [ax for row in grid for ax in row]
    _bar(figure, drawn, every, "variance of 30 samples", shrink=0.5, aspect=25, extend="max")
    write(figure, path)


def draw_percentiles(numbers: Numbers, path: Path) -> None:
    """Draw vsPAIR's answers to its own easy, medium and hard image."""
    own = {k: v for k, v in numbers.items() if k.startswith("vsPAIR")} or numbers
    own = having(own, "percentile_variance")
    ends = limits_of(own)
    kinds: dict[str, tuple[str, str, Limits]] = {
        "x": ("truth $x$", DIGITS, ends),
        "y": ("observed $y$", DIGITS, ends),
        "sample": ("one sample", DIGITS, ends),
        "mean": ("mean of 30", DIGITS, ends),
        "variance": ("variance", MAPS["spread"], _top(own, "percentile_variance")),
        "error": ("|mean $-$ $x$|", "Greens", _top(own, "percentile_error")),
    }
    figure = new_figure(8.2, 4.3 * len(own))
    halves = list(np.atleast_1d(figure.subfigures(len(own), 1)))
    for half, (model, part) in zip(halves, own.items(), strict=True):
        half.suptitle(model, color=INK, fontsize=12)
        grid = half.subplots(3, len(kinds))
        for i, (kind, (title, colours, limits)) in enumerate(kinds.items()):
            for row, image in enumerate(part[f"percentile_{kind}"]):
                drawn = _image(grid[row, i], image, colours, limits)
            _above(grid[0, i], title)
            if i >= 3:
                columns = grid[:, :4] if i == 3 else grid[:, i]
                wide, over = (40, "neither") if i == 3 else (10, "max")
                more: dict[str, Any] = {"location": "bottom", "pad": 0.02, "extend": over}
                _bar(half, drawn, list(columns.flat), "", aspect=wide, **more)
        for ax, name, mse in zip(grid[:, 0], NAMED, part["percentile_mse"], strict=True):
            _beside(ax, f"{name}\npercentile\nMSE {mse:.3f}")
    write(figure, path)


# -- codes and factors ----------------------------------------------------------------------


def draw_codes(numbers: Numbers, path: Path) -> None:
    """Draw a latent sample of every model for the shared images, as bars."""
    first = next(iter(numbers.values()))
    count = len(first["shared_x"])
    figure = new_figure(9.5, 1.35 * len(numbers) + 1.6)
    head, body = figure.subfigures(2, 1, height_ratios=(1.3, 1.35 * len(numbers)))
    for s, axes in enumerate(np.reshape(head.subplots(1, 2 * count), (count, 2))):
        for ax, kind in zip(axes, "xy", strict=True):
            _image(ax, first[f"shared_{kind}"][s], DIGITS, limits_of(numbers))
            _above(ax, "truth $x$" if kind == "x" else "observed $y$")
    grid = body.subplots(len(numbers), count, squeeze=False, sharey="row")
    for row, (model, part) in zip(grid, numbers.items(), strict=True):
        for s, ax in enumerate(row):
            _bars(ax, model, part, s)
        row[0].set_ylabel(f"{two_lines(model)}\n$|z_j|$", fontsize=9.5)
    for ax in grid[-1]:
        ax.set_xlabel("latent dimension $j$", fontsize=9.5)
    write(figure, path)


def _bars(axes: Any, model: str, part: dict[str, Any], s: int) -> None:
    """Draw |z| of one image; dimensions whose gate is often closed are grey."""
    z = np.abs(part["code_sample"][s])
    sure = part["code_omega"][s] >= OPEN if "code_omega" in part else np.ones(len(z), bool)
    dense = np.count_nonzero(z) > 150
    width = 2.4 if len(z) < 100 else 0.6 if dense else 1.2
    for chosen, colour in ((~sure, GREY), (sure, colour_of(model))):
        where = np.flatnonzero(chosen & (z != 0))
        if len(where):
            axes.vlines(where, 0, z[where], color=colour, linewidth=width)
    axes.set(xlim=(-len(z) / 60, len(z) * (1 + 1 / 60)), ylim=(0, None))
    quiet(axes)
    axes.tick_params(labelsize=8)
    axes.set_title(f"{int(part['code_nnz'][s])} of {len(z)} not zero", fontsize=9, pad=3)


def draw_perturbation(numbers: Numbers, path: Path) -> None:
    """Draw mean reconstructions along three leading factors of the medium image."""
    walks = having(numbers, "walk_images")
    rows, across = -(-len(walks) // 2), min(2, len(walks))
    figure = new_figure(5.6 * across, 4.0 * rows)
    figure.get_layout_engine().set(w_pad=0.12)
    places = np.ravel(figure.subfigures(rows, across))
    for place, (model, part) in zip(places, walks.items(), strict=False):
        place.suptitle(model, color=INK, fontsize=12)
        _walk(place, part, limits_of(walks))
    write(figure, path)


def _walk(figure: Any, part: dict[str, Any], ends: Limits) -> None:
    """Draw reconstructions and changes along several factors of one image."""
    images, changes = part["walk_images"], _changes(part["walk_images"])
    most = float(np.abs(changes).max()) or 1.0
    grid = figure.subplots(2 * len(images), 1)
    for k, dim in enumerate(part["walk_dims"]):
        above, below = grid[2 * k : 2 * k + 2]
        _strip(above, images[k], DIGITS, ends)
        _mark_middle(above, images[k])
        drawn = _strip(below, changes[k], MAPS["change"], (-most, most))
        _beside(above, f"dim. {dim}" + "*" * (not part["walk_stable"][k]))
        _beside(below, "change")
    _label_strip(grid[0], images[0], [_percent(f) for f in part["factors"]])
    _bar(figure, drawn, list(grid), "change", shrink=0.5, aspect=25)


def _changes(walk: Any) -> Any:
    """Return walks (K, F, H, W) less the unperturbed image, which is in the middle."""
    walk = np.float32(walk)
    middle = walk.shape[1] // 2
    return walk - walk[:, middle : middle + 1]


def draw_localised(numbers: Numbers, path: Path) -> None:
    """Draw what the best localised factor of every model changes in the shared images."""
    found = having(numbers, "localised_change")
    first = next(iter(found.values()))
    count, ends = len(first["shared_x"]), limits_of(found)
    figure = new_figure(2.75 * count + 1.4, 1.06 * (len(found) + 1))
    grid = _grid(figure, len(found) + 1, [3] * count)
    for s in range(count):
        axes = grid[0][3 * s : 3 * s + 3]
        for ax, kind in zip(axes, "xyy", strict=True):
            _image(ax, first[f"shared_{kind}"][s], DIGITS, ends)
        _outline(axes[2], first["shared_region"][s])
        for ax, title in zip(axes, ("truth $x$", "observed $y$", "corrupted"), strict=True):
            _above(ax, title)
        for ax, title in zip(grid[1][3 * s :], ("mean code", "+400 %", "change"), strict=False):
            _above(ax, title)
    _beside(grid[0][0], "given")
    for row, (model, part) in zip(grid[1:], found.items(), strict=True):
        _beside(row[0], two_lines(model))
        for s in range(count):
            drawn = _localised(row[3 * s : 3 * s + 3], part, s, ends)
    every = [ax for row in grid for ax in row]
    label = "squared change / largest in the image"
    _bar(figure, drawn, every, label, shrink=0.6, aspect=25)
    write(figure, path)


def _localised(axes: Sequence[Any], part: dict[str, Any], s: int, ends: Limits) -> Any:
    """Draw the decoded mean code, the same with one factor perturbed, and the squared change."""
    _image(axes[0], part["localised_before"][s], DIGITS, ends)
    _image(axes[1], part["localised_after"][s], DIGITS, ends)
    change = np.asarray(part["localised_change"][s], dtype=np.float32)
    drawn = _image(axes[2], change / (change.max() or 1.0), MAPS["spread"], (0.0, 1.0))
    _outline(axes[2], part["shared_region"][s])
    region = part["shared_region"][s]
    outside = float(change[~region].mean())
    _below(axes[1], _which(part, s, float(change[region].mean()) / outside if outside else np.nan))
    return drawn


def _which(part: dict[str, Any], s: int, ratio: float) -> str:
    """Return the best localised factor of an image and a ratio, in words."""
    dim = int(part["localised_dim"][s])
    if dim < 0:
        return "no active dimension"
    star = "" if part["localised_stable"][s] else "*"
    return f"dim. {dim}{star}, ratio {ratio:.3g}"


def draw_localised_walks(numbers: Numbers, path: Path) -> None:
    """Draw the shared images along vsPAIR's best localised factor, as the paper does."""
    own = {k: v for k, v in numbers.items() if k.startswith("vsPAIR")} or numbers
    own = having(own, "localised_walk")
    count, top = len(next(iter(own.values()))["shared_x"]), _top(own, "shared_variance")
    figure = new_figure(9.0, (1.8 * count + 0.5) * len(own))
    halves = np.atleast_1d(figure.subfigures(len(own), 1))
    for half, (model, part) in zip(halves, own.items(), strict=True):
        half.suptitle(model, color=INK, fontsize=12)
        widths = (1, 1, _strip_width(part["localised_walk"][0]))
        grid = half.subplots(2 * count, 3, width_ratios=widths)
        for s in range(count):
            drawn = _localised_walk(grid[2 * s : 2 * s + 2], part, s, (limits_of(own), top))
        _above(grid[0, 0], "truth $x$", 8.5)
        _above(grid[0, 1], "observed $y$", 8.5)
        words = [_percent(f) for f in part["factors"]]
        _label_strip(grid[0, 2], part["shared_x"], words)
        _bar(half, drawn, list(grid.flat), "change", shrink=0.5, aspect=25)
    write(figure, path)


def _localised_walk(axes: Any, part: dict[str, Any], s: int, scales: tuple[Limits, Limits]) -> Any:
    """Draw two rows for one image: reconstructions, and changes with the region outlined."""
    ends, top = scales
    walk, changes = part["localised_walk"][s], _changes(part["localised_walk"])
    most = float(np.abs(changes).max()) or 1.0
    _image(axes[0, 0], part["shared_x"][s], DIGITS, ends)
    _image(axes[0, 1], part["shared_y"][s], DIGITS, ends)
    _image(axes[1, 0], part["shared_mean"][s], DIGITS, ends)
    _image(axes[1, 1], part["shared_variance"][s], MAPS["spread"], top)
    _below(axes[1, 0], "mean")
    _below(axes[1, 1], "variance")
    _strip(axes[0, 2], walk, DIGITS, ends)
    _mark_middle(axes[0, 2], walk)
    region = part["shared_region"][s]
    drawn = _strip(axes[1, 2], changes[s], MAPS["change"], (-most, most), region)
    _below(axes[1, 2], _which(part, s, float(part["localised_ratio"][s])))
    return drawn
