"""Which factors a study shows: how many are active, which vary most, and what moving them does."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.factors import moved_latents
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior
from vspair.uncertainty import nnz, spread_over_y, summarise

__all__ = ["STEPS", "code_row", "leading", "perturbed", "posterior_in_parts"]

STEPS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""How far a factor is moved, in multiples of its sigma."""


@torch.no_grad()
def posterior_in_parts(model: InverseModel, y: Tensor, chunk: int = 128) -> LatentPosterior:
    """Return the posterior of many observations (B, *y_shape), which are encoded part by part."""
    parts = [model.posterior(part).code for part in y.split(chunk)]
    names = ("mu", "logvar", "log_on", "log_off")
    mu, logvar, on, off = (torch.cat([getattr(part, n) for part in parts]) for n in names)
    return LatentPosterior(model, SpikeSlab(mu, logvar, on, off, model.config.temperature))


def code_row(post: LatentPosterior, generator: Generator) -> dict[str, float]:
    """Return how many factors are active, and how much the codes differ between observations."""
    assert isinstance(post.code, SpikeSlab)
    omega = post.code.omega
    counts, opened = summarise(nnz(post, generator)), omega > 0.5
    row = {
        "nnz": counts.mean,
        "nnz_std": counts.std,
        "active_share": counts.mean / omega.shape[1],
        "active": float(opened.double().sum(1).mean()),
        "ever_active": float(opened.any(0).sum()),
    }
    return row | spread_over_y(post)


def leading(post: LatentPosterior, rows: Tensor | None = None, k: int = 4) -> Tensor:
    """Return the k factors whose mu varies most over observations.

    Factors whose gate is open, with a probability above one half, come before all others.

    Arguments:
        post: The posterior of B observations.
        rows: Name factors for each of these n observations, by its own gates; where not given,
            for all together, by their mean gates.
        k: How many factors.

    Returns:
        Indices with shape (n, k), or (k,) for all together.
    """
    assert isinstance(post.code, SpikeSlab)
    varies, omega = post.code.mu.double().var(0), post.code.omega
    gates = omega.double().mean(0) if rows is None else omega[rows.to(omega.device)]
    return torch.where(gates > 0.5, varies + varies.max() + 1, varies).topk(k).indices


@torch.no_grad()
def perturbed(post: LatentPosterior, rows: Tensor, dims: Tensor) -> tuple[Tensor, Tensor]:
    """Return what moving one factor by multiples of its sigma does to the decoded mean code.

    Arguments:
        post: The posterior of B observations.
        rows: Some of them, with shape (n,).
        dims: The factors of each, with shape (n, k), or (k,) for all.

    Returns:
        The decoded mean code, with shape (n, H, W), and the differences to it, with shape
        (n, k, 5, H, W).
    """
    code = post.code
    assert isinstance(code, SpikeSlab)
    mean, rows = code.mean, rows.to(code.mean.device)
    dims = dims.expand(len(rows), -1)
    sigma = code.slab.variance.sqrt()[rows].gather(1, dims)
    moves = sigma.unsqueeze(-1) * sigma.new_tensor(STEPS)
    centre = post.decode(mean[rows])
    return centre, post.decode(moved_latents(mean[rows], dims, moves)) - centre[:, None, None]
