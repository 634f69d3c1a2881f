"""Files that are written whole or not at all, and read with a clear word where they are damaged.

Each file is written beside its place and moved there, so that a full disk or a killed process
leaves the earlier one whole.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vspair.data import DAMAGE
from vspair.errors import VspairError

__all__ = [
    "Groups",
    "atomically",
    "make_folder",
    "read_groups",
    "read_json",
    "read_tensors",
    "write_arrays",
    "write_groups",
    "write_tensors",
    "write_text",
]

Groups = dict[str, dict[str, Any]]
"""Arrays by group and name."""


def atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, then move it there; on failure leave the old one alone."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        write(part)
        part.chmod(mode)  # safetensors makes files for their owner alone
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        kept = " The earlier file is unchanged." if path.exists() else ""
        raise VspairError(f"Could not write {path}: {error}.{kept}") from None


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VspairError(f"Could not make the folder {path}: {error}.") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise VspairError(f"The folder {path} cannot be written to. Name another.")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write named arrays as a compressed ``.npz`` file, atomically."""

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    atomically(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Read a JSON file of names and values; say what to do where it is damaged."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise VspairError(f"{path} is damaged: {error}. {advice}") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write named tensors and a JSON header atomically."""
    plain = {name: t.detach().contiguous() for name, t in tensors.items()}
    atomically(path, lambda part: save_file(plain, part, metadata={"vspair": json.dumps(header)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read named tensors and their JSON header."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = json.loads((file.metadata() or {}).get("vspair", "{}"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a table")
    except FileNotFoundError:
        raise VspairError(f"There is no file {path}.") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise VspairError(f"{path} is damaged: {error}. Restore it or train again.") from None
    return tensors, header


def write_groups(path: Path, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Write arrays by group and name as a compressed ``.npz`` file, atomically."""
    flat = {f"{group}.{name}": v for group, part in groups.items() for name, v in part.items()}
    write_arrays(path, flat)


def read_groups(path: Path, advice: str, widen: bool = True) -> Groups:
    """Return the arrays of a file by group and name; half precision becomes single.

    Arguments:
        path: What :func:`write_groups` wrote.
        advice: What to do where the file is missing or damaged.
        widen: Whether half precision becomes single.
    """
    if not path.is_file():
        raise VspairError(f"There is no file {path}. {advice}")
    groups: Groups = {}
    try:
        # ZipFile first: np.load takes other files too, and leaves open what it cannot read.
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as file:
            for key in file.files:
                group, _, name = key.partition(".")
                values = file[key]
                if widen and values.dtype == np.float16:
                    values = values.astype(np.float32)
                groups.setdefault(group, {})[name] = values
    except DAMAGE as error:
        raise VspairError(f"{path} is damaged: {error}. {advice}") from None
    return groups
