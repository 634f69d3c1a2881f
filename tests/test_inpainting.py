"""Blind inpainting: the law of the masks, the pairs, the stand-in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from vspair.errors import VspairError
from vspair.problems.inpainting import (
    InpaintingData,
    InpaintingProblem,
    mnist_pairs,
    toy_digits,
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def masks(problem: InpaintingProblem, n: int, side: tuple[int, int] = (28, 28)) -> Tensor:
    return problem.corrupt(torch.ones(n, *side), seeded())[1]


def chance(problem: InpaintingProblem, length: int) -> Tensor:
    """Return the chance that one square covers each pixel of an axis, with shape (length,)."""
    places = length - problem.size + 1
    hits = [sum(s <= i < s + problem.size for s in range(places)) for i in range(length)]
    return torch.tensor(hits, dtype=torch.float64) / places


def hit(problem: InpaintingProblem, height: int, width: int) -> Tensor:
    """Return the chance that each pixel is deleted, with shape (height, width)."""
    one = chance(problem, height)[:, None] * chance(problem, width)
    return 1 - (1 - one) ** problem.patches


def corners(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of the first deleted pixel of each mask (n, H, W)."""
    return mask.any(2).int().argmax(1), mask.any(1).int().argmax(1)


# -- the corruption -------------------------------------------------------------------------


def test_the_share_deleted_is_that_of_the_closed_form() -> None:
    problem = InpaintingProblem()
    exact = float(hit(problem, 28, 28).mean())
    assert exact == pytest.approx(0.27, abs=5e-4)
    share = masks(problem, 6000).double().mean((1, 2))
    assert float(share.mean()) == pytest.approx(exact, abs=5 * float(share.std()) / 6000**0.5)


@pytest.mark.parametrize(
    ("problem", "side"),
    [
        (InpaintingProblem(), (28, 28)),
        (InpaintingProblem(patches=3, size=4), (9, 14)),
        (InpaintingProblem(patches=2, size=1), (3, 5)),
    ],
)
def test_each_pixel_is_deleted_as_often_as_it_should(
    problem: InpaintingProblem, side: tuple[int, int]
) -> None:
    n, p = 8000, hit(problem, *side)
    error = masks(problem, n, side).double().mean(0) - p
    assert float((error / (p * (1 - p) / n).sqrt()).abs().max()) < 5


def test_every_place_is_as_likely_as_any_other() -> None:
    n, mask = 24000, masks(InpaintingProblem(patches=1), 24000)
    assert torch.equal(mask.sum((1, 2)), torch.full((n,), 25))
    rows, columns = corners(mask)
    counts = torch.bincount(24 * rows + columns, minlength=576).double()
    assert len(counts) == 576
    assert counts.min() > 0
    # Chi-squared with 575 degrees of freedom: mean 575, deviation 34.
    assert 575 - 5 * 34 < float(((counts - n / 576) ** 2 / (n / 576)).sum()) < 575 + 5 * 34


def test_squares_are_whole_inside_and_in_every_corner() -> None:
    mask = masks(InpaintingProblem(patches=1), 8000)
    rows, columns = corners(mask)
    assert int(rows.max()) == int(columns.max()) == 23
    i = torch.arange(28)
    inside = (i >= rows[:, None]) & (i < rows[:, None] + 5)
    across = (i >= columns[:, None]) & (i < columns[:, None] + 5)
    assert torch.equal(mask, inside[:, :, None] & across[:, None, :])
    for row in (0, 23):
        for column in (0, 23):
            assert ((rows == row) & (columns == column)).any()


def test_images_are_corrupted_independently() -> None:
    n = 20000
    rows, columns = corners(masks(InpaintingProblem(patches=1), n))
    for a, b in ((rows[1:], rows[:-1]), (columns[1:], columns[:-1]), (rows, columns)):
        r = torch.corrcoef(torch.stack([a, b]).double())[0, 1]
        assert abs(float(r)) < 5 / n**0.5
    same = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    assert float(same.double().mean()) == pytest.approx(1 / 576, rel=0.8)


