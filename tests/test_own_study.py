"""The study of own pairs at a scale of seconds, and the arithmetic of its tables."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from vspair.anchors import folds
from vspair.cli import app
from vspair.data import Pairs
from vspair.datasets.own import SETS, OwnSet, Part, Split
from vspair.errors import VspairError
from vspair.methods import Ridge, ShiftRidge
from vspair.posterior import SamplePosterior
from vspair.runs import read_groups
from vspair.studies.own import around as own_around
from vspair.studies.own import study as own_study
from vspair.studies.own import tables
from vspair.studies.own.drawing import draw_all
from vspair.studies.own.study import MADE, SMOKE, STUDY, Case, Scale, load
from vspair.training import held
from vspair.training.doubt import Doubt

FEW = Scale(sets="made", seeds=1, samples=10, seconds=0.2)


class Stand:
    """What stands for a trained model: ridge with a spread of 0.1."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.ridge = Ridge(x, y, penalties=[1.0])
        self.n_parameters = 7

    def posterior(self, y: Tensor) -> SamplePosterior:
        noise = torch.randn(10, len(y), *self.ridge.x_shape, generator=torch.manual_seed(0))
        return SamplePosterior(self.ridge(y) + 0.1 * noise)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put the stand-in for ``fit``; return what it was called with."""
    found: list[dict[str, Any]] = []

    def fit(x: Tensor, y: Tensor, **options: Any) -> Stand:
        found.append({"pairs": len(x), **options})
        return Stand(x, y)

    monkeypatch.setattr(own_study, "fit", fit)
    return found


def reproduce(folder: Path, scale: Scale = FEW, **options: Any) -> str | None:
    study = replace(STUDY, draw=lambda numbers, folder: [])
    where: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return study.reproduce(scale, **where, **options)


def rows(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((folder / "out" / "summary.json").read_text())["rows"]
    assert {row["condition"] for row in found} == {"made"}
    return {(row["model"], row["metric"]): row for row in found}


def case_of(mse: Sequence[float], crps: Sequence[float]) -> dict[str, dict[str, float]]:
    names = (tables.OURS, "ridge", "network", "trivial-mean")
    each = zip(names, mse, crps, strict=True)
    return {name: {"mse_mean": m, "crps": c} for name, m, c in each}


# -- arithmetic -----------------------------------------------------------------------------


def test_ratios_are_to_the_better_rival_of_each_metric() -> None:
    """The mean is no rival, even where it is best; the best MSE and CRPS may be of two methods."""
    found = tables.ratios(case_of((2.0, 4.0, 8.0, 1.0), (0.9, 0.6, 0.3, 0.1)))
    assert found["mse_over_best_simple"] == pytest.approx(2.0 / 4.0)
    assert found["crps_over_best_simple"] == pytest.approx(0.9 / 0.3)


def test_ratios_are_taken_seed_by_seed() -> None:
    """The mean of ratios, not the ratio of means."""
    answers = [
        {
            name: {"scores": {k: np.array([v, v]) for k, v in values.items()}, "row": {}}
            for name, values in case.items()
        }
        for case in (case_of((1, 2, 3, 4), (1, 1, 1, 1)), case_of((6, 5, 4, 4), (1, 1, 1, 1)))
    ]
    measured = {"zoom": [tables.measures(each) for each in answers]}
    found = {(r.model, r.metric): r for r in tables.rows_of(measured)}
    row = found[tables.OURS, "mse_over_best_simple"]
    assert row.value == pytest.approx((1 / 2 + 6 / 4) / 2)
    assert (row.preset, row.condition, row.seeds) == ("anchored", "zoom", 2)
    assert found["ridge", "mse_mean"].value == pytest.approx(3.5)
    assert ("ridge", "mse_over_best_simple") not in found
    numbers = tables.figure_numbers(measured)
    assert numbers["zoom"]["mse_over_best_simple"].tolist() == [0.5, 1.5]


def test_tables_have_a_line_a_set_and_leave_out_what_nobody_measured() -> None:
    first, second = case_of((1, 2, 3, 4), (1, 2, 3, 4)), case_of((5, 6, 7, 8), (5, 6, 7, 8))
    for case in (first, second):
        case[tables.OURS] |= tables.ratios(case)
    second["trivial-y"] = {"mse_mean": 9.0, "crps": 9.0}
    found = tables.rows_of({"zoom": [first], "motions": [second]})
    about = asdict(FEW)
    text = tables.text_of(found, about, [SETS["zoom"], SETS["motions"]])
    assert "| | vsPAIR | ridge | network | y itself | mean |" in text
    assert "| zoom | 1 | 2 | 3 | - | 4 |" in text
    assert "| motions | 5 | 6 | 7 | 9 | 8 |" in text
    assert "active factors" not in text
    assert f"- `zoom`: {SETS['zoom'].words}." in text


def test_sets_that_were_tuned_on_are_marked() -> None:
    case = case_of((1, 2, 3, 4), (1, 2, 3, 4))
    about = asdict(FEW)
    text = tables.text_of(tables.rows_of({"rgb": [case]}), about, [SETS["rgb"]])
    assert f"- `rgb`: {SETS['rgb'].words}; settings were chosen on pairs of this kind." in text


# -- methods --------------------------------------------------------------------------------


def test_answers_are_of_all_pairs_and_residuals_of_pairs_not_learned_from() -> None:
    """With as many unknowns as pairs ridge fits exactly: only held-out residuals are not 0."""
    generator = torch.manual_seed(0)
    train = Pairs(*(torch.randn(40, 50, generator=generator) for _ in range(2)))
    method = own_study._with_residuals("ridge", Split(train, train, None), FEW, seed=0)
    kept, rest = train.split(own_study.HELD, 0)
    assert (len(kept), len(rest)) == (36, 4)
    expected = (Ridge(kept.x, kept.y, seed=0)(rest.y) - rest.x).square().mean(0).sqrt()
    assert torch.allclose(method.std, expected, atol=1e-5)
    answer = Ridge(train.x, train.y, seed=0)(train.y)
    assert torch.equal(method.posterior(train.y).mean(), answer)


def grouped(counts: Sequence[int], seed: int = 0) -> Split:
    """Return pairs of sources whose unknowns are far apart."""
    generator = torch.manual_seed(seed)
    groups = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = groups[:, None] + 0.1 * torch.randn(len(groups), 3, generator=generator)
    train = Pairs(x, torch.randn(len(groups), 2, generator=generator))
    return Split(train, train, groups)


def test_rivals_hold_out_whole_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    split, given = grouped([20] * 5), []

    def make(pairs: Pairs, groups: Tensor | None, scale: Scale, seed: int) -> Ridge:
        assert groups is not None
        given.append((pairs, groups))
        return Ridge(pairs.x, pairs.y, groups=groups, seed=seed)

    monkeypatch.setitem(own_study.SIMPLE, "ridge", make)
    own_study._with_residuals("ridge", split, FEW, seed=0)
    (kept, sources), (every, _) = given
    assert [int((sources == k).sum()) for k in sources.unique()] == [20] * 4
    assert (len(kept), len(every)) == (80, 100)


@pytest.mark.parametrize("name", ["ridge", "network"])
def test_rivals_choose_by_whole_sources(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What chooses the penalty or the epoch is never of a source that is learned from."""
    split, asked = grouped([20] * 5), []
    known = folds.hold_out

    def hold_out(groups: Tensor, *how: Any, **more: Any) -> Tensor:
        out = known(groups, *how, **more)
        asked.append(set(groups[out].tolist()) & set(groups[~out].tolist()))
        return out

    monkeypatch.setattr(held, "hold_out", hold_out)
    own_study.SIMPLE[name](split.train, split.groups, replace(FEW, passes=1), 0)
    assert asked == [set()]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 6, 6), True), ((3, 6, 6), True), ((6, 6), True), ((6,), False)],
)
def test_ridge_with_shifts_answers_images_of_one_shape(
    shape: tuple[int, ...], expected: bool, tmp_path: Path
) -> None:
    generator = torch.manual_seed(0)
    train = Pairs(*(torch.randn(30, *shape, generator=generator) for _ in range(2)))
    split = Split(train, train, None)
    work: Any = type("Work", (), {"scale": FEW})
    makers = own_study._makers(work, split, 0)
    assert ("ridge-shifts" in makers) == expected
    if expected:
        method = makers["ridge-shifts"]()
        answer = method.posterior(train.y).mean()
        assert torch.equal(answer, ShiftRidge(train)(train.y))
        assert answer.shape == train.x.shape


