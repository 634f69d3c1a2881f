"""Blind inpainting of section 4.2: squares are deleted from an image, and no one says where.

Each of ten 5x5 squares lies at a place drawn uniformly from all that keep it inside the image,
independently of the others, and is filled with the least value of the data. On the dark
background of a digit a deleted square leaves no trace: the pixels that changed are a part of
those that were deleted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from vspair.data import Pairs
from vspair.errors import VspairError

__all__ = ["InpaintingData", "InpaintingProblem", "mnist_pairs", "toy_digits"]


@dataclass(frozen=True)
class InpaintingProblem:
    """Squares deleted from images, each at a random place.

    Arguments:
        patches: The number of squares in an image; they may overlap.
        size: The side of a square in pixels.
        fill: The value that a deleted pixel takes: the least of the data.

    Example:
        >>> x = torch.ones(2, 28, 28)
        >>> y, mask = InpaintingProblem(patches=1).corrupt(x, Generator().manual_seed(0))
        >>> mask.sum((1, 2))
        tensor([25, 25])
    """

    patches: int = 10
    size: int = 5
    fill: float = -1.0

    def __post_init__(self) -> None:
        for name in ("patches", "size"):
            if getattr(self, name) < 1:
                raise VspairError(f"{name} = {getattr(self, name)}: expected at least 1.")
        if not math.isfinite(self.fill):
            raise VspairError(f"fill = {self.fill}: expected the least value of the data.")

    def corrupt(self, x: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Delete squares from images.

        The places are drawn on the generator's device, so that a CPU generator gives the same
        squares wherever the images are.

        Arguments:
            x: Images, with shape (N, H, W).
            generator: The source of the places.

        Returns:
            The corrupted images y, with the shape, dtype and device of x, and the mask of
            deleted pixels, bool, with shape (N, H, W).
        """
        self._check(x)
        n, height, width = x.shape
        rows = self._inside(n, height, generator, x.device)
        columns = self._inside(n, width, generator, x.device)
        mask = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        for row, column in zip(rows, columns, strict=True):
            mask |= row[:, :, None] & column[:, None, :]
        return x.masked_fill(mask, self.fill), mask

    def _inside(self, n: int, length: int, generator: Generator, device: torch.device) -> Tensor:
        """Draw which pixels of an axis each square covers, with shape (patches, n, length)."""
        places, shape = length - self.size + 1, (self.patches, n, 1)
        start = torch.randint(places, shape, generator=generator, device=generator.device)
        offset = torch.arange(length, device=device) - start.to(device)
        return (offset >= 0) & (offset < self.size)

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or not x.is_floating_point():
            raise VspairError(
                f"x has shape {tuple(x.shape)} and dtype {x.dtype}: expected real images of shape "
                "(N, H, W)."
            )
        if min(x.shape[1:]) < self.size:
            raise VspairError(
                f"x has shape {tuple(x.shape)}: a square of side {self.size} does not fit into "
                "such an image. Lower size."
            )

    @staticmethod
    def changed(x: Tensor, y: Tensor) -> Tensor:
        """Return the corrupted region: the pixels that differ, bool, with the shape of x."""
        return x != y


@dataclass(frozen=True)
class InpaintingData:
    """Pairs of clean images x and corrupted images y, float32, each with shape (N, H, W).

    Arguments:
        train: Training pairs.
        test: Test pairs.
        low: The value of a black pixel.
        high: The value of a white pixel.
    """

    train: Pairs
    test: Pairs
    low: float = -1.0
    high: float = 1.0


def mnist_pairs(
    images: NDArray[np.uint8] | Tensor,
    *,
    seed: int,
    low: float = -1.0,
    high: float = 1.0,
    train: int = 54000,
) -> InpaintingData:
    """Shuffle and corrupt images, and split them into training and test pairs.

    The seed alone fixes the order and the squares, whatever the range and the split.

    Arguments:
        images: Images, uint8, with shape (N, 28, 28).
        seed: Fixes order and squares.
        low: The value that 0 becomes.
        high: The value that 255 becomes.
        train: The number of training pairs; the rest are test pairs.

    Example:
        >>> data = mnist_pairs(toy_digits(50, seed=0), seed=0, train=40)
        >>> data.train.y.shape, data.test.y.shape
        (torch.Size([40, 28, 28]), torch.Size([10, 28, 28]))
    """
    _check_pairs(images, low, high, train)
    generator = Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    x = low + (high - low) * (torch.as_tensor(images).cpu()[order].float() / 255)
    y, _ = InpaintingProblem(fill=float(x.min())).corrupt(x, generator)
    pairs = Pairs(x, y)
    return InpaintingData(pairs[:train], pairs[train:], low, high)


