r"""Which factors the doubt comes from, and whether it is about their presence or their strength.

A posterior over x is a code, decoded: :math:`x = d(z)`. Each latent :math:`z_j` is a factor, with
a gate :math:`g_j` that is open with probability :math:`\omega_j` and a strength
:math:`\mathcal{N}(\mu_j, \sigma_j^2)` where it is; gates of dense codes never close. All variances
are in the squared units of the data.

**Of what kind is the doubt?** The law of total variance,

.. math:: \mathrm{Var}\,d(z) = \mathrm{Var}_g\,\mathrm{E}[d(z) \mid g]
          + \mathrm{E}_g\,\mathrm{Var}[d(z) \mid g] ,

divides the variance of every entry of x into a *structural* part (which factors are present, and
in a mixture which mode holds) and a *parametric* part (how strong they are).

**Which factors carry it?** Factor j alone, all others at their means, moves x by
:math:`c_j(z_j)`. It is tried at values that it takes, :math:`\mu_j \pm \sigma_j` and 0:

.. math:: v_j = \omega_j\, p_j^2 + \omega_j (1 - \omega_j)\, s_j^2, \quad
          p_j = \tfrac{c_j(\mu_j + \sigma_j) - c_j(\mu_j - \sigma_j)}{2}, \quad
          s_j = \tfrac{c_j(\mu_j + \sigma_j) + c_j(\mu_j - \sigma_j)}{2} - c_j(0)

is the variance that it carries in every entry, a parametric and a structural term. Where the
decoder is affine with columns :math:`a_j`, this is exactly :math:`\mathrm{Var}(z_j)\, a_j^2` and
adds up to the variance of x. Elsewhere it is the first-order index of Sobol', taken at the mean
code: what factors do only in company is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from vspair.codes import Code, Point, SpikeSlab
from vspair.data import batch_mask
from vspair.errors import VspairError
from vspair.mixtures import Mixture, gated
from vspair.networks import LatentMoves, evaluating

__all__ = ["Factors", "Split", "leading_factors", "moved_latents", "split_variance"]


NEVER = 1e-12
"""The largest probability of a gate that is taken for closed."""


@dataclass(frozen=True)
class _Record:
    """Tensors that share their first dimension, one entry an observation."""

    def __getitem__(self, index: Any) -> Self:
        """Return the record of a part of the observations."""
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class Split(_Record):
    """The variance of every entry of x by where it comes from.

    ``total`` is ``structural + parametric + grain``, to the last bit. Standard errors are zero
    where the parts are exact. An estimate has no bias, so that averages over entries or
    observations are right; it can be a little below zero where there is no structural doubt.

    Attributes:
        structural: From which factors are present, with shape (B, *x_shape).
        parametric: From how strong they are, with shape (B, *x_shape).
        grain: From the decoder's noise, with shape (B, *x_shape); 0 where samples have none.
        total: All of it: the variance of samples, with shape (B, *x_shape).
        structural_se: The standard error of ``structural``, with shape (B, *x_shape).
        parametric_se: The standard error of ``parametric``, with shape (B, *x_shape).
        total_se: The standard error of ``total``, with shape (B, *x_shape).
    """

    structural: Tensor
    parametric: Tensor
    grain: Tensor
    total: Tensor
    structural_se: Tensor
    parametric_se: Tensor
    total_se: Tensor


@dataclass(frozen=True)
class Factors(_Record):
    r"""The factors that carry most variance, the first one most of all.

    Attributes:
        index: Which factors, with shape (B, k).
        share: The share of the variance of all factors that each carries, averaged over entries
            of x, with shape (B, k). The shares of all factors add up to 1; all are 0 where
            nothing varies.
        structural: The part of ``share`` that comes from whether the factor is present, with
            shape (B, k).
        presence: The probability omega that it is present, with shape (B, k); 1 in dense codes.
        strength: The mean mu of its strength where it is present, with shape (B, k).
        deviation: The standard deviation sigma of its strength, with shape (B, k).
        effect: The image that it moves: what x gains when the factor rises by one standard
            deviation, presence included, :math:`\mathrm{Cov}(x, z_j) / \sqrt{\mathrm{Var}\,z_j}`,
            in the data's units, with shape (B, k, *x_shape). Its square is the variance
            :math:`v_j` where x follows the factor in a straight line, and less elsewhere.
    """

    index: Tensor
    share: Tensor
    structural: Tensor
    presence: Tensor
    strength: Tensor
    deviation: Tensor
    effect: Tensor = field(repr=False)

    @property
    def parametric(self) -> Tensor:
        """The part of ``share`` that comes from how strong the factor is, with shape (B, k)."""
        return self.share - self.structural


def moved_latents(z: Tensor, index: Tensor, shifts: Tensor) -> Tensor:
    """Return latents (B, l) with factors (B, k) moved by shifts (B, k, S), one at a time.

    The result has shape (B, k, S, l).
    """
    moved = z[:, None, None].repeat(1, *shifts.shape[1:], 1)
    where = index[:, :, None, None].expand(*shifts.shape, 1)
    return moved.scatter_add_(-1, where, shifts.unsqueeze(-1))


# -- which factors ----------------------------------------------------------------------------


@torch.no_grad()
def leading_factors(
    code: Code,
    decoder: nn.Module,
    std: Tensor,
    k: int,
    *,
    region: Tensor | None = None,
    among: Tensor | None = None,
    shared: bool = False,
    reach: Tensor | None = None,
) -> Factors:
    """Return the k factors that carry most variance for each observation.

    Every factor is decoded three times (twice in a dense code); nothing is sampled.

    Arguments:
        code: The code of B observations, with shape (B, l).
        decoder: Decodes latents as normalised data.
        std: What normalised data is multiplied by, with shape x_shape.
        k: How many factors, from 1 to l.
        region: The entries of x that count, a mask of shape x_shape or (B, *x_shape); all where
            not given.
        among: The factors to choose from, a mask of shape (l,) or (B, l); others are not decoded
            and have no part in the shares.
        shared: Whether to name the same factors for all observations, by their mean share.
        reach: What is decoded for each observation is multiplied by it too, (B, *x_shape).
    """
    if isinstance(code, Point):
        raise VspairError(
            "This posterior has no spread: its code is deterministic and no factor carries "
            "variance. Use a model with a distribution as code, such as vPAIR or vsPAIR."
        )
    code, weights = gated(code), _weights(region, len(code.mean), std)
    every = torch.ones_like(code.mean, dtype=torch.bool)
    allowed = every if among is None else batch_mask("among", among, code.mean)
    named = allowed.any(0).expand_as(allowed) if shared else allowed
    most = int(named.sum(1).min())
    if not 1 <= k <= most:
        raise VspairError(f"k = {k}: expected 1 to {most}, the number of factors to choose from.")
    with evaluating(decoder):
        moves = LatentMoves(decoder)
        scale = _scale(std, reach, len(code.mean))
        carried = _carried(code, moves, scale, weights, allowed)
        total = carried.sum((0, 2)).unsqueeze(1)
        structural, parametric = carried / total.where(total > 0, 1)
        share = structural + parametric
        score = share.mean(0).expand_as(share) if shared else share
        index = score.masked_fill(~named, -1).topk(k, dim=1).indices
        effect = _effects(code, moves, scale, index).unflatten(-1, std.shape)
    found = (share, structural, code.omega, code.mu, code.slab.variance.sqrt())
    share, structural, presence, strength, deviation = (t.gather(1, index) for t in found)
    return Factors(index, share, structural, presence, strength, deviation, effect)


def _weights(region: Tensor | None, batch: int, std: Tensor) -> Tensor:
    """Return weights that average over the entries that count, with shape (B, pixels)."""
    inside = std.new_ones(batch, *std.shape)
    if region is not None:
        inside = inside * batch_mask("region", region, inside)
    inside = inside.flatten(1)
    if not inside.any(1).all():
        raise VspairError("region is empty: expected at least one entry of x in each image.")
    return inside / inside.sum(1, keepdim=True)


def _scale(std: Tensor, reach: Tensor | None, batch: int) -> Tensor:
    """Return what each decoded pixel is multiplied by, with shape (B, pixels)."""
    return (std if reach is None else std * reach).expand(batch, *std.shape).flatten(1)


def _images(
    code: SpikeSlab, moves: LatentMoves, scale: Tensor, wanted: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield rows (n,), factors (n,) and their images s and p, (n, pixels), of those wanted."""
    # From the mean omega mu to mu + sigma, mu - sigma and 0; a gate that is never closed has no 0.
    centre, sigma = code.absent * code.mu, code.slab.variance.sqrt()
    absence = -code.mean * (code.absent > 0)
    shifts = torch.stack((centre + sigma, centre - sigma, absence), dim=-1)
    shifts = shifts if absence.any() else shifts[..., :2]
    for rows, dims, changes in moves(code.mean, shifts * wanted.unsqueeze(-1)):
        up, down, *off = (changes * scale[rows].unsqueeze(1)).unbind(1)
        yield rows, dims, (up + down) / 2 - sum(off), (up - down) / 2


