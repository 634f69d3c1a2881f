"""The ray transform: its adjoint, analytic projections, ASTRA's sinograms, noise and errors."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.problems.ct import CtProblem, Geometry, RayTransform, coarsen, moved_copies
from vspair.problems.ct import gather as gather_module

GOLDEN = Path(__file__).with_name("golden") / "ct.npz"

GEOMETRIES = {
    "small": Geometry((12, 12), angles=11, detectors=17, pixel=1.0),
    "wide": Geometry((9, 17), angles=13, detectors=20, pixel=0.5),
    "tall": Geometry((17, 9), angles=(0.1, -2.0, 3.0, 1.2), detectors=31, pixel=1.0),
    "axes": Geometry((8, 6), angles=(0.0, math.pi / 2, math.pi, math.pi / 4), detectors=9),
    "coarse detector": Geometry((12, 12), angles=7, detectors=5, pixel=1.0, spacing=3.3),
    "fine detector": Geometry((12, 12), angles=7, detectors=60, pixel=1.0, spacing=0.21),
    "finest detector": Geometry((5, 4), angles=3, detectors=7, pixel=1.0, spacing=1e-5),
    "narrow detector": Geometry((12, 12), angles=7, detectors=6, pixel=1.0, spacing=0.7),
}
every_geometry = pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
every_method = pytest.mark.parametrize("method", ["matrix", "free"])
Method = Literal["matrix", "free"]


def images(geometry: Geometry, n: int = 3) -> Tensor:
    return torch.rand(n, *geometry.shape, dtype=torch.float64)


def sinograms(geometry: Geometry, n: int = 3) -> Tensor:
    return torch.randn(n, *geometry.sinogram_shape, dtype=torch.float64)


# -- the operator ---------------------------------------------------------------------------


@every_geometry
@every_method
def test_the_adjoint_is_exact(geometry: Geometry, method: Method) -> None:
    ray, x, y = RayTransform(geometry, method=method), images(geometry), sinograms(geometry)
    left, right = (ray(x) * y).sum(), (x * ray.adjoint(y)).sum()
    size = ray(x).norm() * y.norm()
    assert (left - right).abs() < 1e-14 * size
    assert left.abs() > 1e-4 * size


@every_geometry
def test_the_adjoint_is_the_transpose_entry_by_entry(geometry: Geometry) -> None:
    ray = RayTransform(geometry)
    pixels, rays = math.prod(geometry.shape), math.prod(geometry.sinogram_shape)
    a = ray(torch.eye(pixels, dtype=torch.float64).reshape(-1, *geometry.shape))
    b = ray.adjoint(torch.eye(rays, dtype=torch.float64).reshape(-1, *geometry.sinogram_shape))
    torch.testing.assert_close(
        a.reshape(pixels, rays), b.reshape(rays, pixels).T, rtol=0, atol=1e-14 * float(a.max())
    )


@every_geometry
def test_both_methods_are_equal(geometry: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, free = (RayTransform(geometry, method=m) for m in ("matrix", "free"))
    x, y = images(geometry), sinograms(geometry)
    whole = kept(x), kept.adjoint(y)
    monkeypatch.setitem(gather_module._ENTRIES, "cpu", 100)  # many parts
    torch.testing.assert_close(free(x), whole[0], rtol=1e-14, atol=0)
    torch.testing.assert_close(free.adjoint(y), whole[1], rtol=1e-13, atol=1e-13)
    again = RayTransform(geometry, method="matrix")
    assert torch.equal(again(x), whole[0])


def test_the_paper_s_size() -> None:
    geometry = Geometry()
    assert (geometry.shape, geometry.sinogram_shape) == ((88, 88), (248, 128))
    ray, free = (RayTransform(geometry, method=m) for m in ("auto", "free"))
    assert ray.keeps()
    x, y = images(geometry, 2), sinograms(geometry, 2)
    left, right = (ray(x) * y).sum(), (x * free.adjoint(y)).sum()
    assert (left - right).abs() < 1e-14 * ray(x).norm() * y.norm()
    torch.testing.assert_close(free(x.float()), ray(x).float(), rtol=1e-5, atol=1e-6)


def test_lodopab_s_geometry() -> None:
    geometry = Geometry.lodopab()
    assert (geometry.shape, geometry.sinogram_shape) == ((362, 362), (1000, 513))
    assert geometry.pixel * 362 == pytest.approx(0.26)
    assert geometry.detector_spacing * 513 == pytest.approx(0.26 * math.sqrt(2))
    theta = geometry.theta
    assert 0 < theta.min() < theta.max() < math.pi
    torch.testing.assert_close(theta.diff(), torch.full((999,), math.pi / 1000).double())
    assert not RayTransform(geometry).keeps()


@every_geometry
@every_method
def test_derivatives(geometry: Geometry, method: Method) -> None:
    ray = RayTransform(geometry, method=method)
    x = images(geometry, 1).requires_grad_()
    y = sinograms(geometry, 1).requires_grad_()
    for f, at in ((ray.forward, x), (ray.adjoint, y)):
        weight = torch.randn_like(f(at))
        (slope,) = torch.autograd.grad((f(at) * weight).sum(), at, create_graph=True)
        back = ray.adjoint if at is x else ray.forward
        torch.testing.assert_close(slope, back(weight), rtol=1e-13, atol=1e-13)
    (slope,) = torch.autograd.grad(ray(x).square().sum() / 2, x, create_graph=True)
    direction = torch.randn_like(x)
    (second,) = torch.autograd.grad((slope * direction).sum(), x)
    torch.testing.assert_close(second, ray.adjoint(ray(direction)), rtol=1e-12, atol=1e-12)


def test_gradcheck() -> None:
    ray = RayTransform(Geometry((4, 5), angles=3, detectors=6, pixel=1.0))
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ray.forward, (x,))
    assert torch.autograd.gradcheck(ray.adjoint, (y,))
    assert torch.autograd.gradgradcheck(ray.forward, (x,))


@every_method
def test_leading_dimensions_and_dtypes(method: Method) -> None:
    geometry = GEOMETRIES["small"]
    ray, x = RayTransform(geometry, method=method), images(geometry, 6)
    y = ray(x)
    torch.testing.assert_close(ray(x[0]), y[0])
    torch.testing.assert_close(ray(x.reshape(2, 3, 12, 12)), y.reshape(2, 3, 11, 17))
    torch.testing.assert_close(ray(x.mT.contiguous().mT), y)
    assert ray(x[:0]).shape == (0, 11, 17)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        low = ray(x.to(dtype))
        assert low.dtype == dtype
        torch.testing.assert_close(low.double(), y, rtol=tolerance, atol=tolerance * 12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_gives_the_same(method: Method, dtype: torch.dtype) -> None:
    geometry = Geometry()
    ray = RayTransform(geometry, method=method)
    x, y = images(geometry).to(dtype), sinograms(geometry).to(dtype)
    far_x = x.cuda().requires_grad_()
    far = ray(far_x)
    assert far.is_cuda
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(far.cpu(), ray(x), rtol=tolerance, atol=tolerance)
    (slope,) = torch.autograd.grad((far * y.cuda()).sum(), far_x)
    torch.testing.assert_close(slope.cpu(), ray.adjoint(y), rtol=tolerance, atol=tolerance)


# -- analytic projections -------------------------------------------------------------------


def disc(geometry: Geometry, centre: tuple[float, float], radius: float) -> Tensor:
    """Return the share of each pixel inside a disc, by 16 x 16 points in it."""
    fine = 16
    rows, columns = (n * fine for n in geometry.shape)
    step = geometry.pixel / fine
    right = (torch.arange(columns, dtype=torch.float64) - (columns - 1) / 2) * step
    up = ((rows - 1) / 2 - torch.arange(rows, dtype=torch.float64))[:, None] * step
    inside = (right - centre[0]) ** 2 + (up - centre[1]) ** 2 <= radius**2
    blocks = inside.double().reshape(geometry.shape[0], fine, geometry.shape[1], fine)
    return blocks.mean((1, 3))


def chords(geometry: Geometry, centre: tuple[float, float], radius: float) -> Tensor:
    """Return the length of each ray inside a disc."""
    theta = geometry.theta[:, None]
    away = geometry.offsets - centre[0] * theta.cos() - centre[1] * theta.sin()
    return 2 * (radius**2 - away**2).clamp(min=0).sqrt()


def test_the_projection_of_a_disc() -> None:
    errors = []
    for size in (44, 88, 176):
        geometry = Geometry((size, size), angles=60, detectors=size, pixel=0.26 / size)
        y = RayTransform(geometry)(disc(geometry, (0.03, -0.05), 0.06))
        exact = chords(geometry, (0.03, -0.05), 0.06)
        errors.append(float((y - exact).norm() / exact.norm()))
    assert errors[1] < 0.015
    for coarse, fine in itertools.pairwise(errors):
        assert 1.7 < coarse / fine < 2.3  # of first order: the disc has an edge


def gaussian(geometry: Geometry, centre: tuple[float, float], width: float) -> Tensor:
    up, right = geometry.centres
    square = (right - centre[0]) ** 2 + (up[:, None] - centre[1]) ** 2
    return torch.exp(-square / (2 * width**2))


def test_the_projection_of_a_gaussian() -> None:
    """Smooth, off the centre and in metres: orientation and units at once."""
    centre, width, errors = (0.05, 0.02), 0.02, []
    for size in (88, 176):
        geometry = Geometry((size, size), angles=62, pixel=88 * Geometry().pixel / size)
        x, ray = gaussian(geometry, centre, width), RayTransform(geometry)
        theta = geometry.theta[:, None]
        away = geometry.offsets - centre[0] * theta.cos() - centre[1] * theta.sin()
        exact = math.sqrt(2 * math.pi) * width * torch.exp(-((away / width) ** 2) / 2)
        errors.append(float((ray(x) - exact).abs().max() / exact.max()))
        # What linear interpolation half way between two pixels misses at the peak.
        assert errors[-1] < 1.02 * (geometry.pixel / width) ** 2 / 8
        for turned in (x.T, x.flip(0), x.flip(1)):
            assert (ray(turned) - exact).abs().max() / exact.max() > 0.3
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_the_first_angle_of_zero_sums_columns() -> None:
    geometry = Geometry((5, 7), angles=(0.0, math.pi / 2), detectors=7, pixel=2.0, spacing=2.0)
    x = images(geometry, 1)[0]
    y = RayTransform(geometry)(x)
    torch.testing.assert_close(y[0], 2 * x.sum(0))
    torch.testing.assert_close(y[1, 1:-1], 2 * x.sum(1).flip(0))


# -- ASTRA ----------------------------------------------------------------------------------


def golden(case: str) -> tuple[Geometry, Tensor, Tensor]:
    """Return a geometry, an image and ASTRA's sinogram of it."""
    with np.load(GOLDEN) as file:
        x, y, angles, pixel, spacing = (
            file[f"{case}/{name}"] for name in ("x", "y", "angles", "pixel", "spacing")
        )
    geometry = Geometry(x.shape, tuple(angles.tolist()), y.shape[1], float(pixel), float(spacing))
    return geometry, torch.from_numpy(x).double(), torch.from_numpy(y).double()


