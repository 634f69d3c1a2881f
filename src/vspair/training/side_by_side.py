"""Several trainings side by side, for seeds and variants of small models."""

from __future__ import annotations

import time

import torch

from vspair.errors import VspairError
from vspair.training.progress import Progress
from vspair.training.trainer import Trainer

__all__ = ["deadline_in", "train_side_by_side"]

MOST_LANES = 16
"""Trainings side by side; torch has 32 streams, and two graphs must never share one."""


def deadline_in(minutes: float) -> float | None:
    """Return the time of ``time.monotonic`` that is so many minutes away; none for 0."""
    return time.monotonic() + 60 * minutes if minutes else None


def train_side_by_side(
    trainers: list[Trainer], deadline: float | None = None, show: bool = False
) -> bool:
    """Train several models step by step in turn; on a GPU each on a stream of its own.

    Small models leave most of a GPU idle, so several cost less together than one by one.

    Arguments:
        trainers: Trainings that have not begun, or were resumed.
        deadline: Save and stop at this time of ``time.monotonic``.
        show: Whether to show the progress of the slowest.

    Returns:
        Whether all trainings came to their end.
    """
    if len(trainers) > MOST_LANES:
        raise VspairError(
            f"{len(trainers)} trainings side by side: expected at most {MOST_LANES}."
        )
    on_gpu = any(t.device.type == "cuda" for t in trainers)
    if on_gpu:
        torch.cuda.synchronize()
    work = [(trainer, trainer.run_steps([]), _lane(trainer.device)) for trainer in trainers]
    most = max((t.config.training.epochs for t in trainers), default=1)
    with Progress(most, show) as bar:
        while work and not (deadline and time.monotonic() > deadline):
            left = []
            for trainer, steps, lane in work:
                with torch.cuda.stream(lane):
                    if next(steps, steps) is None:
                        left.append((trainer, steps, lane))
            work = left
            if work and bar.due():
                bar.advance(min(t.state.epoch + t.state.step / t.steps for t, _, _ in work))
    for trainer, steps, lane in work:
        with torch.cuda.stream(lane):
            trainer.save()
            steps.close()
    if on_gpu:
        torch.cuda.synchronize()
    return not work


def _lane(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None
