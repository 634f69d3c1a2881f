import contextlib
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from vspair.data import Normaliser, Pairs, as_data, as_pairs, load_array, split
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
        ([[1.0, 2.0], [3.0]], "x is ragged.*one shape"),
        ([torch.zeros(2), torch.zeros(3)], "x is ragged.*one shape"),
        ([torch.zeros(2, requires_grad=True)] * 2, "x cannot be read.*tensor"),
        (torch.eye(3).to_sparse(), "x is a sparse tensor.*to_dense"),
        (torch.eye(3, dtype=torch.complex64).conj(), "complex64"),
    ],
    ids=str,
)
def test_bad_arrays_are_named_and_located(values: Any, message: str) -> None:
    with pytest.raises(VspairError, match=message):
        as_data(values, "x")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, np.int64, np.bool_])
def test_real_dtypes_are_accepted(kind: Any) -> None:
    data = as_data(np.ones((2, 3), dtype=kind))
    assert data.dtype == (torch.float64 if kind is np.float64 else torch.float32)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.half])
def test_half_precision_tensors_become_float32(kind: torch.dtype) -> None:
    given = torch.tensor([[0.5, -2.0]], dtype=kind)
    data = as_data(given)
    assert data.dtype == torch.float32
    assert torch.equal(data, given.float())


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


@pytest.mark.parametrize("which", ["x", "y"])
def test_one_entry_repeated_is_constant(which: str) -> None:
    same = GOOD[:1].repeat(6, axis=0)
    x, y = (same, GOOD) if which == "x" else (GOOD, same)
    with pytest.raises(VspairError, match=rf"{which} is constant: all 6 entries are the same"):
        as_pairs(x, y)


def test_pairs_that_are_not_trained_on_need_not_vary() -> None:
    for n in (1, 6):
        x, y = as_pairs(np.zeros((n, 2)), np.ones((n, 3)), vary=False)
        assert (x.shape, y.shape) == ((n, 2), (n, 3))
    with pytest.raises(VspairError, match="as many of each"):
        as_pairs(GOOD, GOOD[:5], vary=False)


def test_one_pair_that_varies_within_is_not_constant() -> None:
    assert len(as_pairs(GOOD[:1], GOOD[:1])[0]) == 1


def test_load_array_reads_each_format(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GOOD)
    np.savez(tmp_path / "a.npz", x=GOOD, y=2 * GOOD)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = GOOD
    assert np.array_equal(load_array(tmp_path / "a.npy"), GOOD)
    assert np.array_equal(load_array(f"{tmp_path}/a.npz:y"), 2 * GOOD)
    assert np.array_equal(load_array(tmp_path / "a.h5"), GOOD)


def test_load_array_reads_nested_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "g.h5"
    with h5py.File(path, "w") as file:
        file["grp/x"] = GOOD
    assert np.array_equal(load_array(path), GOOD)
    with h5py.File(path, "a") as file:
        file["grp/deep/y"] = 2 * GOOD
        file["z"] = 3 * GOOD
        file["link"] = h5py.SoftLink("/grp/x")
    assert np.array_equal(load_array(f"{path}:grp/x"), GOOD)
    assert np.array_equal(load_array(f"{path}:/grp/deep/y"), 2 * GOOD)
    assert np.array_equal(load_array(f"{path}:z"), 3 * GOOD)
    assert np.array_equal(load_array(f"{path}:link"), GOOD)
    for name in ("", ":x", ":grp", ":grp/z"):
        with pytest.raises(VspairError, match=r"arrays: grp/deep/y, grp/x, z\. Name one"):
            load_array(f"{path}{name}")