def test_squares_of_an_image_are_independent_and_may_overlap() -> None:
    n, problem = 20000, InpaintingProblem(patches=2, size=2)
    deleted = masks(problem, n, (5, 5)).sum((1, 2))
    # Two squares of side 2 at 4x4 places: along an axis they share 2, 1 or 0 pixels.
    axis = {2: 4 / 16, 1: 6 / 16, 0: 6 / 16}
    for shared in (4, 2, 1, 0):
        p = sum(axis[a] * axis[b] for a in axis for b in axis if a * b == shared)
        seen = float((deleted == 8 - shared).double().mean())
        assert seen == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)


def test_the_generator_fixes_the_squares() -> None:
    problem, x = InpaintingProblem(), torch.rand(50, 28, 28)
    (y, mask), (again, same) = problem.corrupt(x, seeded(1)), problem.corrupt(x, seeded(1))
    assert torch.equal(y, again)
    assert torch.equal(mask, same)
    assert not torch.equal(mask, problem.corrupt(x, seeded(2))[1])
    generator = seeded(1)
    problem.corrupt(x, generator)
    assert not torch.equal(mask, problem.corrupt(x, generator)[1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [-1.0, 0.0, 0.25])
def test_deleted_pixels_are_filled_and_others_left(
    device: str, dtype: torch.dtype, fill: float
) -> None:
    x = torch.rand(40, 28, 28, dtype=torch.float64).to(device, dtype)
    before = x.clone()
    y, mask = InpaintingProblem(fill=fill).corrupt(x, seeded())
    assert (y.dtype, y.device, y.shape) == (x.dtype, x.device, x.shape)
    assert (mask.dtype, mask.device, mask.shape) == (torch.bool, x.device, x.shape)
    assert (y[mask] == fill).all()
    assert torch.equal(y[~mask], x[~mask])
    assert torch.equal(x, before)
    expected = InpaintingProblem(fill=fill).corrupt(before.cpu(), seeded())
    assert torch.equal(mask.cpu(), expected[1])


@pytest.mark.parametrize("device", [*DEVICES, "meta"])
def test_images_stay_on_their_device(device: str) -> None:
    # The meta device computes shapes alone, and refuses a tensor of another device.
    x = torch.empty(3, 28, 28, device=device)
    y, mask = InpaintingProblem().corrupt(x, seeded())
    assert y.device.type == mask.device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_a_generator_of_the_images_device_serves_too(device: str) -> None:
    generator = Generator(device).manual_seed(0)
    y, mask = InpaintingProblem().corrupt(torch.ones(500, 28, 28, device=device), generator)
    assert torch.equal(mask, y == -1)
    assert float(mask.double().mean()) == pytest.approx(0.27, abs=0.01)


def test_the_corrupted_region_is_what_changed() -> None:
    x = torch.from_numpy(toy_digits(100, seed=0)).float() / 127.5 - 1
    y, mask = InpaintingProblem().corrupt(x, seeded())
    changed = InpaintingProblem.changed(x, y)
    assert changed.dtype == torch.bool
    assert torch.equal(changed, mask & (x > -1))
    assert 0 < int(changed.sum()) < int(mask.sum())


# -- the pairs ------------------------------------------------------------------------------


def tensors(data: InpaintingData) -> list[Tensor]:
    return [data.train.x, data.train.y, data.test.x, data.test.y]


def test_pairs_are_split_typed_and_in_range() -> None:
    data = mnist_pairs(toy_digits(60, seed=0), seed=3, train=54)
    assert [len(t) for t in tensors(data)] == [54, 54, 6, 6]
    for t in tensors(data):
        assert t.dtype == torch.float32
        assert (float(t.min()), float(t.max())) == (-1.0, 1.0)
    for pairs in (data.train, data.test):
        lost = InpaintingProblem.changed(pairs.x, pairs.y)
        assert lost.any()
        assert torch.equal(pairs.y, torch.where(lost, -1.0, pairs.x))


def test_every_image_is_there_once_in_another_order() -> None:
    images = torch.from_numpy(toy_digits(60, seed=0)).float() / 127.5 - 1
    data = mnist_pairs(toy_digits(60, seed=0), seed=3, train=50)
    x = torch.cat([data.train.x, data.test.x])
    same = (x[:, None] - images).abs().amax((2, 3)) < 1e-4
    assert torch.equal(same.sum(0), torch.ones(60, dtype=torch.long))
    assert not torch.equal(same.int().argmax(1), torch.arange(60))


def test_the_seed_fixes_pairs_whatever_the_range_and_the_split() -> None:
    images = toy_digits(60, seed=0)
    data = mnist_pairs(images, seed=1, train=50)
    for one, other in zip(
        tensors(data), tensors(mnist_pairs(images, seed=1, train=50)), strict=True
    ):
        assert torch.equal(one, other)
    assert not torch.equal(data.train.x, mnist_pairs(images, seed=2, train=50).train.x)
    unit = mnist_pairs(torch.from_numpy(images), seed=1, low=0.0, train=40)
    torch.testing.assert_close(2 * unit.test.x[10:] - 1, data.test.x)
    torch.testing.assert_close(2 * unit.test.y[10:] - 1, data.test.y)
    assert (float(unit.test.y.min()), float(unit.test.x.max())) == (0.0, 1.0)


def test_squares_take_the_least_value_of_the_data() -> None:
    images = np.maximum(toy_digits(20, seed=0), 51)
    train = mnist_pairs(images, seed=0, low=0.0, train=10).train
    assert float(train.x.min()) == pytest.approx(0.2)
    assert (train.y[train.y != train.x] == train.x.min()).all()


# -- the stand-in ---------------------------------------------------------------------------


def test_toy_digits_look_like_mnist_to_the_methods() -> None:
    images = toy_digits(500, seed=0)
    assert images.shape == (500, 28, 28)
    assert images.dtype == np.uint8
    assert images.min() == 0
    assert images.max() == 255
    # MNIST: 13 % of full ink, 19 % of the pixels inked.
    assert 0.10 < images.mean() / 255 < 0.18
    assert 0.15 < (images > 0).mean() < 0.27
    assert (images.reshape(500, -1).max(1) > 200).all()
    assert images[:, [0, -1]].mean() / 255 < 0.01
    assert len(np.unique(images.reshape(500, -1), axis=0)) == 500


def test_toy_digits_are_fixed_by_seed() -> None:
    assert np.array_equal(toy_digits(20, seed=1), toy_digits(20, seed=1))
    assert not np.array_equal(toy_digits(20, seed=1), toy_digits(20, seed=2))


# -- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"patches": 0}, "patches = 0: expected at least 1"),
        ({"size": 0}, "size = 0: expected at least 1"),
        ({"fill": float("nan")}, "fill = nan"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, float], words: str) -> None:
    with pytest.raises(VspairError, match=words):
        InpaintingProblem(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(28, 28), r"shape \(28, 28\)"),
        (torch.zeros(2, 1, 28, 28), r"shape \(2, 1, 28, 28\)"),
        (torch.zeros(2, 28, 28, dtype=torch.uint8), "uint8"),
        (torch.zeros(2, 28, 4), "side 5 does not fit"),
    ],
)
def test_wrong_images_are_named(x: Tensor, words: str) -> None:
    with pytest.raises(VspairError, match=words):
        InpaintingProblem().corrupt(x, seeded())


def test_wrong_pairs_are_named() -> None:
    images = toy_digits(10, seed=0)
    with pytest.raises(VspairError, match="train = 54000 of 10 images"):
        mnist_pairs(images, seed=0)
    with pytest.raises(VspairError, match="train = 0 of 10 images"):
        mnist_pairs(images, seed=0, train=0)
    with pytest.raises(VspairError, match=r"low = 1\.0, high = 1\.0"):
        mnist_pairs(images, seed=0, low=1.0, train=5)
    with pytest.raises(VspairError, match=r"shape \(10,\) and dtype uint8"):
        mnist_pairs(images[:, 0, 0], seed=0, train=5)
    with pytest.raises(VspairError, match="dtype float64"):
        mnist_pairs(images / 255, seed=0, train=5)  # type: ignore[arg-type]
    with pytest.raises(VspairError, match="n = 0"):
        toy_digits(0, seed=0)
