"""The heat problem against answers that are known or computed another way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from vspair.data import random_shift
from vspair.errors import VspairError
from vspair.problems.heat import PAPER_STEP, HeatProblem, Source, rk222

DEDALUS: dict[str, Any] = {"step": PAPER_STEP, "nyquist": False}
SOLVERS: list[dict[str, Any]] = [{}, {"step": PAPER_STEP}, DEDALUS]
every_solver = pytest.mark.parametrize("solver", SOLVERS, ids=["exact", "rk222", "dedalus"])


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


@every_solver
@pytest.mark.parametrize("size", [9, 16])
def test_the_mean_is_conserved(size: int, solver: dict[str, Any]) -> None:
    problem = HeatProblem(size=size, **solver)
    x = torch.randn(2, 5, size, size, dtype=torch.float64)
    y = problem.forward(x)
    assert y.shape == x.shape
    torch.testing.assert_close(y.mean((-2, -1)), x.mean((-2, -1)))
    assert y.std() < 0.9 * x.std()


@every_solver
def test_times_add_up(solver: dict[str, Any]) -> None:
    x = torch.randn(4, 16, 16, dtype=torch.float64)
    first, second, whole = (HeatProblem(time=t, **solver) for t in (1.0, 2.0, 3.0))
    torch.testing.assert_close(second.forward(first.forward(x)), whole.forward(x))


@every_solver
def test_a_batch_is_its_fields(solver: dict[str, Any]) -> None:
    problem, x = HeatProblem(**solver), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    singly = torch.stack([problem.forward(field) for field in x.flatten(0, 1)])
    torch.testing.assert_close(problem.forward(x).flatten(0, 1), singly, rtol=0, atol=1e-14)


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


@every_solver
@pytest.mark.parametrize("size", [5, 6])
def test_gradients_are_right(size: int, solver: dict[str, Any]) -> None:
    problem = HeatProblem(size=size, modes=2, **solver)
    x = torch.randn(2, size, size, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(problem.forward, (x,))


@every_solver
def test_the_operator_is_its_own_adjoint(solver: dict[str, Any]) -> None:
    problem = HeatProblem(**solver)
    a, b = torch.randn(2, 16, 16, dtype=torch.float64)
    torch.testing.assert_close((problem.forward(a) * b).sum(), (a * problem.forward(b)).sum())


@every_solver
def test_it_commutes_with_periodic_shifts(solver: dict[str, Any]) -> None:
    problem, x = HeatProblem(**solver), torch.randn(3, 16, 16, dtype=torch.float64)
    moved = problem.forward(torch.roll(x, (3, -5), (-2, -1)))
    torch.testing.assert_close(moved, torch.roll(problem.forward(x), (3, -5), (-2, -1)))


@every_solver
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 5e-2)],
)
def test_the_dtype_is_kept(dtype: torch.dtype, tolerance: float, solver: dict[str, Any]) -> None:
    problem = HeatProblem(**solver)
    x = fields(problem)
    y = problem.forward(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), problem.forward(x), rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_solver
def test_a_gpu_gives_the_same(solver: dict[str, Any]) -> None:
    problem = HeatProblem(noise=0.05, **solver)
    x, y, source = problem.pairs_with_source(8, 0)
    far = Source(source.amplitude.cuda(), source.width.cuda(), source.centre.cuda())
    for here, there in (
        (problem.forward(x), problem.forward(x.cuda())),
        (problem.invert(y), problem.invert(y.cuda())),
        (problem.wiener(y, x), problem.wiener(y.cuda(), x.cuda())),
        (source.field(16), far.field(16)),
        (random_shift(x, y, Generator())[1], random_shift(x.cuda(), y.cuda(), Generator())[1]),
    ):
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)


# -- the steps of RK222 ---------------------------------------------------------------------


def test_an_odd_grid_has_no_nyquist_modes() -> None:
    x = torch.randn(9, 9, dtype=torch.float64)
    kept, dropped = (HeatProblem(size=9, nyquist=keep).forward(x) for keep in (True, False))
    assert torch.equal(kept, dropped)


def test_rk222_is_its_tableau_in_physical_space() -> None:
    problem = HeatProblem(size=8, modes=3, kappa=0.3, time=1.5, step=0.5)
    identity, gamma = torch.eye(64, dtype=torch.float64), (2 - math.sqrt(2)) / 2
    line = torch.eye(8, dtype=torch.float64)
    operator = 0.3 * (torch.kron(laplacian(8), line) + torch.kron(line, laplacian(8)))
    implicit = identity - gamma * 0.5 * operator
    x = torch.randn(8, 8, dtype=torch.float64)
    u = x.flatten()
    for _ in range(3):
        first = torch.linalg.solve(implicit, u)
        u = torch.linalg.solve(implicit, u + (1 - gamma) * 0.5 * operator @ first)
    torch.testing.assert_close(problem.forward(x), u.reshape(8, 8), rtol=0, atol=1e-13)


def test_rk222_is_of_second_order() -> None:
    x = fields(HeatProblem())
    exact = HeatProblem().forward(x)
    errors = [
        float((HeatProblem(step=step).forward(x) - exact).abs().max())
        for step in (0.1, 0.05, 0.025, PAPER_STEP)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.05)
    assert errors[2] / errors[3] == pytest.approx(50**2, rel=0.05)
    assert 1e-11 < errors[3] < 1e-8


def test_the_error_of_one_step_is_the_documented_one() -> None:
    z = torch.tensor([-0.01, -0.02], dtype=torch.float64)
    constant = (rk222(z) - z.exp()) / z**3
    torch.testing.assert_close(
        constant, torch.full_like(z, (3 * math.sqrt(2) - 4) / 6), rtol=0.05, atol=0
    )
    assert rk222(torch.tensor(-1e9)).abs() < 1e-8


# -- initial fields and pairs ---------------------------------------------------------------


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


def test_fields_are_drawn_with_their_sources() -> None:
    problem = HeatProblem(series=0.0)
    x, source = problem.draw(40, Generator().manual_seed(0))
    assert torch.equal(x, source.field(16))
    assert torch.equal(x, fields(problem, 40))
    assert source.centre.shape == (40, 2)
    assert torch.equal(source[3:5].field(16), x[3:5])
    assert len(source[3:5]) == 2
    peak = torch.stack(torch.unravel_index(x.flatten(1).argmax(1), (16, 16)), 1)
    away = peak * (2 * math.pi / 16) - source.centre
    assert torch.cos(away).min() > math.cos(math.pi / 16) - 1e-9
    for values, (low, high) in (
        (source.amplitude, problem.source_amplitude),
        (source.width, problem.source_width),
    ):
        assert low <= values.min() < values.max() <= high


def test_the_disc_of_a_source() -> None:
    centre = torch.tensor([[3.0, 3.0], [0.0, 6.2]]).double()
    source = Source(torch.ones(2).double(), torch.tensor([0.4, 0.5]).double(), centre)
    area = source.disc(256).double().mean((1, 2)) * (2 * math.pi) ** 2
    torch.testing.assert_close(area, math.pi * (2 * source.width) ** 2, rtol=0.01, atol=0)
    edge = source.field(256)[source.disc(256) ^ source.disc(256, 1.9)]
    assert 0.12 < edge.min() < edge.max() < 0.2
    assert source.disc(16)[1, [0, 0, 15, 1], [0, 15, 15, 0]].all()
    assert not source.disc(16)[1, 8].any()


def test_the_paper_s_pairs() -> None:
    problem = HeatProblem(noise=0.05)
    train, test = problem.paper_pairs(3)
    assert train.x.shape == train.y.shape == (972, 16, 16)
    assert test.x.shape == test.y.shape == (52, 16, 16)
    x, y = problem.pairs(1024, 3)
    assert torch.equal(torch.cat((train.x, test.x)), x)
    assert torch.equal(torch.cat((train.y, test.y)), y)
    assert (len(train.source), len(test.source)) == (972, 52)
    peaks = test.x[test.source.disc(16)].mean()
    assert peaks > 1 + test.x[~test.source.disc(16)].mean()


def test_shifted_pairs_are_pairs() -> None:
    problem = HeatProblem()
    x, y = problem.pairs(30, 0)
    moved_x, moved_y = random_shift(x, y, Generator().manual_seed(0))
    torch.testing.assert_close(problem.forward(moved_x), moved_y, rtol=0, atol=1e-5)
    places = set()
    for before, after in zip(x, moved_x, strict=True):
        place = [
            (i, j)
            for i in range(16)
            for j in range(16)
            if torch.equal(torch.roll(before, (i, j), (0, 1)), after)
        ]
        assert len(place) == 1
        places.update(place)
    assert len(places) > 20
    again = random_shift(x, y, Generator().manual_seed(0))
    assert torch.equal(again[0], moved_x)


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


# -- inversion ------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS[:2], ids=["exact", "rk222"])
def test_division_recovers_the_field(solver: dict[str, Any]) -> None:
    problem, x = HeatProblem(**solver), torch.randn(20, 16, 16, dtype=torch.float64)
    back = problem.invert(problem.forward(x))
    assert (back - x).abs().max() < 1e-11


def test_division_recovers_all_but_dropped_modes() -> None:
    problem, x = HeatProblem(**DEDALUS), torch.randn(16, 16, dtype=torch.float64)
    back, whole = (torch.fft.fft2(f) for f in (problem.invert(problem.forward(x)), x))
    at = torch.zeros(16, 16, dtype=torch.bool)
    at[8] = at[:, 8] = True
    assert back[at].abs().max() < 1e-12
    torch.testing.assert_close(back[~at], whole[~at], rtol=0, atol=1e-10)


def test_tikhonov_minimises_its_objective() -> None:
    problem, y = HeatProblem(time=6.0), torch.randn(16, 16, dtype=torch.float64)
    x = problem.invert(y, penalty=0.1).requires_grad_()
    objective = (problem.forward(x) - y).square().sum() + 0.1 * x.square().sum()
    (slope,) = torch.autograd.grad(objective, x)
    assert slope.abs().max() < 1e-12
    assert (problem.invert(y, penalty=0.2) - x).abs().max() > 0.01


def test_wiener_is_the_best_filter() -> None:
    """A change of any mode's gain raises the mean error over all noise and the examples."""
    problem = HeatProblem(noise=0.1, time=6.0)
    x = fields(problem, 500)
    clean, mean = problem.forward(x), x.mean()
    deviation = 0.1 * clean.std()
    unit = torch.zeros(16, 16, dtype=torch.float64)
    unit[0, 0] = 1
    gain = torch.fft.fft2(problem.wiener(mean + unit, x) - mean)
    decay = torch.fft.fft2(problem.forward(unit))
    power = torch.fft.fft2(x - mean, norm="ortho").abs().square().mean(0)

    def risk(gain: Tensor) -> Tensor:
        bias = (1 - gain * decay).abs().square() * power
        return bias + gain.abs().square() * deviation**2

    for change in (-0.1, -0.001, 0.001, 0.1, 0.001j, -0.001j):
        assert (risk(gain + change) > risk(gain)).all()
    y = clean + deviation * torch.randn(clean.shape, dtype=torch.float64)
    measured = (problem.wiener(y, x) - x).square().mean()
    torch.testing.assert_close(measured, risk(gain).mean(), rtol=0.02, atol=0)


