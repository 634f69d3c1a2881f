r"""Computed tomography as in section 4.3: an image is seen through noisy line integrals.

.. math:: y = A x + \sigma \varepsilon, \qquad \sigma \sim \mathcal{U}(0, 0.1) \cdot
    (\max A x - \min A x)

One :math:`\sigma` is drawn for each observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.problems.ct.geometry import Geometry
from vspair.problems.ct.ray import RayTransform

__all__ = ["CtPairs", "CtProblem", "coarsen", "moved_copies"]

_BLOCK = 256
"""Images that are projected at once."""


@dataclass(frozen=True)
class CtPairs(Pairs):
    """Images x (N, R, C) and sinograms y (N, A, D) with what is known of their noise.

    Arguments:
        x: The images.
        y: The sinograms.
        deviation: The standard deviation of the noise in each y, with shape (N,).
        level: The same in per cent of the range of the sinogram without noise, with shape (N,).
    """

    deviation: Tensor
    level: Tensor

    def __getitem__(self, rows: Tensor | slice) -> CtPairs:
        return CtPairs(self.x[rows], self.y[rows], self.deviation[rows], self.level[rows])

    def followed_by(self, other: CtPairs) -> CtPairs:
        """Return these pairs and others behind them."""
        parts = ((self.x, other.x), (self.y, other.y))
        noise = ((self.deviation, other.deviation), (self.level, other.level))
        return CtPairs(*(torch.cat(both) for both in (*parts, *noise)))


def coarsen(x: Tensor, factor: int = 4, size: int = 88) -> Tensor:
    """Return the means over squares of pixels in the middle of images.

    Section 4.3 says that the 362x362 slices are "downsampled by a factor of four and cropped".
    Taken here as means over 4x4 pixels of the central 352x352: the same as leaving out one pixel
    on each side, taking means, and leaving out one of the 90 on each side.

    Arguments:
        x: Images, with shape (*, H, W).
        factor: The side of a square.
        size: The side of the result.

    Returns:
        Images with shape (*, size, size).
    """
    if factor < 1 or size < 1:
        raise VspairError(f"factor = {factor}, size = {size}: expected at least 1.")
    if not isinstance(x, Tensor):
        raise VspairError(
            f"x is of type {type(x).__name__}: expected a tensor of images. Make one of an array "
            "with torch.from_numpy(x)."
        )
    side = factor * size
    if x.ndim < 2 or min(x.shape[-2:]) < side or not x.is_floating_point():
        raise VspairError(
            f"x has shape {tuple(x.shape)} and dtype {x.dtype}: expected real images of shape "
            f"(*, H, W) with at least {side} pixels on a side. Lower size or factor."
        )
    top, left = ((n - side) // 2 for n in x.shape[-2:])
    middle = x[..., top : top + side, left : left + side]
    flat = middle.reshape(-1, 1, side, side)
    return F.avg_pool2d(flat, factor).reshape(*x.shape[:-2], size, size)


def moved_copies(x: Tensor, copies: int, generator: Generator) -> Tensor:
    """Return images turned, scaled and shifted a little, with shape (copies * N, R, C).

    Each is turned by up to 10 degrees, scaled by up to a tenth and shifted by up to a tenth of
    the side; what comes in from outside repeats the border. None is mirrored: chests are not
    symmetric.

    Arguments:
        x: Images, with shape (N, R, C).
        copies: How many copies are made of each.
        generator: The source of randomness.
    """

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(len(x), *shape, generator=generator)

    parts = [x[:0]]
    for _ in range(copies):
        angle, size = between(-1, 1) * math.pi / 18, between(0.9, 1.1)
        cos, sin = angle.cos() * size, angle.sin() * size
        turned = torch.stack((cos, -sin, sin, cos), 1).reshape(-1, 2, 2)
        where = torch.cat((turned, between(-0.2, 0.2, 2, 1)), 2)
        grid = F.affine_grid(where, [len(x), 1, *x.shape[1:]], align_corners=False)
        moved = F.grid_sample(x[:, None], grid, padding_mode="border", align_corners=False)
        parts.append(moved[:, 0])
    return torch.cat(parts)


@dataclass(frozen=True)
class CtProblem:
    """Images observed by noisy line integrals.

    Arguments:
        geometry: The image, the detector and the angles.
        noise: The largest standard deviation of the noise, as a share of a sinogram's range;
            that of each observation is uniform between 0 and it.

    Example:
        >>> problem = CtProblem(Geometry((8, 8), angles=5, detectors=12))
        >>> pairs = problem.pairs(torch.rand(3, 8, 8), seed=0)
        >>> pairs.y.shape, pairs.deviation.shape
        (torch.Size([3, 5, 12]), torch.Size([3]))
    """

    geometry: Geometry = field(default_factory=Geometry)
    noise: float = 0.1

    def __post_init__(self) -> None:
        number = isinstance(self.noise, Real) and not isinstance(self.noise, bool)
        if not number or not 0 <= self.noise < math.inf:
            raise VspairError(
                f"noise = {self.noise!r}: expected 0 or more, as a share of a sinogram's range "
                "(0.1 is ten per cent)."
            )

    @cached_property
    def transform(self) -> RayTransform:
        """The ray transform of the geometry."""
        return RayTransform(self.geometry)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sinograms, with shape (*, A, D), of images with shape (*, R, C)."""
        return self.transform(x)

    def observe(self, x: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return noisy sinograms of images, and the standard deviation of the noise in each.

        The noise is drawn on the generator's device, so that a CPU generator gives the same
        noise wherever the images are.

        Arguments:
            x: Images, with shape (*, R, C).
            generator: The source of the noise.

        Returns:
            Sinograms with shape (*, A, D) and deviations with shape (*).
        """
        return self._add_noise(self.forward(x), generator)[:2]

    def _add_noise(self, clean: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return sinograms (*, A, D) with noise, its deviation and the range without it, (*)."""
        where, dtype = generator.device, clean.dtype
        share = torch.rand(clean.shape[:-2], generator=generator, dtype=dtype, device=where)
        unit = torch.randn(clean.shape, generator=generator, dtype=dtype, device=where)
        span = clean.amax((-2, -1)) - clean.amin((-2, -1))
        deviation = self.noise * span * share.to(clean.device)
        return clean + deviation[..., None, None] * unit.to(clean.device), deviation, span

    def pairs(self, x: Tensor, seed: int) -> CtPairs:
        """Return images of shape (N, R, C) with noisy sinograms, fixed by the seed."""
        if x.ndim != 3:
            raise VspairError(
                f"x has shape {tuple(x.shape)}: expected (N, rows, columns), with N images."
            )
        generator = Generator().manual_seed(seed)
        parts = [self._add_noise(self.forward(part), generator) for part in x.split(_BLOCK)]
        y, deviation, span = (torch.cat(each) for each in zip(*parts, strict=True))
        level = 100 * deviation / span.clamp(min=torch.finfo(span.dtype).tiny)
        return CtPairs(x, y, deviation, level)
