"""The heat problem against answers that are known or computed another way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.problems.heat import HeatProblem


def grid(size: int) -> tuple[Tensor, Tensor]:
    axis = torch.arange(size, dtype=torch.float64) * (2 * math.pi / size)
    return axis[:, None].expand(size, size), axis.expand(size, size)


def fields(problem: HeatProblem, n: int = 3, seed: int = 0) -> Tensor:
    return problem.initial_conditions(n, Generator().manual_seed(seed))


def laplacian(size: int) -> Tensor:
    """Return the periodic spectral second derivative on (size) points, from cosine sums."""
    axis = torch.arange(size, dtype=torch.float64)
    angle = 2 * math.pi * (axis[:, None] - axis) / size
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for k in range(-((size - 1) // 2), size // 2 + 1):
        matrix -= k**2 * torch.cos(k * angle) / size
    return matrix


@pytest.mark.parametrize("k", [(1, 0), (0, 3), (2, -3), (-4, 1), (7, 7)])
def test_a_single_mode_decays_exponentially(k: tuple[int, int]) -> None:
    rows, columns = grid(16)
    x = torch.cos(k[0] * rows + k[1] * columns + 0.3)
    expected = math.exp(-0.02 * (k[0] ** 2 + k[1] ** 2) * 3.0) * x
    torch.testing.assert_close(HeatProblem().forward(x), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("size", [9, 16])
def test_the_mean_is_conserved(size: int) -> None:
    problem = HeatProblem(size=size)
    x = torch.randn(2, 5, size, size, dtype=torch.float64)
    y = problem.forward(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y.mean((-2, -1)), x.mean((-2, -1)))
    assert y.std() < 0.9 * x.std()


def test_times_add_up() -> None:
    x = torch.randn(4, 16, 16, dtype=torch.float64)
    in_two = HeatProblem(time=2.0).forward(HeatProblem(time=1.0).forward(x))
    torch.testing.assert_close(in_two, HeatProblem(time=3.0).forward(x))


def test_it_agrees_with_a_matrix_exponential() -> None:
    problem = HeatProblem(size=8, modes=3, kappa=0.05, time=1.7)
    identity = torch.eye(8, dtype=torch.float64)
    operator = torch.kron(laplacian(8), identity) + torch.kron(identity, laplacian(8))
    propagator = torch.linalg.matrix_exp(0.05 * 1.7 * operator)
    x = torch.randn(5, 8, 8, dtype=torch.float64)
    expected = (x.flatten(1) @ propagator.T).reshape(5, 8, 8)
    torch.testing.assert_close(problem.forward(x), expected, rtol=0, atol=1e-12)


def test_it_agrees_with_small_steps_in_physical_space() -> None:
    problem = HeatProblem(size=64, modes=2, time=0.5, source_width=(1.0, 1.2))
    x = fields(problem)
    u, steps, h = x, 100, 2 * math.pi / 64

    def slope(u: Tensor) -> Tensor:
        near = sum(torch.roll(u, s, d) for s in (-1, 1) for d in (-2, -1))
        return problem.kappa * (near - 4 * u) / h**2

    dt = problem.time / steps
    for _ in range(steps):
        a = slope(u)
        b = slope(u + dt / 2 * a)
        c = slope(u + dt / 2 * b)
        d = slope(u + dt * c)
        u = u + dt / 6 * (a + 2 * b + 2 * c + d)
    change = (u - x).abs().max()
    assert (problem.forward(x) - u).abs().max() < 5e-3 * change


def test_gradients_are_right() -> None:
    problem = HeatProblem(size=5, modes=2)
    x = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(problem.forward, (x,))


def test_the_operator_is_its_own_adjoint() -> None:
    problem = HeatProblem()
    a, b = torch.randn(2, 16, 16, dtype=torch.float64)
    torch.testing.assert_close((problem.forward(a) * b).sum(), (a * problem.forward(b)).sum())


def test_it_commutes_with_periodic_shifts() -> None:
    problem, x = HeatProblem(), torch.randn(3, 16, 16, dtype=torch.float64)
    moved = problem.forward(torch.roll(x, (3, -5), (-2, -1)))
    torch.testing.assert_close(moved, torch.roll(problem.forward(x), (3, -5), (-2, -1)))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)],
)
def test_the_dtype_is_kept(dtype: torch.dtype, tolerance: float) -> None:
    x = fields(HeatProblem())
    y = HeatProblem().forward(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(
        y.double(), HeatProblem().forward(x), rtol=tolerance, atol=tolerance
    )


def test_initial_fields_hold_only_the_modes_asked_for() -> None:
    problem = HeatProblem(modes=3, source_amplitude=(1e-12, 1e-12))
    power = torch.fft.rfft2(fields(problem, 200)).abs().mean(0)
    wave = torch.fft.fftfreq(16, 1 / 16).abs()
    inside = (wave[:, None] <= 3) & (wave[:9] <= 3)
    assert power[~inside].max() < 1e-9
    inside[0, 0] = False
    assert power[inside].min() > 0.1
    assert power[0, 1] > 2 * power[0, 3]


def test_the_source_is_a_periodic_gaussian() -> None:
    problem = HeatProblem(series=0.0, source_amplitude=(2.0, 2.0), source_width=(0.3, 0.3))
    fine = HeatProblem(size=128, series=0.0, source_amplitude=(2.0, 2.0), source_width=(0.3, 0.3))
    x = fields(fine, 50)
    area = x.mean((-2, -1)) * (2 * math.pi) ** 2
    torch.testing.assert_close(
        x.amax((-2, -1)), torch.full((50,), 2.0).double(), rtol=1e-2, atol=0
    )
    gaussian = torch.full((50,), 2.0 * 2 * math.pi * 0.3**2).double()
    torch.testing.assert_close(area, gaussian, rtol=0.05, atol=0)
    assert fields(problem, 50).flatten(1).argmax(1).unique().numel() > 30


def test_pairs_are_reproducible_by_seed() -> None:
    problem = HeatProblem(noise=0.05)
    first, again, other = problem.pairs(6, 1), problem.pairs(6, 1), problem.pairs(6, 2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert first[0].dtype == first[1].dtype == torch.float32
    assert first[0].shape == (6, 16, 16)


def test_noise_has_the_size_asked_for() -> None:
    x, y = HeatProblem(noise=0.1).pairs(400, 0)
    clean = HeatProblem().forward(x.double())
    assert float((y - clean).std() / clean.std()) == pytest.approx(0.1, rel=0.01)
    quiet = HeatProblem().pairs(400, 0)
    torch.testing.assert_close(quiet[1].double(), clean, rtol=0, atol=1e-5)


def test_wiener_without_noise_inverts() -> None:
    problem = HeatProblem()
    x = fields(problem, 20)
    back = problem.wiener(problem.forward(x), fields(problem, 50, seed=1))
    assert (back - x).abs().max() < 1e-6


def test_wiener_beats_its_neighbours_with_noise() -> None:
    problem = HeatProblem(noise=0.1, time=6.0)
    train, _ = problem.pairs(2000, 0)
    x, y = problem.pairs(400, 1)

    def error(answer: Tensor) -> float:
        return float((answer - x).square().mean())

    best = error(problem.wiener(y, train))
    assert best < 0.5 * error(y)
    assert best < 0.1 * error(train.mean(0).expand_as(x))
    for wrong in (0.05, 0.2):
        other = HeatProblem(noise=wrong, time=6.0)
        assert best < error(other.wiener(y, train))


def test_wiener_gives_up_modes_that_are_lost() -> None:
    problem = HeatProblem(time=1e5)
    x = fields(problem, 3)
    assert torch.isfinite(problem.wiener(problem.forward(x), x)).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kappa": 0.0}, "kappa = 0.0"),
        ({"kappa": math.nan}, "kappa = nan"),
        ({"time": -1.0}, "time = -1.0"),
        ({"noise": -0.1}, "noise = -0.1"),
        ({"size": 8, "modes": 4}, "at least 9"),
        ({"modes": 0}, "modes = 0"),
        ({"source_width": (0.5, 0.2)}, "source_width"),
        ({"source_amplitude": (0.0, 1.0)}, "source_amplitude"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(VspairError, match=words):
        HeatProblem(**settings)  # type: ignore[arg-type]


def test_wrong_fields_are_named() -> None:
    problem = HeatProblem()
    with pytest.raises(VspairError, match=r"shape \(2, 8, 8\)"):
        problem.forward(torch.zeros(2, 8, 8))
    with pytest.raises(VspairError, match="int64"):
        problem.forward(torch.zeros(16, 16, dtype=torch.int64))
    with pytest.raises(VspairError, match="x_train"):
        problem.wiener(torch.zeros(16, 16), torch.zeros(3, 8, 8))
    with pytest.raises(VspairError, match="n = 0"):
        problem.pairs(0, seed=0)
