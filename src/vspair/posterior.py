"""The posterior: what a method believes of x, given an observation y.

Every method answers with a :class:`Posterior`, whatever it is: :class:`LatentPosterior` decodes
samples of a code, :class:`SamplePosterior` holds samples that were made elsewhere,
:class:`NormalPosterior` is an estimate with independent Gaussian noise, and
:class:`PointPosterior` is one estimate, which has no spread.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Generator, Tensor

from vspair.codes import Code, Normal, Point, SpikeSlab, gated
from vspair.errors import VspairError
from vspair.factors import Factors, Split, leading_factors, split_variance
from vspair.metrics import central_interval, check_level
from vspair.networks import evaluating

if TYPE_CHECKING:
    from vspair.model import InverseModel

__all__ = [
    "LatentPosterior",
    "Method",
    "NormalPosterior",
    "PointPosterior",
    "Posterior",
    "SamplePosterior",
]

_BLOCK = 64 * 2**20
"""The most numbers that :meth:`LatentPosterior.interval` holds at once (256 MiB of float32)."""


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
        _at_least_one(n)
        return self._squeeze(torch.cat(list(self._sampled(n, generator))), dim=1)

    def moments(self, n: int = 100, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation over n samples, each of shape (B, *x_shape).

        Runs in memory that does not grow with n (Chan's update of Welford's sums).
        """
        self._expect_spread()
        return self._moments(n, generator)

    def _moments(self, n: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        _at_least_one(n)
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
        _at_least_one(n)
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


class LatentPosterior(Posterior):
    """Samples of a code, decoded.

    They are sampled one after another from the generator and decoded ``chunk`` images at a time,
    so results do not depend on ``chunk``, and mean and deviation take the same memory for ten
    samples as for a million.

    Arguments:
        model: The model that decodes.
        code: The x code of each observation, with shape (B, l).
        noise: Whether samples include the decoder's noise.
        answer: The answer that what is decoded is added to, with shape (B, *x_shape), about which
            samples spread; none for models that decode the whole unknown.
        noise_std: The deviation of the noise in the data's units, with shape (B, *x_shape); the
            model's where not given.
        single: Whether to leave out the batch dimension.
        chunk: How many images are decoded at once.
    """

    def __init__(
        self,
        model: InverseModel,
        code: Code,
        *,
        noise: bool = False,
        answer: Tensor | None = None,
        noise_std: Tensor | None = None,
        single: bool = False,
        chunk: int = 256,
    ) -> None:
        super().__init__(model.x_shape, code.mean.device, single=single)
        self.model, self.code, self.noise, self.chunk = model, code, noise, chunk
        self.has_spread = noise or not isinstance(code, Point)
        self.most_samples = None if self.has_spread else 1
        self.answer, self._noise_std = answer, noise_std
        # Factors are told apart from the answer, which has their mean in it already.
        self._offset = None if answer is None else answer - self._decode(code.mean)

    def with_noise(self, noise: bool = True) -> LatentPosterior:
        """Return the same posterior with samples that include the decoder's noise, or not."""
        how: dict[str, Any] = {"answer": self.answer, "noise_std": self._noise_std}
        how |= {"single": self._single, "chunk": self.chunk}
        return LatentPosterior(self.model, self.code, noise=noise, **how)

    @property
    def noise_std(self) -> Tensor:
        """The deviation of the decoder's noise in the data's units, (B, *x_shape) or x_shape."""
        if self._noise_std is not None:
            return self._noise_std
        return self.model.noise_std * self.model.x_normaliser.std

    @property
    def gates(self) -> SpikeSlab | None:
        """The code's gates and strengths, factor by factor; none where it has no gates."""
        return None if isinstance(self.code, Point | Normal) else gated(self.code)

    def __len__(self) -> int:
        return len(self.code.mean)

    def __repr__(self) -> str:
        kind = type(self.code).__name__
        return f"Posterior({len(self)} observations, {kind} code of {self.code.mean.shape[-1]})"

    @torch.no_grad()
    def _decode(self, z: Tensor) -> Tensor:
        """Return what is decoded of latents (..., l), with shape (..., *x_shape)."""
        flat = z.reshape(-1, z.shape[-1])
        with evaluating(self.model):
            parts = [self.model.x_decoder(part) for part in flat.split(self.chunk)]
        x = self.model.x_normaliser.inverse(torch.cat(parts))
        return x.reshape(*z.shape[:-1], *self.model.x_shape)

    def decode(self, z: Tensor) -> Tensor:
        """Return latents (B, ..., l) of the observations as unknowns (B, ..., *x_shape)."""
        x = self._decode(z)
        if self._offset is None:
            return x
        return x + self._offset.reshape(len(self), *[1] * (z.ndim - 2), *self.x_shape)

    def _sampled(
        self, n: int, generator: Generator | None, rows: slice = slice(None)
    ) -> Iterator[Tensor]:
        """Yield decoded samples of shape (m, B, *x_shape), at most ``chunk`` images each.

        Whatever the chunk and the rows, noise is sampled for the whole batch.
        """
        step = max(1, self.chunk // len(range(len(self))[rows]))
        for start in range(0, n, step):
            count = min(step, n - start)
            sampled = [self._sample_latent(generator, rows) for _ in range(count)]
            x = self._decode(torch.stack([z for z, _ in sampled]))
            if self._offset is not None:
                x += self._offset[rows]
            for image, (_, noise) in zip(x, sampled, strict=True):
                if noise is not None:
                    image += noise
            yield x

    def _sample_latent(
        self, generator: Generator | None, rows: slice
    ) -> tuple[Tensor, Tensor | None]:
        """Return one latent sample, and its noise in the data's units where asked for."""
        z = self.code.rsample(generator)
        if not self.noise:
            return z[rows], None
        shape = (len(z), *self.model.x_shape)
        unit = torch.randn(shape, dtype=z.dtype, device=z.device, generator=generator)
        if self._noise_std is not None:
            return z[rows], (unit * self._noise_std)[rows]
        return z[rows], unit[rows] * self.model.noise_std * self.model.x_normaliser.std

    def interval(
        self, level: float = 0.9, n: int = 200, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of n samples, each of shape (B, *x_shape).

        Where all samples together would not fit the memory that is set aside, observations and
        then pixels are treated in blocks, and the latent samples are decoded again for each.
        """
        check_level(level)
        _at_least_one(n)
        self._expect_spread()
        seed = int(torch.randint(2**62, (), generator=_on_cpu(generator)))
        rows = max(1, _BLOCK // (n * math.prod(self.model.x_shape)))
        ends = [
            self._interval(slice(i, i + rows), level, n, seed) for i in range(0, len(self), rows)
        ]
        low, high = torch.cat(ends, dim=1)
        return self._squeeze(low), self._squeeze(high)

    def _interval(self, rows: slice, level: float, n: int, seed: int) -> Tensor:
        """Return both ends, of shape (2, B, *x_shape), block of pixels by block of pixels."""
        pixels, size = math.prod(self.model.x_shape), len(range(len(self))[rows])
        block = max(1, _BLOCK // (n * size))
        parts = []
        for start in range(0, pixels, block):
            again = torch.Generator(self.code.mean.device).manual_seed(seed)
            images = self._sampled(n, again, rows)
            # Clones: a view would keep the whole of every decoded image alive.
            kept = [x.flatten(2)[:, :, start : start + block].clone() for x in images]
            parts.append(torch.stack(central_interval(torch.cat(kept), level)))
        return torch.cat(parts, dim=-1).reshape(2, size, *self.model.x_shape)

    def mean(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the mean over n samples, with shape (B, *x_shape).

        Where there is an answer that samples spread about, that is returned: it was trained to be
        the mean, and has no error of sampling.
        """
        if self.answer is None:
            return super().mean(n, generator)
        return self._squeeze(self.answer.clone())

    def approximate_mean(self) -> Tensor:
        """Return the decoded mean code, d(omega * mu), with shape (B, *x_shape)."""
        return self._squeeze(self.decode(self.code.mean))

    def factors(  # noqa: D102
        self,
        k: int,
        *,
        region: Tensor | None = None,
        among: Tensor | None = None,
        shared: bool = False,
    ) -> Factors:
        decoder, std = self.model.x_decoder, self.model.x_normaliser.std
        found = leading_factors(
            self.code, decoder, std, k, region=region, among=among, shared=shared
        )
        return found[0] if self._single else found

    def split(self, n: int = 200, generator: Generator | None = None) -> Split:  # noqa: D102
        self._expect_spread()
        decoder, std = self.model.x_decoder, self.model.x_normaliser.std
        noise = self.noise_std if self.noise else None
        found = split_variance(
            self.code, decoder, std, n, noise_std=noise, chunk=self.chunk, generator=generator
        )
        return found[0] if self._single else found

    def active(self, threshold: float = 0.5) -> Tensor:
        """Return which factors are more likely present than ``threshold``, with shape (B, l)."""
        gates = self.gates
        if gates is None:
            return self._squeeze(torch.ones_like(self.code.mean, dtype=torch.bool))
        return self._squeeze(gates.omega > threshold)

    def parameters(self) -> dict[str, Tensor]:
        """Return the code's parameters by name, each of shape (B, l)."""
        gates = self.gates
        if gates is None:
            named = {"mu": self.code.mean, "sigma": self.code.variance.sqrt()}
        else:
            sigma = gates.slab.variance.sqrt()
            named = {"mu": gates.mu, "sigma": sigma, "omega": gates.omega}
        return {name: self._squeeze(t) for name, t in named.items()}


def _at_least_one(n: int) -> None:
    if n < 1:
        raise VspairError(f"n = {n}: expected at least one sample.")


def _on_cpu(generator: Generator | None) -> Generator | None:
    """Return a generator on the CPU, seeded by one of any device."""
    if generator is None or generator.device.type == "cpu":
        return generator
    seed = torch.randint(2**62, (), device=generator.device, generator=generator)
    return torch.Generator().manual_seed(int(seed))
