"""Mirrored images: the symmetries themselves, and when networks learn from them."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from vspair import config as configs
from vspair.data import Pairs
from vspair.training.anchored import AnchoredTraining
from vspair.training.doubt import Doubt
from vspair.training.mirrors import mirror, symmetry
from vspair.training.prepared import MANY_PAIRS, help_of, prepare


def _set(images: list[Tensor]) -> set[tuple[float, ...]]:
    return {tuple(image.flatten().tolist()) for image in images}


def test_all_symmetries_of_a_square_are_turns_and_mirrored_turns() -> None:
    square = torch.arange(9.0).reshape(3, 3)
    turns = [torch.rot90(square, k) for k in range(4)]
    expected = _set([*turns, *(turn.flip(0) for turn in turns)])
    assert _set([symmetry(square, which) for which in range(8)]) == expected
    assert len(expected) == 8
    assert torch.equal(symmetry(square, 0), square)


@pytest.mark.parametrize(("shape", "ways"), [((4, 4), 8), ((2, 4), 4)])
def test_images_that_belong_together_are_mirrored_alike(shape: tuple[int, int], ways: int) -> None:
    generator = Generator().manual_seed(0)
    image = torch.rand(shape)
    found = []
    for _ in range(100):
        one, three = mirror((image[None], torch.stack(3 * [image + 1])[None]), generator)
        assert one.shape[-2:] == (shape if ways == 4 else (4, 4))
        torch.testing.assert_close(three - 1, torch.stack(3 * [one[0]])[None])
        found.append(one)
    assert len(_set(found)) == ways


def test_only_training_pairs_are_mirrored() -> None:
    x = torch.rand(5, 4, 4)
    doubt, rows = Doubt(x[:, None], x, mirrored=True), torch.tensor([1, 3])
    assert torch.equal(doubt.take(rows).residual, x[rows])
    taken = [doubt.take(rows, Generator().manual_seed(seed)) for seed in range(20)]
    assert all(torch.equal(each.seen[:, 0], each.residual) for each in taken)
    assert len(_set([each.residual for each in taken])) > 4
    plain = Doubt(x[:, None], x)
    assert torch.equal(plain.take(rows, Generator().manual_seed(1)).residual, x[rows])


@pytest.mark.parametrize("alike", [True, False])
def test_mirrors_are_for_images_whose_sides_are_alike(alike: bool) -> None:
    """All neighbours in y say the same of x; or those above the opposite of those below."""
    g = Generator().manual_seed(0)
    y = torch.randn(150, 8, 8, generator=g)
    above, below, left, right = (y.roll(n, dim).abs() for dim in (1, 2) for n in (1, -1))
    x = above + below + left + right if alike else above - below
    x = x + 0.5 * torch.randn(150, 8, 8, generator=g)
    said: list[str] = []
    changes = {"anchored": {"width": 8}, "training": {"epochs": 12, "batch_size": 16}}
    c = configs.override(configs.preset("anchored"), changes)
    pairs, groups = Pairs(x, y), torch.arange(150)
    training = AnchoredTraining(pairs, pairs, c, groups=groups, say=said.append)
    model, data = prepare(pairs, None, groups, c, lambda _: None)
    doubt = training._anchor(model, data, False)
    assert doubt.mirrored == alike
    assert f"networks: {'with' if alike else 'without'} mirrors, by the first fold" in said


def test_mirrors_are_not_tried_where_pairs_are_many_or_have_no_sides() -> None:
    c = configs.preset("anchored")
    assert help_of("image", c, MANY_PAIRS) == "mirrors"
    assert help_of("image", c, MANY_PAIRS + 1) == ""
    assert help_of("signal", c, 100) == ""
    assert help_of("vector", c, 100) == "dropout"
    without = configs.override(c, {"anchored": {"mirrors": False}})
    assert help_of("image", without, 100) == ""
