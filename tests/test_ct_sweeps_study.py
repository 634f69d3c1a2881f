"""Appendix B's studies at a scale of seconds: stopping, answers, gaps and what they refuse."""

import gc
import json
import math
import shutil
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator
from typer.testing import CliRunner

from vspair import config as configs
from vspair import runs as files
from vspair.claims import Claim
from vspair.cli import app
from vspair.errors import VspairError
from vspair.methods.fbp import Fbp
from vspair.report import figures as plots
from vspair.runs import Run
from vspair.studies.ct.data import CtData, draw
from vspair.studies.ct.training import Bench
from vspair.studies.ct_sweeps import study
from vspair.studies.ct_sweeps.measures import SHOWN, measure
from vspair.studies.ct_sweeps.study import STUDIES, Point
from vspair.studies.ct_sweeps.tables import COLUMNS, FILE, GRIDS, with_gates
from vspair.training import side_by_side as together
from vspair.training.trainer import Trainer

FEW = replace(study.SMOKE, train=20, test=6, samples=3, epochs=2)
GAMMA = list(STUDIES["gamma"].values())
TRAINED = (Point(1, 1), Point(64, 2))
"""What is trained of the study of the prior; the rest are gaps."""

Train = Callable[..., bool]


@pytest.fixture(scope="module", autouse=True)
def no_data_folder_and_few_pixels() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VSPAIR_DATA", raising=False)
        patch.setattr(plots, "DPI", 40)
        yield


@pytest.fixture(scope="module")
def data(no_data_folder_and_few_pixels: None) -> CtData:
    return draw(FEW)


def at(folder: Path, data: CtData) -> Bench:
    return Bench(FEW, data, folder, torch.device("cpu"))


def answer(bench: Bench, *points: Point, lanes: int = 1, keep: bool = False) -> bool:
    return study._work(bench, points, study._settings(bench), lanes, keep)


def row(bench: Bench, point: Point) -> dict[str, float]:
    """Return the numbers of an answer, but for the time that they took."""
    found = study.known(bench.answers)[point]["row"]
    return {name: value for name, value in found.items() if name != "seconds"}


def stopping(steps: int) -> Train:
    """Return a training that has time for so many steps."""

    def train(trainers: list[Trainer], *_: Any) -> bool:
        clock = iter(range(1, 100))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(together, "time", SimpleNamespace(monotonic=lambda: next(clock)))
            return together.train_side_by_side(trainers, steps)

    return train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data: CtData) -> Path:
    """Stop the study of gamma in the middle of two trainings, continue, and add two of prior."""
    folder = tmp_path_factory.mktemp("ct-sweeps") / "runs"
    more: dict[str, Any] = {"folder": folder, "scale": FEW, "device": "cpu", "lanes": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "draw", lambda *_: data)
        with patch.context() as stop:
            stop.setattr(study, "train_side_by_side", stopping(1))
            assert study.reproduce(folder, only="gamma", **more) is None
        assert sorted(p.parent.name for p in folder.glob("*/checkpoint.safetensors")) == sorted(
            point.label for point in GAMMA[:2]
        )
        assert not (folder / "answers").exists()
        assert "4 of 4" in str(study.reproduce(folder, only="gamma", **more))
    assert answer(at(folder, data), *TRAINED, keep=True)
    return folder