def _carried(
    code: SpikeSlab, moves: LatentMoves, scale: Tensor, weights: Tensor, allowed: Tensor
) -> Tensor:
    """Return structural and parametric variance of each factor, with shape (2, B, l)."""
    carried = code.mu.new_zeros(2, *code.mu.shape)
    open_ = code.omega > NEVER  # others need not be decoded
    for rows, dims, *images in _images(code, moves, scale, allowed & open_):
        squares = torch.stack(images).square_()
        carried[:, rows, dims] = (squares * weights[rows]).sum(-1)
    return carried * torch.stack((code.omega * code.absent, code.omega))


def _effects(code: SpikeSlab, moves: LatentMoves, scale: Tensor, index: Tensor) -> Tensor:
    """Return what the factors (B, k) move by one deviation, with shape (B, k, pixels)."""
    # Cov(x, z) = omega (1 - omega) mu s + omega sigma p, by the law of total covariance.
    unit = code.omega / code.variance.clamp(min=torch.finfo(code.mu.dtype).tiny).sqrt()
    by_presence, by_strength = unit * code.absent * code.mu, unit * code.slab.variance.sqrt()
    places = torch.arange(index.shape[1], device=index.device).expand_as(index)
    place = torch.full(code.mu.shape, -1, device=index.device).scatter_(1, index, places)
    effect = code.mu.new_zeros(*index.shape, scale.shape[1])
    for rows, dims, s, p in _images(code, moves, scale, place >= 0):
        moved = by_presence[rows, dims, None] * s + by_strength[rows, dims, None] * p
        effect[rows, place[rows, dims]] = moved
    return effect


