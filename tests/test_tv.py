"""TV-ADMM against the primal-dual method of Chambolle and Pock, which shares no step with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from vspair.datasets.phantoms import chest_phantoms
from vspair.errors import VspairError
from vspair.methods.fbp import Fbp
from vspair.methods.tv_admm import total_variation, tv_admm, tv_objective
from vspair.problems.ct import CtProblem, Geometry, RayTransform

GEOMETRY = Geometry((12, 10), angles=14, detectors=17, pixel=1.0)


def noisy(n: int = 2) -> tuple[RayTransform, Tensor]:
    """Return a transform and noisy sinograms of piecewise constant images, some below 0."""
    x = torch.zeros(n, *GEOMETRY.shape, dtype=torch.float64)
    x[:, 3:9, 2:7] = 1.0
    x[1:, 5:7, 4:9] = -0.3
    ray = RayTransform(GEOMETRY)
    y = ray(x)
    return ray, y + 0.3 * torch.randn_like(y)


def matrices() -> tuple[Tensor, Tensor]:
    """Return the ray transform (m, n) and the gradient (2, n, n) as dense matrices."""
    rows, columns = GEOMETRY.shape
    unit = torch.eye(rows * columns, dtype=torch.float64).reshape(-1, rows, columns)
    down, right = torch.zeros_like(unit), torch.zeros_like(unit)
    down[:, :-1] = unit[:, 1:] - unit[:, :-1]
    right[:, :, :-1] = unit[:, :, 1:] - unit[:, :, :-1]
    a = RayTransform(GEOMETRY)(unit).flatten(1).T
    return a, torch.stack((down.flatten(1).T, right.flatten(1).T))


def chambolle_pock(y: Tensor, weight: float, nonnegative: bool, steps: int) -> Tensor:
    """Return minimisers, with shape (B, n), by dense products and a step for each entry.

    Pock and Chambolle, "Diagonal preconditioning for first order primal-dual algorithms in
    convex optimization", ICCV 2011.
    """
    a, d = matrices()
    # The duals grow with the weight and the image does not: so do their steps.
    share = 0.03 / weight
    tau = share / (a.abs().sum(0) + d.abs().sum((0, 1)))
    sigma_a = 1 / (share * a.abs().sum(1).clamp(min=1e-9))
    sigma_d = 1 / (share * d.abs().sum(2).amax(0).clamp(min=1e-9))
    x = y.new_zeros(len(y), a.shape[1])
    bar, p, q = x, torch.zeros_like(y), x.new_zeros(2, *x.shape)
    for _ in range(steps):
        p = (p + sigma_a * (bar @ a.T - y)) / (1 + sigma_a)
        q = q + sigma_d * torch.stack([bar @ part.T for part in d])
        q = q / (q.norm(dim=0) / weight).clamp(min=1)
        new = x - tau * (p @ a + q[0] @ d[0] + q[1] @ d[1])
        new = new.clamp(min=0) if nonnegative else new
        x, bar = new, 2 * new - x
    return x


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("weight", [0.03, 0.3, 3.0])
def test_the_objective_is_an_independent_solver_s(weight: float, nonnegative: bool) -> None:
    ray, y = noisy()
    result = tv_admm(ray, y, weight, nonnegative=nonnegative)
    assert result.converged.all()
    ours = tv_objective(ray, result.x, y, weight)
    half, answer = (
        chambolle_pock(y.flatten(1), weight, nonnegative, n).reshape_as(result.x)
        for n in (1500, 2500)
    )
    best = tv_objective(ray, answer, y, weight)
    # The other has converged.
    torch.testing.assert_close(tv_objective(ray, half, y, weight), best, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours, best, rtol=1e-4, atol=0)
    assert (ours >= best * (1 - 1e-5)).all()
    assert (result.x - answer).abs().max() < 1e-3  # a weight off by 2 % moves x by more
    assert not nonnegative or result.x.min() >= 0
    assert nonnegative or result.x.min() < -0.01


def test_total_variation() -> None:
    x = torch.zeros(2, 3, 6, 7, dtype=torch.float64)
    x[0, 0, 2:4, 2:5] = 2.0
    # Ten edges of length 2, of which the lower right corner's two meet in one pixel.
    assert float(total_variation(x)[0, 0]) == pytest.approx(2 * (8 + 2**0.5))
    assert total_variation(x).shape == (2, 3)
    assert float(total_variation(x).sum()) == pytest.approx(float(total_variation(x)[0, 0]))
    _, d = matrices()
    x = torch.randn(4, *GEOMETRY.shape, dtype=torch.float64)
    dense = torch.stack([x.flatten(1) @ part.T for part in d]).norm(dim=0).sum(1)
    torch.testing.assert_close(total_variation(x), dense)


def test_each_observation_has_its_own_weight() -> None:
    ray, y = noisy(3)
    weights = torch.tensor([0.05, 0.5, 2.0], dtype=torch.float64)
    together = tv_admm(ray, y, weights, tolerance=1e-6)
    for i in range(3):
        alone = tv_admm(ray, y[i], float(weights[i]), tolerance=1e-6)
        assert alone.x.shape == GEOMETRY.shape
        torch.testing.assert_close(alone.x, together.x[i], rtol=0, atol=1e-4)
    assert total_variation(together.x).diff().max() < 0


def test_the_answer_scales_with_the_unit_of_length() -> None:
    _, y = noisy()
    metres = Geometry(GEOMETRY.shape, GEOMETRY.angles, GEOMETRY.detectors, pixel=0.003)
    far = tv_admm(RayTransform(metres), 0.003 * y, 0.003**2 * 0.3)
    near = tv_admm(RayTransform(GEOMETRY), y, 0.3)
    torch.testing.assert_close(far.x, near.x, rtol=0, atol=1e-9)


def test_it_beats_filtered_back_projection() -> None:
    problem = CtProblem(Geometry((32, 32), angles=60, detectors=46, pixel=1.0))
    x = chest_phantoms(4, Generator().manual_seed(0), size=32)
    clean = problem.forward(x)
    y = clean + 0.05 * clean.max() * torch.randn(clean.shape)
    result = tv_admm(problem.transform, y, 2.0, nonnegative=True, tolerance=1e-3)
    assert result.x.dtype == torch.float32
    assert result.converged.all()
    for window in ("none", "hann"):
        fbp = Fbp(problem.geometry, window=window)(y)
        assert (result.x - x).square().mean() < 0.75 * (fbp - x).square().mean()


def test_it_says_when_it_has_not_converged() -> None:
    ray, y = noisy()
    short = tv_admm(ray, y, 0.3, max_iterations=3)
    assert short.iterations == 3
    assert not short.converged.any()
    assert short.converged.shape == short.primal.shape == short.dual.shape == (2,)
    long = tv_admm(ray, y, 0.3)
    assert 3 < long.iterations < 1000
    assert (long.primal < 3e-5).all()
    assert (long.dual < 3e-5).all()


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("weight", [0.3, 30.0, 3e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gap_is_how_far_the_objective_is_from_its_least(
    dtype: torch.dtype, weight: float, nonnegative: bool
) -> None:
    ray, y = noisy()
    best = tv_admm(ray, y, weight, nonnegative=nonnegative, tolerance=1e-8, max_iterations=2000)
    least = tv_objective(ray, best.x, y, weight)
    assert best.gap.max() < 1e-6
    found = tv_admm(ray, y.to(dtype), weight, nonnegative=nonnegative)
    above = 1 - least / tv_objective(ray, found.x.double(), y, weight)
    torch.testing.assert_close(found.gap.double(), above, rtol=0.2, atol=1e-5)
    assert (above[found.converged] < 1e-4).all()
    # Round-off of x alone, times such a weight, is more than the tolerance.
    assert bool(found.converged.all()) == (dtype == torch.float64 or weight < 3e5)


def test_half_precision_is_computed_in_single() -> None:
    ray, y = noisy()
    low = tv_admm(ray, y.bfloat16(), 0.3)
    assert low.x.dtype == torch.bfloat16
    assert torch.equal(low.x, tv_admm(ray, y.bfloat16().float(), 0.3).x.bfloat16())


def test_an_empty_sinogram_gives_an_empty_image() -> None:
    result = tv_admm(RayTransform(GEOMETRY), torch.zeros(14, 17), 0.1)
    assert torch.equal(result.x, torch.zeros(GEOMETRY.shape))
    assert result.converged


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    ray, y = noisy()
    there = tv_admm(ray, y.cuda(), 0.3, nonnegative=True)
    assert there.x.is_cuda
    here = tv_admm(ray, y, 0.3, nonnegative=True)
    torch.testing.assert_close(there.x.cpu(), here.x, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weight": 0.0}, "weight = 0.0"),
        ({"weight": -1.0}, "weight = -1.0"),
        ({"weight": float("inf")}, "weight = inf"),
        ({"weight": float("nan")}, "weight = nan"),
        ({"weight": 0.1, "tolerance": 0.0}, "tolerance = 0.0"),
        ({"weight": 0.1, "max_iterations": 0}, "max_iterations = 0"),
        ({"weight": 0.1, "steps": 0}, "steps = 0"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(VspairError, match=words):
        tv_admm(RayTransform(GEOMETRY), torch.zeros(14, 17), **settings)


def test_a_sinogram_of_another_geometry_is_named() -> None:
    with pytest.raises(VspairError, match=r"y has shape \(5, 17\)"):
        tv_admm(RayTransform(GEOMETRY), torch.zeros(5, 17), 0.1)
    with pytest.raises(VspairError, match=r"Convert it to float32"):
        tv_admm(RayTransform(GEOMETRY), torch.zeros(14, 17, dtype=torch.int64), 0.1)


def test_weights_that_do_not_fit_are_named() -> None:
    words = r"weight has shape \(2,\) and y \(3, 14, 17\).*each sinogram, of shape \(3,\)"
    with pytest.raises(VspairError, match=words):
        tv_admm(RayTransform(GEOMETRY), torch.zeros(3, 14, 17), torch.ones(2))
