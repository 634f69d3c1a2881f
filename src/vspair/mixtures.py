"""Mixtures of codes: which *mode* holds decides over all factors at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from vspair.codes import LOG_FLOOR, Code, Normal, SpikeSlab

__all__ = ["Mixture", "gated"]


@dataclass(frozen=True)
class Mixture(Code):
    r"""Several spike-and-slab codes, one of which holds: :math:`\sum_k \pi_k\, p_k(z)`.

    Arguments:
        modes: The codes, with parameters of shape (B, m, l).
        log_weights: The logarithms of their probabilities, with shape (B, m).

    Example:
        >>> zero, on = torch.zeros(1, 2, 1), torch.ones(1, 2, 1)
        >>> modes = SpikeSlab.of(torch.tensor([[[-1.0], [1.0]]]), zero, on)
        >>> code = Mixture(modes, torch.tensor([[0.25, 0.75]]).log())
        >>> code.mean, code.variance
        (tensor([[0.5000]]), tensor([[1.7500]]))
    """

    modes: SpikeSlab
    log_weights: Tensor

    def _average(self, values: Tensor) -> Tensor:
        """Return the mean over modes of values (B, m, l), with shape (B, l)."""
        return (self.log_weights.exp().unsqueeze(-1) * values).sum(-2)

    @property
    def mean(self) -> Tensor:  # noqa: D102
        return self._average(self.modes.mean)

    @property
    def variance(self) -> Tensor:
        """The variance inside modes and that of their means, with shape (B, l)."""
        apart = (self.modes.mean - self.mean.unsqueeze(-2)).square()
        return self._average(self.modes.variance + apart)

    @property
    def marginal(self) -> SpikeSlab:
        """The factorised code with the same gates, means and variances, factor by factor."""
        omega = self._average(self.modes.omega)
        share = omega.clamp(min=torch.finfo(omega.dtype).tiny)
        mu = self._average(self.modes.mean) / share
        square = self._average(self.modes.omega * (self.modes.slab.variance + self.modes.mu**2))
        variance = (square / share - mu.square()).clamp(min=math.exp(LOG_FLOOR))
        return SpikeSlab.of(mu, variance.log(), omega, self.modes.temperature)

    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`SpikeSlab.counts` does, on average over modes, with shape (B,)."""
        weights = self.log_weights.exp()
        active, present, hedged = ((weights * count).sum(1) for count in self.modes.counts())
        return active, present, hedged

    def choose(self, generator: Generator | None = None) -> SpikeSlab:
        """Return one mode for each observation, by chance, with parameters of shape (B, l)."""
        which = torch.multinomial(self.log_weights.exp(), 1, generator=generator)
        place = which.unsqueeze(-1).expand(-1, 1, self.modes.mu.shape[-1])
        return self.modes._map(lambda t: t.gather(1, place).squeeze(1))

    def rsample(self, generator: Generator | None = None) -> Tensor:
        """Draw one sample, with shape (B, l); no gradient flows to the choice of the mode."""
        return self.choose(generator).rsample(generator)

    def kl_from(self, code: SpikeSlab) -> Tensor:
        r"""Return a bound on KL(code || self), with shape (B,).

        .. math:: -\log \sum_k \pi_k \exp(-\mathrm{KL}(q \,\|\, p_k)) \ge
                  \mathrm{KL}(q \,\|\, \textstyle\sum_k \pi_k p_k)

        It is the divergence itself where there is one mode.

        Arguments:
            code: The code q, with parameters of shape (B, l).
        """
        each = code._map(lambda t: t.unsqueeze(1)).kl(self.modes).sum(-1)
        return -torch.logsumexp(self.log_weights - each, dim=1)

    def fit_to(self, code: SpikeSlab) -> Tensor:
        """Return :meth:`SpikeSlab.fit_to` of the modes, joined as in :meth:`kl_from`, (B,)."""
        each = self.modes.fit_to(code._map(lambda t: t.unsqueeze(1))).sum(-1)
        return -torch.logsumexp(self.log_weights - each, dim=1)

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(self.modes._map(f), f(self.log_weights))


def gated(code: Code) -> SpikeSlab:
    """Return a code as one with gates, factor by factor: those of a dense code never close."""
    if isinstance(code, SpikeSlab):
        return code
    if isinstance(code, Mixture):
        return code.marginal
    never = torch.full_like(code.mean, -math.inf)
    logvar = code.logvar if isinstance(code, Normal) else never
    return SpikeSlab(code.mean, logvar, torch.zeros_like(never), never)
