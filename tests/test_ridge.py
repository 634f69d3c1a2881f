"""Ridge regression against least squares and the normal equations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vspair.anchors import assign_folds
from vspair.errors import VspairError
from vspair.methods.large_ridge import LargeRidge
from vspair.methods.ridge import Ridge


def problem(n: int = 60, noise: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(n, 4, 5, generator=generator) + 2
    weight = torch.randn(20, 6, generator=generator)
    x = y.flatten(1) @ weight + 1 + noise * torch.randn(n, 6, generator=generator)
    return x.reshape(n, 2, 3), y, weight


def test_a_tiny_penalty_is_least_squares() -> None:
    x, y, _ = problem()
    design = torch.cat((y.flatten(1).double(), torch.ones(len(y), 1).double()), 1)
    solution = torch.linalg.lstsq(design, x.flatten(1).double()).solution
    ridge = Ridge(x, y, penalties=[1e-10])
    torch.testing.assert_close(ridge.weight, solution[:-1], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ridge.bias, solution[-1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("penalty", [0.1, 3.0, 100.0])
def test_it_solves_the_normal_equations(penalty: float) -> None:
    x, y, _ = problem()
    a, b = y.flatten(1).double(), x.flatten(1).double()
    a, b = a - a.mean(0), b - b.mean(0)
    expected = torch.linalg.solve(a.T @ a + penalty * torch.eye(20).double(), a.T @ b)
    ridge = Ridge(x, y, penalties=[penalty])
    torch.testing.assert_close(ridge.weight, expected)
    assert ridge.penalty == penalty


def test_the_bias_is_not_penalised() -> None:
    x, y, _ = problem()
    ridge = Ridge(x, y, penalties=[1e12])
    torch.testing.assert_close(ridge(y), x.mean(0).expand_as(x), rtol=0, atol=1e-4)


def test_fewer_pairs_than_numbers_are_fine() -> None:
    x, y, _ = problem(12)
    assert torch.isfinite(Ridge(x, y, penalties=[1e-3])(y)).all()


def test_the_penalty_grows_with_the_noise() -> None:
    quiet, loud = problem(40, 0.01), problem(40, 30.0)
    assert Ridge(*quiet[:2]).penalty < 1e-1
    assert Ridge(*loud[:2]).penalty > 1


def test_the_choice_is_the_best_on_the_held_out_pairs() -> None:
    x, y, _ = problem(50, 3.0)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(4))
    held, train = order[:10], order[10:]
    penalties = [1e-3, 1.0, 1e3]
    errors = [
        (Ridge(x[train], y[train], penalties=[p])(y[held]) - x[held]).square().mean()
        for p in penalties
    ]
    best = penalties[int(torch.stack(errors).argmin())]
    chosen = Ridge(x, y, penalties=penalties, validation=0.2, seed=4)
    assert chosen.penalty == best
    torch.testing.assert_close(chosen.weight, Ridge(x, y, penalties=[best]).weight)


def test_shape_and_dtype_follow_the_data() -> None:
    x, y, _ = problem()
    answer = Ridge(x, y)(y[:3])
    assert answer.shape == (3, 2, 3)
    assert answer.dtype == y.dtype


def test_mistakes_are_named() -> None:
    x, y, _ = problem()
    with pytest.raises(VspairError, match=r"shape \(3, 5, 4\)"):
        Ridge(x, y)(torch.zeros(3, 5, 4))
    with pytest.raises(VspairError, match="above 0"):
        Ridge(x, y, penalties=[0.0])
    with pytest.raises(VspairError, match="at least one"):
        Ridge(x, y, penalties=[])
    with pytest.raises(VspairError, match="leave none"):
        Ridge(x[:2], y[:2])
    with pytest.raises(VspairError, match="as many"):
        Ridge(x[:5], y)


# -- of large observations --------------------------------------------------------------------


def test_large_ridge_is_ridge_with_a_penalty_that_is_chosen_out_of_fold(tmp_path: Path) -> None:
    x, y, _ = problem(noise=1.0)
    groups = torch.arange(len(x)) // 4
    method, answers = LargeRidge.fit(x, y, groups=groups)
    a, b = method.y_normaliser(y).flatten(1), method.x_normaliser(x).flatten(1)
    plain = Ridge(b, a, penalties=[float(method.path.penalties)])
    expected = method.x_normaliser.inverse(plain(a).reshape(x.shape))
    torch.testing.assert_close(method(y), expected, rtol=1e-4, atol=1e-4)
    fold = assign_folds(groups, 5, 0)
    for k in range(5):  # no answer is by a fit to pairs of its own group
        others = Ridge(b[fold != k], a[fold != k], penalties=[plain.penalty])(a[fold == k])
        found = method.x_normaliser(answers[fold == k]).flatten(1)
        torch.testing.assert_close(found, others, rtol=1e-4, atol=1e-4)
    assert (answers - x).square().mean() > (method(y) - x).square().mean()
    method.save(tmp_path / "ridge.safetensors")
    again = LargeRidge.load(tmp_path / "ridge.safetensors")
    torch.testing.assert_close(again(y), method(y), rtol=0, atol=0)
    assert again.n_parameters == method.n_parameters == 6 + 20 + 20 * 20 + 20 + 20 * 6
