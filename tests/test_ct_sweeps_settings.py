"""How appendix B's studies set rho and what they compile, at a scale of seconds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from vspair.cli import app
from vspair.objective import Objective
from vspair.studies import ct_sweeps as study
from vspair.studies.ct_data import CtData, draw
from vspair.studies.ct_sweeps import Point
from vspair.studies.ct_training import Bench

FEW = replace(study.SMOKE, train=20, test=6, samples=3, epochs=2)


@pytest.fixture(scope="module")
def data() -> CtData:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VSPAIR_DATA", raising=False)
        return draw(FEW)


def at(folder: Path, data: CtData) -> Bench:
    return Bench(FEW, data, folder, torch.device("cpu"))


@pytest.mark.parametrize(
    ("epochs", "rule"), [(0, "gradient"), (60, "closed"), (499, "closed"), (500, "gradient")]
)
def test_rho_is_in_closed_form_where_there_are_too_few_steps(
    epochs: int, rule: str, data: CtData, tmp_path: Path
) -> None:
    bench = replace(at(tmp_path, data), scale=replace(FEW, epochs=epochs))
    assert study._settings(bench)["objective.rho"] == rule
    assert study._trainer(bench, Point()).config.objective.rho == rule


@pytest.mark.parametrize("point", [Point(1, 1), Point(1, 64), Point(64, 2)])
def test_rho_is_where_its_prior_and_the_gates_want_it(
    point: Point, data: CtData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All training pairs are one batch, so an epoch is a step."""
    gates, plain = list[float](), Objective._steer

    def steer(objective: Objective, rho: nn.Parameter, omega: Tensor) -> None:
        gates.append(float(omega.detach().double().sum(1).mean()))
        plain(objective, rho, omega)

    monkeypatch.setattr(Objective, "_steer", steer)
    bench = at(tmp_path, data)
    assert study._work(bench, [point], study._settings(bench), 1, False)
    row = study.known(bench.answers)[point]["row"]
    assert len(gates) == FEW.epochs
    # The peak of rho^a (1 - rho)^b, with 16 gates that weigh lambda_1 gamma_x = 0.1 each.
    a = 0.1 * gates[row["best_epoch"] - 1] + point.alpha0 - 1
    b = 0.1 * (16 - gates[row["best_epoch"] - 1]) + point.beta0 - 1
    assert row["rho"] == pytest.approx(a / (a + b), rel=1e-4)
    if point != Point(1, 1):
        assert abs(row["rho"] - 0.5) > 0.4


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
