"""The MNIST study on digits that the repository makes, at a scale of seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vspair.problems.inpainting import InpaintingData
from vspair.studies import mnist as study


@pytest.mark.parametrize("name", study.NAMES)
def test_configurations_are_the_papers(name: str) -> None:
    c = study.shipped(name)
    assert c.model.kind == study.NAMES[name][0]
    assert (c.training.epochs, c.training.batch_size) == (100, 64)
    if name != "calibrated":
        assert c.training.learning_rate == 1e-4
        assert c.model.gate == "exponential"


@pytest.mark.usefixtures("small_mnist")
def test_it_stops_in_time_continues_and_writes_tables(
    digits: InpaintingData, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {
        "folder": tmp_path / "runs",
        "device": "cpu",
        "epochs": 2,
        "command": "test",
    }
    assert study.reproduce(digits, tmp_path / "out", minutes=1e-9, **arguments) is None
    text = study.reproduce(digits, tmp_path / "out", **arguments)
    assert text is not None
    assert "paper 0.0762" in text
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    found = {(r["model"], r.get("preset", "")) for r in summary["rows"]}
    assert set(study.NAMES.values()) | {("trivial-y", ""), ("ridge", "")} <= found
    assert summary["scale"]["paper_scale"] is False


@pytest.mark.usefixtures("small_mnist")
def test_measures_are_those_of_the_samples(digits: InpaintingData, tmp_path: Path) -> None:
    job = study.Job("vsPAIR", study.shipped("vsPAIR"))
    assert study.train([job], digits, tmp_path, device="cpu", epochs=1)
    model = study.load(job, tmp_path, "cpu")
    row, images = study.measure(model, digits, chunk=5)
    assert len(images["mse"]) == len(digits.x_test)
    post = model.posterior(digits.y_test)
    again = (post.mean(2000) - digits.x_test).square().mean()
    assert row["mse30"] == pytest.approx(float(again), rel=0.1)
    assert row["nnz"] == pytest.approx(float(post.parameters()["omega"].sum(-1).mean()), rel=0.2)
    assert row["parameters"] == model.n_parameters
    assert torch.equal(model.x_normaliser.mean, torch.zeros(28, 28))
