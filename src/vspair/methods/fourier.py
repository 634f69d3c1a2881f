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
from vspair.methods.point import PointMethod
from vspair.problems.heat import HeatProblem

__all__ = ["PENALTIES", "ShiftRidge", "Tikhonov", "Wiener"]

PENALTIES = (0.0, *(10.0 ** (k / 4) for k in range(-48, 9)))
"""The penalties that are tried for the Tikhonov inversion: none, and 1e-12 to 100."""


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

    Least squares over all shifts is one complex factor for each Fourier mode.

    Arguments:
        pairs: The pairs to learn from, of images (N, n, n).
    """

    name = "ridge with shifts"

    def __init__(self, pairs: Pairs) -> None:
        seen, wanted = (torch.fft.rfft2(t.double()) for t in (pairs.y, pairs.x))
        power = seen.abs().square().sum(0).clamp(min=1e-300)
        self.factor = (seen.conj() * wanted).sum(0) / power

    def __call__(self, y: Tensor) -> Tensor:
        """Return the answers to observations (B, n, n), with the same shape."""
        spectrum = self.factor.to(y.device) * torch.fft.rfft2(y.double())
        return torch.fft.irfft2(spectrum, s=y.shape[-2:]).to(y.dtype)
