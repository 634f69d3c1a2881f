"""The CT study at a scale of seconds: stages, tables, figures and what they refuse."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from vspair.cli import app
from vspair.errors import VspairError
from vspair.methods.fbp import Fbp
from vspair.problems.ct import CtPairs
from vspair.runs import Run, read_metrics
from vspair.studies.ct import answers as ct_answers
from vspair.studies.ct import seconds as ct_seconds
from vspair.studies.ct import study
from vspair.studies.ct.answers import read
from vspair.studies.ct.data import CtData, draw, spread_out
from vspair.studies.ct.figures import FILE
from vspair.studies.ct.tables import NAMES, PAPER, TABLES, gather
from vspair.studies.ct.training import (
    PRESETS,
    Bench,
    first_guess,
    load_prior,
    load_regression,
    load_vspair,
    train_preset,
    train_prior_in_time,
    train_regression_in_time,
)

FEW = replace(study.SMOKE, train=20, test=9, samples=4, epochs=1, steps=2, tv_iterations=1)
FIGURES = {
    "comparison", "omega", "perturbation_paper", "perturbation_calibrated", "noise",
    "overfitting", "hallucination",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture(scope="module")
def data(no_data_folder: None) -> CtData:
    return draw(FEW)


# -- trainings ------------------------------------------------------------------------------


def test_a_unet_in_parts_is_the_one_trained_at_once(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = replace(FEW, prior_epochs=3)
    whole, parts = (
        Bench(scale, data, tmp_path / name, torch.device("cpu")) for name in ("whole", "parts")
    )
    assert train_prior_in_time(whole)
    late = replace(parts, deadline=time.monotonic() - 1)
    assert not train_prior_in_time(late)
    assert not (tmp_path / "parts" / "prior").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Bench, "late", lambda self, needed=0.0: False)
        assert not train_prior_in_time(late)
    assert len(read_metrics(tmp_path / "parts" / "prior" / "metrics.jsonl")) == 1
    assert train_prior_in_time(parts)
    one, other = (load_prior(bench) for bench in (whole, parts))
    assert one is not None
    assert other is not None
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_regression_that_is_best_on_the_validation_patients_answers(
    data: CtData, tmp_path: Path
) -> None:
    bench = Bench(replace(FEW, regression_epochs=3), data, tmp_path, torch.device("cpu"))
    assert train_regression_in_time(bench)
    log = read_metrics(tmp_path / "regression" / "metrics.jsonl")
    model = load_regression(bench)
    assert model is not None
    assert model.epochs == 3
    part = data.validation
    with torch.no_grad():
        guess = model(first_guess(bench, part.y))
    error = (model.normaliser(guess) - model.normaliser(part.x)).square().mean()
    assert float(error) == pytest.approx(min(row["held"] for row in log), rel=1e-4)
    assert train_regression_in_time(replace(bench, deadline=time.monotonic() - 1))


def test_time_runs_out_when_the_next_part_would_not_fit(data: CtData) -> None:
    bench = Bench(FEW, data, Path(), torch.device("cpu"), time.monotonic() + 100)
    assert not bench.late()
    assert not bench.late(50)
    assert bench.late(200)
    assert not replace(bench, deadline=None).late(1e9)


def test_an_unfinished_training_is_answered_with(
    results: Path, data: CtData, tmp_path: Path
) -> None:
    """Its batch norms are measured when it is loaded, in one batch of all training pairs."""
    shutil.copytree(results / "runs" / "calibrated", tmp_path / "calibrated")
    path = tmp_path / "calibrated" / "config.toml"
    text = path.read_text().replace('norms = "training"', 'norms = "answer"')
    path.write_text(text.replace("epochs = 1\n", "epochs = 2\n"))
    bench = Bench(FEW, data, tmp_path, torch.device("cpu"))
    model, before = load_vspair(bench, "calibrated"), Run(tmp_path / "calibrated").load()
    assert model is not None
    assert load_vspair(bench, "paper") is None
    pairs = zip(model.x_decoder.modules(), before.x_decoder.modules(), strict=True)
    norms = [(a, b) for a, b in pairs if isinstance(a, nn.BatchNorm2d)]
    assert norms
    assert all(not torch.equal(a.running_mean, b.running_mean) for a, b in norms)  # type: ignore[arg-type]


# -- the whole study ------------------------------------------------------------------------


def test_times_need_no_training(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not trained is timed as it was drawn; what is set up once is not timed."""
    bench, made = Bench(FEW, data, tmp_path, torch.device("cpu")), list[Fbp]()

    class Counted(Fbp):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(ct_seconds, "Fbp", Counted)
    assert ct_seconds.measure_seconds(bench)
    assert len(made) == 1
    assert ct_seconds.measure_seconds(bench)  # which is there already
    assert len(made) == 1
    found = read(bench.answers / "seconds.npz")
    samplers = {"vspair_paper", "vspair_calibrated", "dps"}
    assert found["many"].keys() == samplers
    assert found["one"].keys() == samplers | {"mean", "fbp", "fbp_hann", "regression", "tv"}
    assert min(float(v) for v in found["one"].values()) > 0


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, no_data_folder: None) -> Path:
    """Stop the study at once, run one stage, report on it, then continue to the end."""
    folder = tmp_path_factory.mktemp("ct")
    more: dict[str, Any] = {"folder": folder / "runs", "scale": FEW, "device": "cpu"}
    assert study.reproduce(folder / "out", minutes=1e-9, **more) is None
    assert {p.name for p in (folder / "runs").iterdir()} == {"paper", "answers"}
    assert study.reproduce(folder / "out", only="answers", **more) == "Done: answers."
    text = study.reproduce(folder / "part", only="answers,report", **more)
    assert "| TV-ADMM |" in str(text)
    assert study.reproduce(folder / "out", **more) is not None
    return folder


