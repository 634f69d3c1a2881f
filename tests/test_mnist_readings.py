"""The readings of the paper's MNIST objective, at a scale of seconds."""

import json
from pathlib import Path
from typing import Any

import pytest

from vspair.errors import VspairError
from vspair.problems.inpainting import InpaintingData
from vspair.studies import mnist as study
from vspair.studies import mnist_perturbations as perturbations
from vspair.studies import mnist_readings as readings


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
