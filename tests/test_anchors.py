"""Ridge paths against the closed form, folds, and answers that are out of fold."""

import math
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from vspair.anchors import RidgePath, assign_folds
from vspair.anchors import ridge as ridges
from vspair.anchors.folds import as_groups
from vspair.anchors.ridge import choose_penalties, ridge_steps
from vspair.errors import VspairError
from vspair.training.prepared import fit_ridge

PENALTIES = (1e-2, 1.0, 30.0, 1e4)


def _pairs(count: int, inputs: int, outputs: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return x (N, n) and y (N, m) in float64, neither of mean zero."""
    generator = Generator().manual_seed(seed)
    y = torch.randn(count, inputs, generator=generator, dtype=torch.float64) + 2
    weights = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, outputs, generator=generator, dtype=torch.float64)
    return y @ weights + 0.3 * noise - 5, y


def _closed_form(x: Tensor, y: Tensor, new: Tensor, penalty: float) -> Tensor:
    """Return the answers to new observations of (Y'Y + pI)^-1 Y'X with intercept."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    centred = y - y_mean
    gram = centred.T @ centred + penalty * torch.eye(y.shape[1], dtype=y.dtype)
    return (new - y_mean) @ torch.linalg.solve(gram, centred.T @ (x - x_mean)) + x_mean


def _closed_path(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    return torch.stack([_closed_form(x, y, new, p) for p in PENALTIES], 1)


# -- the path ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "inputs"), [(60, 7), (7, 7), (12, 40)])
def test_every_penalty_of_the_path_is_the_closed_form(count: int, inputs: int) -> None:
    """Fewer entries than pairs, as many, and more."""
    x, y = _pairs(count, inputs)
    _, new = _pairs(20, inputs, seed=1)
    found = RidgePath.fit(x, y, PENALTIES)(new.float())
    assert found.shape == (20, len(PENALTIES), 3)
    torch.testing.assert_close(found.double(), _closed_path(x, y, new), rtol=1e-4, atol=2e-4)


def test_the_randomised_form_is_the_closed_form_where_the_subspace_holds_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = _pairs(50, 30)
    _, new = _pairs(20, 30, seed=1)
    used = Mock(wraps=ridges._randomised)
    monkeypatch.setattr(ridges, "_randomised", used)
    monkeypatch.setattr(ridges, "LARGEST", 20)
    monkeypatch.setattr(ridges, "RANK", 30)
    found = RidgePath.fit(x, y, PENALTIES)(new.float())
    used.assert_called_once()
    torch.testing.assert_close(found.double(), _closed_path(x, y, new), rtol=1e-3, atol=3e-3)


def test_the_randomised_form_finds_the_directions_that_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Observations of rank 5 beside tiny noise: 12 directions are enough for 60 entries."""
    generator = Generator().manual_seed(0)
    hidden = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    mixing = torch.randn(5, 60, generator=generator, dtype=torch.float64)
    y = hidden @ mixing + 1e-3 * torch.randn(200, 60, generator=generator, dtype=torch.float64)
    x = hidden[:, :2]
    full = _closed_form(x, y, y, 1.0)
    monkeypatch.setattr(ridges, "LARGEST", 20)
    monkeypatch.setattr(ridges, "RANK", 12)
    path = RidgePath.fit(x, y, (1.0,))
    assert path.directions.shape[1] <= 12
    assert float((path(y.float())[:, 0] - full).abs().max()) < 1e-2


def test_kept_steps_answer_as_they_did_before() -> None:
    x, y = _pairs(60, 7)
    path = RidgePath.fit(x, y, PENALTIES)
    before = path(y.float())
    path.keep([0, 2])
    assert path.penalties.tolist() == pytest.approx([PENALTIES[0], PENALTIES[2]])
    assert torch.equal(path(y.float()), before[:, [0, 2]])


def test_directions_without_weight_are_left_out() -> None:
    """An entry that repeats another adds none, and answers are those of the closed form."""
    x, y = _pairs(60, 4)
    twice = torch.cat((y, y), 1)
    path = RidgePath.fit(x, twice, (1.0,))
    assert path.directions.shape == (8, 4)
    expected = _closed_form(x, twice, twice, 1.0)
    torch.testing.assert_close(path(twice.float())[:, 0].double(), expected, rtol=1e-4, atol=1e-4)


def test_the_path_of_penalties_goes_with_the_scale() -> None:
    small, large = choose_penalties(1.0), choose_penalties(100.0)
    assert small == sorted(small)
    assert large == pytest.approx([100 * p for p in small])
    assert RidgePath.fit(*_pairs(60, 7)).penalties.tolist() == pytest.approx(
        choose_penalties(float((_pairs(60, 7)[1].var(0, correction=0) * 60).mean())), rel=1e-5
    )


@pytest.mark.parametrize(
    ("best", "steps"), [(0, [0, 2]), (1, [0, 1, 3]), (5, [1, 3, 5, 7]), (9, [5, 7, 9])]
)
def test_the_best_penalty_and_its_neighbours_are_kept(best: int, steps: list[int]) -> None:
    errors = (torch.arange(10) - best).double().square()
    half = [10 ** (k / 2) for k in range(10)]
    assert ridge_steps(half, errors) == steps
    whole = ridge_steps([10.0**k for k in range(10)], errors)
    best = int(errors.argmin())
    assert whole == sorted({max(0, best - 2), max(0, best - 1), best, min(9, best + 1)})


# -- folds ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "folds"), [(20, 5), (23, 5), (7, 7), (101, 4)])
def test_folds_of_single_pairs_are_of_nearly_one_size(count: int, folds: int) -> None:
    fold = assign_folds(torch.arange(count), folds, seed=0)
    sizes = torch.bincount(fold, minlength=folds)
    assert len(sizes) == folds
    assert int(sizes.max() - sizes.min()) <= 1
    assert int(sizes.sum()) == count


def test_groups_are_never_divided_and_folds_stay_even() -> None:
    generator = Generator().manual_seed(0)
    groups = torch.randint(0, 30, (500,), generator=generator) ** 2 // 30
    groups = torch.unique(groups, return_inverse=True)[1]
    fold = assign_folds(groups, 5, seed=0)
    for group in range(int(groups.max()) + 1):
        assert len(fold[groups == group].unique()) == 1
    sizes = torch.bincount(fold, minlength=5)
    # The largest first, each to the smallest fold: they differ by no more than one group.
    assert int(sizes.max() - sizes.min()) <= int(torch.bincount(groups).max())
    assert int(sizes.min()) > 0


def test_the_seed_chooses_the_folds() -> None:
    every = torch.arange(100)
    first, again, other = (assign_folds(every, 5, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_labels_of_any_kind_are_groups() -> None:
    assert as_groups(None, 3).tolist() == [0, 1, 2]
    for labels in (["b", "a", "b"], torch.tensor([9, -1, 9]), [2.5, 0.5, 2.5]):
        assert as_groups(labels, 3).tolist() == [1, 0, 1]


@pytest.mark.parametrize("labels", [[0, 1], [[0, 1, 2]], 5], ids=str)
def test_groups_of_another_length_are_refused(labels: object) -> None:
    given = str(torch.tensor(labels).shape[:]).removeprefix("torch.Size([").removesuffix("])")
    with pytest.raises(VspairError, match=r"groups has shape .*expected \(3,\), one label") as e:
        as_groups(labels, 3)
    assert all(n in str(e.value) for n in given.split(", "))


def test_too_few_groups_are_refused() -> None:
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    with pytest.raises(VspairError, match=r"3 groups of pairs are too few for 5 folds.*Give more"):
        assign_folds(groups, 5, seed=0)


# -- out of fold ------------------------------------------------------------------------------


def _error(answers: Tensor, x: Tensor, step: int) -> float:
    return float((answers[:, step] - x).double().square().mean())


def test_errors_out_of_fold_are_those_of_fresh_pairs() -> None:
    """Many entries of y and few pairs: what was fitted to a pair flatters it."""
    generator = Generator().manual_seed(0)
    y = torch.randn(2080, 60, generator=generator)
    x = y[:, :2] + torch.randn(2080, 2, generator=generator)
    train_x, train_y, fresh_x, fresh_y = x[:80], y[:80], x[80:], y[80:]
    fold = assign_folds(torch.arange(80), 5, 0)
    path, outside, errors = fit_ridge(train_x, train_y, fold)
    _, inside, _ = fit_ridge(train_x, train_y, fold, out_of_fold=False)
    best = int(errors.argmin())
    fresh = _error(path(fresh_y), fresh_x, best)
    assert _error(inside, train_x, best) < 0.75 * fresh
    assert 0.85 * fresh < _error(outside, train_x, best) < 1.35 * fresh
    assert errors[best] == pytest.approx(_error(outside, train_x, best), rel=1e-4)


def test_pure_noise_leaves_all_variance_out_of_fold() -> None:
    """The smallest penalty interpolates noise; out of fold its error is above the variance."""
    generator = Generator().manual_seed(0)
    x, y = torch.randn(100, 1, generator=generator), torch.randn(100, 50, generator=generator)
    fold = assign_folds(torch.arange(100), 5, 0)
    _, outside, errors = fit_ridge(x, y, fold)
    _, inside, _ = fit_ridge(x, y, fold, out_of_fold=False)
    variance = float(x.var())
    assert _error(inside, x, 0) < 0.75 * variance
    assert _error(outside, x, 0) > variance
    assert float(errors.min()) > 0.9 * variance


def test_relatives_in_one_group_are_not_answered_by_each_other() -> None:
    """Pairs come twice: single folds answer each from its copy, folds of groups do not."""
    generator = Generator().manual_seed(0)
    x = torch.randn(60, 1, generator=generator).repeat(2, 1)
    y = torch.randn(60, 200, generator=generator).repeat(2, 1)
    groups = torch.arange(60).repeat(2)
    found = {}
    for name, labels in (("alone", torch.arange(120)), ("grouped", groups)):
        _, answers, _ = fit_ridge(x, y, assign_folds(labels, 5, 0))
        found[name] = _error(answers, x, 0)
    assert found["alone"] < 0.5 * float(x.var())
    assert found["grouped"] > 0.9 * float(x.var())


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", "b", math.nan], "1 labels that are None or not a number"),
        (np.array([1.0, math.nan, math.nan]), "2 labels that are None or not a number"),
        (np.array([1.0, math.nan, 2.0], dtype=object), "1 labels that are None or not a number"),
        ([None, None, None], "3 labels that are None"),
        ([1, "1", 2], r"several kinds \(int, str\)"),
    ],
    ids=str,
)
def test_pairs_without_a_label_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(VspairError, match=words):
        as_groups(labels, 3)


def test_labels_of_numpy_are_of_one_kind() -> None:
    labels = np.array([np.int64(7), 5, np.int32(7)], dtype=object)
    assert as_groups(labels, 3).tolist() == [1, 0, 1]
