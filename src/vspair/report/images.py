"""Grids of images, and the figure of what moving single factors does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from vspair.errors import VspairError
from vspair.report.figures import MINUS, ColourScale, Sheet

__all__ = ["ImageRow", "image_grid", "in_deviations", "perturbation"]

GAP, APART, LINE, BAR = 0.04, 0.11, 0.19, 0.86
"""In inches: between images that belong to each other and between those that do not, a line of
text, and a colour bar with its words."""


@dataclass(frozen=True)
class ImageRow:
    """One row of a grid of images.

    Arguments:
        label: What the row shows, to its left.
        images: The images, each of shape (H, W); None leaves a place free.
        scale: What their colours stand for, one for all or one each.
        above: Words over the images.
        below: Words under the images.
        heading: Words over the row, where something new begins.
        regions: Regions to outline, each of shape (H, W); None for no region.
        marked: Which image has a dark frame.
        near: Whether it belongs to the row above.
    """

    label: str
    images: Any
    scale: ColourScale | Sequence[ColourScale]
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    heading: str = ""
    regions: Any = None
    marked: int | None = None
    near: bool = False

    @property
    def scales(self) -> Sequence[ColourScale]:
        """The scale of each image."""
        one = self.scale
        return [one] * len(self.images) if isinstance(one, ColourScale) else one

    @property
    def head(self) -> float:
        """Inches of the words over it."""
        lines = max((words.count("\n") + 1 for words in self.above), default=0)
        return 1.4 * LINE * bool(self.heading) + LINE * lines


def image_grid(
    rows: Sequence[ImageRow],
    side: float = 1.2,
    *,
    groups: Sequence[int] = (),
    right: float = 0.0,
    bottom: float = 0.0,
) -> Sheet:
    """Return a sheet with rows of images, and a colour bar for each scale to their right.

    Arguments:
        rows: The rows, each with the same number of images.
        side: The side of one image in inches.
        groups: How many columns belong to each other, from the left; all where not given.
        right: Inches to leave free at the right, for other axes.
        bottom: Inches to leave free at the bottom, for other axes.
    """
    counts = [len(row.images) for row in rows]
    if len(set(counts)) != 1 or not counts[0]:
        raise VspairError(
            f"The rows hold {counts} images: expected at least one row, and as many in each."
        )
    left = 0.1 + max(_inches(row.label) for row in rows)
    columns = []
    for count in groups or counts[:1]:
        columns += [left + i * (side + GAP) for i in range(count)]
        left = columns[-1] + side + APART
    tops = _tops(rows, side)
    edge, end = columns[-1] + side, tops[-1] + side + LINE * any(rows[-1].below)
    sheet = Sheet(edge + BAR + right, end + 0.1 + bottom)
    for row, top in zip(rows, tops, strict=True):
        _show(sheet, row, top, columns, side)
    for scale, (start, height) in _bars(rows, tops, end).items():
        sheet.bar(scale, edge + 0.1, start, height)
    return sheet


def _inches(words: str) -> float:
    """Return about how wide words are; symbols are one letter wide."""
    plain = words.replace("$", "").replace("\\hat\\omega", "w").replace("\\gamma_x", "gx")
    return max(0.076 * len(line) for line in plain.split("\n")) + 0.08


def _tops(rows: Sequence[ImageRow], side: float) -> list[float]:
    """Return where the images of each row begin."""
    tops = [0.08 + rows[0].head]
    for last, row in pairwise(rows):
        apart = GAP if row.near else 2.5 * APART if row.heading else APART
        tops.append(tops[-1] + side + LINE * any(last.below) + apart + row.head)
    return tops


def _show(sheet: Sheet, row: ImageRow, top: float, columns: Sequence[float], side: float) -> None:
    """Show one row with its words."""
    centre = (columns[0] + columns[-1] + side) / 2
    sheet.text(centre, top - row.head + 0.85 * LINE, row.heading, 11, ha="center")
    sheet.text(columns[0] - 0.08, top + side / 2, row.label, ha="right", va="center")
    for x, words in zip(columns, row.above, strict=False):
        for i, line in enumerate(reversed(words.split("\n"))):
            sheet.text(x + side / 2, top - 0.06 - i * LINE, line, 9, ha="center")
    for x, words in zip(columns, row.below, strict=False):
        sheet.text(x + side / 2, top + side + 0.15, words, 9, ha="center")
    for i, (x, image) in enumerate(zip(columns, row.images, strict=True)):
        if image is not None:
            sheet.image((x, top, side), image, row.scales[i], i == row.marked)
        if row.regions is not None and row.regions[i] is not None:
            sheet.outline((x, top, side), row.regions[i])


def _bars(
    rows: Sequence[ImageRow], tops: Sequence[float], end: float
) -> dict[ColourScale, tuple[float, float]]:
    """Return top and height of each colour bar: beside its first row, where those differ."""
    starts: dict[ColourScale, float] = {}
    for row, top in zip(rows, tops, strict=True):
        for scale, image in zip(row.scales, row.images, strict=True):
            if image is not None:
                starts.setdefault(scale, top)
    places, count = list(starts.values()), len(starts)
    if len(set(places)) < count:
        places = [tops[0] + i * (end - tops[0]) / count for i in range(count)]
    spans = pairwise([*places, end + 0.15])
    heights = [(start, min(stop - start - 0.15, 3.2)) for start, stop in spans]
    return dict(zip(starts, heights, strict=True))


# -- factors --------------------------------------------------------------------------------


def perturbation(
    labels: Mapping[str, Sequence[str]],
    change: Any,
    steps: Sequence[str],
    scales: tuple[ColourScale, ColourScale],
    side: float = 0.7333,
    *,
    centre: Any = None,
    truth: Any = None,
    images: Any = None,
) -> Any:
    """Return a figure of what moving single factors does: one row a factor, one column a step.

    Arguments:
        labels: For each image whose factors are moved, by its heading, which factors they are.
        change: The change of each image, of shape (K, S, H, W) for K factors and S steps.
        steps: How far factors are moved, in words.
        scales: Those of changes and of images.
        side: The side of one image in inches.
        centre: Images that nothing is moved in, each of shape (H, W), for the middle column.
        truth: Truths, each of shape (H, W), for a column before all others.
        images: The images themselves, each of shape (K, S, H, W), for rows over the changes.
    """
    middle, first, rows = len(steps) // 2, [] if truth is None else ["truth"], []
    for b, (heading, factors) in enumerate(labels.items()):
        top: dict[str, Any] = {"heading": heading, "above": [*first, *steps]}
        for k, label in enumerate(factors):
            if images is not None:
                rows.append(ImageRow(label, images[b][k], scales[1], marked=middle, **top))
                label, top = "change", {"near": True}
            shown, shades = list(change[b][k]), [scales[0]] * len(steps)
            if centre is not None:
                shown[middle], shades[middle] = centre[b], scales[1]
            if truth is not None:
                shown, shades = [None if k else truth[b], *shown], [scales[1], *shades]
            rows.append(ImageRow(label, shown, shades, **top))
            top = {"near": images is None}
    return image_grid(rows, side, groups=[1] * len(first) + [len(steps)]).figure


def in_deviations(step: float) -> str:
    """Return a step in deviations of a factor, in words."""
    size = "" if abs(step) == 1 else f"{abs(step):g}"
    return f"{MINUS if step < 0 else '+'}{size}$\\sigma$" if step else "mean"
