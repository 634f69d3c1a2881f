"""Whether predicted variance lies where data is missing and follows the error (section 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vspair.errors import VspairError
from vspair.metrics import pearson
from vspair.uncertainty.localisation import region_weights

__all__ = ["LinearFit", "t_quantile", "uncertainty_error", "variance_ratio"]


def variance_ratio(variance: Tensor, region: Tensor) -> Tensor:
    """Return mean variance inside a region over mean variance outside it, with shape (B,).

    Arguments:
        variance: Variances pixel by pixel, with shape (B, *shape).
        region: A mask of shape (B, *shape), or (*shape,) for the same one in each image.

    Images whose region is empty or full, or that have no variance at all, are NaN; it is an
    error if the region is empty or full in every image.
    """
    batch, *shape = variance.shape
    weights = region_weights(region.to(variance.device), batch, tuple(shape))
    inside, outside = (weights @ variance.flatten(1).double().unsqueeze(-1)).squeeze(-1).unbind(1)
    return (inside / outside).to(variance.dtype)


@dataclass(frozen=True)
class LinearFit:
    """Least squares of predicted variance on error, one point an image.

    Attributes:
        r: The Pearson correlation; NaN where all variances are the same.
        slope: The slope.
        intercept: The predicted variance at zero error.
        n: The number of points.
        centre: The mean error.
        scatter: The sum of squares of errors about their mean.
        residual: The standard deviation of the residuals, with n - 2 degrees of freedom.
    """

    r: float
    slope: float
    intercept: float
    n: int
    centre: float
    scatter: float
    residual: float

    def predict(self, error: Tensor) -> Tensor:
        """Return the line at errors of any shape."""
        return self.intercept + self.slope * error

    def band(self, error: Tensor, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return the ends of the confidence band of the line, each with the shape of ``error``.

        The band holds the mean response at each error with probability ``level``: the standard
        error of the line, times the quantile of Student's t with n - 2 degrees of freedom.
        """
        if not 0 < level < 1:
            raise VspairError(f"level = {level}: expected a probability between 0 and 1.")
        leverage = 1 / self.n + (error - self.centre).square() / self.scatter
        half = t_quantile((1 + level) / 2, self.n - 2) * self.residual * leverage.sqrt()
        line = self.predict(error)
        return line - half, line + half


def uncertainty_error(variance: Tensor, error: Tensor) -> LinearFit:
    """Return how predicted variance goes with error: correlation and line of least squares.

    Arguments:
        variance: The mean predicted variance of each image, with shape (N,), on the vertical
            axis as in the paper's figure.
        error: The squared error of each image, with shape (N,), on the horizontal axis.
    """
    if variance.ndim != 1 or variance.shape != error.shape or len(error) < 3:
        raise VspairError(
            f"variance has shape {tuple(variance.shape)}, error {tuple(error.shape)}: expected "
            "one number for each of at least three images."
        )
    v, e = variance.double(), error.double().to(variance.device)
    if not torch.stack((v, e)).isfinite().all():
        raise VspairError("variance and error must be finite: leave such images out.")
    centred = e - e.mean()
    scatter = float(centred.square().sum())
    if scatter == 0:
        raise VspairError("All errors are the same: there is no line to fit.")
    slope = float((centred * v).sum()) / scatter
    intercept = float(v.mean()) - slope * float(e.mean())
    residual = math.sqrt(float((v - intercept - slope * e).square().sum()) / (len(e) - 2))
    r = float(pearson(v, e))
    return LinearFit(r, slope, intercept, len(e), float(e.mean()), scatter, residual)


def t_quantile(p: float, freedom: float) -> float:
    r"""Return the quantile of Student's t distribution, to about ten digits.

    With :math:`t = \sqrt{\nu} \tan\theta` the density is proportional to
    :math:`\cos^{\nu - 1}\theta`, which is smooth: Gauss-Legendre quadrature, then bisection.

    Arguments:
        p: A probability strictly between 0 and 1.
        freedom: The degrees of freedom, at least 1.

    Example:
        >>> round(t_quantile(0.975, 10), 6)
        2.228139
    """
    if not (0 < p < 1 and freedom >= 1):
        raise VspairError(f"p = {p}, freedom = {freedom}: expected 0 < p < 1 and freedom >= 1.")
    if p < 0.5:
        return -t_quantile(1 - p, freedom)
    nodes, weights = np.polynomial.legendre.leggauss(48)
    norm = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def below(t: float) -> bool:
        """Return whether the mass between 0 and t falls short."""
        theta = math.atan(t / math.sqrt(freedom))
        density = np.cos(theta * (1 + nodes) / 2) ** (freedom - 1)
        return norm * theta / 2 * float(weights @ density) < p - 0.5

    low, high = 0.0, 1.0
    while below(high) and high < 1e18:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