def test_it_stops_in_time_and_continues(results: Path) -> None:
    for preset in PRESETS:
        assert [row["epoch"] for row in Run(results / "runs" / preset).metrics()] == [1]
    for name in ("prior", "regression"):
        assert (results / "runs" / name / "weights.safetensors").is_file()


def test_a_stage_that_was_not_run_is_left_out(results: Path) -> None:
    text = (results / "part" / "README.md").read_text()
    summary = json.loads((results / "part" / "summary.json").read_text())
    assert {r["model"] for r in summary["rows"]} == {
        "mean image", "FBP", "FBP with a Hann window", "TV-ADMM",
    }  # fmt: skip
    assert "DPS" not in {line.split("|")[1].strip() for line in text.splitlines() if "|" in line}
    assert (results / "part" / "comparison.png").is_file()
    assert not (results / "part" / "hallucination.png").exists()


def test_numbers_of_parameters_are_exact(results: Path) -> None:
    """Half a billion is beyond what 32 bits of a float count."""
    for preset in PRESETS:
        model = Run(results / "runs" / preset).load()
        with np.load(results / "runs" / "answers" / f"vspair_{preset}.npz") as found:
            assert found["row.parameters"].dtype == np.int64
            assert found["row.parameters"] == model.n_parameters


def test_it_writes_every_row(results: Path) -> None:
    summary = json.loads((results / "out" / "summary.json").read_text())
    found = {
        (r["model"], r.get("preset", ""), r.get("condition", ""), r["metric"]): r
        for r in summary["rows"]
    }
    for own in NAMES.values():
        for metric in ("mse", "psnr", "ssim", "shown_mse", "parameters", "seconds_one"):
            assert (*own, "", metric) in found
        bins = {c for model, preset, c, _ in found if (model, preset) == own and c}
        assert bins <= {f"noise {a} %" for a in ("0-2.5", "2.5-5", "5-7.5", "7.5-10")}
        assert bins
    for own in (("vsPAIR", "paper"), ("vsPAIR", "calibrated"), ("DPS", "")):
        for metric in ("crps", "coverage_90", "beyond", "shown_beyond", "seconds_many"):
            assert (*own, "", metric) in found
    for preset in PRESETS:
        for metrics in TABLES.values():
            for metric in metrics:
                assert ("vsPAIR", preset, "", metric) in found
    assert {k: found["vsPAIR", "paper", "", k]["paper"] for k in PAPER} == PAPER
    assert summary["scale"]["paper_scale"] is False
    assert summary["scale"]["slices"] == {"train": 18, "validation": 2, "test": 9}