def test_residuals_are_of_test_pairs_from_everywhere() -> None:
    """Test pairs of one source lie side by side: the first 200 would be of one alone."""
    x = torch.arange(800.0)[:, None]
    asked, seen = own_around._spread(Pairs(x, 2 * x))
    assert len(asked) == own_around.ASKED
    assert torch.equal(seen, 2 * asked)
    assert torch.histc(asked, 4, 0, 800).tolist() == [50] * 4
    assert torch.equal(own_around._spread(Pairs(x[:7], x[:7]))[0], x[:7])


def test_directions_learn_from_as_many_residuals_as_the_dense_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split, count = grouped([20] * 5), own_around.MOST + 10
    stands = own_around.Around(None, split, 0, 1.0, "cpu")  # type: ignore[arg-type]
    every = torch.arange(float(count))[:, None]
    stands.known = Doubt(every, every), split.train
    stands.groups = torch.arange(count)
    doubt, groups = stands.some
    assert len(doubt.seen) == own_around.MOST == 20_000
    assert groups is not None
    assert torch.equal(groups, doubt.seen[:, 0].long())


def test_residuals_out_of_fold_keep_their_sources() -> None:
    split = grouped([20] * 5)
    stands = own_around.Around(None, split, 0, 1.0, "cpu")  # type: ignore[arg-type]
    assert stands.groups is not None
    assert torch.bincount(stands.groups).tolist() == [20] * 4


