"""Sweeps on pairs: grids and searches, stopped, killed, shared and continued."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import vspair
from vspair import cli, data, sweeps
from vspair import config as configs
from vspair.config import Config
from vspair.data import fingerprint, split
from vspair.errors import VspairError
from vspair.evaluation import evaluate
from vspair.fitting import split_pairs
from vspair.runs import read_metrics
from vspair.sweeps import Axis, Sweep, run
from vspair.sweeps import sweep as of_pairs
from vspair.training.interrupts import Interrupted

Pairs = tuple[Tensor, Tensor]


def axes(*texts: str) -> tuple[Axis, ...]:
    return tuple(map(Axis.parse, texts))


GRID = axes("objective.gamma_x=0.001,1", "objective.beta0=2,64")
SEARCH = axes(
    "training.learning_rate=1e-4..1e-2:log", "model.x_size=4..16", "objective.half=true,false"
)


@pytest.fixture(scope="module")
def finished(pairs: Pairs, base: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of two by two that is trained; tests work on copies of it."""
    folder = tmp_path_factory.mktemp("sweeps") / "grid"
    run(Sweep(folder, GRID, base), *pairs, device="cpu", command="vspair sweep")
    return folder


@pytest.fixture
def grid(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "grid"))


def stop(*_: Any, **__: Any) -> Any:
    raise Interrupted


def points(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "sweep.json").read_text())["points"]


def scores(folder: Path) -> dict[str, Any]:
    return {point["trial"]: point.get("scores") for point in points(folder)}


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
    for point in document["points"]:
        assert {*sweeps.METRICS, "nnz", "active", "coverage_90"} <= set(point["scores"])
        assert point["attempts"] == 1
    text = (finished / "README.md").read_text()
    assert text.count("\n| ") == 5
    least = min(point["scores"]["mse_mean"] for point in document["points"])
    assert f"**{least:.4g}**" in text
    assert (finished / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_scores_are_of_pairs_that_no_trial_has_seen(finished: Path, pairs: Pairs) -> None:
    x, y = pairs
    train, held = split(len(x), 0.2, 0)
    point = points(finished)[0]
    folder = finished / "trials" / point["trial"]
    trial = vspair.runs.Run(folder)
    parts = split_pairs(data.Pairs(x[train], y[train]), trial.config)
    assert trial.pairs == fingerprint(*(t for part in parts for t in (part.x, part.y)))
    model = vspair.load(folder)
    assert vspair.evaluate(model, x[held], y[held]) == point["scores"]


def test_a_larger_grid_adds_trials(grid: Path, pairs: Pairs, base: Config) -> None:
    before, said = scores(grid), list[str]()
    text = run(
        Sweep(grid, (*GRID, *axes("objective.half=true,false")), base), *pairs, say=said.append
    )
    assert len(said) == 4
    assert scores(grid).items() >= before.items()
    assert "| `objective.gamma_x` | `objective.beta0` | `objective.half` |" in text
    assert text.count("\n| ") == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2}, "training.epochs is 1 there and 2 here"),
        ({"held_out": 0.5}, "held_out is 0.2 there and 0.5 here"),
        ({"seeds": 2}, "seeds is 1 there and 2 here"),
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


