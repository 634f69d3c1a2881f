"""The readers of slices, on small files of the same layout; splits that share no patient."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from vspair.datasets import lodopab
from vspair.datasets.lodopab import (
    LENGTHS,
    CtSlices,
    Lodopab,
    Slices,
    load_compact,
    load_slices,
    split_patients,
)
from vspair.errors import VspairError
from vspair.problems.ct import Geometry, RayTransform, coarsen

SMALL = {"train": 11, "validation": 6, "test": 7}
IDS = {"train": (0, 4), "validation": (4, 6), "test": (6, 9)}


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VSPAIR_DATA", raising=False)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Write files of 4 slices each; the last ground truth is filled up, the observation is not."""
    folder, rng = tmp_path_factory.mktemp("lodopab"), np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, length in SMALL.items():
        for kind, shape in (("ground_truth", (362, 362)), ("observation", (1000, 513))):
            # A sinogram is cheap to write where most of it is 0.
            data = np.zeros((length, *shape), np.float32)
            data[:, :40, :30] = rng.random((length, 40, 30), np.float32)
            data[:, :, -1] = rng.random((length, shape[0]), np.float32)
            arrays[f"{kind}/{part}"] = data
            for i in range(0, length, 4):
                block = data[i : i + 4]
                if kind == "ground_truth":
                    block = np.pad(block, ((0, 4 - len(block)), (0, 0), (0, 0)))
                with h5py.File(folder / f"{kind}_{part}_{i // 4:03d}.hdf5", "w") as file:
                    file.create_dataset("data", data=block, compression="gzip")
        ids = rng.integers(*IDS[part], length)
        arrays[f"patient/{part}"] = ids
        lines = "".join(f"{i}\n" for i in ids)
        (folder / f"patient_ids_rand_{part}.csv").write_text(lines)
    return folder, arrays


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lodopab, "LENGTHS", SMALL)
    monkeypatch.setattr(lodopab, "_PER_FILE", 4)


# -- LoDoPaB-CT -----------------------------------------------------------------------------


