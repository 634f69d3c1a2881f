"""The readings of the paper's MNIST objective, at a scale of seconds."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from vspair.cli import app
from vspair.errors import VspairError
from vspair.problems.inpainting import InpaintingData, mnist_pairs, toy_digits
from vspair.studies.mnist import perturbations, readings, study


def test_all_readings_are_different_trainings() -> None:
    jobs = readings.jobs(list(readings.READINGS))
    assert len({job.label for job in jobs}) == len({repr(job.config) for job in jobs}) == len(jobs)


def test_every_shipped_configuration_is_one_of_the_readings() -> None:
    tried = [job.config for job in readings.jobs(list(readings.READINGS))]
    assert all(study.shipped(name) in tried for name in study.NAMES)


@pytest.mark.usefixtures("small_mnist")
def test_rows_are_added_and_replaced(digits: InpaintingData, tmp_path: Path) -> None:
    names = ["PAIR: map fitted by codes", "sVAE"]
    more: dict[str, Any] = {"folder": tmp_path / "runs", "device": "cpu", "epochs": 1}
    assert readings.compare(digits, tmp_path, names=names[:1], minutes=1e-9, **more) is None
    with pytest.raises(VspairError, match=r"training.epochs is 1 there and 2 here"):
        readings.compare(digits, tmp_path, names=names[:1], **more | {"epochs": 2})
    text = readings.compare(digits, tmp_path, names=names[:1], **more)
    assert text is not None
    text = readings.compare(digits, tmp_path, names=names, **more)
    assert text is not None
    rows = json.loads((tmp_path / "readings.json").read_text())
    assert [r["reading"] for r in rows] == ["sVAE", "PAIR: map fitted by codes"]
    assert {"epochs", "commit", "machine", "mse"} <= set(rows[0])
    assert (tmp_path / "readings.md").read_text() == text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(rows) + len(study.PAPER)
    assert all(line.count("|") == lines[0].count("|") for line in lines)


@pytest.mark.usefixtures("small_mnist")
def test_readings_tell_their_unit_and_do_not_mix_two(
    digits: InpaintingData, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"names": ["sVAE"], "device": "cpu", "epochs": 1}
    text = readings.compare(digits, tmp_path, folder=tmp_path / "runs", **more)
    assert text is not None
    assert "Squared errors are on [-1, 1]; times 0.25 on [0, 1]" in text
    assert "the mean digit has" in text
    unit = mnist_pairs(toy_digits(48, seed=0), seed=0, low=0.0, train=40)
    with pytest.raises(VspairError, match=r"errors on \[-1, 1\], here pixels are on \[0, 1\]"):
        readings.compare(unit, tmp_path, folder=tmp_path / "other", **more)
    text = readings.compare(unit, tmp_path / "unit", folder=tmp_path / "other", **more)
    assert text is not None
    assert "Squared errors are on [0, 1]; times 4 on [-1, 1]" in text


@pytest.mark.parametrize(
    ("flags", "folder"),
    [
        ([], "results/mnist"),
        (["--epochs", "1"], "results/mnist-part"),
        (["--test", "300"], "results/mnist-part"),
        (["--unit"], "results/mnist-unit"),
    ],
)
def test_smaller_runs_do_not_replace_the_whole_study(
    flags: list[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    images = toy_digits(48, seed=0)
    monkeypatch.setattr(study, "reproduce", lambda _, out, **__: seen.append(out))
    monkeypatch.setattr("vspair.datasets.mnist.load_mnist", lambda _: Mock(train_images=images))
    pairs = partial(mnist_pairs, train=40)
    monkeypatch.setattr("vspair.problems.inpainting.mnist_pairs", pairs)
    done = CliRunner().invoke(app, ["reproduce", "mnist", *flags])
    assert done.exit_code == 0, done.output
    assert seen == [Path(folder)]


def test_a_reading_that_nobody_compares_is_refused() -> None:
    done = CliRunner().invoke(app, ["reproduce", "mnist", "--smoke", "--only", "sVAE"])
    assert isinstance(done.exception, VspairError)
    assert str(done.exception) == "--only sVAE: it names a reading. Give --readings too."


def test_readings_do_not_follow_the_shipped_penalty() -> None:
    for job in readings.jobs([name for name in readings.READINGS if name.startswith("vsPAIR")]):
        expected = 0.0 if "no-binary" in job.name else 0.05
        assert job.config.objective.lambda_binary == expected, job.name


def test_perturbations_without_models_leave_earlier_results(
    digits: InpaintingData, tmp_path: Path
) -> None:
    (tmp_path / "perturbations.md").write_text("earlier")
    with pytest.raises(VspairError, match=r"no trained model of the study. Train first"):
        perturbations.compare(digits, tmp_path, folder=tmp_path / "none", device="cpu")
    assert (tmp_path / "perturbations.md").read_text() == "earlier"


def test_an_unknown_reading_is_refused(digits: InpaintingData, tmp_path: Path) -> None:
    with pytest.raises(VspairError, match=r"no reading 'sVAE2'. There are: vsPAIR: sigma;"):
        readings.compare(digits, tmp_path, folder=tmp_path, names=["sVAE2"])


def test_the_papers_values_close_the_table() -> None:
    assert readings.table([]).splitlines()[-1].startswith("| paper: vsPAIR | 100 | 39 | 0.0762 |")


@pytest.mark.usefixtures("small_mnist")
def test_perturbations_of_trained_models_are_compared(
    digits: InpaintingData, tmp_path: Path
) -> None:
    names, runs = ("vPAIR", "sVAE"), tmp_path / "runs"
    jobs = [study.Job(name, study.shipped(name)) for name in names]
    study.train(jobs, digits, runs, device="cpu", epochs=1)
    text = perturbations.compare(digits, tmp_path / "out", folder=runs, device="cpu", images=8)
    saved = json.loads((tmp_path / "out" / "perturbations.json").read_text())
    tried = len(perturbations.BASES) * len(perturbations.FACTORS)
    assert [row["model"] for row in saved["rows"]] == [n for n in names for _ in range(tried)]
    assert saved["images"] == 8
    assert text.count("\n| ") == 1 + len(saved["rows"]) + len(names)
    # Among all factors, the best ratio is at least that of the ones that are always active.
    for row in saved["rows"]:
        if row["model"] == "vPAIR":
            assert row["localization_median_any"] == row["localization_median_stable"]
    moved = [
        row["localization_corrupted_mse_any"]
        for row in saved["rows"]
        if row["model"] == "vPAIR" and row["base"] == "mean"
    ]
    assert moved == sorted(moved)
