"""Searches: what optuna proposes and is told, alone and in processes that share a study."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from vspair import records as record
from vspair import sweeps
from vspair.config import Config
from vspair.errors import VspairError
from vspair.sweeps import Axis, Sweep, run
from vspair.training.interrupts import Interrupted

Pairs = tuple[Tensor, Tensor]


def axes(*texts: str) -> tuple[Axis, ...]:
    return tuple(map(Axis.parse, texts))


def scores(folder: Path) -> dict[str, Any]:
    return {row["trial"]: row.get("scores") for row in record.rows(folder)}


SEARCH = axes(
    "training.learning_rate=1e-4..1e-2:log", "model.x_size=4..16", "objective.half=true,false"
)


def test_a_stopped_search_goes_on_as_it_would_have(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sweep(tmp_path / "whole", SEARCH, base, trials=12, metric="crps")
    run(whole, *pairs)
    stopped = dataclasses.replace(whole, folder=tmp_path / "stopped")
    plain, calls = sweeps._finish, [0]

    def finish(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == 11:
            raise Interrupted
        plain(*arguments)

    monkeypatch.setattr(sweeps, "_finish", finish)
    with pytest.raises(Interrupted):
        run(stopped, *pairs)
    assert len(record.rows(stopped.folder)) == 10
    with (stopped.folder / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code": 4, "wor')  # killed while it wrote
    text = run(stopped, *pairs)
    assert scores(stopped.folder) == scores(whole.folder)
    assert len(record.rows(stopped.folder)) == 12
    assert (stopped.folder / "study.journal").exists()
    assert text.splitlines()[6].startswith("| **")
    with pytest.raises(VspairError, match="axes is "):
        run(dataclasses.replace(stopped, axes=SEARCH[:2]), *pairs)


def test_a_search_tells_optuna_the_scores(pairs: Pairs, base: Config, tmp_path: Path) -> None:
    rates = axes("training.learning_rate=1e-3,1e30")
    sweep = Sweep(tmp_path / "s", rates, base, trials=5, seeds=2).resolved(*pairs)
    run(sweep, *pairs)
    study = sweeps._Search(sweep).study
    rows = [row["scores"]["mse_mean"] for row in record.rows(sweep.folder) if "scores" in row]
    values = {trial.state.name: trial.value for trial in study.get_trials()}
    assert values == {"COMPLETE": pytest.approx(sum(rows) / 2, rel=1e-12), "FAIL": None}
    assert len(study.get_trials()) == 5


def test_a_search_without_optuna_names_the_extra(
    pairs: Pairs, base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(VspairError, match=r"pip install 'vspair\[sweep\]'"):
        run(Sweep(tmp_path / "s", SEARCH, base, trials=2), *pairs)
    assert not (tmp_path / "s").exists()


def test_two_processes_share_one_search(pairs: Pairs, base: Config, tmp_path: Path) -> None:
    """Each proposal is trained once, and optuna is told its score."""
    sweep, said = Sweep(tmp_path / "s", SEARCH, base, trials=6).resolved(*pairs), list[str]()
    run(sweep, *pairs, jobs=2, device="cpu", say=said.append)
    rows = record.rows(sweep.folder)
    assert len(said) == len(rows) == 6
    assert [row["attempts"] for row in rows] == [1] * 6
    search = sweeps._Search(sweep)
    told = {trial.number: trial.value for trial in search.study.get_trials()}
    assert sorted(told) == [*range(6)]
    for number, point in search.points().items():
        (trial,) = sweep.trials_of([point])
        assert trial.row is not None
        assert told[number] == trial.row["scores"]["mse_mean"]


def test_the_table_says_how_many_proposals_are_repeated(
    pairs: Pairs, base: Config, tmp_path: Path
) -> None:
    grid = axes("objective.gamma_x=0.001,1", "objective.half=true,false")
    text = run(Sweep(tmp_path / "s", grid, base, trials=7), *pairs)
    points = json.loads((tmp_path / "s" / "sweep.json").read_text())["points"]
    assert len(points) <= 4
    assert f"repeat an earlier point, and were not trained: {7 - len(points)}." in text
    other = Sweep(tmp_path / "other", SEARCH, base, trials=2)
    assert "repeat" not in run(other, *pairs)
