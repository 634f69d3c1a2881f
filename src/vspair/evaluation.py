"""What an answer is worth: scores of posteriors against truths, and inversion to a file.

:func:`scores` is the only place where samples meet truths. Every table, sweep and study takes its
numbers from it, under the names of :data:`vspair.vocabulary.VOCABULARY`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.anchored import AnchoredModel, as_first
from vspair.codes import SpikeSlab
from vspair.data import as_data, as_pairs
from vspair.errors import VspairError
from vspair.metrics import (
    central_interval,
    check_level,
    coverage,
    crps,
    energy_score,
    pearson,
    psnr,
    share_inside,
    ssim,
)
from vspair.mixtures import Mixture
from vspair.model import InverseModel
from vspair.posterior import LatentPosterior, Method, PointPosterior, Posterior
from vspair.runs.files import atomically

__all__ = ["answer_seconds", "evaluate", "excess", "invert", "score_method", "scores"]

WITH_NOISE = ("crps", "coverage_", "beyond_")
"""How the scores begin that are also given of samples with the decoder's noise."""


def _generator(device: torch.device, seed: int) -> Generator:
    if not 0 <= seed < 2**63:
        raise VspairError(f"seed = {seed}: expected a whole number from 0 to 2**63 - 1.")
    return Generator(device).manual_seed(seed)


def _entries_mean(values: Tensor) -> Tensor:
    """Return the mean over the entries of each observation, float64 with shape (B,)."""
    return values.flatten(1).double().mean(1)


def excess(estimate: Tensor, std: Tensor, x: Tensor, deviations: float = 2.0) -> Tensor:
    """Return by how much estimates miss the truth beyond so many deviations, at least 0.

    Arguments:
        estimate: Point estimates, with shape (B, *x_shape).
        std: The deviation that is reported for each entry, with shape (B, *x_shape).
        x: The truths, with shape (B, *x_shape).
        deviations: How many deviations are allowed.
    """
    return ((estimate - x).abs() - deviations * std).clamp(min=0)


def _spread_scores(
    samples: Tensor, mean: Tensor, x: Tensor, levels: Sequence[float]
) -> dict[str, Tensor]:
    """Return the scores that need at least two different samples (n, B, *x_shape)."""
    std = samples.std(0)
    inside = {f"coverage_{100 * v:g}": coverage(*central_interval(samples, v), x) for v in levels}
    return inside | {
        "variance": _entries_mean(std.square()),
        "deviation": _entries_mean(std),
        "beyond_2_std": _entries_mean(excess(mean, std, x) > 0),
        "beyond_4_std": _entries_mean(excess(mean, std, x, 4) > 0),
        "excess_2_std": _entries_mean(excess(mean, std, x)),
    }


def _region_scores(samples: Tensor, mean: Tensor, x: Tensor, region: Tensor) -> dict[str, Tensor]:
    """Return the shares of area, squared error and variance inside a region (B, *x_shape)."""
    maps = {"area": torch.ones_like(x), "error": (mean - x).square()}
    if len(samples) > 1:
        maps["variance"] = samples.var(0)
    return {f"{name}_inside": share_inside(values, region) for name, values in maps.items()}


def _code_scores(post: LatentPosterior, x: Tensor, generator: Generator) -> dict[str, Tensor]:
    """Return the error of the decoded mean code, and how many factors are present."""
    found = {"mse_code": _entries_mean((post.decode(post.code.mean) - x).square())}
    if isinstance(post.code, SpikeSlab | Mixture):
        found["active"], found["present"], found["hedged"] = post.code.counts()
        found["nnz"] = (post.code.rsample(generator) != 0).double().sum(1)
    return found


def _answer_scores(post: LatentPosterior, variance: Tensor) -> dict[str, Tensor]:
    """Return what factors carry of the variance (B,) of an anchored answer."""
    grain = _entries_mean(post.noise_std.square()) if post.noise else torch.zeros_like(variance)
    return {"variance_factors": variance - grain}


