"""The demonstration, on a tiny scale: what it leaves, and that its page loads nothing."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import vspair
from vspair.anchored import AnchoredModel
from vspair.errors import VspairError
from vspair.studies.demo.drawing import brief
from vspair.studies.demo.study import PROBLEM, demo
from vspair.training.interrupts import Interrupted
from vspair.vocabulary import look_up

FEW: dict[str, Any] = {"minutes": 0.001, "pairs": 100, "test": 20, "progress": False}


class _Links(HTMLParser):
    """Collects every address that a page names, and the tags that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in {"src", "href", "srcset", "data"}]


def links(html: str) -> _Links:
    parser = _Links()
    parser.feed(html)
    return parser


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "new"
    return out, demo(out, **FEW)


def test_it_leaves_a_run_numbers_figures_and_a_page(left: tuple[Path, dict[str, Any]]) -> None:
    out, summary = left
    assert json.loads((out / "metrics.json").read_text(encoding="utf-8")) == summary
    assert {p.name for p in out.iterdir()} == {"run", "metrics.json", "figures", "index.html"}
    figures = sorted(p.name for p in (out / "figures").iterdir())
    assert figures == ["answers.png", "coverage.png", "doubt.png", "factors.png", "pairs.png"]
    for path in (out / "figures").iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_part_of_its_training_is_better_than_ridge_and_covers(tmp_path: Path) -> None:
    """The whole demonstration has a fifth of ridge's error."""
    rows = demo(tmp_path / "new", minutes=0.03, pairs=600, test=60, progress=False)["rows"]
    mse = {row["model"]: row["value"] for row in rows if row["metric"] == "mse_mean"}
    assert mse["vsPAIR"] < 0.9 * mse["ridge"]
    inside = [row["value"] for row in rows if row["metric"].startswith("coverage_90")]
    assert len(inside) == 1  # samples include the grain, there is no second series
    assert 0.85 < inside[0] < 0.96


def test_the_run_can_be_used(left: tuple[Path, dict[str, Any]]) -> None:
    out, _ = left
    model = vspair.load(out / "run")
    _, y = PROBLEM.pairs(2, seed=5)
    assert isinstance(model, AnchoredModel)
    assert model.posterior(y).sample(3).shape == (3, 2, 16, 16)


def test_it_trains_what_fit_trains_by_default(left: tuple[Path, dict[str, Any]]) -> None:
    """The same call without a demonstration around it gives the same weights."""
    out, summary = left
    ours = vspair.load(out / "run").state_dict()
    again = vspair.fit(*PROBLEM.pairs(100, seed=0), minutes=0.001, device="cpu", progress=False)
    theirs = again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    presets = {row.get("preset", "") for row in summary["rows"] if row["model"] == "vsPAIR"}
    assert presets == {"anchored"}


def test_methods_stand_side_by_side_in_one_vocabulary(left: tuple[Path, dict[str, Any]]) -> None:
    _, summary = left
    assert all(look_up(row["metric"]) for row in summary["rows"])
    mse = {r["model"]: r["value"] for r in summary["rows"] if r["metric"] == "mse_mean"}
    assert set(mse) == {"vsPAIR", "ridge", "trivial-y", "trivial-mean", "wiener"}
    assert mse["wiener"] < mse["ridge"] < mse["trivial-y"] < mse["trivial-mean"]
    x, y = PROBLEM.pairs(20, seed=1)
    assert mse["trivial-y"] == pytest.approx(float((x - y).square().mean()))
    shares = [r["value"] for r in summary["rows"] if r["metric"].startswith("coverage")]
    assert len(shares) == 6
    assert all(0 <= s <= 1 for s in shares)
    assert (summary["scale"]["train"], summary["scale"]["test"]) == (100, 20)


def test_the_page_loads_nothing(left: tuple[Path, dict[str, Any]]) -> None:
    out, _ = left
    html = (out / "index.html").read_text(encoding="utf-8")
    found = links(html)
    assert found.addresses
    assert all(a.startswith("data:") for a in found.addresses)
    assert not {"script", "iframe", "object"} & set(found.tags)
    assert not re.search(r"https?://|url\(|@import", html)
    assert found.tags.count("img") == 5
    for word in ("Wiener", "90 %", "anchor", "grain", "structural", "What is not good"):
        assert word in html
    assert "nan" not in re.sub(r"data:[^\"]*", "", html).split()


def test_the_page_begins_with_the_verdict(left: tuple[Path, dict[str, Any]]) -> None:
    out, summary = left
    kept = json.loads((out / "run" / "verdict.json").read_text(encoding="utf-8"))
    assert summary["verdict"] == kept
    top = (out / "index.html").read_text(encoding="utf-8").split("<h2>")[0]
    assert len(kept["lines"]) == 3
    for line in kept["lines"]:
        head, words = line.split(": ", 1)
        assert f"<strong>{head}.</strong> {escape(words)}</li>" in top


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    with pytest.raises(VspairError, match="not empty"):
        demo(tmp_path, **FEW)
    with pytest.raises(VspairError, match="not empty"):
        demo(tmp_path / "mine.txt", **FEW)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("error", [Interrupted, VspairError])
def test_a_stopped_demo_leaves_nothing(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, out: Path, **__: Any) -> None:
        out.mkdir()
        (out / "config.toml").write_text("x", encoding="utf-8")
        (out.parent / ".metrics.json.part").write_text("x", encoding="utf-8")
        raise error

    monkeypatch.setattr("vspair.studies.demo.study.fit", stop)
    with pytest.raises(error):
        demo(tmp_path / "new", progress=False, pairs=50)
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(error):
        demo(tmp_path / "empty", progress=False, pairs=50)
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


def test_a_stopped_demo_keeps_what_others_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, out: Path, **__: Any) -> None:
        (out.parent / "mine.txt").write_text("keep", encoding="utf-8")
        raise Interrupted

    monkeypatch.setattr("vspair.studies.demo.study.fit", stop)
    with pytest.raises(Interrupted):
        demo(tmp_path / "new", progress=False, pairs=50)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["mine.txt"]


def test_a_disk_that_cannot_be_written_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(VspairError, match="No space left"):
        demo(tmp_path / "new", **FEW)
    assert not list(tmp_path.iterdir())


def test_the_terminal_shows_a_table(left: tuple[Path, dict[str, Any]]) -> None:
    lines = brief(left[1]).splitlines()
    assert len(lines) == 10
    assert len({len(line) for line in lines[1:]}) == 1
    assert max(map(len, lines)) < 80
    for word in ("vsPAIR", "Ridge", "Wiener", "Returning y", "mean field", "90 %", "Factors"):
        assert word in brief(left[1])
