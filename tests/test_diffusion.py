"""The sampler on a Gaussian prior, where everything it draws has a known mean and covariance.

The score of a Gaussian is linear, so a trajectory is an affine function of its noise. Then the
sampler's mean and covariance obey a recursion of small matrices, which differs from what was drawn
by Monte Carlo error alone, and from the closed-form posterior by the length of the steps alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.methods.dps import (
    T_END,
    VPSDE,
    dps,
    noise_loss,
    reverse,
    sample_prior,
)
from vspair.problems.ct import Geometry, RayTransform

SDE = VPSDE()
MEAN = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
COVARIANCE = torch.tensor(
    [[0.3, 0.1, -0.35], [0.1, 0.35, -0.3], [-0.35, -0.3, 1.4]], dtype=torch.float64
)
EYE = torch.eye(3, dtype=torch.float64)
# What is observed is A (2 x + 0.7), with noise.
A = torch.tensor([[1.0, 0.5, 0.0], [0.0, -0.4, 0.8]], dtype=torch.float64)
SCALE, SHIFT, NOISE = 2.0, 0.7, 0.4
Y = torch.tensor([[1.5, -0.5], [0.2, 1.9]], dtype=torch.float64)

Affine = tuple[Tensor, Tensor]
Residual = Literal["norm", "squared"]


def at(t: float) -> tuple[float, float, float]:
    """Return alpha, sigma and beta, from the integral of beta by the trapezoidal rule."""
    alpha = math.exp(-0.5 * t * (0.1 + (0.1 + 19.9 * t)) / 2)
    return alpha, math.sqrt(1 - alpha**2), 0.1 + 19.9 * t


def noise_of(t: float) -> Affine:
    """Return the exact predictor x -> M x + c of the noise in x_t."""
    alpha, sigma, _ = at(t)
    matrix = sigma * torch.linalg.inv(alpha**2 * COVARIANCE + sigma**2 * EYE)
    return matrix, -alpha * matrix @ MEAN


def image_of(t: float) -> Affine:
    """Return the exact mean x -> M x + c of x_0 given x_t."""
    alpha, sigma, _ = at(t)
    matrix = alpha * COVARIANCE @ torch.linalg.inv(alpha**2 * COVARIANCE + sigma**2 * EYE)
    return matrix, MEAN - alpha * matrix @ MEAN


def predictor(x: Tensor, t: Tensor) -> Tensor:
    """Predict the noise in x_t (n, 3), all at one time."""
    matrix, shift = noise_of(float(t[0]))
    return x @ matrix.T + shift


def operator(x: Tensor) -> Tensor:
    return x @ A.T


def inverse(x: Tensor) -> Tensor:
    return SCALE * x + SHIFT


def exact_weight(t: float, h: float) -> Tensor:
    """Return h beta / 2 times the precision of y given x_t, with shape (2, 2)."""
    alpha, sigma, beta = at(t)
    rest = torch.linalg.inv(torch.linalg.inv(COVARIANCE) + (alpha / sigma) ** 2 * EYE)
    spread = NOISE**2 * torch.eye(2, dtype=torch.float64) + SCALE**2 * A @ rest @ A.T
    return h * beta / 2 * torch.linalg.inv(spread)


def exact(x: Tensor, rows: slice, t: float, h: float) -> Tensor:
    """Guide towards the first observation by its likelihood given x_t, which is Gaussian."""
    r = Y[0] - operator(inverse(x))
    return ((r @ exact_weight(t, h)) * r).sum(1)


def posterior() -> Affine:
    """Return the mean and covariance of x given the first observation."""
    b = SCALE * A
    precision = torch.linalg.inv(COVARIANCE) + b.T @ b / NOISE**2
    covariance = torch.linalg.inv(precision)
    gain = covariance @ b.T / NOISE**2
    return MEAN + gain @ (Y[0] - operator(inverse(MEAN))), covariance


def recursion(steps: int, weight: Callable[[float, float], Tensor] | None = None) -> Affine:
    """Return the exact mean and covariance at t_end of a sampler of so many steps.

    Arguments:
        steps: The number of steps.
        weight: The matrix W of the guidance r^T W r, of t and h.
    """
    mean, covariance, h = torch.zeros_like(MEAN), EYE.clone(), (1 - T_END) / steps
    for k in range(steps):
        t = 1 - k * h
        _, sigma, beta = at(t)
        matrix, shift = noise_of(t)
        step = (1 + h * beta / 2) * EYE - h * beta / sigma * matrix
        moved = -h * beta / sigma * shift
        if weight is not None:
            m, c = image_of(t)
            back = 2 * m.T @ (SCALE * A).T @ weight(t, h)
            step = step - back @ (SCALE * A) @ m
            moved = moved + back @ (Y[0] - operator(inverse(c)))
        mean = step @ mean + moved
        covariance = step @ covariance @ step.T + (k < steps - 1) * h * beta * EYE
    return mean, covariance


def assert_moments(x: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Check the mean and covariance of samples (n, 3), to four Monte Carlo standard errors."""
    square = covariance.diag()
    error = (square / len(x)).sqrt()
    assert ((x.mean(0) - mean).abs() < 4 * error).all()
    error = ((square[:, None] * square + covariance.square()) / len(x)).sqrt()
    assert ((x.T.cov() - covariance).abs() < 4 * error).all()