# -- of what kind -----------------------------------------------------------------------------


@torch.no_grad()
def split_variance(
    code: Code,
    decoder: nn.Module,
    std: Tensor,
    n: int = 200,
    *,
    noise_std: Tensor | None = None,
    reach: Tensor | None = None,
    chunk: int = 256,
    generator: Generator | None = None,
) -> Split:
    r"""Return how much of the variance is structural, parametric and decoder noise.

    Exact where the decoder is affine, with columns :math:`a_j`: :math:`\sum_j \omega_j
    (1 - \omega_j) \mu_j^2 a_j^2` and :math:`\sum_j \omega_j \sigma_j^2 a_j^2`. Elsewhere n sets of
    gates are sampled, and the strengths behind each set twice. With mean :math:`a_i` and half
    difference :math:`b_i` of the two images, and :math:`S_a^2` the sample variance of the means,
    an analysis of variance estimates without bias

    .. math:: \mathrm{parametric} = \tfrac{2}{n} \sum_i b_i^2, \quad
              \mathrm{structural} = S_a^2 - \tfrac{1}{n} \sum_i b_i^2 .

    Standard errors are those of the means of :math:`2 b_i^2` and of
    :math:`(a_i - \bar{a})^2 \mp b_i^2`. They cannot tell of a gate that differs less often than
    once in n sets. The memory that is needed does not grow with n.

    Arguments:
        code: The code of B observations, with shape (B, l).
        decoder: Decodes latents as normalised data.
        std: What normalised data is multiplied by, with shape x_shape.
        n: How many sets of gates are sampled, at least 2. Not used where the parts are exact.
        noise_std: The deviation of the decoder's noise in the data's units, with shape x_shape or
            (B, *x_shape).
        reach: What is decoded for each observation is multiplied by it too, (B, *x_shape).
        chunk: How many images are decoded at once; results do not depend on it.
        generator: Samples the codes, on their device.
    """
    if n < 2:
        raise VspairError(f"n = {n}: expected at least two samples.")
    gates = isinstance(code, SpikeSlab | Mixture)
    with evaluating(decoder):
        moves = LatentMoves(decoder)
        code = code if isinstance(code, Mixture) else gated(code)
        scale = _scale(std, reach, len(code.mean)).unflatten(1, std.shape)
        if isinstance(code, SpikeSlab) and (moves.affine or not code.variance.any()):
            parts, errors = _exact_parts(code, moves, scale)
        else:
            products = _products(code, decoder, scale, n, chunk, generator)
            parts, errors = _estimated_parts(products, n, gates)
    (structural, parametric), errors = parts.to(code.mean), errors.to(code.mean)
    noise = torch.zeros_like(std) if noise_std is None else noise_std
    grain = noise.square().expand_as(structural)
    return Split(structural, parametric, grain, structural + parametric + grain, *errors)


