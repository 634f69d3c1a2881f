"""Several trainings side by side, for seeds and variants of small models."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from vspair.errors import VspairError
from vspair.training.loop import Loop
from vspair.training.progress import Progress

__all__ = ["deadline_in", "train_side_by_side"]

MOST_LANES = 16
"""Trainings side by side; torch has 32 streams, and two graphs must never share one."""


def deadline_in(minutes: float) -> float | None:
    """Return the time of ``time.monotonic`` that is so many minutes away; none for 0."""
    return time.monotonic() + 60 * minutes if minutes else None


def train_side_by_side(
    trainings: Sequence[Loop], deadline: float | None = None, show: bool = False
) -> bool:
    """Train several models step by step in turn; on a GPU each on a stream of its own.

    Small models leave most of a GPU idle, so several cost less side by side than one by one.

    Arguments:
        trainings: Trainings that have not begun, or were resumed.
        deadline: Save and stop at this time of ``time.monotonic``.
        show: Whether to show the progress of the slowest.

    Returns:
        Whether all trainings came to their end.
    """
    if len(trainings) > MOST_LANES:
        raise VspairError(
            f"{len(trainings)} trainings side by side: expected at most {MOST_LANES}."
        )
    on_gpu = any(t.device.type == "cuda" for t in trainings)
    if on_gpu:
        torch.cuda.synchronize()
    work = [(training, training.run_steps([]), _lane(training.device)) for training in trainings]
    most = max((t.settings.epochs for t in trainings), default=1)
    failed: list[VspairError] = []
    with Progress(most, show) as bar:
        while work and not (deadline and time.monotonic() > deadline):
            left = []
            for training, steps, lane in work:
                with torch.cuda.stream(lane):
                    try:
                        if next(steps, steps) is None:
                            left.append((training, steps, lane))
                    except VspairError as error:  # the others go on without it
                        failed.append(error)
            work = left
            if work and bar.due():
                bar.advance(min(training.epochs_done for training, _, _ in work))
    for training, steps, lane in work:
        with torch.cuda.stream(lane):
            training.save()
            steps.close()
    if on_gpu:
        torch.cuda.synchronize()
    if failed:
        raise failed[0]
    return not work


def _lane(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None
