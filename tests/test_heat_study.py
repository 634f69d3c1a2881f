"""The heat study at a scale of seconds, and its floors against answers computed another way."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from vspair import config as configs
from vspair.cli import app
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.evaluation import score_method, scores
from vspair.fitting import fit
from vspair.methods import ShiftRidge, Tikhonov
from vspair.model import InverseModel, build
from vspair.posterior import SamplePosterior
from vspair.problems.heat import HeatProblem
from vspair.runs import Run, read_groups
from vspair.studies.heat.study import FLOORS, PROBLEM, SMOKE, STUDY, Case, Scale
from vspair.studies.heat.tables import PAPER, PRESETS, TABLES
from vspair.studies.study import Study

FEW = Scale(
    train=24, test=6, samples=30, epochs=1, seeds=1, small=True, anchored_minutes=0.001
)  # fmt: skip
ALL = (*PRESETS, "anchored")
FIGURES = {
    *(f"{figure}_{preset}" for figure in ("reconstruction", "perturbation") for preset in ALL),
    "uncertainty_error", "source", "noise",
}  # fmt: skip
PUBLISHED = Path(__file__).parents[1] / "results" / "heat"


def tiny(preset: str = "calibrated") -> InverseModel:
    return build(SMOKE.config(preset).model, (16, 16), (16, 16))


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


# -- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_configurations_are_the_papers(preset: str) -> None:
    c = configs.shipped(f"heat-{preset}")
    assert (c.model.x_size, c.model.y_size) == (512, 512)
    assert (c.training.epochs, c.training.batch_size) == (1250, 32)
    with torch.device("meta"):
        model = build(c.model, (16, 16), (16, 16))
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(b.numel() for m in norms for b in m.buffers()) == 390
    o = c.objective
    if preset == "paper":
        assert model.n_parameters == 11_080_675
        assert (o.lambda_x, o.lambda_y, o.lambda_map, o.lambda_rho) == (1.0, 0.3, 1.0, 1.0)
        assert (o.alpha0, o.beta0, o.gamma_x, o.gamma_y) == (1.0, 255.0, 0.1, 0.1)
        assert (c.training.learning_rate, c.training.augment) == (1e-4, "none")
    else:
        assert (o.rho, o.active, c.model.gate) == ("dual", 120, "sigmoid")
        assert c.training.augment == "shift"
        held = round(c.training.validation * 972)
        assert (972 - held) % 32 == 0


def test_the_fields_have_the_size_that_is_documented() -> None:
    x, y = PROBLEM.pairs(3000, seed=7)
    assert x.var() == pytest.approx(1.77, rel=0.03)
    assert (x - y).square().mean() == pytest.approx(0.12, rel=0.03)
    assert (PROBLEM.kappa, PROBLEM.time, PROBLEM.size) == (0.02, 3.0, 16)


def test_noise_changes_observations_and_not_fields() -> None:
    clean, noisy = (Case(noise, 3, FEW) for noise in (0.0, 0.1))
    assert torch.equal(clean.train.x, noisy.train.x)
    assert noisy.problem.noise == 0.1
    deviation = (noisy.train.y - clean.train.y).std() / clean.train.y.std()
    assert deviation == pytest.approx(0.1, rel=0.1)
    assert (len(noisy.train), len(noisy.pairs[1].x), len(noisy.pairs[1].source)) == (24, 6, 6)


# -- floors ---------------------------------------------------------------------------------


def dense(problem: HeatProblem) -> Tensor:
    """Return the operator as a matrix of shape (256, 256)."""
    unit = torch.eye(256, dtype=torch.float64).reshape(256, 16, 16)
    return problem.forward(unit).flatten(1).T


def errors(case: Case) -> dict[str, float]:
    """Return the MSE of every floor."""
    x, y, _ = case.pairs[1]
    found = {name: score_method(make(case), x, y) for name, make in FLOORS.items()}
    return {name: float(each["mse_mean"].mean()) for name, each in found.items()}


def test_the_wiener_floor_is_the_best_linear_answer_of_dense_algebra() -> None:
    """Build the stationary covariance from shifted fields, and solve the normal equations."""
    case = Case(0.05, 0, Scale(train=60, test=9))
    x, mean = case.train.x.double(), case.train.x.double().mean()
    moved = [torch.roll(x - mean, (i, j), (1, 2)) for i in range(16) for j in range(16)]
    centred = torch.stack(moved).reshape(-1, 256)
    covariance, operator = centred.T @ centred / len(centred), dense(case.problem)
    noise = 0.05 * case.problem.forward(x).std()
    system = operator @ covariance @ operator.T + noise**2 * torch.eye(256, dtype=torch.float64)
    gain = torch.linalg.solve(system, operator @ covariance).T
    truth, seen, _ = case.pairs[1]
    answer = mean + (seen.double().flatten(1) - mean) @ gain.T
    expected = (answer - truth.double().flatten(1)).square().mean()
    found = errors(case)
    assert found["wiener"] == pytest.approx(float(expected), rel=1e-6)
    assert found["wiener"] < found["tikhonov"] < found["trivial-y"] < found["exact"]


def test_the_tikhonov_floor_has_the_best_penalty_and_solves_its_problem() -> None:
    case = Case(0.1, 0, Scale(train=40, test=9))
    method, operator = Tikhonov.best(case.problem, case.train), dense(case.problem)
    system = operator.T @ operator + method.penalty * torch.eye(256, dtype=torch.float64)
    y = case.pairs[1].y
    answer = torch.linalg.solve(system, operator.T @ y.double().flatten(1).T).T
    assert torch.allclose(method(y).double().flatten(1), answer, atol=1e-5)
    x, y = case.train.x, case.train.y
    for other in (method.penalty / 10, method.penalty * 10):
        assert (method(y) - x).norm() < (Tikhonov(case.problem, other)(y) - x).norm()


def test_ridge_with_shifts_is_least_squares_over_all_shifts() -> None:
    problem = HeatProblem(size=8, modes=2, noise=0.3)
    train, test = (Pairs(*problem.pairs(n, seed=n)) for n in (6, 3))
    every = [(a, b) for a in range(8) for b in range(8)]
    x, y = (
        torch.cat([t.double().roll(s, (1, 2)).flatten(1) for s in every])
        for t in (train.x, train.y)
    )
    expected = test.y.double().flatten(1) @ torch.linalg.lstsq(y, x, driver="gelsd").solution
    answer = ShiftRidge(train)(test.y)
    assert torch.allclose(answer.double().flatten(1), expected, atol=1e-4)


def test_without_noise_the_equation_is_inverted_to_rounding() -> None:
    found = errors(Case(0.0, 0, Scale(train=400, test=9)))
    assert max(found[name] for name in ("exact", "tikhonov", "wiener")) < 1e-9
    assert found["ridge"] < 0.01 * found["trivial-y"]
    assert found["trivial-mean"] > 1


# -- measures -------------------------------------------------------------------------------


def test_variance_on_the_source_is_found_there() -> None:
    """Score samples that are the truth plus noise inside the disc."""
    x, _, source = Case(0.0, 0, Scale(test=12)).pairs[1]
    disc = source.disc(16)
    post = SamplePosterior(x + disc * torch.randn(200, *x.shape))
    found = {k: float(v.mean()) for k, v in scores(post, x, samples=200, region=disc).items()}
    assert [found["variance_inside"], found["error_inside"]] == pytest.approx([1, 1])
    assert found["area_inside"] == pytest.approx(float(disc.double().mean()))
    assert found["variance"] == pytest.approx(found["area_inside"], rel=0.05)
    total = found["mse_mean"] + found["variance"] * 199 / 200
    assert found["mse_sample"] == pytest.approx(total, rel=1e-4)
    assert found["coverage_90"] == pytest.approx(1 - 0.1 * found["area_inside"], abs=0.02)


# -- the whole study ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heat")
    assert reproduce(folder, figures=True) is not None
    return folder


def test_stopped_and_continued_it_gives_the_same(unbroken: Path, tmp_path: Path) -> None:
    for minutes in (1e-9, 0.005, 0.01, 0.02):
        if reproduce(tmp_path, minutes=minutes, only="train,answers,anchored") is None:
            assert not (tmp_path / "out").exists()
    assert reproduce(tmp_path, only="train") == "Done: train."
    assert reproduce(tmp_path) is not None
    for found, expected in zip(rows(tmp_path), rows(unbroken), strict=True):
        # Of the floors, the last bits depend on where memory lies.
        near = expected["value"] if expected.get("preset") else pytest.approx(expected["value"])
        assert found["value"] == near
        assert found | {"value": 0} == expected | {"value": 0}


def test_a_second_call_makes_nothing(unbroken: Path) -> None:
    def written() -> dict[Path, float]:
        files = [p for p in (unbroken / "runs").rglob("*") if p.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    only = "train,answers,anchored"
    assert reproduce(unbroken, only=only) == "Done: train, answers, anchored."
    assert written() == before


def test_floors_and_models_stand_side_by_side(unbroken: Path) -> None:
    found = {
        (r["model"], r.get("preset", ""), r["condition"], r["metric"]): r for r in rows(unbroken)
    }
    for noise in ("0", "0.01", "0.05", "0.1"):
        for name in FLOORS:
            for metric in ("mse_mean", "mse_mean_first", "crps", "error_inside"):
                assert found[name, "", f"noise={noise}", metric]["value"] >= 0
        for preset in ALL:
            for metric in (metric for metrics in TABLES.values() for metric in metrics):
                there = ("vsPAIR", preset, f"noise={noise}", metric) in found
                # Samples of the default have its noise.
                assert there == (preset != "anchored" or not metric.endswith("_with_noise"))
    assert {k: found["vsPAIR", "paper", "noise=0", k]["paper"] for k in PAPER} == PAPER
    text = (unbroken / "out" / "README.md").read_text()
    for words in (
        "(paper 0.071)",
        "| 10 % |",
        "24 training and 6 test pairs, 1 epochs in float32",
    ):
        assert words in text


def test_the_default_is_what_fit_makes_of_the_pairs(unbroken: Path) -> None:
    """The row is that of a model that a user gets from a call without settings."""
    case = Case(0.05, 0, FEW)
    model = fit(case.train.x, case.train.y, minutes=0.001, device="cpu", progress=False)
    x, y, _ = case.pairs[1]
    wrong = (model.posterior(y).mean() - x).square().mean()
    found = {r["metric"]: r["value"] for r in rows(unbroken) if key_of(r) == ("anchored", 0.05)}
    assert found["mse_mean"] == pytest.approx(float(wrong), rel=1e-4)
    shown = read_groups(unbroken / "out" / "figures.npz", "")["anchored"]
    clean = Case(0.0, 0, FEW)
    model = fit(clean.train.x, clean.train.y, minutes=0.001, device="cpu", progress=False)
    np.testing.assert_allclose(
        shown["mean"], model.posterior(clean.pairs[1].y[:4]).mean(), rtol=1e-3, atol=1e-3
    )


def key_of(row: dict[str, Any]) -> tuple[str, float]:
    return row.get("preset", ""), float(row["condition"].removeprefix("noise="))


def test_the_default_is_added_to_what_is_published(
    unbroken: Path, tmp_path: Path, expect_kept: Callable[..., None]
) -> None:
    """Only the stage of the default was run, at full scale as far as the records say."""
    shutil.copytree(PUBLISHED, tmp_path / "out")
    shutil.copytree(unbroken / "runs" / "answers", tmp_path / "runs" / "answers")
    records = json.loads((unbroken / "runs" / "records.json").read_text())
    stage = records["stages"]["anchored"]
    stage["scale"] |= {"train": 972, "test": 52, "samples": 1000, "small": False}
    path = tmp_path / "runs" / "records.json"
    path.write_text(json.dumps(records | {"stages": {"anchored": stage}}))
    for _ in range(2):
        text = str(reproduce(tmp_path, Scale(), only="report"))
        expect_kept(PUBLISHED, tmp_path / "out")
    assert "`vspair reproduce heat --seeds 3` at commit de2eb1d1c400 on NVIDIA H200: field" in text
    made = json.loads((tmp_path / "out" / "summary.json").read_text())["made"]
    assert [m["methods"] for m in made[1:]] == [["vsPAIR (anchored)"]]
    line = next(line for line in text.splitlines() if line.startswith("| 5 % | 105 |"))
    assert "| 0.0308 | 0.00799 |" in line
    assert line.count("|") == 12
    stage["scale"]["samples"] = 30
    path.write_text(json.dumps(records | {"stages": {"anchored": stage}}))
    with pytest.raises(VspairError, match=r"samples is 1000 there and 30 here.*--out"):
        reproduce(tmp_path, Scale(), only="report")


def test_the_report_needs_kept_answers_alone(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs" / "answers", tmp_path / "runs" / "answers")
    shutil.copy(unbroken / "runs" / "records.json", tmp_path / "runs")
    assert reproduce(tmp_path, Scale(), only="report") is not None
    for name in ("summary.json", "figures.npz"):
        assert (tmp_path / "out" / name).read_bytes() == (unbroken / "out" / name).read_bytes()


def test_more_seeds_continue_and_other_scales_are_refused(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs", tmp_path / "runs")
    for other in (replace(FEW, epochs=2), replace(FEW, train=20)):
        with pytest.raises(VspairError, match="--runs"):
            reproduce(tmp_path, other)
    more = replace(FEW, seeds=2)
    assert reproduce(tmp_path, more, only="train") == "Done: train."
    assert reproduce(tmp_path, more) is not None
    seeds = {r["seeds"] for r in rows(tmp_path) if r["metric"] == "crps"}
    assert seeds == {1, 2}


def test_answers_need_trainings(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match="train"):
        reproduce(tmp_path, only="answers")


def test_one_preset_is_trained_alone_and_in_bfloat16(tmp_path: Path) -> None:
    text = reproduce(tmp_path, replace(FEW, seeds=2, preset="paper", precision="bfloat16"))
    assert text is not None
    assert sorted(p.name for p in (tmp_path / "runs").glob("paper-*")) == [
        "paper-noise0-0",
        "paper-noise0-1",
    ]
    assert Run(tmp_path / "runs" / "paper-noise0-1").config.training.precision == "bfloat16"
    assert "epochs in bfloat16" in text
    assert "vsPAIR (calibrated)" not in text
    assert "noise.png" not in text


# -- the command ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ([], "results/heat"),
        (["--fast"], "results/heat"),
        (["--preset", "paper"], "results/heat-part"),
        (["--epochs", "3"], "results/heat-part"),
        (["--smoke"], "results/heat-smoke"),
    ],
)
def test_smaller_runs_do_not_replace_the_whole_study(
    flags: list[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(Study, "reproduce", lambda self, scale, out, **_: seen.append(out))
    done = CliRunner().invoke(app, ["reproduce", "heat", *flags])
    assert done.exit_code == 0, done.output
    assert seen == [Path(folder)]


def test_redrawing_gives_the_same_pictures(unbroken: Path) -> None:
    out = unbroken / "out"
    before = {name: (out / f"{name}.png").read_bytes() for name in FIGURES}
    for name in FIGURES:
        (out / f"{name}.png").unlink()
    done = CliRunner().invoke(app, ["reproduce", "heat", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Drew") == len(FIGURES)
    assert {name: (out / f"{name}.png").read_bytes() for name in FIGURES} == before
    text = (out / "README.md").read_text()
    assert all(f"({name}.png)" in text for name in FIGURES)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only", "papr"], "only = 'papr': expected some of train, answers, anchored, report"),
        (["--smoke", "--epochs", "2"], "--smoke has a scale of its own: leave out --epochs"),
        (["--draw"], "figures.npz"),
    ],
)
def test_mistakes_are_named(flags: list[str], words: str, tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["reproduce", "heat", *flags, *where])
    assert isinstance(done.exception, VspairError)
    assert words in str(done.exception)
