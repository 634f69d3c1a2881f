r"""Ridge regression where observations are too large for :class:`vspair.methods.Ridge`.

The same linear method, by the factorisation of :class:`vspair.anchors.RidgePath`: where there are
many pairs of many numbers, in a subspace of 2,048 directions. Its penalty is chosen out of fold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from vspair import runs
from vspair.anchors import RidgePath, assign_folds
from vspair.anchors.folds import as_groups
from vspair.data import Normaliser, as_pairs, expect_batch
from vspair.methods.point import PointMethod
from vspair.training.prepared import fit_ridge

__all__ = ["LargeRidge"]

FOLDS = 5
"""The parts of the pairs that are answered by what was fitted to the others."""


class LargeRidge(nn.Module, PointMethod):
    """A linear map from y to x, with the penalty that does best out of fold.

    Arguments:
        path: The map, of one penalty, between normalised and flat data.
        x_shape: The shape of one unknown.
        y_shape: The shape of one observation.
    """

    name = "ridge"

    def __init__(
        self, path: RidgePath, x_shape: tuple[int, ...], y_shape: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.path, self.x_shape, self.y_shape = path, x_shape, y_shape
        self.x_normaliser, self.y_normaliser = Normaliser(x_shape), Normaliser(y_shape)
        fitted = (path.x_mean, path.y_mean, path.directions, path.values, path.products)
        self.n_parameters = sum(t.numel() for t in fitted)

    @classmethod
    def fit(
        cls, x: Any, y: Any, *, groups: Any = None, seed: int = 0, device: Any = "cpu"
    ) -> tuple[Self, Tensor]:
        """Return the method, and its answers to the pairs, each by a fit without its fold.

        Arguments:
            x: Unknowns, with shape (N, *x_shape).
            y: Observations, with shape (N, *y_shape).
            groups: Which pairs belong together and are never divided, as labels (N,).
            seed: Fixes the folds.
            device: Where to compute; what is returned is on the CPU.
        """
        x, y = as_pairs(x, y)
        shapes = tuple(x.shape[1:]), tuple(y.shape[1:])
        scales = Normaliser(shapes[0]), Normaliser(shapes[1])
        for scale, data in zip(scales, (x, y), strict=True):
            scale.fit(data, "scalar")
        fold = assign_folds(as_groups(groups, len(x)), FOLDS, seed)
        known = scales[0](x).flatten(1), scales[1](y).flatten(1), fold
        path, answers, errors = fit_ridge(*known, device=device)
        assert isinstance(path, RidgePath)
        best = int(errors.argmin())
        path.keep([best])
        method = cls(path, *shapes)
        method.x_normaliser, method.y_normaliser = scales
        return method, method.x_normaliser.inverse(answers[:, best].reshape(x.shape))

    @torch.no_grad()
    def __call__(self, y: Tensor) -> Tensor:
        """Return the predicted unknowns for observations (B, *y_shape), shape (B, *x_shape)."""
        expect_batch("y", y, self.y_shape)
        x = self.path(self.y_normaliser(y.to(self.path.x_mean)).flatten(1))[:, 0]
        return self.x_normaliser.inverse(x.reshape(-1, *self.x_shape))

    def save(self, path: Path) -> None:
        """Write the method to a file."""
        rank = len(self.path.values)
        header = {"x_shape": self.x_shape, "y_shape": self.y_shape, "rank": rank}
        runs.write_tensors(path, self.state_dict(), header)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the method of a file."""
        tensors, header = runs.read_tensors(path)
        shapes = tuple(header["x_shape"]), tuple(header["y_shape"])
        sizes = tensors["path.y_mean"].numel(), tensors["path.x_mean"].numel()
        method = cls(RidgePath(*sizes, header["rank"], 1), *shapes)
        runs.fill(method, tensors, path)
        return method
