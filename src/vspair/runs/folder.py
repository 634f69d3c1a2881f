"""The run folder: everything that makes a trained model again, in files that execute nothing.

==========================  ===================================================================
``config.toml``             sizes, objective and training, read strictly
``weights.safetensors``     the model, its normalisation included
``metrics.jsonl``           one line an epoch
``verdict.json``            what the anchored model is worth on held-out pairs
``versions.json``           packages, machine and commit
``checkpoint.safetensors``  the last state of the training, to resume from
==========================  ===================================================================
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.config import (
    AnchoredConfig,
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
from vspair.runs.files import make_folder, read_tensors, write_tensors, write_text
from vspair.runs.provenance import pick_device, versions

__all__ = ["Run", "describe", "fill", "load", "read_metrics"]

FORMAT = 1
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


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
    anchored: AnchoredConfig = field(default_factory=AnchoredConfig)


class Run:
    """A run folder on disk.

    Arguments:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, config: Config, shapes: Shapes, pairs: str = "") -> Run:
        """Make a new folder with its configuration; refuse one that holds anything.

        Arguments:
            path: The folder.
            config: What the run is made with.
            shapes: The shapes of one unknown and of one observation.
            pairs: The fingerprint of the pairs, by which a resumed run knows them again.
        """
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise VspairError(
                f"{run.path} exists already. Name another folder, remove it, or resume it."
            )
        make_folder(run.path)
        data = {"x_shape": shapes[0], "y_shape": shapes[1], "pairs": pairs}
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
        return Config(c.model, c.objective, c.training, c.anchored)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of one unknown and of one observation."""
        data = self._config().data
        return data.x_shape, data.y_shape

    @property
    def pairs(self) -> str:
        """The fingerprint of the pairs that the run was started with."""
        return self._config().data.pairs

    def blank(self, made: Mapping[str, Any] | None = None) -> InverseModel:
        """Return the run's model with weights yet to be filled.

        Arguments:
            made: What the file of its weights says was decided by the pairs, if anything.
        """
        c = self._config()
        try:
            with torch.random.fork_rng(devices=[]):
                if c.model.kind != "anchored":
                    return build(c.model, c.data.x_shape, c.data.y_shape)
                decided = self._made(made)
                return AnchoredModel(c.model, c.anchored, decided, c.data.x_shape, c.data.y_shape)
        except RuntimeError as error:
            path = self.path / "config.toml"
            reason = str(error).splitlines()[0]
            raise VspairError(f"{path} describes a model that cannot be made: {reason}") from None

    def _made(self, made: Mapping[str, Any] | None) -> Made:
        """Return what was decided by the pairs, or say that its file does not tell."""
        try:
            return from_dict(Made, made or {}, "made.")
        except (TypeError, VspairError) as error:
            raise VspairError(
                f"{self.path / 'weights.safetensors'} does not say what the pairs decided: "
                f"{error} It is damaged, or of another version of vspair: train again."
            ) from None

    def save_weights(self, model: InverseModel, epoch: int) -> None:
        """Write the model's weights, and what was decided by the pairs."""
        header: dict[str, Any] = {"epoch": epoch}
        if isinstance(model, AnchoredModel):
            header["made"] = dataclasses.asdict(model.made)
        write_tensors(self.path / "weights.safetensors", model.state_dict(), header)

    def save_verdict(self, verdict: Mapping[str, Any]) -> None:
        """Write what the model is worth on held-out pairs."""
        text = json.dumps(verdict, indent=2, allow_nan=False) + "\n"
        write_text(self.path / "verdict.json", text)

    def verdict(self) -> dict[str, Any] | None:
        """Return what was written of it; nothing where there is none, or it is damaged."""
        try:
            kept = json.loads((self.path / "verdict.json").read_bytes())
        except (OSError, ValueError):
            return None
        return {k: v for k, v in kept.items() if k != "lines"} if isinstance(kept, dict) else None

    def load(self, device: str | torch.device = "cpu") -> InverseModel:
        """Return the trained model, ready to invert."""
        path = self.path / "weights.safetensors"
        if self._config().model.kind == "anchored" and not path.exists():
            raise VspairError(
                f"{self.path} has no weights yet: its training was stopped. Continue it with "
                f"'vspair fit --resume --out {self.path} --x ... --y ...'."
            )
        tensors, header = read_tensors(path)
        model = self.blank(header.get("made"))
        fill(model, tensors, path)
        return model.to(device).eval()

    def metrics(self) -> list[dict[str, Any]]:
        """Return one dictionary an epoch."""
        return read_metrics(self.path / "metrics.jsonl")


def fill(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put named tensors into a model, or say which do not belong there."""
    expected = model.state_dict()
    wrong = set(expected) ^ set(tensors)
    wrong |= {k for k in set(expected) & set(tensors) if expected[k].shape != tensors[k].shape}
    if wrong:
        raise VspairError(
            f"{path} does not fit the model of its folder: {len(wrong)} tensors differ, for "
            f"example {min(wrong)}. It belongs to another run, or to another version of vspair."
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


Sections = tuple[dict[str, Any], dict[str, Any]]


def _describe_paired(model: InverseModel, config: Config, rows: list[dict[str, Any]]) -> Sections:
    """Return what is particular to model and training of a paired model."""
    sizes: dict[str, Any] = {
        "x_size": config.model.x_size,
        "y_size": config.model.y_size,
        "decoder noise": float(model.noise_std),
    }
    if (rho := model.rho) is not None:
        sizes["rho"] = float(rho)
    return sizes, {
        "epochs": f"{rows[-1]['epoch'] if rows else 0} of {config.training.epochs}",
        "map": config.objective.map,
        "active asked for": config.objective.active or "as the objective decides",
    }


def _describe_anchored(
    model: InverseModel, config: Config, rows: list[dict[str, Any]]
) -> Sections:
    """Return what is particular to model and training of an anchored model."""
    assert isinstance(model, AnchoredModel)
    answering, others = len(model.answering), len(model.networks) - len(model.answering)
    sizes = {
        "answers": f"{model.made.base} and {answering} networks"
        + f" ({others} more tell the doubt)" * (others > 0)
        + ", with a smooth regression" * (model.made.curve > 0),
        "x is": model.made.domain,
        "factors": model.n_factors,
        "modes": model.made.modes,
        "first guesses": "with every y" if model.made.first else "none",
    }
    return sizes, {
        "epochs": f"{config.training.epochs} in each stage, {len(rows)} in all",
        "active asked for": config.anchored.active or "chosen by the knee",
    }


def describe(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return what a run folder holds, by section: model, training, last epoch, versions."""
    run = Run(path)
    config, model, rows = run.config, run.load(), run.metrics()
    _, header = read_tensors(run.path / "weights.safetensors")
    how = _describe_anchored if isinstance(model, AnchoredModel) else _describe_paired
    sizes, settings = how(model, config, rows)
    sizes = {
        "kind": config.model.kind,
        "x_shape": model.x_shape,
        "y_shape": model.y_shape,
        **sizes,
        "parameters": model.n_parameters,
    }
    training = {
        "weights of epoch": header.get("epoch", "unknown"),
        "pairs in a step": config.training.batch_size,
        "seed": config.training.seed,
        **settings,
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
    if (verdict := run.verdict()) is not None:
        sections["verdict"] = verdict
    sections["versions"] = kept
    return {k: v for k, v in sections.items() if v}
