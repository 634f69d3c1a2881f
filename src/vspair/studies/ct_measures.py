"""What the CT study measures of any answer, and what of vsPAIR alone.

An answer is a dictionary of arrays by group: ``image`` has one number a test slice for each
metric, ``shown`` the images of a few slices, ``row`` numbers about the whole.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.metrics import central_interval, coverage, crps, psnr, ssim
from vspair.model import InverseModel, PairedAutoencoder
from vspair.posterior import Posterior
from vspair.problems.ct import CtPairs
from vspair.uncertainty import nnz, spread_over_y, summarise

__all__ = [
    "BEYOND",
    "STEPS",
    "clock",
    "code_row",
    "codes",
    "excess",
    "judge",
    "judge_samples",
    "leading",
    "overfitting",
    "perturbed",
    "wider",
]

BEYOND = 2.0
"""Deviations that an estimate may be from the truth; what is beyond counts as hallucinated."""

STEPS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Perturbations of a factor, in its own deviations."""

CHUNK = 128
"""Pairs that are treated at once."""


def _per_image(values: Tensor) -> Tensor:
    return values.flatten(1).double().mean(1)


def judge(estimate: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Return MSE, PSNR and SSIM of point estimates, each with shape (B,).

    Arguments:
        estimate: With shape (B, R, C).
        x: The truths, with shape (B, R, C).
    """
    error = _per_image((estimate - x).square())
    return {"mse": error, "psnr": psnr(estimate, x), "ssim": ssim(estimate, x)}


def excess(estimate: Tensor, deviation: Tensor, x: Tensor) -> Tensor:
    """Return by how much an estimate misses the truth beyond two deviations, at least 0.

    Arguments:
        estimate: With shape (B, R, C).
        deviation: What is reported for each pixel, with shape (B, R, C).
        x: The truths, with shape (B, R, C).
    """
    return ((estimate - x).abs() - BEYOND * deviation).clamp(min=0)


def judge_samples(drawn: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Return the measures of samples and of their mean, each with shape (B,).

    Arguments:
        drawn: K samples of each observation, with shape (K, B, R, C).
        x: The truths, with shape (B, R, C).
    """
    mean, deviation = drawn.mean(0), drawn.std(0)
    beyond = excess(mean, deviation, x)
    return judge(mean, x) | {
        "mse_sample": _per_image((drawn - x).square().mean(0)),
        "ssim_sample": ssim(drawn[0], x),
        "crps": _per_image(crps(drawn, x)),
        "coverage_90": coverage(*central_interval(drawn, 0.9), x),
        "deviation": _per_image(deviation),
        "beyond": _per_image(beyond > 0),
        "excess": _per_image(beyond),
    }


def wider(
    model: InverseModel, drawn: Tensor, x: Tensor, generator: Generator
) -> dict[str, Tensor]:
    """Return the measures of samples to which the decoder's noise is added, shape (B,) each."""
    unit = torch.randn(drawn.shape, generator=generator, device=drawn.device, dtype=drawn.dtype)
    noisy = drawn + unit * model.width * model.x_normaliser.std
    beyond = excess(drawn.mean(0), noisy.std(0), x)
    return {
        "crps_with_noise": _per_image(crps(noisy, x)),
        "coverage_90_with_noise": coverage(*central_interval(noisy, 0.9), x),
        "beyond_with_noise": _per_image(beyond > 0),
    }


# -- vsPAIR ---------------------------------------------------------------------------------


@torch.no_grad()
def codes(model: InverseModel, y: Tensor) -> Posterior:
    """Return the posterior of many observations of shape (B, A, D), encoded part by part."""
    parts = [model.posterior(part).code for part in y.split(CHUNK)]
    names = ("mu", "logvar", "log_on", "log_off")
    mu, logvar, on, off = (torch.cat([getattr(part, n) for part in parts]) for n in names)
    return Posterior(model, SpikeSlab(mu, logvar, on, off, model.config.temperature))


def code_row(post: Posterior, generator: Generator) -> dict[str, float]:
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


@torch.no_grad()
def overfitting(
    model: InverseModel, pairs: Mapping[str, CtPairs], samples: int
) -> dict[str, float]:
    """Return errors on each part of the data, to be compared with each other.

    Arguments:
        model: A paired model.
        pairs: The parts by name.
        samples: How many samples the mean is taken over.

    Returns:
        ``autoencoder_NAME``, the error of x decoded from a sample of its own code, and
        ``inversion_NAME``, that of the mean of samples given y.
    """
    assert isinstance(model, PairedAutoencoder)
    device, row = model.log_width.device, {}
    for name, part in pairs.items():
        generator, sums = Generator(device).manual_seed(0), [0.0, 0.0]
        for x, y in zip(part.x.split(CHUNK), part.y.split(CHUNK), strict=True):
            x = x.to(device)
            own = Posterior(model, model.x_encoder(model.x_normaliser(x)))
            answers = own.sample(1, generator)[0], model.posterior(y).mean(samples, generator)
            for i, answer in enumerate(answers):
                sums[i] += float(_per_image((answer - x).square()).sum())
        row[f"autoencoder_{name}"], row[f"inversion_{name}"] = (s / len(part.x) for s in sums)
    return row


def leading(post: Posterior, rows: Tensor, k: int = 4) -> Tensor:
    """Return the k factors whose mu varies most over observations, for some of them.

    Arguments:
        post: The posterior of B observations.
        rows: The n observations to name factors for. Those whose gate is open there, with a
            probability above one half, come before all others.
        k: How many factors.

    Returns:
        Indices with shape (n, k).
    """
    assert isinstance(post.code, SpikeSlab)
    varies = post.code.mu.double().var(0)
    opened = post.code.omega[rows.to(varies.device)] > 0.5
    return torch.where(opened, varies + varies.max() + 1, varies).topk(k).indices


@torch.no_grad()
def perturbed(post: Posterior, rows: Tensor, dims: Tensor) -> tuple[Tensor, Tensor]:
    """Return what moving one factor by multiples of its sigma does to the decoded mean code.

    Arguments:
        post: The posterior of B observations.
        rows: Some of them, with shape (n,).
        dims: The factors of each, with shape (n, k).

    Returns:
        The decoded mean code, with shape (n, R, C), and the differences to it, with shape
        (n, k, 5, R, C).
    """
    code = post.code
    assert isinstance(code, SpikeSlab)
    mean, rows = code.mean, rows.to(code.mean.device)
    sigma = code.slab.variance.sqrt()[rows].gather(1, dims)
    moves = sigma.unsqueeze(-1) * sigma.new_tensor(STEPS)
    z = mean[rows][:, None, None].repeat(1, dims.shape[1], len(STEPS), 1)
    where = dims[:, :, None, None].expand(*moves.shape, 1)
    z.scatter_add_(-1, where, moves.unsqueeze(-1))
    centre = post.decode(mean[rows])
    return centre, post.decode(z) - centre[:, None, None]


# -- time -----------------------------------------------------------------------------------


def clock(work: Callable[[], Any], device: torch.device, repeats: int = 3) -> float:
    """Return the seconds that some work takes: the median of a few, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    found = statistics.median(times[1:])
    assert math.isfinite(found)
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
