r"""A point method with Gaussian residuals: the least that any account of doubt must beat.

.. math:: x \mid y \sim N(r(y), \mathrm{diag}(s^2)), \qquad
    s_j^2 = \frac1N \sum_i (x_{ij} - r(y_i)_j)^2

This is the classical prediction interval of a regression with errors of constant variance (Seber
and Lee, "Linear Regression Analysis", 2003, chapter 5), entry by entry. The s is that of maximum
likelihood about the estimate, so a bias of the method widens it. It does not depend on y, and
entries are independent: what is missing is exactly what a better posterior has to add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vspair.data import as_pairs
from vspair.errors import VspairError
from vspair.posterior import Method, NormalPosterior

__all__ = ["GaussianResiduals"]

_CHUNK = 256


class GaussianResiduals:
    """A point method's estimates, with independent Gaussian noise of its residuals' size.

    Arguments:
        method: A point method: a posterior without spread.
        x: Unknowns, with shape (N, *x_shape), of pairs that the method was **not** trained on;
            residuals of its own training pairs are too small.
        y: Their observations, with shape (N, *y_shape).

    Example:
        >>> from vspair.methods import AnswerY
        >>> y = torch.zeros(4, 2)
        >>> x = torch.tensor([[1.0, 2.0], [-1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]])
        >>> GaussianResiduals(AnswerY(), x, y).std
        tensor([1., 2.])
    """

    def __init__(self, method: Method, x: Any, y: Any) -> None:
        x, y = as_pairs(x, y, vary=False)
        if len(x) < 2:
            raise VspairError(f"{len(x)} calibration pairs: expected at least 2.")
        self.method = method
        square = torch.zeros(x.shape[1:], dtype=torch.float64)
        for truth, seen in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            answer = self._estimate(seen).cpu()
            if answer.shape != truth.shape:
                raise VspairError(
                    f"x has shape {tuple(x.shape)}, the method answers with shape (B, "
                    f"{', '.join(map(str, answer.shape[1:]))}): expected the same."
                )
            square += (truth.double() - answer.double()).square().sum(0)
        self.std = (square / len(x)).sqrt().float()

    def _estimate(self, y: Tensor) -> Tensor:
        post = self.method.posterior(y)
        if post.has_spread:
            raise VspairError(
                f"{post!r} has a spread of its own: expected a point method. Score it as it is."
            )
        return post.mean()

    def posterior(self, y: Tensor) -> NormalPosterior:
        """Return estimates of observations (B, *y_shape), with the residuals' deviation."""
        estimate = self._estimate(y)
        return NormalPosterior(estimate, self.std.to(estimate))
