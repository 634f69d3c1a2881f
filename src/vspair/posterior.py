"""The posterior: what a model believes of x, given an observation y."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from vspair.codes import Code, SpikeSlab
from vspair.errors import VspairError

if TYPE_CHECKING:
    from vspair.model import InverseModel

__all__ = ["Posterior"]

_BLOCK = 64 * 2**20
"""The most numbers that :meth:`Posterior.interval` holds at once (256 MiB of float32)."""


class Posterior:
    """A distribution over x for each observation of a batch, in the data's own units.

    Samples are latent samples, decoded. They are drawn one after another from the generator and
    decoded ``chunk`` images at a time, so results do not depend on ``chunk``, and mean and
    deviation take the same memory for ten samples as for a million.

    Arguments:
        model: The model that decodes.
        code: The x code of each observation, with shape (B, l).
        noise: Whether samples include the decoder's noise.
        single: Whether to leave out the batch dimension.
        chunk: How many images are decoded at once.
    """

    def __init__(
        self,
        model: InverseModel,
        code: Code,
        *,
        noise: bool = False,
        single: bool = False,
        chunk: int = 256,
    ) -> None:
        self.model, self.code, self.noise, self.chunk = model, code, noise, chunk
        self._single = single

    def __len__(self) -> int:
        return len(self.code.mean)

    def __repr__(self) -> str:
        kind = type(self.code).__name__
        return f"Posterior({len(self)} observations, {kind} code of {self.code.mean.shape[-1]})"

    def _squeeze(self, t: Tensor, dim: int = 0) -> Tensor:
        return t.squeeze(dim) if self._single else t

    @torch.no_grad()
    def decode(self, z: Tensor) -> Tensor:
        """Return latent vectors of shape (..., l) as unknowns of shape (..., *x_shape)."""
        training = self.model.training
        self.model.eval()
        flat = z.reshape(-1, z.shape[-1])
        parts = [self.model.x_decoder(part) for part in flat.split(self.chunk)]
        self.model.train(training)
        x = self.model.x_normaliser.inverse(torch.cat(parts))
        return x.reshape(*z.shape[:-1], *self.model.x_shape)

    def _draws(self, n: int, generator: Generator | None) -> Iterator[Tensor]:
        """Yield decoded samples of shape (m, B, *x_shape), at most ``chunk`` images each."""
        if n < 1:
            raise VspairError(f"n = {n}: expected at least one sample.")
        step = max(1, self.chunk // len(self))
        for start in range(0, n, step):
            count = min(step, n - start)
            z = torch.stack([self.code.rsample(generator) for _ in range(count)])
            x = self.decode(z)
            if self.noise:
                x = x + self._noise(x, generator)
            yield x

    def _noise(self, x: Tensor, generator: Generator | None) -> Tensor:
        unit = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
        return unit * self.model.width.detach() * self.model.x_normaliser.std

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        """Draw n unknowns for each observation, with shape (n, B, *x_shape)."""
        return self._squeeze(torch.cat(list(self._draws(n, generator))), dim=1)

    def moments(self, n: int = 100, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation over n samples, each of shape (B, *x_shape).

        Runs in memory that does not grow with n (Chan's update of Welford's sums).
        """
        count, mean, square = 0, torch.zeros(()), torch.zeros(())
        for x in self._draws(n, generator):
            x = x.double()
            m, part = len(x), x.mean(0)
            delta = part - mean
            square = (
                square + (x - part).square().sum(0) + delta.square() * (count * m / (count + m))
            )
            mean = mean + delta * (m / (count + m))
            count += m
        std = (square / max(count - 1, 1)).sqrt()
        dtype = self.code.mean.dtype
        return self._squeeze(mean.to(dtype)), self._squeeze(std.to(dtype))

    def mean(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the mean over n samples, with shape (B, *x_shape)."""
        return self.moments(n, generator)[0]

    def std(self, n: int = 100, generator: Generator | None = None) -> Tensor:
        """Return the standard deviation over n samples, with shape (B, *x_shape)."""
        return self.moments(n, generator)[1]

    def interval(
        self, level: float = 0.9, n: int = 200, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of the central interval of n samples, each of shape (B, *x_shape).

        Where all samples together would not fit the memory that is set aside, observations and
        then pixels are treated in blocks, and the latent samples are decoded again for each.
        """
        if not 0 < level < 1:
            raise VspairError(f"level = {level}: expected a probability between 0 and 1.")
        tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        rows = max(1, _BLOCK // (n * math.prod(self.model.x_shape)))
        ends = [
            self._part(slice(i, i + rows))._quantiles(tails, n, generator)
            for i in range(0, len(self), rows)
        ]
        low, high = torch.cat(ends, dim=1)
        return self._squeeze(low), self._squeeze(high)

    def _part(self, index: slice) -> Posterior:
        return Posterior(self.model, self.code[index], noise=self.noise, chunk=self.chunk)

    def _quantiles(self, tails: Tensor, n: int, generator: Generator | None) -> Tensor:
        """Return quantiles of shape (2, B, *x_shape), block of pixels by block of pixels."""
        pixels = math.prod(self.model.x_shape)
        block = max(1, _BLOCK // (n * len(self)))
        seed = int(torch.randint(2**62, (), generator=_on_cpu(generator)))
        parts = []
        for start in range(0, pixels, block):
            again = torch.Generator(self.code.mean.device).manual_seed(seed)
            kept = [x.flatten(2)[:, :, start : start + block] for x in self._draws(n, again)]
            parts.append(_quantile(torch.cat(kept), tails))
        return torch.cat(parts, dim=-1).reshape(2, len(self), *self.model.x_shape)

    def approximate_mean(self) -> Tensor:
        """Return the decoded mean code, d(omega * mu), with shape (B, *x_shape)."""
        return self._squeeze(self.decode(self.code.mean))

    def active(self, threshold: float = 0.5) -> Tensor:
        """Return which factors are more likely present than ``threshold``, with shape (B, l)."""
        if not isinstance(self.code, SpikeSlab):
            return self._squeeze(torch.ones_like(self.code.mean, dtype=torch.bool))
        return self._squeeze(self.code.omega > threshold)

    def parameters(self) -> dict[str, Tensor]:
        """Return the code's parameters by name, each of shape (B, l)."""
        code, named = self.code, {"mean": self.code.mean, "variance": self.code.variance}
        if isinstance(code, SpikeSlab):
            named = {"mu": code.mu, "sigma": (0.5 * code.logvar).exp(), "omega": code.omega}
        return {name: self._squeeze(t) for name, t in named.items()}


def _on_cpu(generator: Generator | None) -> Generator | None:
    """Return a generator that draws on the CPU, fed by one of any device."""
    if generator is None or generator.device.type == "cpu":
        return generator
    draw = torch.randint(2**62, (), device=generator.device, generator=generator)
    return torch.Generator().manual_seed(int(draw))


def _quantile(x: Tensor, q: Tensor) -> Tensor:
    """Return quantiles over the first dimension (torch.quantile refuses large tensors)."""
    position = q * (len(x) - 1)
    low, high = position.floor().long().tolist(), position.ceil().long().tolist()
    x = x.sort(dim=0).values
    ends = [
        torch.lerp(x[a], x[b], float(p - a)) for a, b, p in zip(low, high, position, strict=True)
    ]
    return torch.stack(ends)