@every_method
@pytest.mark.parametrize("case", ["letter", "white", "wide", "tall", "lodopab"])
def test_sinograms_are_astra_s(case: str, method: Method) -> None:
    geometry, x, y = golden(case)
    ours = RayTransform(geometry, method=method)(x)
    assert (ours - y).norm() < 5e-5 * y.norm()  # ASTRA computes in float32
    assert (ours - y).abs().max() < 1e-4 * y.max()


@pytest.mark.parametrize("case", ["letter", "lodopab"])
def test_a_turned_image_is_noticed(case: str) -> None:
    geometry, x, y = golden(case)
    ray = RayTransform(geometry, method="free")
    for turned in (x.T, x.flip(0), x.flip(1), x.flip(0, 1), torch.rot90(x), torch.rot90(x.T)):
        if not torch.equal(turned, x):
            assert (ray(turned) - y).norm() > 0.3 * y.norm()


def test_the_golden_file_has_the_geometry_of_the_defaults() -> None:
    for case, default, angles in (
        ("letter", Geometry(), slice(None, None, 8)),
        ("white", Geometry(), slice(3, None, 31)),
        ("lodopab", Geometry.lodopab(), slice(100, None, 333)),
    ):
        geometry, _, _ = golden(case)
        assert (geometry.shape, geometry.detectors) == (default.shape, default.detectors)
        assert geometry.pixel == pytest.approx(default.pixel, rel=1e-12)
        assert geometry.detector_spacing == pytest.approx(default.detector_spacing, rel=1e-12)
        torch.testing.assert_close(geometry.theta, default.theta[angles], rtol=0, atol=1e-14)


