r"""Ridge regression from y to x: the linear method that learns from the same pairs.

Hoerl and Kennard, "Ridge Regression: Biased Estimation for Nonorthogonal Problems",
Technometrics 12 (1970).

.. math:: \min_{W, b} \; \sum_i \| x_i - W y_i - b \|^2 + \lambda \| W \|^2
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vspair.data import as_pairs, expect_batch
from vspair.errors import VspairError
from vspair.methods.point import PointMethod
from vspair.training.held import held_rows

__all__ = ["Ridge"]

PENALTIES = tuple(10.0**k for k in range(-6, 7))
"""The penalties that are tried where none are given."""


class Ridge(PointMethod):
    """A linear map from y to x, with the penalty that does best on held-out pairs.

    Everything is computed in float64. After the choice the map is fitted again to all pairs.

    Arguments:
        x: Unknowns, with shape (N, *x_shape).
        y: Observations, with shape (N, *y_shape).
        penalties: The penalties lambda to choose from; one alone is taken as it is.
        validation: The share of the pairs that the choice is made on.
        seed: Fixes which pairs are held out.
        groups: Labels (N,) of pairs that belong together and are held out together; each pair is
            alone where not given.

    Example:
        >>> y = torch.arange(12.0).reshape(6, 2)
        >>> Ridge(3 * y, y, penalties=[1e-9])(y).allclose(3 * y)
        True
    """

    name = "ridge"

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        penalties: Sequence[float] = PENALTIES,
        validation: float = 0.2,
        seed: int = 0,
        groups: Any = None,
    ) -> None:
        x, y = as_pairs(x, y)
        self.x_shape, self.y_shape = tuple(x.shape[1:]), tuple(y.shape[1:])
        flat_x, flat_y = x.flatten(1).double(), y.flatten(1).double()
        _check(penalties)
        self.penalty = penalties[0]
        if len(penalties) > 1:
            parts = held_rows(len(x), validation, seed, groups)
            self.penalty = _choose(flat_x, flat_y, penalties, *parts)
        self.weight, self.bias = next(_solve(flat_x, flat_y, [self.penalty]))
        self.n_parameters = self.weight.numel() + self.bias.numel()

    def __call__(self, y: Tensor) -> Tensor:
        """Return the predicted unknowns for observations (B, *y_shape), shape (B, *x_shape)."""
        expect_batch("y", y, self.y_shape)
        weight, bias = self.weight.to(y.device), self.bias.to(y.device)
        x = y.flatten(1).double() @ weight + bias
        return x.to(y.dtype).reshape(-1, *self.x_shape)


def _check(penalties: Sequence[float]) -> None:
    if not penalties or not all(p > 0 for p in penalties):
        raise VspairError(
            f"penalties = {list(penalties)}: expected at least one, each a number above 0."
        )


def _solve(x: Tensor, y: Tensor, penalties: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield weight (m, n) and bias (n,) for each penalty, from one eigendecomposition."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    centred = y - y_mean
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    projected = vectors.T @ (centred.T @ (x - x_mean))
    for penalty in penalties:
        weight = vectors @ (projected / (values.clamp(min=0) + penalty)[:, None])
        yield weight, x_mean - y_mean @ weight


def _choose(
    x: Tensor, y: Tensor, penalties: Sequence[float], train: Tensor, held: Tensor
) -> float:
    """Return the penalty with the least error on held-out pairs."""
    if not len(held):
        raise VspairError(
            f"{len(x)} pairs leave none to choose a penalty on. Give more, or one penalty."
        )
    errors = [
        float((y[held] @ weight + bias - x[held]).square().mean())
        for weight, bias in _solve(x[train], y[train], penalties)
    ]
    return penalties[errors.index(min(errors))]