def test_the_rows_are_means_over_the_same_slices(results: Path, data: CtData) -> None:
    """Answer by hand with the mean image, and compare overall, by bin and on DPS's slices."""
    rows = json.loads((results / "out" / "summary.json").read_text())["rows"]
    own = [r for r in rows if r["model"] == "mean image"]
    error = (data.train.x.mean(0) - data.test.x).square().mean((1, 2))
    found = {(r["metric"], r.get("condition", "")): r["value"] for r in own}
    assert found["mse", ""] == pytest.approx(float(error.mean()), rel=1e-5)
    inside = (data.test_level >= 2.5) & (data.test_level < 5)
    assert found["mse", "noise 2.5-5 %"] == pytest.approx(float(error[inside].mean()), rel=1e-5)
    shown = spread_out(data.test_level, FEW.dps_images)
    assert found["shown_mse", ""] == pytest.approx(float(error[shown].mean()), rel=1e-5)


def test_it_writes_tables_and_figures(results: Path) -> None:
    text = (results / "out" / "README.md").read_text()
    assert "(paper 0.0025)" in text
    assert "DPS answers 4 of the test slices" in text
    assert str(results) not in text
    for name in FIGURES:
        assert f"({name}.png)" in text
        assert (results / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_of_the_figures_keep_the_contract(results: Path) -> None:
    with np.load(results / "out" / FILE) as file:
        numbers = {k: file[k] for k in file.files}
    n = FEW.dps_images
    for name in ("truth", "fbp", "tv", "regression", "dps", "dps_std", "vspair_paper_std"):
        assert numbers[f"comparison.{name}"].shape == (n, 88, 88)
    assert numbers["comparison.sinogram"].shape == (n, 248, 128)
    assert (np.diff(numbers["comparison.noise"]) > 0).all()
    for preset in PRESETS:
        assert numbers[f"perturbation_{preset}.index"].shape == (2, 4)
        assert numbers[f"perturbation_{preset}.difference"].shape == (2, 4, 5, 88, 88)
        assert len(numbers[f"history.{preset}_train"]) == 1
        assert len(numbers[f"omega.{preset}"]) == 9 * 16
    assert (numbers["hallucination.vspair_excess"] >= 0).all()
    assert numbers["by_noise.levels"].tolist() == [1.25, 3.75, 6.25, 8.75]
    for name, values in numbers.items():
        narrow = values.ndim > 2 or name.startswith("omega.")
        assert name.endswith(".index") or values.dtype == (np.float16 if narrow else np.float32)


def test_the_histogram_of_omega_sees_every_factor() -> None:
    """Equal steps over (1600, 4096) values would see a quarter of the factors."""
    found = ct_answers._some(torch.arange(4096).repeat(1600), ct_answers.MOST_OMEGA)
    assert len(found) == ct_answers.MOST_OMEGA
    assert len(found.unique()) == 4096
    few = torch.rand(7)
    assert torch.equal(ct_answers._some(few, 50).sort().values, few.sort().values)


def test_damaged_answers_are_made_again(results: Path, tmp_path: Path) -> None:
    for name in ("about.json", "fbp.npz", "test.npz"):
        shutil.copy(results / "runs" / "answers" / name, tmp_path)
    path = tmp_path / "fbp.npz"
    key = str(ct_answers.read(path)["key"]["own"])
    assert ct_answers.known(path, key)
    path.write_bytes(path.read_bytes()[:-40])
    assert not ct_answers.known(path, key)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert not ct_answers.known(path, key)
    with pytest.raises(VspairError, match=r"fbp.npz is damaged: .*Remove it and run the study"):
        study.report(tmp_path / "out", tmp_path)
    path.unlink()
    (tmp_path / "about.json").write_text("{")
    with pytest.raises(VspairError, match=r"about.json is damaged: .*the trainings stay"):
        study.report(tmp_path / "out", tmp_path)


def test_what_is_done_is_not_done_again(results: Path) -> None:
    answers = results / "runs" / "answers"
    before = {p: p.stat().st_mtime_ns for p in answers.glob("blocks/*.npz")}
    more: dict[str, Any] = {"folder": results / "runs", "scale": FEW, "device": "cpu"}
    for stages in ("paper,regression", "prior", "answers,dps"):
        assert study.reproduce(results / "out", only=stages, **more) is not None
    assert {p: p.stat().st_mtime_ns for p in answers.glob("blocks/*.npz")} == before


def test_redrawing_gives_the_same_pictures(results: Path) -> None:
    out = results / "out"
    before = {name: (out / f"{name}.png").read_bytes() for name in FIGURES}
    done = CliRunner().invoke(app, ["reproduce", "ct", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Drew") == len(FIGURES)
    assert {name: (out / f"{name}.png").read_bytes() for name in FIGURES} == before


def test_other_settings_need_other_runs(results: Path, data: CtData) -> None:
    other = replace(FEW, epochs=2, regression_epochs=2, zeta=0.2)
    bench = Bench(other, data, results / "runs", torch.device("cpu"))
    with pytest.raises(VspairError, match="--runs"):
        train_preset(bench, "paper")
    fewer = replace(data, train=CtPairs(*(t[:17] for t in data.train)))
    for stage in ("regression", "prior"):
        with pytest.raises(VspairError, match="--runs"):
            study._WORK[stage](replace(bench, data=fewer))


def test_answers_to_other_slices_are_left_out_and_named(results: Path, tmp_path: Path) -> None:
    answers = results / "runs" / "answers"
    for name in ("test", "fbp", "tv"):
        (tmp_path / f"{name}.npz").write_bytes((answers / f"{name}.npz").read_bytes())
    with np.load(tmp_path / "tv.npz") as file:
        changed = {k: file[k] for k in file.files} | {"key.test": np.array("other")}
    np.savez(tmp_path / "tv.npz", **changed)
    shutil.copy(answers / "about.json", tmp_path)
    with np.load(answers / "dps.npz") as file:
        changed = {k: file[k] for k in file.files}
    changed["image.index"] = changed["image.index"] + 1
    np.savez(tmp_path / "dps.npz", **changed)
    found, left = gather(tmp_path)
    assert set(found) == {"test", "fbp"}
    assert set(left) == {"tv", "dps"}
    text = study.report(tmp_path / "out", tmp_path)
    assert "Left out: tv: it is to other noisy sinograms (key other" in text
    assert "dps: it is to other test slices" in text
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["scale"]["left_out"] == left


def test_the_command_hands_on_epochs_and_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def run(out: Path, **more: Any) -> str:
        asked.update(more)
        return "done"

    monkeypatch.setattr(study, "reproduce", run)
    words = ["--regression-epochs", "7", "--prior-epochs", "9", "--compile"]
    done = CliRunner().invoke(app, ["reproduce", "ct", *words, "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert asked["scale"] == study.Scale(regression_epochs=7, prior_epochs=9)
    assert asked["compile"] is True


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    more: dict[str, Any] = {"folder": tmp_path / "runs", "scale": FEW, "device": "cpu"}
    with pytest.raises(VspairError, match="--only answers"):
        study.reproduce(tmp_path / "out", only="report", **more)
    with pytest.raises(VspairError, match="--only prior"):
        study.reproduce(tmp_path / "out", only="dps", **more)
    with pytest.raises(VspairError, match="only = 'everything': expected some of paper, "):
        study.reproduce(tmp_path / "out", only="prior,everything", **more)
    for words, fault in (
        (["--draw", "--out", str(tmp_path)], FILE),
        (["--smoke", "--only", "report", "--runs", str(tmp_path)], "--only answers"),
        (["--smoke", "--data-dir", str(tmp_path / "none")], "no slices"),
    ):
        done = CliRunner().invoke(app, ["reproduce", "ct", *words])
        assert isinstance(done.exception, VspairError)
        assert fault in str(done.exception)
