"""The heat problem against trajectories of Dedalus, made by golden/make_heat.py.

On an even grid Dedalus drops the Nyquist modes, those of wave number n / 2 in either direction,
when it first leaves the grid. With them dropped here too the fields are equal; with them kept,
every other mode is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vspair.problems.heat import PAPER_STEP, HeatProblem, Source, rk222

GOLDEN = Path(__file__).with_name("golden") / "heat.npz"
CASES = ["series", "source", "both", "white", "small", "stiff"]


def golden(case: str) -> tuple[Tensor, list[tuple[HeatProblem, Tensor]]]:
    """Return the initial field, and for each time the problem and Dedalus' solution."""
    with np.load(GOLDEN) as file:
        x, u, times, kappa, step = (
            file[f"{case}/{name}"] for name in ("x", "u", "times", "kappa", "step")
        )
    settings: dict[str, Any] = {"size": len(x), "modes": 2, "kappa": float(kappa)}
    runs = [
        (HeatProblem(time=float(t), step=float(step), nyquist=False, **settings), answer)
        for t, answer in zip(times, torch.from_numpy(u), strict=True)
    ]
    return torch.from_numpy(x), runs


def nyquist(size: int) -> Tensor:
    """Return which modes of fft2 have wave number size / 2 in either direction."""
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[size // 2] = mask[:, size // 2] = True
    return mask


def test_the_golden_file_is_the_paper_s_run() -> None:
    for case in ("series", "source", "both", "white"):
        x, runs = golden(case)
        settings = [(p.size, p.kappa, p.step, p.time) for p, _ in runs]
        assert settings == [(16, 0.02, PAPER_STEP, t) for t in (0.5, 1.0, 3.0)]
        assert (x - runs[-1][1]).abs().max() > 0.3


@pytest.mark.parametrize("case", CASES)
def test_rk222_without_nyquist_modes_is_dedalus(case: str) -> None:
    x, runs = golden(case)
    for problem, answer in runs:
        assert (problem.forward(x) - answer).abs().max() < 1e-11


@pytest.mark.parametrize("case", CASES)
def test_dedalus_drops_the_nyquist_modes(case: str) -> None:
    x, runs = golden(case)
    at = nyquist(len(x))
    wave = torch.fft.fftfreq(len(x), 1 / len(x), dtype=torch.float64)
    for problem, answer in runs:
        kept = replace(problem, nyquist=True)
        ours, theirs = (torch.fft.fft2(f, norm="ortho") for f in (kept.forward(x), answer))
        assert (ours - theirs)[~at].abs().max() < 1e-10
        assert theirs[at].abs().max() < 1e-13
        assert problem.step is not None
        z = -problem.kappa * problem.step * (wave[:, None] ** 2 + wave**2)
        left = torch.fft.fft2(x, norm="ortho") * rk222(z) ** round(problem.time / problem.step)
        torch.testing.assert_close(ours[at], left[at], rtol=0, atol=1e-12)


def test_what_is_lost_at_the_nyquist_modes() -> None:
    lost = {}
    for case in ("series", "both", "white"):
        x, runs = golden(case)
        lost[case] = float((HeatProblem(step=PAPER_STEP).forward(x) - runs[-1][1]).abs().max())
    assert lost["series"] < 1e-11
    assert 1e-6 < lost["both"] < 1e-4
    assert lost["white"] > 1e-3


def test_dedalus_has_the_same_grid() -> None:
    axis = torch.arange(16, dtype=torch.float64) * (2 * math.pi / 16)
    rows, columns = axis[:, None], axis
    series = 0.25 + 0.8 * torch.cos(rows + 0.3) + 0.5 * torch.sin(2 * columns - 1.1)
    series = series + 0.4 * torch.cos(3 * rows - 2 * columns)
    series = series + 0.2 * torch.sin(4 * rows + 3 * columns + 0.7)
    amplitude, width = torch.tensor([[3.0], [0.45]], dtype=torch.float64)
    source = Source(amplitude, width, torch.tensor([[1.3, 4.1]], dtype=torch.float64)).field(16)
    for case, expected in (
        ("series", series),
        ("source", source[0]),
        ("both", series + source[0]),
    ):
        torch.testing.assert_close(golden(case)[0], expected, rtol=0, atol=1e-13)
