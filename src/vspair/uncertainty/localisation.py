"""Which factors act where data is missing: the localisation ratio of section 4.2.

The ratio of a factor is the mean squared change inside a region over that outside it when the
factor alone is perturbed. The region is any set of pixels in each image; for inpainting, the
pixels that the corruption changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vspair.data import batch_mask
from vspair.errors import VspairError
from vspair.posterior import LatentPosterior
from vspair.uncertainty.perturbation import Base, Dims, relative_changes

__all__ = ["BestLocalised", "Localisation", "best_localised", "localisation", "region_weights"]


def region_weights(region: Tensor, batch: int, shape: tuple[int, ...]) -> Tensor:
    """Return weights that average inside and outside a region, with shape (B, 2, pixels).

    Arguments:
        region: A mask of shape (B, *shape), or (*shape,) for the same one in each image.
        batch: The number of images B.
        shape: The shape of one image.

    Weights are NaN for an image whose region is empty or full. It is an error if that is so in
    every image.
    """
    inside = batch_mask("region", region, region.new_empty(batch, *shape)).flatten(1)
    masks = torch.stack((inside, ~inside), dim=1).double()
    counts = masks.sum(-1, keepdim=True)
    usable = (counts > 0).all(1, keepdim=True)
    if not usable.any():
        raise VspairError("The region is empty or full in every image: nothing to compare.")
    return (masks / counts).masked_fill(~usable, math.nan)


@dataclass(frozen=True)
class Localisation:
    """What perturbing each factor does inside and outside a region.

    Attributes:
        inside: The mean squared change inside, in the data's units, with shape (B, l).
        outside: The mean squared change outside, with shape (B, l).
        ratio: inside / outside, with shape (B, l). Infinite where nothing changes outside, NaN
            where the factor changes next to nothing at all.
    """

    inside: Tensor
    outside: Tensor
    ratio: Tensor


@torch.no_grad()
def localisation(
    post: LatentPosterior,
    region: Tensor,
    factor: float | Sequence[float] = 1.0,
    *,
    base: Base = "mean",
    dims: Dims | None = None,
    floor: float = 1e-8,
    generator: Generator | None = None,
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
) -> Localisation:
    """Return the localisation ratio of each factor in each image.

    Arguments:
        post: The posterior of B observations.
        region: A mask of pixels of shape (B, *x_shape), or x_shape for all images. All results
            are NaN for an image whose region is empty or full.
        factor: The perturbation f of z_j -> z_j (1 + f); over several, changes are averaged.
        base: The latent that is perturbed: ``mean`` for the mean code, ``sample`` for one
            sample, or latent vectors of shape (B, l).
        dims: The factors to try: indices, or a mask of shape (l,) or (B, l). Others are NaN.
        floor: A factor has no ratio where its change, inside and outside together, is at most
            this share of the largest that any factor makes in the image: there is little to
            locate.
        generator: Draws the sample.
        chunk: How many changed images are decoded at once.
        dtype: A lower precision for the decoder's layers, such as ``torch.bfloat16`` on a GPU.
    """
    weights = region_weights(region.to(post.code.mean.device), len(post), post.model.x_shape)
    changes = relative_changes(post, factor, weights, base, dims, generator, chunk, dtype)
    unusable = weights[:, :1, :1].isnan()
    inside, outside = changes.masked_fill(unusable, math.nan).unbind(-1)
    total = inside + outside
    largest = total.nan_to_num(0.0).amax(1, keepdim=True)
    ratio = torch.where(total > floor * largest, inside / outside, math.nan)
    return Localisation(inside, outside, ratio)


@dataclass(frozen=True)
class BestLocalised:
    """The factor of highest localisation ratio in each image.

    Attributes:
        dim: Its index, with shape (B,); -1 for an image without a factor to choose from.
        ratio: Its ratio, with shape (B,); NaN without one.
        inside: Its mean squared change inside the region, with shape (B,); NaN without one.
    """

    dim: Tensor
    ratio: Tensor
    inside: Tensor

    @property
    def excluded(self) -> int:
        """The number of images without a factor to choose from."""
        return int((self.dim < 0).sum())

    def summary(self) -> dict[str, float]:
        """Return the figures of the paper's table over the images that are not excluded.

        These are ``median_ratio``, ``mean_ratio`` and ``mean_inside`` (NaN without any image),
        with the number of ``images`` and of ``excluded`` ones beside them.
        """
        kept = self.dim >= 0
        ratio, inside = self.ratio[kept].double(), self.inside[kept].double()
        median = float(ratio.quantile(0.5)) if len(ratio) else math.nan
        means = {"mean_ratio": float(ratio.mean()), "mean_inside": float(inside.mean())}
        counts = {"images": float(len(ratio)), "excluded": float(self.excluded)}
        return {"median_ratio": median} | means | counts


def best_localised(result: Localisation, allowed: Tensor | None = None) -> BestLocalised:
    """Return the factor of highest ratio in each image.

    Arguments:
        result: What :func:`localisation` returned, for B images and l factors.
        allowed: Which factors may be chosen, such as those that are always active, a mask of
            shape (B, l) or (l,). Factors without a ratio are never chosen.
    """
    usable = ~result.ratio.isnan()
    if allowed is not None:
        usable = usable & allowed.to(usable.device)
    ratio, dim = result.ratio.masked_fill(~usable, -1.0).max(1)
    inside = result.inside.gather(1, dim.unsqueeze(1)).squeeze(1)
    none = ~usable.any(1)
    return BestLocalised(
        dim.masked_fill(none, -1),
        ratio.masked_fill(none, math.nan),
        inside.masked_fill(none, math.nan),
    )
