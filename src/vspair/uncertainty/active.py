"""Which factors are active, how reliably, and how much codes differ between observations.

A factor is active in a latent sample where the sample is not zero. Factors of dense codes
(:class:`~vspair.codes.Point` and :class:`~vspair.codes.Normal`) are active in every sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.errors import VspairError
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior

__all__ = [
    "Summary",
    "always_active",
    "draw_active",
    "nnz",
    "posterior_in_parts",
    "sparsity",
    "spread_over_y",
    "summarise",
    "summarise_codes",
]


def _present(post: LatentPosterior, generator: Generator | None) -> Tensor:
    """Return which factors one latent sample holds, with shape (B, l)."""
    if isinstance(post.code, SpikeSlab):
        return post.code.rsample(generator) != 0
    return torch.ones_like(post.code.mean, dtype=torch.bool)


@torch.no_grad()
def draw_active(
    post: LatentPosterior, samples: int = 30, generator: Generator | None = None
) -> Tensor:
    """Return in how many latent samples each factor is active, with shape (B, l).

    Arguments:
        post: The posterior of B observations.
        samples: How many latent samples are drawn, one after another.
        generator: Draws them, on the device of the code.
    """
    if samples < 1:
        raise VspairError(f"samples = {samples}: expected at least one.")
    counts = torch.zeros_like(post.code.mean, dtype=torch.long)
    for _ in range(samples):
        counts += _present(post, generator)
    return counts


def always_active(counts: Tensor, samples: int) -> Tensor:
    """Return which factors are active in all samples, with the shape of ``counts``.

    Arguments:
        counts: What :func:`draw_active` returned, with shape (B, l).
        samples: The number of samples that it drew.
    """
    if samples < 1 or bool((counts > samples).any()):
        raise VspairError(
            f"samples = {samples}, but a factor was counted {int(counts.max())} times: give the "
            "number of samples that were drawn."
        )
    return counts == samples


@torch.no_grad()
def nnz(post: LatentPosterior, generator: Generator | None = None) -> Tensor:
    """Return the number of active factors in one latent sample, with shape (B,)."""
    return _present(post, generator).sum(1)


def sparsity(nnz: Tensor, size: int) -> float:
    """Return the average share of l = ``size`` factors that are not active."""
    return 1 - float(nnz.double().mean()) / size


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (0 for one value), least and greatest of values by image."""

    mean: float
    std: float
    min: float
    max: float


def summarise(values: Tensor) -> Summary:
    """Return the summary of one number an image, with shape (B,), such as active factors."""
    v = values.double()
    std = v.std() if len(v) > 1 else v.new_zeros(())
    return Summary(*(float(t) for t in (v.mean(), std, v.min(), v.max())))


def spread_over_y(post: LatentPosterior, dims: Tensor | None = None) -> dict[str, float]:
    """Return how much each of the code's parameters varies with the observation.

    Arguments:
        post: The posterior of at least two observations.
        dims: The factors to average over, a mask of shape (l,); all where not given.

    Returns:
        ``std_mu_over_y``, ``std_sigma_over_y`` and, for sparse codes, ``std_omega_over_y``: the
        standard deviation over the batch, averaged over factors.
    """
    if len(post) < 2:
        raise VspairError("One observation has no spread: expected at least two.")
    spreads = {f"std_{name}_over_y": t.double().std(0) for name, t in post.parameters().items()}
    return {
        name: float((t if dims is None else t[dims.to(t.device)]).mean())
        for name, t in spreads.items()
    }


@torch.no_grad()
def posterior_in_parts(model: InverseModel, y: Tensor, chunk: int = 128) -> LatentPosterior:
    """Return the posterior of many observations (B, *y_shape), which are encoded part by part."""
    parts = [model.posterior(part).code for part in y.split(chunk)]
    names = ("mu", "logvar", "log_on", "log_off")
    mu, logvar, on, off = (torch.cat([getattr(part, n) for part in parts]) for n in names)
    return LatentPosterior(model, SpikeSlab(mu, logvar, on, off, model.config.temperature))


def summarise_codes(post: LatentPosterior, generator: Generator) -> dict[str, float]:
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
