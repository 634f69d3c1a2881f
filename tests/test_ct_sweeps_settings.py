"""How appendix B's studies are trained, on what and by what means, at a scale of seconds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vspair.cli import app
from vspair.errors import VspairError
from vspair.problems.ct import Geometry
from vspair.studies.ct.data import GEOMETRY, HALF, CtData, draw
from vspair.studies.ct.training import Bench
from vspair.studies.ct_sweeps import study
from vspair.studies.ct_sweeps.study import Point

FEW = replace(study.SMOKE, train=20, test=6, samples=3, epochs=2)


@pytest.fixture(scope="module")
def data() -> CtData:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VSPAIR_DATA", raising=False)
        return draw(FEW)


def at(folder: Path, data: CtData) -> Bench:
    return Bench(FEW, data, folder, torch.device("cpu"))


@pytest.mark.parametrize("epochs", [0, 60, 500])
def test_rho_is_learned_as_in_the_paper(epochs: int, data: CtData, tmp_path: Path) -> None:
    bench = replace(at(tmp_path, data), scale=replace(FEW, epochs=epochs))
    assert study._settings(bench)["objective.rho"] == "gradient"
    trainer = study._trainer(bench, Point())
    assert trainer.config.objective.rho == "gradient"
    assert trainer.config.training.keep == "last"
    assert trainer.config.training.epochs == (epochs or 500)


def test_half_the_resolution_is_a_study_of_its_own(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices are averaged over 2x2 pixels, and split as in the whole study."""
    monkeypatch.delenv("VSPAIR_DATA", raising=False)
    halved = draw(FEW, geometry=HALF)
    assert tuple(halved.train.x.shape[1:]) == (44, 44)
    assert tuple(halved.test.y.shape[1:]) == (62, 64)
    for part in ("train", "validation", "test"):
        whole = getattr(data, part).x
        mean = whole.unflatten(2, (44, 2)).unflatten(1, (44, 2)).mean((2, 4))
        torch.testing.assert_close(getattr(halved, part).x, mean)
    assert halved.patients == data.patients
    bench = at(tmp_path, halved)
    assert study._work(bench, [Point(1, 1)], study._settings(bench), 1, False)
    with pytest.raises(VspairError, match=r"geometry is 44x44 image, 62 angles.* there and 88"):
        study.known(bench.answers, study._settings(at(tmp_path, data)))
    with pytest.raises(VspairError, match=r"another geometry: 44x44.*expected 88x88.*Give --half"):
        study.reproduce(tmp_path / "out", folder=tmp_path, only="report")
    assert not (tmp_path / "out").exists()
    text = study.reproduce(tmp_path / "out", folder=tmp_path, only="report", half=True)
    assert text is not None
    assert "`vspair reproduce ct-sweeps --half --smoke`" in text
    assert (
        "averaged once more: 44x44 image, 62 angles, 64 detector pixels; the paper's: 88" in text
    )


@pytest.mark.parametrize(
    "geometry",
    [
        replace(GEOMETRY, shape=(176, 176), pixel=1 / 88),
        replace(GEOMETRY, shape=(50, 50), pixel=2 / 50),
        replace(HALF, pixel=2 / 88),
        replace(HALF, shape=(44, 22)),
    ],
)
def test_pixels_cover_whole_pixels(geometry: Geometry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VSPAIR_DATA", raising=False)
    with pytest.raises(VspairError, match=r"expected pixels that cover whole ones"):
        draw(FEW, geometry=geometry)


@pytest.mark.parametrize(
    ("words", "name", "geometry"),
    [
        ([], "ct-sweeps-phantoms", GEOMETRY),
        (["--half"], "ct-sweeps-half-phantoms", HALF),
        (["--half", "--epochs", "500"], "ct-sweeps-half-phantoms", HALF),
        (["--half", "--epochs", "3"], "ct-sweeps-half-phantoms-part", HALF),
        (["--half", "--smoke"], "ct-sweeps-half-smoke", HALF),
    ],
)
def test_half_and_parts_have_folders_of_their_own(
    words: list[str], name: str, geometry: Geometry, data: CtData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[Any] = []

    def drawn(*given: Any) -> CtData:
        asked.append(given[2])
        return data

    monkeypatch.delenv("VSPAIR_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "draw", drawn)
    monkeypatch.setattr(study, "_work", lambda bench, *_: asked.append(bench.folder))
    done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", "--device", "cpu", *words])
    assert done.exit_code == 0, done.output
    assert asked == [geometry, Path("runs", name)]


def test_compiling_is_a_means(
    data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the trainings, and answers made without it are not refused."""
    asked: list[Bench] = []

    def work(bench: Bench, *_: Any) -> bool:
        asked.append(bench)
        return False

    monkeypatch.setattr(study, "draw", lambda *_: data)
    monkeypatch.setattr(study, "_work", work)
    words = ["--smoke", "--device", "cpu", "--runs", str(tmp_path)]
    for more in ([], ["--compile"]):
        done = CliRunner().invoke(app, ["reproduce", "ct-sweeps", *words, *more])
        assert done.exit_code == 0, done.output
    assert [bench.compile for bench in asked] == [False, True]
    assert study._settings(asked[0]) == study._settings(asked[1])
