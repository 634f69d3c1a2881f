r"""Parallel-beam geometry: where the rays of a scan run through the grid of an image.

The image has its centre at the origin, rows from top to bottom and columns from left to right;
the second coordinate points up. The ray of angle :math:`\theta` and detector coordinate s is

.. math:: \{ (r_1, r_2) : r_1 \cos\theta + r_2 \sin\theta = s \}

so that :math:`\theta = 0` sums down the columns and the detector's first pixel sees the left edge.
This is what the ASTRA toolbox takes ``parallel`` to mean. LoDoPaB-CT, made with ODL, has another
frame; :mod:`vspair.problems.lodopab` turns both its images and its sinograms to this one.

Joseph's method steps along the rows of the image where a ray is rather vertical, and along its
columns otherwise, and interpolates linearly between the two nearest pixels at each step. Step k
of the ray at detector pixel d meets the line of pixels at the position

.. math:: p = \alpha_\theta + \beta_\theta d + \gamma_\theta k

in pixels, which is all there is to both the transform and its adjoint.

Joseph, "An Improved Algorithm for Reprojecting Rays through Pixel Images", IEEE Transactions on
Medical Imaging 1 (1982).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vspair.errors import VspairError

__all__ = ["LODOPAB_PIXEL", "Geometry", "Lines"]

LODOPAB_PIXEL = 0.26 / 362
"""The side of a pixel of LoDoPaB-CT, in metres: 362 of them on 26 cm."""


class Lines(NamedTuple):
    """The rays of each angle in units of pixels, float64, each with shape (A,).

    Arguments:
        start: The position alpha of detector pixel 0 at step 0.
        shift: How far the position moves from one detector pixel to the next, beta.
        slope: How far it moves from one step to the next, gamma.
        length: What a ray covers in one step, in the geometry's unit of length.
        steep: Whether the steps go along the rows, bool.
    """

    start: Tensor
    shift: Tensor
    slope: Tensor
    length: Tensor
    steep: Tensor


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise VspairError(f"{name} = {value}: expected a whole number above 0.")


@dataclass(frozen=True)
class Geometry:
    """An image, a detector and the angles that it is turned to.

    The default is section 4.3's: an 88x88 image of pixels four times as wide as LoDoPaB-CT's, 248
    angles and 128 detector pixels. As in LoDoPaB-CT the detector spans the image's diagonal and
    the n angles are the midpoints of n equal parts of the half circle.

    Arguments:
        shape: The image's rows and columns.
        angles: How many angles, or the angles themselves, in radians.
        detectors: The number of detector pixels.
        pixel: The side of a pixel; the default is in metres. Sinograms are in this unit times
            that of the image.
        spacing: The width of a detector pixel, in the same unit. None lets the detector span
            the diagonal.

    Example:
        >>> Geometry().sinogram_shape
        (248, 128)
        >>> round(1000 * Geometry().pixel, 3)
        2.873
    """

    shape: tuple[int, int] = (88, 88)
    angles: int | tuple[float, ...] = 248
    detectors: int = 128
    pixel: float = 4 * LODOPAB_PIXEL
    spacing: float | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise VspairError(f"shape = {self.shape}: expected (rows, columns).")
        for side in self.shape:
            _check_whole("shape", side)
        _check_whole("detectors", self.detectors)
        self._check_angles()
        for name, value in (("pixel", self.pixel), ("spacing", self.detector_spacing)):
            if not 0 < value < math.inf:
                raise VspairError(f"{name} = {value}: expected a finite length above 0.")

    def _check_angles(self) -> None:
        if isinstance(self.angles, int):
            _check_whole("angles", self.angles)
        elif not self.angles or not all(math.isfinite(angle) for angle in self.angles):
            raise VspairError(
                f"angles = {self.angles}: expected a number of angles, or at least one finite "
                "angle in radians."
            )

    @classmethod
    def lodopab(cls) -> Geometry:
        """Return the geometry of LoDoPaB-CT: 362x362 on 26 cm, 1000 angles, 513 detectors."""
        return cls((362, 362), angles=1000, detectors=513, pixel=LODOPAB_PIXEL)

    @property
    def sinogram_shape(self) -> tuple[int, int]:
        """The number of angles A and of detector pixels D."""
        return len(self.theta), self.detectors

    @property
    def theta(self) -> Tensor:
        """The angles in radians, float64 with shape (A,)."""
        if isinstance(self.angles, int):
            return (torch.arange(self.angles, dtype=torch.float64) + 0.5) * math.pi / self.angles
        return torch.tensor(self.angles, dtype=torch.float64)

    @property
    def detector_spacing(self) -> float:
        """The width of a detector pixel."""
        if self.spacing is not None:
            return self.spacing
        return self.pixel * math.hypot(*self.shape) / self.detectors

    @property
    def offsets(self) -> Tensor:
        """The detector coordinates s of the pixels' centres, float64 with shape (D,)."""
        index = torch.arange(self.detectors, dtype=torch.float64)
        return (index - (self.detectors - 1) / 2) * self.detector_spacing

    @property
    def centres(self) -> tuple[Tensor, Tensor]:
        """The pixels' centres: r_2 of each row, shape (R,), and r_1 of each column, (C,)."""
        rows, columns = (
            (torch.arange(n, dtype=torch.float64) - (n - 1) / 2) * self.pixel for n in self.shape
        )
        return -rows, columns

    def lines(self) -> Lines:
        """Return the positions at which rays meet the lines of pixels."""
        cos, sin = self.theta.cos(), self.theta.sin()
        steep = cos.abs() >= sin.abs()
        rows, columns = self.shape
        along = torch.where(steep, rows, columns)
        across = torch.where(steep, columns, rows)
        down = torch.where(steep, cos, -sin)
        shift = self.detector_spacing / (self.pixel * down)
        slope = torch.where(steep, sin / cos, cos / sin)
        start = (across - 1) / 2 - shift * (self.detectors - 1) / 2 - slope * (along - 1) / 2
        return Lines(start, shift, slope, self.pixel / down.abs(), steep)

    def describe(self) -> str:
        """Return the sizes in words."""
        (rows, columns), (angles, detectors) = self.shape, self.sinogram_shape
        return f"{rows}x{columns} image, {angles} angles, {detectors} detector pixels"
