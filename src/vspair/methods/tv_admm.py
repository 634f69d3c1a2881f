r"""Total-variation regularised reconstruction by the alternating direction method of multipliers.

.. math:: \min_x \; \tfrac12 \| A x - y \|^2 + \lambda \sum_i \| (\nabla x)_i \|_2
    \qquad (x \ge 0 \text{ where asked for})

Boyd et al., "Distributed Optimization and Statistical Learning via the Alternating Direction
Method of Multipliers", Foundations and Trends in Machine Learning 3 (2011). The problem is split:
z = K x, with K the gradient and, for the sign, the identity beneath it. Then, in turn,

.. math:: (A^T A + \rho K^T K)\, x = A^T y + \rho K^T (z - u), \qquad
    z = \mathrm{prox}_{1 / \rho}(K x + u), \qquad u \leftarrow u + K x - z

The linear system is solved by a few steps of conjugate gradients from the last x, preconditioned
by the system's circulant neighbour. The dual residual is that of the optimality condition itself,
:math:`A^T (A x - y) + \rho K^T u`, so that what those steps leave unsolved is part of it. Each
observation has its own :math:`\rho`, which keeps its two residuals of one size.

Small residuals alone do not make a small objective: where :math:`\lambda` is large it multiplies
what little the primal one leaves. The duals :math:`p = \rho u` lie in the polar of the total
variation, so that, by convexity, no image has an objective below :math:`f(x) + \langle p, K x
\rangle` (f the misfit), but for the dual residual. How far the answer is above that, as a share of
its objective, is the gap.

The gradient is a difference of neighbouring pixels, not divided by their distance: with lengths in
metres :math:`\lambda` is the square of a pixel's side in metres times what it is in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.posterior import PointPosterior
from vspair.problems.ct.geometry import check_tensor, computing
from vspair.problems.ct.ray import RayTransform

__all__ = ["TvAdmm", "TvResult", "total_variation", "tv_admm", "tv_objective"]

_RELAX = 1.7
_BALANCE_FIRST, _BALANCE_LATER, _BALANCE = 15, 2, 5.0


class TvResult(NamedTuple):
    """Reconstructions and how far they came.

    Arguments:
        x: Images, with shape (*, R, C).
        iterations: How many were taken.
        converged: Whether both residuals are below the tolerance and the gap is below twice the
            tolerance, bool, with shape (*).
        primal: The primal residual over its scale, with shape (*).
        dual: The dual residual over its scale, with shape (*).
        gap: How far the objective is above its least value, as a share, with shape (*); too
            small where the dual residual is not.
    """

    x: Tensor
    iterations: int
    converged: Tensor
    primal: Tensor
    dual: Tensor
    gap: Tensor


def _gradient(x: Tensor) -> Tensor:
    """Return differences down and right, 0 at the last line, with shape (B, 2, R, C)."""
    g = x.new_zeros(len(x), 2, *x.shape[1:])
    g[:, 0, :-1] = x[:, 1:] - x[:, :-1]
    g[:, 1, :, :-1] = x[:, :, 1:] - x[:, :, :-1]
    return g


def _gradient_adjoint(g: Tensor) -> Tensor:
    """Return the adjoint of the gradient, with shape (B, R, C)."""
    x = torch.zeros_like(g[:, 0])
    x[:, :-1] -= g[:, 0, :-1]
    x[:, 1:] += g[:, 0, :-1]
    x[:, :, :-1] -= g[:, 1, :, :-1]
    x[:, :, 1:] += g[:, 1, :, :-1]
    return x


def total_variation(x: Tensor) -> Tensor:
    """Return the isotropic total variation, with shape (*), of images of shape (*, R, C)."""
    flat = x.reshape(-1, *x.shape[-2:])
    return torch.linalg.vector_norm(_gradient(flat), dim=1).sum((1, 2)).reshape(x.shape[:-2])


def tv_objective(transform: RayTransform, x: Tensor, y: Tensor, weight: float | Tensor) -> Tensor:
    """Return what :func:`tv_admm` minimises, with shape (*).

    Arguments:
        transform: The operator A.
        x: Images, with shape (*, R, C).
        y: Sinograms, with shape (*, A, D).
        weight: The weight lambda, a number or with shape (*).
    """
    misfit = (transform(x) - y).square().sum((-2, -1)) / 2
    return misfit + weight * total_variation(x)


@dataclass(frozen=True)
class _System:
    """The problem with A and lambda scaled so that the norm of A is at most 1.

    Arguments:
        transform: The operator.
        scale: The square of the bound on its norm.
        symbol: The transform of what A^T A makes of a point, (R, C // 2 + 1).
        laplacian: The same of the gradient.
        sign: 1 if x must not be negative, else 0.
    """

    transform: RayTransform
    scale: float
    symbol: Tensor
    laplacian: Tensor
    sign: int

    @classmethod
    def of(cls, transform: RayTransform, like: Tensor, nonnegative: bool) -> _System:
        rows, columns = transform.geometry.shape
        ones = like.new_ones(1, rows, columns)
        # The entries of A^T A are not negative: its norm is at most its largest row sum.
        scale = float(transform.adjoint(transform(ones)).max())
        point = torch.zeros_like(ones)
        point[:, rows // 2, columns // 2] = 1
        spread = transform.adjoint(transform(point))[0] / scale
        symbol = torch.fft.rfft2(spread).abs()
        down = torch.arange(rows).to(like) * (2 * math.pi / rows)
        right = torch.arange(columns // 2 + 1).to(like) * (2 * math.pi / columns)
        laplacian = 4 - 2 * down.cos()[:, None] - 2 * right.cos()
        return cls(transform, scale, symbol, laplacian, int(nonnegative))

    def split(self, x: Tensor) -> Tensor:
        """Return K x, with shape (B, 2 or 3, R, C)."""
        return torch.cat((_gradient(x), x[:, None]), 1) if self.sign else _gradient(x)

    def split_adjoint(self, z: Tensor) -> Tensor:
        """Return K^T z, with shape (B, R, C)."""
        x = _gradient_adjoint(z[:, :2])
        return x + z[:, 2] if self.sign else x

    def normal(self, x: Tensor) -> Tensor:
        """Return A^T A x, scaled, with shape (B, R, C)."""
        return self.transform.adjoint(self.transform(x)) / self.scale

    def left(self, x: Tensor, rho: Tensor) -> Tensor:
        """Return the left-hand side of the linear system, with shape (B, R, C)."""
        return self.normal(x) + rho * self.split_adjoint(self.split(x))

    def precondition(self, r: Tensor, rho: Tensor) -> Tensor:
        """Return the solution of the circulant neighbour, with shape (B, R, C)."""
        gain = self.symbol + rho * (self.laplacian + self.sign)
        return torch.fft.irfft2(torch.fft.rfft2(r) / gain, s=r.shape[1:])

    def bounded(self, x: Tensor) -> Tensor:
        """Return the images that answer: cut off at 0 where asked for, which raises no TV."""
        return x.clamp(min=0) if self.sign else x

    def gap(self, x: Tensor, y: Tensor, p: Tensor, lam: Tensor) -> Tensor:
        """Return how far the answer of x is above its lower bound, as a share, (B, 1, 1).

        Arguments:
            x: Images, with shape (B, R, C).
            y: Sinograms, with shape (B, A, D).
            p: The duals rho u, with shape (B, 2 or 3, R, C).
            lam: The scaled weights, with shape (B, 1, 1).
        """
        answer = self.bounded(x)
        rest, moved = self.transform(answer) - y, self.transform(answer - x)
        steepness = torch.linalg.vector_norm(_gradient(answer), dim=1)
        # Differences of the misfits and of the penalties, each without cancellation.
        excess = _dot(rest - moved / 2, moved) / self.scale
        excess = excess + (lam * steepness - (p * self.split(x)).sum(1)).sum((1, 2), keepdim=True)
        objective = _dot(rest, rest) / (2 * self.scale) + lam * steepness.sum((1, 2), keepdim=True)
        return excess.clamp(min=0) / objective.clamp(min=1e-30)

    def solve(self, x: Tensor, right: Tensor, rho: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Take steps of conjugate gradients; return x and what is left of the right-hand side."""
        rest = right - self.left(x, rho)
        way = self.precondition(rest, rho)
        square = _dot(rest, way)
        for _ in range(steps):
            image = self.left(way, rho)
            length = square / _dot(way, image).clamp(min=1e-30)
            x, rest = x + length * way, rest - length * image
            better = self.precondition(rest, rho)
            before, square = square, _dot(rest, better)
            way = better + square / before.clamp(min=1e-30) * way
        return x, rest


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return inner products of images, with shape (B, 1, 1)."""
    return (a * b).sum((1, 2), keepdim=True)


def _norm(z: Tensor) -> Tensor:
    """Return the norm of all that belongs to each observation, with shape (B, 1, 1)."""
    return torch.linalg.vector_norm(z.flatten(1), dim=1)[:, None, None]


def _prox(z: Tensor, threshold: Tensor) -> Tensor:
    """Return the gradient's part shortened by the threshold, the rest without its sign."""
    g = z[:, :2]
    length = torch.linalg.vector_norm(g, dim=1, keepdim=True)
    g = g * (1 - threshold[:, None] / length.clamp(min=1e-30)).clamp(min=0)
    return torch.cat((g, z[:, 2:].clamp(min=0)), 1)


def _weights(weight: float | Tensor, y: Tensor) -> Tensor:
    """Return the weight of each sinogram, with shape (B, 1, 1)."""
    given = torch.as_tensor(weight, dtype=y.dtype, device=y.device)
    try:
        return given.expand(y.shape[:-2]).reshape(-1, 1, 1)
    except RuntimeError:
        raise VspairError(
            f"weight has shape {tuple(given.shape)} and y {tuple(y.shape)}: expected one weight, "
            f"or one for each sinogram, of shape {tuple(y.shape[:-2])}."
        ) from None


def tv_admm(
    transform: RayTransform,
    y: Tensor,
    weight: float | Tensor,
    *,
    nonnegative: bool = False,
    tolerance: float = 3e-5,
    max_iterations: int = 1000,
    steps: int = 4,
) -> TvResult:
    """Reconstruct images of small total variation, all at once.

    Arguments:
        transform: The operator A; where and in what precision it computes follows y.
        y: Sinograms, with shape (*, A, D).
        weight: The weight lambda of the total variation, above 0, a number or with shape (*).
        nonnegative: Whether x must not be negative.
        tolerance: What both residuals must be below, as shares of their scale, and the gap below
            twice of it. With the default the objective of what has converged is within 1e-4 of
            its least value. Large weights need float64 for that.
        max_iterations: Where to stop if they never are.
        steps: How many steps of conjugate gradients an iteration takes.
    """
    geometry = transform.geometry
    check_tensor(y, geometry.sinogram_shape, "y", "sinograms", geometry)
    shape = y.shape[:-2]
    work = y.to(computing(y.dtype))
    flat = work.reshape(-1, *y.shape[-2:])
    lam = _weights(weight, work)
    if max_iterations < 1 or steps < 1:
        raise VspairError(
            f"max_iterations = {max_iterations}, steps = {steps}: expected 1 or more of each."
        )
    inside = (lam > 0) & (lam < math.inf)
    if not len(flat) or not bool(inside.all()) or not 0 < tolerance < math.inf:
        raise VspairError(
            f"weight = {weight}, tolerance = {tolerance}: expected finite numbers above 0, and at "
            "least one sinogram."
        )
    with torch.no_grad():
        x, count, *ends = _iterate(
            _System.of(transform, work, nonnegative), flat, lam, tolerance, max_iterations, steps
        )
    done, primal, dual, gap = (end.reshape(shape) for end in ends)
    image = x.reshape(*shape, *geometry.shape).to(y.dtype)
    return TvResult(image, count, done, primal, dual, gap)


class TvAdmm(PointMethod):
    """Answers with images of small total variation.

    Arguments:
        transform: The operator A.
        weight: The weight lambda, a number or one for each observation, with shape (B,).
        options: Other arguments of :func:`tv_admm`.
    """

    name = "TV-ADMM"

    def __init__(self, transform: RayTransform, weight: float | Tensor, **options: Any) -> None:
        self.transform, self.weight, self.options = transform, weight, options

    def __call__(self, y: Tensor) -> Tensor:
        """Return images, with shape (B, R, C), of sinograms with shape (B, A, D)."""
        return self.posterior(y).estimate

    def posterior(self, y: Tensor) -> PointPosterior:
        """Return the images; ``details`` say on which sinograms the iteration ``converged``."""
        result = tv_admm(self.transform, y, self.weight, **self.options)
        return PointPosterior(result.x, self.name, {"converged": result.converged.float()})


def _iterate(
    system: _System, y: Tensor, lam: Tensor, tolerance: float, most: int, steps: int
) -> tuple[Tensor, int, Tensor, Tensor, Tensor, Tensor]:
    data = system.transform.adjoint(y) / system.scale
    lam = lam / system.scale
    x = system.precondition(data, torch.full_like(lam, 1e-2))
    z = u = torch.zeros_like(system.split(x))
    # Where the threshold lambda / rho is a small part of an edge.
    rho = lam / (0.02 * x.abs().amax((1, 2), keepdim=True)).clamp(min=1e-12)
    # Round-off alone leaves residuals of this size; no more can be asked for.
    least = 30 * torch.finfo(y.dtype).eps / tolerance
    turn = _BALANCE_FIRST
    for count in range(1, most + 1):
        x, rest = system.solve(x, data + rho * system.split_adjoint(z - u), rho, steps)
        kx = system.split(x)
        before = z, u
        mixed = torch.lerp(z, kx, _RELAX)
        z = _prox(mixed + u, lam / rho)
        u = u + mixed - z
        slope = rho * system.split_adjoint(u - before[1] + before[0] - kx) - rest
        primal = _norm(kx - z) / torch.maximum(_norm(z), least * _norm(x)).clamp(min=1e-30)
        force = torch.maximum(_norm(rho * system.split_adjoint(u)), least * _norm(data))
        dual = _norm(slope) / force.clamp(min=1e-30)
        small = (primal < tolerance) & (dual < tolerance)
        if bool(small.all()) or count == most:
            gap = system.gap(x, y, rho[:, None] * u, lam)
            small = small & (gap < 2 * tolerance)
            if bool(small.all()):
                break
        if count == turn:
            # Ever more rarely: only a rho that rests lets the iteration converge.
            turn *= _BALANCE_LATER
            ratio = (primal / dual.clamp(min=1e-30)).sqrt().clamp(1 / _BALANCE, _BALANCE)
            change = torch.where((ratio > 1.5) | (ratio < 1 / 1.5), ratio, 1)
            rho, u = rho * change, u / change[:, None]
    return system.bounded(x), count, small, primal, dual, gap
