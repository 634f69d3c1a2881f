import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import vspair
from vspair import claims, cli, data, sweeps
from vspair import config as configs
from vspair import records as record
from vspair.claims import STALE, Claim
from vspair.config import Config
from vspair.data import fingerprint, split
from vspair.errors import VspairError
from vspair.evaluation import evaluate
from vspair.fitting import split_pairs
from vspair.runs import read_metrics
from vspair.sweeps import Axis, Sweep, run
from vspair.training.interrupts import Interrupted

Pairs = tuple[Tensor, Tensor]


def axes(*texts: str) -> tuple[Axis, ...]:
    return tuple(map(Axis.parse, texts))


GRID = axes("objective.gamma_x=0.001,1", "objective.beta0=2,64")


@pytest.fixture(scope="module")
def finished(pairs: Pairs, base: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of two by two that is trained; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("sweeps") / "grid"
    run(Sweep(folder, GRID, base), *pairs, device="cpu", command="vspair sweep")
    return folder


@pytest.fixture
def grid(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "grid"))


def stop(*_: Any, **__: Any) -> None:
    raise Interrupted


def scores(folder: Path) -> dict[str, Any]:
    return {row["trial"]: row.get("scores") for row in record.rows(folder)}


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("a.b=1,2.5", Axis("a.b", (1, 2.5))),
        ("a.b = kl, decoded", Axis("a.b", ("kl", "decoded"))),
        ("a.b=true", Axis("a.b", (True,))),
        ("a.b=[1,2],[3,4]", Axis("a.b", ([1, 2], [3, 4]))),
        ("a.b=2..64", Axis("a.b", (2, 64), "linear")),
        ("a.b=1e-4..1e-2:log", Axis("a.b", (1e-4, 1e-2), "log")),
    ],
)
def test_axes_are_read(text: str, axis: Axis) -> None:
    assert Axis.parse(text) == axis
    assert Axis.parse(str(axis)) == axis


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["objective.gama_x=1"], r"Did you mean objective\.gamma_x"),
        (["gamma_x=1"], r"Did you mean objective\.gamma_x"),
        (["objective.gamma_x=low,high"], "expected float, got str"),
        (["objective.gamma_x=-1"], "0 or more"),
        (["objective.map=parametres"], "parameters"),
        (["objective.gamma_x="], "'objective.gamma_x=': a key or a value is empty"),
        (["objective.gamma_x=1,,2"], "is empty"),
        (["=1"], "is empty"),
        (["gamma_x"], "'gamma_x': there is no =; expected KEY=VALUE,VALUE or KEY=LOW..HIGH"),
        (["objective.gamma_x=1", "objective.gamma_x=2"], "given twice"),
        (["objective.gamma_x=0.1..1"], "not a range"),
        (["objective.gamma_x=1..0.1"], "a lower and an upper end"),
        (["objective.gamma_x=0..1:log"], "above 0"),
        (["objective.map=kl..samples"], "only numbers"),
        (["objective.active=2,4"], r"objective\.rho=dual"),
        ([], "0 axes, seeds = 1: expected 1 or more"),
    ],
)
def test_axes_that_make_no_sweep(
    texts: list[str], message: str, pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    with pytest.raises(VspairError, match=message):
        run(Sweep(tmp_path / "new", axes(*texts), base), *pairs)
    assert not (tmp_path / "new").exists()


def test_a_grid_ends_in_a_table_and_a_figure(finished: Path, pairs: Pairs) -> None:
    document = json.loads((finished / "sweep.json").read_text())
    assert document["command"] == "vspair sweep"
    settings = [tuple(point["settings"].values()) for point in document["points"]]
    assert settings == [(0.001, 2.0), (0.001, 64.0), (1.0, 2.0), (1.0, 64.0)]
    for row in document["rows"]:
        assert {"mse", "mse_mean", "crps", "nnz", "active", "coverage_90"} <= set(row["scores"])
        assert row["attempts"] == 1
    text = (finished / "README.md").read_text()
    assert text.count("\n| ") == 5
    least = min(row["scores"]["mse_mean"] for row in document["rows"])
    assert f"**{least:.4g}**" in text
    assert (finished / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_of_pairs_that_no_trial_has_seen(finished: Path, pairs: Pairs) -> None:
    x, y = pairs
    train, held = split(len(x), 0.2, 0)
    row = record.rows(finished)[0]
    folder = finished / "trials" / row["trial"]
    trial = vspair.runs.Run(folder)
    parts = split_pairs(data.Pairs(x[train], y[train]), trial.config)
    assert trial.pairs == fingerprint(*(t for part in parts for t in (part.x, part.y)))
    model = vspair.load(folder)
    assert vspair.evaluate(model, x[held], y[held]) == row["scores"]


def test_what_is_finished_is_not_trained_again(
    grid: Path, pairs: Pairs, base: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scores(grid)
    monkeypatch.setattr(sweeps, "fit", None)
    said: list[str] = []
    run(Sweep(grid, GRID, base), *pairs, say=said.append)
    assert scores(grid) == before
    assert not said


def test_a_damaged_row_is_named(grid: Path, pairs: Pairs, base: Config) -> None:
    path = next(grid.glob("trials/*/scores.json"))
    path.write_text('{"trial": ')
    with pytest.raises(VspairError, match=r"scores.json is damaged: .*Remove it, and the trial"):
        record.rows(grid)
    path.unlink()
    assert len(record.rows(grid)) == 3


def test_a_larger_grid_adds_trials(grid: Path, pairs: Pairs, base: Config) -> None:
    before, said = scores(grid), list[str]()
    more = axes("objective.gamma_x=0.001,1", "objective.beta0=2,64", "objective.half=true,false")
    text = run(Sweep(grid, more, base), *pairs, say=said.append)
    assert len(said) == 4
    assert scores(grid).items() >= before.items()
    assert "| `objective.gamma_x` | `objective.beta0` | `objective.half` |" in text
    assert text.count("\n| ") == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2}, "training.epochs is 1 there and 2 here"),
        ({"held_out": 0.5}, "held_out is 0.2 there and 0.5 here"),
        ({"trials": 3}, "kind is grid there and search here"),
        ({"axes": axes("objective.half=false")}, "objective.gamma_x is 1.0 there and 0.5 here"),
        ({}, "pairs is 48 pairs"),
    ],
)
def test_settings_that_contradict_the_folder_are_refused(
    finished: Path, pairs: Pairs, base: Config, changes: dict[str, Any], message: str
) -> None:
    x, y = pairs if changes else (pairs[0], 2 * pairs[1])
    if "axes" in changes:
        base = configs.override(base, {"objective": {"gamma_x": 0.5}})
    with pytest.raises(VspairError, match=message):
        run(dataclasses.replace(Sweep(finished, GRID, base), **changes), x, y)


