"""Pairs: checked, normalised, split and moved.

Everything that enters the library as an array passes through :func:`as_data`, so that a wrong
array is met here, with its name and the place of the fault, and nowhere else.
"""

from __future__ import annotations

import hashlib
import lzma
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from vspair.errors import VspairError

__all__ = [
    "DAMAGE",
    "Normaliser",
    "Pairs",
    "as_array",
    "as_data",
    "as_pairs",
    "batch_mask",
    "expect_batch",
    "fingerprint",
    "load_array",
    "random_shift",
    "split",
]

DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""What numpy, zipfile and h5py raise of a file that is cut short, changed or not what it says."""


def load_array(path: str | Path) -> np.ndarray[Any, Any]:
    """Read an array from ``file.npy``, ``file.npz:name`` or ``file.h5:name``.

    Pickled contents are never loaded. The name may be left out where a file holds one array; an
    array in HDF5 groups is named by its path, as in ``file.h5:group/name``.
    """
    file, name = _split_name(str(path))
    if not file.exists():
        raise VspairError(f"There is no file {file}.")
    try:
        if file.suffix == ".npy":
            return _load_npy(file, name)
        if file.suffix == ".npz":
            return _load_npz(file, name)
        if file.suffix in {".h5", ".hdf5"}:
            return _load_hdf5(file, name)
    except DAMAGE as error:
        raise VspairError(
            f"{file} cannot be read as an array: {error}. Make or get it again."
        ) from None
    raise VspairError(f"{file}: expected a file that ends in .npy, .npz, .h5 or .hdf5.")


def _split_name(path: str) -> tuple[Path, str]:
    head, colon, name = path.rpartition(":")
    return (Path(head), name) if colon and Path(head).suffix else (Path(path), "")


def _choose(file: Path, name: str, names: list[str]) -> str:
    if not name and len(names) == 1:
        return names[0]
    if name in names:
        return name
    found = ", ".join(names) or "none"
    raise VspairError(f"{file} holds the arrays: {found}. Name one as {file}:NAME.")


def _load_npy(file: Path, name: str) -> np.ndarray[Any, Any]:
    if name:
        raise VspairError(
            f"{file}:{name}: .npy files hold one array without a name. Give {file}, without "
            f"':{name}'."
        )
    return np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))


def _load_npz(file: Path, name: str) -> np.ndarray[Any, Any]:
    # ZipFile first: np.load goes by the contents and would return a renamed .npy as an array.
    with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as archive:
        return np.asarray(archive[_choose(file, name, list(archive))])


def _load_hdf5(file: Path, name: str) -> np.ndarray[Any, Any]:
    try:
        import h5py
    except ImportError:
        raise VspairError("Reading HDF5 needs h5py: pip install 'vspair[hdf5]'.") from None
    names: list[str] = []

    def note(path: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            names.append(path)

    with h5py.File(file, "r") as archive:
        # Asked for first: the listing leaves out links, which are good names too.
        found = archive.get(name) if name else None
        if not isinstance(found, h5py.Dataset):
            archive.visititems(note)
            found = archive[_choose(file, name, names)]
        return np.asarray(found)


def as_array(values: Any, name: str = "x") -> np.ndarray[Any, Any]:
    """Return a tensor, an array or nested lists of any shape as an array in main memory.

    Tensors of less than single precision, which numpy may not know, become float32.

    Arguments:
        values: What was given.
        name: What to call it in an error.
    """
    if isinstance(values, Tensor):
        return _from_tensor(values, name)
    try:
        return np.asarray(values)
    except ValueError:
        raise VspairError(f"{name} is ragged: expected entries of one shape.") from None
    except (TypeError, RuntimeError) as error:
        raise VspairError(
            f"{name} cannot be read as an array: {error} Give one array or one tensor."
        ) from None


def _from_tensor(values: Tensor, name: str) -> np.ndarray[Any, Any]:
    if values.layout != torch.strided:
        raise VspairError(
            f"{name} is a sparse tensor: expected a dense one. Use {name}.to_dense()."
        )
    if values.is_floating_point() and values.dtype != torch.float64:
        values = values.float()
    return values.numpy(force=True)


def as_data(values: Any, name: str = "x") -> Tensor:
    """Return an array as a finite float32 or float64 tensor of shape (N, *shape).

    Arguments:
        values: A tensor or array of N vectors, images, or images with channels.
        name: What to call it in an error.
    """
    array = as_array(values, name)
    if array.dtype.kind not in "fiub":
        raise VspairError(f"{name} has dtype {array.dtype}: expected real numbers.")
    if array.ndim not in (2, 3, 4):
        raise VspairError(
            f"{name} has shape {array.shape}: expected (N, n) for vectors, (N, H, W) for images "
            f"or (N, C, H, W) for images with channels. Use {name}[:, None] where each entry is "
            "one number."
        )
    if array.size == 0:
        raise VspairError(f"{name} has shape {array.shape}: it is empty.")
    array = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    bad = np.argwhere(~(np.abs(array) <= np.finfo(np.float32).max))
    if len(bad):
        where = tuple(map(int, bad[0]))
        raise VspairError(
            f"{name} holds {len(bad)} values that are not finite, the first, {array[where]}, at "
            f"index {list(where)}. Remove or fill those entries."
        )
    return torch.from_numpy(np.array(array, order="C"))


def as_pairs(x: Any, y: Any, *, vary: bool = True, prefix: str = "") -> tuple[Tensor, Tensor]:
    """Return x and y as float32 tensors that belong together, pair by pair.

    Arguments:
        x: The unknowns, with shape (N, *x_shape).
        y: The observations, with shape (N, *y_shape).
        vary: Whether to refuse data that never change, as training must.
        prefix: What x and y are called by in an error, such as ``"held "``.
    """
    x, y = as_data(x, f"{prefix}x").float(), as_data(y, f"{prefix}y").float()
    if len(x) != len(y):
        raise VspairError(
            f"{prefix}x has {len(x)} entries and {prefix}y has {len(y)}: expected as many of each."
        )
    if vary:
        _check_varies(x, "x")
        _check_varies(y, "y")
    return x, y


def _check_varies(data: Tensor, name: str) -> None:
    first = data.flatten()[0]
    if bool((data == first).all()):
        fault = f"every value is {first:g}"
    elif len(data) > 1 and bool((data == data[:1]).all()):
        fault = f"all {len(data)} entries are the same"
    else:
        return
    raise VspairError(
        f"{name} is constant: {fault}. There is nothing to learn from it; check how it was made."
    )


@dataclass(frozen=True)
class Pairs:
    """Unknowns and their observations, pair by pair, in their own units.

    Arguments:
        x: The unknowns, with shape (N, *x_shape).
        y: The observations, with shape (N, *y_shape).
    """

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, x: Any, y: Any, *, vary: bool = True, prefix: str = "") -> Pairs:
        """Return checked pairs of arrays of any kind; see :func:`as_pairs`."""
        return cls(*as_pairs(x, y, vary=vary, prefix=prefix))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor | slice) -> Pairs:
        return Pairs(self.x[rows], self.y[rows])

    def to(self, device: torch.device) -> Pairs:
        """Return the pairs on a device."""
        return Pairs(self.x.to(device), self.y.to(device))

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of one unknown and of one observation."""
        return tuple(self.x.shape[1:]), tuple(self.y.shape[1:])

    def split(self, share: float, seed: int) -> tuple[Pairs, Pairs]:
        """Return pairs to train on and a share that is held out; see :func:`split`."""
        train, held = split(len(self), share, seed)
        return self[train], self[held]


