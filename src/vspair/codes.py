r"""Codes: the distributions over latent vectors that encoders and latent maps return.

A code is a distribution over :math:`z \in \mathbb{R}^\ell`, held as a frozen dataclass of
parameter tensors with shape :math:`(*, \ell)`. Three families are factorised:

- :class:`Point`, a deterministic vector;
- :class:`Normal`, :math:`\mathcal{N}(\mu, \sigma^2)`;
- :class:`SpikeSlab`, :math:`\omega\,\mathcal{N}(\mu, \sigma^2) + (1 - \omega)\,\delta_0`,
  whose samples hold exact zeros.

A :class:`~vspair.mixtures.Mixture` of spike-and-slab codes is the one that does not factorise.

The gate probability of a spike-and-slab is stored as the pair :math:`\log\omega` and
:math:`\log(1 - \omega)`, because a probability that rounds to 0 or 1 has lost the gradient
that could bring it back; both logarithms stay finite (see :data:`LOG_FLOOR`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

__all__ = [
    "Code", "Factorised", "Family", "FamilyName", "GateName", "Normal", "Point", "SpikeSlab",
]  # fmt: skip

FamilyName = Literal["point", "normal", "spikeslab"]
GateName = Literal["sigmoid", "exponential"]

LOG_FLOOR = -30.0
"""Smallest log-probability of a gate that is given as a probability (about 1e-13)."""


def _randn_like(t: Tensor, generator: Generator | None) -> Tensor:
    return torch.randn(t.shape, dtype=t.dtype, device=t.device, generator=generator)


def _gaussian_kl(mu: Tensor, logvar: Tensor, mu_p: Tensor, logvar_p: Tensor) -> Tensor:
    """Return KL(N(mu, var) || N(mu_p, var_p)) element by element, with shape (*, l)."""
    ratio = logvar - logvar_p
    scaled = (mu - mu_p) * (-0.5 * logvar_p).exp()
    return 0.5 * (ratio.exp() + scaled.square() - 1 - ratio)


class Code(ABC):
    """A distribution over latent vectors, with moments of shape (*, l)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean, with shape (*, l)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance, with shape (*, l)."""

    @abstractmethod
    def rsample(self, generator: Generator | None = None) -> Tensor:
        """Draw one sample through which gradients flow, with shape (*, l)."""

    def _map(self, f: Callable[[Tensor], Tensor]) -> Self:
        """Return the code whose every parameter is f of this one's."""
        given = {v.name: getattr(self, v.name) for v in fields(self) if v.init}  # type: ignore[arg-type]
        return type(self)(**{k: f(v) if isinstance(v, Tensor) else v for k, v in given.items()})

    def detach(self) -> Self:
        """Return the same code cut from the graph."""
        return self._map(torch.Tensor.detach)

    def __getitem__(self, index: Any) -> Self:
        """Return the code of a part of the batch."""
        return self._map(lambda t: t[index])


class Factorised(Code):
    """A code whose latents are independent, with parameters of shape (*, l)."""

    heads: ClassVar[int]
    """How many numbers a network has to predict for each latent dimension."""

    @property
    @abstractmethod
    def features(self) -> Tensor:
        """The parameters side by side, as a latent map reads them, with shape (*, heads * l)."""

    @abstractmethod
    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-density of z, dimension by dimension, with shape (*, l)."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Return KL(self || other), dimension by dimension, with shape (*, l)."""


@dataclass(frozen=True)
class Point(Factorised):
    """A deterministic code: all mass at z.

    Arguments:
        z: The location, with shape (*, l).
    """

    z: Tensor
    heads: ClassVar[int] = 1

    @property
    def mean(self) -> Tensor:  # noqa: D102
        return self.z

    @property
    def variance(self) -> Tensor:  # noqa: D102
        return torch.zeros_like(self.z)

    @property
    def features(self) -> Tensor:  # noqa: D102
        return self.z

    def rsample(self, generator: Generator | None = None) -> Tensor:  # noqa: D102
        return self.z

    def log_prob(self, z: Tensor) -> Tensor:
        """Return 0 where z is the point and minus infinity elsewhere (counting measure)."""
        return torch.where(z == self.z, torch.zeros_like(z), -math.inf)

    def kl(self, other: Point) -> Tensor:
        """Return half the squared distance: the KL of two unit normals at the points.

        The KL of two different points is infinite; this is its unit-width stand-in.
        """
        return 0.5 * (self.z - other.z).square()


