r"""The Gaussian linear model of section 4.1, whose posterior is known in closed form.

.. math:: y = A x + \varepsilon, \quad x \sim \mathcal{N}(0, I_2), \quad
    \varepsilon \sim \mathcal{N}(0, 0.1\, I_4), \quad A_{ij} \sim \mathcal{N}(0, 1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

__all__ = ["GaussianProblem"]


@dataclass(frozen=True)
class GaussianProblem:
    """A linear operator with Gaussian prior and noise, in float64.

    Arguments:
        operator: The matrix A, with shape (m, n).
        noise: The variance of the noise.
    """

    operator: Tensor
    noise: float = 0.1

    @classmethod
    def random(cls, seed: int, m: int = 4, n: int = 2, noise: float = 0.1) -> Self:
        """Draw the entries of A from a standard normal distribution."""
        generator = Generator().manual_seed(seed)
        return cls(torch.randn(m, n, generator=generator, dtype=torch.float64), noise)

    @property
    def gain(self) -> Tensor:
        """The matrix that takes y to the posterior mean, with shape (n, m)."""
        a = self.operator
        joint = a @ a.T + self.noise * torch.eye(len(a), dtype=a.dtype)
        return torch.linalg.solve(joint, a).T

    @property
    def covariance(self) -> Tensor:
        """The posterior covariance, the same for every y, with shape (n, n)."""
        n = self.operator.shape[1]
        return torch.eye(n, dtype=self.operator.dtype) - self.gain @ self.operator

    def posterior_mean(self, y: Tensor) -> Tensor:
        """Return the posterior mean for observations (B, m), with shape (B, n)."""
        return y.to(self.gain) @ self.gain.T

    def observe(self, n: int, generator: Generator) -> Tensor:
        """Draw observations from their marginal distribution, with shape (n, m)."""
        a = self.operator
        x = torch.randn(n, a.shape[1], generator=generator, dtype=a.dtype)
        e = torch.randn(n, a.shape[0], generator=generator, dtype=a.dtype)
        return x @ a.T + self.noise**0.5 * e

    def sample_posterior(self, y: Tensor, n: int, generator: Generator) -> Tensor:
        """Draw n unknowns for each observation (B, m), with shape (n, B, dim x)."""
        mean = self.posterior_mean(y)
        root = torch.linalg.cholesky(self.covariance)
        unit = torch.randn(n, *mean.shape, generator=generator, dtype=mean.dtype)
        return mean + unit @ root.T

    def pairs(self, observations: int, each: int, seed: int) -> tuple[Tensor, Tensor]:
        """Draw observations and ``each`` posterior unknowns for every one (section 4.1).

        Returns:
            x of shape (observations * each, n) and y of shape (observations * each, m), float32.
        """
        generator = Generator().manual_seed(seed)
        y = self.observe(observations, generator)
        x = self.sample_posterior(y, each, generator)
        return x.flatten(0, 1).float(), y.repeat(each, 1).float()
