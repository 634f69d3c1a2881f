"""What the heat study measures: floors without a network, and the answers of a trained model."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from vspair.methods.ridge import Ridge
from vspair.metrics import central_interval, coverage, crps
from vspair.model import InverseModel
from vspair.problems.heat import HeatPairs, HeatProblem
from vspair.studies.factors import code_row
from vspair.uncertainty import uncertainty_error

__all__ = [
    "FLOORS", "answer_with_shifts", "best_penalty", "floors", "measure", "share_inside",
]  # fmt: skip

FLOORS = {
    "exact": "exact inversion",
    "tikhonov": "Tikhonov",
    "wiener": "Wiener",
    "ridge": "ridge",
    "ridge-shifts": "ridge with shifts",
    "trivial-y": "y itself",
    "trivial-mean": "mean field",
}
"""The methods without a network, and how tables call them."""

PENALTIES = (0.0, *(10.0 ** (k / 4) for k in range(-48, 9)))
"""The penalties that are tried for the Tikhonov inversion: none, and 1e-12 to 100."""

FEW = 50
"""Samples that the paper takes pixelwise variances over."""


def _mse(answer: Tensor, x: Tensor) -> float:
    return float((answer - x).double().square().mean())


def best_penalty(problem: HeatProblem, pairs: HeatPairs) -> float:
    """Return the Tikhonov penalty of least squared error on pairs."""
    return min(PENALTIES, key=lambda p: _mse(problem.invert(pairs.y, p), pairs.x))


def answer_with_shifts(train: HeatPairs, y: Tensor) -> Tensor:
    """Return the linear answer that pairs and all their periodic shifts teach, like y.

    Least squares over all shifts is one complex factor for each Fourier mode.

    Arguments:
        train: The pairs to learn from.
        y: Observations, with shape (B, n, n).
    """
    seen, wanted = (torch.fft.rfft2(t.double()) for t in (train.y, train.x))
    factor = (seen.conj() * wanted).sum(0) / seen.abs().square().sum(0).clamp(min=1e-300)
    return torch.fft.irfft2(factor * torch.fft.rfft2(y.double()), s=y.shape[-2:]).to(y.dtype)


def floors(problem: HeatProblem, train: HeatPairs, test: HeatPairs) -> dict[str, float]:
    """Return the MSE of each method without a network on the test pairs.

    The first three are given the equation, Wiener's filter the noise level too; ridge regression
    learns from the same pairs as the networks, once with all their shifts, as the calibrated
    preset sees them.

    Arguments:
        problem: The equation and the noise.
        train: The pairs to learn from.
        test: The pairs to measure on.
    """
    answers = {
        "exact": problem.invert(test.y),
        "tikhonov": problem.invert(test.y, best_penalty(problem, train)),
        "wiener": problem.wiener(test.y, train.x),
        "ridge": Ridge(train.x, train.y)(test.y),
        "ridge-shifts": answer_with_shifts(train, test.y),
        "trivial-y": test.y,
        "trivial-mean": train.x.mean(0).expand_as(test.x),
    }
    return {name: _mse(answer, test.x) for name, answer in answers.items()}


def share_inside(values: Tensor, region: Tensor) -> Tensor:
    """Return the share of each map's total that lies inside a region, with shape (B,).

    Arguments:
        values: Maps of numbers that are not negative, such as variances, with shape (B, H, W).
        region: Which pixels are inside, bool (B, H, W).
    """
    total = values.flatten(1).double()
    return (total * region.flatten(1)).sum(1) / total.sum(1)


@torch.no_grad()
def measure(
    model: InverseModel, test: HeatPairs, *, samples: int = 1000, seed: int = 0
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return a model's row of every table, and the values behind it.

    Arguments:
        model: A trained model with sparse codes.
        test: The pairs to measure on, B of them.
        samples: How many samples of each posterior.
        seed: Fixes them.

    Returns:
        The numbers by name, and for each test pair ``mse``, ``mse_mean``, ``variance``,
        ``variance_inside``, ``error_inside`` and ``area_inside``, each with shape (B,).
    """
    generator = Generator(model.device).manual_seed(seed)
    post, x = model.posterior(test.y), test.x.to(model.device)
    drawn = post.sample(samples, generator)
    images = _per_image(drawn, x, test.source.disc(x.shape[-1]).to(x.device))
    row = {k: float(v.double().mean()) for k, v in images.items()}
    field = float(x.double().var())
    row["relative_mse"] = row["mse"] / field
    row["relative_mse_mean"] = row["mse_mean"] / field
    row["mse_approximate_mean"] = _mse(post.approximate_mean(), x)
    row["variance_50"] = float(drawn[:FEW].var(0).mean())
    row |= _scores(drawn, x, "") | code_row(post, generator)
    drawn = model.posterior(test.y, noise=True).sample(samples, generator)
    row |= _scores(drawn, x, "_with_noise") | {"parameters": float(model.n_parameters)}
    for name, error in (("", images["mse"]), ("_mean", images["mse_mean"])):
        row[f"uncertainty_error_r{name}"] = uncertainty_error(images["variance"], error).r
    return row, {k: v.cpu() for k, v in images.items()}


def _per_image(drawn: Tensor, x: Tensor, disc: Tensor) -> dict[str, Tensor]:
    """Return errors, variances and their shares on the source, each with shape (B,)."""
    mean, variance = drawn.mean(0), drawn.var(0)
    error = (mean - x).square()
    return {
        "mse": (drawn - x).square().mean((0, 2, 3)),
        "mse_mean": error.mean((1, 2)),
        "variance": variance.mean((1, 2)),
        "variance_inside": share_inside(variance, disc),
        "error_inside": share_inside(error, disc),
        "area_inside": disc.double().mean((1, 2)),
    }


def _scores(drawn: Tensor, x: Tensor, suffix: str) -> dict[str, float]:
    """Return coverage and CRPS of samples, with or without the decoder's noise."""
    inside = coverage(*central_interval(drawn, 0.9), x)
    return {
        f"coverage_90{suffix}": float(inside.mean()),
        f"crps{suffix}": float(crps(drawn, x).mean()),
    }
