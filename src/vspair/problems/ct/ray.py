r"""The ray transform: line integrals of an image, and their exact adjoint.

The transform and its adjoint are two sparse matrices, each given by a rule for its rows: a ray
gathers from the pixels that it passes, a pixel from the rays that pass it. They are the transpose
of each other up to round-off. Where both fit into memory they are kept (method ``matrix``); where
they do not, as with LoDoPaB-CT's own 362x362 pixels and 1000 x 513 rays, their entries are made in
parts at each use (method ``free``), slower and in constant memory. Positions are computed in
float64 whatever the images are in.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from vspair.errors import VspairError
from vspair.problems.ct.gather import Gather
from vspair.problems.ct.geometry import (
    Geometry,
    Lines,
    check_tensor,
    computing,
    enough_memory,
    size_of,
)

__all__ = ["RayTransform"]

Method = Literal["auto", "matrix", "free"]

_FREE = "method='free', which needs no matrix"


class RayTransform:
    """The line integrals of images along the rays of a geometry, by Joseph's method.

    Images and sinograms may have any leading dimensions, be on any device, in float32 or float64
    (half precision is computed in float32) and take part in differentiation: the derivative of
    the transform is the adjoint, and the other way round.

    Arguments:
        geometry: The image, the detector and the angles.
        method: ``matrix`` keeps the transform in memory, ``free`` makes it anew at each use, and
            ``auto`` takes the first where it needs no more than ``memory``.
        memory: The most that the matrices of one device and dtype may need, in bytes.

    Example:
        >>> ray = RayTransform(Geometry((8, 8), angles=5, detectors=12))
        >>> ray(torch.ones(3, 8, 8)).shape
        torch.Size([3, 5, 12])
    """

    def __init__(
        self, geometry: Geometry, *, method: Method = "auto", memory: float = 2**30
    ) -> None:
        if method not in ("auto", "matrix", "free"):
            raise VspairError(f"method = {method!r}: expected auto, matrix or free.")
        self.geometry, self.method, self.memory = geometry, method, memory
        self._forward, self._adjoint = _forward(geometry), _adjoint(geometry)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the sinograms of images, see :meth:`forward`."""
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sinograms, with shape (*, A, D), of images with shape (*, R, C)."""
        check_tensor(x, self.geometry.shape, "x", "images", self.geometry)
        return _Apply.apply(x, self, False)

    def adjoint(self, y: Tensor) -> Tensor:
        """Return the adjoint, with shape (*, R, C), of sinograms with shape (*, A, D)."""
        check_tensor(y, self.geometry.sinogram_shape, "y", "sinograms", self.geometry)
        return _Apply.apply(y, self, True)

    def nbytes(self, dtype: torch.dtype = torch.float32) -> int:
        """Return the most memory that the matrices can need together, in bytes."""
        return self._forward.nbytes(dtype) + self._adjoint.nbytes(dtype)

    def keeps(self, dtype: torch.dtype = torch.float32) -> bool:
        """Return whether the matrices are kept in memory."""
        fits = self.nbytes(dtype) <= self.memory
        if self.method == "matrix" and not fits:
            raise VspairError(
                f"The matrices of this geometry ({self.geometry.describe()}) need up to "
                f"{size_of(self.nbytes(dtype))} in {str(dtype).removeprefix('torch.')}, more "
                f"than memory = {size_of(self.memory)}. Use method='free', which needs no "
                "matrix, or raise memory where the device has it."
            )
        return fits and self.method != "free"

    def _apply(self, x: Tensor, adjoint: bool) -> Tensor:
        shape = self.geometry.shape if adjoint else self.geometry.sinogram_shape
        if not x.numel():
            return x.new_empty(*x.shape[:-2], *shape)
        dtype = computing(x.dtype)
        operator, keep = self._adjoint if adjoint else self._forward, self.keeps(dtype)
        matrices = self.nbytes(dtype) * keep
        with enough_memory(x, self.geometry, dtype, matrices, _FREE):
            flat = x.to(dtype).reshape(-1, x.shape[-2] * x.shape[-1])
            result = operator(flat.T, keep=keep)
            return result.T.reshape(*x.shape[:-2], *shape).to(x.dtype)


class _Apply(torch.autograd.Function):
    """The transform or its adjoint; the derivative of each is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, transform: RayTransform, adjoint: bool) -> Tensor:
        ctx.transform, ctx.adjoint = transform, adjoint
        return transform._apply(x, adjoint)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        return _Apply.apply(grad[0], ctx.transform, not ctx.adjoint), None, None


def _to(lines: Lines, device: torch.device) -> Lines:
    return Lines(*(t.to(device) for t in lines))


def _forward(geometry: Geometry) -> Gather:
    """Return the matrix with a row for each ray (a, d): two pixels at each step."""
    lines, (rows, columns) = geometry.lines(), geometry.shape
    steps = max(rows, columns)

    def rule(rays: Tensor) -> tuple[Tensor, Tensor]:
        angle, detector = rays // geometry.detectors, rays % geometry.detectors
        start, shift, slope, length, steep = (t[angle, None] for t in _to(lines, rays.device))
        step = torch.arange(steps, device=rays.device)
        position = torch.addcmul(start + shift * detector[:, None], slope, step.double())
        below = position.floor()
        share = position - below
        across = torch.where(steep, columns, rows)
        inside = step < torch.where(steep, rows, columns)
        # Along a steep ray a step is a row of the image and the position a column.
        far, near = torch.where(steep, columns, 1), torch.where(steep, 1, columns)
        pairs = []
        for place, weight in ((below, 1 - share), (below + 1, share)):
            valid = (place >= 0) & (place < across) & inside
            pixel = torch.where(valid, place.long() * near + step * far, 0)
            pairs.append((pixel, torch.where(valid, weight * length, 0)))
        return torch.cat([p for p, _ in pairs], 1), torch.cat([w for _, w in pairs], 1)

    return Gather(math.prod(geometry.sinogram_shape), 2 * steps, rule)


def _adjoint(geometry: Geometry) -> Gather:
    """Return the matrix with a row for each pixel: the rays within a pixel of it, by angle."""
    lines, (angles, detectors) = geometry.lines(), geometry.sinogram_shape
    reach = 1 / lines.shift.abs()
    # An open interval of this length holds so many detector pixels at most.
    near = min(math.ceil(2 * float(reach.max())), detectors)

    def rule(pixels: Tensor) -> tuple[Tensor, Tensor]:
        row = (pixels // geometry.shape[1])[:, None]
        column = (pixels % geometry.shape[1])[:, None]
        start, shift, slope, length, steep = _to(lines, pixels.device)
        step, place = torch.where(steep, row, column), torch.where(steep, column, row)
        # How far detector pixel 0 is from the pixel; detector pixel d is shift * d further.
        away = start + slope * step - place
        first = (torch.floor(-away / shift - reach.to(pixels.device)) + 1).clamp(min=0)
        detector = first[:, :, None] + torch.arange(near, device=pixels.device)
        distance = torch.addcmul(away[:, :, None], shift[:, None], detector).abs()
        valid = (distance < 1) & (detector >= 0) & (detector < detectors)
        weight = torch.where(valid, (1 - distance) * length[:, None], 0)
        ray = torch.arange(angles, device=pixels.device)[:, None] * detectors + detector.long()
        return torch.where(valid, ray, 0).flatten(1), weight.flatten(1)

    return Gather(math.prod(geometry.shape), angles * near, rule)
