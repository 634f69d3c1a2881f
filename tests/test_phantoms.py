"""Phantoms of the chest: in range, different, anatomical and the same for the same seed."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from vspair.datasets.phantoms import chest_phantoms
from vspair.errors import VspairError


@pytest.fixture(scope="module")
def phantoms() -> Tensor:
    return chest_phantoms(64, Generator().manual_seed(0))


def test_values_are_those_of_normalised_slices(phantoms: Tensor) -> None:
    assert phantoms.shape == (64, 88, 88)
    assert phantoms.dtype == torch.float32
    assert torch.isfinite(phantoms).all()
    assert phantoms.min() >= 0
    assert phantoms.max() <= 1
    # The mean and the 99th percentile of real slices are 0.17 and 0.36.
    assert 0.13 < phantoms.mean() < 0.20
    assert 0.33 < phantoms.flatten().quantile(0.99) < 0.45


def test_no_two_are_alike(phantoms: Tensor) -> None:
    distance = torch.cdist(phantoms.flatten(1), phantoms.flatten(1)) + 1e3 * torch.eye(64)
    assert distance.min() > 1
    assert phantoms.std(0).mean() > 0.03


def test_the_chest_is_where_it_should_be(phantoms: Tensor) -> None:
    def share(region: Tensor, low: float, high: float) -> float:
        return float(((region > low) & (region < high)).float().mean())

    lungs = torch.cat((phantoms[:, 35:55, 15:28], phantoms[:, 35:55, 60:73]), 2)
    assert share(lungs, 0.02, 0.08) > 0.5
    spine = phantoms[:, 55:80, 38:50]
    assert share(spine, 0.36, 0.5) > 0.2
    assert share(phantoms[:, 10:50, 38:50], 0.36, 0.5) < 0.05
    clear = phantoms[(phantoms[:, 35:55, 15:28] < 0.1).float().mean((1, 2)) > 0.5]  # no liver
    heart = share(clear[:, 25:45, 52:62], 0.24, 0.34), share(clear[:, 25:45, 26:36], 0.24, 0.34)
    assert heart[0] > 1.4 * heart[1] > 0, "the heart is on the image's right"
    corners = phantoms[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners < 0.01).float().mean() > 0.7


def test_the_middle_slices_have_two_dark_lungs(phantoms: Tensor) -> None:
    dark = (phantoms < 0.1).float()
    rows = dark[:, 40:48].mean(1)
    both = (rows[:, 12:36].mean(1) > 0.4) & (rows[:, 52:76].mean(1) > 0.4)
    assert both.float().mean() > 0.5
    assert (rows[:, 41:47].mean(1) < rows[:, 12:36].mean(1)).float().mean() > 0.75


def test_soft_edges_carry_the_mean_from_size_to_size() -> None:
    mean = {}
    for size in (44, 88, 176):
        mean[size] = float(chest_phantoms(64, Generator().manual_seed(3), size=size).mean())
    assert mean[44] == pytest.approx(mean[176], rel=0.02)
    assert mean[88] == pytest.approx(mean[176], rel=0.02)


def test_the_seed_decides(phantoms: Tensor) -> None:
    few = chest_phantoms(5, Generator().manual_seed(0))
    assert torch.equal(few, phantoms[:5])
    many = chest_phantoms(70, Generator().manual_seed(0))
    assert torch.equal(many[:64], phantoms)
    assert not torch.equal(chest_phantoms(5, Generator().manual_seed(1)), few)


def test_wrong_sizes_are_named() -> None:
    with pytest.raises(VspairError, match="n = 0"):
        chest_phantoms(0, Generator())
    with pytest.raises(VspairError, match=r"size = 8.*16 pixels"):
        chest_phantoms(1, Generator(), size=8)