def draw(steps: int, guidance: Any = None, n: int = 20_000) -> Tensor:
    generator = Generator().manual_seed(3)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    return reverse(predictor, SDE, x, generator, steps=steps, guidance=guidance, chunk=n)


# -- the equation ---------------------------------------------------------------------------


def test_the_marginals_solve_the_equation() -> None:
    t = torch.linspace(1e-3, 1, 50, dtype=torch.float64, requires_grad=True)
    alpha, sigma = SDE.marginal(t)
    beta = SDE.beta(t)
    (slope,) = torch.autograd.grad(alpha.sum(), t, retain_graph=True)
    torch.testing.assert_close(slope, -beta * alpha / 2)
    (slope,) = torch.autograd.grad(sigma.square().sum(), t)
    torch.testing.assert_close(slope, beta * (1 - sigma.square()))
    first = [float(s) for s in SDE.marginal(torch.zeros(()))]
    assert first == [1.0, 0.0]
    assert [float(SDE.beta(torch.tensor(s))) for s in (0.0, 1.0)] == pytest.approx([0.1, 20])


def test_the_marginals_are_those_of_a_simulation() -> None:
    n, steps, end = 20_000, 400, 0.4
    x, h = torch.full((n,), 1.5, dtype=torch.float64), end / steps
    for k in range(steps):
        beta = at((k + 0.5) * h)[2]
        x = x - h * beta / 2 * x + math.sqrt(h * beta) * torch.randn_like(x)
    alpha, sigma = SDE.marginal(torch.tensor(end, dtype=torch.float64))
    assert float(x.mean()) == pytest.approx(1.5 * float(alpha), abs=4 * float(sigma / n**0.5))
    assert float(x.std()) == pytest.approx(float(sigma), rel=4 / math.sqrt(2 * n))


# -- the loss -------------------------------------------------------------------------------


def many(x: Tensor, t: Tensor) -> Tensor:
    """Predict the noise in x_t (n, 3), each at its own time."""
    alpha, sigma = (s[:, None, None] for s in SDE.marginal(t))
    spread = alpha**2 * COVARIANCE + sigma**2 * EYE
    centred = x[:, :, None] - alpha * MEAN[:, None]
    return (sigma * torch.linalg.solve(spread, centred))[:, :, 0]


def clean(n: int) -> Tensor:
    root = torch.linalg.cholesky(COVARIANCE)
    return MEAN + torch.randn(n, 3, dtype=torch.float64) @ root.T