def _truths(posterior: Posterior, x: Tensor) -> Tensor:
    """Return truths as a batch beside the posterior; refuse those of another number or shape."""
    expected = len(posterior), *posterior.x_shape
    batch = x[None] if tuple(x.shape) == posterior.x_shape and len(posterior) == 1 else x
    if tuple(batch.shape) != expected:
        raise VspairError(
            f"x has shape {tuple(x.shape)}, the posterior is of {len(posterior)} observations of "
            f"shape {posterior.x_shape}: expected {expected}."
        )
    return batch.to(posterior.device)


@torch.no_grad()
def scores(
    posterior: Posterior,
    x: Tensor,
    *,
    samples: int = 50,
    generator: Generator | None = None,
    levels: Sequence[float] = (0.9,),
    region: Tensor | None = None,
    image_quality: bool = False,
) -> dict[str, Tensor]:
    """Return one value an observation for each metric that is defined, with shape (B,).

    Arguments:
        posterior: The posterior of B observations, of any method.
        x: The truths, with shape (B, *x_shape).
        samples: How many samples it is judged by.
        generator: Samples, on the posterior's device.
        levels: The central intervals whose coverage is measured.
        region: Entries whose share of error, variance and area is added, bool (B, *x_shape).
        image_quality: Whether to add PSNR and SSIM, for images of shape (H, W).

    Returns:
        ``mse_mean``, ``mse_sample``, ``crps`` and ``energy_score`` of any posterior; coverage,
        ``variance``, ``deviation``, ``beyond_2_std``, ``beyond_4_std`` and ``excess_2_std`` where
        it has spread and there are two samples or more; ``mse_code`` where it is decoded from a
        code, and ``active``, ``present``, ``hedged`` and ``nnz`` where that has gates;
        ``variance_factors`` of an anchored model.
    """
    x = _truths(posterior, x)
    generator = generator or _generator(posterior.device, 0)
    count = min(samples, posterior.most_samples or samples)
    sampled = posterior.sample(count, generator).reshape(count, *x.shape)
    answered = isinstance(posterior, LatentPosterior) and posterior.answer is not None
    mean = posterior.mean().reshape(x.shape) if answered else sampled.mean(0)
    found = {
        "mse_mean": _entries_mean((mean - x).square()),
        "mse_sample": _entries_mean((sampled - x).square().mean(0)),
        "crps": _entries_mean(crps(sampled, x)),
        "energy_score": energy_score(sampled, x),
    }
    if len(sampled) > 1:
        found |= _spread_scores(sampled, mean, x, levels)
    if region is not None:
        found |= _region_scores(sampled, mean, x, region.to(x.device))
    if image_quality:
        found |= {"psnr": psnr(mean, x), "ssim": ssim(mean, x), "ssim_sample": ssim(sampled[0], x)}
    if isinstance(posterior, LatentPosterior):
        found |= _code_scores(posterior, x, generator)
        if isinstance(posterior.model, AnchoredModel) and len(sampled) > 1:
            found |= _answer_scores(posterior, found["variance"])
    if isinstance(posterior, PointPosterior):
        found |= posterior.details
    return found


