import json
import math
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.metrics import gaussian_kl
from vspair.problems.gaussian import GaussianProblem
from vspair.studies.gaussian import study
from vspair.studies.gaussian.theorem import theorem1


@pytest.fixture
def problem() -> GaussianProblem:
    return GaussianProblem.random(3)


def test_posterior_equals_the_information_form(problem: GaussianProblem) -> None:
    """The paper's formula and the inverse of the precision are two derivations."""
    a = problem.operator
    precision = torch.eye(2, dtype=a.dtype) + a.T @ a / 0.1
    y = problem.observe(5, Generator().manual_seed(0))
    assert torch.allclose(problem.covariance, torch.linalg.inv(precision))
    assert torch.allclose(
        problem.posterior_mean(y), torch.linalg.solve(precision, a.T @ y.T / 0.1).T
    )


def test_posterior_equals_importance_sampling(problem: GaussianProblem) -> None:
    """Weigh prior samples by the likelihood: no formula of the posterior is used."""
    wide = GaussianProblem(problem.operator, noise=4.0)
    y = wide.observe(1, Generator().manual_seed(0))
    x = torch.randn(400_000, 2, dtype=torch.float64)
    weight = torch.softmax(-0.5 * (y - x @ wide.operator.T).square().sum(-1) / 4.0, dim=0)
    mean = weight @ x
    covariance = (x - mean).T @ (weight[:, None] * (x - mean))
    assert torch.allclose(mean, wide.posterior_mean(y)[0], atol=0.01)
    assert torch.allclose(covariance, wide.covariance, atol=0.01)


def test_pairs_follow_section_4_1(problem: GaussianProblem) -> None:
    x, y = problem.pairs(1024, 10, seed=0)
    assert x.shape == (10240, 2)
    assert y.shape == (10240, 4)
    assert len(torch.unique(y, dim=0)) == 1024
    residual = x.double() - problem.posterior_mean(y)
    assert torch.allclose(residual.T @ residual / len(x), problem.covariance, atol=0.01)
    joint = problem.operator @ problem.operator.T + 0.1 * torch.eye(4, dtype=torch.float64)
    assert torch.allclose(y.double().T.cov(), joint, atol=0.25 * float(joint.abs().max()))


def test_exact_samples_measure_as_exact(problem: GaussianProblem) -> None:
    y = problem.observe(50, Generator().manual_seed(1))
    samples = problem.sample_posterior(y, 4000, Generator().manual_seed(2))
    found = study.measure(problem, *study.moments(samples), y)
    assert found["kl_exact"] < 0.002
    assert abs(found["trace_ratio"] - 1) < 0.03


def test_measure_sees_a_collapsed_direction(problem: GaussianProblem) -> None:
    y = problem.observe(10, Generator().manual_seed(1))
    half = problem.covariance.clone()
    half[1, 0] = half[0, 1] = 0
    half[1, 1] *= 1e-4
    found = study.measure(problem, problem.posterior_mean(y), half.expand(10, 2, 2), y)
    assert found["kl_exact"] > 3


def test_floors(problem: GaussianProblem) -> None:
    y = problem.observe(50, Generator().manual_seed(1))
    good = study.least_squares(problem, 0, study.Scale(), y)
    assert good["kl_exact"] < 0.005
    eye = torch.eye(2, dtype=torch.float64)
    exact = gaussian_kl(
        torch.zeros(50, 2, dtype=torch.float64), eye.expand(50, 2, 2),
        problem.posterior_mean(y), problem.covariance.expand(50, 2, 2),
    )  # fmt: skip
    assert study.prior(problem, y)["kl_exact"] == pytest.approx(float(exact.median()))


def test_calibrated_agrees_with_the_closed_form() -> None:
    """The promise of the library at a quarter of the study's training."""
    scale = study.Scale(test=100, samples=2000, epochs=25)
    values, _ = study._learned(0, "calibrated", scale)
    assert values["kl_exact"] < 0.05
    assert values["active_least"] == values["active_most"] == 2
    assert 0.85 < values["trace_ratio"] < 1.15


def test_theorem_1() -> None:
    found = theorem1(epochs=15)["distances"]
    formula, by_kl, by_mse = found.values()
    assert formula["mean"] < 0.02
    assert formula["variance"] < 0.05
    assert by_kl["mean"] < 0.1
    assert by_kl["variance"] < 0.1
    assert by_mse["variance"] > 0.2


def test_reproduce_leaves_tables_and_figures(tmp_path: Path) -> None:
    study.reproduce(tmp_path, seeds=2, jobs=2, smoke=True)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"summary.json", "seeds.json", "README.md", "samples.png", "traversal.png"} <= names
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["study"] == "gaussian"
    assert summary["scale"]["paper_scale"] is False
    learned = [r for r in summary["rows"] if r["model"] == "vsPAIR"]
    assert {r["preset"] for r in learned} == {"paper", "calibrated"}
    assert all(r["seeds"] == 2 for r in learned)


class _Linear:
    """A posterior whose decoder is a matrix, with two open factors of eight."""

    def __init__(self, columns: Tensor) -> None:
        omega = torch.tensor([[0.1, 0.9, 0.2, 0.95, 0.0, 0.0, 0.0, 0.0]])
        self.code = SpikeSlab.of(torch.ones(1, 8), torch.zeros(1, 8), omega)
        self.matrix = torch.zeros(8, 2, dtype=torch.float64)
        self.matrix[3], self.matrix[1] = columns.T

    def __len__(self) -> int:
        return 1

    def decode(self, z: Tensor) -> Tensor:
        return z.double() @ self.matrix


@pytest.mark.parametrize(("turn", "expected"), [(0.0, 1.0), (0.3927, 0.9239), (0.7854, 0.7071)])
def test_alignment_is_the_cosine_with_the_nearest_eigenvector(
    problem: GaussianProblem, turn: float, expected: float
) -> None:
    vectors = torch.linalg.eigh(problem.covariance).eigenvectors
    c, s = math.cos(turn), math.sin(turn)
    columns = vectors @ torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    found = study.alignment(problem, _Linear(3 * columns))  # type: ignore[arg-type]
    assert found == pytest.approx(expected, abs=1e-3)
