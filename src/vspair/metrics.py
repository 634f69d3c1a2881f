"""Scores of posterior samples against the truth, as functions of tensors.

Samples have shape (n, B, *shape) and truths (B, *shape). Every function returns numbers;
pictures are drawn elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["coverage", "crps", "energy_score", "gaussian_kl", "gaussian_w2", "pearson"]


def energy_score(samples: Tensor, x: Tensor) -> Tensor:
    """Return E|X - x| - E|X - X'| / 2, unbiased in the number of samples, with shape (B,).

    The multivariate form of the CRPS: proper, so lower on average for a better posterior.
    One sample alone scores as a point estimate.
    """
    flat, truth = samples.flatten(2), x.flatten(1)
    n, error = len(flat), (flat - truth).norm(dim=-1).mean(0)
    if n < 2:
        return error
    spread = torch.stack([(flat[i] - flat[:i]).norm(dim=-1).sum(0) for i in range(1, n)]).sum(0)
    return error - spread / (n * (n - 1))


def crps(samples: Tensor, x: Tensor) -> Tensor:
    """Return the continuous ranked probability score of each entry, with shape (B, *shape).

    The fair estimator: unbiased in the number of samples.
    """
    n = len(samples)
    error = (samples - x).abs().mean(0)
    if n < 2:
        return error
    ordered = samples.sort(dim=0).values
    rank = torch.arange(n, dtype=samples.dtype, device=samples.device)
    weight = (2 * rank - n + 1).reshape(-1, *[1] * x.ndim)
    return error - (weight * ordered).sum(0) / (n * (n - 1))


def coverage(low: Tensor, high: Tensor, x: Tensor) -> Tensor:
    """Return the share of entries between the ends of an interval, with shape (B,)."""
    return ((low <= x) & (x <= high)).flatten(1).double().mean(1)


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of two vectors, a scalar."""
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm())


def gaussian_kl(mean: Tensor, cov: Tensor, mean_p: Tensor, cov_p: Tensor) -> Tensor:
    """Return KL(N(mean, cov) || N(mean_p, cov_p)) for batches of shape (B, n) and (B, n, n)."""
    precision, error = torch.linalg.inv(cov_p), mean - mean_p
    trace = (precision @ cov).diagonal(dim1=-2, dim2=-1).sum(-1)
    square = (error.unsqueeze(-2) @ precision @ error.unsqueeze(-1)).squeeze(-1).squeeze(-1)
    logs = torch.linalg.slogdet(cov_p).logabsdet - torch.linalg.slogdet(cov).logabsdet
    return 0.5 * (trace + square - mean.shape[-1] + logs)


def gaussian_w2(mean: Tensor, cov: Tensor, mean_p: Tensor, cov_p: Tensor) -> Tensor:
    """Return the 2-Wasserstein distance of two Gaussians, with shape (B,)."""
    root = _sqrt(cov_p)
    cross = _sqrt(root @ cov @ root)
    trace = (cov + cov_p - 2 * cross).diagonal(dim1=-2, dim2=-1).sum(-1)
    return ((mean - mean_p).square().sum(-1) + trace.clamp(min=0)).sqrt()


def _sqrt(matrix: Tensor) -> Tensor:
    """Return the square root of symmetric positive semi-definite matrices (..., n, n)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT
