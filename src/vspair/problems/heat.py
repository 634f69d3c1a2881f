r"""The heat equation of section 4.4 on a periodic square, solved exactly in Fourier space.

.. math:: \partial_t u = \kappa \Delta u, \quad u(0) = x, \quad y = u(t) + \varepsilon, \quad
    (r_1, r_2) \in [0, 2\pi]^2

The mode with integer wave vector k decays by :math:`\exp(-\kappa |k|^2 t)` and nothing else
happens: the problem is linear. Without noise it is inverted by dividing
(:meth:`HeatProblem.invert`); with noise, fine detail is lost and the inversion is ill-posed.
:meth:`HeatProblem.wiener` is the best linear answer of one who knows the operator, a floor that a
method that learns from pairs can be compared with.

The paper steps the equation with Dedalus' RK222 and a step of 0.0005. That too multiplies each
mode by a number, :func:`rk222` to the power of the number of steps, so that
``HeatProblem(step=0.0005, nyquist=False)`` gives what a run of Dedalus gives. The step matters
little: after t = 3 it changes a mode by less than 2e-9 of what it started with. What matters is
that Dedalus drops the Nyquist modes, those of wave number n / 2 in either direction, which a grid
with an even number n of points cannot tell from wave number -n / 2. Here they are kept unless
``nyquist`` is off; a source narrow beside the grid spacing has some heat in them. An odd n has
none.

The paper does not print the law of its initial conditions. Here it is

.. math:: x(r) = \sum_{k} \frac{a_k}{|k|^d} \cos(k \cdot r + \varphi_k)
    + A \exp\!\left(\frac{\cos(r_1 - c_1) + \cos(r_2 - c_2) - 2}{w^2}\right)

with one k of each pair (k, -k) for which no component exceeds ``modes``, normal :math:`a_k` of
standard deviation ``series``, uniform phases, and a source that is a Gaussian of width w made
periodic, at a uniform place c, with A and w uniform in their ranges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vspair.errors import VspairError

__all__ = [
    "PAPER_STEP",
    "PAPER_TEST",
    "PAPER_TRAIN",
    "HeatFields",
    "HeatPairs",
    "HeatProblem",
    "Source",
    "rk222",
]

PAPER_TRAIN, PAPER_TEST = 972, 52
"""How many pairs section 4.4 trains and tests on."""

PAPER_STEP = 0.0005
"""The time step of section 4.4."""

_TINY = 1e-300


def rk222(z: Tensor) -> Tensor:
    r"""Return the factor R(z) by which one step of RK222 multiplies a mode, with z's shape.

    Dedalus treats terms on the left-hand side, here the diffusion, by the implicit half of the
    scheme (Ascher, Ruuth and Spiteri, 1997, section 2.6). For :math:`u' = \lambda u`,
    :math:`z = \lambda \Delta t` and :math:`\gamma = (2 - \sqrt 2) / 2` its two stages are

    .. math:: (1 - \gamma z)\, u_1 = u_0, \qquad (1 - \gamma z)\, u_2 = u_0 + (1 - \gamma) z\, u_1

    and :math:`u_2` is the step's end. Putting the first into the second gives

    .. math:: R(z) = \frac{1 + (1 - 2 \gamma) z}{(1 - \gamma z)^2}
        = e^z + \frac{3 \sqrt 2 - 4}{6} z^3 + O(z^4)

    so that the scheme is of second order, and a mode that decays fast within a step is damped.

    Arguments:
        z: The decay rate times the step, not above 0.
    """
    gamma = 1 - math.sqrt(0.5)
    return (1 + (1 - 2 * gamma) * z) / (1 - gamma * z).square()


def _axis(size: int) -> Tensor:
    """Return the grid on [0, 2 pi): it starts at 0 and leaves out 2 pi, with shape (size,)."""
    return torch.arange(size, dtype=torch.float64) * (2 * math.pi / size)


@dataclass(frozen=True)
class Source:
    """The Gaussian heat sources of n fields, float64.

    Arguments:
        amplitude: The heights A, with shape (n,).
        width: The widths w, the Gaussians' standard deviations, with shape (n,).
        centre: The places (c_1, c_2), along rows and columns, in [0, 2 pi), with shape (n, 2).
    """

    amplitude: Tensor
    width: Tensor
    centre: Tensor

    def __len__(self) -> int:
        return len(self.amplitude)

    def __getitem__(self, index: slice | Tensor) -> Source:
        return Source(self.amplitude[index], self.width[index], self.centre[index])

    def field(self, size: int) -> Tensor:
        """Return the sources alone, with shape (n, size, size)."""
        rows, columns = self._offsets(size)
        bump = (rows.cos() + columns.cos() - 2) / self.width[:, None, None] ** 2
        return self.amplitude[:, None, None] * bump.exp()

    def disc(self, size: int, sigmas: float = 2.0) -> Tensor:
        """Return which points lie within some widths of the centre, bool (n, size, size)."""
        rows, columns = (
            torch.remainder(d + math.pi, 2 * math.pi) - math.pi for d in self._offsets(size)
        )
        return rows**2 + columns**2 <= (sigmas * self.width[:, None, None]) ** 2

    def _offsets(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the way from the centre, with shapes (n, size, 1) and (n, 1, size)."""
        axis, centre = _axis(size).to(self.centre), self.centre[:, :, None, None]
        return axis[:, None] - centre[:, 0], axis - centre[:, 1]


