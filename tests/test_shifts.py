"""Ridge regression with all shifts against ordinary ridge on every shifted pair."""

import math
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair.anchored import AnchoredModel
from vspair.anchors import RidgePath, ShiftPath
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.methods import ShiftRidge
from vspair.networks.spatial import Domain, Frame
from vspair.problems.heat import HeatProblem

PENALTIES = (1e-3, 1.0, 50.0)


def _pairs(count: int, shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(seed)
    y = torch.randn(count, *shape, generator=generator, dtype=torch.float64) + 2
    x = 0.5 * y + 0.3 * y.roll(1, -1) + 0.1 * torch.randn(y.shape, generator=generator) - 3
    return x, y


def _shifted(t: Tensor, size: tuple[int, ...]) -> Tensor:
    """Return all periodic shifts of data (N, C, *size) as rows."""
    dims = tuple(range(2, 2 + len(size)))
    moves = torch.cartesian_prod(*(torch.arange(s) for s in size)).reshape(math.prod(size), -1)
    return torch.cat([t.roll(tuple(m.tolist()), dims) for m in moves]).flatten(1)


@pytest.mark.parametrize(
    ("shape", "domain"),
    [((4, 4), "image"), ((2, 3, 5), "image"), ((7,), "signal"), ((6,), "signal")],
)
def test_filters_are_ridge_regression_on_every_shift(
    shape: tuple[int, ...], domain: Domain
) -> None:
    frame = Frame(shape, domain)
    x, y = _pairs(5, shape)
    new = _pairs(9, shape, seed=1)[1].flatten(1)
    every = [_shifted(frame.maps(t), frame.size) for t in (x, y)]
    wanted = RidgePath.fit(every[0], every[1], PENALTIES)(new.float())
    found = ShiftPath.fit(x.flatten(1), y.flatten(1), PENALTIES, frame=frame)(new)
    assert found.shape == (9, len(PENALTIES), math.prod(shape))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=3e-4)


def test_channels_that_are_the_same_are_no_trouble() -> None:
    """Smooth grey images stored in colour: matrices that have no inverse in float64."""
    frame, g = Frame((3, 16, 16), "image"), Generator().manual_seed(0)
    grey = torch.randn(60, 1, 16, 16, generator=g, dtype=torch.float64)
    for shift in (1, 2, 4):
        grey = grey + grey.roll(shift, -1) + grey.roll(shift, -2)
    y = grey.expand(-1, 3, -1, -1).flatten(1)
    found = ShiftPath.fit(2 * y, y, frame=frame)(y)
    assert found.isfinite().all()
    # Next to no penalty: as if one channel answered all three.
    torch.testing.assert_close(found[:, 4].double(), 2 * y, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 6), (2, 3, 5)])
def test_shift_ridge_is_least_squares_on_every_shift(shape: tuple[int, ...]) -> None:
    frame = Frame(shape, "image")
    x, y = _pairs(9, shape)
    new = _pairs(4, shape, seed=1)[1]
    every = [_shifted(frame.maps(t), frame.size) for t in (x, y)]
    weight = torch.linalg.lstsq(every[1], every[0]).solution
    expected = (new.flatten(1) @ weight).reshape(new.shape)
    torch.testing.assert_close(ShiftRidge(Pairs(x, y))(new), expected)


def test_shift_ridge_refuses_what_has_no_places() -> None:
    x = torch.randn(9, 4)
    with pytest.raises(VspairError, match="expected images of one shape"):
        ShiftRidge(Pairs(x, x))


def test_some_penalties_are_kept() -> None:
    frame = Frame((4, 4), "image")
    x, y = (t.flatten(1) for t in _pairs(5, (4, 4)))
    path = ShiftPath.fit(x, y, PENALTIES, frame=frame)
    every = path(y)
    path.keep([2, 0])
    torch.testing.assert_close(path(y), every[:, [2, 0]])
    assert path.penalties.tolist() == [50.0, 1e-3]


def test_fit_undoes_a_diffusion_as_well_as_its_filters_can(tmp_path: Path) -> None:
    """Without noise a smoothing is undone; ordinary ridge has too few pairs to learn that."""
    problem = HeatProblem(size=8, modes=3, time=3.0)
    x, y = problem.pairs(120, seed=0)[:2]
    test_x, test_y = problem.pairs(50, seed=1)[:2]
    model = vspair.fit(
        x, y, out=tmp_path / "run", anchor="ridge", epochs=1, progress=False, seed=0
    )
    assert isinstance(model, AnchoredModel)
    assert model.made.ridge == "shifts"
    error, floor = (
        float((answer - test_x).double().square().mean())
        for answer in (model.posterior(test_y).mean(), ShiftRidge(Pairs(x, y))(test_y))
    )
    assert error < 1.05 * floor + 1e-12
    again = vspair.load(tmp_path / "run")
    assert torch.equal(again.posterior(test_y).mean(), model.posterior(test_y).mean())