def score_method(
    method: Method,
    x: Tensor,
    y: Tensor,
    *,
    samples: int = 50,
    seed: int = 0,
    chunk: int = 64,
    levels: Sequence[float] = (0.9,),
    region: Tensor | None = None,
    image_quality: bool = False,
    first: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the scores of a method on test pairs, one value a pair, float64 on the CPU, (N,).

    Arguments:
        method: Anything that answers with a posterior.
        x: The truths, with shape (N, *x_shape).
        y: Their observations, with shape (N, *y_shape).
        samples: Posterior samples for each observation.
        seed: Fixes the samples.
        chunk: Observations that are treated at once.
        levels: The central intervals whose coverage is measured.
        region: Entries whose share of error, variance and area is added, bool (N, *x_shape).
        image_quality: Whether to add PSNR and SSIM.
        first: First guesses, with shape (N, *x_shape), where the method needs them.

    Returns:
        What :func:`scores` returns, and for models some scores ``_with_noise``, of samples that
        include the decoder's noise.
    """
    generator, parts = None, []
    for rows in torch.arange(len(x)).split(chunk):
        post, truth = _ask(method, y[rows], None if first is None else first[rows]), x[rows]
        generator = generator or _generator(post.device, seed)
        how: dict[str, Any] = {"samples": samples, "generator": generator, "levels": levels}
        inside = None if region is None else region[rows]
        row = scores(post, truth, **how, region=inside, image_quality=image_quality)
        if isinstance(post, LatentPosterior) and not post.noise:
            noisy = scores(post.with_noise(), truth, **how)
            row |= {f"{k}_with_noise": v for k, v in noisy.items() if k.startswith(WITH_NOISE)}
        parts.append({name: values.double().cpu() for name, values in row.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _ask(method: Method, y: Tensor, first: Tensor | None) -> Posterior:
    """Return a method's posterior, with first guesses where there are any."""
    if first is None:
        return method.posterior(y)
    if not isinstance(method, AnchoredModel):
        raise VspairError("first was given, but only anchored models take first guesses.")
    return method.posterior(y, first=first)


@torch.no_grad()
def answer_seconds(method: Method, y: Tensor, *, samples: int = 0, repeats: int = 3) -> float:
    """Return the seconds of an answer: the median of a few, after one to warm up.

    Arguments:
        method: Anything that answers with a posterior.
        y: Observations, with shape (B, *y_shape), where the method computes.
        samples: How many samples are asked for; 0 asks for an estimate, of a model that is the
            decoded mean code.
        repeats: How many answers are timed.
    """
    times = []
    for _ in range(repeats + 1):
        _wait_for(y.device)
        start = time.perf_counter()
        post = method.posterior(y)
        if samples:
            post.sample(samples)
        elif isinstance(post, LatentPosterior):
            post.approximate_mean()
        else:
            post.mean()
        _wait_for(y.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def evaluate(
    model: Method,
    x: Any,
    y: Any,
    *,
    first: Any = None,
    samples: int = 50,
    seed: int = 0,
    chunk: int = 64,
) -> dict[str, float]:
    """Return scores of the posterior on test pairs, with the trivial floors beside them.

    Arguments:
        model: A trained model, or any other method.
        x: The true unknowns, with shape (N, *x_shape).
        y: Their observations, with shape (N, *y_shape).
        first: First guesses of x, where the model was trained with them.
        samples: Posterior samples for each observation.
        seed: Fixes the samples.
        chunk: Observations that are treated at once.

    Returns:
        The mean of each score over the pairs (see :func:`score_method`); the correlation of
        variance and squared error, ``uncertainty_error_r``; ``share_in_factors``, of an anchored
        model; and ``floor_mean``, the MSE of
        answering every observation with the mean of these x, and, where shapes agree,
        ``floor_y``, the MSE of answering with y itself. Scores that are not defined are left out.
    """
    x, y = as_pairs(x, y, vary=False)
    guesses = None if first is None else as_first(first, len(x), tuple(x.shape[1:]))
    one = _ask(model, y[:1], None if guesses is None else guesses[:1])
    if tuple(x.shape[1:]) != (x_shape := one.x_shape):
        raise VspairError(
            f"x has shape {tuple(x.shape)}: this model was trained on unknowns of shape {x_shape}."
        )
    found = score_method(model, x, y, samples=samples, seed=seed, chunk=chunk, first=guesses)
    result = {name: float(values.mean()) for name, values in found.items()}
    if "variance_factors" in result:
        result["share_in_factors"] = result["variance_factors"] / result["variance"]
    if "variance" in found:
        result |= _correlation(found["variance"], found["mse_mean"])
    result["floor_mean"] = float((x - x.mean(0)).double().square().mean())
    if x.shape == y.shape:
        result["floor_y"] = float((x - y).double().square().mean())
    return _finite(result)


def _correlation(variance: Tensor, error: Tensor) -> dict[str, float]:
    """Return the correlation under its name, or nothing where one side never changes."""
    if any(bool((t == t[0]).all()) for t in (variance, error)):
        return {}
    return {"uncertainty_error_r": float(pearson(variance, error))}


def _finite(scores: dict[str, float]) -> dict[str, float]:
    wrong = [name for name, value in scores.items() if not math.isfinite(value)]
    if wrong:
        raise VspairError(
            f"These scores are not finite: {', '.join(wrong)}. The model's answers are not "
            "numbers, or squares of this data are too large for float32: train the model again, "
            "or on data in a larger unit."
        )
    return scores


def invert(
    model: Method,
    y: Any,
    *,
    samples: int = 50,
    level: float = 0.9,
    noise: bool | None = None,
    first: Any = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Invert observations, and save the answer where a file is named.

    Arguments:
        model: A trained model, or any other method.
        y: One observation or a batch; a batch for methods that are no models.
        samples: Posterior samples for each observation.
        level: The probability inside the interval.
        noise: Whether samples include the decoder's noise; where not given, those of anchored
            models do and others do not.
        first: First guesses of x, where the model was trained with them.
        seed: Fixes the samples.
        out: A new ``.npz`` file.

    Returns:
        ``mean`` (an anchored model's answer), ``std``, ``lower`` and ``upper`` ends of the
        interval, ``approximate_mean``, the ``samples``, which the others before are of, the
        code's parameters, and the ``seconds`` that it took. A model without spread (PAIR) has no
        deviation, interval and samples.
    """
    check_level(level)
    path = None if out is None else _new_npz(Path(out))
    start = time.perf_counter()
    more: dict[str, Any] = {} if noise is None else {"noise": noise}
    more |= {} if first is None else {"first": first}
    if isinstance(model, AnchoredModel):
        post: Posterior = model.posterior(y, **more)
    elif isinstance(model, InverseModel) and first is None:
        post = model.posterior(y, **more)
    else:
        post = _ask(model, as_data(y, "y"), first)
    sampled = post.sample(samples, _generator(post.device, seed))
    spread = {"samples": sampled, **_summary(sampled, level)}
    if isinstance(post, LatentPosterior) and post.answer is not None:
        spread["mean"] = post.mean()
    named = spread if post.has_spread else {"mean": sampled[0]}
    if isinstance(post, LatentPosterior):
        named |= {"approximate_mean": post.approximate_mean(), **post.parameters()}
    arrays = {k: v.cpu().numpy() for k, v in named.items()}
    arrays["seconds"] = np.array(time.perf_counter() - start)
    if path is not None:
        atomically(path, lambda part: _save_npz(part, arrays))
    return arrays


def _summary(samples: Tensor, level: float) -> dict[str, Tensor]:
    """Return mean, deviation and interval of samples (n, *shape), each of shape (*shape)."""
    # One sample deviates by nothing, as in Posterior.moments.
    correction = min(1, len(samples) - 1)
    std, mean = torch.std_mean(samples.double(), dim=0, correction=correction)
    lower, upper = central_interval(samples, level)
    return {"mean": mean.to(samples), "std": std.to(samples), "lower": lower, "upper": upper}


def _new_npz(path: Path) -> Path:
    if path.suffix != ".npz":
        raise VspairError(f"{path}: expected a file that ends in .npz.")
    if path.exists():
        raise VspairError(f"{path} exists already. Name another file or remove it.")
    if not path.parent.is_dir():
        raise VspairError(f"There is no folder {path.parent} to write {path.name} into.")
    return path


def _save_npz(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
