"""What studies say of codes: how many factors are active, and how codes differ over y."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior
from vspair.uncertainty import nnz, spread_over_y, summarise

__all__ = ["STEPS", "code_row", "posterior_in_parts"]

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