def test_a_training_that_fails_is_a_result(pairs: Pairs, base: Config, tmp_path: Path) -> None:
    rates = axes("training.learning_rate=0.001,1e30")
    text = run(Sweep(tmp_path / "s", rates, base, seeds=2), *pairs)
    assert "Failed" in text
    assert "diverged" in text
    points = json.loads((tmp_path / "s" / "sweep.json").read_text())["points"]
    assert [(p["seeds"], len(p["failed"])) for p in points] == [(2, 0), (0, 2)]
    assert points[0]["spread"]["mse"] > 0


def test_a_full_disk_is_no_result(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vspair.runs.save_file", full)
    with pytest.raises(VspairError, match="No space left"):
        run(Sweep(tmp_path / "s", GRID, base), *pairs)
    monkeypatch.undo()
    assert not record.rows(tmp_path / "s")
    run(Sweep(tmp_path / "s", GRID, base), *pairs)
    assert len(record.rows(tmp_path / "s")) == 4


def test_two_processes_train_each_trial_once(
    finished: Path, pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    """Both find the same numbers as one process."""
    said: list[str] = []
    run(Sweep(tmp_path / "s", GRID, base), *pairs, jobs=2, device="cpu", say=said.append)
    assert len(said) == 4
    assert scores(tmp_path / "s") == scores(finished)
    assert [row["attempts"] for row in record.rows(tmp_path / "s")] == [1] * 4


def test_a_killed_process_is_taken_over_to_the_same_bits(
    pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    long = configs.override(base, {"training": {"epochs": 60}})
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    for name, values in zip("xy", pairs, strict=True):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    (tmp_path / "c.toml").write_text(configs.to_toml(dataclasses.asdict(long)))
    words = "sweep --x x.npy --y y.npy --config c.toml --out killed --set objective.beta0=2"
    command = [sys.executable, "-m", "vspair", *words.split(), "--device", "cpu"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not list(folder.glob("trials/*/checkpoint.safetensors")):
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    trial = next(folder.glob("trials/*"))
    assert 0 <= len(read_metrics(trial / "metrics.jsonl")) < 60
    sweep = Sweep(folder, axes("objective.beta0=2"), long)
    run(sweep, *pairs, device="cpu")
    run(dataclasses.replace(sweep, folder=whole), *pairs, device="cpu")
    assert [row["attempts"] for row in record.rows(folder)] == [2]
    assert scores(folder) == scores(whole)
    assert (trial / "weights.safetensors").read_bytes() == (
        whole / "trials" / trial.name / "weights.safetensors"
    ).read_bytes()
    assert len(read_metrics(trial / "metrics.jsonl")) == 60


def test_a_stopped_sweep_frees_its_trial(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(tmp_path / "s", GRID, base)

    monkeypatch.setattr(sweeps, "evaluate", stop)
    with pytest.raises(Interrupted):
        run(sweep, *pairs)
    assert not record.rows(sweep.folder)
    monkeypatch.setattr(sweeps, "evaluate", evaluate)
    run(sweep, *pairs)
    assert sorted(row["attempts"] for row in record.rows(sweep.folder)) == [1, 1, 1, 2]


def test_a_trial_that_was_hardly_begun_begins_anew(
    grid: Path, finished: Path, pairs: Pairs, base: Config
) -> None:
    one, two, *_ = sorted((grid / "trials").iterdir())
    for trial in (one, two):
        (trial / "scores.json").unlink()
    (one / "config.toml").unlink()
    (two / "checkpoint.safetensors").write_bytes(b"cut short")
    run(Sweep(grid, GRID, base), *pairs, device="cpu")
    assert scores(grid) == scores(finished)


def test_one_of_many_gets_a_claim(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: Claim.take(tmp_path, "a"), range(64)))
    assert sum(claim is not None for claim in taken) == 1
    for claim in filter(None, taken):
        with claim:
            pass
    assert Claim.take(tmp_path, "a") is not None


@pytest.mark.parametrize(
    ("holder", "age", "free"),
    [
        ({"place": "elsewhere", "pid": 1}, 0.0, False),
        ({"place": "elsewhere", "pid": 1}, STALE + 60, True),
        ({"place": claims._place(), "pid": os.getpid()}, 0.0, False),
        ({"place": claims._place(), "pid": os.getpid()}, STALE + 60, True),
        ({"place": claims._place(), "pid": 2**22 + 1}, 0.0, True),
        ({"free": True}, 0.0, True),
        ({}, 0.0, False),
        ({}, STALE + 60, True),
    ],
)
def test_who_may_take_over(holder: dict[str, Any], age: float, free: bool, tmp_path: Path) -> None:
    claim = Claim.take(tmp_path, "a")
    assert claim is not None
    with claim:
        claim.path.write_text(json.dumps(holder) if holder else "{cut sho")
        os.utime(claim.path, (time.time() - age,) * 2)
        other = Claim.take(tmp_path, "a")
        assert (other is not None) == free
        assert claim.held != free
    if other is not None:
        with other:
            assert other.held
            assert [path.name for path in claim.path.parent.iterdir()] == ["2"]


def test_who_has_lost_a_claim_stops_and_writes_nothing(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that slept, while another one went on."""
    monkeypatch.setattr(claims, "PULSE", 0.05)
    long = configs.override(base, {"training": {"epochs": 100_000}})
    sweep = Sweep(tmp_path / "s", axes("objective.beta0=2"), long).resolved(*pairs)
    (trial,) = sweep.trials_of(sweep.grid())
    claim = Claim.take(sweep.folder, trial.path.name)
    assert claim is not None
    threading.Timer(0.5, (claim.path.parent / "2").touch).start()
    with claim:
        sweeps._finish(sweep, trial, claim, [*pairs, *pairs], "cpu")
    assert trial.row is None
    assert not claim.held


@pytest.mark.parametrize("name", ["paper", "calibrated", "gaussian-paper"])
def test_a_base_by_name(name: str, pairs: Pairs, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, axes("objective.beta0=2"), name, epochs=3).resolved(*pairs)
    assert sweep.config.training.epochs == 3
    assert (sweep.config.model.gate == "exponential") == ("paper" in name)


@pytest.fixture
def program(
    pairs: Pairs,
    base: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Any:
    for name, values in zip("xy", pairs, strict=True):
        np.save(tmp_path / f"{name}.npy", values.numpy())
    np.save(tmp_path / "short.npy", pairs[1][:-1].numpy())
    (tmp_path / "c.toml").write_text(configs.to_toml(dataclasses.asdict(base)))
    monkeypatch.chdir(tmp_path)

    def call(words: str, code: int) -> str:
        monkeypatch.setattr(sys, "argv", ["vspair", *words.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        assert stopped.value.code == code, shown
        return shown.out + shown.err

    return call


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--set objective.beta0=1 --y short.npy", "x has 48 entries and y has 47"),
        ("--set objective.beta=1", "Did you mean objective.beta0"),
        ("--set objective.beta0=1 --trials 3", "--trials 3 without --search: a grid"),
        ("--set foo", "'foo': there is no =; expected KEY=VALUE"),
        ("--set objective.beta0=1..2", "not a range"),
        ("--set objective.beta0=1 --preset foo", "'foo': expected one of paper, calibrated, ct-"),
        ("--set objective.beta0=1 --preset ../configs/demo", "heat-paper, mnist-calibrated"),
        (
            "--set objective.beta0=1 --preset paper --config c.toml",
            "--preset paper beside --config c.toml: leave out one of them.",
        ),
        ("--set objective.beta0=1 --metric nnz", "metric = 'nnz': expected one of mse_mean, mse,"),
        ("--set objective.beta0=1 --held-out 0", "held_out = 0.0"),
        ("--set objective.beta0=1 --held-out nan", "held_out = nan"),
        ("--set objective.beta0=1 --jobs 0", "'--jobs'"),
        ("", "'--set'"),
    ],
)
def test_mistakes_end_in_one_clear_line(program: Any, words: str, message: str) -> None:
    assert message in program(f"sweep --x x.npy --y y.npy {words} --out new", 2)
    assert not Path("new").exists()


def test_the_command(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "sweep --x x.npy --y y.npy --out new --config c.toml --set objective.half=true,false"
    shown = program(words, 0)
    assert "mse_mean" in shown
    assert f"Made by `vspair {words}`" in shown
    assert json.loads(Path("new/sweep.json").read_text())["command"] == f"vspair {words}"

    monkeypatch.setattr(sweeps, "run", stop)
    assert "the same command continues" in program(words, 130)


def test_the_command_says_when_every_trial_has_failed(program: Any) -> None:
    words = "sweep --x x.npy --y y.npy --out new --config c.toml --set training.learning_rate="
    shown = program(f"{words}1e30,1e31", 2)
    assert "diverged" in shown
    assert shown.endswith("Error: Every trial has failed. new/README.md says why.\n")
    assert "Every trial" not in program(f"{words}0.001,1e30", 0)
    assert "Every trial" in program(f"{words}1e30", 2), "what succeeded was not asked for"
