from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vspair.data import Normaliser, as_data, as_pairs, load_array, split
from vspair.errors import VspairError

GOOD = np.random.default_rng(0).normal(size=(6, 3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5), r"shape \(5,\).*\(N, n\)"),
        (np.zeros((1, 2, 3, 4, 5)), "shape"),
        (np.zeros((0, 3)), "empty"),
        (np.zeros((4, 0)), "empty"),
        (np.zeros((2, 2), dtype=complex), "complex128"),
        (np.array([["a", "b"]]), "dtype"),
        (np.array([[1.0, 2.0], [np.nan, 3.0]]), r"1 values.*nan.*index \[1, 0\]"),
        (np.array([[1.0, np.inf], [-np.inf, 3.0]]), r"2 values.*inf.*index \[0, 1\]"),
    ],
)
def test_bad_arrays_are_named_and_located(values: Any, message: str) -> None:
    with pytest.raises(VspairError, match=message):
        as_data(values, "x")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, np.int64, np.bool_])
def test_real_dtypes_are_accepted(kind: Any) -> None:
    data = as_data(np.ones((2, 3), dtype=kind))
    assert data.dtype == (torch.float64 if kind is np.float64 else torch.float32)


def test_as_data_copies() -> None:
    data = as_data(GOOD)
    data.zero_()
    assert GOOD.any()


def test_pairs_of_different_length() -> None:
    with pytest.raises(VspairError, match="x has 6 entries and y has 5"):
        as_pairs(GOOD, GOOD[:5])


@pytest.mark.parametrize("which", ["x", "y"])
def test_constant_data(which: str) -> None:
    flat = np.full((6, 3), 2.5)
    x, y = (flat, GOOD) if which == "x" else (GOOD, flat)
    with pytest.raises(VspairError, match=rf"{which} is constant: every value is 2.5"):
        as_pairs(x, y)


def test_load_array_reads_each_format(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    np.save(tmp_path / "a.npy", GOOD)
    np.savez(tmp_path / "a.npz", x=GOOD, y=2 * GOOD)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = GOOD
    assert np.array_equal(load_array(tmp_path / "a.npy"), GOOD)
    assert np.array_equal(load_array(f"{tmp_path}/a.npz:y"), 2 * GOOD)
    assert np.array_equal(load_array(tmp_path / "a.h5"), GOOD)


def test_load_array_errors(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=GOOD, y=GOOD)
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}]), allow_pickle=True)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY not an array")
    (tmp_path / "text.csv").write_text("1,2\n")
    for name, message in {
        "absent.npy": "no file",
        "two.npz": "x, y.*:NAME",
        "two.npz:z": "x, y",
        "objects.npy": "Python objects",
        "broken.npy": "cannot be read",
        "text.csv": "ends in",
    }.items():
        with pytest.raises(VspairError, match=message):
            load_array(f"{tmp_path}/{name}")


def test_split_is_a_fixed_partition() -> None:
    train, held = split(50, 0.2, seed=3)
    assert len(held) == 10
    assert torch.equal(torch.cat((train, held)).sort().values, torch.arange(50))
    assert torch.equal(split(50, 0.2, seed=3)[1], held)
    assert not torch.equal(split(50, 0.2, seed=4)[1], held)
    assert len(split(50, 0.0, seed=3)[1]) == 0
    assert len(split(2, 0.99, seed=0)[0]) == 1


@pytest.mark.parametrize("how", ["scalar", "feature"])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 4, 3)])
def test_normaliser_standardises_and_inverts(how: Any, shape: tuple[int, ...]) -> None:
    data = 7 + 3 * torch.randn(400, *shape)
    normaliser = Normaliser(shape)
    normaliser.fit(data, how)
    seen = normaliser(data)
    dims = 0 if how == "feature" else tuple(range(seen.ndim))
    assert torch.allclose(seen.mean(dims), torch.zeros(()), atol=1e-5)
    assert torch.allclose(seen.std(dims, correction=0), torch.ones(()), atol=1e-5)
    assert torch.allclose(normaliser.inverse(seen), data, atol=1e-5)


def test_normaliser_leaves_constant_entries_unscaled() -> None:
    data = torch.randn(50, 3)
    data[:, 1] = 4.0
    normaliser = Normaliser((3,))
    normaliser.fit(data, "feature")
    assert torch.equal(normaliser(data)[:, 1], torch.zeros(50))
    assert normaliser.std[1] == 1.0