def test_a_training_that_fails_is_a_result(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = axes("training.learning_rate=0.001,1e30")
    sweep = Sweep(tmp_path / "s", rates, base, seeds=2)
    text = run(sweep, *pairs)
    assert "Failed" in text
    good, bad = points(sweep.folder)
    assert "diverged" in bad["error"]
    assert good["scores"]["mse_mean_std"] > 0
    assert f"± {good['scores']['mse_mean_std']:.2g}" in text
    monkeypatch.setattr(of_pairs, "fit", None)
    assert run(sweep, *pairs) == text, "a result is not tried again"


def test_two_processes_train_each_trial_once(
    finished: Path, pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    """Both find the same numbers as one process."""
    said: list[str] = []
    run(Sweep(tmp_path / "s", GRID, base), *pairs, jobs=2, device="cpu", say=said.append)
    assert len(said) == 4
    assert scores(tmp_path / "s") == scores(finished)
    assert [point["attempts"] for point in points(tmp_path / "s")] == [1] * 4


def test_a_killed_process_is_taken_over_to_the_same_bits(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr("vspair.sweeps.trials.GRACE", 1)
    sweep = Sweep(folder, axes("objective.beta0=2"), long)
    run(sweep, *pairs, device="cpu")
    run(dataclasses.replace(sweep, folder=whole), *pairs, device="cpu")
    assert [point["attempts"] for point in points(folder)] == [2]
    assert scores(folder) == scores(whole)
    assert (trial / "weights.safetensors").read_bytes() == (
        whole / "trials" / trial.name / "weights.safetensors"
    ).read_bytes()
    assert len(read_metrics(trial / "metrics.jsonl")) == 60


@pytest.mark.parametrize("damage", ["config.toml", "checkpoint.safetensors"])
def test_a_trial_that_cannot_be_continued_begins_anew(
    damage: str,
    finished: Path,
    pairs: Pairs,
    base: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep = Sweep(tmp_path / "s", GRID, base)
    monkeypatch.setattr(of_pairs, "evaluate", stop)
    with pytest.raises(Interrupted):
        run(sweep, *pairs)
    next(sweep.folder.glob(f"trials/*/{damage}")).write_bytes(b"cut short")
    monkeypatch.setattr(of_pairs, "evaluate", evaluate)
    run(sweep, *pairs, device="cpu")
    assert scores(sweep.folder) == scores(finished)
    assert sorted(point["attempts"] for point in points(sweep.folder)) == [1, 1, 1, 2]


def test_a_stopped_search_goes_on_as_it_would_have(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path / "whole", SEARCH, base, trials=14, metric="crps")
    run(whole, *pairs)
    stopped, calls = dataclasses.replace(whole, folder=tmp_path / "stopped"), list[int]()

    def stop_at_the_eleventh(*arguments: Any, **options: Any) -> dict[str, float]:
        calls.append(1)
        return stop() if len(calls) == 11 else evaluate(*arguments, **options)

    monkeypatch.setattr(of_pairs, "evaluate", stop_at_the_eleventh)
    with pytest.raises(Interrupted):
        run(stopped, *pairs)
    text = run(stopped, *pairs)
    found = [[point["scores"] for point in points(s.folder)] for s in (stopped, whole)]
    assert found[0] == found[1]
    assert len(found[0]) == 14
    assert text.splitlines()[6].startswith("| **")
    with pytest.raises(VspairError, match="axes is "):
        run(dataclasses.replace(stopped, axes=SEARCH[:2]), *pairs)


def test_two_processes_share_one_search(pairs: Pairs, base: Config, tmp_path: Path) -> None:
    """Each proposal is trained once; a larger number of trials adds to them."""
    sweep, said = Sweep(tmp_path / "s", SEARCH, base, trials=6), list[str]()
    run(sweep, *pairs, jobs=2, device="cpu", say=said.append)
    assert len(said) == len(points(sweep.folder)) == 6
    run(dataclasses.replace(sweep, trials=8), *pairs, device="cpu", say=said.append)
    assert len(said) == len(points(sweep.folder)) == 8


def test_the_table_says_how_many_proposals_are_repeated(
    pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    choices = axes("objective.gamma_x=0.001,1", "objective.half=true,false")
    text = run(Sweep(tmp_path / "s", choices, base, trials=7), *pairs)
    found = len(points(tmp_path / "s"))
    assert found <= 4
    assert f"repeat an earlier point, and were not trained: {7 - found}." in text
    assert "repeat" not in run(Sweep(tmp_path / "other", SEARCH, base, trials=2), *pairs)


@pytest.mark.parametrize("trials", [0, 2])
def test_a_sweep_without_optuna_names_the_extra(
    trials: int, pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(VspairError, match=r"pip install 'vspair\[sweep\]'"):
        run(Sweep(tmp_path / "s", GRID, base, trials=trials), *pairs)
    assert not (tmp_path / "s").exists()


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
        (
            "--set objective.beta0=1 --preset foo",
            "'foo': expected one of anchored, calibrated, paper, ct-",
        ),
        ("--set objective.beta0=1 --preset ../configs/heat-paper", "heat-paper, mnist-calibrated"),
        (
            "--set objective.beta0=1 --preset paper --config c.toml",
            "--preset paper beside --config c.toml: leave out one of them.",
        ),
        (
            "--set objective.beta0=1 --metric nnz",
            "metric = 'nnz': expected one of mse_mean, mse_sample,",
        ),
        ("--set anchored.beta=0.5,1 --preset anchored", "paired models, not the anchored one"),
        ("--set model.kind=vsPAIR,anchored --config c.toml", "call 'vspair fit' with a --config"),
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

    database = "sqlite:///password.db"
    assert "`vspair sweep --storage URL " in program(
        words.replace("sweep", f"sweep --storage {database}").replace("new", "other"), 0
    )
    assert Path("password.db").exists()
    assert "cannot open the storage of other: ArgumentError" in program(
        words.replace("sweep", "sweep --storage nowhere").replace("new", "other"), 2
    )

    monkeypatch.setattr(sweeps, "run", stop)
    assert "the same command continues" in program(words, 130)


def test_the_command_says_when_every_trial_has_failed(program: Any) -> None:
    words = "sweep --x x.npy --y y.npy --out new --config c.toml --set training.learning_rate="
    shown = program(f"{words}1e30,1e31", 2)
    assert "diverged" in shown
    assert shown.endswith("Error: Every trial has failed. new/README.md says why.\n")
    assert "Every trial" not in program(f"{words}0.001,1e30", 0)
    assert "Every trial" in program(f"{words}1e30", 2), "what succeeded was not asked for"