def test_the_lengths_are_the_dataset_s() -> None:
    assert LENGTHS == {"train": 35820, "validation": 3522, "test": 3553}
    assert len(Lodopab(Path("nowhere"), "train")) == 35820


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_slices_are_those_asked_for(part: Any, stored: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = stored
    reader = Lodopab(folder, part, upright=False)
    assert len(reader) == SMALL[part]
    indices = [len(reader) - 1, 0, 4, 1, 4]
    for kind, read in (
        ("ground_truth", reader.images),
        ("observation", reader.observations),
    ):
        result = read(indices)
        assert result.dtype == torch.float32
        assert np.array_equal(result.numpy(), arrays[f"{kind}/{part}"][indices])
    assert np.array_equal(reader.patients(), arrays[f"patient/{part}"])


@pytest.mark.usefixtures("small")
def test_upright_images_are_transposed(stored: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = stored
    reader = Lodopab(folder, "train")
    x, y = reader.images([5, 2]), reader.observations([5, 2])
    assert np.array_equal(x.numpy(), arrays["ground_truth/train"][[5, 2]].transpose(0, 2, 1))
    assert np.array_equal(y.numpy(), arrays["observation/train"][[5, 2]][:, ::-1, ::-1])
    torch.testing.assert_close(reader.coarse([5, 2]), coarsen(x))
    torch.testing.assert_close(
        reader.coarse(range(11))[5], coarsen(x)[0]
    )  # more than a file holds


def test_an_upright_pair_fits_the_ray_transform() -> None:
    """ODL's first axis is r_1 and its second r_2, upwards; both meet the same line integrals."""
    stored_image = torch.rand(30, 30, dtype=torch.float64)
    geometry = Geometry((30, 30), angles=16, detectors=44, pixel=1.0)
    observation = joseph_of_odl(stored_image, geometry)
    upright = stored_image.T, observation.flip(0, 1)
    torch.testing.assert_close(RayTransform(geometry)(upright[0]), upright[1])
    assert (RayTransform(geometry)(stored_image) - observation).norm() > 0.05 * observation.norm()


def joseph_of_odl(f: Tensor, geometry: Geometry) -> Tensor:
    """Return line integrals of f[r_1, r_2] by ODL's frame: s = r_1 cos + r_2 sin, step by step."""
    n, y = len(f), []
    centre = torch.arange(n, dtype=torch.float64) - (n - 1) / 2
    for theta in geometry.theta.tolist():
        cos, sin = np.cos(theta), np.sin(theta)
        image, a, b = (f, cos, sin) if abs(cos) >= abs(sin) else (f.T, sin, cos)
        # Along the second index of `image`; the first is interpolated.
        place = (geometry.offsets[:, None] - centre * b) / a + (n - 1) / 2
        padded = torch.nn.functional.pad(image, (0, 0, n, n))
        low = place.floor().clamp(-n, 2 * n - 2)
        share, column = place - low, torch.arange(n).expand_as(place)
        row = low.long() + n
        value = (1 - share) * padded[row, column] + share * padded[row + 1, column]
        y.append(value.sum(1) / abs(a))
    return torch.stack(y)


@pytest.mark.usefixtures("small")
def test_the_paper_s_split(stored: tuple[Path, dict[str, Any]]) -> None:
    folder, arrays = stored
    slices = load_slices(folder, train=9, test=9)
    assert slices.train.x.shape == slices.test.x.shape == (9, 88, 88)
    validation, test = (Lodopab(folder, p).coarse(range(n)) for p, n in _halves())
    torch.testing.assert_close(slices.test.x, torch.cat((validation, test)))
    expected = np.concatenate((arrays["patient/validation"][:4], arrays["patient/test"][:5]))
    assert np.array_equal(slices.test.patient, expected)
    assert not set(slices.train.patient) & set(slices.test.patient)
    one = load_slices(folder, train=1, test=1)
    torch.testing.assert_close(one.test.x, Lodopab(folder, "test").coarse([0]))


def _halves() -> list[tuple[Any, int]]:
    return [("validation", 4), ("test", 5)]


@pytest.mark.usefixtures("small")
def test_faults_in_the_files_are_named(
    stored: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, _ = stored
    with pytest.raises(VspairError, match=r"part = 'valid': expected train, validation, test"):
        Lodopab(folder, "valid")  # type: ignore[arg-type]
    reader = Lodopab(folder, "test")
    for wrong in (7, -1, 0.5):
        with pytest.raises(VspairError, match=f"Slice {wrong}: .* from 0 to 6"):
            reader.images([0, wrong])  # type: ignore[list-item]
    with pytest.raises(VspairError, match="at least one slice"):
        reader.images([])
    here = Lodopab(tmp_path, "test")
    with pytest.raises(VspairError, match=r"There is no file .*ground_truth_test_001.hdf5"):
        here.images([5])
    path = tmp_path / "ground_truth_test_000.hdf5"
    path.write_bytes(b"not hdf5 at all")
    with pytest.raises(VspairError, match="is damaged"):
        here.images([0])
    for name, shape, kind, words in (
        ("images", (4, 362, 362), "f4", "holds images: expected an array called data"),
        ("data", (4, 100, 362), "f4", r"shape \(4, 100, 362\)"),
        ("data", (4, 362, 362), "f8", "holds float64"),
        ("data", (2, 362, 362), "f4", "has 2 entries"),
    ):
        with h5py.File(path, "w") as file:
            file.create_dataset(name, shape, kind)
        with pytest.raises(VspairError, match=words):
            here.images([0, 3])
    with h5py.File(path, "w") as file:
        file.create_group("data")
    with pytest.raises(VspairError, match="holds a group called data: expected an array"):
        here.images([0])
    with h5py.File(path, "w") as file:
        file["data"] = h5py.Empty("f4")
    with pytest.raises(VspairError, match="holds float32 of shape None"):
        here.images([0])
    with h5py.File(path, "w") as file:
        file["data"] = h5py.SoftLink("/nowhere")
    with pytest.raises(VspairError, match="is damaged"):
        here.images([0])
    with h5py.File(path, "w") as file:
        file["data"] = np.full((4, 362, 362), np.nan, np.float32)
    with pytest.raises(VspairError, match="not finite: unpack it again"):
        here.images([0])
    with pytest.raises(VspairError, match="6 slices: 9 were asked for"):
        load_slices(folder, train=3, test=19)


@pytest.mark.usefixtures("small")
def test_faults_in_the_patient_ids_are_named(tmp_path: Path) -> None:
    reader, path = Lodopab(tmp_path, "validation"), tmp_path / "patient_ids_rand_validation.csv"
    with pytest.raises(VspairError, match="There is no file"):
        reader.patients()
    path.write_text("1\n2\n3\n")
    with pytest.raises(VspairError, match=r"3 lines: expected 6"):
        reader.patients()
    for wrong in ("x", "9" * 30):
        path.write_text(f"1\n{wrong}\n3\n")
        with pytest.raises(VspairError, match="one whole number a line"):
            reader.patients()


@pytest.mark.usefixtures("small")
def test_without_h5py_it_says_what_to_install(
    stored: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "h5py":
            raise ImportError
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(VspairError, match=r"pip install 'vspair\[hdf5\]'"):
        Lodopab(stored[0], "train").images([0])


# -- compact slices -------------------------------------------------------------------------


def compact(path: Path, patients: list[str], **changes: Any) -> Any:
    """Write a compact file; return its integers, with shape (N, 88, 88)."""
    n, rng = len(patients), np.random.default_rng(len(patients))
    whole = rng.integers(0, 4096, (n, 88, 88)).astype(np.uint16)
    arrays = {
        "hi": (whole >> 8).astype(np.uint8),
        "lo": (whole & 255).astype(np.uint8),
        "scale": np.array(4095),
        "patient": np.array(patients),
        "order": rng.permutation(n).astype(np.int32),
    } | changes
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return whole


def test_compact_slices(tmp_path: Path) -> None:
    names = ["a", "b", "a", "c"]
    whole = compact(tmp_path / "ct_train.npz", names, order=np.array([2, 0, 3, 1]))
    x, patient = load_compact(tmp_path / "ct_train.npz")
    assert x.dtype == torch.float32
    assert np.array_equal(x.numpy(), (whole / np.float32(4095)).astype(np.float32)[[2, 0, 3, 1]])
    assert patient.tolist() == ["a", "a", "c", "b"]
    whole = compact(tmp_path / "plain.npz", names, order=None)
    assert np.array_equal((load_compact(tmp_path / "plain.npz").x * 4095).round(), whole)


def test_a_folder_of_compact_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ct").mkdir()
    compact(tmp_path / "ct" / "ct_lidc_train.npz", ["a", "b", "a", "c"])
    compact(tmp_path / "ct" / "ct_lidc_test.npz", ["d", "e", "e"])
    slices = load_slices(tmp_path, train=3, test=2)
    assert (len(slices.train.x), len(slices.test.x)) == (3, 2)
    assert torch.equal(slices.train.x, load_compact(tmp_path / "ct" / "ct_lidc_train.npz").x[:3])
    assert slices.source == str(tmp_path / "ct")
    monkeypatch.setenv("VSPAIR_DATA", str(tmp_path))
    assert torch.equal(load_slices(train=3, test=2).test.x, slices.test.x)
    with pytest.raises(VspairError, match=r"ct_lidc_train.npz has 4 slices: 3000"):
        load_slices(tmp_path)


def test_a_patient_in_both_parts_is_refused(tmp_path: Path) -> None:
    compact(tmp_path / "ct_train.npz", ["a", "b", "a", "c"])
    compact(tmp_path / "ct_test.npz", ["d", "b", "e"])
    with pytest.raises(VspairError, match="patient b is in the training and in the test part"):
        load_slices(tmp_path, train=4, test=3)
    one = Slices(torch.zeros(2, 4, 4), np.array([1, 2]))
    with pytest.raises(VspairError, match=r"2 such patients.*Split by patient"):
        CtSlices(one, one, "memory")


def test_a_compact_file_without_slices_is_refused(tmp_path: Path) -> None:
    compact(tmp_path / "ct_train.npz", [])
    with pytest.raises(VspairError, match=r"holds no slices: .*\(0, 88, 88\).*at least one"):
        load_compact(tmp_path / "ct_train.npz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hi": None}, "holds the arrays: lo, scale, patient, order"),
        ({"lo": np.zeros((4, 88, 87), np.uint8)}, r"lo uint8 \(4, 88, 87\)"),
        ({"hi": np.zeros((4, 88, 88), np.uint16)}, "hi is uint16"),
        ({"scale": np.array(0)}, "scale is 0"),
        ({"scale": np.array(np.inf)}, "scale is inf"),
        ({"scale": np.array("4095")}, "scale is 4095; expected one finite number"),
        ({"scale": np.array(100)}, "values reach"),
        ({"patient": np.array(["a"])}, r"patient has shape \(1,\)"),
        ({"order": np.array([0, 0, 1, 2])}, "each of the 4 slices once"),
        ({"order": np.array([0.0, 1.0, 2.0, 3.0])}, "each of the 4 slices once"),
        ({"order": np.array([0, "a"], object)}, "cannot be read"),
    ],
)
def test_faults_in_a_compact_file_are_named(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    compact(tmp_path / "ct_train.npz", ["a", "b", "a", "c"], **changes)
    with pytest.raises(VspairError, match=words):
        load_compact(tmp_path / "ct_train.npz")


# -- where nothing is at hand ---------------------------------------------------------------


def test_without_a_folder_phantoms_are_drawn() -> None:
    slices = load_slices(train=5, test=3)
    assert slices.source == "phantoms"
    assert (slices.train.x.shape, slices.test.x.shape) == ((5, 88, 88), (3, 88, 88))
    assert torch.equal(load_slices(train=5, test=3).test.x, slices.test.x)
    assert not torch.equal(load_slices(train=5, test=3, seed=1).test.x, slices.test.x)
    assert len({*slices.train.patient, *slices.test.patient}) == 8


def test_an_empty_folder_is_no_reason_for_phantoms(tmp_path: Path) -> None:
    with pytest.raises(VspairError, match=r"There are no slices in .*ground_truth_train_000"):
        load_slices(tmp_path)
    with pytest.raises(VspairError, match="train = 0"):
        load_slices(train=0)


# -- held-out patients ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_held_out_patients_are_not_trained_on(seed: int) -> None:
    counts = [257, 132, 132, 134, 86, 131, 127, 132, 206, 155, 483, 122, 262, 519, 122]
    patient = np.repeat(np.array([f"P{i}" for i in range(15)]), counts)
    np.random.default_rng(seed).shuffle(patient)
    train, held = split_patients(patient, 0.1, seed)
    assert not set(patient[train]) & set(patient[held])
    assert sorted(torch.cat((train, held)).tolist()) == list(range(3000))
    assert 0 < len(held) <= 300


def test_one_patient_of_two_is_held_out_and_one_alone_refused() -> None:
    train, held = split_patients(np.array(["b", "a", "b", "b"]))
    assert (train.tolist(), held.tolist()) == ([0, 2, 3], [1])
    with pytest.raises(VspairError, match="at least 2"):
        split_patients(np.array(["a", "a"]))
