"""The Gaussian problem and its study, against closed forms, and at a scale of seconds."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from typer.testing import CliRunner

from vspair.cli import app
from vspair.codes import SpikeSlab
from vspair.config import ModelConfig
from vspair.errors import VspairError
from vspair.fitting import fit
from vspair.metrics import gaussian_kl, sample_moments
from vspair.model import build
from vspair.posterior import LatentPosterior
from vspair.problems.gaussian import GaussianProblem
from vspair.runs import Run
from vspair.studies.gaussian.study import (
    FLOORS,
    STUDY,
    Job,
    Scale,
    alignment,
    exact_distances,
)
from vspair.studies.gaussian.theorem import theorem1

FEW = Scale(observations=32, each=2, test=6, samples=50, epochs=1, seeds=1)


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


# -- distances to the exact posterior -------------------------------------------------------


def test_exact_samples_measure_as_exact(problem: GaussianProblem) -> None:
    y = problem.observe(50, Generator().manual_seed(1))
    samples = problem.sample_posterior(y, 4000, Generator().manual_seed(2))
    found = exact_distances(problem, *sample_moments(samples), y)
    assert found["kl_exact"] < 0.002
    assert abs(found["trace_ratio"] - 1) < 0.03


def test_a_collapsed_direction_is_seen(problem: GaussianProblem) -> None:
    y = problem.observe(10, Generator().manual_seed(1))
    half = problem.covariance.clone()
    half[1, 0] = half[0, 1] = 0
    half[1, 1] *= 1e-4
    assert exact_distances(problem, problem.posterior_mean(y), half, y)["kl_exact"] > 3


def linear_posterior(columns: Tensor) -> LatentPosterior:
    """Return a posterior whose decoder is a matrix, with two open factors of eight."""
    model = build(ModelConfig(x_size=8, y_size=8), (2,), (4,)).double()
    decoder = nn.Linear(8, 2, bias=False).double()
    with torch.no_grad():
        decoder.weight.zero_()
        decoder.weight[:, 3], decoder.weight[:, 1] = columns.T
    model.x_decoder = decoder
    omega = torch.tensor([[0.1, 0.9, 0.2, 0.95, 0.0, 0.0, 0.0, 0.0]]).double()
    return LatentPosterior(model, SpikeSlab.of(torch.ones_like(omega), omega * 0, omega))


@pytest.mark.parametrize(("turn", "expected"), [(0.0, 1.0), (0.3927, 0.9239), (0.7854, 0.7071)])
def test_alignment_is_the_cosine_with_the_nearest_eigenvector(
    problem: GaussianProblem, turn: float, expected: float
) -> None:
    vectors = torch.linalg.eigh(problem.covariance).eigenvectors
    c, s = math.cos(turn), math.sin(turn)
    columns = vectors @ torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    found = alignment(problem, linear_posterior(3 * columns))
    assert found == pytest.approx(expected, abs=1e-3)


def test_floors() -> None:
    good, trivial, exact = (
        FLOORS[name](Job(name, 0, Scale(test=50)))
        for name in ("least squares", "trivial-prior", "exact samples")
    )
    assert max(good["kl_exact"], exact["kl_exact"]) < 0.005
    assert abs(exact["energy_exact"]) < 0.01
    job = Job("trivial-prior", 0, Scale(test=50))
    eye = torch.eye(2, dtype=torch.float64).expand(50, 2, 2)
    moments = job.problem.posterior_mean(job.y), job.problem.covariance.expand(50, 2, 2)
    kl = gaussian_kl(torch.zeros(50, 2, dtype=torch.float64), eye, *moments)
    assert trivial["kl_exact"] == pytest.approx(float(kl.median()))


# -- promises -------------------------------------------------------------------------------


def test_calibrated_agrees_with_the_closed_form() -> None:
    """The promise of the library at a quarter of the study's training."""
    job = Job("calibrated", 0, Scale(epochs=25))
    model = fit(job.pairs.x, job.pairs.y, config=job.config, progress=False)
    y = job.problem.observe(100, Generator().manual_seed(1))
    post = model.posterior(y.float())
    samples = post.sample(2000, Generator().manual_seed(2)).double()
    found = exact_distances(job.problem, *sample_moments(samples), y)
    assert found["kl_exact"] < 0.05
    assert 0.85 < found["trace_ratio"] < 1.15
    assert (post.active().sum(1) == 2).all()