@dataclass(frozen=True)
class Normal(Factorised):
    r"""A diagonal normal code :math:`\mathcal{N}(\mu, \sigma^2)`.

    Arguments:
        mu: The mean, with shape (*, l).
        logvar: The logarithm of the variance, with shape (*, l).
    """

    mu: Tensor
    logvar: Tensor
    heads: ClassVar[int] = 2

    @property
    def mean(self) -> Tensor:  # noqa: D102
        return self.mu

    @property
    def variance(self) -> Tensor:  # noqa: D102
        return self.logvar.exp()

    @property
    def features(self) -> Tensor:  # noqa: D102
        return torch.cat((self.mu, self.logvar), dim=-1)

    def rsample(self, generator: Generator | None = None) -> Tensor:  # noqa: D102
        return self.mu + (0.5 * self.logvar).exp() * _randn_like(self.mu, generator)

    def log_prob(self, z: Tensor) -> Tensor:  # noqa: D102
        scaled = (z - self.mu) * (-0.5 * self.logvar).exp()
        return -0.5 * (scaled.square() + self.logvar + math.log(2 * math.pi))

    def kl(self, other: Normal) -> Tensor:  # noqa: D102
        return _gaussian_kl(self.mu, self.logvar, other.mu, other.logvar)

    def kl_standard(self) -> Tensor:
        r"""Return KL to :math:`\mathcal{N}(0, 1)`, eq. (5), with shape (*, l)."""
        return 0.5 * (self.logvar.exp() + self.mu.square() - 1 - self.logvar)


@dataclass(frozen=True)
class SpikeSlab(Factorised):
    r"""A spike-and-slab code :math:`\omega\,\mathcal{N}(\mu, \sigma^2) + (1-\omega)\,\delta_0`.

    Arguments:
        mu: The slab's mean, with shape (*, l).
        logvar: The logarithm of the slab's variance, with shape (*, l).
        log_on: The log-probability that the factor is present, with shape (*, l).
        log_off: The log-probability that it is absent, with shape (*, l).
        temperature: The steepness c of the gate's relaxation (appendix A).

    Attributes:
        omega: The probability that each factor is present, with shape (*, l).

    Example:
        >>> code = SpikeSlab.of(torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor([1.0, 0.5]))
        >>> code.mean
        tensor([1., 1.])
    """

    mu: Tensor
    logvar: Tensor
    log_on: Tensor
    log_off: Tensor
    temperature: float = 50.0
    omega: Tensor = field(init=False, repr=False)
    heads: ClassVar[int] = 3

    def __post_init__(self) -> None:
        # Used by every method, so computed once, and with the code itself: a value that was
        # first asked for without gradients must not cut the graph.
        object.__setattr__(self, "omega", self.log_on.exp())

    @classmethod
    def of(cls, mu: Tensor, logvar: Tensor, omega: Tensor, temperature: float = 50.0) -> Self:
        """Create the code from gate probabilities omega in [0, 1], both ends included."""
        tiny = math.exp(LOG_FLOOR)
        log_on = omega.clamp(min=tiny).log()
        log_off = (1 - omega).clamp(min=tiny).log()
        return cls(mu, logvar, log_on, log_off, temperature)

    @property
    def absent(self) -> Tensor:
        """The probability that each factor is absent, 1 - omega, with shape (*, l)."""
        return self.log_off.exp()

    @property
    def mean(self) -> Tensor:  # noqa: D102
        return self.omega * self.mu

    @property
    def variance(self) -> Tensor:
        """Parametric plus structural variance, with shape (*, l)."""
        return self.parametric_variance + self.structural_variance

    @property
    def parametric_variance(self) -> Tensor:
        """The part from how strong a factor is, omega sigma^2, with shape (*, l)."""
        return (self.log_on + self.logvar).exp()

    @property
    def structural_variance(self) -> Tensor:
        """The part from whether it is present, omega (1 - omega) mu^2, with shape (*, l)."""
        return self.omega * self.absent * self.mu.square()

    @property
    def features(self) -> Tensor:  # noqa: D102
        return torch.cat((self.mu, self.logvar, self.omega), dim=-1)

    @property
    def slab(self) -> Normal:
        """The code given that every factor is present."""
        return Normal(self.mu, self.logvar)

    def rsample(self, generator: Generator | None = None) -> Tensor:
        """Draw one sample with exact zeros forward and relaxed gates backward (appendix A)."""
        omega = self.omega
        eta = torch.rand(omega.shape, dtype=omega.dtype, device=omega.device, generator=generator)
        threshold = eta - 1 + omega
        soft = torch.sigmoid(self.temperature * threshold)
        hard = (threshold >= 0).to(soft.dtype)
        gate = hard + (soft - soft.detach())
        return gate * self.slab.rsample(generator)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log-density against Lebesgue measure plus a unit mass at zero."""
        return torch.where(z == 0, self.log_off, self.log_on + self.slab.log_prob(z))

    def kl(self, other: SpikeSlab) -> Tensor:  # noqa: D102
        slab = self.omega * self.slab.kl(other.slab)
        return slab + self._gate_kl(other.log_on, other.log_off)

    def _gate_kl(self, log_on: Tensor, log_off: Tensor) -> Tensor:
        present = self.omega * (self.log_on - log_on)
        return present + self.absent * (self.log_off - log_off)

    def fit_to(self, code: SpikeSlab) -> Tensor:
        r"""Return what is least where samples of this code have the moments of another's, (*, l).

        The KL of gates, which may be held back from saying how often a factor is present, and

        .. math:: \frac{\omega}{2} \log \sigma^2 +
                  \frac{\mathrm{E}_q[z^2] - 2 \mu \mathrm{E}_q[z] + \omega \mu^2}{2 \sigma^2}

        where the factor is rather present than absent. Its least over mu and sigma has
        :math:`\omega \mu = \mathrm{E}_q[z]` and
        :math:`\omega (\mu^2 + \sigma^2) = \mathrm{E}_q[z^2]` where a slab can have these moments.
        It cannot where q has the factor more often than omega says and hardly varies; there the
        fraction's numerator is at least the parametric variance of q. The KL of slabs would have
        the moments of q where q has the factor, and too much variance where omega is larger than
        that of q. Elsewhere it is that KL, so that factors know what they will be.

        Arguments:
            code: The code q, a constant.
        """
        mean, square = code.mean, code.omega * (code.slab.variance + code.mu.square())
        on, precision = self.omega.detach(), (-self.logvar).exp()
        apart = square - 2 * self.mu * mean + on * self.mu.square()
        apart = torch.maximum(apart, code.parametric_variance)
        moments = 0.5 * (on * self.logvar + apart * precision)
        slab = torch.where(on > 0.5, moments, code.omega * code.slab.kl(self.slab))
        return slab + code._gate_kl(self.log_on, self.log_off)

    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return three numbers of factors, each of shape (*,).

        Those with omega > 1/2; those expected, the sum of omega; and the part of the sum that
        comes from gates between 0.05 and 0.5.
        """
        hedging = (self.omega > 0.05) & (self.omega < 0.5)
        active = (self.omega > 0.5).to(self.omega.dtype).sum(-1)
        return active, self.omega.sum(-1), (self.omega * hedging).sum(-1)

    def kl_slab(self) -> Tensor:
        r"""Return the slab's part of the KL to the prior, eq. (9), with shape (*, l)."""
        # Not omega * slab.kl_standard(): a variance that overflows times 0 is not a number.
        rest = self.omega * (self.mu.square() - 1 - self.logvar)
        return 0.5 * (self.parametric_variance + rest)

    def kl_gate(self, rho_logit: Tensor) -> Tensor:
        r"""Return the gate's part of the KL to a prior that is on with probability rho, eq. (9).

        Arguments:
            rho_logit: The log-odds of rho, a scalar.
        """
        return self._gate_kl(F.logsigmoid(rho_logit), F.logsigmoid(-rho_logit))

    def kl_prior(self, rho: float | Tensor) -> Tensor:
        """Return the KL to the spike-and-slab prior of weight rho, eq. (9), with shape (*, l)."""
        rho = torch.as_tensor(rho, dtype=self.mu.dtype, device=self.mu.device)
        logit = torch.logit(rho, eps=1e-7)
        return self.kl_slab() + self.kl_gate(logit)