# -- coarser images, noise, errors ----------------------------------------------------------


def test_coarsening_takes_means_in_the_middle() -> None:
    x = torch.rand(2, 362, 362, dtype=torch.float64)
    coarse = coarsen(x)
    assert coarse.shape == (2, 88, 88)
    torch.testing.assert_close(coarse[:, 0, 3], x[:, 5:9, 17:21].mean((1, 2)))
    torch.testing.assert_close(coarse[:, -1, -1], x[:, 353:357, 353:357].mean((1, 2)))
    small = coarsen(x[0, :9, :11], factor=2, size=4)
    torch.testing.assert_close(small[0, 0], x[0, 0:2, 1:3].mean())
    with pytest.raises(VspairError, match="at least 352 pixels"):
        coarsen(torch.rand(3, 300, 362))


def test_noise_is_a_share_of_each_sinogram_s_range() -> None:
    problem = CtProblem(Geometry((16, 16), angles=40, detectors=50), noise=0.1)
    x = images(problem.geometry, 300) * torch.logspace(-2, 2, 300).double()[:, None, None]
    clean = problem.forward(x)
    y, deviation = problem.observe(x, Generator().manual_seed(0))
    span = clean.amax((1, 2)) - clean.amin((1, 2))
    measured = (y - clean).std((1, 2))
    torch.testing.assert_close(measured, deviation, rtol=0.08, atol=0)
    share = (deviation / span).sort().values
    assert share.min() >= 0
    assert share.max() <= 0.1
    torch.testing.assert_close(
        share, torch.linspace(0, 0.1, 300, dtype=torch.float64), rtol=0, atol=0.01
    )


