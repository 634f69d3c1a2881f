"""What single factors do to the reconstruction: figure 'perturbation' of section 4.2.

A factor is perturbed by a multiple of its own value, z_j -> z_j (1 + f): f = 4 is the paper's
+400 %, f = -1 switches the factor off, and a factor that is zero stays zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.posterior import LatentPosterior
from vspair.uncertainty.changes import squared_changes

__all__ = ["Base", "Dims", "most_sensitive", "perturb", "sensitivity"]

Base = Literal["mean", "sample"] | Tensor
"""The latent that is perturbed: the mean code (omega * mu), one sample, or one of shape (B, l)."""

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
        if dims.shape not in (mean.shape, mean.shape[1:]):
            raise VspairError(
                f"A mask of factors has shape {tuple(dims.shape)}: expected "
                f"{tuple(mean.shape[1:])} or {tuple(mean.shape)}."
            )
        return dims.to(mean.device).expand_as(mean)
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
    mean, index = post.code.mean, _indices(post, dims)
    if index.ndim not in (1, 2) or (index.ndim == 2 and len(index) != len(mean)):
        raise VspairError(f"dims has shape {tuple(index.shape)}: expected (K,) or (B, K).")
    index = index.expand(len(mean), index.shape[-1])
    scale = 1 + torch.tensor(check_factors(factors)).to(mean)
    total = torch.zeros((), dtype=torch.float64, device=mean.device)
    for _ in range(samples):
        total = total + post.decode(_scaled(post.code.rsample(generator), index, scale)).double()
    return (total / samples).to(mean.dtype)


def _scaled(z: Tensor, index: Tensor, scale: Tensor) -> Tensor:
    """Return latents (B, l) with factors (B, K) scaled (F,) in turn, with shape (B, K, F, l)."""
    moved = z[:, None, None].repeat(1, index.shape[1], len(scale), 1)
    values = z.gather(1, index).unsqueeze(-1) * scale
    where = index[:, :, None, None].expand(*values.shape, 1)
    return moved.scatter_(-1, where, values.unsqueeze(-1))


@torch.no_grad()
def sensitivity(
    post: LatentPosterior,
    factor: float | Sequence[float] = 1.0,
    *,
    base: Base = "mean",
    dims: Dims | None = None,
    generator: Generator | None = None,
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the mean squared change of the reconstruction when each factor is perturbed alone.

    Arguments:
        post: The posterior of B observations.
        factor: The perturbation f of z_j -> z_j (1 + f); over several, changes are averaged.
        base: The latent that is perturbed: ``mean`` for the mean code, ``sample`` for one
            sample, or latent vectors of shape (B, l).
        dims: The factors to try: indices, or a mask of shape (l,) or (B, l).
        generator: Draws the sample.
        chunk: How many changed images are decoded at once.
        dtype: A lower precision for the decoder.

    Returns:
        Changes in the squared units of the data, with shape (B, l): 0 where the latent is zero,
        NaN for factors that were not to be tried.
    """
    pixels = math.prod(post.model.x_shape)
    weights = post.code.mean.new_full((), 1 / pixels).expand(len(post), 1, pixels)
    changes = relative_changes(post, factor, weights, base, dims, generator, chunk, dtype)
    return changes.squeeze(-1)


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
    parts = [
        squared_changes(post.model, z, f * move, weights, chunk=chunk, dtype=dtype)
        for f in factors
    ]
    return torch.stack(parts).mean(0).masked_fill(~mask.unsqueeze(-1), math.nan)


def most_sensitive(changes: Tensor, k: int, allowed: Tensor | None = None) -> Tensor:
    """Return the k factors of largest change in each image, with shape (B, k).

    Arguments:
        changes: What :func:`sensitivity` returned, with shape (B, l).
        k: How many factors.
        allowed: Which factors may be named, such as those that are always active, a mask of
            shape (B, l) or (l,).

    Returns:
        Indices, largest change first. Where an image has fewer than k factors that are allowed
        and change anything, the rest are -1.
    """
    size = changes.shape[-1]
    if not 1 <= k <= size:
        raise VspairError(f"k = {k}: expected 1 to {size} factors.")
    usable = changes > 0
    if allowed is not None:
        usable = usable & allowed.to(changes.device)
    top = changes.masked_fill(~usable, -1.0).topk(k, dim=-1)
    return top.indices.masked_fill(top.values < 0, -1)
