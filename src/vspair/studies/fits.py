"""The line through variances and errors that figures of several studies show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from vspair.report.curves import ErrorFit
from vspair.uncertainty import uncertainty_error

__all__ = ["error_fit"]


def error_fit(error: Any, variance: Any, colour: str) -> ErrorFit:
    """Return variances and errors with their line of least squares and its 95 % band.

    Images without numbers are left out; there is no line through fewer than three different ones.

    Arguments:
        error: The error of each image, with shape (n,).
        variance: The variance that was predicted, with shape (n,).
        colour: Of the points.
    """
    points = np.stack([error, variance]).astype(np.float64)
    x, v = points[:, np.isfinite(points).all(axis=0)]
    if len(x) < 3 or np.ptp(x) == 0:
        return ErrorFit(x, v, colour, math.nan, np.zeros((4, 0)))
    fit = uncertainty_error(torch.from_numpy(v), torch.from_numpy(x))
    at = torch.linspace(x.min(), x.max(), 100, dtype=torch.float64)
    line = torch.stack([at, fit.predict(at), *fit.band(at)])
    return ErrorFit(x, v, colour, fit.r, line.numpy())