def split(n: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the training and of the held-out pairs, fixed by the seed."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held = min(round(share * n), n - 1) if share else 0
    return order[held:].sort().values, order[:held].sort().values


def random_shift(x: Tensor, y: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return pairs, each moved by a random whole number of pixels; what leaves comes in opposite.

    A moved pair is as good as the one that it came from where the problem is periodic and treats
    every place alike, as the heat equation on a periodic square does.

    Arguments:
        x: Unknowns, with shape (N, *, H, W).
        y: Their observations, with shape (N, *, H, W): each moves with its unknown.
        generator: The source of randomness.
    """
    if min(x.ndim, y.ndim) < 3 or x.shape[-2:] != y.shape[-2:]:
        raise VspairError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}: expected images of the same "
            "height and width, which move together."
        )
    moves = [_moves(x, dim, generator) for dim in (-2, -1)]
    return _moved(x, *moves), _moved(y, *moves)


def _moves(x: Tensor, dim: int, generator: Generator) -> Tensor:
    """Return where each pixel of a dimension comes from, with shape (N, length)."""
    n, length = len(x), x.shape[dim]
    by = torch.randint(length, (n, 1), generator=generator, device=generator.device)
    return (torch.arange(length, device=x.device) - by.to(x.device)) % length


def _moved(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return images (N, *, H, W) with rows (N, H) and columns (N, W) taken from elsewhere."""
    ones = (1,) * (x.ndim - 3)
    i = rows.reshape(len(x), *ones, -1, 1).expand_as(x)
    j = columns.reshape(len(x), *ones, 1, x.shape[-1]).expand_as(x)
    return x.gather(-2, i).gather(-1, j)


class Normaliser(nn.Module):
    """Shifts and scales data, and back; its numbers are saved with the model.

    Arguments:
        shape: The shape of one datum.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))

    def fit(
        self, data: Tensor, how: Literal["auto", "none", "scalar", "feature", "channel"]
    ) -> None:
        """Set mean and deviation from data of shape (N, *shape).

        Arguments:
            data: The data.
            how: ``feature``: each entry has its own. ``scalar``: all have the same. ``channel``:
                each entry of a vector and each channel of images (C, H, W) has its own, all else
                the same. ``auto``: ``feature`` for vectors, ``scalar`` else. ``none``: unchanged.
        """
        if how == "auto":
            how = "feature" if data.ndim == 2 else "scalar"
        if how == "none":
            return
        dims = [0] if how == "feature" else list(range(data.ndim))
        if how == "channel" and data.ndim in (2, 4):
            dims.remove(1)
        std, mean = torch.std_mean(data.double(), dim=dims, correction=0, keepdim=True)
        # An entry that never changes carries nothing: it is shifted to zero and not scaled. What
        # is below float32's resolution of the mean, or of zero, is round-off and not a change.
        least = 1e-7 * mean.abs() + torch.finfo(torch.float32).tiny
        std = torch.where(std > least, std, 1.0)
        self.mean.copy_(mean[0].expand_as(self.mean))
        self.std.copy_(std[0].expand_as(self.std))

    def forward(self, data: Tensor) -> Tensor:
        """Return data as the networks see it."""
        return (data - self.mean) / self.std

    def inverse(self, data: Tensor) -> Tensor:
        """Return what the networks say in the data's own units."""
        return data * self.std + self.mean


def rows_from_everywhere(count: int, most: int) -> Tensor:
    """Return the indices of at most so many of N pairs, spread evenly: neighbours may be alike."""
    return torch.linspace(0, count - 1, min(most, count), dtype=torch.float64).round().long()


def expect_batch(name: str, data: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse data that is not a batch of the shape (B, *shape)."""
    if tuple(data.shape[1:]) != shape:
        raise VspairError(
            f"{name} has shape {tuple(data.shape)}: expected a batch of shape (B, "
            f"{', '.join(map(str, shape))})."
        )


def batch_mask(name: str, mask: Any, like: Tensor) -> Tensor:
    """Return a mask of shape (B, *) or (*,) as one of shape (B, *), on the device of ``like``.

    Arguments:
        name: What a message calls it.
        mask: The mask, for each observation or one for all.
        like: A tensor of the shape that is expected.
    """
    mask = torch.as_tensor(mask)
    if mask.dtype != torch.bool or mask.shape not in (like.shape, like.shape[1:]):
        raise VspairError(
            f"{name} has dtype {mask.dtype} and shape {tuple(mask.shape)}: expected a mask of "
            f"shape {tuple(like.shape[1:])} or {tuple(like.shape)}."
        )
    return mask.to(like.device).expand_as(like)


def fingerprint(x: Tensor, *others: Tensor) -> str:
    """Return a short digest of pairs, by which they can be known again."""
    digest = hashlib.blake2b(digest_size=8)
    for t in (x, *others):
        digest.update(str(tuple(t.shape)).encode())
        digest.update(np.ascontiguousarray(t.numpy()).data)
    return f"{len(x)} pairs, {digest.hexdigest()}"
