"""The posterior of a model with a code: samples of it, decoded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Generator, Tensor

from vspair.codes import Code, Normal, Point, SpikeSlab
from vspair.factors import Factors, Split, leading_factors, split_variance
from vspair.metrics import central_interval, check_level
from vspair.mixtures import gated
from vspair.networks import evaluating
from vspair.posterior.base import Posterior, at_least_one

if TYPE_CHECKING:
    from vspair.model import InverseModel

__all__ = ["LatentPosterior"]

_BLOCK = 64 * 2**20
"""The most numbers that :meth:`LatentPosterior.interval` holds at once (256 MiB of float32)."""


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
        reach: What is decoded, normalised, is multiplied by it, with shape (B, *x_shape).
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
        reach: Tensor | None = None,
        single: bool = False,
        chunk: int = 256,
    ) -> None:
        super().__init__(model.x_shape, code.mean.device, single=single)
        self.model, self.code, self.noise, self.chunk = model, code, noise, chunk
        self.has_spread = noise or not isinstance(code, Point)
        self.most_samples = None if self.has_spread else 1
        self.answer, self._noise_std, self.reach = answer, noise_std, reach
        # Factors are told apart from the answer, which has their mean in it already.
        self._offset = None if answer is None else answer - self._decode(code.mean, reach)

    def with_noise(self, noise: bool = True) -> LatentPosterior:
        """Return the same posterior with samples that include the decoder's noise, or not."""
        how: dict[str, Any] = {"answer": self.answer, "noise_std": self._noise_std}
        how["reach"] = self.reach
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
    def _decode(self, z: Tensor, reach: Tensor | None) -> Tensor:
        """Return what is decoded of latents (..., l), times a reach, as (..., *x_shape)."""
        flat = z.reshape(-1, z.shape[-1])
        with evaluating(self.model):
            parts = [self.model.x_decoder(part) for part in flat.split(self.chunk)]
        x = torch.cat(parts).reshape(*z.shape[:-1], *self.model.x_shape)
        return self.model.x_normaliser.inverse(x if reach is None else x * reach)

    def decode(self, z: Tensor) -> Tensor:
        """Return latents (B, ..., l) of the observations as unknowns (B, ..., *x_shape)."""
        shape = len(self), *[1] * (z.ndim - 2), *self.x_shape
        x = self._decode(z, None if self.reach is None else self.reach.reshape(shape))
        return x if self._offset is None else x + self._offset.reshape(shape)

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
            reach = None if self.reach is None else self.reach[rows]
            x = self._decode(torch.stack([z for z, _ in sampled]), reach)
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
        at_least_one(n)
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
            self.code, decoder, std, k, region=region, among=among, shared=shared, reach=self.reach
        )
        return found[0] if self._single else found

    def split(self, n: int = 200, generator: Generator | None = None) -> Split:  # noqa: D102
        self._expect_spread()
        decoder, std = self.model.x_decoder, self.model.x_normaliser.std
        how: dict[str, Any] = {"noise_std": self.noise_std if self.noise else None}
        how |= {"reach": self.reach, "chunk": self.chunk, "generator": generator}
        found = split_variance(self.code, decoder, std, n, **how)
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


def _on_cpu(generator: Generator | None) -> Generator | None:
    """Return a generator on the CPU, seeded by one of any device."""
    if generator is None or generator.device.type == "cpu":
        return generator
    seed = torch.randint(2**62, (), device=generator.device, generator=generator)
    return torch.Generator().manual_seed(int(seed))
