"""The run folder: everything that makes a trained model again, in files that execute nothing.

==========================  ===================================================================
``config.toml``             sizes, objective and training, read strictly
``weights.safetensors``     the model, its normalisation included
``metrics.jsonl``           one line an epoch
``versions.json``           packages, machine and commit
``checkpoint.safetensors``  the last state of the training, to resume from
==========================  ===================================================================

Each file is written beside its place and moved there, so that a full disk or a killed process
leaves the earlier one whole.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vspair.config import (
    Config,
    ModelConfig,
    ObjectiveConfig,
    TrainingConfig,
    from_dict,
    read_toml,
    to_toml,
)
from vspair.errors import VspairError
from vspair.model import InverseModel, build

__all__ = [
    "Run",
    "atomically",
    "commit",
    "describe",
    "load",
    "machine",
    "pick_device",
    "read_json",
    "read_metrics",
    "versions",
]

FORMAT = 1


@dataclass(frozen=True)
class _Data:
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    pairs: str = ""


@dataclass(frozen=True)
class _RunConfig:
    data: _Data
    format: int = FORMAT
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


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


@functools.cache
def commit() -> str:
    """Return the commit of the source that is running, or ``unknown`` outside a checkout.

    ``VSPAIR_COMMIT`` says it where the source was exported from a checkout, to a cluster say.
    Asked for once: a study that writes its results into the checkout does not become dirty by it.
    """
    if given := os.environ.get("VSPAIR_COMMIT"):
        return given
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def pick_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).tolist()
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise VspairError(f"device = {name!r} cannot be used: {reason}. Try cpu.") from None


def machine(device: str | torch.device = "cpu") -> str:
    """Return what the computation runs on, in words."""
    device = pick_device(device) if isinstance(device, str) else device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores ({platform.machine()})"


def versions() -> dict[str, str]:
    """Return the versions of Python and of every package that decides the numbers."""
    names = ("vspair", "torch", "numpy", "safetensors")
    found = {
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # Source that is run where it lies is not installed, but has a version.
            found[name] = getattr(sys.modules.get(name), "__version__", "not installed")
    return found | {"commit": commit()}


class Run:
    """A run folder on disk.

    Arguments:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, model: InverseModel, pairs: str = "") -> Run:
        """Make a new folder with its configuration; refuse one that holds anything.

        Arguments:
            path: The folder.
            config: What the run is made with.
            model: Says the shapes.
            pairs: The fingerprint of the pairs, by which a resumed run knows them again.
        """
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise VspairError(
                f"{run.path} exists already. Name another folder, remove it, or resume it."
            )
        make_folder(run.path)
        data = {"x_shape": model.x_shape, "y_shape": model.y_shape, "pairs": pairs}
        document = {"format": FORMAT, "data": data, **dataclasses.asdict(config)}
        write_text(run.path / "config.toml", to_toml(document))
        write_text(run.path / "versions.json", json.dumps(versions(), indent=2) + "\n")
        return run

    def _config(self) -> _RunConfig:
        path = self.path / "config.toml"
        if not path.is_file():
            raise VspairError(
                f"{self.path} is not a run folder: it has no config.toml. Name the folder that "
                "'vspair fit' wrote."
            )
        values = read_toml(path)
        if "data" not in values or "format" not in values:
            raise VspairError(f"{path} was not written by vspair: it lacks format and [data].")
        try:
            config = from_dict(_RunConfig, values)
        except VspairError as error:
            raise VspairError(f"{path}: {error}") from None
        if config.format > FORMAT:
            raise VspairError(
                f"{path} has format {config.format}; this version reads up to {FORMAT}. "
                "Upgrade vspair."
            )
        return config

    @property
    def config(self) -> Config:
        """The configuration that the run was made with."""
        c = self._config()
        return Config(c.model, c.objective, c.training)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of one unknown and of one observation."""
        data = self._config().data
        return data.x_shape, data.y_shape

    @property
    def pairs(self) -> str:
        """The fingerprint of the pairs that the run was started with."""
        return self._config().data.pairs

    def blank(self) -> InverseModel:
        """Return the run's model with weights yet to be filled."""
        c = self._config()
        try:
            with torch.random.fork_rng(devices=[]):
                return build(c.model, c.data.x_shape, c.data.y_shape)
        except RuntimeError as error:
            path = self.path / "config.toml"
            reason = str(error).splitlines()[0]
            raise VspairError(f"{path} describes a model that cannot be made: {reason}") from None

    def save_weights(self, model: InverseModel | Mapping[str, Tensor], epoch: int) -> None:
        """Write the model's weights."""
        state = model.state_dict() if isinstance(model, InverseModel) else model
        write_tensors(self.path / "weights.safetensors", state, {"epoch": epoch})

    def load(self, device: str | torch.device = "cpu") -> InverseModel:
        """Return the trained model, ready to invert."""
        model = self.blank()
        path = self.path / "weights.safetensors"
        tensors, _ = read_tensors(path)
        fill(model, tensors, path)
        return model.to(device).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """Return one dictionary an epoch."""
        return read_metrics(self.path / "metrics.jsonl")


def fill(model: InverseModel, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put named tensors into a model, or say which do not belong there."""
    expected = model.state_dict()
    wrong = set(expected) ^ set(tensors)
    wrong |= {k for k in set(expected) & set(tensors) if expected[k].shape != tensors[k].shape}
    if wrong:
        raise VspairError(
            f"{path} does not fit config.toml: {len(wrong)} tensors differ, for example "
            f"{min(wrong)}. One of the two files belongs to another run."
        )
    sick = [k for k, v in tensors.items() if v.is_floating_point() and not v.isfinite().all()]
    if sick:
        raise VspairError(f"{path} holds values that are not finite, in {sick[0]}: train again.")
    model.load_state_dict(dict(tensors))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise VspairError(f"{path} cannot be read: {error}.") from None
    rows: list[dict[str, Any]] = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
            break
        rows.append(row)
    return rows


def load(path: str | Path, device: str = "cpu") -> InverseModel:
    """Return the trained model of a run folder.

    Arguments:
        path: The folder that :func:`vspair.fit` or ``vspair fit`` wrote.
        device: Where to put the model: ``cpu``, ``cuda``, or ``auto``.
    """
    return Run(path).load(pick_device(device))


def describe(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return what a run folder holds, by section: model, training, last epoch, versions."""
    run = Run(path)
    config, model, rows = run.config, run.load(), run.metrics()
    _, header = read_tensors(run.path / "weights.safetensors")
    rho = model.rho
    sizes = {
        "kind": config.model.kind,
        "x_shape": model.x_shape,
        "y_shape": model.y_shape,
        "x_size": config.model.x_size,
        "y_size": config.model.y_size,
        "parameters": model.n_parameters,
        "decoder width": float(model.width),
    }
    if rho is not None:
        sizes["rho"] = float(rho)
    training = {
        "epochs": f"{rows[-1]['epoch'] if rows else 0} of {config.training.epochs}",
        "weights of epoch": header.get("epoch", "unknown"),
        "pairs in a step": config.training.batch_size,
        "map": config.objective.map,
        "active asked for": config.objective.active or "as the objective decides",
        "seed": config.training.seed,
    }
    try:
        kept = json.loads((run.path / "versions.json").read_bytes())
    except (OSError, ValueError):
        kept = None
    if not isinstance(kept, dict):
        kept = {"versions.json": "missing or damaged"}
    sections: dict[str, dict[str, Any]] = {
        "model": sizes,
        "training": training,
        "last epoch": rows[-1] if rows else {},
    }
    sections["versions"] = kept
    return {k: v for k, v in sections.items() if v}
