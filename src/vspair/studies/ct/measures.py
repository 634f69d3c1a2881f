"""What the CT study measures of any answer, and what of vsPAIR alone.

An answer is a dictionary of arrays by group: ``image`` has one number a test slice for each
metric, ``shown`` the images of a few slices, ``row`` numbers about the whole.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair import runs
from vspair.codes import SpikeSlab
from vspair.metrics import central_interval, coverage, crps, psnr, ssim
from vspair.model import InverseModel, PairedAutoencoder
from vspair.posterior import LatentPosterior
from vspair.problems.ct import CtPairs

__all__ = [
    "BEYOND",
    "clock",
    "codes",
    "decoded",
    "excess",
    "history",
    "judge",
    "judge_samples",
    "overfitting",
    "wider",
]

BEYOND = 2.0
"""Deviations that an estimate may be from the truth; what is beyond counts as hallucinated."""

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
    noisy = drawn + unit * model.noise_std * model.x_normaliser.std
    beyond = excess(drawn.mean(0), noisy.std(0), x)
    return {
        "crps_with_noise": _per_image(crps(noisy, x)),
        "coverage_90_with_noise": coverage(*central_interval(noisy, 0.9), x),
        "beyond_with_noise": _per_image(beyond > 0),
    }


def with_noise(answer: Mapping[str, Mapping[str, Any]]) -> Tensor:
    """Return the deviation of what is shown, with the decoder's noise where that is learned.

    Arguments:
        answer: What a stage kept of a method that samples.

    Returns:
        With shape (n, R, C).
    """
    std = torch.from_numpy(answer["shown"]["std"])
    return (std.square() + float(answer["row"].get("noise", 0.0)) ** 2).sqrt()


# -- vsPAIR ---------------------------------------------------------------------------------


@torch.no_grad()
def codes(model: InverseModel, y: Tensor) -> LatentPosterior:
    """Return the posterior of many observations of shape (B, A, D), encoded part by part."""
    parts = [model.posterior(part).code for part in y.split(CHUNK)]
    names = ("mu", "logvar", "log_on", "log_off")
    mu, logvar, on, off = (torch.cat([getattr(part, n) for part in parts]) for n in names)
    return LatentPosterior(model, SpikeSlab(mu, logvar, on, off, model.config.temperature))


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
    device, row = model.device, {}
    for name, part in pairs.items():
        generator, sums = Generator(device).manual_seed(0), [0.0, 0.0]
        for x, y in zip(part.x.split(CHUNK), part.y.split(CHUNK), strict=True):
            x = x.to(device)
            own = LatentPosterior(model, model.x_encoder(model.x_normaliser(x)))
            answers = own.sample(1, generator)[0], model.posterior(y).mean(samples, generator)
            for i, answer in enumerate(answers):
                sums[i] += float(_per_image((answer - x).square()).sum())
        row[f"autoencoder_{name}"], row[f"inversion_{name}"] = (s / len(part.x) for s in sums)
    return row


def decoded(model: InverseModel, y: Tensor, samples: int = 0) -> Tensor:
    """Return samples of x, or the decoded mean code where none are asked for."""
    post = model.posterior(y)
    return post.sample(samples) if samples else post.approximate_mean()


def history(folder: Path, best: int) -> dict[str, Any]:
    """Return the losses of each epoch of a run folder, and ``best``, the epoch of its weights.

    That is not the epoch of the least loss: a training keeps the weights of the least score.
    """
    rows = runs.Run(folder).metrics()
    names = {"epoch": "epoch", "train": "loss", "validation": "val_loss"}
    found = {k: np.array([r.get(v, np.nan) for r in rows], np.float32) for k, v in names.items()}
    return found | {"best": np.array([best], np.float32)}


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
