"""Observations and reference posteriors of the benchmark of simulation-based inference.

Lueckmann et al., "Benchmarking Simulation-Based Inference", AISTATS 2021. The package ``sbibm``
carries ten observations a task and 10,000 samples of each one's posterior. They are read from its
wheel, as ``pip download sbibm --no-deps`` leaves it, or from the unpacked wheel; the package is
never imported, and nothing is downloaded.
"""

from __future__ import annotations

import bz2
import io
import os
import zipfile
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vspair.data import DAMAGE
from vspair.errors import VspairError
from vspair.problems.sbibm import Task

__all__ = ["OBSERVATIONS", "Reference", "find_sbibm", "load_reference"]

OBSERVATIONS = 10
"""How many observations a task has."""

_GET = "pip download sbibm --no-deps -d FOLDER"


@dataclass(frozen=True)
class Reference:
    """Observations of a task, with samples of their exact posteriors.

    Arguments:
        y: The observations, with shape (B, y_size).
        samples: Samples for each of them, with shape (B, n, x_size).
    """

    y: Tensor
    samples: Tensor


def find_sbibm(data_dir: str | Path | None = None) -> Path | None:
    """Return the wheel of ``sbibm`` or the folder that it was unpacked to; None if none is named.

    Arguments:
        data_dir: The wheel, a folder that holds it, or one that holds its contents. None takes
            what the environment variable VSPAIR_DATA names.
    """
    chosen = data_dir if data_dir is not None else os.environ.get("VSPAIR_DATA") or None
    if chosen is None:
        return None
    named = Path(chosen)
    if named.suffix == ".whl" and named.is_file():
        return named
    for folder in (named, named / "sbibm"):
        if (folder / "sbibm" / "tasks").is_dir():
            return folder
        if wheels := sorted(folder.glob("sbibm-*.whl")):
            return wheels[-1]
    raise VspairError(
        f"There is no sbibm-*.whl in {named}, nor the folder sbibm/tasks of an unpacked one. Get "
        f"it by `{_GET}`, or name no folder, by --data-dir or VSPAIR_DATA: observations and exact "
        "posteriors are made then."
    )


def load_reference(source: Path, task: Task) -> Reference:
    """Return the benchmark's observations of a task, with 10,000 samples for each.

    Arguments:
        source: What :func:`find_sbibm` returned.
        task: The task.
    """
    y, samples = [], []
    for i in range(1, OBSERVATIONS + 1):
        folder = f"sbibm/tasks/{task.published}/files/num_observation_{i}"
        y.append(_read(source, f"{folder}/observation.csv", task.y_size)[0])
        file = f"{folder}/reference_posterior_samples.csv.bz2"
        samples.append(_read(source, file, task.x_size))
    counts = {len(each) for each in samples}
    if len(counts) > 1:
        raise VspairError(
            f"{source} holds {sorted(counts)} reference samples of {task.published}: expected as "
            f"many for each observation. Get it again: `{_GET}`."
        )
    return Reference(torch.stack(y), torch.stack(samples))


def _read(source: Path, name: str, columns: int) -> Tensor:
    """Return the numbers of a CSV file below its head, packed or not, with shape (n, columns)."""
    try:
        root: Traversable = source if source.is_dir() else zipfile.Path(source)
        content = root.joinpath(name).read_bytes()
        text = (bz2.decompress(content) if name.endswith(".bz2") else content).decode()
        table = np.loadtxt(io.StringIO(text), np.float32, delimiter=",", skiprows=1, ndmin=2)
    except DAMAGE as error:
        raise VspairError(
            f"{name} in {source} cannot be read: {error}. Get it again: `{_GET}`."
        ) from None
    if len(table) == 0 or table.shape[1] != columns or not np.isfinite(table).all():
        raise VspairError(
            f"{name} in {source} holds an array of shape {table.shape}: expected finite numbers "
            f"in {columns} columns. Get it again: `{_GET}`."
        )
    return torch.from_numpy(table)
