"""Random slices through a chest: the images of computed tomography where no data are at hand.

A phantom is drawn from the outside to the inside: fat and muscle, two lungs with vessels and at
times a nodule, between them the mediastinum with heart, aorta and airways, then spine, ribs and
breastbone. A level, drawn for each, says where the slice lies: near the top there is a windpipe
and small lungs, further down two bronchi, the heart, and last the liver rises into the right lung.
Values are attenuations over 81.36 per metre, the upper end of LoDoPaB-CT's scale: water is 0.246
and air 0; see :data:`TISSUES`. Anterior is up and the heart is on the right-hand side, as in the
slices that :mod:`vspair.datasets.lodopab` reads.

They are plausible, not true: no statement about patients can be made with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair.errors import VspairError

__all__ = ["TISSUES", "chest_phantoms"]

TISSUES: dict[str, float] = {
    "air": 0.002,
    "lung": 0.04,
    "fat": 0.223,
    "muscle": 0.257,
    "blood": 0.268,
    "marrow": 0.30,
    "bone": 0.42,
}
"""The mean values of tissues; from phantom to phantom each varies by a few per cent."""

_RIBS, _VESSELS = 5, 11

Place = tuple[Tensor, Tensor]


def _wide(value: Tensor) -> Tensor:
    """Return numbers of shape (n,) with shape (n, 1, 1), and images as they are."""
    return value[:, None, None] if value.ndim == 1 else value


def _bump(level: Tensor, centre: float, width: float) -> Tensor:
    """Return 1 at a level and 0 further than a width from it."""
    return (1 - (level - centre).abs() / width).clamp(0, 1)


def _power(a: Tensor, power: float) -> Tensor:
    """Return a power of numbers that are not below 0; the plain ones are ten times as fast."""
    return a if power == 1 else a.square() if power == 2 else a**power


def _level(a: Tensor, b: Tensor, power: float) -> Tensor:
    """Return how many times the oval through a point is as large as the oval of radii 1."""
    if power == 2:
        return torch.hypot(a, b).clamp(min=1e-6)
    return (a**power + b**power).clamp(min=1e-12) ** (1 / power)


class _Sketch:
    """Draws shapes into n images at once; coordinates run from -1 to 1, right and up.

    Arguments:
        n: The number of images.
        size: The side of an image in pixels.
        generator: The source of randomness.
    """

    def __init__(self, n: int, size: int, generator: Generator) -> None:
        self.n, self.size, self.generator = n, size, generator
        axis = (torch.arange(size, dtype=torch.float32) - (size - 1) / 2) * 2 / size
        self.right, self.up = axis.expand(n, size, size), (-axis)[:, None].expand(n, size, size)
        self.image = torch.full((n, size, size), TISSUES["air"], dtype=torch.float32)
        self.tissue = {k: v * self.uniform(0.97, 1.03) for k, v in TISSUES.items()}

    def uniform(self, low: float, high: float) -> Tensor:
        """Draw a number for each image, with shape (n,)."""
        unit = torch.rand(self.n, generator=self.generator, dtype=torch.float32)
        return low + (high - low) * unit

    def chance(self, share: float) -> Tensor:
        """Draw 1 with a probability and otherwise 0 for each image, with shape (n,)."""
        return (self.uniform(0, 1) < share).float()

    def oval(
        self,
        centre: Place,
        radii: Place,
        *,
        turn: Tensor | None = None,
        power: float = 2.0,
        wobble: Tensor | None = None,
    ) -> Tensor:
        """Return how far inside an oval each pixel is, in pixels near its edge, (n, size, size).

        Arguments:
            centre: Right and up, each with shape (n,).
            radii: Half axes, each with shape (n,).
            turn: By how much it is turned, anticlockwise, with shape (n,).
            power: 2 for an ellipse, more for a squarer shape.
            wobble: What the radius is multiplied by, with shape (n, size, size).
        """
        right, up = self.right - _wide(centre[0]), self.up - _wide(centre[1])
        if turn is not None:
            cos, sin = _wide(turn.cos()), _wide(turn.sin())
            right, up = right * cos + up * sin, up * cos - right * sin
        a, b = (right / _wide(radii[0])).abs(), (up / _wide(radii[1])).abs()
        level = _level(a, b, power)
        # The level's slope, by which its excess becomes a distance.
        slope = torch.hypot(
            _power(a / level, power - 1) / _wide(radii[0]),
            _power(b / level, power - 1) / _wide(radii[1]),
        )
        return ((1 if wobble is None else wobble) - level) / slope * self.size / 2

    def fill(self, inside: Tensor, value: Tensor, where: Tensor | None = None) -> Tensor:
        """Replace what is inside by a value, softly over a pixel at the edge.

        Arguments:
            inside: The distance from the edge in pixels, as :meth:`oval` returns it.
            value: With shape (n,) or (n, size, size).
            where: A share in [0, 1] that the replacing is multiplied by, (n,) or (n, size, size).

        Returns:
            The share of each pixel that was replaced, with shape (n, size, size).
        """
        share = (inside + 0.5).clamp(0, 1)
        share = share if where is None else share * _wide(where)
        self.image = torch.lerp(self.image, _wide(value).expand_as(self.image), share)
        return share

    def disc(self, centre: Place, radius: Tensor, value: Tensor, where: Tensor) -> None:
        """Fill a disc; see :meth:`fill`."""
        self.fill(self.oval(centre, (radius, radius)), value, where)

    def wobble(self, strength: float) -> Tensor:
        """Return a smooth factor about 1 that depends on the direction, (n, size, size)."""
        angle = torch.atan2(self.up, self.right)
        factor = torch.ones_like(self.image)
        for k in range(2, 7):
            phase, share = self.uniform(0, 2 * math.pi), self.uniform(-strength, strength)
            factor = factor + _wide(share) * torch.cos(k * angle + _wide(phase)) / k
        return factor

    def texture(self, tissue: str, strength: float, grain: int = 5) -> Tensor:
        """Return a tissue that varies smoothly from place to place, (n, size, size)."""
        cells = max(4, self.size // grain)
        shape = (self.n, 1, cells, cells)
        coarse = torch.randn(shape, generator=self.generator, dtype=torch.float32)
        fine = F.interpolate(coarse, (self.size, self.size), mode="bicubic", align_corners=False)
        return _wide(self.tissue[tissue]) * (1 + strength * fine[:, 0])


@dataclass(frozen=True)
class _Chest:
    """What the organs are placed by.

    Arguments:
        centre: Of the rib cage, right and up, each with shape (n,).
        radii: Of the rib cage, each with shape (n,).
        level: Where the slice lies: 0 at the top of the lungs, 1 at the liver, shape (n,).
        wobble: By how much the outline departs from an oval, with shape (n, size, size).
    """

    centre: Place
    radii: Place
    level: Tensor
    wobble: Tensor

    def at(self, right: float | Tensor, up: float | Tensor) -> Place:
        """Return the place at shares of the radii from the centre."""
        return self.centre[0] + right * self.radii[0], self.centre[1] + up * self.radii[1]

    def times(self, right: float | Tensor, up: float | Tensor) -> Place:
        """Return shares of the radii."""
        return right * self.radii[0], up * self.radii[1]


def chest_phantoms(n: int, generator: Generator, *, size: int = 88) -> Tensor:
    """Draw n slices through chests, float32 in [0, 1], with shape (n, size, size).

    Arguments:
        n: How many.
        generator: The source of randomness, on the CPU.
        size: The side of an image in pixels, at least 16.

    Example:
        >>> chest_phantoms(2, Generator().manual_seed(0)).shape
        torch.Size([2, 88, 88])
    """
    if n < 1:
        raise VspairError(f"n = {n}: expected at least one phantom.")
    if size < 16:
        raise VspairError(f"size = {size}: a chest needs at least 16 pixels on a side.")
    # In parts of a fixed length: memory stays small, and the first phantoms of many are those
    # of few.
    parts = [_draw(_Sketch(64, size, generator)) for _ in range(math.ceil(n / 64))]
    return torch.cat(parts)[:n]


def _draw(sketch: _Sketch) -> Tensor:
    chest = _draw_body(sketch)
    lung = _draw_lungs(sketch, chest)
    _draw_mediastinum(sketch, chest)
    _draw_airways(sketch, chest)
    _draw_vessels(sketch, chest, lung)
    _draw_ribs(sketch, chest)
    _draw_spine(sketch, chest)
    return sketch.image.clamp(0, 1).float()


def _draw_body(sketch: _Sketch) -> _Chest:
    """Draw fat and muscle; return the measures of what is inside."""
    level = sketch.uniform(0, 1)
    wide = sketch.uniform(0.84, 1.02) - 0.14 * (0.25 - level).clamp(min=0) / 0.25
    chest = _Chest(
        (sketch.uniform(-0.04, 0.04), sketch.uniform(-0.08, 0.06)),
        (wide, wide * sketch.uniform(0.68, 0.84)),
        level,
        sketch.wobble(0.04),
    )
    wall = sketch.uniform(0.16, 0.4)
    outer = chest.radii[0] + wall, chest.radii[1] + 0.8 * wall
    body = sketch.oval(chest.centre, outer, power=2.6, wobble=sketch.wobble(0.03))
    sketch.fill(body, sketch.texture("fat", 0.015))
    muscle = tuple(r + 0.06 for r in chest.radii)
    inside = sketch.oval(chest.centre, (muscle[0], muscle[1]), power=2.4, wobble=chest.wobble)
    sketch.fill(inside, sketch.texture("muscle", 0.02))
    return chest


def _draw_lungs(sketch: _Sketch, chest: _Chest) -> Tensor:
    """Draw both lungs; return what share of each pixel is lung, with shape (n, size, size)."""
    size = 0.75 + 0.25 * (chest.level / 0.3).clamp(max=1)
    lung = torch.zeros_like(sketch.image)
    for side in (-1, 1):
        centre = chest.at(side * sketch.uniform(0.49, 0.53), sketch.uniform(-0.06, 0.02))
        radii = chest.times(size * sketch.uniform(0.38, 0.43), size * sketch.uniform(0.74, 0.84))
        inside = sketch.oval(
            centre,
            radii,
            turn=side * sketch.uniform(0.0, 0.16),
            power=2.3,
            wobble=sketch.wobble(0.08),
        )
        air = sketch.texture("lung", 0.12)
        lung = torch.maximum(lung, sketch.fill(inside, air))
    liver = ((chest.level - 0.8) / 0.2).clamp(0, 1)
    dome = chest.times(0.2 + 0.4 * liver, 0.2 + 0.5 * liver)
    covered = sketch.fill(
        sketch.oval(chest.at(-0.5, 0.12), dome, wobble=sketch.wobble(0.06)),
        sketch.texture("blood", 0.01),
        (liver > 0).float(),
    )
    return lung * (1 - covered)


def _draw_mediastinum(sketch: _Sketch, chest: _Chest) -> None:
    """Draw what lies between the lungs: fat, heart, aorta and the great vessels."""
    middle = sketch.oval(
        chest.at(sketch.uniform(-0.02, 0.05), sketch.uniform(0.08, 0.2)),
        chest.times(sketch.uniform(0.13, 0.2), sketch.uniform(0.62, 0.78)),
        wobble=sketch.wobble(0.12),
    )
    sketch.fill(middle, sketch.texture("fat", 0.03))
    blood = sketch.tissue["blood"] * (1 + 0.25 * sketch.chance(0.3) * sketch.uniform(0, 1))
    heart = _bump(chest.level, 0.75, 0.4)
    sketch.fill(
        sketch.oval(
            chest.at(sketch.uniform(0.08, 0.18), sketch.uniform(0.12, 0.24)),
            chest.times(0.14 + 0.36 * heart, 0.2 + 0.22 * heart),
            turn=sketch.uniform(-0.7, -0.2),
            power=2.2,
            wobble=sketch.wobble(0.06),
        ),
        blood,
        (heart > 0).float(),
    )
    everywhere = torch.ones_like(chest.level)
    sketch.disc(chest.at(0.14, -0.38), sketch.uniform(0.07, 0.11), blood, everywhere)
    high = (chest.level < 0.55).float()
    for right, up, radius in ((-0.1, 0.28, 0.08), (0.1, 0.3, 0.09), (-0.02, 0.42, 0.06)):
        place = chest.at(right + sketch.uniform(-0.03, 0.03), up + sketch.uniform(-0.05, 0.05))
        sketch.disc(place, radius * sketch.uniform(0.8, 1.3), blood, high)


def _draw_airways(sketch: _Sketch, chest: _Chest) -> None:
    """Draw the windpipe, which further down parts into two bronchi."""
    air, low = sketch.tissue["air"], ((chest.level - 0.3) / 0.2).clamp(0, 1)
    up = sketch.uniform(-0.08, 0.06)
    radius = sketch.uniform(0.055, 0.085)
    sketch.disc(chest.at(0.0, up), radius, air, (low == 0).float())
    part = ((low > 0) & (chest.level < 0.62)).float()
    for side in (-1, 1):
        place = chest.at(side * (0.08 + 0.14 * low), up - 0.08 * low)
        sketch.disc(place, 0.75 * radius, air, part)


def _draw_vessels(sketch: _Sketch, chest: _Chest, lung: Tensor) -> None:
    """Draw vessels, the finer the further from the root of the lung, and at times a nodule."""
    blood = sketch.tissue["blood"]
    for side in (-1, 1):
        for _ in range(_VESSELS):
            away, angle = sketch.uniform(0.06, 0.5), sketch.uniform(-1.4, 1.4)
            place = chest.at(side * (0.2 + away * angle.cos()), -0.05 + 1.3 * away * angle.sin())
            radius = sketch.uniform(0.7, 1.2) * (0.045 - 0.055 * away)
            long = radius * sketch.uniform(1, 3.5)
            inside = sketch.oval(place, (long, radius), turn=side * angle)
            sketch.fill(inside, blood, lung * _wide((radius / 0.03).clamp(0.4, 1)))
    either = 2 * sketch.chance(0.5) - 1
    place = chest.at(either * sketch.uniform(0.38, 0.68), sketch.uniform(-0.5, 0.45))
    radius, seen = sketch.uniform(0.025, 0.09), sketch.chance(0.4)
    inside = sketch.oval(place, (radius, radius * sketch.uniform(0.8, 1.2)))
    sketch.fill(inside, sketch.tissue["muscle"], lung * _wide(seen))


def _draw_ribs(sketch: _Sketch, chest: _Chest) -> None:
    """Draw ribs as arcs along the chest's outline, and the breastbone in front."""
    right, up = sketch.right - _wide(chest.centre[0]), sketch.up - _wide(chest.centre[1])
    a, b = right / _wide(chest.radii[0]), up / _wide(chest.radii[1])
    level = _level(a.abs(), b.abs(), 2.4) / chest.wobble
    around = torch.atan2(b, a.abs())
    pixels = _wide(chest.radii[1]) * sketch.size / 2
    for side in (-1, 1):
        for i in range(_RIBS):
            centre = -1.15 + 2.2 * (i + 0.5) / _RIBS + sketch.uniform(-0.2, 0.2)
            along = _wide(sketch.uniform(0.1, 0.24)) - (around - _wide(centre)).abs()
            # A rib runs obliquely through the slice, so that its ends leave the outline.
            lean = _wide(sketch.uniform(-0.2, 0.2)) * (around - _wide(centre))
            depth = _wide(sketch.uniform(0.022, 0.036)) - (level - 1.0 - lean).abs()
            inside = torch.minimum(along, depth) * pixels
            here = (side * right > 0).float()
            value = torch.lerp(
                sketch.tissue["marrow"], sketch.tissue["bone"], sketch.uniform(0, 1)
            )
            sketch.fill(inside, value, here * _wide(sketch.chance(0.8)))
    front = sketch.oval(
        chest.at(0.0, sketch.uniform(0.98, 1.06)),
        (sketch.uniform(0.09, 0.17), sketch.uniform(0.035, 0.055)),
        power=3.0,
    )
    sketch.fill(front, sketch.tissue["bone"])
    sketch.fill(front - 1.5, sketch.tissue["marrow"])


