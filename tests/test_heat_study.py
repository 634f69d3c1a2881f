"""The heat study at a scale of seconds, and its parts against answers computed another way."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from vspair import config as configs
from vspair.cli import app
from vspair.codes import SpikeSlab
from vspair.errors import VspairError
from vspair.model import InverseModel, build
from vspair.posterior import LatentPosterior
from vspair.problems.heat import HeatProblem
from vspair.runs import Run
from vspair.studies.factors import STEPS, leading, perturbed
from vspair.studies.heat import study
from vspair.studies.heat.figures import FILE
from vspair.studies.heat.measures import (
    answer_with_shifts,
    best_penalty,
    floors,
    measure,
    share_inside,
)
from vspair.training.side_by_side import MOST_LANES

FEW = study.Scale(train=24, test=6, samples=30, epochs=1, small=True)
FIGURES = {
    "reconstruction_paper", "reconstruction_calibrated", "perturbation_paper",
    "perturbation_calibrated", "uncertainty_error", "source", "noise",
}  # fmt: skip


def tiny(preset: str = "calibrated") -> InverseModel:
    return build(study.Job(preset).config(study.SMOKE).model, (16, 16), (16, 16))


# -- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", study.PRESETS)
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
    x, y = study.PROBLEM.pairs(3000, seed=7)
    assert x.var() == pytest.approx(1.77, rel=0.03)
    assert (x - y).square().mean() == pytest.approx(0.12, rel=0.03)
    assert (study.PROBLEM.kappa, study.PROBLEM.time, study.PROBLEM.size) == (0.02, 3.0, 16)


def test_the_plan_fits_side_by_side() -> None:
    jobs = study.plan(3)
    assert len(jobs) == len({job.label for job in jobs}) == 12 <= MOST_LANES
    assert sum(job.noise == 0 for job in jobs) == 6
    assert {job.noise for job in jobs} == {0, 0.01, 0.05, 0.1}


def test_noise_changes_observations_and_not_fields() -> None:
    (_, clean, _), (problem, noisy, test) = (study.draw(n, 3, FEW) for n in (0.0, 0.1))
    assert torch.equal(clean.x, noisy.x)
    assert problem.noise == 0.1
    deviation = (noisy.y - clean.y).std() / clean.y.std()
    assert deviation == pytest.approx(0.1, rel=0.1)
    assert (len(noisy.x), len(test.x), len(test.source)) == (24, 6, 6)


# -- floors ---------------------------------------------------------------------------------


def dense(problem: HeatProblem) -> Tensor:
    """Return the operator as a matrix of shape (256, 256)."""
    unit = torch.eye(256, dtype=torch.float64).reshape(256, 16, 16)
    return problem.forward(unit).flatten(1).T


def test_the_wiener_floor_is_the_best_linear_answer_of_dense_algebra() -> None:
    """Build the stationary covariance from shifted fields, and solve the normal equations."""
    problem, train, test = study.draw(0.05, 0, study.Scale(train=60, test=9))
    x, mean = train.x.double(), train.x.double().mean()
    moved = torch.stack(
        [torch.roll(x - mean, (i, j), (1, 2)) for i in range(16) for j in range(16)]
    )
    centred = moved.reshape(-1, 256)
    covariance = centred.T @ centred / len(centred)
    operator = dense(problem)
    noise = 0.05 * problem.forward(x).std()
    system = operator @ covariance @ operator.T + noise**2 * torch.eye(256, dtype=torch.float64)
    gain = torch.linalg.solve(system, operator @ covariance).T
    answer = mean + (test.y.double().flatten(1) - mean) @ gain.T
    expected = (answer - test.x.double().flatten(1)).square().mean()
    found = floors(problem, train, test)
    assert found["wiener"] == pytest.approx(float(expected), rel=1e-6)
    assert found["wiener"] < found["tikhonov"] < found["trivial-y"] < found["exact"]


def test_the_tikhonov_floor_solves_its_least_squares_problem() -> None:
    problem, train, test = study.draw(0.1, 0, study.Scale(train=40, test=9))
    penalty = best_penalty(problem, train)
    operator = dense(problem)
    eye = torch.eye(256, dtype=torch.float64)
    y = test.y.double().flatten(1)
    answer = torch.linalg.solve(operator.T @ operator + penalty * eye, operator.T @ y.T).T
    expected = (answer - test.x.double().flatten(1)).square().mean()
    assert floors(problem, train, test)["tikhonov"] == pytest.approx(float(expected), rel=1e-6)
    for other in (penalty / 10, penalty * 10):
        errors = [(problem.invert(train.y, p) - train.x).square().mean() for p in (penalty, other)]
        assert errors[0] < errors[1]


def test_ridge_with_shifts_is_least_squares_over_all_shifts() -> None:
    problem = HeatProblem(size=8, modes=2, noise=0.3)
    train, test = (problem.pairs_with_source(n, seed=n) for n in (6, 3))
    every = [(a, b) for a in range(8) for b in range(8)]
    x, y = (
        torch.cat([t.double().roll(s, (1, 2)).flatten(1) for s in every])
        for t in (train.x, train.y)
    )
    dense = test.y.double().flatten(1) @ torch.linalg.lstsq(y, x, driver="gelsd").solution
    answer = answer_with_shifts(train, test.y)
    assert torch.allclose(answer.double().flatten(1), dense, atol=1e-4)


def test_without_noise_the_equation_is_inverted_to_rounding() -> None:
    found = floors(*study.draw(0.0, 0, study.Scale(train=400, test=9)))
    assert max(found[name] for name in ("exact", "tikhonov", "wiener")) < 1e-9
    assert found["ridge"] < 0.01 * found["trivial-y"]
    assert found["trivial-mean"] > 1


# -- measures -------------------------------------------------------------------------------


def test_the_share_inside_a_region() -> None:
    variance = torch.ones(2, 16, 16)
    variance[1, :4, :4] = 9.0
    region = torch.zeros(2, 16, 16, dtype=torch.bool)
    region[:, :4, :4] = True
    expected = torch.tensor([1 / 16, 9 * 16 / (240 + 9 * 16)], dtype=torch.float64)
    torch.testing.assert_close(share_inside(variance, region), expected)


def test_variance_on_the_source_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the posterior's samples by the truth plus noise inside the disc."""
    _, _, test = study.draw(0.0, 0, study.Scale(test=12))
    disc = test.source.disc(16)

    def sample(self: LatentPosterior, n: int, generator: Any = None) -> Tensor:
        return test.x + disc * torch.randn(n, *test.x.shape, generator=generator)

    monkeypatch.setattr(LatentPosterior, "sample", sample)
    row, images = measure(tiny(), test, samples=200)
    assert row["variance_inside"] == pytest.approx(1)
    assert row["area_inside"] == pytest.approx(float(disc.double().mean()))
    assert row["variance"] == pytest.approx(row["area_inside"], rel=0.05)
    assert row["mse"] == pytest.approx(row["mse_mean"] + row["variance"] * 199 / 200, rel=1e-4)
    assert row["relative_mse"] == pytest.approx(row["mse"] / float(test.x.var()), rel=1e-4)
    assert row["uncertainty_error_r"] > 0.9
    assert row["coverage_90"] == pytest.approx(1 - 0.1 * row["area_inside"], abs=0.02)
    assert images["mse"].shape == (12,)


