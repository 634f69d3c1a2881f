"""Slices for computed tomography: LoDoPaB-CT, a compact file of slices, or phantoms.

Leuschner et al., "LoDoPaB-CT, a benchmark dataset for low-dose computed tomography
reconstruction", Scientific Data 8 (2021), doi 10.5281/zenodo.3384092. Nothing is downloaded.

**LoDoPaB-CT** lies flat in one folder: ``ground_truth_PART_000.hdf5`` and on, with 128 slices a
file, and ``observation_PART_000.hdf5`` with their sinograms, each under the name ``data``. The
last file of ground truth is filled up with zeros, so that the number of slices is not to be taken
from the files; it is in :data:`LENGTHS`. ``patient_ids_rand_PART.csv`` has one line a slice.
A stored image is the transpose of what a radiologist sees, and the detector turns the other way
round; with ``upright`` an image has anterior up, and its sinogram is flipped along both axes, so
that it is the one of the upright image in the frame of :class:`vspair.problems.ct.Geometry`.

**Compact slices** are two files, ``ct_*train.npz`` and ``ct_*test.npz``, of upright slices that
are 88x88 already:

===========  ==================  =================================================================
``hi, lo``   (N, 88, 88) uint8   the upper and the lower byte of a slice's 16-bit integers
``scale``    a number            by which they are divided to give values in [0, 1]
``patient``  (N,) text           which slices belong together
``order``    (N,) integers       optional: a shuffled order to take slices in
===========  ==================  =================================================================
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from vspair.data import load_array
from vspair.datasets.phantoms import chest_phantoms
from vspair.errors import VspairError
from vspair.problems.ct.problem import coarsen

__all__ = [
    "LENGTHS",
    "CtSlices",
    "Lodopab",
    "Slices",
    "load_compact",
    "load_slices",
    "split_patients",
]

Part = Literal["train", "validation", "test"]

LENGTHS: dict[str, int] = {"train": 35820, "validation": 3522, "test": 3553}
"""The number of slices in each part."""

PAPER_TRAIN, PAPER_TEST = 3000, 1600
"""How many slices section 4.3 trains and tests on; the latter half from validation, half from
test."""

_PER_FILE, _SIDE, _SINOGRAM = 128, 362, (1000, 513)
_SITE = "https://doi.org/10.5281/zenodo.3384092"


# -- the files of LoDoPaB-CT ----------------------------------------------------------------


@dataclass(frozen=True)
class Lodopab:
    """One part of LoDoPaB-CT, read a slice at a time.

    Arguments:
        folder: Where the unpacked files lie.
        part: ``train``, ``validation`` or ``test``.
        upright: Whether images and sinograms are turned so that anterior is up, as everywhere
            else in vspair. If not, they are as stored.
    """

    folder: Path
    part: Part
    upright: bool = True

    def __post_init__(self) -> None:
        if self.part not in LENGTHS:
            raise VspairError(f"part = {self.part!r}: expected {', '.join(LENGTHS)}.")
        object.__setattr__(self, "folder", Path(self.folder))

    def __len__(self) -> int:
        return LENGTHS[self.part]

    def images(self, indices: Sequence[int]) -> Tensor:
        """Return slices in [0, 1], float32, with shape (k, 362, 362)."""
        x = self._read("ground_truth", indices, (_SIDE, _SIDE))
        return x.mT.contiguous() if self.upright else x

    def observations(self, indices: Sequence[int]) -> Tensor:
        """Return sinograms, float32, in metres, with shape (k, 1000, 513)."""
        y = self._read("observation", indices, _SINOGRAM)
        return y.flip(-2, -1) if self.upright else y

    def coarse(self, indices: Sequence[int], factor: int = 4, size: int = 88) -> Tensor:
        """Return slices as section 4.3 takes them, float32, with shape (k, size, size)."""
        # A file's worth at a time: 3,000 slices at full size would take 1.6 GB.
        parts = torch.arange(len(indices)).split(_PER_FILE)
        return torch.cat(
            [coarsen(self.images([indices[i] for i in part]), factor, size) for part in parts]
        )

    def patients(self) -> NDArray[np.int64]:
        """Return the number of the patient in each slice, with shape (len(self),)."""
        path = self.folder / f"patient_ids_rand_{self.part}.csv"
        if not path.is_file():
            raise VspairError(f"There is no file {path}. Get it from {_SITE}.")
        try:
            ids = np.array([int(line) for line in path.read_text().split()], np.int64)
        except (OSError, ValueError, OverflowError) as error:
            raise VspairError(
                f"{path} cannot be read: {error}. Expected one whole number a line."
            ) from None
        if len(ids) != len(self):
            raise VspairError(
                f"{path} has {len(ids)} lines: expected {len(self)}, one a slice. Get it again."
            )
        return ids

    def _read(self, kind: str, indices: Sequence[int], shape: tuple[int, int]) -> Tensor:
        """Return entries of either kind of file, as stored, with shape (k, *shape)."""
        if not len(indices):
            raise VspairError("indices = []: expected at least one slice.")
        for i in indices:
            if not isinstance(i, Integral) or not 0 <= i < len(self):
                raise VspairError(
                    f"Slice {i}: the {self.part} part has those from 0 to {len(self) - 1}."
                )
        result = np.empty((len(indices), *shape), np.float32)
        wanted: dict[int, list[int]] = {}
        for place, i in enumerate(indices):
            wanted.setdefault(i // _PER_FILE, []).append(place)
        for number, places in wanted.items():
            path = self.folder / f"{kind}_{self.part}_{number:03d}.hdf5"
            rows = [indices[place] % _PER_FILE for place in places]
            result[places] = _read_rows(path, rows, shape)
        return torch.from_numpy(result)


def _read_rows(path: Path, rows: list[int], shape: tuple[int, int]) -> NDArray[np.float32]:
    """Return some of a file's entries, with shape (k, *shape)."""
    try:
        import h5py
    except ImportError:
        raise VspairError("Reading LoDoPaB-CT needs h5py: pip install 'vspair[hdf5]'.") from None
    if not path.is_file():
        raise VspairError(
            f"There is no file {path}. Unpack all of LoDoPaB-CT's parts into one folder, without "
            f"folders inside it; they come from {_SITE}."
        )
    try:
        with h5py.File(path, "r") as file:
            data = _dataset(path, file, shape, max(rows))
            found = np.stack([data[row] for row in rows])
    except (OSError, RuntimeError, KeyError) as error:
        raise VspairError(f"{path} is damaged ({error}): unpack it again.") from None
    if not np.isfinite(found).all():
        raise VspairError(f"{path} holds values that are not finite: unpack it again.")
    return found


