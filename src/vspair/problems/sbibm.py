r"""Four tasks of the benchmark of simulation-based inference, with exact posterior samples.

Lueckmann, Boelts, Greenberg, Gonçalves and Macke, "Benchmarking Simulation-Based Inference",
AISTATS 2021, appendix T: parameters x are uniform on a box, data y are simulated from them. All
posteriors here can be sampled exactly, by rejection or in closed form, for any y:

- two moons: a crescent p is moved by x, :math:`y = p + (-|x_1 + x_2|, x_2 - x_1) / \sqrt 2`, so
  that x is one of two points for a crescent's point; the map keeps areas;
- Gaussian mixture: y is x plus noise of deviation 1 or 0.1, with equal chances;
- linear uniform: y is x plus noise of variance 0.1 in each of ten entries;
- SLCP, simple likelihood, complex posterior: y is four points of a plane from a Gaussian whose
  mean, deviations and correlation are :math:`(x_1, x_2)`, :math:`x_3^2, x_4^2` and
  :math:`\tanh x_5`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair.data import Pairs
from vspair.errors import VspairError

__all__ = ["TASKS", "Task"]

Simulator = Callable[[Tensor, Generator], Tensor]
Proposal = Callable[[Tensor, int, Generator], Tensor]

_ROUND, _ROUNDS = 100_000, 1000
"""How many candidates rejection draws at once, and how often at most."""


@dataclass(frozen=True)
class Task:
    """Parameters x, uniform on a box, and a simulator of data y; in float32.

    Arguments:
        name: What the task is called here.
        published: What the benchmark calls it.
        x_size: The number of parameters.
        y_size: The number of data.
        bound: The box reaches from minus to plus this, in every parameter.
        simulate: From parameters (N, x_size) to data (N, y_size), float64.
        propose: Returns candidates for the parameters of one datum (y_size,), at most as many as
            asked for; those inside the box are samples of its posterior.
    """

    name: str
    published: str
    x_size: int
    y_size: int
    bound: float
    simulate: Simulator
    propose: Proposal

    def prior(self, n: int, generator: Generator) -> Tensor:
        """Draw parameters, with shape (n, x_size)."""
        unit = torch.rand(n, self.x_size, generator=generator, dtype=torch.float64)
        return self.bound * (2 * unit - 1)

    def pairs(self, n: int, generator: Generator) -> Pairs:
        """Draw parameters and simulate their data; x has shape (n, x_size), y (n, y_size)."""
        x = self.prior(n, generator)
        return Pairs(x.float(), self.simulate(x, generator).float())

    def inside(self, x: Tensor) -> Tensor:
        """Return which parameters (..., x_size) lie in the box, bool (...)."""
        return (x.abs() <= self.bound).all(-1)

    def sample_posterior(self, y: Tensor, n: int, generator: Generator) -> Tensor:
        """Draw exact samples of the posterior of one datum (y_size,), with shape (n, x_size)."""
        if tuple(y.shape) != (self.y_size,):
            raise VspairError(
                f"y has shape {tuple(y.shape)}: expected one datum of {self.name}, of shape "
                f"({self.y_size},)."
            )
        found, count = [], 0
        for _ in range(_ROUNDS):
            candidates = self.propose(y.double(), _ROUND, generator)
            found.append(candidates[self.inside(candidates)])
            count += len(found[-1])
            if count >= n:
                return torch.cat(found)[:n].float()
        raise VspairError(
            f"Of {_ROUNDS * _ROUND:,} candidates for the posterior of {self.name}, {count} were "
            f"accepted and {n} are needed: expected data that the task can well have made. Give "
            "other data, or ask for fewer samples."
        )


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# -- two moons ------------------------------------------------------------------------------


def _crescent(n: int, generator: Generator) -> Tensor:
    """Draw points of the crescent, with shape (n, 2)."""
    angle = math.pi * (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)
    radius = 0.1 + 0.01 * _normal(n, generator=generator)
    return torch.stack([radius * angle.cos() + 0.25, radius * angle.sin()], dim=1)


def _two_moons(x: Tensor, generator: Generator) -> Tensor:
    moved = torch.stack([-(x[:, 0] + x[:, 1]).abs(), x[:, 1] - x[:, 0]], dim=1) / math.sqrt(2)
    return _crescent(len(x), generator) + moved


def _two_moons_posterior(y: Tensor, n: int, generator: Generator) -> Tensor:
    """Take the move from a crescent's point to y back; both signs of x_1 + x_2 lead there."""
    moved = math.sqrt(2) * (y - _crescent(n, generator))
    moved = moved[moved[:, 0] <= 0]
    sign = 2.0 * torch.randint(2, (len(moved),), generator=generator) - 1
    total, difference = sign * moved[:, 0], moved[:, 1]
    return torch.stack([total - difference, total + difference], dim=1) / 2


# -- Gaussian tasks -------------------------------------------------------------------------

LINEAR_VARIANCE = 0.1
MIXTURE_DEVIATIONS = (1.0, 0.1)


def _mixture(x: Tensor, generator: Generator) -> Tensor:
    """Add noise of one of two deviations; as it is symmetric, it leads from y to x as well."""
    which = torch.randint(2, (len(x), 1), generator=generator)
    deviation = torch.tensor(MIXTURE_DEVIATIONS, dtype=torch.float64)[which]
    return x + deviation * _normal(*x.shape, generator=generator)


