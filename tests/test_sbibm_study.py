"""The study of simulation-based inference at a scale of seconds, on made observations."""

import json
import math
import shutil
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Generator, Tensor
from typer.testing import CliRunner

from vspair.cli import app
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.methods import npe
from vspair.posterior import Method, SamplePosterior
from vspair.problems.sbibm import TASKS
from vspair.studies.answers import Answers
from vspair.studies.sbibm import study
from vspair.studies.sbibm.study import METHODS, PRESET, SMOKE, STUDY, Case, Scale, load
from vspair.studies.sbibm.tables import WORDS

FEW = Scale(pairs=100, observations=3, samples=60, seeds=1, brief=True, methods="anchored,flow")
OURS = ("vsPAIR", PRESET)


@pytest.fixture(autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VSPAIR_DATA", raising=False)


def reproduce(
    folder: Path, scale: Scale = FEW, figures: bool = False, **options: Any
) -> str | None:
    it = STUDY if figures else replace(STUDY, draw=lambda numbers, folder: [])
    where: dict[str, Any] = {"out": folder / "out", "folder": folder / "runs", "device": "cpu"}
    return it.reproduce(scale, **where, **options)


def rows(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "out" / "summary.json").read_text())
    assert found["scale"]["paper_scale"] is False
    return list(found["rows"])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sbibm")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VSPAIR_DATA", raising=False)
        assert reproduce(folder, figures=True) is not None
    return folder


def test_every_task_has_its_row_of_every_method(unbroken: Path) -> None:
    found = {(r["model"], r.get("preset"), r["condition"], r["metric"]): r for r in rows(unbroken)}
    for model, task in product((OURS, ("flow", None)), TASKS):
        for metric in ("c2st", "c2st_mean"):
            row = found[*model, task, metric]
            assert 0.3 < row["value"] <= 1
            assert row["seeds"] == 1
        assert found[*model, task, "seconds"]["value"] > 0
    assert len(found) == 2 * 3 * len(TASKS)
    text = (unbroken / "out" / "README.md").read_text()
    for words in (
        f"vsPAIR ({PRESET}) | flow | NPE, published |",
        "| 0.608 | 0.834 | 0.62 | 0.55 |",
        "are made here",
        f"Seconds of one training: vsPAIR ({PRESET}): two moons ",
        "; flow: two moons ",
    ):
        assert words in text
    assert (unbroken / "out" / "samples.png").stat().st_size > 1000


def test_rows_are_medians_and_means_over_observations(unbroken: Path) -> None:
    answers = Answers(unbroken / "runs" / "answers")
    for row in rows(unbroken):
        if row["metric"] != "seconds":
            name = PRESET if row["model"] == "vsPAIR" else row["model"]
            each = answers.read(Case(name, row["condition"], 0).name)["scores"]["c2st"]
            assert each.shape == (3,)
            expected = sorted(each)[1] if row["metric"] == "c2st" else sum(each) / 3
            assert row["value"] == pytest.approx(float(expected), abs=1e-6)


def test_stopped_and_continued_it_gives_the_same(unbroken: Path, tmp_path: Path) -> None:
    assert reproduce(tmp_path, minutes=1e-9) is None
    assert not (tmp_path / "out" / "summary.json").exists()
    assert reproduce(tmp_path, only="train") == "Done: train."
    assert reproduce(tmp_path) is not None
    for found, expected in zip(rows(tmp_path), rows(unbroken), strict=True):
        assert found["metric"] == "seconds" or found == expected


def test_a_second_call_makes_nothing(unbroken: Path) -> None:
    def written() -> dict[Path, float]:
        files = [p for p in (unbroken / "runs").rglob("*") if p.is_file()]
        return {path: path.stat().st_mtime_ns for path in files}

    before = written()
    assert reproduce(unbroken, only="train,answers") == "Done: train, answers."
    assert written() == before


