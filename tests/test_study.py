"""What every study promises: records that do not lie, and a report of what they say."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.studies.answers import Question, digest
from vspair.studies.results import Row, metrics_of, over_seeds
from vspair.studies.study import Records, Report, Stage, Study, Workspace
from vspair.studies.trainings import has_ended, train_anchored, weights_digest
from vspair.training.doubt import GrainStage


@dataclass(frozen=True)
class Scale:
    """How much the study of these tests computes."""

    epochs: int = 1
    samples: int = 5
    late: bool = False


Work = Workspace[Scale, int]


def train(work: Work) -> bool:
    key = str(work.scale.epochs)
    if not work.answers.has("model", key):
        work.answers.write("model", key, {"row": {"epochs": work.scale.epochs}})
    return True


def answer(work: Work) -> bool:
    trained = float(work.answers.read("model")["row"]["epochs"])
    key = f"{trained} {work.scale.samples}"
    if not work.answers.has("answer", key):
        work.answers.write("answer", key, {"row": {"value": trained * work.scale.samples}})
    return not work.scale.late


def report(work: Work, records: Records) -> Report:
    value = float(work.answers.read("answer")["row"]["value"])
    row = Row("ridge", "", "mse_mean", value)
    return Report([row], "Words.", {}, {"epochs": work.scale.epochs})


STUDY = Study[Scale, int](
    name="test",
    title="A study",
    load=lambda scale, folder: 7 if folder is None else 8,
    describe=lambda data: {"data": data},
    stages={
        "train": Stage(train, ("epochs",), grows=("epochs",)),
        "answers": Stage(answer, ("samples",), renews=("samples",), reads=("train",)),
    },
    report=report,
    draw=lambda numbers, folder: [],
    captions={},
)

Run = Callable[..., str | None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(
        scale: Scale | None = None, only: str = "", data_dir: Path | None = None
    ) -> str | None:
        out, folder = tmp_path / "out", tmp_path / "runs"
        return STUDY.reproduce(
            scale or Scale(), out=out, folder=folder, only=only, data_dir=data_dir, device="cpu"
        )

    return call


def value(folder: Path) -> float:
    return float(json.loads((folder / "out/summary.json").read_text())["rows"][0]["value"])


def test_a_report_says_who_made_it(run: Run, tmp_path: Path) -> None:
    text = run()
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    assert text is not None
    assert text.startswith("# A study\n\nMade by ")
    assert summary["commit"] in text
    assert summary["machine"] in text
    assert summary["scale"] == {"epochs": 1, "data": {"data": 7}}
    assert value(tmp_path) == 5


def test_a_second_call_changes_no_record(run: Run, tmp_path: Path) -> None:
    run()
    before = (tmp_path / "runs/records.json").read_text()
    run()
    assert (tmp_path / "runs/records.json").read_text() == before


def test_answers_that_are_older_than_a_training_are_not_reported(run: Run, tmp_path: Path) -> None:
    run()
    more = Scale(epochs=3)
    run(more, only="train")
    with pytest.raises(VspairError, match=r"answers did not come to an end, or is older.*--only"):
        run(more, only="report")
    assert value(tmp_path) == 5
    run(more, only="answers,report")
    assert value(tmp_path) == 15


def test_answers_that_were_stopped_are_not_reported(run: Run, tmp_path: Path) -> None:
    run()
    assert run(Scale(samples=9, late=True), only="answers") is None
    with pytest.raises(VspairError, match="answers did not come to an end"):
        run(only="report")
    run(Scale(samples=9), only="answers,report")
    assert value(tmp_path) == 9


@pytest.mark.parametrize("only", ["", "train", "train,answers"])
def test_what_cannot_be_continued_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, only: str
) -> None:
    run(Scale(epochs=3), only="train")
    with pytest.raises(VspairError, match="epochs is 3 there and 1 here"):
        run(Scale(epochs=1), only=only)
    with pytest.raises(VspairError, match="data is 7 there and 8 here"):
        run(Scale(epochs=3), only=only, data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_unknown_stages_and_empty_folders_are_explained(run: Run) -> None:
    with pytest.raises(VspairError, match=r"only = 'figures': expected some of train, answers"):
        run(only="figures")
    with pytest.raises(VspairError, match=r"nothing in .* to report on.*--only train,answers"):
        run(only="report")


def test_damaged_records_are_named(run: Run, tmp_path: Path) -> None:
    run()
    (tmp_path / "runs/records.json").write_text('{"stages": ')
    with pytest.raises(VspairError, match=r"records\.json is damaged"):
        run()


def test_a_row_has_a_name_of_the_vocabulary() -> None:
    with pytest.raises(KeyError, match="mse30"):
        replace(Row("ridge", "", "mse_mean", 1.0), metric="mse30")


def test_the_metrics_of_an_answer_are_means_correlations_and_shares() -> None:
    scores = {"variance": [1, 2, 3, 4], "mse_mean": [2, 4, 6, 8], "mse_sample": [4, 3, 2, 1]}
    answer = {
        "scores": {name: np.array(values, np.float32) for name, values in scores.items()},
        "row": {"field_variance": np.array(10.0), "parameters": np.array(7)},
    }
    found = metrics_of(answer)
    assert (found["mse_mean"], found["parameters"]) == (5, 7)
    assert found["uncertainty_error_r"] == pytest.approx(1)
    assert found["uncertainty_error_r_sample"] == pytest.approx(-1)
    assert found["relative_mse_mean"] == pytest.approx(0.5)
    assert found["relative_mse_sample"] == pytest.approx(0.25)


def test_rows_over_seeds_have_mean_deviation_and_the_papers_value() -> None:
    found = [{"mse_mean": 1.0, "nnz": 4.0}, {"mse_mean": 3.0, "nnz": 4.0}]
    error, count = over_seeds(found, {"nnz": 5.0}, model="vsPAIR", preset="paper")
    assert (error.value, error.spread, error.seeds, error.paper) == (2, 2**0.5, 2, None)
    assert (count.value, count.spread, count.paper) == (4, 0, 5)
    assert error.label == "vsPAIR (paper)"


def test_a_question_is_known_again_by_all_that_it_asks() -> None:
    pairs = Pairs(torch.arange(12.0).reshape(6, 2), torch.ones(6, 3))
    asked = Question(pairs, torch.tensor([0]))
    others = [
        replace(asked, samples=7),
        replace(asked, block=2),
        replace(asked, image_quality=True),
        replace(asked, pairs=Pairs(pairs.x.reshape(6, 1, 2), pairs.y)),
    ]
    assert len({question.key for question in (asked, *others)}) == 5
    assert digest(1, 12) != digest(11, 2)


def test_records_of_an_earlier_version_ask_for_another_run(run: Run, tmp_path: Path) -> None:
    run()
    path = tmp_path / "runs/records.json"
    records = json.loads(path.read_text())
    for stage in records["stages"].values():
        del stage["last"], stage["finished"]
    path.write_text(json.dumps(records))
    with pytest.raises(VspairError, match="answers did not come to an end"):
        run(only="report")
    assert run() is not None


# -- trainings by fit ------------------------------------------------------------------------


def test_a_training_by_fit_begins_in_time_and_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(60, 3)
    pairs, groups = Pairs(x, x @ torch.randn(3, 4)), torch.arange(60) // 3
    work = Work(Scale(), lambda: 0, tmp_path, torch.device("cpu"))

    def train(name: str) -> bool:
        return train_anchored(work, name, pairs, minutes=0.001, seed=0, groups=groups)

    late = replace(work, deadline=0.0)
    assert not train_anchored(late, "once", pairs, minutes=0.001, seed=0)
    assert not (tmp_path / "once").exists()
    assert train("once")
    with monkeypatch.context() as patch:
        patch.setattr(GrainStage, "start", lambda _: 1 / 0)  # in the last of its stages
        with pytest.raises(ZeroDivisionError):
            train("twice")
    assert not has_ended(work, "twice")
    work.worked = False
    assert train("twice")
    assert work.worked
    assert has_ended(work, "twice")
    assert weights_digest(work, "twice") == weights_digest(work, "once")
    work.worked = False
    assert train("twice")
    assert not work.worked


# -- results that stand ----------------------------------------------------------------------


def report_joined(work: Work, records: Records) -> Report:
    """Report on the stages that were run: each has a method, and an array of a figure."""
    rows = [Row(name, "", "mse_mean", float(work.scale.epochs)) for name in records.stages]
    scale = {"epochs": work.scale.epochs, "samples": work.scale.samples}
    numbers = {"shown": {row.model: np.array([row.value], np.float16) for row in rows}}
    return Report(
        rows, lambda rows, scale: f"{len(rows)} rows, {scale['samples']}.", numbers, scale
    )


def note(work: Work) -> bool:
    work.note_work()
    return True


JOINED = replace(
    STUDY,
    stages={
        "old": Stage(note, ("epochs", "samples")),
        "new": Stage(note, ("epochs",)),
    },
    report=report_joined,
    joins=True,
)


def call(folder: Path, runs: str, only: str, **scale: Any) -> str | None:
    how: dict[str, Any] = {"out": folder / "out", "folder": folder / runs, "device": "cpu"}
    return JOINED.reproduce(Scale(**scale), only=only, **how)


def document(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "out" / "summary.json").read_text()))


def test_rows_of_a_new_stage_stand_beside_those_that_were_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vspair.runs.commit", lambda: "first")
    call(tmp_path, "runs", "old,report", samples=9)
    old = document(tmp_path)
    path = tmp_path / "out" / "summary.json"
    path.write_text(json.dumps({k: v for k, v in old.items() if k != "made"}))  # as it once was
    monkeypatch.setattr("vspair.runs.commit", lambda: "second")
    text = call(tmp_path, "others", "new,report")
    found = document(tmp_path)
    assert found["rows"][:1] == old["rows"]
    assert [row["model"] for row in found["rows"]] == ["old", "new"]
    assert [(m["methods"], m["commit"]) for m in found["made"]] == [
        (["old"], "first"),
        (["new"], "second"),
    ]
    assert found["commit"] == "first, second"
    assert found["scale"]["samples"] == 9  # of the rows that stand; the others have none
    assert text is not None
    assert text.count("Made by") == 2
    assert "2 rows, 9." in text
    with np.load(tmp_path / "out" / "figures.npz") as file:
        assert {key: file[key].dtype for key in file.files} == {
            "shown.old": np.dtype(np.float16),
            "shown.new": np.dtype(np.float16),
        }


def test_a_whole_study_replaces_what_stands(tmp_path: Path) -> None:
    call(tmp_path, "runs", "old,report")
    path = tmp_path / "out" / "summary.json"
    path.write_text(path.read_text().replace('"model": "old"', '"model": "gone"'))
    call(tmp_path, "runs", "new,report")
    assert [row["model"] for row in document(tmp_path)["rows"]] == ["old", "new"]
    assert len(document(tmp_path)["made"]) == 1


def test_a_method_that_is_made_again_takes_its_place(tmp_path: Path) -> None:
    call(tmp_path, "runs", "old,report")
    call(tmp_path, "others", "new,report")
    call(tmp_path, "more", "old,report")
    found = document(tmp_path)
    assert [row["model"] for row in found["rows"]] == ["old", "new"]
    assert [m["methods"] for m in found["made"]] == [["new"], ["old"]]


def test_rows_of_other_settings_are_refused_before_any_work(tmp_path: Path) -> None:
    call(tmp_path, "runs", "old,report")
    with pytest.raises(VspairError, match=r"epochs is 1 there and 2 here.*--out"):
        call(tmp_path, "others", "new,report", epochs=2)
    assert not (tmp_path / "others").exists()
    call(tmp_path, "others", "new", samples=3)  # which it does not depend on


def test_the_folder_of_another_study_is_refused(run: Run, tmp_path: Path) -> None:
    run()
    other = replace(STUDY, name="other")
    for only in ("", "report"):
        with pytest.raises(VspairError, match="belongs to the study test, not to other"):
            other.reproduce(
                Scale(), out=tmp_path / "o", folder=tmp_path / "runs", only=only, device="cpu"
            )


def test_a_stage_that_was_stopped_is_not_reported(tmp_path: Path) -> None:
    """Some of its answers may be of other settings, which their names do not tell."""
    stages = {"answers": Stage[Any, Any](lambda _: True)}
    records = Records(tmp_path, "any")
    records.stages = {"answers": {"finished": False, "last": 1, "scale": {}}}
    assert records.stale(stages) == ["answers"]
    records.stages["answers"]["finished"] = True
    assert records.stale(stages) == []