_FAMILIES: dict[FamilyName, type[Factorised]] = {
    "point": Point,
    "normal": Normal,
    "spikeslab": SpikeSlab,
}


@dataclass(frozen=True)
class Family:
    """Reads a code from the numbers that a network predicts.

    Arguments:
        name: Which family of codes.
        size: The number of latent dimensions l.
        gate: How a number g becomes a gate probability: ``sigmoid``, or the paper's
            ``exponential``, exp(-relu(-g)), whose gradient is zero once g is positive.
        temperature: The steepness c of the gate's relaxation.
        logvar_range: The bounds that log-variances are clamped to.
    """

    name: FamilyName
    size: int
    gate: GateName = "sigmoid"
    temperature: float = 50.0
    logvar_range: tuple[float, float] = (-30.0, 20.0)

    @property
    def heads(self) -> int:
        """How many numbers are needed for each latent dimension."""
        return _FAMILIES[self.name].heads

    @property
    def width(self) -> int:
        """How many numbers are needed in all: heads * l."""
        return self.heads * self.size

    def read(self, h: Tensor) -> Factorised:
        """Return the code that network outputs of shape (*, heads * l) stand for.

        Half-precision outputs are read as float32: gates and divergences need it.
        """
        h = h.float() if h.dtype in (torch.bfloat16, torch.float16) else h
        if self.name == "point":
            return Point(h)
        parts = h.chunk(self.heads, dim=-1)
        logvar = F.hardtanh(parts[1], *self.logvar_range)  # a clamp with a cheaper gradient
        if self.name == "normal":
            return Normal(parts[0], logvar)
        return SpikeSlab(parts[0], logvar, *self._gate(parts[2]), temperature=self.temperature)

    def _gate(self, g: Tensor) -> tuple[Tensor, Tensor]:
        if self.gate == "sigmoid":
            return F.logsigmoid(g), F.logsigmoid(-g)
        log_on = g.clamp(max=0)
        log_off = (-torch.expm1(log_on)).clamp(min=math.exp(LOG_FLOOR)).log()
        return log_on, log_off
