"""A progress bar with the loss terms, the open factors and the time left."""

from __future__ import annotations

import time
from typing import Any, Self

__all__ = ["Progress"]

_SHOWN = (
    "loss", "val_score", "held", "active", "x_fit", "map", "y_fit", "x_prior", "y_prior", "gates",
    "beta", "binary", "forward",
)  # fmt: skip
"""What is shown of an epoch, as much of it as the terminal is wide."""


class Progress:
    """Shows how far a training is, at most five times a second.

    Arguments:
        epochs: How many epochs there are.
        show: Whether to show anything.
    """

    def __init__(self, epochs: int, show: bool = True) -> None:
        self._epochs, self._show = epochs, show
        self._bar: Any = None
        self._next = time.monotonic()

    def __enter__(self) -> Self:
        if self._show:
            from rich import progress as rich
            from rich.console import Console
            from rich.table import Column

            # In a narrow terminal the terms are cut short, never the epoch and the time left.
            count = 7 + 2 * len(str(self._epochs))
            self._bar = rich.Progress(
                rich.TextColumn(
                    "epoch {task.fields[epoch]}/{task.total:.0f}",
                    table_column=Column(min_width=count, no_wrap=True),
                ),
                rich.BarColumn(bar_width=12),
                rich.TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
                rich.TextColumn("{task.fields[terms]}"),
                console=Console(stderr=True),  # answers go to stdout
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._epochs, epoch=0, terms="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def due(self) -> bool:
        """Whether enough time has passed to show something new."""
        return self._bar is not None and time.monotonic() >= self._next

    def advance(self, epochs: float, row: dict[str, Any] | None = None) -> None:
        """Show the number of epochs done and, at the end of one, its metrics."""
        if self._bar is None:
            return
        self._next = time.monotonic() + 0.2
        fields: dict[str, Any] = {"epoch": int(epochs)}
        if row is not None:
            fields["terms"] = " ".join(f"{k} {row[k]:.4g}" for k in _SHOWN if k in row)
        self._bar.update(self._task, completed=epochs, **fields)
