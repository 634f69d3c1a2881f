"""The paper's problems by the defaults of fit: pairs, and one problem from end to end."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vspair.cli import app
from vspair.errors import VspairError
from vspair.studies.heat.study import NOISE
from vspair.studies.problems.study import COPIES, Scale, problem_sets


@pytest.mark.parametrize("noise", NOISE)
def test_fields_are_those_of_the_heat_study(noise: float) -> None:
    split = problem_sets()[f"heat-noise-{100 * noise:g}"].load(100)
    assert split.train.shapes == ((16, 16), (16, 16))
    assert (len(split.train), len(split.test)) == (972, 52)
    assert split.groups is None
    again = problem_sets()["heat-noise-0"].load(100)
    assert again.train.x.equal(split.train.x)  # noise changes observations alone


def test_copies_of_a_slice_are_of_the_same_patient() -> None:
    """Without real slices there are phantoms, each alone in its patient or not."""
    split = problem_sets()["ct-quarter"].load(100)
    assert split.train.shapes == ((44, 44), (62, 64))
    assert split.groups is not None
    groups = split.groups.reshape(COPIES, -1)
    assert groups.eq(groups[0]).all()
    assert split.train.x.reshape(COPIES, -1, 44, 44).diff(dim=0).abs().amax((1, 2, 3)).min() > 0


def test_a_problem_from_end_to_end(tmp_path: Path) -> None:
    folders = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, ["reproduce", "problems", "--smoke", *folders])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| ridge with shifts |" in text
    assert "with 10 %" in text
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    value = {(r["model"], r["metric"]): r["value"] for r in found["rows"]}
    best = min(value[m, "mse_mean"] for m in ("ridge", "ridge-shifts", "network"))
    ours = value["vsPAIR", "mse_mean"]
    assert value["vsPAIR", "mse_over_best_simple"] == pytest.approx(ours / best, rel=1e-4)
    assert {r["preset"] for r in found["rows"] if r["model"] == "vsPAIR"} == {"anchored"}
    assert (tmp_path / "out" / "ratios.png").exists()


def test_an_unknown_problem_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match=r"sets = 'ct': expected some of heat-noise-0, .*mnist"):
        Scale(sets="ct").chosen()
    asked = ["reproduce", "problems", "--sets", "ct", "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1
    assert not (tmp_path / "runs").exists()