def test_more_seeds_continue_and_other_scales_are_refused(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs", tmp_path / "runs")
    assert reproduce(tmp_path, replace(FEW, seeds=2)) is not None
    assert all(row["seeds"] == 2 and "spread" in row for row in rows(tmp_path))
    with pytest.raises(VspairError, match="samples is 60 there and 50 here"):
        reproduce(tmp_path, replace(FEW, samples=50))
    with pytest.raises(VspairError, match="digest is"):
        reproduce(tmp_path, replace(FEW, task="slcp"))


def test_the_report_needs_kept_answers_alone(unbroken: Path, tmp_path: Path) -> None:
    shutil.copytree(unbroken / "runs" / "answers", tmp_path / "runs" / "answers")
    shutil.copy(unbroken / "runs" / "records.json", tmp_path / "runs")
    assert reproduce(tmp_path, Scale(), only="report") is not None
    for name in ("summary.json", "figures.npz"):
        assert (tmp_path / "out" / name).read_bytes() == (unbroken / "out" / name).read_bytes()


@dataclass(frozen=True)
class Exact:
    """Answers with the exact posterior of a task."""

    task: str
    seed: int

    def posterior(self, y: Tensor) -> SamplePosterior:
        generator = Generator().manual_seed(self.seed)
        each = [TASKS[self.task].sample_posterior(one, 400, generator) for one in y]
        return SamplePosterior(torch.stack(each, dim=1))


def test_another_method_is_measured_beside_and_the_exact_one_is_perfect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(pairs: Pairs, seed: int) -> Method:
        assert pairs.shapes == ((2,), (2,))
        return Exact("two_moons", 77 + seed)

    monkeypatch.setitem(METHODS, "exact samples", exact)
    scale = replace(FEW, task="two_moons", samples=400, methods="anchored,exact samples")
    assert reproduce(tmp_path, scale) is not None
    found = {(r["model"], r["metric"]): r["value"] for r in rows(tmp_path)}
    assert found["exact samples", "c2st_mean"] == pytest.approx(0.5, abs=0.05)
    assert found["vsPAIR", "c2st"] > 0.8
    text = (tmp_path / "out" / "README.md").read_text()
    assert f"| | vsPAIR ({PRESET}) | exact samples | NPE, published |" in text


class Normal:
    """Answers linear uniform as if there were no walls."""

    def posterior(self, y: Tensor) -> SamplePosterior:
        return Endless(y)


class Endless(SamplePosterior):
    """Normal samples around each y, others for every call."""

    def __init__(self, y: Tensor) -> None:
        super().__init__(y.expand(2, *y.shape))
        self.y = y

    def sample(self, n: int, generator: Generator | None = None) -> Tensor:
        return self.y + math.sqrt(0.1) * torch.randn(n, *self.y.shape, generator=generator)


def test_what_leaves_the_box_is_drawn_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between walls, a normal distribution is the exact posterior of linear uniform."""
    monkeypatch.setattr(study, "ROUNDS", 2000)
    monkeypatch.setitem(METHODS, "normal", lambda pairs, seed: Normal())
    scale = replace(FEW, task="linear_uniform", samples=300, observations=2, methods="normal")
    found = {}
    for inside in (False, True):
        folder = tmp_path / str(inside)
        assert reproduce(folder, replace(scale, inside=inside)) is not None
        found[inside] = {r["metric"]: r["value"] for r in rows(folder)}["c2st_mean"]
        text = (folder / "out" / "README.md").read_text()
        assert ("are drawn anew for every method" in text) is inside
    assert found[True] == pytest.approx(0.5, abs=0.07)
    assert found[False] > 0.6
    inside_box = TASKS["linear_uniform"].inside
    y = torch.full((1, 10), 5.0)
    with pytest.raises(VspairError, match=r"Of 8,000 samples .* 0 lie in the prior's box and 4 "):
        study._draw(Normal(), y, 4, 0, inside_box)


def test_samples_of_ours_include_the_noise() -> None:
    """Without it, samples of a model with few factors lie on few lines."""
    pairs = Case(PRESET, "two_moons", 0).pairs(100)
    method = METHODS[PRESET](pairs, 0, **study.BRIEF[PRESET])
    assert getattr(method.posterior(pairs.y[:2]), "noise", True)


def test_each_seed_has_its_own_pairs_and_all_methods_have_the_same() -> None:
    a, b = (Case("a", "slcp", seed).pairs(5).x for seed in (0, 1))
    assert not torch.equal(a, b)
    assert torch.equal(a, Case("b", "slcp", 0).pairs(5).x)


def test_made_references_are_of_their_observations() -> None:
    """Posterior samples of the mixture lie around what was observed."""
    made = load(replace(FEW, task="gaussian_mixture"))
    reference = made.references["gaussian_mixture"]
    assert made.source == "made here"
    assert reference.samples.shape == (3, 60, 2)
    near = (reference.samples - reference.y[:, None]).norm(dim=-1).median(1).values
    assert near.max() < 1


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(VspairError, match="task = 'moons': expected one of two_moons, gauss"):
        Scale(task="moons")


def test_methods_are_chosen_and_unknown_ones_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Scale(methods="npe,anchored").chosen == ["anchored", "npe"]
    with pytest.raises(
        VspairError, match="methods = 'moon': expected some of anchored, flow, npe"
    ):
        load(replace(FEW, methods="anchored,moon"))
    monkeypatch.setattr(study, "find_spec", lambda name: None if name == "sbi" else name)
    with pytest.raises(VspairError, match=r"methods = 'npe' needs sbi, .*: pip install sbi, or"):
        load(replace(FEW, methods="npe"))
    for there, expected in ((False, "anchored,flow"), (True, "anchored,flow,npe")):
        monkeypatch.setattr(study, "has_sbi", lambda there=there: there)
        assert Scale().methods == expected


def test_a_method_is_added_and_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "exact samples", lambda pairs, seed: Exact("two_moons", seed))
    scale = replace(FEW, task="two_moons", methods="flow")
    assert reproduce(tmp_path, scale) is not None
    kept = tmp_path / "runs" / "answers" / "samples" / f"{Case('flow', 'two_moons', 0).name}.npz"
    before = kept.stat().st_mtime_ns
    assert reproduce(tmp_path, replace(scale, methods="flow,exact samples")) is not None
    assert kept.stat().st_mtime_ns == before
    assert {row["model"] for row in rows(tmp_path)} == {"flow", "exact samples"}


class _Density(torch.nn.Module):
    """What stands for the density of sbi: y, moved by unit noise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(5))

    def sample(self, shape: torch.Size, condition: Tensor) -> Tensor:
        return condition + torch.randn(*shape, *condition.shape)


