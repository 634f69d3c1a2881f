r"""Linear answers that treat every place alike: a factor for each Fourier mode.

``Tikhonov`` and ``Wiener`` are given the heat equation, ``Wiener`` the noise level too (Wiener,
"Extrapolation, Interpolation, and Smoothing of Stationary Time Series", 1949). ``ShiftRidge``
learns its factors from pairs and all their periodic shifts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.problems.heat import HeatProblem

__all__ = ["PENALTIES", "ShiftRidge", "Tikhonov", "Wiener"]

PENALTIES = (0.0, *(10.0 ** (k / 4) for k in range(-48, 9)))
"""The penalties that are tried for the Tikhonov inversion: none, and 1e-12 to 100."""

_LEAST = 1e-12
"""Channels that others tell, up to this share of the largest eigenvalue, are left out."""

_CHUNK = 1000
"""Pairs that are transformed at once."""


class Tikhonov(PointMethod):
    """Divides each mode by its decay, held back by a penalty; without one it is exact inversion.

    Arguments:
        problem: The equation.
        penalty: The number lambda of :meth:`HeatProblem.invert`.
    """

    def __init__(self, problem: HeatProblem, penalty: float = 0.0) -> None:
        self.problem, self.penalty = problem, penalty
        self.name = "Tikhonov" if penalty else "exact inversion"

    def __call__(self, y: Tensor) -> Tensor:
        """Return the inversion of observations (B, n, n), with the same shape."""
        return self.problem.invert(y, self.penalty)

    @classmethod
    def best(
        cls, problem: HeatProblem, pairs: Pairs, penalties: Sequence[float] = PENALTIES
    ) -> Tikhonov:
        """Return the inversion whose penalty has the least squared error on pairs."""
        methods = [cls(problem, penalty) for penalty in penalties]
        errors = [float((m(pairs.y) - pairs.x).double().square().mean()) for m in methods]
        return methods[errors.index(min(errors))]


class Wiener(PointMethod):
    """The best linear answer to stationary fields, given equation, noise and spectrum.

    Arguments:
        problem: The equation and the noise.
        x: Fields to learn the spectrum from, with shape (N, n, n).
    """

    name = "Wiener"

    def __init__(self, problem: HeatProblem, x: Tensor) -> None:
        self.problem, self.x = problem, x

    def __call__(self, y: Tensor) -> Tensor:
        """Return the filtered observations (B, n, n), with the same shape."""
        return self.problem.wiener(y, self.x)


class ShiftRidge(PointMethod):
    """The linear answer that pairs and all their periodic shifts teach.

    Least squares over all shifts is one complex factor for each Fourier mode, a matrix between
    channels where there are several.

    Arguments:
        pairs: The pairs to learn from, of images (N, H, W) or (N, C, H, W), x and y of one shape.
    """

    name = "ridge with shifts"

    def __init__(self, pairs: Pairs) -> None:
        x_shape, y_shape = pairs.shapes
        if x_shape != y_shape or len(x_shape) not in (2, 3):
            raise VspairError(
                f"x and y have shapes {x_shape} and {y_shape}: expected images of one shape."
            )
        power, product = _moments(pairs)
        self.factor = torch.linalg.pinv(power, rtol=_LEAST, hermitian=True) @ product

    def __call__(self, y: Tensor) -> Tensor:
        """Return the answers to observations (B, *, H, W), with the same shape."""
        spectrum = _spectra(y).unsqueeze(-2) @ self.factor.to(y.device)
        found = spectrum.squeeze(-2).movedim(-1, 1)
        return torch.fft.irfft2(found, s=y.shape[-2:]).to(y.dtype).reshape(y.shape)


def _spectra(images: Tensor) -> Tensor:
    """Return the Fourier modes of images (B, *, H, W), with shape (B, *modes, C)."""
    maps = images.double().reshape(len(images), -1, *images.shape[-2:])
    return torch.fft.rfft2(maps).movedim(1, -1)


def _moments(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return the sums of Y* Y^T and of Y* X^T over pairs, both with shape (*modes, C, C)."""
    parts = []
    for x, y in zip(pairs.x.split(_CHUNK), pairs.y.split(_CHUNK), strict=True):
        seen, wanted = _spectra(y), _spectra(x)
        both = torch.cat((seen, wanted), -1)
        parts.append(torch.einsum("b...i,b...j->...ij", seen.conj(), both))
    power, product = torch.stack(parts).sum(0).chunk(2, -1)
    return power, product