@pytest.fixture(scope="module")
def out(runs: Path) -> Path:
    """Report from a copy of the answers alone."""
    alone = runs.parent / "alone"
    shutil.copytree(runs / "answers", alone / "answers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "draw", None)
        text = study.reproduce(runs.parent / "out", folder=alone, only="report")
    assert text == (runs.parent / "out" / "README.md").read_text()
    return runs.parent / "out"


# -- what is trained ------------------------------------------------------------------------


def test_the_trainings_are_those_of_appendix_b() -> None:
    base = configs.shipped("ct-small")
    assert (base.model.x_size, base.model.y_size) == (2048, 512)
    weights = base.objective
    assert (weights.lambda_x, weights.lambda_y, weights.lambda_binary) == (1.0, 0.3, 0.0)
    assert (base.training.epochs, base.training.learning_rate) == (500, 1e-4)
    assert base.objective == replace(configs.shipped("ct-paper").objective, beta0=3.0)
    prior, gamma = STUDIES["prior"], STUDIES["gamma"]
    grid = [1.0, 2.0, 16.0, 64.0]
    assert list(prior.values()) == [(a, b, 0.1, 3) for a in grid for b in grid]
    assert list(gamma.values()) == [(1.0, 3.0, g, 2) for g in (0.001, 0.01, 0.1, 1.0)]
    assert prior["alpha0=1,beta0=64"] == Point(1, 64)
    assert len({p.label for part in STUDIES.values() for p in part.values()}) == 20


def test_each_training_has_the_settings_of_its_name(runs: Path) -> None:
    for point in (*GAMMA, *TRAINED):
        c = Run(runs / point.label).config
        found = c.objective.alpha0, c.objective.beta0, c.objective.gamma_x
        assert (*found, c.model.x_network.depth) == point
        assert c.model.y_network.depth == point.depth
        assert c.training.epochs == FEW.epochs


def test_a_training_that_two_studies_ask_for_is_made_once(
    runs: Path, data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {"one": {"a": GAMMA[0]}, "two": {"b": GAMMA[0], "c": GAMMA[1]}}
    monkeypatch.setattr(study, "STUDIES", shared)
    monkeypatch.setattr(study, "draw", lambda *_: data)
    monkeypatch.setattr(study, "report", lambda *_: "reported")
    asked: list[Point] = []

    def work(bench: Bench, points: list[Point], *_: Any) -> bool:
        asked.extend(points)
        return True

    monkeypatch.setattr(study, "_work", work)
    assert study.reproduce(tmp_path, folder=tmp_path, scale=FEW, device="cpu") == "reported"
    assert asked == GAMMA[:2]


# -- stopping -------------------------------------------------------------------------------


def test_a_stopped_training_ends_as_one_at_once(runs: Path, data: CtData, tmp_path: Path) -> None:
    """Whether it was stopped, and what was trained beside it, changes no bit of its answer."""
    bench = at(tmp_path, data)
    assert answer(bench, GAMMA[0])
    assert row(bench, GAMMA[0]) == row(at(runs, data), GAMMA[0])
    one, other = (
        np.load(path / "answers" / f"{GAMMA[0].label}.npz")["shown.mean"]
        for path in (runs, tmp_path)
    )
    assert np.array_equal(one, other)


def test_what_is_answered_is_not_made_again(
    runs: Path, data: CtData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_finish", None)
    before = {p: p.stat().st_mtime_ns for p in runs.rglob("*") if ".claims" not in p.parts}
    assert answer(at(runs, data), *GAMMA, *TRAINED)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    late = replace(at(runs, data), deadline=time.monotonic() - 1)
    assert answer(late, *GAMMA, *TRAINED)


def test_no_training_begins_when_time_is_up(data: CtData, tmp_path: Path) -> None:
    bench = replace(at(tmp_path, data), deadline=time.monotonic() - 1)
    assert not answer(bench, GAMMA[0])
    assert not (tmp_path / GAMMA[0].label).exists()


def test_no_answer_begins_that_would_not_end_in_time(
    runs: Path, data: CtData, tmp_path: Path
) -> None:
    """The training is kept; the next call answers it, also if that takes longer than it has."""
    bench = replace(at(tmp_path, data), deadline=time.monotonic() + 1000)
    path = bench.answers / f"{GAMMA[1].label}.json"
    path.parent.mkdir()
    known = json.loads((runs / "answers" / path.name).read_text())
    path.write_text(json.dumps(known | {"answered_in": 1e6}))
    assert not answer(bench, GAMMA[0])
    assert (tmp_path / GAMMA[0].label / "checkpoint.safetensors").is_file()
    assert list(study.known(bench.answers)) == [GAMMA[1]]
    assert answer(bench, GAMMA[0])
    assert row(bench, GAMMA[0]) == row(at(runs, data), GAMMA[0])


def test_a_process_killed_at_any_moment_leaves_nothing_half_done(
    runs: Path, data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it began, before its answer was there, and before its weights were removed."""
    bench, run, plain = at(tmp_path, data), tmp_path / GAMMA[0].label, files.write_text

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    def killed_at_the_answer(path: Path, text: str) -> None:
        killed() if path.parent == bench.answers else plain(path, text)

    run.mkdir()
    (run / ".config.toml.part").touch()
    moments: list[tuple[Any, str, Any, bool]] = [
        (files, "write_text", killed_at_the_answer, False),
        (study, "_remove", killed, True),
    ]
    for place, name, instead, answered in moments:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, instead)
            with pytest.raises(KeyboardInterrupt):
                answer(bench, GAMMA[0])
        assert (GAMMA[0] in study.known(bench.answers)) == answered
        assert (bench.answers / f"{GAMMA[0].label}.npz").is_file()
        assert (run / "checkpoint.safetensors").is_file()
    assert answer(bench, GAMMA[0])
    assert {p.name for p in run.iterdir()} == {"config.toml", "metrics.jsonl", "versions.json"}
    assert row(bench, GAMMA[0]) == row(at(runs, data), GAMMA[0])


def test_what_another_process_trains_is_left_to_it(data: CtData, tmp_path: Path) -> None:
    bench = at(tmp_path, data)
    claim = Claim.take(tmp_path, GAMMA[0].label)
    assert claim is not None
    with claim, ExitStack() as claims:
        assert study._take(bench, GAMMA, 2, claims) == GAMMA[1:3]
        assert answer(bench, *GAMMA[:3])
    assert not study.known(bench.answers)


# -- what is left ---------------------------------------------------------------------------


def test_checkpoints_are_removed_and_weights_where_they_are_not_kept(runs: Path) -> None:
    assert not list(runs.glob("*/checkpoint.safetensors"))
    kept = {p.parent.name for p in runs.glob("*/weights.safetensors")}
    assert kept == {point.label for point in TRAINED}
    assert all((runs / point.label / "metrics.jsonl").is_file() for point in GAMMA)


def test_an_answered_training_is_never_written(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Trainer] = []
    monkeypatch.setattr(Trainer, "save", saved.append)
    assert answer(at(tmp_path, data), GAMMA[0])
    assert not saved


def test_the_answer_is_that_of_the_weights(runs: Path, data: CtData) -> None:
    """Measure kept weights again, and count and average by hand what the tables show."""
    bench, point = at(runs, data), TRAINED[1]
    model, found = Run(runs / point.label).load(), row(bench, point)
    again, images = measure(bench, model)
    assert again == {k: found[k] for k in again}
    x, post = data.test.x, model.posterior(data.test.y)
    drawn = post.sample(FEW.samples, Generator().manual_seed(0))
    assert found["mse_sample"] == pytest.approx(float((drawn - x).square().mean()), rel=1e-5)
    assert found["mse"] == pytest.approx(float((drawn.mean(0) - x).square().mean()), rel=1e-5)
    z = post.code.rsample(Generator().manual_seed(0))
    assert found["nnz"] == pytest.approx(float((z != 0).double().sum(1).mean()))
    omega = post.parameters()["omega"]
    assert found["omega"] == pytest.approx(float(omega.mean()), rel=1e-5)
    assert found["epochs"] == 2
    assert images["omega"].shape == (SHOWN, 16)
    rows = data.test_level.argsort()[1::2]
    assert np.allclose(images["noise"], data.test_level[rows])
    few = model.posterior(data.test.y[rows])
    drawn = few.sample(FEW.samples, Generator().manual_seed(int(rows[0])))
    assert np.allclose(images["variance"], drawn.var(0), rtol=1e-3, atol=1e-6)
    assert np.allclose(images["mean"], drawn.mean(0), atol=1e-6)


def test_a_training_is_gone_before_the_next_begins(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a GPU would fill up; Python's own collector may not run for long."""
    plain, made, living = study._trainer, list[Any](), list[int]()

    def counted(bench: Bench, point: Point) -> Trainer:
        living.append(sum(known() is not None for known in made))
        trainer = plain(bench, point)
        made.append(weakref.ref(trainer.model))
        return trainer

    monkeypatch.setattr(study, "_trainer", counted)
    gc.disable()
    try:
        assert answer(at(tmp_path, data), *GAMMA[:2])
    finally:
        gc.enable()
    assert living == [0, 0]


def test_a_training_that_diverges_is_a_result(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = study._trainer

    def sick(bench: Bench, point: Point) -> Trainer:
        trainer = plain(bench, point)
        if point == GAMMA[1]:
            with torch.no_grad():
                trainer.parameters[0].fill_(math.nan)
        return trainer

    monkeypatch.setattr(study, "_trainer", sick)
    bench = at(tmp_path / "runs", data)
    assert study._finish(bench, GAMMA[:2], study._settings(bench), keep=False, needed=0.0)
    assert (bench.folder / GAMMA[0].label / "checkpoint.safetensors").is_file()
    assert not (bench.folder / GAMMA[1].label / "checkpoint.safetensors").exists()
    assert answer(bench, *GAMMA[:2])
    found = study.known(bench.answers)
    assert "diverged" in found[GAMMA[1]]["error"]
    assert "row" in found[GAMMA[0]]
    text = study.report(tmp_path / "out", bench.answers)
    assert "gamma_x=0.01 has failed" in text
    assert "Not yet trained: 2 of 4 (gamma_x=0.1; gamma_x=1)" in text


# -- the report -----------------------------------------------------------------------------


def test_gaps_are_shown_and_said(out: Path) -> None:
    text = (out / "README.md").read_text()
    assert "Not yet trained: 14 of 16 (alpha0=1,beta0=2; " in text
    assert "All 4 trainings are there." in text
    assert "Each training has 2 epochs; the paper's have 500" in text
    nnz = text.split("### Average nnz")[1].split("###")[0]
    lines = [line.split("|")[2:-1] for line in nnz.splitlines() if "|" in line]
    measured = [[cell.strip() != "-" for cell in line] for line in lines[2:]]
    assert np.argwhere(measured).tolist() == [[0, 0], [3, 1]]
    numbers = read_groups(out / FILE, "Run the study first, without --draw.")
    for name in ("nnz", "mse"):
        assert np.isfinite(numbers["beta"][name]).tolist() == measured


def test_the_summary_has_every_number_of_every_answer(out: Path, runs: Path) -> None:
    summary = json.loads((out / "summary.json").read_text())
    rows = {(r.get("condition", r["model"]), r["metric"]): r["value"] for r in summary["rows"]}
    simple = {"mean image", "FBP", "FBP with a Hann window"}
    assert {(name, "mse") for name in simple} <= set(rows)
    found = {key: value for key, value in rows.items() if key[0] not in simple}
    conditions = {"alpha0=1,beta0=1", "alpha0=64,beta0=2", *STUDIES["gamma"]}
    assert {condition for condition, _ in found} == conditions
    for condition, metric in ((c, m) for c in conditions for m in (*GRIDS, *COLUMNS)):
        label = {**STUDIES["prior"], **STUDIES["gamma"]}[condition].label
        answer = json.loads((runs / "answers" / f"{label}.json").read_text())
        whole = with_gates(answer, runs / "answers" / f"{label}.npz")
        assert whole is not None
        assert found[condition, metric] == whole["row"][metric]
    assert summary["study"] == "ct-sweeps"
    assert summary["scale"]["epochs"] == {"prior": 2, "gamma": 2}
    assert summary["scale"]["slices"]["test"] == 6


def test_figures_are_drawn_from_the_answers(out: Path, runs: Path) -> None:
    text, numbers = (
        (out / "README.md").read_text(),
        read_groups(out / FILE, "Run the study first, without --draw."),
    )
    for name in ("beta_prior", "gamma_x"):
        assert f"({name}.png)" in text
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    prior = study.known(runs / "answers")[TRAINED[1]]["row"]
    assert numbers["beta"]["mse"][3, 1] == pytest.approx(prior["mse_sample"], rel=1e-6)
    gamma = numbers["gamma"]
    assert np.allclose(gamma["gamma_x"], [0.001, 0.01, 0.1, 1])
    for i, point in enumerate(GAMMA):
        images = read_groups(
            runs / "answers" / f"{point.label}.npz", "Run the study first, without --draw."
        )["shown"]
        for name in ("mean", "variance", "omega"):
            assert np.array_equal(gamma[name][i], images[name][1])
        assert np.array_equal(gamma["truth"], images["truth"][1])
    assert f"{float(gamma['noise']):.1f} %" in text


def test_what_is_had_without_learning_stands_beside(out: Path, runs: Path, data: CtData) -> None:
    kept = json.loads((runs / "answers" / "simple.json").read_text())
    x, y = data.test.x, data.test.y
    guesses = {
        "mean": data.train.x.mean(0),
        "fbp": Fbp(data.problem.geometry)(y),
        "fbp_hann": Fbp(data.problem.geometry, window="hann")(y),
    }
    assert set(kept["row"]) == set(guesses)
    for name, guess in guesses.items():
        assert kept["row"][name] == pytest.approx(float((guess - x).square().mean()), rel=1e-4)
    words = f"without learning: mean image {kept['row']['mean']:.3g}, FBP {kept['row']['fbp']:.3g}"
    assert words in (out / "README.md").read_text()


def test_how_nnz_follows_the_prior_is_said(runs: Path, tmp_path: Path) -> None:
    """Spearman's correlation, also of equal values; 0.8464 and 0.5067 by scipy.stats.spearmanr."""
    seen = json.loads((runs / "answers" / f"{TRAINED[0].label}.json").read_text())
    for i, point in enumerate(STUDIES["prior"].values()):
        row = {"nnz": 10 ** float(point.beta0 < point.alpha0), "mse_sample": float(i)}
        changed = seen | point._asdict() | {"row": seen["row"] | row}
        (tmp_path / f"{point.label}.json").write_text(json.dumps(changed))
    text = study.report(tmp_path / "out", tmp_path)
    assert "16 trainings: 0.85 for nnz and 0.51 for the MSE of a sample" in text


def test_curves_are_drawn_from_the_answers(out: Path, runs: Path, tmp_path: Path) -> None:
    text = (out / "README.md").read_text()
    assert text.count("a column a study. Each training has 2 epochs") == 2
    found = read_groups(out / FILE, "Run the study first, without --draw.")["curves"]
    assert found["prior_alpha0"].tolist() == [1, 64]
    assert found["prior_beta0"].tolist() == [1, 2]
    for name, points in (("prior", TRAINED), ("gamma", GAMMA)):
        for i, point in enumerate(points):
            lines = Run(runs / point.label).metrics()
            assert found[f"{name}_epoch"].tolist() == [line["epoch"] for line in lines] == [1, 2]
            for key, metric in (("rho", "rho"), ("kl", "x_prior")):
                assert np.allclose(found[f"{name}_{key}"][i], [line[metric] for line in lines])
    answers = tmp_path / "answers"
    shutil.copytree(runs / "answers", answers)
    cut, gone = (answers / f"{point.label}.jsonl" for point in GAMMA[:2])
    cut.write_text(cut.read_text().splitlines()[0])
    gone.unlink()
    study.report(tmp_path / "out", answers)
    fewer = read_groups(tmp_path / "out" / FILE, "Run the study first, without --draw.")["curves"]
    assert np.allclose(fewer["gamma_gamma_x"], [0.001, 0.1, 1])
    assert np.isnan(fewer["gamma_rho"]).tolist() == [[False, True], [False] * 2, [False] * 2]
    assert np.array_equal(fewer["gamma_kl"][1:], found["gamma_kl"][2:])
    assert fewer["gamma_epoch"].tolist() == [1, 2]


def test_redrawing_gives_the_same_pictures(out: Path) -> None:
    before = {p.name: p.read_bytes() for p in out.glob("*.png")}
    for path in out.glob("*.png"):
        path.unlink()
    done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", "--draw", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert {p.name: p.read_bytes() for p in out.glob("*.png")} == before


def test_one_study_can_be_reported_on_without_the_other(runs: Path, tmp_path: Path) -> None:
    name = f"{TRAINED[0].label}.json"
    (tmp_path / "answers").mkdir()
    shutil.copy(runs / "answers" / name, tmp_path / "answers" / name)
    words = ["--only", "report", "--runs", str(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", *words])
    assert done.exit_code == 0, done.output
    assert "Not yet trained: 4 of 4" in done.output
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == {"beta_prior.png"}


# -- what is refused ------------------------------------------------------------------------


def test_answers_of_other_settings_are_refused(runs: Path, data: CtData) -> None:
    bench = at(runs, data)
    longer = replace(bench, scale=replace(FEW, epochs=3))
    with pytest.raises(VspairError, match=r"training.epochs is 2 there and 3 here.*--runs"):
        answer(longer, *GAMMA)
    other = replace(data, test=data.test._replace(y=data.test.y + 1e-3))
    with pytest.raises(VspairError, match=r"test is 6 pairs"):
        answer(replace(bench, data=other), *GAMMA)
    shifted = data.train._replace(y=data.train.y * (1 + 1e-9))
    assert study._settings(replace(bench, data=replace(data, train=shifted))) == study._settings(
        bench
    )


def test_answers_of_different_settings_are_not_mixed(runs: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    shutil.copytree(runs / "answers", answers)
    path = answers / f"{GAMMA[2].label}.json"
    changed = json.loads(path.read_text())
    changed["settings"]["training.epochs"] = 7
    path.write_text(json.dumps(changed))
    with pytest.raises(VspairError, match=r"gamma_x=0.1,depth=2.json .* is 7 there and 2 here"):
        study.report(tmp_path / "out", answers)
    assert not (tmp_path / "out").exists()


def test_the_studies_may_differ_in_their_epochs(data: CtData, tmp_path: Path) -> None:
    bench = at(tmp_path, data)
    short = replace(bench, scale=replace(FEW, epochs=1))
    assert answer(short, TRAINED[0])
    assert answer(bench, GAMMA[0])
    text = study.report(tmp_path / "out", bench.answers)
    assert "Trainings have 1 epochs (study prior) and 2 epochs (study gamma); the paper's" in text
    assert text.count("Hatched: not measured. Each training has 1 epochs; the paper's") == 2
    assert set(study.known(bench.answers)) == {TRAINED[0], GAMMA[0]}
    with pytest.raises(VspairError, match=r"training.epochs is 1 there and 2 here"):
        answer(bench, TRAINED[1])
    with pytest.raises(VspairError, match=r"training.epochs is 2 there and 1 here"):
        answer(short, GAMMA[1])
    settings = study._settings(bench)
    for asked in (TRAINED[:1], [*TRAINED, *GAMMA], None):
        with pytest.raises(VspairError, match=r"training.epochs is 1 there and 2 here"):
            study.known(bench.answers, settings, asked)
    with pytest.raises(VspairError, match=r"noise is 0.1 there and 0.2 here"):
        study.known(bench.answers, settings | {"noise": 0.2}, GAMMA[:1])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ("{", "damaged: .*Remove it"),
        ("[]", "damaged: it is not an answer.*Remove it"),
        ({"row": {"guess": 1.0}}, "damaged: it is not an answer.*Remove it"),
        ({"row": None}, "damaged: it is not an answer.*Remove it"),
        ({"settings": None}, "damaged: it is not an answer.*Remove it"),
        ({"settings": {"noise": 0.2}}, "noise is 0.2 there and 0.1 here.*by --runs"),
    ],
)
def test_simple_answers_of_something_else_are_refused(
    changes: Any, fault: str, runs: Path, data: CtData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answers = tmp_path / "answers"
    shutil.copytree(runs / "answers", answers)
    path = answers / "simple.json"
    kept = json.loads(path.read_text())
    path.write_text(changes if isinstance(changes, str) else json.dumps(kept | changes))
    with pytest.raises(VspairError, match=rf"simple.json .*{fault}"):
        study.report(tmp_path / "out", answers)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(study, "draw", lambda *_: data)
    monkeypatch.setattr(study, "_work", None)  # it is refused before any work
    with pytest.raises(VspairError, match=rf"simple.json .*{fault}"):
        study.reproduce(tmp_path / "out", folder=tmp_path, scale=FEW, device="cpu")


OLD = Point()._asdict() | {"settings": {}, "slices": {}, "machine": "m", "row": {}}  # no geometry


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"row": {}}', json.dumps(OLD), json.dumps(OLD | {"settings": None})],
)
def test_a_damaged_answer_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / f"{GAMMA[0].label}.json"
    path.write_text(text)
    with pytest.raises(VspairError, match=r"is damaged: .* Remove it"):
        study.known(tmp_path)


def test_bad_input_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "draw", None)
    with pytest.raises(VspairError, match="'all': expected one of prior, gamma, report"):
        study.reproduce(tmp_path / "out", folder=tmp_path, only="all")
    for lanes in (0, 17):
        with pytest.raises(VspairError, match=f"lanes = {lanes}: expected 1 to 16"):
            study.reproduce(tmp_path / "out", folder=tmp_path, lanes=lanes)
    for words, fault in (
        (["--only", "report", "--runs", str(tmp_path)], "without --only report"),
        (["--draw", "--out", str(tmp_path)], FILE),
        (["--only", "answers", "--runs", str(tmp_path)], "expected one of"),
    ):
        done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", *words])
        assert isinstance(done.exception, VspairError)
        assert fault in str(done.exception)
