"""The ablations at a scale of seconds, the variants that are trained, and their tables."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from vspair.anchored import AnchoredModel
from vspair.cli import app
from vspair.config import Config, override
from vspair.datasets.own import SETS, OwnSet, Part
from vspair.errors import VspairError
from vspair.fitting import fit as real_fit
from vspair.methods import Ridge
from vspair.posterior import SamplePosterior
from vspair.studies.ablations import study as ablations
from vspair.studies.ablations import tables
from vspair.studies.ablations.drawing import draw_all
from vspair.studies.ablations.study import PARTS, STUDY, Scale, full_config, load, variants
from vspair.studies.own import study as own_study
from vspair.studies.study import Study

FEW = Scale(sets="made", seeds=1, samples=10, minutes_each=0.001)
EVERYWHERE = ["anchor", "networks", "out-of-fold", "grain", "crps", "budget", "beta", "reach"]
X = {
    "vector": torch.randn(30, 12, generator=torch.manual_seed(0)),
    "signal": torch.randn(30, 72, generator=torch.manual_seed(0)).unfold(1, 9, 1).mean(2),
    "image": torch.randn(30, 8, 8, generator=torch.manual_seed(0)),
}


class Stand:
    """What stands for a trained model: ridge with a bias and a spread that settings decide."""

    n_parameters = 7

    def __init__(self, x: Tensor, y: Tensor, config: Config) -> None:
        self.ridge = Ridge(x, y, penalties=[1.0])
        self.bias = 0.5 * (config.anchored.anchor == "none")

    def posterior(self, y: Tensor) -> SamplePosterior:
        noise = torch.randn(10, len(y), *self.ridge.x_shape, generator=torch.manual_seed(0))
        return SamplePosterior(self.ridge(y) + self.bias + 0.1 * noise)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put the stand-in for ``fit``; return what it was called with."""
    found: list[dict[str, Any]] = []

    def fit(x: Tensor, y: Tensor, *, config: Config, **options: Any) -> Stand:
        found.append({"pairs": len(x), "config": config, **options})
        return Stand(x, y, config)

    monkeypatch.setattr(ablations, "fit", fit)
    return found


def reproduce(folder: Path, scale: Scale = FEW, **options: Any) -> str | None:
    study: Study[Any, Any] = replace(STUDY, draw=lambda numbers, folder: [])
    where: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return study.reproduce(scale, **where, **options)


def rows(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((folder / "out" / "summary.json").read_text())["rows"]
    assert {(row["model"], row["preset"]) for row in found} == {("vsPAIR", "anchored")}
    return {(row["condition"], row["metric"]): row for row in found}


def case_of(**crps: float) -> tables.Found:
    """Return the measures of a case from the CRPS of its variants."""
    each = {name.replace("_", "-"): {"scores": _scores(v), "row": {}} for name, v in crps.items()}
    return tables.measures(each)


def _scores(value: float) -> dict[str, Any]:
    scores = {"crps": value, "mse_mean": value**2, "energy_score": 3 * value}
    scores |= {
        "mse_sample": 5.0,
        "variance": 4.0,
        "variance_factors": 1.0,
        "coverage_90": 0.9,
        "active": 2.0,
    }
    return {name: v * np.array([0.5, 1.0, 1.5]) for name, v in scores.items()}


# -- variants -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domain", "more"),
    [
        ("vector", ["modes"]),
        ("signal", ["places", "one-mode"]),
        ("image", ["mirrors", "places", "one-mode"]),
    ],
)
def test_parts_that_a_kind_of_unknowns_does_not_have_are_left_out(
    domain: str, more: list[str]
) -> None:
    full = full_config(X[domain], FEW)
    assert full.anchored.domain == domain
    assert list(variants(full)) == ["full", *EVERYWHERE, *more]


def test_variants_differ_in_one_part_and_have_the_same_passes() -> None:
    scale = Scale(minutes_each=1.0)
    full = full_config(X["image"], scale, seed=3)
    assert (full.training.seed, full.anchored.active) == (3, 20)
    for name, config in variants(full).items():
        assert config.training == full.training
        assert config.anchored.code_epochs == full.anchored.code_epochs
        there, here = vars(full.anchored), vars(config.anchored)
        changed = {key for key in there if there[key] != here[key]}
        assert len(changed) == (0 if name == "full" else 2 if name == "places" else 1), name


