"""What the report of the CT study says: its command, commits, sources, samples and slices."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Generator, Tensor
from typer.testing import CliRunner

from vspair import runs
from vspair.cli import app
from vspair.cli.studies import ct_name
from vspair.errors import VspairError
from vspair.methods.tv_admm import TvResult
from vspair.metrics import central_interval, coverage
from vspair.studies.ct import answers as ct_answers
from vspair.studies.ct import study
from vspair.studies.ct import tables as ct_tables
from vspair.studies.ct.answers import read
from vspair.studies.ct.data import GEOMETRY, HALF, CtData, draw
from vspair.studies.ct.measures import history, with_noise
from vspair.studies.ct.training import Bench
from vspair.studies.ct_sweeps import study as ct_sweeps
from vspair.studies.ct_sweeps import tables as ct_sweeps_tables
from vspair.studies.results import Row

FEW = replace(study.SMOKE, train=20, test=9, samples=4, epochs=1, steps=2, tv_iterations=30)


pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture(scope="module")
def data(no_data_folder: None) -> CtData:
    return draw(FEW)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, no_data_folder: None) -> Path:
    """The answers of methods that need no training."""
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "commit", lambda: "answered-here")
        study.reproduce(folder, folder=folder, scale=FEW, only="answers", device="cpu")
    return folder / "answers"


def changed(answers: Path, folder: Path, **values: Any) -> Path:
    """Return a copy of the answers with other notes."""
    folder.mkdir()
    for path in answers.glob("*.npz"):
        (folder / path.name).write_bytes(path.read_bytes())
    about = json.loads((answers / "about.json").read_text()) | values
    (folder / "about.json").write_text(json.dumps(about))
    return folder


# -- sources, command and commits -----------------------------------------------------------


def test_the_report_names_its_sources(answers: Path, tmp_path: Path) -> None:
    assert "phantoms made by vspair" in study.report(tmp_path / "out", answers)
    real = changed(answers, tmp_path / "real", phantoms=False)
    text = study.report(tmp_path / "out", real)
    for words in (
        "LIDC-IDRI", "Armato et al. 2011", "10.7937/k9/tcia.2015.lo9ql9sx", "CC BY 3.0",
        "LoDoPaB-CT", "Leuschner et al. 2021", "CC BY 4.0",
    ):  # fmt: skip
        assert words in text
    assert "made by vspair" not in text
    assert "data_dir=D" in text


def test_the_report_says_who_saw_copies() -> None:
    assert not ct_tables._copies(asdict(study.Scale(copies=1)))
    assert "trained on 4 of each" in ct_tables._copies(asdict(study.Scale(copies=4)))


def test_the_command_is_one_that_the_command_line_has() -> None:
    command = study._command
    scale = replace(study.Scale(), epochs=60, regression_epochs=30, zeta=0.2, copies=4)
    scale = replace(scale, prior_epochs=200, dps_images=8)
    words = command(asdict(scale), False)
    assert words == (
        "vspair reproduce ct --data-dir D --epochs 60 --copies 4 --regression-epochs 30 "
        "--prior-epochs 200 --dps-images 8 --zeta 0.2"
    )
    group = typer.main.get_command(app)
    ct = group.commands["reproduce"].commands["ct"]  # type: ignore[attr-defined]
    known = {option for parameter in ct.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", words)) <= known
    assert len(study.FLAGS) + 1 == words.count("--")
    assert command(asdict(study.Scale()), True) == "vspair reproduce ct"
    assert command(asdict(study.SMOKE), False) == "vspair reproduce ct --smoke --data-dir D"
    other = command(asdict(replace(study.Scale(), samples=9)), True)
    assert other == "vspair.studies.ct.study.reproduce(out, folder=runs, scale=Scale(samples=9))"


def test_the_sweeps_command_and_sources() -> None:
    settings = {"small": False, "geometry": GEOMETRY.describe()}
    command = ct_sweeps_tables._command
    short, long, mixed = {"prior": 60}, {"prior": 500, "gamma": 500}, {"prior": 60, "gamma": 500}
    assert command(settings, True, short) == "vspair reproduce ct-sweeps --epochs 60"
    assert command(settings, False, short) == "vspair reproduce ct-sweeps --data-dir D --epochs 60"
    half = settings | {"geometry": HALF.describe()}
    assert command(half, False, long) == "vspair reproduce ct-sweeps --data-dir D --half"
    assert command(half, True, mixed) == (
        "vspair reproduce ct-sweeps --half --runs R --only prior --epochs 60; "
        "vspair reproduce ct-sweeps --half --runs R --only gamma; "
        "vspair reproduce ct-sweeps --half --runs R --only report"
    )


def test_the_sweeps_report_names_sources_and_commits(tmp_path: Path) -> None:
    settings = {
        "small": False, "samples": 50, "model.x_size": 2, "model.y_size": 2,
        "objective.lambda_x": 1.0, "objective.lambda_y": 1.0, "objective.lambda_binary": 0.0,
        "training.keep": "last", "training.epochs": 60, "geometry": HALF.describe(),
    }  # fmt: skip
    parts = {"slices": {"test": 3}, "patients": {"test": 2}, "phantoms": False}
    conditions = [f"c{i}" for i in range(16)]
    there: ct_sweeps_tables.Answers = {
        c: parts | {"settings": settings, "machine": "m", "commit": f"made-{i % 2}"}
        | {"row": {"nnz": 1.0 + i, "mse_sample": 0.1 + i}, "alpha0": 1.0, "beta0": 1.0 + i}
        for i, c in enumerate(conditions)
    }  # fmt: skip
    files = dict.fromkeys(conditions, tmp_path / "answer.json")  # with nothing beside it
    text = ct_sweeps_tables.write(tmp_path, {"prior": there, "gamma": {}}, files)
    words = "ct-sweeps --data-dir D --half --epochs 60` at commits made-0, made-1, answers on m"
    assert words in text
    assert "Each training has 60 epochs; the paper's have 500." in text
    # At the top, and in the figure's caption, which is also its description.
    assert text.count("44x44 image, 62 angles") == 3
    assert "Hatched" not in text
    assert "16 trainings: " in text
    few = {c: there[c] if c in conditions[:2] else None for c in conditions}
    text = ct_sweeps_tables.write(tmp_path / "few", {"prior": few, "gamma": {}}, files)
    assert "Rank correlation" not in text
    same: ct_sweeps_tables.Answers
    same = {c: {**a, "row": {"nnz": 1.0, "mse_sample": 0.1}} for c, a in there.items() if a}
    text = ct_sweeps_tables.write(tmp_path / "same", {"prior": same, "gamma": {}}, files)
    assert "Rank correlation" not in text
    assert "averaged over 2x2 pixels once more" in text
    assert "10.7937/k9/tcia.2015.lo9ql9sx; CC BY 3.0" in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["scale"]["commits"] == ["made-0", "made-1"]
    assert (summary["commit"], summary["machine"]) == ("made-0, made-1", "m")


def test_gates_nearer_to_one_than_to_rho_are_counted(tmp_path: Path) -> None:
    omega, path = np.full((2, 40), 0.3), tmp_path / "images.npz"
    omega[0, :12], omega[1, :8], omega[:, 30] = 0.999, 0.67, 0.64  # 0.65 is in the middle
    images = dict.fromkeys(("noise", "truth", "mean", "variance"), np.zeros(2)) | {"omega": omega}
    runs.write_arrays(path, {f"shown.{name}": values for name, values in images.items()})
    answer: dict[str, Any] = {"settings": {}, "row": {"rho": 0.3}}
    found = ct_sweeps_tables.with_gates(answer, path)
    assert found is not None
    assert found["row"] == {"rho": 0.3, "near_one": 10}
    assert "near_one" not in answer["row"]
    for nothing in (None, {"error": "diverged"}):
        assert ct_sweeps_tables.with_gates(nothing, path) == nothing
    assert ct_sweeps_tables.with_gates(answer, tmp_path / "not-there.npz") == answer
    runs.write_arrays(path, {"shown.truth": omega})
    with pytest.raises(
        VspairError, match=r"images.npz is missing or damaged: it has no mean, noise, omega"
    ):
        ct_sweeps_tables.with_gates(answer, path)


@pytest.mark.parametrize("folder", ["", "somewhere"])
@pytest.mark.parametrize("phantoms", [True, False])
def test_a_report_is_filed_under_what_the_answers_are_of(
    phantoms: bool, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    for name, text in {"a": "[]", "b": "{", "c": '{"row": 1}'}.items():
        (answers / f"{name}.json").write_text(text)
    (answers / "d.json").write_text(json.dumps({"phantoms": phantoms}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VSPAIR_DATA", folder)
    asked: list[Path] = []
    monkeypatch.setattr(study, "reproduce", lambda out, **_: asked.append(out))
    monkeypatch.setattr(ct_sweeps, "reproduce", lambda out, **_: asked.append(out))
    for name in ("ct", "ct-sweeps"):
        for only in ("report", ""):
            words = ["reproduce", name, "--runs", str(tmp_path), "--only", only]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
    known, given = "-phantoms" * phantoms, "-phantoms" * (not folder)
    names = [f"ct{known}", f"ct{given}", f"ct-sweeps{known}", f"ct-sweeps{given}"]
    assert asked == [Path("results", name) for name in names]


def test_the_commits_are_those_of_the_stages(
    answers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "commit", lambda: "reporting-here")
    text = study.report(tmp_path / "out", answers)
    assert "at commit answered-here, answers" in text
    assert "reporting-here" not in text
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["commit"] == "answered-here"
    assert summary["machine"] == runs.machine("cpu")
    assert summary["scale"]["made"]["answers"]["commits"] == ["answered-here"]
    monkeypatch.setattr(runs, "machine", lambda _: "another machine")
    folder = answers.parent
    study.reproduce(folder, folder=folder, scale=FEW, only="answers", device="cpu")  # all is there
    text = study.report(tmp_path / "out", answers)
    assert "at commit answered-here, answers" in text
    assert "another machine" not in text
    more = {"answers": {"commits": ["b"], "machines": ["one"]}}
    more["dps"] = {"commits": ["a", "b"], "machines": ["one", "two"]}
    both = changed(answers, tmp_path / "both", made=more)
    assert "at commits a, b, answers on one, two." in study.report(tmp_path / "out", both)


def test_a_stage_that_wrote_nothing_is_not_noted(data: CtData, tmp_path: Path) -> None:
    bench = Bench(FEW, data, tmp_path, torch.device("cpu"))
    with pytest.raises(VspairError, match="There is no prior"):
        study._work(bench, "dps")
    assert json.loads((bench.answers / "about.json").read_text())["made"] == {}
    study._note(replace(bench, scale=replace(FEW, copies=2)), "regression")  # nothing forbids it


# -- notes ----------------------------------------------------------------------------------


def test_a_stage_of_another_scale_is_refused(data: CtData, tmp_path: Path) -> None:
    bench = Bench(replace(FEW, epochs=60), data, tmp_path, torch.device("cpu"))

    def noted() -> Any:
        return json.loads((tmp_path / "answers" / "about.json").read_text())["scale"]

    study._note(bench, "paper")
    for stage in ("calibrated", "answers", "paper"):
        with pytest.raises(VspairError, match=r"epochs is 60 there and 0 here. Give --epochs 60,"):
            study._note(replace(bench, scale=replace(FEW, epochs=0)), stage)
    with pytest.raises(VspairError, match=r"samples is 4 there and 5 here. Give the same scale"):
        study._note(replace(bench, scale=replace(bench.scale, samples=5)), "answers")
    real = replace(data, phantoms=False)
    with pytest.raises(VspairError, match=r"notes phantoms, here are real .* no --data-dir"):
        study._note(replace(bench, data=real), "answers")
    assert noted()["epochs"] == 60


def test_what_nothing_was_made_with_may_change(data: CtData, tmp_path: Path) -> None:
    """A U-Net may also be trained on by its own stage, and DPS be answered anew."""
    bench = Bench(FEW, data, tmp_path, torch.device("cpu"))

    def note(stage: str, **values: Any) -> None:
        study._note(replace(bench, scale=replace(FEW, **values)), stage)

    note("paper")
    note("prior", prior_epochs=300)
    with pytest.raises(VspairError, match="Give --prior-epochs 300"):
        note("regression")
    with pytest.raises(VspairError, match="Give --prior-epochs 300"):
        note("prior", prior_epochs=200)
    note("prior", prior_epochs=400)
    note("dps", prior_epochs=400, zeta=0.2)
    note("dps", prior_epochs=400, zeta=0.3)
    with pytest.raises(VspairError, match=r"Give --zeta 0.3,"):
        note("seconds", prior_epochs=400)
    with pytest.raises(VspairError, match=r"Give --prior-epochs 400 --zeta 0.3,"):
        note("seconds")


# -- words of the tables --------------------------------------------------------------------


def test_the_share_of_slices_that_tv_solved_is_shown(
    answers: Path, data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(FEW, data, tmp_path, torch.device("cpu"))
    found = read(answers / "tv.npz")["image"]["converged"]

    def some(_: Any, y: Tensor, *__: Any, **___: Any) -> TvResult:
        rest = y.new_zeros(len(y))
        met = y[:, 0, 64] > y[:, 0, 64].median()
        return TvResult(y.new_zeros(len(y), 88, 88), 1, met, rest, rest, rest)

    monkeypatch.setattr(ct_answers, "tv_admm", some)
    assert ct_answers.answer_all(bench)
    marks = read(bench.answers / "tv.npz")["image"]["converged"]
    middle = data.test.y[:, 0, 64]
    assert marks.tolist() == (middle > middle.median()).float().tolist()
    assert 0 < marks.sum() < len(marks)
    parts = {"tv": {"image": {"converged": np.array([1.0, 1, 1, 0])}}}
    parts["tv-choice"] = {"choice": {"weight": np.full(4, 0.01)}}
    assert "met the tolerance on 75 % of the test slices" in ct_tables._weights(parts, 0.1)
    text = study.report(tmp_path / "out", answers)
    assert f"met the tolerance on {100 * found.mean():.3g} % of the test slices" in text


def test_the_learned_noise_widens_the_deviation() -> None:
    answer: dict[str, dict[str, Any]] = {"shown": {"std": np.full((1, 2, 2), 0.4)}}
    answer["row"] = {"noise": 0.3}
    torch.testing.assert_close(with_noise(answer), torch.full((1, 2, 2), 0.5).double())
    rows = [
        Row("vsPAIR", "calibrated", name, value)
        for name, value in (("mse", 1.0), ("coverage_90", 0.4), ("coverage_90_with_noise", 0.96))
    ]
    *_, plain, noisy = ct_tables._comparison(rows).splitlines()
    assert "| 0.4 |" in plain
    assert noisy.startswith("| the same with its noise | - | - | - | - | - | 0.96 |")


def test_all_methods_stand_beside_dps_on_its_slices(answers: Path) -> None:
    found, _ = ct_tables.gather(answers)
    binned = ct_tables._binned(found, "fbp", FEW.noise)
    counts = np.nan_to_num(binned["shown_slices"])
    assert counts.sum() == FEW.dps_images
    total = float(np.nansum(counts * np.nan_to_num(binned["shown_mse"])))
    assert total / FEW.dps_images == pytest.approx(ct_tables._on_shown(found, "fbp")["shown_mse"])
    assert "4 slices" not in ct_tables.by_noise(ct_tables.collect(found, FEW.noise), "mse")


def test_no_smaller_study_replaces_a_whole_one() -> None:
    assert ct_name("ct", True, False) == "ct"
    assert ct_name("ct", True, False, part=True) == "ct-part"
    assert ct_name("ct", False, False) == "ct-phantoms"
    assert ct_name("ct", False, True) == "ct-smoke"
    assert ct_name("ct", True, True) == "ct-smoke-real"
    for name in ("ct", "ct-sweeps"):
        done = CliRunner().invoke(app, ["reproduce", name, "--smoke", "--draw"])
        assert f"results/{name}-smoke/" in str(done.exception)  # there is nothing to draw
    done = CliRunner().invoke(app, ["reproduce", "ct", "--smoke", "--epochs", "3"])
    assert "leave out --epochs" in str(done.exception)


@pytest.mark.parametrize("count", [2, 10, 18, 19, 50])
def test_the_coverage_of_few_exact_samples(count: int) -> None:
    generator = Generator().manual_seed(0)
    drawn, truth = (torch.randn(n, 40_000, generator=generator) for n in (count, 1))
    low, high = central_interval(drawn, 0.9)
    inside = float(coverage(low[None], high[None], truth))
    assert ct_tables._inside(count) == pytest.approx(inside, abs=0.01)


def test_samples_are_told_apart() -> None:
    words = ct_tables._counts({"samples": 50, "trajectories": 10})
    assert "vsPAIR is judged by 50 samples, DPS by 10" in words
    assert "would be 90.0 % and 81.8 %" in words
    assert "from the least to the greatest" in words
    assert "decoded mean code for vsPAIR and of one trajectory for DPS" in words
    even = ct_tables._counts({"samples": 50, "trajectories": 19})
    assert "from the least" not in even


def test_a_method_on_fewer_slices_takes_no_bold() -> None:
    def rows(name: str, mse: float, slices: int) -> list[Row]:
        bins = {"mse": mse, "slices": float(slices)}
        own = ct_tables.NAMES[name]
        binned = [Row(*own, k, v, condition="noise 0-2.5 %") for k, v in bins.items()]
        return [*binned, Row(*own, "mse", 0.0)]

    found = rows("fbp", 0.3, 400) + rows("tv", 0.2, 400) + rows("dps", 0.1, 4)
    table = ct_tables.by_noise(found, "mse").splitlines()
    assert table[0] == "|  | 0-2.5 %, 400 slices |"
    assert table[2:] == ["| FBP | 0.3 |", "| TV-ADMM | **0.2** |", "| DPS | 0.1 (4 of 400) |"]


def test_the_history_has_the_epoch_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = [{"epoch": 1, "loss": 3.0}, {"epoch": 2, "loss": 2.0, "val_loss": 1.0}]
    monkeypatch.setattr(runs.Run, "metrics", lambda self: logged)
    found = history(tmp_path, 2)
    assert found["best"].tolist() == [2]
    np.testing.assert_array_equal(found["validation"], [np.nan, 1.0])


def test_a_results_folder_is_made_once_there_are_slices_and_before_any_work(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"folder": tmp_path / "runs", "scale": FEW, "device": "cpu"}
    with pytest.raises(VspairError, match="There are no slices"):
        study.reproduce(tmp_path / "out", data_dir=tmp_path, **how)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(study, "draw", lambda *_: data)
    monkeypatch.setattr(study, "_work", None)
    (tmp_path / "file").touch()
    with pytest.raises((VspairError, OSError), match="file"):
        study.reproduce(tmp_path / "file", **how)
