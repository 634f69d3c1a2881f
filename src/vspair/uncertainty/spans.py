r"""How much of what an anchor leaves its factors explain, and how much they span.

An anchored model's factors are the same for every y, but which of them are present is not. So the
directions that they move x in are chosen by y from a shared set. What they span of the residual
:math:`e = x - r(y)` of test pairs is compared with principal directions that are the same for all
y, and may be with directions that are predicted anew for each y (:mod:`vspair.methods.nppc`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vspair.anchored import AnchoredModel
from vspair.errors import VspairError
from vspair.factors import leading_factors
from vspair.metrics import principal_directions, spanned_share
from vspair.networks import evaluating
from vspair.posterior import LatentPosterior
from vspair.training.doubt import present

__all__ = ["FEW", "factor_directions", "spans"]

FEW = 5
"""How many directions are compared where there are to be few."""

_LEAST = 1e-6
"""Directions of unit length whose part beside all others is smaller are none of their own."""

_BLOCK = 64
"""Observations that are treated at once."""


@torch.no_grad()
def factor_directions(post: LatentPosterior, k: int = 0) -> list[Tensor]:
    """Return orthonormal directions that span what present factors move, for each observation.

    Arguments:
        post: The posterior of B observations.
        k: How many factors, those that carry most variance; all that are present if 0.

    Returns:
        For each observation float64 directions, with shape (m, *x_shape), where m is the number of
        present factors, or k if that is less, and less where some move x in one direction.
    """
    return [_orthonormal(moved[: k or None]) for moved in _moved(post)]


def _moved(post: LatentPosterior) -> list[Tensor]:
    """Return what present factors move, most variance first, (m, *x_shape) each observation."""
    decoder, std = post.model.x_decoder, post.model.x_normaliser.std
    active = post.active().reshape(len(post), -1)
    found = [std.new_zeros(0, *std.shape)] * len(post)
    for b in active.any(1).nonzero().flatten().tolist():
        one, count = slice(b, b + 1), int(active[b].sum())
        how: dict[str, Any] = {"among": active[one]}
        how["reach"] = None if post.reach is None else post.reach[one]
        factors = leading_factors(post.code[one], decoder, std, count, **how)
        found[b] = factors.effect[0]
    return found


def _orthonormal(vectors: Tensor) -> Tensor:
    """Return orthonormal directions that span what vectors (k, *shape) do, float64 (m, *shape)."""
    flat = vectors.flatten(1).double()
    lengths = flat.norm(dim=1, keepdim=True)
    unit = (flat / lengths.where(lengths > 0, 1.0))[lengths.squeeze(1) > 0]
    _, sizes, rows = torch.linalg.svd(unit, full_matrices=False)
    return rows[sizes > _LEAST].reshape(-1, *vectors.shape[1:])


def _explained(model: AnchoredModel, residual: Tensor, seen: Tensor) -> Tensor:
    """Return what residuals' own codes say of them, in the data's units, (B, *x_shape)."""
    with evaluating(model):
        numbers, reach = model.read_seen(seen)
        p = model.read_code(numbers)
        q = model.encode(residual / model.x_normaliser.std, seen)
        said = model.spread(q.mean * present(p), p, reach)
        return said * model.x_normaliser.std


def _fit_share(said: Tensor, residual: Tensor) -> float:
    """Return the share of squared residuals that their best multiple of what is said explains."""
    a, b = said.double().flatten(), residual.double().flatten()
    tiny = torch.finfo(a.dtype).tiny
    return float((a @ b).clamp(min=0).square() / (a @ a * (b @ b)).clamp(min=tiny))


def _spanned(residual: Tensor, directions: list[Tensor]) -> float:
    """Return the mean share of residuals (B, *shape) that their own directions span."""
    pairs = zip(residual, directions, strict=True)
    return float(torch.cat([spanned_share(e[None], w[None]) for e, w in pairs]).mean())


def _spanned_by_first(residual: Tensor, directions: Tensor, counts: list[int]) -> float:
    """Return the mean share that the first directions span, for each residual a number of them."""
    each = [directions[:count] for count in counts]
    return _spanned(residual, each)


@torch.no_grad()
def spans(
    model: AnchoredModel, x: Tensor, y: Tensor, others: Tensor, *, first: Tensor | None = None
) -> dict[str, float]:
    """Return what a model's factors explain and span of the residuals of test pairs.

    All doubt was widened or narrowed as a whole when it was trained, so what residuals' own codes
    explain is taken times the one number for all of them that explains most.

    Arguments:
        model: The trained model.
        x: Test unknowns, with shape (N, *x_shape).
        y: Their observations, with shape (N, *y_shape).
        others: Residuals of pairs that the anchor has not seen, out of fold or held out, in the
            data's units, with shape (M, *x_shape): their principal directions are compared with.
        first: First guesses, where the model was trained with them.

    Returns:
        ``explained``, ``spanned_all``, ``spanned_5``, ``spanned_pca`` and ``spanned_pca_5``: see
        the vocabulary.
    """
    if tuple(x.shape[1:]) != model.x_shape or tuple(others.shape[1:]) != model.x_shape:
        raise VspairError(
            f"x has shape {tuple(x.shape)}, others {tuple(others.shape)}: expected batches of "
            f"unknowns of shape {model.x_shape}."
        )
    parts: list[tuple[Tensor, Tensor]] = []
    moved: list[Tensor] = []
    for rows in torch.arange(len(x)).split(_BLOCK):
        given: dict[str, Any] = {} if first is None else {"first": first[rows]}
        answer, seen = model.ask(y[rows], **given)
        residual = x[rows].to(answer) - answer
        parts.append((residual, _explained(model, residual, seen)))
        moved += _moved(model.posterior(y[rows], **given))
    residual, said = (torch.cat(each) for each in zip(*parts, strict=True))
    every = [_orthonormal(each) for each in moved]
    most = min(len(others), others[0].numel())
    counts = [min(len(each), most) for each in every]
    principal = principal_directions(others.to(residual), min(most, max(FEW, *counts)))
    few = [min(FEW, len(principal))] * len(residual)
    return {
        "explained": _fit_share(said, residual),
        "spanned_all": _spanned(residual, every),
        "spanned_5": _spanned(residual, [_orthonormal(each[:FEW]) for each in moved]),
        "spanned_pca": _spanned_by_first(residual, principal, counts),
        "spanned_pca_5": _spanned_by_first(residual, principal, few),
    }