def test_theorem_1() -> None:
    formula, by_kl, by_parameters = theorem1(epochs=8).values()
    assert formula["mean"] < 0.02
    assert formula["variances"] < 0.05
    assert by_kl["mean"] < 0.1
    assert by_kl["variances"] < 0.1
    assert by_parameters["variances"] > 0.2


def test_the_defaults_are_those_of_the_calibrated_preset(tmp_path: Path) -> None:
    job = Job("default", 3, FEW)
    how: dict[str, Any] = {"active": 2, "seed": 3, "epochs": 1, "out": tmp_path / "run"}
    fit(job.pairs.x, job.pairs.y, preset="calibrated", progress=False, **how)
    assert Run(tmp_path / "run").config == job.config


# -- the whole study ------------------------------------------------------------------------


def reproduce(
    folder: Path, scale: Scale = FEW, figures: bool = False, **options: Any
) -> str | None:
    study = STUDY if figures else replace(STUDY, draw=lambda numbers, folder: [])
    where: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return study.reproduce(scale, **where, **options)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "out" / "summary.json").read_text())
    assert found["scale"]["paper_scale"] is False
    return list(found["rows"])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gaussian")
    assert reproduce(folder, figures=True) is not None
    return folder


def test_stopped_and_continued_it_gives_the_same(unbroken: Path, tmp_path: Path) -> None:
    assert reproduce(tmp_path, minutes=1e-9) is None
    for minutes in (0.002, 0.005, 0.01):
        reproduce(tmp_path, minutes=minutes, only="models,conventions")
    assert reproduce(tmp_path, only="models") == "Done: models."
    assert reproduce(tmp_path) is not None
    for found, expected in zip(rows(tmp_path), rows(unbroken), strict=True):
        # LAPACK's last bit depends on where memory lies.
        assert found["value"] == pytest.approx(expected["value"], rel=1e-9)
        assert found | {"value": 0} == expected | {"value": 0}


def test_a_second_call_makes_nothing(unbroken: Path) -> None:
    def written() -> dict[Path, float]:
        files = [p for p in (unbroken / "runs").rglob("*") if p.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    assert reproduce(unbroken, only="models,conventions,theorem") is not None
    assert written() == before


def test_more_seeds_in_several_processes(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs", tmp_path / "1" / "runs")
    with pytest.raises(VspairError, match="--runs"):
        reproduce(tmp_path / "1", replace(FEW, epochs=2))
    kept = []
    for jobs in (1, 2):
        folder, more = tmp_path / str(jobs), replace(FEW, seeds=2)
        assert reproduce(folder, more, jobs=jobs, only="models") == "Done: models."
        names = ("paper", "calibrated", "default", "exact-samples")
        answers = folder / "runs" / "answers"
        kept.append([(answers / f"{name}-1.npz").read_bytes() for name in names])
    assert kept[0] == kept[1]


def test_floors_and_models_stand_side_by_side(unbroken: Path) -> None:
    found = {(r["model"], r.get("preset", ""), r.get("condition", "")) for r in rows(unbroken)}
    assert {(name, "", "") for name in ("trivial-prior", "least squares", "exact samples")} < found
    assert {("vsPAIR", "paper", ""), ("vsPAIR", "calibrated", "")} < found
    assert ("vsPAIR", "calibrated", "defaults of vspair.fit") in found
    assert ("vsPAIR", "paper", "without 1/2") in found
    text = (unbroken / "out" / "README.md").read_text()
    for words in ("as printed", "map fitted by KL", "(samples.png)", "(traversal.png)"):
        assert words in text


def test_the_report_needs_kept_answers_alone(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs" / "answers", tmp_path / "runs" / "answers")
    shutil.copy(unbroken / "runs" / "records.json", tmp_path / "runs")
    assert reproduce(tmp_path, Scale(), only="report") is not None
    for name in ("summary.json", "figures.npz"):
        assert (tmp_path / "out" / name).read_bytes() == (unbroken / "out" / name).read_bytes()


def test_redrawing_gives_the_same_pictures(unbroken: Path) -> None:
    paths = [unbroken / "out" / f"{name}.png" for name in ("samples", "traversal")]
    before = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    out = str(unbroken / "out")
    done = CliRunner().invoke(app, ["reproduce", "gaussian", "--draw", "--out", out])
    assert done.exit_code == 0, done.output
    assert [path.read_bytes() for path in paths] == before


def test_an_unknown_stage_is_named(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match=r"only = 'model': expected some of models, conventions"):
        reproduce(tmp_path, only="model")
