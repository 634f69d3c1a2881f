r"""Ridge regression that treats every place alike: pairs, and all their periodic shifts.

Least squares over all shifts falls apart into one small problem for each Fourier mode f,

.. math:: W_\lambda(f) = \Bigl( \sum_i Y_i(f)^* Y_i(f)^\top + \lambda I \Bigr)^{-1}
          \sum_i Y_i(f)^* X_i(f)^\top,

with the channels of :math:`y_i` and :math:`x_i` as vectors. Where a problem is the same at every
place, a blur or a diffusion, this has as many times the pairs of an ordinary ridge regression as
there are places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vspair.networks.spatial import Frame

__all__ = ["ShiftPath"]

DECADES = tuple(range(-14, 2))
"""The penalties that are tried: powers of ten times the mean eigenvalue. Each mode is learned from
all pairs, so that next to none can be best."""

CHUNK = 1000
"""Pairs that are transformed at once."""


class ShiftPath(nn.Module):
    """Answers to y by filters, for several penalties; its numbers are saved with the model.

    Filters are in float64: without noise they undo a smoothing, which multiplies round-off.

    Arguments:
        frame: How unknowns lie on a grid; observations have the same shape.
        penalties: The number P of penalties.
    """

    x_mean: Tensor
    y_mean: Tensor
    filters: Tensor
    penalties: Tensor

    def __init__(self, frame: Frame, penalties: int) -> None:
        super().__init__()
        self.frame = frame
        channels, modes = frame.channels, (*frame.size[:-1], frame.size[-1] // 2 + 1)
        self.shape = (*modes, channels, channels, 2)
        shapes = {
            "x_mean": (channels, *[1] * len(frame.size)),
            "y_mean": (channels, *[1] * len(frame.size)),
            "filters": (penalties, math.prod(modes), 2 * channels**2),
            "penalties": (penalties,),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    @classmethod
    def fit(
        cls, x: Tensor, y: Tensor, penalties: Sequence[float] | None = None, *, frame: Frame
    ) -> ShiftPath:
        """Return the path for pairs.

        Arguments:
            x: Unknowns, with shape (N, n).
            y: Observations, with shape (N, n).
            penalties: The penalties; chosen by the observations where not given.
            frame: How both lie on a grid.
        """
        rest = (0, *range(2, 2 + len(frame.size)))
        means = [frame.maps(t).mean(rest, dtype=torch.float64, keepdim=True)[0] for t in (x, y)]
        power, product = _spectra(frame, x, y, *means)
        channels = torch.arange(frame.channels)
        if penalties is None:
            scale = max(float(power[..., channels, channels].real.mean()), 1e-30)
            penalties = [scale * 10.0**k for k in DECADES]
        path = cls(frame, len(penalties))
        path.x_mean.copy_(means[0])
        path.y_mean.copy_(means[1])
        path.penalties.copy_(torch.tensor(penalties, dtype=torch.float64))
        # By eigenvalues: channels that depend on each other leave no inverse in float64.
        values, vectors = torch.linalg.eigh(power)
        along = vectors.mH @ product
        for filters, penalty in zip(path.filters, penalties, strict=True):
            solved = vectors @ (along / (values.clamp(min=0) + penalty).unsqueeze(-1))
            filters.copy_(torch.view_as_real(solved).reshape(filters.shape))
        return path

    def forward(self, y: Tensor) -> Tensor:
        """Return the answers to observations (B, n) for each penalty, float32 (B, P, n)."""
        seen = self.frame.maps(y).double() - self.y_mean
        modes = _transform(seen).movedim(1, -1).unsqueeze(-2)
        filters = self.filters.reshape(-1, *self.shape)
        answers = [self._filter(modes, torch.view_as_complex(f)) for f in filters]
        return torch.stack(answers, 1).flatten(2)

    def _filter(self, modes: Tensor, filters: Tensor) -> Tensor:
        """Return what filters (*modes, C, C) make of spectra (B, *modes, 1, C)."""
        found = (modes @ filters).squeeze(-2).movedim(-1, 1)
        dims = tuple(range(2, found.ndim))
        return (torch.fft.irfftn(found, s=self.frame.size, dim=dims) + self.x_mean).float()

    def keep(self, steps: Sequence[int]) -> None:
        """Forget all penalties but those of some steps."""
        self.penalties = self.penalties[list(steps)].clone()
        self.filters = self.filters[list(steps)].clone()


def _transform(maps: Tensor) -> Tensor:
    """Return the spectra (B, C, *modes) of maps (B, C, *size)."""
    return torch.fft.rfftn(maps, dim=tuple(range(2, maps.ndim)))


def _spectra(
    frame: Frame, x: Tensor, y: Tensor, x_mean: Tensor, y_mean: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the sums of Y* Y^T and of Y* X^T over pairs, both with shape (*modes, C, C)."""
    power: Tensor | float = 0.0
    product: Tensor | float = 0.0
    for some_x, some_y in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        wanted = _transform(frame.maps(some_x).double() - x_mean)
        seen = _transform(frame.maps(some_y).double() - y_mean)
        power = power + torch.einsum("bi...,bj...->...ij", seen.conj(), seen)
        product = product + torch.einsum("bi...,bj...->...ij", seen.conj(), wanted)
    assert isinstance(power, Tensor)
    assert isinstance(product, Tensor)
    return power, product