def test_leading_factors_vary_and_are_open() -> None:
    mu = torch.zeros(5, 6)
    mu[:, 1], mu[:, 2], mu[:, 4] = (s * torch.arange(5.0) for s in (1, 3, 2))
    omega = torch.full((5, 6), 0.9)
    omega[:, 2] = 0.2
    code = SpikeSlab.of(mu, torch.zeros(5, 6), omega)
    post = LatentPosterior(tiny(), code)
    assert leading(post, k=2).tolist() == [4, 1]


def test_perturbed_codes_are_moved_by_sigma() -> None:
    model = tiny()
    post = model.posterior(torch.randn(3, 16, 16))
    centre, change = perturbed(post, torch.arange(3), torch.tensor([2, 5]))
    assert change.shape == (3, 2, 5, 16, 16)
    assert float(change[:, :, STEPS.index(0.0)].abs().max()) < 1e-6 < float(change.abs().max())
    z = post.code.mean.clone()
    assert isinstance(post.code, SpikeSlab)
    z[:, 5] -= 2 * post.code.slab.variance.sqrt()[:, 5]
    torch.testing.assert_close(centre + change[:, 1, 0], post.decode(z))


# -- the whole study ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stop the study at once, then continue it to its end."""
    folder = tmp_path_factory.mktemp("heat")
    more: dict[str, Any] = {"folder": folder / "runs", "seeds": 1, "scale": FEW, "device": "cpu"}
    assert study.reproduce(folder / "out", minutes=1e-9, **more) is None
    assert len(list((folder / "runs").iterdir())) == 8
    assert not (folder / "out" / "summary.json").exists()
    assert study.reproduce(folder / "out", command="test", **more) is not None
    return folder


