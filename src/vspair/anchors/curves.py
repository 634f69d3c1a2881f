r"""Ridge regression on random waves of y: a smooth relation, in closed form.

.. math:: x \approx W \Bigl( y / s, \; b \sqrt{2 / D} \cos(\omega_1^\top y + \varphi_1), \dots,
          b \sqrt{2 / D} \cos(\omega_D^\top y + \varphi_D) \Bigr)

with s the root of the summed variances of y. The waves have random directions, of a length that
the width b sets, so that penalised least squares on them are those of a Gaussian kernel, about; y
itself stands beside them (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines",
NeurIPS 2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn

from vspair.anchors.ridge import RidgePath

__all__ = ["WAVES", "WIDTHS", "CurvePath"]

WAVES = 1024
"""How many waves there are."""

WIDTHS = (1.0, 4.0)
"""The widths that are tried, in units of the distance of two observations, about."""


class CurvePath(nn.Module):
    """Smooth answers to y for several penalties; its numbers are saved with the model.

    Arguments:
        inputs: The number m of entries of an observation.
        outputs: The number n of entries of an unknown.
        rank: The number r of directions of the ridge regression.
        penalties: The number P of penalties.
    """

    waves: Tensor
    phases: Tensor
    width: Tensor
    size: Tensor

    def __init__(self, inputs: int, outputs: int, rank: int, penalties: int) -> None:
        super().__init__()
        self.register_buffer("waves", torch.zeros(inputs, WAVES))
        self.register_buffer("phases", torch.zeros(WAVES))
        self.register_buffer("width", torch.ones(()))
        self.register_buffer("size", torch.ones(()))
        self.path = RidgePath(inputs + WAVES, outputs, rank, penalties)

    @classmethod
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        penalties: Sequence[float] | None = None,
        *,
        width: float,
        exact: bool | None = None,
    ) -> CurvePath:
        """Return the path for pairs.

        Arguments:
            x: Unknowns, with shape (N, n).
            y: Observations, with shape (N, m).
            penalties: The penalties; chosen by the observations where not given.
            width: The width b of the kernel.
            exact: As of :meth:`RidgePath.fit`.
        """
        found = cls(y.shape[1], x.shape[1], 1, 1)
        chance = Generator().manual_seed(0)
        directions = torch.randn(y.shape[1], WAVES, generator=chance)
        found.size.copy_(y.std(0).norm().clamp(min=1e-12))
        found.waves.copy_(directions / (width * math.sqrt(2) * found.size))
        found.phases.copy_(2 * math.pi * torch.rand(WAVES, generator=chance))
        found.width.fill_(width)
        found.path = RidgePath.fit(x, found.lift(y), penalties, exact=exact)
        return found

    @property
    def penalties(self) -> Tensor:
        """The penalties, with shape (P,)."""
        return self.path.penalties

    @property
    def values(self) -> Tensor:
        """The squared singular values, with shape (r,)."""
        return self.path.values

    def lift(self, y: Tensor) -> Tensor:
        """Return observations (B, m) and their waves, side by side, with shape (B, m + D)."""
        waves = torch.cos(y @ self.waves + self.phases)
        return torch.cat((y / self.size, self.width * math.sqrt(2 / WAVES) * waves), 1)

    def forward(self, y: Tensor) -> Tensor:
        """Return the answers to observations (B, m) for each penalty, with shape (B, P, n)."""
        answers: Tensor = self.path(self.lift(y))
        return answers

    def keep(self, steps: Sequence[int]) -> None:
        """Forget all penalties but those of some steps."""
        self.path.keep(steps)