class _Npe:
    """What stands for the training of sbi, and remembers what it was told."""

    told: ClassVar[dict[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        self.told.clear()
        self.told.update(options)

    def append_simulations(self, x: Tensor, y: Tensor) -> None:
        self.told["shapes"] = x.shape, y.shape

    def train(self, **options: Any) -> _Density:
        self.told.update(options, chance=torch.rand(()))
        return _Density()


def test_sbi_is_asked_with_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npe, "_load_npe", lambda: _Npe)
    pairs = Case("npe", "two_moons", 0).pairs(50)
    before = torch.get_rng_state()
    method = METHODS["npe"](pairs, 3)
    assert torch.equal(before, torch.get_rng_state())
    assert _Npe.told["density_estimator"] == "maf"
    assert _Npe.told["shapes"] == ((50, 2), (50, 2))
    assert "max_num_epochs" not in _Npe.told
    first = _Npe.told["chance"]
    METHODS["npe"](pairs, 3, epochs=2)
    assert (_Npe.told["max_num_epochs"], _Npe.told["chance"]) == (2, first)  # of the seed
    post = method.posterior(pairs.y[:4])
    drawn = post.sample(3000, Generator().manual_seed(0))
    assert drawn.shape == (3000, 4, 2)
    torch.testing.assert_close(drawn.mean(0), pairs.y[:4], rtol=0, atol=0.1)
    assert torch.equal(drawn, post.sample(3000, Generator().manual_seed(0)))
    assert not torch.equal(drawn, post.sample(3000, Generator().manual_seed(1)))
    with pytest.raises(VspairError, match=r"y has shape \(50, 1\)"):
        method.posterior(pairs.y[:, :1])


def test_without_sbi_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npe, "has_sbi", lambda: False)
    with pytest.raises(VspairError, match="not installed: pip install sbi"):
        npe.train_npe(torch.randn(20, 2), torch.randn(20, 2))


def test_what_is_published_is_of_tasks_that_are_there() -> None:
    tasks = {key.removeprefix("c2st, ") for each in WORDS.paper.values() for key in each}
    assert tasks == set(TASKS) == set(WORDS.names)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "SMOKE", FEW)
    done = CliRunner().invoke(app, ["reproduce", "sbibm", "--smoke", "--task", "two_moons"])
    assert done.exit_code == 0, done.output
    out = tmp_path / "results" / "sbibm-made-smoke-two_moons"
    (out / "samples.png").unlink()
    again = ["reproduce", "sbibm", "--draw", "--out", str(out)]
    assert "Drew" in CliRunner().invoke(app, again).output
    assert (out / "samples.png").exists()


def test_the_smoke_scale_is_small() -> None:
    assert SMOKE.brief
    assert SMOKE.pairs * SMOKE.samples < 1e6
