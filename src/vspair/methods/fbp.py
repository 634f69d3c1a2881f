r"""Filtered back-projection: the inverse of the ray transform in closed form.

.. math:: x(r) = \int_0^\pi (h * y_\theta)(r_1 \cos\theta + r_2 \sin\theta) \, d\theta,
    \qquad \hat h(\omega) = |\omega|

The ramp is cut off at the detector's Nyquist frequency in space, not in frequency. Its samples
there (Ramachandran and Lakshminarayanan, 1971) are

.. math:: h_0 = \frac{1}{4 \Delta^2}, \qquad h_n = -\frac{1}{\pi^2 n^2 \Delta^2} \text{ for odd n},
    \qquad h_n = 0 \text{ for other even n}

and their discrete transform is not :math:`|\omega|`: it is above 0 at :math:`\omega = 0`, without
which the whole image would be too dark (Kak and Slaney, "Principles of Computerized Tomographic
Imaging", 1988, section 3.3.3).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.problems.ct.gather import Gather
from vspair.problems.ct.geometry import Geometry, check_tensor, computing, enough_memory

__all__ = ["Fbp", "ramp"]

Window = Literal["none", "hann"]


def ramp(detectors: int, spacing: float, window: Window = "none", cutoff: float = 1.0) -> Tensor:
    r"""Return the filter's gain at the frequencies of ``rfft``, float64 with shape (n / 2 + 1,).

    Rows are padded with zeros to a length n of at least twice their own, so that the filtered row
    is a convolution that does not wrap around.

    Arguments:
        detectors: The number of detector pixels.
        spacing: The width of a detector pixel.
        window: ``hann`` multiplies by :math:`(1 + \cos(\pi f / f_c)) / 2` up to the frequency
            :math:`f_c` and by 0 above it.
        cutoff: The frequency :math:`f_c` as a share of the Nyquist frequency.
    """
    if window not in ("none", "hann"):
        raise VspairError(f"window = {window!r}: expected none or hann.")
    if not 0 < cutoff <= 1:
        raise VspairError(
            f"cutoff = {cutoff}: expected a share of the Nyquist frequency, above 0 and at most 1."
        )
    n = 2 ** math.ceil(math.log2(2 * detectors))
    index = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    kernel = torch.where(index % 2 == 1, -1 / (math.pi * index * spacing).square(), 0)
    kernel[0] = 1 / (4 * spacing**2)
    gain = spacing * torch.fft.rfft(kernel).real
    if window == "hann":
        share = torch.linspace(0, 1, n // 2 + 1, dtype=torch.float64) / cutoff
        gain = gain * torch.where(share <= 1, (1 + torch.cos(math.pi * share)) / 2, 0)
    return gain


class Fbp(PointMethod):
    """Filtered back-projection for a geometry whose angles cover the half circle evenly.

    Sinograms may have any leading dimensions, be on any device, in float32 or float64 (half
    precision is computed in float32) and take part in differentiation.

    Arguments:
        geometry: The image, the detector and the angles.
        window: ``none`` keeps every frequency, and so the noise; ``hann`` fades them out.
        cutoff: Where ``hann`` reaches 0, as a share of the Nyquist frequency, above 0.
        memory: The most that a matrix kept for the next call may need, in bytes; where it needs
            more it is made anew at each call.

    Example:
        >>> geometry = Geometry((8, 8), angles=5, detectors=12)
        >>> Fbp(geometry, window="hann")(torch.ones(3, 5, 12)).shape
        torch.Size([3, 8, 8])
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        window: Window = "none",
        cutoff: float = 1.0,
        memory: float = 2**30,
    ) -> None:
        _check_even(geometry)
        self.name = "FBP" if window == "none" else "FBP with a Hann window"
        self.geometry, self.memory = geometry, memory
        self._gain = ramp(geometry.detectors, geometry.detector_spacing, window, cutoff)
        self._back = _back_projection(geometry)

    def __call__(self, y: Tensor) -> Tensor:
        """Return images, with shape (*, R, C), of sinograms with shape (*, A, D)."""
        shape = self.geometry.sinogram_shape
        check_tensor(y, shape, "y", "sinograms", self.geometry)
        work = y.to(computing(y.dtype))
        if not y.numel():
            return y.new_empty(*y.shape[:-2], *self.geometry.shape)
        matrix = self._back.nbytes(work.dtype)
        keep = matrix <= self.memory
        with enough_memory(y, self.geometry, work.dtype, matrix * keep, "a lower memory"):
            filtered = self._filter(work).reshape(-1, math.prod(shape))
            image = self._back(filtered.T, keep=keep).T
            return image.reshape(*y.shape[:-2], *self.geometry.shape).to(y.dtype)

    def _filter(self, y: Tensor) -> Tensor:
        gain, detectors = self._gain.to(y), self.geometry.detectors
        n = 2 * (len(gain) - 1)
        return torch.fft.irfft(torch.fft.rfft(y, n) * gain, n)[..., :detectors]


def _check_even(geometry: Geometry) -> None:
    """Refuse angles that are not spread evenly over the half circle."""
    theta = geometry.theta.remainder(math.pi).sort().values
    gaps = torch.cat((theta, theta[:1] + math.pi)).diff()
    if not torch.allclose(gaps, torch.full_like(gaps, math.pi / len(theta)), rtol=0, atol=1e-6):
        raise VspairError(
            f"The {len(theta)} angles of this geometry are not equally spaced over the half "
            "circle, as filtered back-projection needs. Give their number, or use another method."
        )


def _back_projection(geometry: Geometry) -> Gather:
    """Return the matrix with a row for each pixel: two detector pixels for each angle."""
    (high, wide), (angles, detectors) = geometry.centres, geometry.sinogram_shape
    columns, spacing = geometry.shape[1], geometry.detector_spacing
    cos, sin = geometry.theta.cos() / spacing, geometry.theta.sin() / spacing

    def rule(pixels: Tensor) -> tuple[Tensor, Tensor]:
        device = pixels.device
        right = wide.to(device)[pixels % columns, None]
        up = high.to(device)[pixels // columns, None]
        place = right * cos.to(device) + up * sin.to(device) + (detectors - 1) / 2
        below = place.floor()
        detector = torch.stack((below, below + 1), -1)
        share = 1 - (place[:, :, None] - detector).abs()
        valid = (detector >= 0) & (detector < detectors)
        ray = torch.arange(angles, device=device)[:, None] * detectors + detector.long()
        weight = torch.where(valid, share * (math.pi / angles), 0)
        return torch.where(valid, ray, 0).flatten(1), weight.flatten(1)

    return Gather(math.prod(geometry.shape), 2 * angles, rule)