def _dataset(path: Path, file: Any, shape: tuple[int, int], last: int) -> Any:
    """Return the file's array once it is known to be what it should be."""
    if "data" not in file:
        raise VspairError(
            f"{path} holds {', '.join(file) or 'nothing'}: expected an array called data."
        )
    data = file["data"]
    if not hasattr(data, "shape"):
        raise VspairError(
            f"{path} holds a group called data: expected an array. Is it LoDoPaB-CT's?"
        )
    if (data.shape or ())[1:] != shape or data.dtype != np.float32:
        raise VspairError(
            f"{path} holds {data.dtype} of shape {data.shape}: expected float32 of shape "
            f"({_PER_FILE}, {shape[0]}, {shape[1]}). Is it LoDoPaB-CT's?"
        )
    if data.shape[0] <= last:
        raise VspairError(
            f"{path} has {data.shape[0]} entries: expected more than {last}. Unpack it again."
        )
    return data


# -- compact slices -------------------------------------------------------------------------


class Slices(NamedTuple):
    """Slices in [0, 1], float32 with shape (N, S, S), and whose they are, with shape (N,)."""

    x: Tensor
    patient: NDArray[Any]


def load_compact(path: str | Path) -> Slices:
    """Read a compact file of slices, in the file's shuffled order where it has one."""
    path = Path(path)
    arrays = {name: load_array(f"{path}:{name}") for name in ("hi", "lo", "scale", "patient")}
    high, low, patient = arrays["hi"], arrays["lo"], arrays["patient"]
    if high.shape != low.shape or high.ndim != 3 or not high.dtype == low.dtype == np.uint8:
        raise VspairError(
            f"{path}: hi is {high.dtype} {high.shape} and lo {low.dtype} {low.shape}; expected "
            "uint8 of shape (N, S, S) twice."
        )
    if not high.size:
        raise VspairError(
            f"{path} holds no slices: hi and lo have shape {high.shape}. Expected at least one."
        )
    scale = arrays["scale"]
    number = scale.size == 1 and scale.dtype.kind in "iuf"
    if not number or not 0 < float(scale.reshape(-1)[0]) < math.inf:
        raise VspairError(f"{path}: scale is {scale}; expected one finite number above 0.")
    if patient.shape != high.shape[:1]:
        raise VspairError(
            f"{path}: patient has shape {patient.shape}; expected {len(high)} names."
        )
    order = _order(path, len(high))
    whole = (high.astype(np.uint16) << 8) | low
    x = whole.astype(np.float32) / np.float32(scale.reshape(-1)[0])
    if x.max() > 1:
        raise VspairError(f"{path}: values reach {x.max():.4g}; expected at most 1. Check scale.")
    return Slices(torch.from_numpy(x[order]), patient[order])


def _order(path: Path, n: int) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as archive:
        if "order" not in archive:
            return np.arange(n)
    order = load_array(f"{path}:order")
    if order.dtype.kind not in "iu" or not np.array_equal(np.sort(order), np.arange(n)):
        raise VspairError(f"{path}: order does not name each of the {n} slices once.")
    return order