def save_lzma(path: Path, x: Any) -> None:
    """Write an archive in the way the compact files of slices are made small."""
    np.save(path.with_suffix(".npy"), x)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.write(path.with_suffix(".npy"), "x.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, save_lzma])
def test_damaged_archives_are_refused(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "whole.npz", x=GOOD)
    whole = (tmp_path / "whole.npz").read_bytes()
    middle = len(whole) // 2
    damaged = {
        "short": whole[:-30],
        "half": whole[:middle],
        "empty": b"",
        "changed": whole[:middle] + bytes(b ^ 255 for b in whole[middle : middle + 9])
        + whole[middle + 9 :],
    }  # fmt: skip
    for name, content in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(VspairError, match=rf"{name}.npz cannot be read"):
            load_array(tmp_path / f"{name}.npz")


def test_files_with_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GOOD)
    np.savez_compressed(tmp_path / "a.npz", x=GOOD)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["grp/x"] = GOOD
    chance = np.random.default_rng(1)
    for path in sorted(tmp_path.iterdir()):
        whole = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        for _ in range(150):
            changed = whole.copy()
            changed[chance.integers(len(whole), size=3)] = chance.integers(256, size=3)
            path.write_bytes(changed.tobytes())
            with contextlib.suppress(VspairError):
                load_array(path)


def test_load_array_errors(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", GOOD)
    (tmp_path / "renamed.npz").write_bytes((tmp_path / "good.npy").read_bytes())
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
        "good.npy:foo": "one array without a name.*without ':foo'",
        "renamed.npz": "cannot be read",
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


def test_pairs_stay_pairs() -> None:
    x = torch.arange(50.0)[:, None]
    pairs = Pairs.of(x, -x.expand(50, 3))
    assert (len(pairs), pairs.shapes) == (50, ((1,), (3,)))
    train, held = pairs.split(0.2, seed=3)
    rows, rest = split(50, 0.2, seed=3)
    for part, chosen in ((train, rows), (held, rest)):
        assert torch.equal(part.x[:, 0], x[chosen, 0])
        assert torch.equal(part.y, -part.x.expand(-1, 3))


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


@pytest.mark.parametrize(
    ("shape", "dims"), [((3,), (0,)), ((4, 5), (0, 1, 2)), ((2, 4, 5), (0, 2, 3))]
)
def test_normaliser_by_channel(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    data = torch.randn(60, *shape) * torch.rand(shape) + 5 * torch.rand(shape)
    normaliser = Normaliser(shape)
    normaliser.fit(data, "channel")
    std, mean = torch.std_mean(data, dims, correction=0, keepdim=True)
    torch.testing.assert_close(normaliser.mean, mean[0].expand(shape))
    torch.testing.assert_close(normaliser.std, std[0].expand(shape))


def test_normaliser_leaves_constant_entries_unscaled() -> None:
    data = torch.randn(50, 3)
    data[:, 1] = 4.0
    normaliser = Normaliser((3,))
    normaliser.fit(data, "feature")
    assert torch.equal(normaliser(data)[:, 1], torch.zeros(50))
    assert normaliser.std[1] == 1.0


@pytest.mark.parametrize("how", ["scalar", "feature"])
@pytest.mark.parametrize("scale", [1e-30, 1e-13, 1e13, 1e30])
def test_normaliser_does_not_depend_on_the_unit(how: Any, scale: float) -> None:
    data = torch.randn(400, 3) + 2
    normaliser, scaled = Normaliser((3,)), Normaliser((3,))
    normaliser.fit(data, how)
    scaled.fit(data * scale, how)
    assert torch.allclose(scaled(data * scale), normaliser(data), atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 0.1, 12345.678, -3.3e7, 1e30])
@pytest.mark.parametrize("how", ["scalar", "feature"])
@pytest.mark.parametrize("n", [1, 7, 10_001])
def test_normaliser_only_shifts_what_never_changes(value: float, how: Any, n: int) -> None:
    data = torch.full((n, 2), value)
    normaliser = Normaliser((2,))
    normaliser.fit(data, how)
    assert torch.equal(normaliser.std, torch.ones(2))
    assert torch.equal(normaliser(data), torch.zeros(n, 2))


def test_normaliser_stays_finite_for_the_smallest_numbers() -> None:
    data = torch.zeros(1000, 1)
    data[0] = 1e-45
    normaliser = Normaliser((1,))
    normaliser.fit(data, "feature")
    assert normaliser(data).isfinite().all()