class HeatFields(NamedTuple):
    """Initial fields x, float64 with shape (n, size, size), and the source in each."""

    x: Tensor
    source: Source


class HeatPairs(NamedTuple):
    """Pairs x and y, float32 with shape (n, size, size), and the source in each x."""

    x: Tensor
    y: Tensor
    source: Source


@dataclass(frozen=True)
class HeatProblem:
    """Heat that spreads over a periodic square for some time, then is observed with noise.

    Arguments:
        size: The number of grid points on a side, at least ``2 * modes + 1``.
        kappa: The diffusivity.
        time: How long the heat spreads.
        noise: The standard deviation of the observation noise, as a share of that of the clean
            observations.
        modes: The largest wave number of the initial series, in each direction.
        decay: The power d by which the series' amplitudes fall with the wave number.
        series: The factor in front of the series.
        source_amplitude: The least and the largest height A of the source.
        source_width: The least and the largest width w of the source.
        step: The time step of Dedalus' RK222, of which ``time`` is a whole number; without one
            the equation is solved exactly.
        nyquist: Whether the Nyquist modes are kept; Dedalus drops them.

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
    step: float | None = None
    nyquist: bool = True

    def __post_init__(self) -> None:
        self._check_physics()
        self._check_step()
        self._check_prior()

    def _check_physics(self) -> None:
        for name in ("size", "modes"):
            if not isinstance(getattr(self, name), int):
                raise VspairError(f"{name} = {getattr(self, name)!r}: expected a whole number.")
        for name in ("kappa", "time", "noise"):
            if not isinstance(value := getattr(self, name), Real):
                raise VspairError(f"{name} = {value!r}: expected a number.")
        for name in ("kappa", "time"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise VspairError(f"{name} = {value}: expected a finite number above 0.")
        if not 0 <= self.noise < math.inf:
            raise VspairError(
                f"noise = {self.noise}: expected 0 or more, as a share of the observations' "
                "standard deviation (0.03 is three per cent)."
            )

    def _check_step(self) -> None:
        if self.step is None:
            return
        if not 0 < self.step < math.inf:
            raise VspairError(f"step = {self.step}: expected a finite number above 0.")
        if self._steps < 1 or not math.isclose(self._steps * self.step, self.time, rel_tol=1e-9):
            raise VspairError(
                f"step = {self.step}: time = {self.time} is not a whole number of steps. Change "
                "either, or leave out step to solve exactly."
            )

    @property
    def _steps(self) -> int:
        return 0 if self.step is None else round(self.time / self.step)

    def _check_prior(self) -> None:
        if self.modes < 1:
            raise VspairError(f"modes = {self.modes}: expected at least 1.")
        least = 2 * self.modes + 1
        if self.size < least:
            raise VspairError(
                f"size = {self.size}: a grid that holds {self.modes} modes has at least {least} "
                "points on a side. Raise size or lower modes."
            )
        for name in ("decay", "series"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise VspairError(f"{name} = {value}: expected a finite number, 0 or more.")
        for name in ("source_amplitude", "source_width"):
            value = getattr(self, name)
            pair = isinstance(value, tuple | list) and len(value) == 2
            if not pair or not 0 < value[0] <= value[1] < math.inf:
                raise VspairError(f"{name} = {value}: expected a range (low, high) above 0.")

    # -- the operator -----------------------------------------------------------------------

    def _multiplier(self, like: Tensor) -> Tensor:
        """Return what each mode is multiplied by on rfft2's half grid, (n, n // 2 + 1)."""
        n = self.size
        # In float64 for float32 fields too: a rounded factor to the power of 6,000 is far off.
        rows = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64, device=like.device)
        columns = torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64, device=like.device)
        rate = -self.kappa * (rows[:, None] ** 2 + columns**2)
        if self.step is None:
            decay = torch.exp(rate * self.time)
        else:
            decay = rk222(rate * self.step) ** self._steps
        if not self.nyquist and n % 2 == 0:
            decay[n // 2] = 0
            decay[:, n // 2] = 0
        return decay.to(like.dtype)

    def _check_field(self, field: Tensor, name: str) -> None:
        n, shape = self.size, tuple(field.shape)
        if shape[-2:] == (n, n) and field.is_floating_point():
            return
        hint = "Set size to the data's."
        if shape[-2:] == (n + 1, n + 1):
            hint = "A periodic grid leaves out 2 pi: drop the last line, which repeats the first."
        raise VspairError(
            f"{name} has shape {shape} and dtype {field.dtype}: expected real fields of shape "
            f"(*, {n}, {n}). {hint}"
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

    def draw(self, n: int, generator: Generator) -> HeatFields:
        """Draw n initial fields, float64 with shape (n, size, size), and their sources."""
        if n < 1:
            raise VspairError(f"n = {n}: expected at least one field.")
        series, source = self._series(n, generator), self._source(n, generator)
        return HeatFields(series + source.field(self.size), source)

    def initial_conditions(self, n: int, generator: Generator) -> Tensor:
        """Draw n initial fields, float64, with shape (n, size, size)."""
        return self.draw(n, generator).x

    def _series(self, n: int, generator: Generator) -> Tensor:
        m, axis = self.modes, _axis(self.size)
        k = torch.cartesian_prod(torch.arange(-m, m + 1), torch.arange(-m, m + 1)).double()
        k = k[len(k) // 2 + 1 :]
        angle = k[:, 0, None, None] * axis[:, None] + k[:, 1, None, None] * axis
        amplitude = torch.randn(n, len(k), generator=generator, dtype=torch.float64)
        amplitude = self.series * amplitude * k.norm(dim=1) ** -self.decay
        phase = 2 * math.pi * torch.rand(n, len(k), generator=generator, dtype=torch.float64)
        even = torch.einsum("nk,kij->nij", amplitude * phase.cos(), angle.cos())
        return even - torch.einsum("nk,kij->nij", amplitude * phase.sin(), angle.sin())

    def _source(self, n: int, generator: Generator) -> Source:
        unit = torch.rand(4, n, generator=generator, dtype=torch.float64)
        (a0, a1), (w0, w1) = self.source_amplitude, self.source_width
        return Source(a0 + (a1 - a0) * unit[0], w0 + (w1 - w0) * unit[1], 2 * math.pi * unit[2:].T)

    def pairs(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw n pairs (x, y), float32, each with shape (n, size, size)."""
        x, y, _ = self.pairs_with_source(n, seed)
        return x, y

    def pairs_with_source(self, n: int, seed: int) -> HeatPairs:
        """Draw the n pairs that :meth:`pairs` draws, and say where each source is."""
        generator = Generator().manual_seed(seed)
        x, source = self.draw(n, generator)
        clean = self.forward(x)
        unit = torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
        y = clean + self.noise * clean.std() * unit
        return HeatPairs(x.float(), y.float(), source)

    def paper_pairs(self, seed: int) -> tuple[HeatPairs, HeatPairs]:
        """Draw as many pairs as section 4.4: 972 to train on and 52 to test on."""
        x, y, source = self.pairs_with_source(PAPER_TRAIN + PAPER_TEST, seed)
        parts = slice(PAPER_TRAIN), slice(PAPER_TRAIN, None)
        train, test = (HeatPairs(x[part], y[part], source[part]) for part in parts)
        return train, test

    # -- the floor --------------------------------------------------------------------------

    def invert(self, y: Tensor, penalty: float = 0.0) -> Tensor:
        r"""Return the Tikhonov inversion of y, with shape (*, size, size), computed in float64.

        The answer minimises :math:`\|u(t) - y\|^2 + \lambda \|x\|^2`. Without a penalty each
        mode is divided by its decay, the exact answer where there is no noise; a mode of which
        nothing is left, as a dropped Nyquist mode, is 0.

        Arguments:
            y: Observations, with shape (*, size, size).
            penalty: The number lambda.
        """
        self._check_field(y, "y")
        if not 0 <= penalty < math.inf:
            raise VspairError(f"penalty = {penalty}: expected a finite number, 0 or more.")
        data = y.double()
        return self._filter(data, _tikhonov(self._multiplier(data), penalty)).to(y.dtype)

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
        gain = _tikhonov(decay, variance / power.clamp(min=_TINY))
        return (mean + self._filter(data - mean, gain)).to(y.dtype)


def _tikhonov(decay: Tensor, penalty: float | Tensor) -> Tensor:
    """Return the gain of each mode that trades its misfit against a penalty on its size."""
    return decay / (decay.square() + penalty).clamp(min=_TINY)