def test_the_exact_predictor_has_the_least_loss() -> None:
    n = 40_000
    x = clean(n)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def loss(change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return noise_loss(lambda z, t: change(many(z, t), t), SDE, x, Generator().manual_seed(1))

    best = loss(lambda e, t: scale * e + bias)
    slopes = torch.cat([s.reshape(-1) for s in torch.autograd.grad(best, (scale, bias))])
    assert slopes.abs().max() < 4 * 2 / math.sqrt(n)
    for change in (
        lambda e, t: 0.95 * e,
        lambda e, t: 1.05 * e,
        lambda e, t: e + 0.1,
        lambda e, t: e + 0.2 * (t[:, None] < 0.1),
        lambda e, t: e.roll(1, 0),
    ):
        assert loss(change) > best + 5e-4
    # The part of the noise that x_t does not tell, over times from T_END to 1.
    rest = []
    for t in torch.linspace(T_END, 1, 2001).tolist():
        rest.append(1 - at(t)[1] * float(noise_of(t)[0].trace()) / 3)
    assert float(best.detach()) == pytest.approx(sum(rest) / len(rest), rel=0.02)


def test_times_of_the_loss() -> None:
    seen: list[Tensor] = []

    def network(x: Tensor, t: Tensor) -> Tensor:
        seen.append(t)
        return x

    noise_loss(network, SDE, torch.zeros(10_000, 1), Generator().manual_seed(0), t_end=0.2)
    assert seen[0].shape == (10_000,)
    assert 0.2 <= seen[0].min() < 0.201
    assert 0.999 < seen[0].max() <= 1


# -- the sampler ----------------------------------------------------------------------------


def at_the_end(mean: Tensor, covariance: Tensor) -> Affine:
    """Return the mean and covariance at t_end of what has the given ones at t = 0."""
    alpha, sigma, _ = at(T_END)
    return alpha * mean, alpha**2 * covariance + sigma**2 * EYE


def assert_first_order(weight: Callable[[float, float], Tensor] | None, truth: Affine) -> None:
    """Check that the steps' error is small at the paper's number and halves with their length."""
    far = [recursion(steps, weight) for steps in (375, 750, 1500)]
    for part, exact_part in enumerate(at_the_end(*truth)):
        errors = [float((f[part] - exact_part).norm()) for f in far]
        assert errors[-1] < 1e-3 * float(exact_part.norm())
        for coarse, fine in itertools.pairwise(errors):
            assert coarse / fine == pytest.approx(2, abs=0.1)


def test_the_prior_is_sampled() -> None:
    assert_moments(draw(100), *recursion(100))
    assert_first_order(None, (MEAN, COVARIANCE))
    assert_moments(draw(600, n=4000), MEAN, COVARIANCE)


def test_exact_guidance_gives_the_posterior() -> None:
    assert_moments(draw(150, exact), *recursion(150, exact_weight))
    assert_first_order(exact_weight, posterior())
    assert_moments(draw(600, exact, n=4000), *posterior())


@pytest.mark.parametrize("zeta", [0.1, 0.01])
def test_dps_is_its_recursion_and_not_the_posterior(zeta: float) -> None:
    """Check DPS with squares; at the paper's 1,500 steps it trusts y as if it had no noise.

    With zeta = 0.1 the entries' deviations are 0.81, 0.97 and 0.67 of the posterior's, and their
    means 0.03, 0.21 and 0.33 of its deviations too low.
    """

    def weight(t: float, h: float) -> Tensor:
        return zeta * torch.eye(2, dtype=torch.float64)

    x = dps(
        predictor,
        SDE,
        operator,
        Y[:1],
        (3,),
        generator=Generator().manual_seed(4),
        trajectories=20_000,
        steps=100,
        zeta=zeta,
        residual="squared",
        inverse=inverse,
        chunk=20_000,
    )
    assert x.shape == (20_000, 1, 3)
    assert_moments((x[:, 0] - SHIFT) / SCALE, *recursion(100, weight))
    mean, covariance = recursion(1500, weight)
    true_mean, true_covariance = posterior()
    spread = (covariance.diag() / true_covariance.diag()).sqrt()
    assert spread.tolist() == pytest.approx([0.81, 0.97, 0.67], abs=0.015)
    assert float((mean - true_mean)[2] / true_covariance[2, 2].sqrt()) < -0.2


@pytest.mark.parametrize("residual", ["norm", "squared"])
def test_every_step_is_the_formula(residual: Residual) -> None:
    """Follow six trajectories for two observations, with gradients written out."""
    steps, zeta, h = 30, 0.05, (1 - T_END) / 30
    generator = Generator().manual_seed(8)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    y = Y.repeat(3, 1)
    for k in range(steps):
        t = 1 - k * h
        alpha, sigma, beta = at(t)
        e = predictor(x, torch.full((6,), t, dtype=torch.float64))
        r = y - operator(inverse((x - sigma * e) / alpha))
        slope = -2 * r @ (SCALE * A) @ image_of(t)[0]
        if residual == "norm":
            slope = slope / (2 * r.norm(dim=1, keepdim=True))
        x = x + h * beta * (x / 2 - e / sigma) - zeta * slope
        if k < steps - 1:
            z = torch.randn(6, 3, generator=generator, dtype=torch.float64)
            x = x + math.sqrt(h * beta) * z
    settings: dict[str, Any] = {"trajectories": 3, "steps": steps, "zeta": zeta}
    settings |= {"residual": residual, "inverse": inverse}
    for chunk in (1, 4, 256):
        generator = Generator().manual_seed(8)
        ours = dps(predictor, SDE, operator, Y, (3,), generator=generator, chunk=chunk, **settings)
        torch.testing.assert_close(ours, inverse(x).reshape(3, 2, 3), rtol=0, atol=1e-9)
    other = dps(predictor, SDE, operator, Y, (3,), generator=generator, **settings)
    assert (other - ours).abs().min() > 0


def test_times_of_the_sampler() -> None:
    seen: list[float] = []

    def network(x: Tensor, t: Tensor) -> Tensor:
        assert t.shape == (2,)
        assert t.dtype == x.dtype == torch.float32
        seen.append(float(t[0]))
        return x * SDE.marginal(t)[1][:, None]

    x = sample_prior(network, SDE, (2, 5), 10, generator=Generator().manual_seed(0), t_end=0.1)
    assert x.shape == (2, 5)
    assert seen == pytest.approx([1 - 0.09 * k for k in range(10)])


def test_without_guidance_it_is_the_prior() -> None:
    none, prior = (Generator().manual_seed(0) for _ in range(2))
    x = dps(predictor, SDE, operator, Y, (3,), generator=none, steps=20, zeta=0.0)
    other = sample_prior(predictor, SDE, (2, 3), 20, generator=prior, chunk=1, dtype=torch.float64)
    torch.testing.assert_close(x[0], other, rtol=0, atol=1e-12)


def test_a_ray_transform_and_a_network_that_keeps_its_weights() -> None:
    ray = RayTransform(Geometry((6, 5), angles=7, detectors=9, pixel=1.0))
    gain = torch.ones((), requires_grad=True)

    def network(x: Tensor, t: Tensor) -> Tensor:
        return gain * x * SDE.marginal(t)[1][:, None, None]  # exact for white images

    y = ray(torch.randn(2, 6, 5))
    errors = []
    for zeta in (0.0, 0.1):
        with torch.no_grad():
            generator = Generator().manual_seed(0)
            x = dps(network, SDE, ray, y, (6, 5), generator=generator, steps=100, zeta=zeta)
        assert x.shape == (1, 2, 6, 5)
        assert not x.requires_grad
        errors.append(float((ray(x[0]) - y).norm() / y.norm()))
    assert errors[1] < 0.2 * errors[0]
    assert gain.grad is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"y": torch.zeros(2, 3)}, r"y has shape \(2, 3\): expected \(B, 2\)"),
        ({"y": torch.zeros(0, 2)}, "at least one observation"),
        ({"shape": (4,)}, r"does not take images of shape \(4,\): .* Give the shape of one"),
        ({"steps": 0}, "steps = 0"),
        ({"chunk": 0}, "chunk = 0"),
        ({"zeta": -0.1}, "zeta = -0.1"),
        ({"zeta": 1e200, "steps": 50, "residual": "squared"}, "2 of 2 trajectories"),
        ({"t_end": 0.0}, "t_end = 0.0"),
        ({"t_end": 1.0}, "t_end = 1.0"),
        ({"trajectories": 0}, "trajectories = 0"),
        ({"residual": "cubed"}, "residual = 'cubed'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    values: dict[str, Any] = {"y": Y, "steps": 2, "generator": Generator(), "shape": (3,)}
    values |= settings
    values["y"] = values["y"].double()
    with pytest.raises(VspairError, match=words):
        dps(predictor, SDE, operator, **values)
    with pytest.raises(VspairError, match="beta_min = 2"):
        VPSDE(2.0, 1.0)
