"""What single factors do to the reconstruction: figure 'perturbation' of section 4.2.

A factor is perturbed by a multiple of its own value, z_j -> z_j (1 + f): f = 4 is the paper's
+400 %, f = -1 switches the factor off, and a factor that is zero stays zero. In a traversal it is
moved by multiples of its standard deviation instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from vspair.data import batch_mask
from vspair.errors import VspairError
from vspair.factors import moved_latents
from vspair.mixtures import gated
from vspair.networks import squared_changes
from vspair.posterior import LatentPosterior

__all__ = ["DEVIATIONS", "Base", "Dims", "perturb", "traversal"]

Base = Literal["mean", "sample"] | Tensor
"""The latent that is perturbed: the mean code (omega * mu), one sample, or one of shape (B, l)."""

DEVIATIONS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""How far figures move a factor, in multiples of its sigma."""

Dims = Sequence[int] | Tensor
"""Factors: their indices, or a mask of shape (l,) or (B, l)."""


def base_latent(post: LatentPosterior, base: Base, generator: Generator | None) -> Tensor:
    """Return the latent vectors that are perturbed, with shape (B, l)."""
    if isinstance(base, Tensor):
        if base.shape != post.code.mean.shape:
            raise VspairError(
                f"base has shape {tuple(base.shape)}: expected {tuple(post.code.mean.shape)}."
            )
        return base.to(post.code.mean)
    if base not in ("mean", "sample"):
        raise VspairError(f"base = {base!r}: expected 'mean', 'sample' or latent vectors.")
    return post.code.mean if base == "mean" else post.code.rsample(generator)


def dims_mask(post: LatentPosterior, dims: Dims | None) -> Tensor:
    """Return factors that are given in any way as a mask of shape (B, l)."""
    mean = post.code.mean
    if dims is None:
        return torch.ones_like(mean, dtype=torch.bool)
    if isinstance(dims, Tensor) and dims.dtype == torch.bool:
        return batch_mask("dims", dims, mean)
    mask = torch.zeros_like(mean, dtype=torch.bool)
    mask[:, _indices(post, dims)] = True
    return mask


def _indices(post: LatentPosterior, dims: Dims) -> Tensor:
    """Return indices of factors on the code's device, after checking their range."""
    size, index = post.code.mean.shape[1], torch.as_tensor(dims)
    whole = not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    if not whole or index.numel() == 0 or index.min() < 0 or index.max() >= size:
        raise VspairError(f"dims: expected indices of factors from 0 to {size - 1}.")
    return index.long().to(post.code.mean.device)


def check_factors(factors: float | Sequence[float]) -> tuple[float, ...]:
    """Return one or several perturbations as a tuple of finite numbers."""
    given = tuple(factors) if isinstance(factors, Sequence) else (factors,)
    if not given or not all(math.isfinite(f) for f in given):
        raise VspairError(f"factor = {factors}: expected finite numbers, such as -1 or 4.")
    return given


@torch.no_grad()
def perturb(
    post: LatentPosterior,
    dims: Dims,
    factors: Sequence[float],
    samples: int = 30,
    generator: Generator | None = None,
) -> Tensor:
    """Return mean reconstructions with one factor of every latent sample perturbed.

    All factors and perturbations share the same latent samples, those of
    ``post.mean(samples, generator)``, which f = 0 returns. The decoder's noise is left out.

    Arguments:
        post: The posterior of B observations.
        dims: Indices of K factors, with shape (K,), or (B, K) for other ones in each image.
        factors: F perturbations f of z_j -> z_j (1 + f).
        samples: The latent samples that are averaged.
        generator: Draws them, on the device of the code.

    Returns:
        Images in the data's units, with shape (B, K, F, *x_shape).
    """
    if samples < 1:
        raise VspairError(f"samples = {samples}: expected at least one.")
    mean, index = post.code.mean, _each(post, dims)
    moves = torch.tensor(check_factors(factors)).to(mean)
    total = torch.zeros((), dtype=torch.float64, device=mean.device)
    for _ in range(samples):
        z = post.code.rsample(generator)
        shifts = z.gather(1, index).unsqueeze(-1) * moves
        total = total + post.decode(moved_latents(z, index, shifts)).double()
    return (total / samples).to(mean.dtype)


def _each(post: LatentPosterior, dims: Dims) -> Tensor:
    """Return indices of factors, given for each image or for all, with shape (B, K)."""
    batch, index = len(post), _indices(post, dims)
    if index.ndim not in (1, 2) or (index.ndim == 2 and len(index) != batch):
        raise VspairError(f"dims has shape {tuple(index.shape)}: expected (K,) or (B, K).")
    return index.expand(batch, index.shape[-1])


@torch.no_grad()
def traversal(post: LatentPosterior, dims: Dims, steps: Sequence[float]) -> Tensor:
    """Return the decoded mean code with one factor moved by multiples of its sigma.

    Arguments:
        post: The posterior of B observations.
        dims: Indices of K factors, with shape (K,), or (B, K) for other ones in each image, such
            as ``post.factors(K).index``.
        steps: S multiples of the deviation of the factor's strength; at 0 nothing moves.

    Returns:
        Images in the data's units, with shape (B, K, S, *x_shape).
    """
    mean, index = post.code.mean, _each(post, dims)
    sigma = gated(post.code).slab.variance.sqrt().gather(1, index)
    shifts = sigma.unsqueeze(-1) * torch.tensor(check_factors(steps)).to(mean)
    return post.decode(moved_latents(mean, index, shifts))


def relative_changes(
    post: LatentPosterior,
    factor: float | Sequence[float],
    weights: Tensor,
    base: Base,
    dims: Dims | None,
    generator: Generator | None,
    chunk: int | None,
    dtype: torch.dtype | None,
) -> Tensor:
    """Return weighted squared changes, averaged over perturbations, with shape (B, l, R)."""
    factors, mask = check_factors(factor), dims_mask(post, dims)
    z = base_latent(post, base, generator)
    move = z * mask
    decoder, std = post.model.x_decoder, post.model.x_normaliser.std
    if post.reach is not None:
        weights = weights * post.reach.flatten(1).square().unsqueeze(1)
    parts = [
        squared_changes(decoder, std, z, f * move, weights, chunk=chunk, dtype=dtype)
        for f in factors
    ]
    return torch.stack(parts).mean(0).masked_fill(~mask.unsqueeze(-1), math.nan)