def test_pairs_are_reproducible_by_seed() -> None:
    problem = CtProblem(GEOMETRIES["small"])
    x = images(problem.geometry).float()
    first, again, other = problem.pairs(x, 1), problem.pairs(x, 1), problem.pairs(x, 2)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)
    assert torch.equal(first.x, x)
    assert first.y.dtype == torch.float32
    quiet = CtProblem(problem.geometry, noise=0.0).pairs(x, 1)
    assert torch.equal(quiet.y, problem.forward(x))
    with pytest.raises(VspairError, match="expected \\(N, rows, columns\\)"):
        problem.pairs(x[0], 0)


def test_pairs_say_their_noise_and_join_and_split_with_it() -> None:
    problem = CtProblem(GEOMETRIES["small"])
    x = images(problem.geometry, 300).float()  # more than are projected at once
    pairs, clean = problem.pairs(x, 1), problem.forward(x)
    span = clean.amax((1, 2)) - clean.amin((1, 2))
    torch.testing.assert_close(pairs.level, 100 * pairs.deviation / span)
    measured = 100 * (pairs.y - clean).std((1, 2)) / span
    torch.testing.assert_close(measured, pairs.level, rtol=0.3, atol=1e-3)
    joined = pairs[:2].followed_by(pairs[torch.tensor([7, 9])])
    for name in ("x", "y", "deviation", "level"):
        assert torch.equal(getattr(joined, name), getattr(pairs, name)[[0, 1, 7, 9]])
    alone = problem.pairs(x[:5], 1)
    assert torch.equal(alone.x, pairs.x[:5])
    assert torch.equal(
        CtProblem(problem.geometry).pairs(torch.zeros(1, 12, 12), 0).level, alone.level[:1] * 0
    )


