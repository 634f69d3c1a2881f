"""Appendix B at a scale of seconds: sweeps that are killed and continued, and what they report."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from vspair import config as configs
from vspair.cli import app
from vspair.errors import VspairError
from vspair.report import figures as report_figures
from vspair.runs import read_groups
from vspair.studies.ct.data import SMOKE, Scale
from vspair.studies.ct.methods import start_preset
from vspair.studies.ct_sweeps import study
from vspair.studies.study import Study
from vspair.training.trainer import Trainer

FEW = replace(SMOKE, train=20, test=3, samples=3, epochs=2, half=True)
VALUES = (1.0, 64.0)
SWEEPS = {
    "prior": [{"alpha0": a, "beta0": b} for a in VALUES for b in VALUES],
    "gamma": [{"gamma_x": 0.01, "depth": 2}, {"gamma_x": 1.0, "depth": 2}],
}
PAPER_SWEEPS = study.SWEEPS

pytestmark = pytest.mark.usefixtures("few_points")


@pytest.fixture(scope="module")
def few_points(no_data_folder: None) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_figures, "DPI", 40)
        patch.setattr(study, "VALUES", VALUES)
        patch.setattr(study, "SWEEPS", SWEEPS)
        yield


def run(folder: Path, only: str = "", scale: Scale = FEW, **more: Any) -> str | None:
    """Run appendix B, or a part of it, with the results beside the trainings."""
    how: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return study.STUDY.reproduce(scale, only=only, **how | more)


def rows(out: Path) -> dict[tuple[str, str, str], float]:
    """Return the values of a results folder but for times, by method, condition and metric."""
    found = json.loads((out / "summary.json").read_text())["rows"]
    return {
        (r["model"], r.get("condition", ""), r["metric"]): r["value"]
        for r in found
        if r["metric"] != "seconds"
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, few_points: None) -> Path:
    """Run both sweeps at once."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder)
    return folder


def kill_after_one_step(trainers: list[Trainer], *_: Any) -> bool:
    """Be a training that is killed after its first checkpoint."""
    steps = trainers[0].run_steps([])
    next(steps)
    trainers[0].save()
    steps.close()
    raise KeyboardInterrupt


def test_the_trainings_are_those_of_appendix_b() -> None:
    base = configs.shipped("ct-small")
    assert (base.model.x_size, base.model.y_size) == (2048, 512)
    weights = base.objective
    assert (weights.lambda_x, weights.lambda_y, weights.lambda_binary) == (1.0, 0.3, 0.0)
    assert (weights.rho, base.training.keep) == ("gradient", "last")
    assert (base.training.epochs, base.training.learning_rate) == (500, 1e-4)
    assert weights == replace(configs.shipped("ct-paper").objective, beta0=3.0)
    assert base.model.x_network.depth == base.model.y_network.depth == 3
    assert (weights.alpha0, weights.beta0, weights.gamma_x) == (1.0, 3.0, 0.1)
    prior, gamma = PAPER_SWEEPS["prior"], PAPER_SWEEPS["gamma"]
    grid = [1.0, 2.0, 16.0, 64.0]
    assert prior == [{"alpha0": a, "beta0": b} for a in grid for b in grid]
    assert gamma == [{"gamma_x": g, "depth": 2} for g in (0.001, 0.01, 0.1, 1.0)]
    assert study.condition_of(prior[3]) == "alpha0=1,beta0=64"
    assert study.condition_of(gamma[0]) == "gamma_x=0.001"


# -- stopping -------------------------------------------------------------------------------


def test_what_is_stopped_and_killed_continues_to_the_same_rows(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, "prior", minutes=1e-9) is None
    with monkeypatch.context() as patch:
        patch.setattr(study, "train_side_by_side", kill_after_one_step)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "gamma")
    assert len(list((tmp_path / "runs" / "gamma").rglob("checkpoint.safetensors"))) == 1
    begun = tmp_path / "runs" / "prior" / "trials"
    with monkeypatch.context() as patch:
        patch.setattr(study, "start_preset", kill_before_it_begins)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "prior")
    assert len(list(begun.iterdir())) == 1
    assert run(tmp_path)
    assert rows(tmp_path / "out") == rows(whole / "out")