def _check_pairs(images: Any, low: float, high: float, train: int) -> None:
    if images.ndim != 3 or images.dtype not in (np.uint8, torch.uint8):
        raise VspairError(
            f"images has shape {tuple(images.shape)} and dtype {images.dtype}: expected uint8 "
            "images of shape (N, 28, 28)."
        )
    if not -math.inf < low < high < math.inf:
        raise VspairError(f"low = {low}, high = {high}: expected a range such as -1 to 1.")
    if not 0 < train < len(images):
        raise VspairError(
            f"train = {train} of {len(images)} images: expected at least one image for training "
            "and one for the test."
        )


# -- digits that need no data ---------------------------------------------------------------

# Corners of a digital display, (column, row), and the strokes between them, a to g.
_CORNERS = ((-1, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (1, 1))
_STROKES = {
    "a": (0, 1), "b": (1, 3), "c": (3, 5), "d": (4, 5), "e": (2, 4), "f": (0, 2), "g": (2, 3),
}  # fmt: skip
_DIGITS = (
    "abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg",
)  # fmt: skip


def toy_digits(n: int, seed: int) -> NDArray[np.uint8]:
    """Draw random digits as on a digital display, uint8, with shape (n, 28, 28).

    Size, place, slant, thickness, softness and the corners of the strokes are random, and the
    background is 0: a stand-in for MNIST where no data are at hand.
    """
    if n < 1:
        raise VspairError(f"n = {n}: expected at least one digit.")
    generator = Generator().manual_seed(seed)
    lit = _lit()[torch.randint(len(_DIGITS), (n,), generator=generator)]
    corners = _corners(n, generator)
    distance = torch.full((n, 28, 28), torch.inf)
    for i, (start, end) in enumerate(_STROKES.values()):
        stroke = _distance(corners[:, start], corners[:, end])
        stroke[~lit[:, i]] = torch.inf
        distance = torch.minimum(distance, stroke)
    radius, blur = _between(n, generator, 0.8, 1.8), _between(n, generator, 0.8, 2.0)
    ink = ((radius - distance) / blur + 0.5).clamp(0, 1)
    return (255 * ink).round().to(torch.uint8).numpy()


def _lit() -> Tensor:
    """Return which strokes each digit has, bool, with shape (10, 7)."""
    return torch.tensor([[name in digit for name in _STROKES] for digit in _DIGITS])


def _between(n: int, generator: Generator, low: float, high: float) -> Tensor:
    return low + (high - low) * torch.rand(n, 1, 1, generator=generator)


def _corners(n: int, generator: Generator) -> Tensor:
    """Draw where the corners of each digit lie, in pixels, with shape (n, 6, 2)."""
    jitter = 0.12 * torch.randn(n, len(_CORNERS), 2, generator=generator)
    half = torch.cat([_between(n, generator, 3.5, 6), _between(n, generator, 7, 9)], -1)
    shift = 1.0 * torch.randn(n, 1, 2, generator=generator)
    corners = half * (torch.tensor(_CORNERS) + jitter)
    corners[..., 0] -= _between(n, generator, -0.15, 0.45)[..., 0] * corners[..., 1]
    return 13.5 + shift + corners


def _distance(start: Tensor, end: Tensor) -> Tensor:
    """Return each pixel's distance from strokes with ends (n, 2), with shape (n, 28, 28)."""
    axis = torch.arange(28.0)
    dx, dy = (axis - start[:, :1])[:, None, :], (axis - start[:, 1:])[:, :, None]
    along = end - start
    ax, ay = along[:, 0, None, None], along[:, 1, None, None]
    t = ((dx * ax + dy * ay) / (ax**2 + ay**2)).clamp(0, 1)
    return torch.hypot(dx - t * ax, dy - t * ay)