def _exact_parts(code: SpikeSlab, moves: LatentMoves, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return both parts (2, B, *x_shape) of an affine decoder or a point, and errors of zero."""
    variances = torch.stack((code.structural_variance, code.parametric_variance)).double()
    parts = variances.new_zeros(2, len(code.mu), scale[0].numel())
    varying = variances.any(0).any(0).nonzero().squeeze(1)
    for dims in varying.split(256) if len(varying) else ():
        columns = moves.columns(dims, code.mu).flatten(1)
        parts += variances[..., dims] @ columns.double().square()
    parts = parts.unflatten(-1, scale.shape[1:]) * scale.double().square()
    return parts, torch.zeros_like(parts[:1]).expand(3, *parts.shape[1:])


def _pair(code: SpikeSlab | Mixture, generator: Generator | None) -> Tensor:
    """Sample two latents that share mode and gates and nothing else, with shape (2, B, l)."""
    code = code.choose(generator) if isinstance(code, Mixture) else code
    gates = torch.bernoulli(code.omega, generator=generator)
    return gates * torch.stack([code.slab.rsample(generator) for _ in range(2)])


def _products(
    code: SpikeSlab | Mixture,
    decoder: nn.Module,
    scale: Tensor,
    n: int,
    chunk: int,
    generator: Generator | None,
) -> Tensor:
    """Return the mean products of 1, a, a^2 and b^2 with each other, (4, 4, B, *x_shape).

    Here a is taken about the decoded mean code, which keeps the powers small.
    """

    def decode(z: Tensor) -> Tensor:
        parts = [decoder(part) for part in z.flatten(0, -2).split(chunk)]
        return (torch.cat(parts).unflatten(0, z.shape[:-1]) * scale).double()

    centre, step = decode(code.mean), max(1, chunk // (2 * len(code.mean)))
    sums = centre.new_zeros(4, 4, *centre.shape)
    for start in range(0, n, step):
        pairs = [_pair(code, generator) for _ in range(min(step, n - start))]
        u, v = (decode(torch.stack(pairs)) - centre).unbind(1)
        a, b = (u + v) / 2, (u - v) / 2
        terms = torch.stack((torch.ones_like(a), a, a.square(), b.square()))
        sums += torch.einsum("im...,jm...->ij...", terms, terms)
    return sums / n


def _estimated_parts(products: Tensor, n: int, gates: bool) -> tuple[Tensor, Tensor]:
    """Return both parts (2, B, *x_shape) and standard errors (3, B, *x_shape)."""
    _, a, _, b2 = products[0]
    one, none = torch.ones_like(a), torch.zeros_like(a)
    square = (a.square(), -2 * a, one)  # (a_i - mean)^2 as a sum of 1, a_i and a_i^2
    sums = ((*square, -one), (none, none, none, 2 * one), (*square, one))
    weights = torch.stack([torch.stack(row) for row in sums])
    values = (weights * products[0]).sum(1)
    squares = torch.einsum("pi...,ij...,pj...->p...", weights, products, weights)
    errors = ((squares - values.square()).clamp(min=0) / (n - 1)).sqrt()
    spread = (values[2] - b2) * (n / (n - 1))
    if gates:
        return torch.stack((spread - b2, 2 * b2)), errors
    return torch.stack((none, spread + b2)), torch.stack((none, errors[2], errors[2]))
