"""What a trained model is worth on pairs that it has not seen, and inversion to a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.data import as_pairs
from vspair.errors import VspairError
from vspair.metrics import coverage, crps, energy_score, pearson
from vspair.model import InverseModel
from vspair.posterior import Posterior
from vspair.runs import atomically

__all__ = ["evaluate", "invert"]


def _scores(model: InverseModel, x: Tensor, y: Tensor, n: int, generator: Generator) -> Any:
    """Return one value an observation for each metric."""
    post = model.posterior(y)
    samples = post.sample(n, generator)
    mean = samples.mean(0)
    noisy = Posterior(model, post.code, noise=True).interval(0.9, n, generator)
    low, high = torch.quantile(samples.flatten(1), torch.tensor([0.05, 0.95]).to(samples), dim=0)
    scores = {
        "mse": (samples[0] - x).square().flatten(1).mean(1),
        "mse_mean": (mean - x).square().flatten(1).mean(1),
        "mse_approximate_mean": (post.approximate_mean() - x).square().flatten(1).mean(1),
        "crps": crps(samples, x).flatten(1).mean(1),
        "energy_score": energy_score(samples, x),
        "coverage_90": coverage(low.view_as(x), high.view_as(x), x),
        "coverage_90_with_noise": coverage(*noisy, x),
        "variance": samples.var(0).flatten(1).mean(1),
    }
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
        where shapes agree, ``floor_y``, the MSE of answering with y itself.
    """
    x, y = as_pairs(x, y)
    if tuple(x.shape[1:]) != model.x_shape:
        raise VspairError(
            f"x has shape {tuple(x.shape)}: this model was trained on unknowns of shape "
            f"{model.x_shape}."
        )
    device = model.log_width.device
    generator = Generator(device).manual_seed(seed)
    parts = [
        _scores(model, a.to(device), b, samples, generator)
        for a, b in zip(x.split(chunk), y.split(chunk), strict=True)
    ]
    scores = {k: torch.cat([p[k] for p in parts]) for k in parts[0]}
    result = {k: float(v.mean()) for k, v in scores.items()}
    result["uncertainty_error_r"] = float(pearson(scores["variance"], scores["mse_mean"]))
    result["floor_mean"] = float((x - x.mean(0)).double().square().mean())
    if x.shape == y.shape:
        result["floor_y"] = float((x - y).double().square().mean())
    return result


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
        the ``samples``, the code's parameters, and the ``seconds`` that it took.
    """
    path = None if out is None else _new_npz(Path(out))
    start = time.perf_counter()
    post = model.posterior(y, noise=noise)
    device = model.log_width.device

    def again() -> Generator:
        return Generator(device).manual_seed(seed)

    lower, upper = post.interval(level, samples, again())
    mean, std = post.moments(samples, again())
    named = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    named |= {
        "approximate_mean": post.approximate_mean(),
        "samples": post.sample(samples, again()),
    }
    arrays = {k: v.cpu().numpy() for k, v in (named | post.parameters()).items()}
    arrays["seconds"] = np.array(time.perf_counter() - start)
    if path is not None:
        atomically(path, lambda part: _save_npz(part, arrays))
    return arrays


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