def _draw_spine(sketch: _Sketch, chest: _Chest) -> None:
    """Draw a vertebra: its body, the canal behind it and three processes."""
    bone, marrow = sketch.tissue["bone"], sketch.tissue["marrow"]
    right, up = chest.at(sketch.uniform(-0.02, 0.02), sketch.uniform(-0.72, -0.64))
    wide = sketch.uniform(0.14, 0.19)
    for side in (-1, 1):
        process = sketch.oval(
            (right + side * 1.35 * wide, up - 1.15 * wide),
            (0.75 * wide, 0.2 * wide),
            turn=side * sketch.uniform(-0.5, 0.1),
        )
        sketch.fill(process, bone)
    behind = up - 1.25 * wide
    sketch.fill(sketch.oval((right, behind), (0.75 * wide, 0.65 * wide)), bone)
    spinous = sketch.oval((right, up - 2.1 * wide), (0.17 * wide, 0.5 * wide))
    sketch.fill(spinous, bone, sketch.uniform(0.6, 1))
    sketch.fill(sketch.oval((right, behind), (0.45 * wide, 0.42 * wide)), sketch.tissue["muscle"])
    body = sketch.oval((right, up), (wide, 0.8 * wide), power=2.5)
    sketch.fill(body, bone)
    sketch.fill(body - 1.2, marrow * sketch.uniform(0.95, 1.2))
