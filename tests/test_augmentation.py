"""Pairs that are moved around in every step, and trainings of images that are resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import vspair
from vspair import config as configs
from vspair.config import Config
from vspair.data import Pairs, random_shift
from vspair.errors import VspairError
from vspair.fitting import resume_training, split_pairs, start_training
from vspair.runs import Run


def test_channels_and_sides_of_any_length_move_together() -> None:
    x, y = torch.randn(5, 3, 6, 4), torch.randn(5, 6, 4)
    moved_x, moved_y = random_shift(x, y, Generator().manual_seed(0))
    moves = torch.stack([_move(a, b) for a, b in zip(y, moved_y, strict=True)])
    for before, after, move in zip(x, moved_x, moves, strict=True):
        assert torch.equal(torch.roll(before, move.tolist(), (1, 2)), after)
    assert len(moves.unique(dim=0)) > 1


def _move(before: Tensor, after: Tensor) -> Tensor:
    """Return how far an image was rolled down and right."""
    h, w = before.shape
    moves = torch.cartesian_prod(torch.arange(h), torch.arange(w))
    same = [torch.equal(torch.roll(before, m.tolist(), (0, 1)), after) for m in moves]
    assert sum(same) == 1
    return moves[same.index(True)]


def _images(augment: str = "shift", **model: Any) -> tuple[Tensor, Tensor, Config]:
    x = torch.randn(40, 8, 8)
    network = {"kind": "conv", "width": 4, "depth": 1}
    sizes = {"x_size": 6, "y_size": 5, "x_network": network, "y_network": network} | model
    changes = {"epochs": 3, "batch_size": 16, "augment": augment}
    c = configs.override(configs.preset("calibrated"), {"model": sizes, "training": changes})
    return x, 0.5 * x + 0.1, c


@pytest.mark.parametrize("augment", ["none", "shift"])
def test_images_resume_bitwise_with_their_moments_and_shifts(augment: str, tmp_path: Path) -> None:
    """Convolutions keep their weights in another order in memory than a file has them."""
    x, y, c = _images(augment)
    whole = vspair.fit(x, y, config=c, progress=False)
    parts = split_pairs(Pairs(x, y), c)
    stopped = start_training(*parts, c, out=tmp_path / "run")
    steps = stopped.run_steps([])
    for _ in range(4):
        next(steps)
    stopped.save()
    steps.close()
    again = resume_training(*parts, Run(tmp_path / "run"), torch.device("cpu"))
    again.train(show=False)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            whole.state_dict().values(), again.model.state_dict().values(), strict=True
        )
    )


def test_shifts_move_pairs_together_and_anew_in_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y, c = _images()
    trainer = start_training(*split_pairs(Pairs(x, y), c), c)
    plain, seen = trainer.objective, []

    def objective(*given: Any) -> Any:
        seen.append(given[1:3])
        return plain(*given)

    monkeypatch.setattr(trainer, "objective", objective)
    batch = torch.arange(4)
    for _ in range(2):
        trainer._step(batch, "joint")
    (a, b), (again, _) = seen
    torch.testing.assert_close(a, b)
    assert not torch.equal(a, again)
    assert torch.equal(a.flatten(1).sort().values, trainer.x[batch].flatten(1).sort().values)


def test_shifts_of_what_cannot_be_moved_are_refused() -> None:
    x, y = torch.randn(40, 3), torch.randn(40, 2)
    with pytest.raises(VspairError, match="augment = 'shift'"):
        vspair.fit(x, y, preset="calibrated", augment="shift", progress=False)
    x, y, c = _images(normalise="feature")
    with pytest.raises(VspairError, match="feature"):
        vspair.fit(x, y, config=c, progress=False)
