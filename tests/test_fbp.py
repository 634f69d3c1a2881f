"""Filtered back-projection: accuracy, level, orientation, and its filter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from vspair.datasets.phantoms import chest_phantoms
from vspair.errors import VspairError
from vspair.methods.fbp import Fbp, ramp
from vspair.problems.ct import CtProblem, Geometry, RayTransform

SMALL = Geometry((20, 20), angles=40, detectors=30, pixel=1.0)


def polar(geometry: Geometry, centre: tuple[float, float]) -> Tensor:
    """Return the distance of each pixel from a place."""
    up, right = geometry.centres
    return torch.hypot(right - centre[0], up[:, None] - centre[1])


@pytest.mark.parametrize("width", [0.012, 0.024])
def test_a_smooth_blob_is_recovered(width: float) -> None:
    """Both interpolations are of second order, so that a blob twice as wide is 4 times better."""
    geometry = Geometry()
    x = torch.exp(-polar(geometry, (0.04, 0.015)).square() / (2 * width**2))
    back = Fbp(geometry)(RayTransform(geometry)(x))
    assert (back - x).abs().max() < (geometry.pixel / width) ** 2 / 3
    for turned in (x.T, x.flip(0), x.flip(1)):
        assert (back - turned).abs().max() > 0.3


@pytest.mark.parametrize("detectors", [100, 128, 255])
def test_the_level_of_a_disc(detectors: int) -> None:
    geometry = Geometry(detectors=detectors)
    away = polar(geometry, (0.02, 0.01))
    exact = 2 * (0.07**2 - _foot(geometry, (0.02, 0.01)).square()).clamp(min=0).sqrt()
    for window in ("none", "hann"):
        back = Fbp(geometry, window=window)(exact)
        assert float(back[away < 0.06].mean()) == pytest.approx(1, abs=0.002)
        assert float(back[(away > 0.08) & (away < 0.12)].mean()) == pytest.approx(0, abs=0.002)


def _foot(geometry: Geometry, centre: tuple[float, float]) -> Tensor:
    """Return how far each ray passes from a place, with shape (A, D)."""
    theta = geometry.theta[:, None]
    return geometry.offsets - centre[0] * theta.cos() - centre[1] * theta.sin()


def test_the_level_of_an_image_that_fills_the_detector() -> None:
    x = torch.full((88, 88), 0.25, dtype=torch.float64)
    geometry = Geometry()
    back = Fbp(geometry)(RayTransform(geometry)(x))
    assert float(back[8:-8, 8:-8].mean()) == pytest.approx(0.25, rel=0.005)


def test_phantoms_are_recovered() -> None:
    problem = CtProblem()
    x = chest_phantoms(8, Generator().manual_seed(0))
    clean, pairs = problem.forward(x), problem.pairs(x, 0)
    plain, hann = Fbp(problem.geometry), Fbp(problem.geometry, window="hann")

    def error(image: Tensor) -> float:
        return float((image - x).square().mean())

    assert error(plain(clean)) < 2.5e-4
    assert error(plain(clean).mT) > 50 * error(plain(clean))
    assert error(plain(clean)) < 0.5 * error(hann(clean))
    assert error(hann(pairs.y)) < 0.5 * error(plain(pairs.y)) < 0.01


# -- the filter -----------------------------------------------------------------------------


def test_the_filter_is_the_convolution_with_the_kernel() -> None:
    detectors, spacing = 13, 0.3
    y = torch.randn(detectors, dtype=torch.float64)
    n = torch.arange(detectors)[:, None] - torch.arange(detectors)
    kernel = torch.where(n % 2 == 1, -1 / (math.pi * n * spacing) ** 2, 0).double()
    kernel[n == 0] = 1 / (4 * spacing**2)
    geometry = Geometry((4, 4), angles=1, detectors=detectors, pixel=1.0, spacing=spacing)
    filtered = Fbp(geometry)._filter(y[None])[0]
    torch.testing.assert_close(filtered, spacing * kernel @ y)


def test_the_filter_is_no_sampled_ramp() -> None:
    gain = ramp(128, 1.0)
    frequency = torch.linspace(0, 0.5, len(gain), dtype=torch.float64)
    torch.testing.assert_close(gain[20:-20], frequency[20:-20], rtol=1e-2, atol=0)
    assert 0 < gain[0] < gain[1]  # the sampled ramp is 0 here, and the image too dark
    assert gain[0] == pytest.approx(2 / math.pi**2 / 256, rel=1e-2)


def test_the_window() -> None:
    plain, hann, half = (
        ramp(128, 1.0),
        ramp(128, 1.0, "hann"),
        ramp(128, 1.0, "hann", cutoff=0.5),
    )
    share = torch.linspace(0, math.pi, len(plain), dtype=torch.float64)
    torch.testing.assert_close(hann, plain * (1 + share.cos()) / 2)
    assert half[len(half) // 2 + 1 :].abs().max() == 0
    torch.testing.assert_close(half[32], plain[32] / 2)


# -- shapes, devices, errors ----------------------------------------------------------------


def test_shapes_dtypes_and_parts() -> None:
    fbp = Fbp(SMALL)
    y = torch.rand(2, 3, 40, 30, dtype=torch.float64)
    x = fbp(y)
    assert x.shape == (2, 3, 20, 20)
    torch.testing.assert_close(fbp(y[1, 2]), x[1, 2])
    torch.testing.assert_close(Fbp(SMALL, memory=0)(y), x)
    assert fbp(y.float()).dtype == torch.float32
    torch.testing.assert_close(fbp(y.float()).double(), x, rtol=1e-4, atol=1e-5)
    assert fbp(y.bfloat16()).dtype == torch.bfloat16


def test_the_angles_may_start_anywhere() -> None:
    x = torch.exp(-polar(SMALL, (3.0, -2.0)).square() / 8)
    turned = Geometry(
        SMALL.shape, tuple((SMALL.theta + 1.3).flip(0).tolist()), SMALL.detectors, SMALL.pixel
    )
    for geometry in (SMALL, turned):
        assert (Fbp(geometry)(RayTransform(geometry)(x)) - x).abs().max() < (1 / 2) ** 2 / 3


def test_it_is_differentiable() -> None:
    y = torch.randn(2, 7, 9, dtype=torch.float64, requires_grad=True)
    fbp = Fbp(Geometry((5, 6), angles=7, detectors=9))
    assert torch.autograd.gradcheck(fbp, (y,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same() -> None:
    fbp, y = Fbp(Geometry()), torch.rand(3, 248, 128)
    there = fbp(y.cuda())
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), fbp(y), rtol=1e-4, atol=1e-2)


def test_wrong_use_is_named() -> None:
    with pytest.raises(VspairError, match=r"y has shape \(30, 40\).*\(\*, 40, 30\)"):
        Fbp(SMALL)(torch.zeros(30, 40))
    with pytest.raises(VspairError, match="int64"):
        Fbp(SMALL)(torch.zeros(40, 30, dtype=torch.int64))
    with pytest.raises(VspairError, match="window = 'cosine'"):
        Fbp(SMALL, window="cosine")  # type: ignore[arg-type]
    with pytest.raises(VspairError, match="window = 'cosine': expected none or hann"):
        ramp(128, 1.0, "cosine")  # type: ignore[arg-type]
    with pytest.raises(VspairError, match=r"y is of type ndarray.*torch\.from_numpy"):
        Fbp(SMALL)(np.zeros((40, 30)))  # type: ignore[arg-type]
    for cutoff in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(VspairError, match=f"cutoff = {cutoff}"):
            Fbp(SMALL, cutoff=cutoff)
    with pytest.raises(VspairError, match="not equally spaced"):
        Fbp(Geometry((8, 8), angles=(0.1, 0.2, 0.3), detectors=9))


def test_an_empty_batch() -> None:
    geometry = Geometry((8, 6), angles=5, detectors=12)
    assert Fbp(geometry)(torch.zeros(0, 5, 12)).shape == (0, 8, 6)


def test_a_batch_beyond_all_memory_is_said() -> None:
    fbp = Fbp(Geometry((8, 6), angles=5, detectors=12))
    with pytest.raises(VspairError, match=r"batch of 10000000000000 .*Use smaller batches\.$"):
        fbp(torch.zeros(1, 1, 1).expand(10**13, 5, 12))