def kill_before_it_begins(_: Any, __: str, folder: Path, ___: Any) -> Trainer:
    """Be a training that is killed before its folder has a configuration."""
    folder.mkdir(parents=True)
    (folder / ".config.toml.part").touch()
    raise KeyboardInterrupt


def test_a_training_killed_behind_its_answer_is_not_made_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its gigabytes are removed the sweep has not noted its scores yet."""
    plain_unlink = Path.unlink

    def killed(path: Path, **how: Any) -> None:
        plain_unlink(path, **how)
        if path.name == "weights.safetensors":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "gamma")
    begun: list[Any] = []

    def counted(*given: Any) -> Trainer:
        begun.append(given)
        return start_preset(*given)

    with monkeypatch.context() as patch:
        patch.setattr(study, "start_preset", counted)
        assert run(tmp_path, "gamma,report")
    assert len(begun) == 1
    expected = {k: v for k, v in rows(whole / "out").items() if k[1].startswith("gamma")}
    assert {k: v for k, v in rows(tmp_path / "out").items() if k[1]} == expected


def test_what_is_done_is_not_done_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = whole / "runs" / "answers"
    before = {p: p.stat().st_mtime_ns for p in answers.rglob("*") if p.is_file()}
    monkeypatch.setattr(study, "start_preset", None)
    assert run(whole, minutes=1) is not None
    assert {p: p.stat().st_mtime_ns for p in answers.rglob("*") if p.is_file()} == before


def test_gigabytes_are_removed_and_metrics_stay(whole: Path) -> None:
    assert not list((whole / "runs").rglob("*.safetensors"))
    assert len(list((whole / "runs").rglob("metrics.jsonl"))) == 6


def test_other_settings_are_refused(whole: Path) -> None:
    with pytest.raises(VspairError, match=r"epochs is 2 there and 3 here"):
        run(whole, "gamma", replace(FEW, epochs=3))
    with pytest.raises(VspairError, match=r"half is True there and False here.*--runs"):
        run(whole, "gamma", replace(FEW, half=False))
    with pytest.raises(VspairError, match=r"samples is 3 there and 4 here"):
        run(whole, "simple", replace(FEW, samples=4))


def test_sweeps_of_different_length_stand_in_one_report(tmp_path: Path) -> None:
    assert run(tmp_path, "simple") == "Done: simple."
    with pytest.raises(VspairError, match=r"no answers in .*--only prior,gamma"):
        run(tmp_path, "report")
    assert run(tmp_path, "gamma", replace(FEW, epochs=1))
    text = str(run(tmp_path, "prior,report"))
    assert "Trainings have 2 epochs (prior) and 1 epochs (gamma); the paper's have 500." in text


# -- what is reported -------------------------------------------------------------------------


def test_a_training_that_diverges_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sick(bench: Any, preset: str, out: Path, changes: Any) -> Trainer:
        trainer = start_preset(bench, preset, out, changes)
        if changes["objective"]["gamma_x"] == 1.0:
            with torch.no_grad():
                trainer.parameters[0].fill_(math.nan)
        return trainer

    monkeypatch.setattr(study, "start_preset", sick)
    text = str(run(tmp_path, "gamma,report"))
    assert "gamma_x=1 has failed: " in text
    assert "| 1 | - | - |" in text
    assert "Not yet trained: 4 of 4 (alpha0=1,beta0=1; " in text
    numbers = read_groups(tmp_path / "out" / "figures.npz", "")
    assert numbers["gamma"]["gamma_x"].tolist() == [np.float32(0.01)]
    assert "beta" not in numbers
    assert "diverged" in text


def test_every_training_has_its_rows_and_its_settings(whole: Path) -> None:
    found = rows(whole / "out")
    for point in (*SWEEPS["prior"], *SWEEPS["gamma"]):
        for metric in (*study.GRIDS, *study.COLUMNS, "epochs", "parameters"):
            assert ("vsPAIR", study.condition_of(point), metric) in found
    assert {model for model, condition, _ in found if not condition} == {
        "mean image", "FBP", "FBP with a Hann window",
    }  # fmt: skip
    deep, flat = (found["vsPAIR", c, "parameters"] for c in ("alpha0=1,beta0=1", "gamma_x=1"))
    assert deep != flat
    answer = read_groups(whole / "runs" / "answers" / "gamma_x=1.npz", "")
    near = answer["seen"]["omega"] > (1 + answer["row"]["rho"]) / 2  # all test slices are shown
    assert found["vsPAIR", "gamma_x=1", "near_one"] == pytest.approx(near.sum(1).mean())


def test_the_report_needs_the_answers_alone(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "runs" / "answers", tmp_path / "runs" / "answers")
    shutil.copy(whole / "runs" / "records.json", tmp_path / "runs")
    text = run(tmp_path, "report", Scale(), data_dir=tmp_path / "nowhere")
    assert text == (whole / "out" / "README.md").read_text()
    for words in (
        "phantoms made by vspair",
        "Trainings have 2 epochs (prior) and 2 epochs (gamma); the paper's have 500.",
        "averaged once more: 44x44 image, 62 angles, 64 detector pixels; the paper's: 88x88",
        "MSE on the same test slices without learning: mean image 0.0",
        "All 4 trainings are there.",
        "| alpha0 \\ beta0 | 1 | 64 |",
    ):
        assert words in str(text)


def test_numbers_of_the_figures_keep_their_shapes(whole: Path) -> None:
    found, values = read_groups(whole / "out" / "figures.npz", ""), rows(whole / "out")
    own = values["vsPAIR", "alpha0=64,beta0=1", "nnz"]
    assert float(found["beta"]["nnz"][1, 0]) == pytest.approx(own)
    own = values["vsPAIR", "alpha0=1,beta0=64", "mse_sample"]
    assert float(found["beta"]["mse"][0, 1]) == pytest.approx(own)
    assert found["gamma"]["mean"].shape == found["gamma"]["variance"].shape == (2, 44, 44)
    assert found["gamma"]["truth"].shape == (44, 44)
    assert found["gamma"]["omega"].shape == (2, 16)
    assert found["curves"]["prior_rho"].shape == found["curves"]["prior_kl"].shape == (4, 2)
    assert found["curves"]["prior_beta0"].tolist() == [1, 64, 1, 64]
    assert found["curves"]["gamma_epoch"].tolist() == [1, 2]


def test_redrawing_gives_the_same_pictures(whole: Path) -> None:
    out, names = whole / "out", ("beta_prior", "gamma_x", "curves")
    before = [(out / f"{name}.png").read_bytes() for name in names]
    done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Drew") == 3
    assert [(out / f"{name}.png").read_bytes() for name in names] == before


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "ct-sweeps-phantoms"),
        (["--half"], "ct-sweeps-half-phantoms"),
        (["--half", "--epochs", "500"], "ct-sweeps-half-phantoms"),
        (["--half", "--epochs", "3", "--data-dir", "."], "ct-sweeps-half-part"),
        (["--half", "--smoke"], "ct-sweeps-half-smoke"),
    ],
)
def test_half_and_parts_have_folders_of_their_own(
    words: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def reproduce(_: Any, scale: Scale, **more: Any) -> str:
        given.update(more, scale=scale)
        return "done"

    monkeypatch.setattr(Study, "reproduce", reproduce)
    done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", *words])
    assert done.exit_code == 0, done.output
    assert (given["out"], given["folder"]) == (Path("results", name), Path("runs", name))
    assert given["scale"].half == ("--half" in words)
    assert given["scale"].copies == 1


def test_a_lost_answer_says_what_to_remove(whole: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(whole, tmp_path / "copy")
    lost = next(path for path in (copy / "runs/answers").glob("gamma_x=*.npz"))
    lost.unlink()
    with pytest.raises(
        VspairError, match=rf"scored {re.escape(lost.stem)}, but its answer is lost"
    ):
        run(copy, only="gamma")
