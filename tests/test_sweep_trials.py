"""What a study can rely on when its points are trained by several workers."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vspair.errors import VspairError
from vspair.sweeps import Trial, Trials
from vspair.training.interrupts import Interrupted

UNION = [{"alpha": a, "beta": b} for a in (1, 2) for b in (1, 2)] + [{"gamma": 0.1, "depth": 2}]


@dataclass
class Work:
    """Scores a point by its settings, and notes each call in a file."""

    seconds: float = 0.0

    def __call__(self, trial: Trial) -> dict[str, float] | None:
        with (trial.folder.parents[1] / "calls").open("a") as file:
            file.write(json.dumps(trial.settings) + "\n")
        time.sleep(self.seconds)
        return {"score": float(sum(trial.settings.values()))}


def calls(trials: Trials) -> list[Any]:
    return [json.loads(line) for line in (trials.folder / "calls").read_text().splitlines()]


@pytest.fixture
def trials(tmp_path: Path) -> Trials:
    return Trials(tmp_path / "s", {"slices": 3}, "score", UNION)


def test_points_are_trained_in_their_order_and_once(trials: Trials) -> None:
    seen: list[Any] = []
    rows = trials.run(Work(), notice=seen.append)
    assert seen == rows
    assert [row["settings"] for row in rows] == calls(trials) == UNION
    assert [row["scores"] for row in rows] == [{"score": float(sum(p.values()))} for p in UNION]
    assert len({row["trial"] for row in rows}) == 5
    assert trials.run(Work(), notice=seen.append) == rows
    assert len(calls(trials)) == 5


def test_other_settings_are_refused(trials: Trials) -> None:
    trials.run(Work())
    with pytest.raises(VspairError, match=r"slices is 3 there and 4 here\. Name another folder"):
        Trials(trials.folder, {"slices": 4}, "score", UNION).run(Work())


def full_disk() -> VspairError:
    error = VspairError("Could not write: no space left.")
    error.__context__ = OSError(28, "No space left on device")
    return error


@pytest.mark.parametrize("end", [None, Interrupted(), full_disk(), TypeError("a bug")])
def test_what_is_no_result_is_continued_in_its_folder(trials: Trials, end: Any) -> None:
    folders: list[Path] = []

    def stop_at_the_third(trial: Trial) -> Any:
        folders.append(trial.folder)
        if len(folders) == 3 and end is not None:
            raise end
        return {"score": 1.0} if len(folders) != 3 else None

    if end is None:
        assert len(trials.run(stop_at_the_third)) == 2
    else:
        with pytest.raises(type(end)):
            trials.run(stop_at_the_third)
    rows = trials.run(stop_at_the_third)
    assert len(rows) == 5
    assert folders.count(folders[2]) == 2
    assert sorted(row["attempts"] for row in rows) == [1, 1, 1, 1, 2]


def test_an_error_is_a_result(trials: Trials) -> None:
    def fail(_: Trial) -> Any:
        raise VspairError("training has diverged.\nLower the rate.")

    rows = trials.run(fail)
    assert [row["error"] for row in rows] == ["training has diverged."] * 5
    assert trials.run(Work()) == rows


def test_no_trial_begins_after_the_deadline(trials: Trials) -> None:
    assert len(trials.run(Work(0.2), deadline=time.monotonic() + 0.5)) < 5
    assert len(trials.run(Work())) == 5


def test_commands_that_start_at_once_train_each_point_once(trials: Trials) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_sweep_trials import *\n"
        "Trials(Path(sys.argv[2]), {'slices': 3}, 'score', UNION).run(Work(0.05))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(trials.folder)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    assert sorted(map(str, calls(trials))) == sorted(map(str, UNION))
    assert [row["attempts"] for row in trials.run(Work())] == [1] * 5


def test_a_worker_that_died_before_its_first_heartbeat_is_replaced(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vspair.sweeps.trials.GRACE", 1)
    assert not trials.run(Work(), deadline=0.0)
    with pytest.warns(UserWarning, match="Heartbeat"):
        trials._study().ask()
    rows = trials.run(Work())
    assert (rows[-1]["settings"], rows[-1]["attempts"]) == (UNION[0], 2)
    assert len(rows) == len(calls(trials)) == 5


def propose(trial: Any) -> dict[str, float]:
    return {"x": trial.suggest_float("x", -1.0, 1.0)}


def test_a_search_is_told_its_scores(tmp_path: Path) -> None:
    search = Trials(tmp_path / "s", {}, "score", propose=propose, proposals=15)
    rows = search.run(lambda trial: {"score": trial.settings["x"] ** 2})
    study = search._study()
    assert [trial.value for trial in study.trials] == [row["scores"]["score"] for row in rows]
    assert len(rows) == 15
    assert study.best_value < 0.05