def test_wiener_without_noise_inverts() -> None:
    problem = HeatProblem()
    x = fields(problem, 20)
    back = problem.wiener(problem.forward(x), fields(problem, 50, seed=1))
    assert (back - x).abs().max() < 1e-10


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
        ({"kappa": "thin"}, "kappa = 'thin': expected a number"),
        ({"time": None}, "time = None: expected a number"),
        ({"kappa": math.nan}, "kappa = nan"),
        ({"time": -1.0}, "time = -1.0"),
        ({"noise": -0.1}, "noise = -0.1"),
        ({"size": 8, "modes": 4}, "at least 9"),
        ({"modes": 0}, "modes = 0"),
        ({"decay": math.nan}, "decay = nan"),
        ({"series": -1.0}, "series = -1.0"),
        ({"step": 0.0}, "step = 0.0"),
        ({"step": math.inf}, "step = inf"),
        ({"step": 0.7}, "time = 3.0 is not a whole number of steps"),
        ({"step": 4.0}, "time = 3.0 is not a whole number of steps"),
        ({"source_width": (0.5, math.inf)}, "source_width"),
        ({"source_width": (0.5, 0.2)}, "source_width"),
        ({"source_width": 0.4}, "source_width"),
        ({"size": 16.5}, "size = 16.5: expected a whole number"),
        ({"modes": 2.5}, "modes"),
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
    with pytest.raises(VspairError, match=r"shape \(16, 12\).*Set size"):
        problem.forward(torch.zeros(16, 12))
    with pytest.raises(VspairError, match=r"shape \(16,\)"):
        problem.forward(torch.zeros(16))
    with pytest.raises(VspairError, match="drop the last line"):
        problem.forward(torch.zeros(4, 17, 17))
    with pytest.raises(VspairError, match="int64"):
        problem.forward(torch.zeros(16, 16, dtype=torch.int64))
    with pytest.raises(VspairError, match="x_train"):
        problem.wiener(torch.zeros(16, 16), torch.zeros(3, 8, 8))
    with pytest.raises(VspairError, match="n = 0"):
        problem.pairs(0, seed=0)
    with pytest.raises(VspairError, match=r"y has shape \(8, 8\)"):
        problem.invert(torch.zeros(8, 8))
    with pytest.raises(VspairError, match=r"penalty = -1.0"):
        problem.invert(torch.zeros(16, 16), penalty=-1.0)
    with pytest.raises(VspairError, match=r"y \(2, 8, 8\)"):
        random_shift(torch.zeros(2, 16, 16), torch.zeros(2, 8, 8), Generator())