def test_moved_copies_stay_in_range_and_near() -> None:
    """A disc in the middle stays a disc of about its size, near the middle."""
    grid = torch.linspace(-1, 1, 64)
    x = (grid[:, None].square() + grid.square() < 0.16).float().expand(5, 64, 64)
    moved = moved_copies(x, 3, Generator().manual_seed(0))
    assert moved.shape == (15, 64, 64)
    assert 0 <= float(moved.min()) <= float(moved.max()) <= 1
    area = moved.mean((1, 2)) / x.mean()
    assert 0.9**2 - 0.05 < float((1 / area).min()) < float((1 / area).max()) < 1.1**2 + 0.05
    right = (moved * grid).sum((1, 2)) / moved.sum((1, 2))
    assert 0.02 < float(right.abs().max()) < 0.25
    assert float((moved - x.repeat(3, 1, 1)).square().mean((1, 2)).min()) > 1e-4
    assert moved_copies(x, 0, Generator()).shape == (0, 64, 64)


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf, "a", None, True])
def test_wrong_noise_is_named(noise: Any) -> None:
    with pytest.raises(VspairError, match=f"noise = {noise!r}.*ten per cent"):
        CtProblem(noise=noise)


def test_a_matrix_that_does_not_fit_is_refused() -> None:
    ray = RayTransform(Geometry.lodopab(), method="matrix")
    with pytest.raises(VspairError, match=r"362x362.*1000 angles.*6.12 GB.*method='free'"):
        ray(torch.zeros(362, 362))
    small = RayTransform(GEOMETRIES["small"], method="matrix", memory=10_000)
    with pytest.raises(VspairError, match="method='free'"):
        small.adjoint(torch.zeros(11, 17))
    assert not RayTransform(GEOMETRIES["small"], memory=10_000).keeps()


def test_the_estimate_covers_what_is_kept() -> None:
    ray = RayTransform(GEOMETRIES["small"])
    ray.adjoint(ray(torch.rand(12, 12)))
    kept = [t for part in (ray._forward, ray._adjoint) for t in part._kept.values()]
    size = sum(rows.column.nbytes + rows.weight.nbytes for rows in kept)
    assert 0.3 * ray.nbytes() < size <= ray.nbytes()


@pytest.mark.parametrize(
    "fault",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")],
)
def test_memory_that_runs_out_is_said(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise fault

    monkeypatch.setattr(gather_module.Gather, "__call__", fail)
    batch = "batch of 5 .*its images and sinograms need about 13.2 kB"
    for method, words in (
        (
            "matrix",
            f"{batch}, and the matrices up to .* kB. Use smaller batches, or method='free'",
        ),
        ("free", f"{batch}. Use smaller batches\\.$"),
    ):
        ray = RayTransform(GEOMETRIES["small"], method=method)  # type: ignore[arg-type]
        with pytest.raises(VspairError, match=words):
            ray(torch.zeros(5, 12, 12))
    with pytest.raises(VspairError, match=r"batch of 1 .*Use a smaller geometry"):
        ray(torch.zeros(12, 12))


def test_a_batch_beyond_all_memory_is_said() -> None:
    ray = RayTransform(GEOMETRIES["small"])
    with pytest.raises(VspairError, match=r" 2.65e\+04 TB.* kB\. Use smaller batches\.$"):
        ray(torch.zeros(1, 1, 1).expand(10**13, 12, 12))


def test_wrong_arrays_are_named() -> None:
    ray = RayTransform(Geometry((8, 6), angles=5, detectors=9))
    with pytest.raises(VspairError, match=r"x has shape \(88, 88\).*\(\*, 8, 6\)"):
        ray(torch.zeros(88, 88))
    with pytest.raises(VspairError, match="swapped"):
        ray(torch.zeros(2, 6, 8))
    with pytest.raises(VspairError, match=r"y has shape \(248, 128\).*5 angles, 9 detector"):
        ray.adjoint(torch.zeros(248, 128))
    with pytest.raises(VspairError, match=r"shape \(6,\)"):
        ray(torch.zeros(6))
    with pytest.raises(VspairError, match=r"x is of type ndarray.*torch\.from_numpy\(x\)"):
        ray(np.zeros((8, 6)))  # type: ignore[arg-type]
    with pytest.raises(VspairError, match=r"y is of type list: expected a tensor of sinograms"):
        ray.adjoint([[0.0]])  # type: ignore[arg-type]
    with pytest.raises(VspairError, match=r"x is of type ndarray"):
        coarsen(np.zeros((362, 362)))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(8, 6), (8, 8)])