# -- what an experiment takes ---------------------------------------------------------------


@dataclass(frozen=True)
class CtSlices:
    """Slices to train and to test on, of different patients.

    Arguments:
        train: With shape (N, 88, 88).
        test: With shape (M, 88, 88).
        source: Where they come from, in words.
    """

    train: Slices
    test: Slices
    source: str

    def __post_init__(self) -> None:
        both = np.intersect1d(self.train.patient, self.test.patient)
        if len(both):
            raise VspairError(
                f"{self.source}: patient {both[0]} is in the training and in the test part "
                f"({len(both)} such patients). Split by patient."
            )


def split_patients(
    patient: NDArray[Any], share: float = 0.1, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the indices of training and held-out slices, which share no patient.

    Patients are held out in a random order as long as their slices stay within the share; the
    one with the fewest slices where that is none.

    Arguments:
        patient: Whose each slice is, with shape (N,).
        share: The largest share of the slices to hold out.
        seed: Fixes the order.
    """
    names, counts = np.unique(patient, return_counts=True)
    if len(names) < 2:
        raise VspairError(
            f"The training slices are of {len(names)} patient: expected at least 2, of whom one "
            "is held out."
        )
    order = torch.randperm(len(names), generator=Generator().manual_seed(seed)).tolist()
    wanted, held, chosen = share * len(patient), 0, []
    for i in order:
        if held + counts[i] <= wanted:
            chosen.append(names[i])
            held += counts[i]
    chosen = chosen or [names[counts.argmin()]]
    inside = torch.from_numpy(np.isin(patient, chosen))
    return torch.nonzero(~inside)[:, 0], torch.nonzero(inside)[:, 0]


def load_slices(
    data_dir: str | Path | None = None,
    *,
    train: int = PAPER_TRAIN,
    test: int = PAPER_TEST,
    seed: int = 0,
) -> CtSlices:
    """Return the first slices of each part; those of section 4.3 where nothing else is asked.

    Arguments:
        data_dir: A folder with the files of LoDoPaB-CT or two compact files, or with a folder
            ``ct`` of them. None takes the folder that the environment variable VSPAIR_DATA names;
            where there is none either, phantoms are drawn.
        train: How many slices to train on.
        test: How many to test on; of LoDoPaB-CT, half from its validation part.
        seed: Of the phantoms.
    """
    if train < 1 or test < 1:
        raise VspairError(f"train = {train}, test = {test}: expected at least one slice of each.")
    chosen = data_dir if data_dir is not None else os.environ.get("VSPAIR_DATA") or None
    if chosen is None:
        return _phantoms(train, test, seed)
    for folder in (Path(chosen) / "ct", Path(chosen)):
        files = [sorted(folder.glob(f"ct_*{part}.npz")) for part in ("train", "test")]
        if all(files):
            return _compact(files[0][0], files[1][0], train, test)
        if (folder / "ground_truth_train_000.hdf5").is_file():
            return _lodopab(folder, train, test)
    raise VspairError(
        f"There are no slices in {Path(chosen) / 'ct'} or {chosen}. Expected "
        "ground_truth_train_000.hdf5 and the other files of LoDoPaB-CT, or ct_train.npz and "
        "ct_test.npz. Name their folder with --data-dir or the environment variable VSPAIR_DATA; "
        "without either, phantoms are used."
    )


def _phantoms(train: int, test: int, seed: int) -> CtSlices:
    """Return phantoms, each a patient of its own."""
    x = chest_phantoms(train + test, Generator().manual_seed(seed))
    patient = np.arange(train + test)
    first, rest = slice(train), slice(train, None)
    return CtSlices(Slices(x[first], patient[first]), Slices(x[rest], patient[rest]), "phantoms")


def _compact(train_path: Path, test_path: Path, train: int, test: int) -> CtSlices:
    def first(path: Path, n: int) -> Slices:
        x, patient = load_compact(path)
        if len(x) < n:
            raise VspairError(f"{path} has {len(x)} slices: {n} were asked for.")
        return Slices(x[:n], patient[:n])

    source = str(train_path.parent)
    return CtSlices(first(train_path, train), first(test_path, test), source)


def _lodopab(folder: Path, train: int, test: int) -> CtSlices:
    """Return the first slices of each part; the parts are in random order already."""
    taken = {"train": train, "validation": test // 2, "test": test - test // 2}
    parts: dict[str, Slices] = {}
    for name, n in taken.items():
        part = Lodopab(folder, name)  # type: ignore[arg-type]
        if n > len(part):
            raise VspairError(f"The {name} part has {len(part)} slices: {n} were asked for.")
        if n:
            parts[name] = Slices(part.coarse(range(n)), part.patients()[:n])
    held = [parts[name] for name in ("validation", "test") if name in parts]
    joined = Slices(torch.cat([s.x for s in held]), np.concatenate([s.patient for s in held]))
    return CtSlices(parts["train"], joined, source=str(folder))