def test_the_full_model_is_what_fit_chooses_itself() -> None:
    """With the number of factors, the passes of the study and nothing else."""
    x = X["vector"]
    full = full_config(x, FEW, seed=1)
    named = real_fit(x, x, config=full, progress=False)
    chosen = real_fit(x, x, active=20, minutes=0.001, seed=1, progress=False)
    assert isinstance(named, AnchoredModel)
    assert isinstance(chosen, AnchoredModel)
    assert chosen.made == named.made
    assert chosen.anchored.code_epochs == full.anchored.code_epochs
    for a, b in zip(named.parameters(), chosen.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", [*EVERYWHERE, "places", "one-mode", "modes"])
def test_every_variant_can_be_trained_and_is_what_it_says(name: str) -> None:
    x = X["vector" if name == "modes" else "image"]
    brief = {"training": {"epochs": 1}, "anchored": {"code_epochs": 1, "width": 4, "folds": 2}}
    config = override(variants(full_config(x, FEW))[name], brief)
    model = real_fit(x, x + 0.1, config=config, progress=False)
    assert isinstance(model, AnchoredModel)
    assert (model.made.base == "none") == (name == "anchor")
    if name in ("anchor", "networks"):
        assert not len(model.networks)
    assert (model.frame.domain == "vector") == (name in ("places", "modes"))
    assert model.made.modes == {"one-mode": 4}.get(name, 1)
    assert ablations._in_use(model)["ever_active"] <= model.n_factors


# -- arithmetic -----------------------------------------------------------------------------


def test_ratios_are_of_each_seed_and_above_1_where_the_part_helps() -> None:
    """The mean of ratios, not the ratio of means."""
    seeds = [case_of(full=1.0, anchor=2.0), case_of(full=4.0, anchor=4.0)]
    found = {(r.condition, r.metric): r for r in tables.rows_of({"rgb": seeds})}
    row = found["rgb, without anchor", "crps_over_full"]
    assert row.value == pytest.approx((2 / 1 + 4 / 4) / 2)
    assert row.spread == pytest.approx(math.sqrt(0.5))
    assert (row.model, row.preset, row.seeds) == ("vsPAIR", "anchored", 2)
    mse = found["rgb, without anchor", "mse_over_full"]
    assert mse.value == pytest.approx((4 / 1 + 16 / 16) / 2)
    assert found["rgb, without anchor", "energy_over_full"].value == pytest.approx(1.5)
    assert found["rgb", "crps"].value == pytest.approx(2.5)
    assert found["rgb", "share_in_factors"].value == pytest.approx(0.25)
    assert ("rgb", "crps_over_full") not in found
    numbers = tables.figure_numbers({"rgb": seeds})
    assert {k: v.tolist() for k, v in numbers["rgb"].items()} == {"anchor": [2.0, 1.0]}


def test_a_dash_stands_where_a_set_does_not_have_a_part() -> None:
    measured = {
        "digits": [case_of(full=1.0, anchor=2.0, modes=1.25)],
        "rgb": [case_of(full=1.0, anchor=1.5, one_mode=0.5)],
    }
    about = vars(Scale())
    text = tables.text_of(tables.rows_of(measured), about, [SETS["digits"], SETS["rgb"]])
    assert "| | digits: MSE | digits: CRPS | rgb: MSE | rgb: CRPS |" in text
    assert "| without anchor | 4.00 | 2.00 | 2.25 | 1.50 |" in text
    assert "| without modes | 1.56 | 1.25 | - | - |" in text
    assert "| with 4 modes | - | - | 0.25 | 0.50 |" in text
    assert "| full | 0.25 | 0.25 |" in text
    assert "| with 4 modes | - | 0.25 |" in text
    assert "without beta" not in text
    assert f"- without modes: {tables.WORDS.text['modes']}" in text


def test_every_part_has_a_name_and_a_sentence() -> None:
    assert [*tables.NAMES] == ["full", *PARTS]
    assert set(PARTS) <= set(tables.WORDS.text)


def test_the_figure_is_drawn_also_where_a_part_is_worth_much(tmp_path: Path) -> None:
    numbers = {
        "digits": {"anchor": np.array([3.0, 4.0]), "modes": np.array([1.0, 1.01])},
        "rgb": {"anchor": np.array([0.2, 0.2]), "places": np.array([0.9, 1.2])},
    }
    assert [p.name for p in draw_all(numbers, tmp_path)] == ["parts.png"]
    assert (tmp_path / "parts.png").stat().st_size > 5000


# -- the whole study ------------------------------------------------------------------------


def test_every_variant_is_measured_beside_the_full_model(
    tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    assert reproduce(tmp_path) is not None
    assert len(calls) == 11
    assert {(c["pairs"], c["device"], c["progress"]) for c in calls} == {(100, "cpu", False)}
    assert all("groups" not in call for call in calls)
    found = rows(tmp_path)
    for metric in ("mse_mean", "crps", "energy_score", "coverage_90", "training_seconds"):
        assert np.isfinite(found["made", metric]["value"])
    ratio = found["made, without anchor", "mse_over_full"]["value"]
    mse = [found[name, "mse_mean"]["value"] for name in ("made, without anchor", "made")]
    assert ratio == pytest.approx(mse[0] / mse[1])
    assert ratio > 2
    assert found["made, without beta", "crps_over_full"]["value"] == pytest.approx(1)
    conditions = {condition for condition, _ in found}
    assert "made, with 4 modes" in conditions
    assert "made, without modes" not in conditions


def test_a_second_call_trains_nothing_and_more_seeds_go_on(
    tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    assert reproduce(tmp_path) is not None
    assert reproduce(tmp_path) is not None
    assert len(calls) == 11
    assert reproduce(tmp_path, replace(FEW, seeds=2)) is not None
    assert [call["config"].training.seed for call in calls] == [0] * 11 + [1] * 11
    assert rows(tmp_path)["made", "crps"]["seeds"] == 2


def test_a_study_that_is_stopped_goes_on_with_what_is_missing(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ablations._train

    def stopped(*arguments: Any) -> Any:
        if len(calls) == 4:
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(ablations, "_train", stopped)
    with pytest.raises(KeyboardInterrupt):
        reproduce(tmp_path)
    monkeypatch.setattr(ablations, "_train", train)
    assert reproduce(tmp_path) is not None
    assert len(calls) == 11


def test_groups_are_given(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(rng: np.random.Generator) -> tuple[Part, Part]:
        x = rng.standard_normal((60, 4))
        part = Part(x, x[:, :2] + 0.1, np.repeat(["b", "a", "c"], 20))
        return part, part

    monkeypatch.setattr(own_study, "MADE", OwnSet("made", "grouped", (), make, tuned=False))
    assert reproduce(tmp_path) is not None
    assert len(calls) == 10
    for call in calls:
        assert torch.equal(call["groups"], torch.tensor([1, 0, 2]).repeat_interleave(20))


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(VspairError, match="sets = 'nope': expected some of deblur, signals"):
        load(Scale(sets="digits,nope"))


def test_the_sets_are_two_of_vectors_one_of_signals_and_one_of_images() -> None:
    assert [chosen.name for chosen in Scale().chosen()] == ["digits", "motions", "signals", "rgb"]


# -- the command ----------------------------------------------------------------------------


def test_smoke_from_the_command_line(tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--jobs", "1"]
    done = CliRunner().invoke(app, ["reproduce", "ablations", "--smoke", *where])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "parts.png").is_file()
    found = rows(tmp_path)
    assert found["made", "ever_active"]["value"] >= found["made", "active"]["value"] / 40
    assert found["made, without places", "crps_over_full"]["value"] > 0
    (tmp_path / "out" / "parts.png").unlink()
    drawn = CliRunner().invoke(app, ["reproduce", "ablations", "--smoke", "--draw", *where])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "out" / "parts.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sets nope", "sets = 'nope'"),
        ("--smoke --seeds 2", "leave out --seeds"),
        ("--smoke --sets rgb", "leave out --sets"),
        ("--smoke --minutes-each 2", "leave out --minutes-each"),
        ("--minutes-each 0", "expected a number above 0"),
        ("--only train", "expected some of answers, report"),
    ],
)
def test_mistakes_are_explained(arguments: str, words: str, tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["reproduce", "ablations", *arguments.split(), *where])
    assert isinstance(done.exception, VspairError)
    assert words in str(done.exception)
    assert not any(tmp_path.iterdir())
