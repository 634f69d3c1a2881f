"""Scores and files of a model, whatever model and data they are asked of."""

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.evaluation import evaluate, invert, scores
from vspair.methods import Ridge
from vspair.metrics import central_interval
from vspair.model import InverseModel, build
from vspair.networks import NetworkConfig
from vspair.vocabulary import look_up

Kind = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR"]
KINDS: tuple[Kind, ...] = ("PAIR", "vPAIR", "sVAE", "vsPAIR")
SPREAD = {"variance", "uncertainty_error_r"}

kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind: Kind, n: int = 5) -> tuple[InverseModel, Tensor, Tensor]:
    """Return a small model, and n pairs of shapes (n, 3) and (n, 4)."""
    network = NetworkConfig(width=4)
    model = build(ModelConfig(kind, 6, 5, network, network), (3,), (4,))
    return model.eval(), torch.randn(n, 3), torch.randn(n, 4)


# -- evaluate ---------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("samples", [1, 2, 20])
@pytest.mark.parametrize("n", [1, 5])
def test_scores_are_numbers_or_left_out(kind: Kind, samples: int, n: int) -> None:
    model, x, y = make(kind, n)
    found = evaluate(model, x, y, samples=samples)
    assert all(map(math.isfinite, found.values()))
    expected = set() if kind == "PAIR" or samples == 1 else {"variance"}
    expected |= {"uncertainty_error_r"} if expected and n > 1 else set()
    assert found.keys() & SPREAD == expected
    assert {"mse_mean", "mse_sample", "mse_code", "crps", "energy_score"} <= found.keys()
    assert ("coverage_90" in found) == (kind != "PAIR" and samples > 1)
    assert all(map(look_up, found))
    assert ("active" in found) == (kind in ("sVAE", "vsPAIR"))


def test_constant_test_data_is_scored() -> None:
    model, _, _ = make("vsPAIR")
    found = evaluate(model, np.zeros((6, 3)), np.ones((6, 4)), samples=5)
    assert found["floor_mean"] == 0
    assert all(map(math.isfinite, found.values()))


def test_intervals_hold_samples_as_often_as_they_promise() -> None:
    """A truth drawn from the posterior itself lies in its interval nine times in ten."""
    model, _, y = make("vPAIR", 4000)
    x = model.posterior(y).sample(1)[0]
    found = evaluate(model, x, y, samples=20, chunk=500)
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.015)


def test_scores_that_overflow_are_refused() -> None:
    model, x, y = make("vPAIR")
    with pytest.raises(VspairError, match=r"not finite.*mse"):
        evaluate(model, 1e30 * x, y, samples=3)


# -- invert -----------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("samples", [1, 2, 30])
@pytest.mark.parametrize("noise", [False, True], ids=["clean", "noisy"])
@pytest.mark.parametrize("single", [False, True], ids=["batch", "single"])
def test_all_that_is_saved_is_of_the_saved_samples(
    kind: Kind, samples: int, noise: bool, single: bool, tmp_path: Path
) -> None:
    model, _, y = make(kind)
    out = tmp_path / "answer.npz"
    invert(model, y[0] if single else y, samples=samples, level=0.8, noise=noise, out=out)
    saved = {name: torch.from_numpy(values) for name, values in np.load(out).items()}
    if kind == "PAIR" and not noise:
        assert not {"std", "lower", "upper", "samples"} & saved.keys()
        assert torch.allclose(saved["mean"], saved["approximate_mean"], atol=1e-6)
        return
    drawn = saved["samples"]
    assert drawn.shape == ((samples, 3) if single else (samples, 5, 3))
    low, high = central_interval(drawn, 0.8)
    assert torch.equal(saved["lower"], low)
    assert torch.equal(saved["upper"], high)
    assert torch.allclose(saved["mean"], drawn.mean(0), atol=1e-6)
    std = drawn.std(0) if samples > 1 else torch.zeros_like(drawn[0])
    assert torch.allclose(saved["std"], std, atol=1e-6)
    assert {v.dtype for k, v in saved.items() if k != "seconds"} == {torch.float32}


def test_a_seed_fixes_the_answer() -> None:
    model, _, y = make("vsPAIR")
    one, same, other = (invert(model, y, seed=s)["samples"] for s in (2**63 - 1, 2**63 - 1, 0))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 10**30])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    model, x, y = make("vsPAIR")
    for call in (lambda: invert(model, y, seed=seed), lambda: evaluate(model, x, y, seed=seed)):
        with pytest.raises(VspairError, match=rf"seed = {seed}: expected"):
            call()


@pytest.mark.parametrize("wrong", [{"level": 1.5}, {"samples": 0}], ids=str)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    model, _, y = make("vsPAIR")
    with pytest.raises(VspairError, match=r"level = 1\.5|at least one"):
        invert(model, y, **wrong)


# -- any method -------------------------------------------------------------------------------


def test_methods_without_a_model_are_evaluated_and_inverted(tmp_path: Path) -> None:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    ridge = Ridge(x, 2 * x, penalties=[1e-9])
    assert evaluate(ridge, x, 2 * x)["mse_mean"] < 1e-9
    answer = invert(ridge, 2 * x[:4], out=tmp_path / "answer.npz")
    assert answer.keys() == {"mean", "seconds"}
    assert np.allclose(answer["mean"], x[:4], atol=1e-4)
    with pytest.raises(VspairError, match=r"x has shape \(30, 2\)"):
        evaluate(ridge, x[:, :2], 2 * x)


def test_truths_of_another_number_or_shape_are_refused() -> None:
    model, x, y = make("vsPAIR")
    post = model.posterior(y)
    for wrong in (x[:1], x[:4], x[:, :2], x[0]):
        with pytest.raises(VspairError, match=r"x has shape .*expected \(5, 3\)"):
            scores(post, wrong)


def test_one_observation_is_scored_as_a_batch_of_one() -> None:
    model, x, y = make("vsPAIR")
    one, batch = scores(model.posterior(y[0]), x[0]), scores(model.posterior(y[:1]), x[:1])
    assert one.keys() == batch.keys()
    assert all(torch.equal(one[name], batch[name]) for name in one)
