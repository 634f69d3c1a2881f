"""What a trained model is worth on pairs that it has not seen, and inversion to a file."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.codes import Point, SpikeSlab
from vspair.data import as_pairs
from vspair.errors import VspairError
from vspair.metrics import central_interval, check_level, coverage, crps, energy_score, pearson
from vspair.model import InverseModel
from vspair.posterior import Posterior
from vspair.runs import atomically

__all__ = ["evaluate", "invert"]


def _generator(model: InverseModel, seed: int) -> Generator:
    if not 0 <= seed < 2**63:
        raise VspairError(f"seed = {seed}: expected a whole number from 0 to 2**63 - 1.")
    return Generator(model.device).manual_seed(seed)


def _scores(
    model: InverseModel, x: Tensor, y: Tensor, n: int, generator: Generator
) -> dict[str, Tensor]:
    """Return one value an observation for each metric that is defined, with shape (B,)."""
    post = model.posterior(y)
    samples = post.sample(n, generator)
    mean = samples.mean(0)
    noisy = Posterior(model, post.code, noise=True).interval(0.9, n, generator)
    scores = {
        "mse": (samples[0] - x).square().flatten(1).mean(1),
        "mse_mean": (mean - x).square().flatten(1).mean(1),
        "mse_approximate_mean": (post.approximate_mean() - x).square().flatten(1).mean(1),
        "crps": crps(samples, x).flatten(1).mean(1),
        "energy_score": energy_score(samples, x),
        "coverage_90": coverage(*central_interval(samples, 0.9), x),
        "coverage_90_with_noise": coverage(*noisy, x),
    }
    # A point has no spread, and neither has one sample; round-off would look like one.
    if n > 1 and not isinstance(post.code, Point):
        scores["variance"] = samples.var(0).flatten(1).mean(1)
    if isinstance(post.code, SpikeSlab):
        scores["active"] = post.active().double().sum(1)
        scores["nnz"] = (post.code.rsample(generator) != 0).double().sum(1)
    return {k: v.double().cpu() for k, v in scores.items()}


def evaluate(
    model: InverseModel, x: Any, y: Any, *, samples: int = 50, seed: int = 0, chunk: int = 64
) -> dict[str, float]:
    """Return scores of the posterior on test pairs, with the trivial floors beside them.

    Arguments:
        model: A trained model.
        x: The true unknowns, with shape (N, *x_shape).
        y: Their observations, with shape (N, *y_shape).
        samples: Posterior samples for each observation.
        seed: Fixes the samples.
        chunk: Observations that are treated at once.

    Returns:
        ``mse`` of one sample, ``mse_mean`` of the mean of all samples and
        ``mse_approximate_mean`` of the decoded mean code; ``crps`` and ``energy_score``; the
        shares of entries inside the 90 % interval without and with the decoder's noise; the
        Pearson correlation of mean variance and squared error; the factors more likely present
        than not (``active``) and the non-zeros of one sample (``nnz``); and
        ``floor_mean``, the MSE of answering every observation with the mean of these x, and,
        where shapes agree, ``floor_y``, the MSE of answering with y itself. Scores that are not
        defined are left out: variance and correlation for one sample or a model without spread,
        the correlation for one pair, and the factors of a model without gates.
    """
    x, y = as_pairs(x, y, vary=False)
    if tuple(x.shape[1:]) != model.x_shape:
        raise VspairError(
            f"x has shape {tuple(x.shape)}: this model was trained on unknowns of shape "
            f"{model.x_shape}."
        )
    generator = _generator(model, seed)
    parts = [
        _scores(model, a.to(generator.device), b, samples, generator)
        for a, b in zip(x.split(chunk), y.split(chunk), strict=True)
    ]
    scores = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
    result = {k: float(v.mean()) for k, v in scores.items()}
    if "variance" in scores:
        result |= _correlation(scores["variance"], scores["mse_mean"])
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
    model: InverseModel,
    y: Any,
    *,
    samples: int = 50,
    level: float = 0.9,
    noise: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Invert observations, and save the answer where a file is named.

    Arguments:
        model: A trained model.
        y: One observation or a batch.
        samples: Posterior samples for each observation.
        level: The probability inside the interval.
        noise: Whether samples include the decoder's noise.
        seed: Fixes the samples.
        out: A new ``.npz`` file.

    Returns:
        ``mean``, ``std``, ``lower`` and ``upper`` ends of the interval, ``approximate_mean``,
        the ``samples``, which the four before are of, the code's parameters, and the ``seconds``
        that it took.
    """
    check_level(level)
    path = None if out is None else _new_npz(Path(out))
    start = time.perf_counter()
    generator = _generator(model, seed)
    post = model.posterior(y, noise=noise)
    drawn = post.sample(samples, generator)
    named = _summary(drawn, level)
    named |= {"approximate_mean": post.approximate_mean(), "samples": drawn}
    arrays = {k: v.cpu().numpy() for k, v in (named | post.parameters()).items()}
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