def test_it_stops_in_time_and_continues(results: Path) -> None:
    for job in study.plan(1):
        assert [row["epoch"] for row in Run(results / "runs" / job.label).metrics()] == [1]


def test_it_writes_every_row(results: Path) -> None:
    summary = json.loads((results / "out" / "summary.json").read_text())
    found = {
        (r["model"], r.get("preset", ""), r["condition"], r["metric"]): r for r in summary["rows"]
    }
    for noise in ("0", "0.01", "0.05", "0.1"):
        for model in ("exact", "tikhonov", "wiener", "ridge", "trivial-y", "trivial-mean"):
            assert found[model, "", f"noise={noise}", "mse_mean"]["value"] >= 0
        for preset in study.PRESETS:
            for metrics in study.TABLES.values():
                for metric in metrics:
                    assert ("vsPAIR", preset, f"noise={noise}", metric) in found
    assert {k: found["vsPAIR", "paper", "noise=0", k]["paper"] for k in study.PAPER} == study.PAPER
    assert summary["scale"]["paper_scale"] is False


def test_it_writes_tables_and_figures(results: Path) -> None:
    text = (results / "out" / "README.md").read_text()
    assert "(paper 0.071)" in text
    assert "| 10 % |" in text
    assert "They differ in more than the objective" in text
    seeds = json.loads((results / "out" / "seeds.json").read_text())
    assert list(seeds) == [job.label for job in study.plan(1)]
    assert all(row["mse_mean"] > 0 for row in seeds.values())
    for name in FIGURES:
        assert f"({name}.png)" in text
        assert (results / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ([], "results/heat"),
        (["--fast"], "results/heat"),
        (["--only", "paper"], "results/heat-part"),
        (["--epochs", "3"], "results/heat-part"),
        (["--smoke"], "results/heat-smoke"),
    ],
)
def test_smaller_runs_do_not_replace_the_whole_study(
    flags: list[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(study, "reproduce", lambda out, **_: seen.append(out))
    done = CliRunner().invoke(app, ["reproduce", "heat", *flags])
    assert done.exit_code == 0, done.output
    assert seen == [Path(folder)]


def test_redrawing_gives_the_same_pictures(results: Path) -> None:
    out = results / "out"
    before = {name: (out / f"{name}.png").read_bytes() for name in FIGURES}
    for name in FIGURES:
        (out / f"{name}.png").unlink()
    done = CliRunner().invoke(app, ["reproduce", "heat", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Drew") == len(FIGURES)
    assert {name: (out / f"{name}.png").read_bytes() for name in FIGURES} == before


def test_other_settings_need_other_runs(results: Path) -> None:
    other = study.Scale(train=24, test=6, epochs=2, small=True)
    with pytest.raises(VspairError, match="--runs"):
        study.train([study.Job("paper")], results / "runs", scale=other, device="cpu")
    assert study.train([study.Job("paper")], results / "runs", scale=FEW, device="cpu")


def test_one_preset_is_trained_alone_and_in_bfloat16(tmp_path: Path) -> None:
    where: dict[str, Any] = {"folder": tmp_path / "runs", "scale": FEW, "device": "cpu"}
    text = study.reproduce(tmp_path / "out", seeds=2, only="paper", fast=True, **where)
    assert text is not None
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "paper-noise0-0",
        "paper-noise0-1",
    ]
    assert Run(tmp_path / "runs" / "paper-noise0-1").config.training.precision == "bfloat16"
    assert "epochs in bfloat16" in text
    assert "vsPAIR (calibrated)" not in text
    assert "noise.png" not in text
    assert text.count("\n- Better with ") == 1


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(VspairError, match=r"only = 'papr': expected one of paper, calibrated"):
        study.plan(1, "papr")


def test_drawing_needs_saved_numbers(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "heat", "--draw", "--out", str(tmp_path)])
    assert isinstance(done.exception, VspairError)
    assert FILE in str(done.exception)
