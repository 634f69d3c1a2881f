r"""The heat equation of section 4.4 on a periodic square, solved exactly in Fourier space.

.. math:: \partial_t u = \kappa \Delta u, \quad u(0) = x, \quad y = u(t) + \varepsilon, \quad
    (r_1, r_2) \in [0, 2\pi]^2

The mode with integer wave vector k decays by :math:`\exp(-\kappa |k|^2 t)` and nothing else
happens: the problem is linear. Without noise it is inverted by dividing; with noise, fine
detail is lost and the inversion is ill-posed. :meth:`HeatProblem.wiener` is the best linear
answer of one who knows the operator, a floor that a method that learns from pairs can be
compared with.

The paper does not print the law of its initial conditions. Here it is

.. math:: x(r) = \sum_{k} \frac{a_k}{|k|^d} \cos(k \cdot r + \varphi_k)
    + A \exp\!\left(\frac{\cos(r_1 - c_1) + \cos(r_2 - c_2) - 2}{w^2}\right)

with one k of each pair (k, -k) for which no component exceeds ``modes``, standard normal
:math:`a_k`, uniform phases, and a source that is a Gaussian of width w made periodic, at a
uniform place c, with A and w uniform in their ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vspair.errors import VspairError

__all__ = ["HeatProblem"]

_TINY = 1e-300


@dataclass(frozen=True)
class HeatProblem:
    """Heat that spreads over a periodic square for some time, then is observed with noise.

    Arguments:
        size: The number of grid points on a side.
        kappa: The diffusivity.
        time: How long the heat spreads.
        noise: The standard deviation of the observation noise, as a share of that of the clean
            observations.
        modes: The largest wave number of the initial series, in each direction.
        decay: The power d by which the series' amplitudes fall with the wave number.
        series: The factor in front of the series.
        source_amplitude: The least and the largest height A of the source.
        source_width: The least and the largest width w of the source.

    Example:
        >>> x, y = HeatProblem(noise=0.03).pairs(4, seed=0)
        >>> x.shape, y.shape
        (torch.Size([4, 16, 16]), torch.Size([4, 16, 16]))
    """

    size: int = 16
    kappa: float = 0.02
    time: float = 3.0
    noise: float = 0.0
    modes: int = 4
    decay: float = 1.5
    series: float = 0.5
    source_amplitude: tuple[float, float] = (2.0, 5.0)
    source_width: tuple[float, float] = (0.4, 0.8)

    def __post_init__(self) -> None:
        self._check_physics()
        self._check_prior()

    def _check_physics(self) -> None:
        for name in ("kappa", "time"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise VspairError(f"{name} = {value}: expected a finite number above 0.")
        if not 0 <= self.noise < math.inf:
            raise VspairError(
                f"noise = {self.noise}: expected 0 or more, as a share of the observations' "
                "standard deviation (0.03 is three per cent)."
            )

    def _check_prior(self) -> None:
        if self.modes < 1:
            raise VspairError(f"modes = {self.modes}: expected at least 1.")
        least = 2 * self.modes + 1
        if self.size < least:
            raise VspairError(
                f"size = {self.size}: a grid that holds {self.modes} modes has at least {least} "
                "points on a side. Raise size or lower modes."
            )
        for name in ("source_amplitude", "source_width"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise VspairError(
                    f"{name} = ({low}, {high}): expected a range (low, high) above 0."
                )

    # -- the operator -----------------------------------------------------------------------

    def _multiplier(self, like: Tensor) -> Tensor:
        """Return exp(-kappa |k|^2 t) on the half grid of rfft2, with shape (n, n // 2 + 1)."""
        options = {"dtype": like.dtype, "device": like.device}
        rows = torch.fft.fftfreq(self.size, 1 / self.size, **options)
        columns = torch.fft.rfftfreq(self.size, 1 / self.size, **options)
        return torch.exp(-self.kappa * self.time * (rows[:, None] ** 2 + columns**2))

    def _check_field(self, field: Tensor, name: str) -> None:
        side = (self.size, self.size)
        if tuple(field.shape[-2:]) != side or not field.is_floating_point():
            raise VspairError(
                f"{name} has shape {tuple(field.shape)} and dtype {field.dtype}: expected real "
                f"fields of shape (*, {self.size}, {self.size}). Set size to the data's."
            )

    def _filter(self, field: Tensor, gain: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(field) * gain
        return torch.fft.irfft2(spectrum, s=(self.size, self.size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the fields after the time t, without noise.

        Arguments:
            x: Initial fields, with shape (*, size, size). Half precision is computed in float32.
        """
        self._check_field(x, "x")
        work = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return self._filter(work, self._multiplier(work)).to(x.dtype)

    # -- pairs ------------------------------------------------------------------------------

    def initial_conditions(self, n: int, generator: Generator) -> Tensor:
        """Draw n initial fields, float64, with shape (n, size, size)."""
        if n < 1:
            raise VspairError(f"n = {n}: expected at least one field.")
        return self._series(n, generator) + self._source(n, generator)

    def _axis(self) -> Tensor:
        return torch.arange(self.size, dtype=torch.float64) * (2 * math.pi / self.size)

    def _series(self, n: int, generator: Generator) -> Tensor:
        m, axis = self.modes, self._axis()
        k = torch.cartesian_prod(torch.arange(-m, m + 1), torch.arange(-m, m + 1)).double()
        k = k[len(k) // 2 + 1 :]
        angle = k[:, 0, None, None] * axis[:, None] + k[:, 1, None, None] * axis
        amplitude = torch.randn(n, len(k), generator=generator, dtype=torch.float64)
        amplitude = self.series * amplitude * k.norm(dim=1) ** -self.decay
        phase = 2 * math.pi * torch.rand(n, len(k), generator=generator, dtype=torch.float64)
        even = torch.einsum("nk,kij->nij", amplitude * phase.cos(), angle.cos())
        return even - torch.einsum("nk,kij->nij", amplitude * phase.sin(), angle.sin())

    def _source(self, n: int, generator: Generator) -> Tensor:
        unit = torch.rand(4, n, 1, 1, generator=generator, dtype=torch.float64)
        (a0, a1), (w0, w1) = self.source_amplitude, self.source_width
        amplitude, width = a0 + (a1 - a0) * unit[0], w0 + (w1 - w0) * unit[1]
        axis, centre = self._axis(), 2 * math.pi * unit[2:]
        rows, columns = axis[:, None] - centre[0], axis - centre[1]
        return amplitude * torch.exp((rows.cos() + columns.cos() - 2) / width**2)

    def pairs(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw n pairs (x, y), float32, each with shape (n, size, size)."""
        generator = Generator().manual_seed(seed)
        x = self.initial_conditions(n, generator)
        clean = self.forward(x)
        unit = torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
        return x.float(), (clean + self.noise * clean.std() * unit).float()

    # -- the floor --------------------------------------------------------------------------

    def wiener(self, y: Tensor, x_train: Tensor) -> Tensor:
        """Return the linear Wiener inversion of y, with shape (*, size, size).

        It knows the operator and the noise level, and takes mean and power spectrum of the
        unknown from examples: no linear method that treats every place alike has a smaller
        expected error. Without noise it divides by the operator's multipliers.

        Arguments:
            y: Observations, with shape (*, size, size).
            x_train: Unknowns to estimate the prior from, with shape (N, size, size).
        """
        self._check_field(y, "y")
        self._check_field(x_train, "x_train")
        data, x = y.double(), x_train.double()
        decay, mean = self._multiplier(data), x.mean()
        power = torch.fft.rfft2(x - mean, norm="ortho").abs().square().mean(0)
        variance = (self.noise * self.forward(x).std()) ** 2
        gain = decay / (decay**2 + variance / power.clamp(min=_TINY)).clamp(min=_TINY)
        return (mean + self._filter(data - mean, gain)).to(y.dtype)
