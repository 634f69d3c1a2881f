"""What every posterior answers, and those that are estimates, samples or normals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Protocol

import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.factors import Factors, Split
from vspair.metrics import central_interval, check_level

__all__ = [
    "Method",
    "NormalPosterior",
    "PointPosterior",
    "Posterior",
    "SamplePosterior",
    "at_least_one",
]


def at_least_one(n: int) -> None:
    """Refuse to sample nothing."""
    if n < 1:
        raise VspairError(f"n = {n}: expected at least one sample.")


class Method(Protocol):
    """Anything that inverts: a trained model, or one of :mod:`vspair.methods`."""

    def posterior(self, y: Tensor) -> Posterior:
        """Return what the method believes of x, given observations of shape (B, *y_shape)."""
        ...


class Posterior(ABC):
    """A distribution over x for each observation of a batch, in the data's own units.

    Arguments:
        x_shape: The shape of one unknown.
        device: Where samples are; generators must be there too.
        single: Whether to leave out the batch dimension.
    """

    has_spread = True
    """Whether samples differ. Without spread there is no deviation and no interval."""

    most_samples: int | None = None
    """The most different samples that there are of each observation, where that is limited."""

    def __init__(
        self, x_shape: tuple[int, ...], device: torch.device, *, single: bool = False
    ) -> None:
        self.x_shape, self.device, self._single = x_shape, device, single

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of observations."""

    @abstractmethod
    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        """Yield n samples in parts of shape (m, B, *x_shape)."""

    def _squeeze(self, t: Tensor, dim: int = 0) -> Tensor:
        return t.squeeze(dim) if self._single else t

    def _expect_spread(self) -> None:
        if not self.has_spread:
            raise VspairError(
                f"{self!r} has no spread: it is one estimate for each observation, without "
                "deviation, interval or factors. Ask for its mean, or use a method that samples."
            )

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Return n sampled unknowns for each observation, with shape (n, B, *x_shape).

        Without spread they are n copies of the estimate.
        """
        at_least_one(n)
        return self._squeeze(torch.cat(list(self._sampled(n, generator))), dim=1)

    def moments(self, n: int = 100, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation over n samples, each of shape (B, *x_shape).

        Runs in memory that does not grow with n (Chan's update of Welford's sums).
        """
        self._expect_spread()
        return self._moments(n, generator)

    def _moments(self, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        at_least_one(n)
        count, mean, square = 0, torch.zeros(()), torch.zeros(())
        for x in self._sampled(n, generator):
            dtype, x = x.dtype, x.double()
            m, part = len(x), x.mean(0)
            delta = part - mean
            square = (
                square + (x - part).square().sum(0) + delta.square() * (count * m / (count + m))
            )
            mean = mean + delta * (m / (count + m))
            count += m
        std = (square / max(count - 1, 1)).sqrt()
        return self._squeeze(mean.to(dtype)), self._squeeze(std.to(dtype))

    def mean(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the mean over n samples, with shape (B, *x_shape)."""
        return self._moments(n, generator)[0]

    def std(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the standard deviation over n samples, with shape (B, *x_shape)."""
        return self.moments(n, generator)[1]

    def interval(
        self, level: float = 0.9, n: int = 200, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of n samples, each of shape (B, *x_shape)."""
        check_level(level)
        at_least_one(n)
        self._expect_spread()
        low, high = central_interval(torch.cat(list(self._sampled(n, generator))), level)
        return self._squeeze(low), self._squeeze(high)

    def factors(
        self,
        k: int,
        *,
        region: Tensor | None = None,
        among: Tensor | None = None,
        shared: bool = False,
    ) -> Factors:
        """Return the k factors that carry most variance, each with the image that it moves.

        Decoder noise has no factor and no part in the shares. It takes the longer the more
        factors there are; ``among=post.active(0.01)`` leaves out those that are hardly ever
        present.

        Arguments:
            k: How many factors.
            region: The entries of x that count, a mask of shape x_shape or (B, *x_shape).
            among: The factors to choose from, a mask of shape (l,) or (B, l).
            shared: Whether to name the same factors for all observations, by their mean share.
        """
        raise self._without_factors()

    def split(self, n: int = 200, generator: Generator | None = None) -> Split:
        """Return the variance of samples as structural, parametric and decoder-noise parts.

        Exact where the decoder is affine, estimated from n pairs of samples elsewhere, with
        standard errors; the parts always add up to the total.
        """
        raise self._without_factors()

    def _without_factors(self) -> VspairError:
        self._expect_spread()
        return VspairError(
            f"{self!r} has no factors: only the posterior of a model with a code has them, such "
            "as vPAIR or vsPAIR."
        )


class PointPosterior(Posterior):
    """One estimate for each observation: all its probability is there.

    Arguments:
        estimate: The estimates, with shape (B, *x_shape).
        method: What made them, for messages.
        details: More numbers of each observation by name, such as ``converged``, with shape (B,).

    Example:
        >>> post = PointPosterior(torch.zeros(3, 8, 8), "FBP")
        >>> post, post.mean().shape
        (PointPosterior(3 observations of FBP), torch.Size([3, 8, 8]))
    """

    has_spread = False
    most_samples = 1

    def __init__(
        self,
        estimate: Tensor,
        method: str = "a point method",
        details: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(tuple(estimate.shape[1:]), estimate.device)
        self.estimate, self.method, self.details = estimate, method, dict(details or {})

    def __len__(self) -> int:
        return len(self.estimate)

    def __repr__(self) -> str:
        return f"PointPosterior({len(self)} observations of {self.method})"

    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        yield self.estimate.expand(n, *self.estimate.shape)

    def mean(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the estimates, with shape (B, *x_shape)."""
        return self.estimate


class SamplePosterior(Posterior):
    """Samples that were made elsewhere, by a method that is slow or not ours.

    Arguments:
        samples: The samples, with shape (K, B, *x_shape), K at least 2.
    """

    def __init__(self, samples: Tensor) -> None:
        if samples.ndim < 3 or len(samples) < 2:
            raise VspairError(
                f"samples has shape {tuple(samples.shape)}: expected (K, B, *x_shape), with at "
                "least 2 samples of each observation."
            )
        super().__init__(tuple(samples.shape[2:]), samples.device)
        self.samples, self.most_samples = samples, len(samples)

    def __len__(self) -> int:
        return self.samples.shape[1]

    def __repr__(self) -> str:
        return f"SamplePosterior({len(self)} observations, {len(self.samples)} samples)"

    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        """Yield the first n samples, or all of them where fewer are at hand."""
        yield self.samples[:n]

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Return the first n samples, with shape (n, B, *x_shape)."""
        if n > len(self.samples):
            raise VspairError(f"n = {n}: only {len(self.samples)} samples are at hand.")
        return super().sample(n, generator)


class NormalPosterior(Posterior):
    """A Gaussian for each entry of x, independent of all others.

    Mean, deviation and interval are exact: ``n`` and ``generator`` change nothing in them.

    Arguments:
        mean: The means, with shape (B, *x_shape).
        std: The standard deviations, at least 0, with shape (B, *x_shape) or x_shape.

    Example:
        >>> post = NormalPosterior(torch.zeros(3, 2), torch.ones(2))
        >>> post, post.interval(0.9)[1][0]
        (NormalPosterior(3 observations), tensor([1.6449, 1.6449]))
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        if mean.ndim < 2 or std.shape not in (mean.shape, mean.shape[1:]):
            raise VspairError(
                f"mean has shape {tuple(mean.shape)} and std {tuple(std.shape)}: expected (B, "
                "*x_shape), and the same or x_shape."
            )
        if not bool((std >= 0).all()):
            raise VspairError("std has entries that are negative or not numbers: expected none.")
        super().__init__(tuple(mean.shape[1:]), mean.device)
        self._mean, self._std = mean, std.to(mean).expand_as(mean)

    def __len__(self) -> int:
        return len(self._mean)

    def __repr__(self) -> str:
        return f"NormalPosterior({len(self)} observations)"

    def _sampled(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        like = self._mean
        unit = torch.randn(
            (n, *like.shape), dtype=like.dtype, device=like.device, generator=generator
        )
        yield like + self._std * unit

    def _moments(self, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        return self._mean, self._std

    def interval(
        self, level: float = 0.9, n: int = 200, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval, each of shape (B, *x_shape)."""
        check_level(level)
        reach = NormalDist().inv_cdf((1 + level) / 2) * self._std
        return self._mean - reach, self._mean + reach