def test_wrong_dtypes_are_named(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    ray = RayTransform(Geometry(shape, angles=5, detectors=9))
    with pytest.raises(VspairError, match=f"dtype {dtype}.* Convert it to float32") as caught:
        ray(torch.zeros(shape, dtype=dtype))
    assert "transpose" not in str(caught.value)
    if shape[0] != shape[1]:
        with pytest.raises(VspairError, match=r"transpose it\. Convert it to float32"):
            ray(torch.zeros(shape[::-1], dtype=dtype))


@pytest.mark.parametrize(
    "angles",
    [
        [0.5, 1.5, 2.5],
        np.array([0.5, 1.5, 2.5]),
        np.array([2.5, 1.5, 0.5], np.float32)[::-1],
        torch.tensor([0.5, 1.5, 2.5], requires_grad=True),
    ],
)
def test_angles_may_be_an_array(angles: Any) -> None:
    geometry = Geometry((8, 8), angles)
    assert geometry == Geometry((8, 8), (0.5, 1.5, 2.5))
    assert hash(geometry) == hash(Geometry((8, 8), (0.5, 1.5, 2.5)))
    assert geometry.theta.tolist() == [0.5, 1.5, 2.5]


def test_sizes_may_be_numpy_s() -> None:
    sizes: Any = (np.int64(8), np.int32(8)), np.int64(5), np.uint8(9)
    geometry = Geometry(*sizes)
    assert geometry == Geometry((8, 8), 5, 9)
    assert [type(n) for n in (*geometry.shape, geometry.angles, geometry.detectors)] == [int] * 4
    assert RayTransform(Geometry([8, 8], 5, 9))(torch.ones(8, 8)).shape == (5, 9)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shape": (0, 8)}, "shape = 0"),
        ({"shape": (8,)}, r"\(rows, columns\)"),
        ({"shape": 8}, r"shape = 8: expected \(rows, columns\)"),
        ({"angles": 0}, "angles = 0"),
        ({"angles": ()}, r"angles = \(\)"),
        ({"angles": (0.1, math.nan)}, "nan"),
        ({"angles": 248.0}, "angles = 248.0: expected a whole number of angles"),
        ({"angles": True}, "angles = True"),
        ({"angles": None}, "angles = None"),
        ({"angles": [[0.1], [0.2, 0.3]]}, "one-dimensional array"),
        ({"angles": np.array([0.1, np.inf])}, "inf"),
        ({"angles": np.zeros((3, 2))}, r"an array of shape \(3, 2\).*one-dimensional array"),
        ({"angles": torch.zeros(2, dtype=torch.complex64)}, "finite angle in radians"),
        ({"detectors": -1}, "detectors = -1"),
        ({"detectors": 1.5}, "detectors = 1.5"),
        ({"pixel": 0.0}, "pixel = 0.0"),
        ({"pixel": "1 mm"}, "pixel = '1 mm': expected a finite length"),
        ({"spacing": math.inf}, "spacing = inf"),
        ({"spacing": 1e-20}, "A detector pixel is 1e-20 wide.*Give another spacing"),
        ({"angles": 10**25}, "too large .*10000000000000000000000000 angles.*as many rays"),
        ({"shape": (10**5, 10**5)}, "too large .*100000x100000 image.*at most 2,147,483,647"),
    ],
)
def test_wrong_geometries_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(VspairError, match=words):
        Geometry(**settings)


def test_wrong_methods_are_named() -> None:
    with pytest.raises(VspairError, match=r"method = 'gpu'.*auto, matrix or free"):
        RayTransform(Geometry(), method="gpu")  # type: ignore[arg-type]