def test_answers_are_known_again_by_sources_too() -> None:
    split = grouped([20] * 5)
    every = (split, split._replace(groups=None), split._replace(groups=split.groups.flip(0)))  # type: ignore[union-attr]
    assert len({own_study._made_from(each, FEW) for each in every}) == 3
    assert own_study._made_from(split, FEW) == own_study._made_from(grouped([20] * 5), FEW)


def test_study_pairs_are_not_those_that_settings_were_chosen_on() -> None:
    case = Case(MADE, 0)
    assert torch.equal(case.load().train.x, MADE.load(100).train.x)
    assert not torch.equal(case.load().train.x, MADE.load(0).train.x)


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(VspairError, match="sets = 'nope': expected some of deblur, signals"):
        load(Scale(sets="digits,nope"))


def test_a_missing_package_is_met_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(VspairError, match=r"The set digits .* not installed"):
        reproduce(tmp_path, replace(FEW, sets="made,digits"))
    assert not calls
    assert not any(tmp_path.iterdir())


# -- the whole study ------------------------------------------------------------------------


def test_every_method_is_measured(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    assert reproduce(tmp_path) is not None
    assert calls == [{"pairs": 100, "seed": 0, "device": "cpu", "progress": False}]
    found = rows(tmp_path)
    assert {model for model, _ in found} == {
        "vsPAIR", "ridge", "network", "trivial-y", "trivial-mean",
    }  # fmt: skip
    for model in ("vsPAIR", "ridge", "network"):
        for metric in ("mse_mean", "crps", "coverage_90", "training_seconds", "parameters"):
            assert np.isfinite(found[model, metric]["value"])
    assert found["vsPAIR", "parameters"]["value"] == 7
    assert found["vsPAIR", "mse_mean"]["preset"] == "anchored"
    best = min(found[m, "mse_mean"]["value"] for m in ("ridge", "network"))
    ratio = found["vsPAIR", "mse_over_best_simple"]["value"]
    assert ratio == pytest.approx(found["vsPAIR", "mse_mean"]["value"] / best)
    y = float((MADE.load(100).test.x - MADE.load(100).test.y).square().mean())
    assert found["trivial-y", "mse_mean"]["value"] == pytest.approx(y, rel=1e-5)
    assert found["trivial-mean", "coverage_90"]["value"] == pytest.approx(0.85, abs=0.15)


def test_a_second_call_trains_nothing_and_more_seeds_go_on(
    tmp_path: Path, calls: list[dict[str, Any]]
) -> None:
    assert reproduce(tmp_path) is not None
    assert reproduce(tmp_path) is not None
    assert len(calls) == 1
    assert reproduce(tmp_path, replace(FEW, seeds=2)) is not None
    assert [call["seed"] for call in calls] == [0, 1]
    assert rows(tmp_path)["ridge", "crps"]["seeds"] == 2


def test_groups_are_given_and_y_of_another_shape_does_not_answer(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(rng: np.random.Generator) -> tuple[Part, Part]:
        x = rng.standard_normal((60, 4))
        part = Part(x, x[:, :2] + 0.1, np.repeat(["b", "a", "c"], 20))
        return part, part

    grouped = OwnSet("made", "grouped", (), make, tuned=False)
    monkeypatch.setattr(own_study, "MADE", grouped)
    assert reproduce(tmp_path) is not None
    assert torch.equal(calls[0]["groups"], torch.tensor([1, 0, 2]).repeat_interleave(20))
    assert "trivial-y" not in {model for model, _ in rows(tmp_path)}


def test_answers_of_another_library_are_made_anew(
    tmp_path: Path, calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce(tmp_path) is not None
    monkeypatch.setattr(own_study, "library_digest", lambda: "changed")
    assert reproduce(tmp_path) is not None
    assert len(calls) == 2


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    ratio = {"mse_over_best_simple": np.array([0.5, 2.0]), "crps_over_best_simple": np.ones(2)}
    numbers = {"zoom": ratio, "cells": ratio}
    assert [p.name for p in draw_all(numbers, tmp_path)] == ["ratios.png"]
    assert (tmp_path / "ratios.png").stat().st_size > 5000


# -- the command ----------------------------------------------------------------------------


def test_smoke_from_the_command_line(tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["reproduce", "own", "--smoke", "--jobs", "2", *where])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "ratios.png").is_file()
    found = rows(tmp_path)
    assert found["vsPAIR", "crps_over_best_simple"]["seeds"] == SMOKE.seeds
    assert found["vsPAIR", "active"]["value"] >= 0
    for name in ("explained", "spanned_all", "spanned_5", "spanned_pca", "spanned_nppc_5"):
        assert 0 <= found["vsPAIR", name]["value"] <= 1 + 1e-9
    assert found["vsPAIR", "spanned_5"]["value"] <= found["vsPAIR", "spanned_all"]["value"]
    for name in ("anchor + Gaussian", "anchor + CVAE"):
        assert {"mse_mean", "crps", "coverage_90"} <= {k for model, k in found if model == name}
    assert found["anchor + CVAE", "crps"]["seeds"] == found["vsPAIR", "explained"]["seeds"] == 1
    kept = tmp_path / "runs" / "answers"
    ours, gaussian = (
        read_groups(kept / f"{name}-made-0.npz", "") for name in ("vsPAIR", "anchor-Gaussian")
    )
    error = float(ours["scores"]["mse_mean"].mean())
    assert float(gaussian["row"]["mse_mean"]) == pytest.approx(error, rel=1e-4)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| anchor + Gaussian | anchor + CVAE |" in text
    assert "| by five of NPPC |" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sets nope", "sets = 'nope'"),
        ("--smoke --seeds 2", "leave out --seeds"),
        ("--smoke --sets digits", "leave out --sets"),
        ("--only train", "expected some of answers, report"),
    ],
)
def test_mistakes_are_explained(arguments: str, words: str, tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, ["reproduce", "own", *arguments.split(), *where])
    assert isinstance(done.exception, VspairError)
    assert words in str(done.exception)
    assert not any(tmp_path.iterdir())
