"""Estimates with Gaussian residuals, against closed forms and Monte Carlo."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.evaluation import score_method
from vspair.methods import AnswerY, GaussianResiduals, Ridge
from vspair.metrics import crps
from vspair.model import build
from vspair.networks import NetworkConfig
from vspair.posterior import NormalPosterior

STD = torch.tensor([[0.5, 1.0, 2.0], [0.1, 3.0, 0.0]])


def noisy(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pairs x = y + noise of the deviation STD, each of shape (n, 2, 3)."""
    generator = Generator().manual_seed(seed)
    y = torch.randn(n, 2, 3, generator=generator)
    return y + STD * torch.randn(n, 2, 3, generator=generator), y


def normal_crps(mean: Tensor, std: Tensor, x: Tensor) -> Tensor:
    """Return the CRPS of a normal in closed form (Gneiting and Raftery, 2007, equation 21)."""
    z = (x - mean) / std
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def test_the_deviation_is_that_of_the_residuals() -> None:
    x, y = noisy(700, 0)  # more than one chunk
    method = GaussianResiduals(AnswerY(), x, y)
    torch.testing.assert_close(method.std, (x - y).square().mean(0).sqrt())
    shifted = GaussianResiduals(AnswerY(), x + 4, y)
    torch.testing.assert_close(
        shifted.std.square(), (x - y).var(0, correction=0) + ((x - y).mean(0) + 4).square()
    )


def test_gaussian_residuals_are_covered_and_scored_as_the_closed_form_says() -> None:
    method = GaussianResiduals(AnswerY(), *noisy(4000, 1))
    x, y = noisy(3000, 2)
    low, high = method.posterior(y).interval(0.9)
    inside = ((low <= x) & (x <= high)).double().mean(0)
    assert inside.flatten()[:5] == pytest.approx([0.9] * 5, abs=0.03)
    assert float(inside[1, 2]) == 1  # no noise: the interval is the truth itself
    found = {k: float(v.mean()) for k, v in score_method(method, x, y, samples=80).items()}
    assert found["coverage_90"] == pytest.approx((5 * 0.9 + 1) / 6, abs=0.01)
    assert found["crps"] == pytest.approx(float(STD.mean()) / math.sqrt(math.pi), rel=0.02)


def test_residuals_of_training_pairs_would_be_too_small() -> None:
    generator = Generator().manual_seed(0)
    y = torch.randn(400, 30, generator=generator)
    x = y[:, :3] + torch.randn(400, 3, generator=generator)
    ridge = Ridge(x[:40], y[:40], penalties=[1e-6])
    own = GaussianResiduals(ridge, x[:40], y[:40])
    fresh = GaussianResiduals(ridge, x[40:220], y[40:220])
    test = x[220:], y[220:]
    covered = [float(score_method(m, *test)["coverage_90"].mean()) for m in (own, fresh)]
    assert covered[0] < 0.6
    assert covered[1] == pytest.approx(0.9, abs=0.04)


def test_what_cannot_be_calibrated_is_refused() -> None:
    x, y = noisy(5, 0)
    with pytest.raises(VspairError, match="1 calibration pairs"):
        GaussianResiduals(AnswerY(), x[:1], y[:1])
    with pytest.raises(VspairError, match=r"x has shape \(5, 2\).*\(B, 2, 3\)"):
        GaussianResiduals(AnswerY(), x[:, :, 0], y)
    small = NetworkConfig(width=4)
    model = build(ModelConfig("vPAIR", 6, 5, small, small), (2, 3), (2, 3)).eval()
    with pytest.raises(VspairError, match="a spread of its own"):
        GaussianResiduals(model, x, y)


# -- the posterior ----------------------------------------------------------------------------


def test_a_normal_posterior_is_exact_and_sampled() -> None:
    mean = torch.randn(4, 2, 3, generator=Generator().manual_seed(0))
    post = NormalPosterior(mean, STD)
    assert torch.equal(post.mean(), mean)
    assert torch.equal(post.std(), STD.expand(4, 2, 3))
    low, high = post.interval(0.8)
    drawn = post.sample(20_000, Generator().manual_seed(1))
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.1)
    torch.testing.assert_close(drawn.std(0), post.std(), rtol=0.03, atol=1e-6)
    torch.testing.assert_close(drawn.quantile(0.1, 0), low, rtol=0, atol=0.15)
    torch.testing.assert_close(drawn.quantile(0.9, 0), high, rtol=0, atol=0.15)
    assert torch.equal(drawn, post.sample(20_000, Generator().manual_seed(1)))
    independent = torch.corrcoef(drawn.flatten(1)[:, :5].T)
    torch.testing.assert_close(independent, torch.eye(5), rtol=0, atol=0.03)


def test_crps_of_its_samples_is_the_closed_form() -> None:
    mean, std = torch.tensor([[0.0, 1.0, -2.0]]), torch.tensor([[1.0, 0.3, 2.0]])
    x = torch.tensor([[0.7, 1.9, -2.0]])
    drawn = NormalPosterior(mean, std).sample(20_000, Generator().manual_seed(0))
    torch.testing.assert_close(crps(drawn, x), normal_crps(mean, std, x), rtol=0.03, atol=0)


def test_a_normal_posterior_refuses_what_is_none() -> None:
    with pytest.raises(VspairError, match=r"mean has shape \(2, 3\) and std \(2,\)"):
        NormalPosterior(torch.zeros(2, 3), torch.ones(2))
    with pytest.raises(VspairError, match="negative or not numbers"):
        NormalPosterior(torch.zeros(2, 3), torch.tensor([1.0, -1.0, 1.0]))
    with pytest.raises(VspairError, match="level"):
        NormalPosterior(torch.zeros(2, 3), torch.ones(3)).interval(1.0)
    with pytest.raises(VspairError, match="no factors"):
        NormalPosterior(torch.zeros(2, 3), torch.ones(3)).factors(1)