def _mixture_posterior(y: Tensor, n: int, generator: Generator) -> Tensor:
    return _mixture(y.expand(n, -1), generator)


def _linear(x: Tensor, generator: Generator) -> Tensor:
    return x + math.sqrt(LINEAR_VARIANCE) * _normal(*x.shape, generator=generator)


def _linear_posterior(y: Tensor, n: int, generator: Generator) -> Tensor:
    """Draw normal entries between the walls of the box, by their distribution function."""
    deviation = math.sqrt(LINEAR_VARIANCE)
    low, high = (torch.special.ndtr((wall - y) / deviation) for wall in (-1.0, 1.0))
    unit = torch.rand(n, len(y), generator=generator, dtype=torch.float64)
    return y + deviation * torch.special.ndtri(low + (high - low) * unit)


# -- simple likelihood, complex posterior ---------------------------------------------------

_POINTS = 4
_JITTER = 1e-6
"""What the benchmark adds to variances, to keep covariances invertible."""
_GRID = 48
"""Cells along each edge of the grid that the likely parameters of SLCP are found by."""


def _covariance(shape: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return both variances and the covariance, each (N,), for parameters x_3 to x_5 (N, 3)."""
    first, second, correlation = shape[:, 0] ** 2, shape[:, 1] ** 2, shape[:, 2].tanh()
    return first**2 + _JITTER, second**2 + _JITTER, correlation * first * second


def _scattered(mean: Tensor, shape: Tensor, generator: Generator) -> Tensor:
    """Draw a point around each mean (..., N, 2), with the covariances of shapes (N, 3)."""
    a, b, c = _covariance(shape)
    u, v = _normal(2, *mean.shape[:-1], generator=generator)
    rest = (b - c.square() / a).sqrt()
    return mean + torch.stack([a.sqrt() * u, c / a.sqrt() * u + rest * v], dim=-1)


def _slcp(x: Tensor, generator: Generator) -> Tensor:
    means = x[:, :2].expand(_POINTS, -1, -1)
    return _scattered(means, x[:, 2:], generator).transpose(0, 1).flatten(1)


def _log_weight(shape: Tensor, scatter: Tensor) -> Tensor:
    r"""Return what is left of the log-likelihood where the mean is integrated out, (N,).

    Without the box that is :math:`-\tfrac32 \log|S| - \tfrac12 \mathrm{tr}(S^{-1} Q)` with the
    scatter Q of the points around their mean.
    """
    a, b, c = _covariance(shape)
    volume = a * b - c.square()
    trace = (b * scatter[0, 0] + a * scatter[1, 1] - 2 * c * scatter[0, 1]) / volume
    return -(_POINTS - 1) / 2 * volume.log() - trace / 2


def _shape_of(unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return x_3 to x_5 of points of the unit cube (N, 3), and the log-volume that they stand for.

    Cubes of the first two give small deviations, which likelihoods can be narrow in, more room.
    Both are positive: the signs of x_3 and x_4 change nothing.
    """
    shape = torch.cat([3 * unit[:, :2] ** 3, 6 * unit[:, 2:] - 3], dim=1)
    return shape, 2 * unit[:, :2].log().sum(1)


def _candidate_shapes(scatter: Tensor, n: int, generator: Generator) -> Tensor:
    """Draw x_3 to x_5 given the scatter of the points, with shape (m, 3), m at most n.

    Cells of a grid are drawn by the greatest weight of their neighbours, points inside them
    evenly, and accepted by the ratio of both weights to the greatest ratio of this draw.
    """
    side = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
    shape, volume = _shape_of(torch.cartesian_prod(side, side, side))
    weight = (_log_weight(shape, scatter) + volume).reshape(1, *[_GRID] * 3)
    envelope = F.max_pool3d(weight, 3, stride=1, padding=1).flatten()
    chances = (envelope - envelope.max()).exp()
    cells = torch.multinomial(chances, n, replacement=True, generator=generator)
    corner = torch.stack(torch.unravel_index(cells, [_GRID] * 3), dim=1)
    unit = (corner + torch.rand(n, 3, generator=generator, dtype=torch.float64)) / _GRID
    shape, volume = _shape_of(unit)
    ratio = _log_weight(shape, scatter) + volume - envelope[cells]
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    return shape[uniform.log() < ratio - ratio.max()]


def _slcp_posterior(y: Tensor, n: int, generator: Generator) -> Tensor:
    """Draw covariances by the likelihood of the scatter, then means around that of the points."""
    points = y.reshape(_POINTS, 2)
    centre = points.mean(0)
    shape = _candidate_shapes((points - centre).T @ (points - centre), n, generator)
    shape[:, :2] *= 2.0 * torch.randint(2, (len(shape), 2), generator=generator) - 1
    offset = _scattered(torch.zeros_like(shape[:, :2]), shape, generator) / math.sqrt(_POINTS)
    return torch.cat([centre + offset, shape], dim=1)


TASKS = {
    task.name: task
    for task in (
        Task("two_moons", "two_moons", 2, 2, 1.0, _two_moons, _two_moons_posterior),
        Task("gaussian_mixture", "gaussian_mixture", 2, 2, 10.0, _mixture, _mixture_posterior),
        Task("linear_uniform", "gaussian_linear_uniform", 10, 10, 1.0, _linear, _linear_posterior),
        Task("slcp", "slcp", 5, 2 * _POINTS, 3.0, _slcp, _slcp_posterior),
    )
}
"""The tasks by their names."""
