r"""Ridge regression along a path of penalties, all of them from one factorisation.

With centred observations :math:`Y = U S V^\top` (N pairs, m numbers each) and centred unknowns X,

.. math:: W_\lambda = V \, \frac{S}{S^2 + \lambda} \, U^\top X,

so that once V, S and :math:`S U^\top X` are known, every penalty costs one scaling. They come from
the eigenvectors of :math:`Y^\top Y` where there are fewer numbers than pairs, of
:math:`Y Y^\top` where there are fewer pairs, and from a randomised projection on a subspace where
both are large (Halko, Martinsson and Tropp, "Finding Structure with Randomness", SIAM Review 53,
2011).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["LARGEST", "RidgePath", "choose_penalties", "ridge_steps"]

LARGEST = 6000
"""The most numbers, or pairs, whose eigenvectors are computed in full."""

RANK = 2048
"""The dimension of the subspace beyond that."""

DECADES = tuple(k / 2 for k in range(-12, 4))
"""The penalties that are tried: powers of ten times the mean eigenvalue."""

NEGLIGIBLE = 1e-3
"""Directions are left out that the smallest penalty of a path shrinks to this share or below."""


def ridge_steps(penalties: Sequence[float], errors: Tensor) -> list[int]:
    """Return which penalties of a path to keep: the best, two decades and one below, one above.

    Networks read the answers to all of them: little penalised ones are sharp and noisy, much
    penalised ones smooth and safe.
    """
    best, last = int(errors.argmin()), len(penalties) - 1
    ratio = penalties[1] / penalties[0] if last else 10.0
    decade = max(1, round(1 / math.log10(ratio)))
    return sorted(
        {max(0, best - 2 * decade), max(0, best - decade), best, min(last, best + decade)}
    )


def choose_penalties(scale: float) -> list[float]:
    """Return the path of penalties for a mean eigenvalue."""
    return [max(scale, 1e-30) * 10.0**k for k in DECADES]


class RidgePath(nn.Module):
    """Linear answers to y for several penalties; its numbers are saved with the model.

    Data are normalised, flat, and of any precision; the factorisation is in float64 where it is
    done in full. What is kept is in float32, and so are the answers.

    Arguments:
        inputs: The number m of entries of an observation.
        outputs: The number n of entries of an unknown.
        rank: The number r of directions.
        penalties: The number P of penalties.
    """

    x_mean: Tensor
    y_mean: Tensor
    directions: Tensor
    values: Tensor
    products: Tensor
    penalties: Tensor

    def __init__(self, inputs: int, outputs: int, rank: int, penalties: int) -> None:
        super().__init__()
        self.register_buffer("x_mean", torch.zeros(outputs))
        self.register_buffer("y_mean", torch.zeros(inputs))
        self.register_buffer("directions", torch.zeros(inputs, rank))
        self.register_buffer("values", torch.zeros(rank))
        self.register_buffer("products", torch.zeros(rank, outputs))
        self.register_buffer("penalties", torch.ones(penalties))

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        penalties: Sequence[float] | None = None,
        *,
        exact: bool | None = None,
    ) -> RidgePath:
        """Return the path for pairs.

        Arguments:
            x: Unknowns, with shape (N, n).
            y: Observations, with shape (N, m).
            penalties: The penalties; :func:`choose_penalties` where not given.
            exact: Whether to factorise in full; by size where not given. Fits to parts of the
                pairs must do as the fit to all does.
        """
        x_mean, y_mean = (t.mean(0, dtype=torch.float64) for t in (x, y))
        exact = min(y.shape) <= LARGEST if exact is None else exact
        values, directions, products = _factorise(x, y, x_mean, y_mean, exact)
        if penalties is None:
            penalties = choose_penalties(float(values.sum()) / y.shape[1])
        kept = values > NEGLIGIBLE * min(penalties)
        kept[values.argmax()] = True
        path = cls(y.shape[1], x.shape[1], int(kept.sum()), len(penalties))
        path.x_mean.copy_(x_mean)
        path.y_mean.copy_(y_mean)
        path.directions.copy_(directions[:, kept])
        path.values.copy_(values[kept])
        path.products.copy_(products[kept])
        path.penalties.copy_(torch.tensor(penalties, dtype=torch.float64))
        return path.to(x.device)

    def forward(self, y: Tensor) -> Tensor:
        """Return the answers to observations (B, m) for each penalty, with shape (B, P, n)."""
        along = (y - self.y_mean) @ self.directions
        answers = [(along / (self.values + p)) @ self.products for p in self.penalties]
        return torch.stack(answers, 1) + self.x_mean

    def keep(self, steps: Sequence[int]) -> None:
        """Forget all penalties but those of some steps."""
        self.penalties = self.penalties[list(steps)].clone()


def _factorise(
    x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor, exact: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return S^2 with shape (r,), V with (m, r) and S U^T X with (r, n) of centred pairs."""
    count, inputs = y.shape
    if not exact:
        return _randomised(x, y, x_mean.float(), y_mean.float())
    x, y = x.double() - x_mean, y.double() - y_mean
    if inputs <= count:
        values, directions = torch.linalg.eigh(y.T @ y)
        return values.clamp(min=0), directions, directions.T @ (y.T @ x)
    values, left = torch.linalg.eigh(y @ y.T)
    kept = values > values.max() * 1e-12
    if not kept.any():  # y never changes: the mean is all there is to say
        return values[:1] * 0, y.T[:, :1] * 0, x[:1] * 0
    values, left = values[kept], left[:, kept]
    root = values.sqrt()
    return values, (y.T @ left) / root, (left * root).T @ x


def _randomised(
    x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leading part of the factorisation, by two rounds of subspace iteration."""
    generator = torch.Generator().manual_seed(0)
    x, y = x.float() - x_mean, y.float() - y_mean
    basis = torch.randn(y.shape[1], RANK, generator=generator).to(y.device)
    for _ in range(2):
        basis = torch.linalg.qr(y.T @ (y @ basis)).Q
    left, values, right = torch.linalg.svd(y @ basis, full_matrices=False)
    return values.square().double(), basis @ right.T, (left * values).T @ x
