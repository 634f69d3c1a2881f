import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from vspair.cli import app
from vspair.problems.gaussian import GaussianProblem

PROGRAM = [sys.executable, "-c", "from vspair.cli import main; main()"]


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
        "--epochs", 1, "--active", 2, "--quiet",
    )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    "command",
    ["", "demo", "fit", "invert", "evaluate", "info", "reproduce", "reproduce gaussian"],
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
    assert {"mse", "crps", "coverage_90", "active"} <= set(json.loads(scores.read_text()))
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
        ("invert run y.npy --out p.npz --samples 0", "at least one"),
        ("invert . y.npy --out p.npz", "not a run folder"),
        ("evaluate run --x wide.npy --y y.npy", "as many of each"),
        ("info absent", "not a run folder"),
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
    assert out.read_text() == "precious"


def test_import_is_light() -> None:
    """Heavy or optional packages are imported where they are used."""
    script = "import sys, vspair; print([m for m in sys.modules if '.' not in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(eval(done.stdout))
    assert not loaded & {"matplotlib", "rich", "typer", "jinja2", "h5py", "scipy", "pydantic"}
