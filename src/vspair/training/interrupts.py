"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "stop_on_interrupt"]


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C, between two steps; what was reached is saved."""


@contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that no step is left half done."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
