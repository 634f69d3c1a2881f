"""The trainings of a study: small models side by side, each in a run folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vspair import config as configs
from vspair import runs
from vspair.config import Config
from vspair.data import Pairs
from vspair.errors import VspairError
from vspair.fitting import fit, split_pairs, start_or_resume_training
from vspair.model import InverseModel
from vspair.studies.answers import digest
from vspair.studies.study import Workspace
from vspair.training.side_by_side import MOST_LANES, train_side_by_side
from vspair.training.trainer import Trainer

__all__ = ["has_ended", "load_trained", "train_all", "train_anchored", "weights_digest"]


def train_all(
    work: Workspace[Any, Any], jobs: Mapping[str, Config], pairs: Mapping[str, Pairs] | Pairs
) -> bool:
    """Train what is not trained yet; what was stopped continues.

    On a GPU steps are replayed as CUDA graphs, in bfloat16 where the workspace is fast.

    Arguments:
        work: Where run folders are, when to stop, and on which device.
        jobs: The configuration of each training by the name of its run folder.
        pairs: The pairs of each training by that name, or the same for all.

    Returns:
        Whether everything is trained.
    """
    names = list(jobs)
    for start in range(0, len(names), MOST_LANES):
        some = names[start : start + MOST_LANES]
        lanes = [
            _trainer(work, name, jobs[name], pairs if isinstance(pairs, Pairs) else pairs[name])
            for name in some
        ]
        left = [trainer for trainer in lanes if not trainer.finished]
        if left:
            work.note_work()
        if not train_side_by_side(left, work.deadline, work.show):
            return False
    return True


def _trainer(work: Workspace[Any, Any], name: str, config: Config, pairs: Pairs) -> Trainer:
    """Return a training that is new, was stopped, or is done."""
    if work.device.type == "cuda":
        faster = {"capture": True} | ({"precision": "bfloat16"} if work.fast else {})
        config = configs.override(config, {"training": faster})
    parts = split_pairs(pairs, config)
    return start_or_resume_training(*parts, config, work.folder / name, work.device)


def train_anchored(
    work: Workspace[Any, Any],
    name: str,
    pairs: Pairs,
    *,
    minutes: float,
    seed: int,
    active: int = 0,
    **known: Any,
) -> bool:
    """Train by the defaults of :func:`vspair.fit`, as a user would; what was stopped continues.

    A training is not begun where no time is left; once begun, it goes on to its end.

    Arguments:
        work: Where run folders are, when to stop, and on which device.
        name: The name of the run folder.
        pairs: All that it learns from.
        minutes: How long it may take, as ``fit`` takes it.
        seed: The seed.
        active: How many factors are asked for; 0 where ``fit`` is to choose.
        known: What ``fit`` is told of the pairs: ``groups`` or ``first``.

    Returns:
        Whether it is trained to its end.
    """
    if has_ended(work, name):
        return True
    if work.late():
        return False
    work.note_work()
    folder = work.folder / name
    begun = folder.exists()
    new: dict[str, Any] = {"minutes": minutes, "seed": seed, "active": active}
    how: dict[str, Any] = {"resume": True} if begun else new
    how |= {"out": folder, "device": str(work.device), "progress": work.show}
    fit(pairs.x, pairs.y, **how, **known)
    return True


def has_ended(work: Workspace[Any, Any], name: str) -> bool:
    """Return whether a training by ``fit`` has come to its end."""
    folder = work.folder / name
    return folder.exists() and runs.Run(folder).verdict() is not None


def load_trained(work: Workspace[Any, Any], name: str) -> InverseModel:
    """Return a model that was trained to its end, on the workspace's device."""
    return _finished(work, name).load(work.device)


def weights_digest(work: Workspace[Any, Any], name: str) -> str:
    """Return what the weights of a training that came to its end are known again by."""
    return digest((_finished(work, name).path / "weights.safetensors").read_bytes())


def _finished(work: Workspace[Any, Any], name: str) -> runs.Run:
    run = runs.Run(work.folder / name)
    if not run.path.exists():
        raise VspairError(f"There is no run {run.path}: train it first, by --only train.")
    rows, epochs = run.metrics(), run.config.training.epochs
    done = rows[-1]["epoch"] if rows else 0
    if done < epochs and not run.config.training.patience:
        raise VspairError(
            f"{run.path} was stopped after {done} of {epochs} epochs: continue by --only train."
        )
    return run
