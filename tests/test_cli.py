import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import vspair as package
from vspair.cli import app
from vspair.problems.gaussian import GaussianProblem
from vspair.runs import read_metrics
from vspair.training.interrupts import Interrupted

PROGRAM = [sys.executable, "-m", "vspair"]


def vspair(*arguments: object, code: int = 0) -> str:
    """Run the program as a user does; return what it printed, errors included."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    x, y = GaussianProblem.random(0).pairs(32, 2, seed=1)
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", y.numpy())
    np.save(folder / "short.npy", y[:-1].numpy())
    np.save(folder / "wide.npy", np.ones((3, 7)))
    broken = y.numpy().copy()
    broken[3, 1] = np.nan
    np.save(folder / "nan.npy", broken)
    vspair(
        "fit", "--x", folder / "x.npy", "--y", folder / "y.npy", "--out", folder / "run",
        "--preset", "calibrated", "--epochs", 1, "--active", 2, "--quiet",
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "",
        "demo",
        "fit",
        "invert",
        "evaluate",
        "info",
        "reproduce",
        "reproduce gaussian",
        "reproduce mnist",
        "reproduce sbibm",
        "reproduce ablations",
    ],
)
def test_help_reads_well(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Usage" in shown.output


def test_invert_evaluate_and_info(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "posterior.npz"
    vspair("invert", files / "run", files / "y.npy", "--out", out, "--samples", 7)
    answer = np.load(out)
    assert answer["samples"].shape == (7, 64, 2)
    assert np.allclose(answer["samples"].mean(0), answer["mean"], atol=1e-5)
    assert (answer["lower"] <= answer["upper"]).all()
    assert answer["omega"].shape == answer["mu"].shape == answer["sigma"].shape == (64, 64)
    scores = tmp_path / "scores.json"
    shown = vspair(
        "evaluate", files / "run", "--x", files / "x.npy", "--y", files / "y.npy", "--out", scores
    )
    assert "floor_mean" in shown
    assert {"mse_mean", "crps", "coverage_90", "active"} <= set(json.loads(scores.read_text()))
    assert "vsPAIR" in vspair("info", files / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit --x x.npy --y short.npy --out new", "x has 64 entries and y has 63"),
        ("fit --x x.npy --y nan.npy --out new", "not finite"),
        ("fit --x absent.npy --y y.npy --out new", "no file"),
        ("fit --x x.npy --y y.npy --out run", "exists already"),
        ("fit --x x.npy --y y.npy --out new --epochs 0", "above 0"),
        ("fit --x x.npy --y y.npy --out new --config absent.toml", "no file"),
        ("fit --x x.npy --y y.npy --out new --device gpu9", "gpu9"),
        ("invert run wide.npy --out p.npz", r"y has shape (3, 7)"),
        ("invert run nan.npy --out p.npz", "index [3, 1]"),
        ("invert run y.npy --out p.txt", ".npz"),
        ("invert run y.npy --out x.npy/p.npz", "no folder"),
        ("invert run y.npy --out p.npz --level 1.5", "level = 1.5"),
        ("invert run y.npy --out p.npz --samples 0", "'--samples'"),
        ("invert run y.npy --out p.npz --seed -1", "'--seed'"),
        ("evaluate run --x x.npy --y y.npy --samples 0", "'--samples'"),
        ("evaluate run --x x.npy --y y.npy --seed -1", "'--seed'"),
        ("evaluate run --x x.npy --y y.npy --out absent/s.json", "no folder"),
        ("fit --x x.npy --y y.npy --out new --seed -1", "'--seed'"),
        ("reproduce gaussian --seeds 0", "'--seeds'"),
        ("reproduce gaussian --jobs 0", "'--jobs'"),
        ("invert . y.npy --out p.npz", "not a run folder"),
        ("evaluate run --x wide.npy --y y.npy", "as many of each"),
        ("info absent", "not a run folder"),
        (f"info {300 * 'a'}", "too long"),
        (f"fit --x x.npy --y y.npy --out {300 * 'a'}", "too long"),
        (f"fit --x {300 * 'a'}.npy --y y.npy --out new", "too long"),
        ("fit --x x.npy --y y.npy --out run --resume --preset paper", "keeps its configuration"),
    ],
)
def test_mistakes_end_in_one_clear_line(
    files: Path, arguments: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = sorted(str(p) for p in files.rglob("*"))
    assert message in vspair(*arguments.split(), code=2)
    assert sorted(str(p) for p in files.rglob("*")) == before


def test_an_answer_is_not_overwritten(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.npz"
    out.write_text("precious")
    shown = vspair("invert", files / "run", files / "y.npy", "--out", out, code=2)
    assert "exists already" in shown
    pairs = ["--x", files / "x.npy", "--y", files / "y.npy"]
    shown = vspair("evaluate", files / "run", *pairs, "--out", out, code=2)
    assert "exists already" in shown
    assert "mse" not in shown
    assert out.read_text() == "precious"


def test_scores_are_json_even_where_one_is_undefined(files: Path, tmp_path: Path) -> None:
    """A single pair has no correlation."""
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.load(files / f"{name}.npy")[:1])
    pairs = ["--x", tmp_path / "x.npy", "--y", tmp_path / "y.npy"]
    vspair("evaluate", files / "run", *pairs, "--out", tmp_path / "s.json")

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    scores = json.loads((tmp_path / "s.json").read_text(), parse_constant=refuse)
    assert "uncertainty_error_r" not in scores
    assert scores["mse_mean"] > 0


def test_version() -> None:
    assert vspair("--version") == f"vspair {package.__version__}\n"


def test_a_smoke_test_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def study(self: Any, scale: Any, out: Path, **_: Any) -> str:
        seen.append(str(out))
        return "table"

    monkeypatch.setattr("vspair.studies.study.Study.reproduce", study)
    for arguments in ([], ["--smoke"], ["--smoke", "--out", "mine"]):
        done = CliRunner().invoke(app, ["reproduce", "gaussian", *arguments])
        assert done.exit_code == 0, done.output
    assert seen == ["results/gaussian", "results/gaussian-smoke", "mine"]


def test_a_stopped_fit_says_how_to_continue(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["fit", "--x", files / "x.npy", "--y", files / "y.npy", "--out", out]
    start = [*PROGRAM, *map(str, words), "--preset", "calibrated", "--epochs", "300", "--quiet"]
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while len(read_metrics(out / "metrics.jsonl")) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    command = f"vspair fit --x {files / 'x.npy'} --y {files / 'y.npy'} --out {out} --resume"
    assert shown == f"Stopped; what was reached is saved. Continue with: {command}\n"
    assert 3 <= len(read_metrics(out / "metrics.jsonl")) < 300
    vspair(*command.split()[1:], "--quiet")
    assert [row["epoch"] for row in read_metrics(out / "metrics.jsonl")] == [*range(1, 301)]


@pytest.mark.parametrize(
    ("command", "work", "message"),
    [
        ("demo", "vspair.studies.demo.study.demo", "starts anew"),
        ("reproduce gaussian", "vspair.studies.study.Study.reproduce", "continues"),
        ("invert run y.npy --out p.npz", "vspair.runs.load", "Nothing was written"),
        ("fit --x x.npy --y y.npy --out new", "vspair.data.load_array", "Stopped before"),
    ],
)
def test_stopping_is_never_silent(
    command: str, work: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt if "load" in work else Interrupted

    monkeypatch.setattr(work, stop)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 130
    assert message in done.output


def test_import_is_light() -> None:
    """Heavy or optional packages are imported where they are used."""
    script = "import sys, vspair; print([m for m in sys.modules if '.' not in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(eval(done.stdout))
    assert not loaded & {"matplotlib", "rich", "typer", "jinja2", "h5py", "scipy", "pydantic"}


# -- the anchored model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def anchored(files: Path) -> tuple[Path, str]:
    """A folder with a run of first guesses, and what was said of it."""
    np.save(files / "first.npy", np.load(files / "x.npy") + 0.1)
    np.save(files / "groups.npy", np.arange(64) // 2)
    shown = vspair(
        "fit", "--x", files / "x.npy", "--y", files / "y.npy", "--first", files / "first.npy",
        "--groups", files / "groups.npy", "--out", files / "anchored", "--epochs", 1,
        "--active", 2, "--quiet",
    )  # fmt: skip
    return files, shown


def test_a_quiet_fit_says_the_verdict_and_how_to_ask(anchored: tuple[Path, str]) -> None:
    files, shown = anchored
    lines = shown.splitlines()
    kept = json.loads((files / "anchored" / "verdict.json").read_text())
    assert lines[:3] == kept["lines"]
    assert [line.partition(":")[0] for line in lines[:3]] == [
        "Held-out error", "Intervals", "Factors",
    ]  # fmt: skip
    assert "the first guesses 0.01" in lines[0]
    assert len(lines) == 4
    assert f"vspair invert {files / 'anchored'} Y.npy --first FIRST.npy" in lines[3]


def test_a_run_of_first_guesses_is_asked_with_them(
    anchored: tuple[Path, str], tmp_path: Path
) -> None:
    files, _ = anchored
    run, out, first = files / "anchored", tmp_path / "p.npz", ["--first", files / "first.npy"]
    vspair("invert", run, files / "y.npy", *first, "--samples", 7, "--out", out)
    answer, model = np.load(out), package.load(run)
    x, y, guesses = (np.load(files / f"{name}.npy") for name in ("x", "y", "first"))
    post = model.posterior(y, first=guesses)  # type: ignore[call-arg]
    assert np.array_equal(answer["mean"], post.mean().numpy())
    assert answer["samples"].shape == (7, 64, 2)
    assert answer["omega"].shape == (64, 2)
    scores = tmp_path / "s.json"
    pairs = ["--x", files / "x.npy", "--y", files / "y.npy"]
    shown = vspair("evaluate", run, *pairs, *first, "--out", scores)
    assert "share_in_factors" in shown
    error = float(((answer["mean"] - x) ** 2).mean())
    assert json.loads(scores.read_text())["mse_mean"] == pytest.approx(error, rel=1e-4)
    for command in (["invert", run, files / "y.npy", "--out", tmp_path / "q.npz"],
                    ["evaluate", run, *pairs]):  # fmt: skip
        assert "--first FILE" in vspair(*command, code=2)
    assert not (tmp_path / "q.npz").exists()


def test_info_shows_the_verdict(anchored: tuple[Path, str]) -> None:
    files, _ = anchored
    shown = vspair("info", files / "anchored")
    kept = json.loads((files / "anchored" / "verdict.json").read_text())
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    after = rows[rows.index("verdict") :]
    for name in ("mse", "floor_first", "coverage", "active"):
        assert f"{name} {kept[name]:.5g}" in after
    assert "first guesses with every y" in rows


def test_a_stopped_anchored_fit_names_all_its_files(files: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "first.npy", np.load(files / "x.npy"))
    out = tmp_path / "run"
    stage = out / "stages" / "network-0-without-dropout"
    words = ["fit", "--x", files / "x.npy", "--y", files / "y.npy", "--out", out]
    guesses = ["--first", tmp_path / "first.npy"]
    start = [*PROGRAM, *map(str, [*words, *guesses, "--epochs", 400, "--quiet"])]
    with subprocess.Popen(start, stderr=subprocess.PIPE, text=True) as process:
        until, log = time.monotonic() + 60, stage / "metrics.jsonl"
        while len(read_metrics(log)) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=60)
    assert process.returncode == 130
    command = " ".join(map(str, ["vspair", *words, "--resume", *guesses]))
    assert shown == f"Stopped; what was reached is saved. Continue with: {command}\n"
    assert "has no weights yet" in vspair("info", out, code=2)
    assert (stage / "checkpoint.safetensors").exists()
