r"""Parallel-beam geometry: where the rays of a scan run through the grid of an image.

The image has its centre at the origin, rows from top to bottom and columns from left to right;
the second coordinate points up. The ray of angle :math:`\theta` and detector coordinate s is

.. math:: \{ (r_1, r_2) : r_1 \cos\theta + r_2 \sin\theta = s \}

so that :math:`\theta = 0` sums down the columns and the detector's first pixel sees the left edge.
This is what the ASTRA toolbox takes ``parallel`` to mean. LoDoPaB-CT, made with ODL, has another
frame; :mod:`vspair.datasets.lodopab` turns both its images and its sinograms to this one.

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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vspair.errors import VspairError

__all__ = [
    "LODOPAB_PIXEL",
    "Geometry",
    "Lines",
    "check_tensor",
    "computing",
    "enough_memory",
    "size_of",
]

LODOPAB_PIXEL = 0.26 / 362
"""The side of a pixel of LoDoPaB-CT, in metres: 362 of them on 26 cm."""

_MOST = 2**31 - 1
"""Pixels or rays that can be counted in the 32 bits that matrices have for them."""

_NARROWEST = 1e-6
"""The least width of a detector pixel, in pixels."""


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


def _whole(name: str, value: Any) -> int:
    """Return a size as Python's own integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise VspairError(f"{name} = {value}: expected a whole number above 0.")
    return int(value)


def _shape(value: Any) -> tuple[int, int]:
    """Return the image's rows and columns."""
    sides = tuple(value) if isinstance(value, tuple | list | np.ndarray) else ()
    if len(sides) != 2:
        raise VspairError(f"shape = {value}: expected (rows, columns).")
    return _whole("shape", sides[0]), _whole("shape", sides[1])


def _angles(value: Any) -> int | tuple[float, ...]:
    """Return a number of angles, or the angles themselves."""
    if isinstance(value, Integral):
        return _whole("angles", value)
    try:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):  # lists within lists, of different lengths
        array = np.empty(0)
    finite = array.dtype.kind in "iuf" and bool(np.isfinite(array).all())
    if array.ndim != 1 or not array.size or not finite:
        shown = f"an array of shape {array.shape}" if array.ndim > 1 else value
        raise VspairError(
            f"angles = {shown}: expected a whole number of angles, or at least one finite angle "
            "in radians, in a list or a one-dimensional array."
        )
    return tuple(array.astype(np.float64).tolist())


@dataclass(frozen=True)
class Geometry:
    """An image, a detector and the angles that it is turned to.

    The default is section 4.3's: an 88x88 image of pixels four times as wide as LoDoPaB-CT's, 248
    angles and 128 detector pixels. As in LoDoPaB-CT the detector spans the image's diagonal and
    the n angles are the midpoints of n equal parts of the half circle.

    Arguments:
        shape: The image's rows and columns.
        angles: How many angles, or the angles themselves, in radians; a list, an array or a
            tensor of them is kept as a tuple.
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
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "angles", _angles(self.angles))
        object.__setattr__(self, "detectors", _whole("detectors", self.detectors))
        for name, value in (("pixel", self.pixel), ("spacing", self.spacing)):
            if value is None and name == "spacing":
                continue
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not number or not 0 < float(value) < math.inf:  # type: ignore[arg-type]
                raise VspairError(f"{name} = {value!r}: expected a finite length above 0.")
        if max(map(math.prod, (self.shape, self.sinogram_shape))) > _MOST:
            raise VspairError(
                f"The geometry is too large ({self.describe()}): expected at most {_MOST:,} "
                "pixels and as many rays."
            )
        if self.detector_spacing < _NARROWEST * self.pixel:
            raise VspairError(
                f"A detector pixel is {self.detector_spacing:.3g} wide and a pixel "
                f"{self.pixel:.3g}: expected at least a millionth of it. Give another spacing, or "
                "fewer detectors."
            )

    @classmethod
    def lodopab(cls) -> Geometry:
        """Return the geometry of LoDoPaB-CT: 362x362 on 26 cm, 1000 angles, 513 detectors."""
        return cls((362, 362), angles=1000, detectors=513, pixel=LODOPAB_PIXEL)

    @property
    def sinogram_shape(self) -> tuple[int, int]:
        """The number of angles A and of detector pixels D."""
        angles = self.angles if isinstance(self.angles, int) else len(self.angles)
        return angles, self.detectors

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


def check_tensor(x: Any, shape: tuple[int, int], name: str, what: str, geometry: Geometry) -> None:
    """Refuse what is no real tensor of a shape that ends with the one given.

    Arguments:
        x: What was given.
        shape: The last two dimensions that the geometry asks for.
        name: What the argument is called.
        what: What it holds, in words.
        geometry: The geometry, for the message.
    """
    if not isinstance(x, Tensor):
        raise VspairError(
            f"{name} is of type {type(x).__name__}: expected a tensor of {what}. Make one of an "
            f"array with torch.from_numpy({name})."
        )
    fits, real = tuple(x.shape[-2:]) == shape, x.is_floating_point()
    if fits and real:
        return
    rows, columns = shape
    advice = ""
    if not fits and tuple(x.shape[-2:]) == (columns, rows):
        advice += " Its last two dimensions are swapped: transpose it."
    if not real:
        advice += " Convert it to float32."
    raise VspairError(
        f"{name} has shape {tuple(x.shape)} and dtype {x.dtype}: expected real {what} of shape "
        f"(*, {rows}, {columns}), those of this geometry ({geometry.describe()}).{advice}"
    )


def computing(dtype: torch.dtype) -> torch.dtype:
    """Return what values of a dtype are computed in: float32 where they have less precision."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def size_of(count: float) -> str:
    """Return a number of bytes in words."""
    units = {1e12: "TB", 1e9: "GB", 1e6: "MB", 1e3: "kB"}
    unit = next((u for u in units if count >= u), 1e3)
    return f"{count / unit:.3g} {units[unit]}"


@contextmanager
def enough_memory(
    x: Tensor, geometry: Geometry, dtype: torch.dtype, matrices: int, otherwise: str
) -> Iterator[None]:
    """Say what a computation needs where the device has not the memory for it.

    Arguments:
        x: Images or sinograms, with two dimensions behind those of the batch.
        geometry: What they are of.
        dtype: What is computed in.
        matrices: The most that matrices may need, in bytes.
        otherwise: How to do without them.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise VspairError(_exhausted(x, geometry, dtype, matrices, otherwise)) from None
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise VspairError(_exhausted(x, geometry, dtype, matrices, otherwise)) from None


def _exhausted(
    x: Tensor, geometry: Geometry, dtype: torch.dtype, matrices: int, otherwise: str
) -> str:
    batch = math.prod(x.shape[:-2])
    # Images and sinograms are there twice: batch first, as given, and batch last.
    pair = math.prod(geometry.shape) + math.prod(geometry.sinogram_shape)
    arrays = 2 * batch * pair * dtype.itemsize
    need = f"its images and sinograms need about {size_of(arrays)}"
    need += f", and the matrices up to {size_of(matrices)}" if matrices else ""
    ways = ["smaller batches"] if batch > 1 else []
    ways += [otherwise] if matrices > arrays else []
    return (
        f"{x.device} has not enough memory for a batch of {batch} in this geometry "
        f"({geometry.describe()}): {need}. "
        f"Use {', or '.join(ways) or 'a smaller geometry, or a device with more memory'}."
    )
