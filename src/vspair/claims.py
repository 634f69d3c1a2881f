"""Which process works on what, where several share a folder.

A process owns a piece of work while it holds its :class:`Claim`. Claims need nothing but a file
system that all of them see, and outlive no process by more than three minutes.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import tempfile
import threading
import time
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from vspair import runs

__all__ = ["Claim", "alone"]

PULSE, STALE = 10.0, 180.0
"""Seconds between two touches of a claim, and until one that is not touched is taken over."""


@functools.cache
def _place() -> str:
    """Return what processes that see each other have in common: machine, boot, user."""
    parts = [socket.gethostname()]
    with suppress(OSError, AttributeError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts += [str(os.stat("/proc/self/ns/pid").st_ino), str(os.getuid())]
    return " ".join(parts)


def _dead(pid: int) -> bool:
    """Whether a process of this place has ended; where none can be seen, its claim ages."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return Path("/proc/self/stat").exists()


class Claim:
    """The right to work on something, which one process has at a time.

    It is a file whose name is a number. The highest number counts and is never removed, only
    surpassed; of all processes that would surpass it, one can make the next file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, int(path.name)
        self._ended = threading.Event()
        self._main = threading.current_thread() is threading.main_thread()
        self._thread = threading.Thread(target=self._touch, daemon=True)
        self._thread.start()

    @staticmethod
    def _numbers(folder: Path) -> list[int]:
        return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]

    @staticmethod
    def _busy(path: Path) -> bool:
        holder: dict[str, Any] = {}
        try:
            with suppress(ValueError):  # not written to its end
                holder = json.loads(path.read_bytes())
            if holder.get("free") or (holder.get("place") == _place() and _dead(holder["pid"])):
                return False
            with tempfile.TemporaryFile(dir=path.parent) as now:  # the file system's own clock
                return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime < STALE
        except OSError:
            return True  # surpassed at this moment

    @classmethod
    def take(cls, shared: Path, name: str) -> Claim | None:
        """Return the claim of a name in a shared folder; nothing where another has it."""
        folder = shared / ".claims" / name
        runs.make_folder(folder)
        before = cls._numbers(folder)
        path = folder / str(max(before, default=0) + 1)
        if before and cls._busy(folder / str(max(before))):
            return None
        with suppress(FileExistsError):
            with path.open("x", encoding="utf-8") as file:
                json.dump({"place": _place(), "pid": os.getpid()}, file)
            if max(cls._numbers(folder)) == int(path.name):
                for number in before:
                    (folder / str(number)).unlink(missing_ok=True)
                return cls(path)
            path.unlink(missing_ok=True)
        return None

    @property
    def held(self) -> bool:
        """Whether nobody has taken over, say while this machine slept."""
        return max(self._numbers(self.path.parent), default=0) == self.number

    def _touch(self) -> None:
        while not self._ended.wait(PULSE):
            with suppress(OSError):
                if self.held:
                    os.utime(self.path)
                elif self._main:
                    interrupt_main()  # work that another process does by now
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            if self.held:
                self.path.write_text('{"free": true}', encoding="utf-8")


@contextmanager
def alone(shared: Path) -> Iterator[None]:
    """Wait until no other process changes what all of them share."""
    while (claim := Claim.take(shared, "shared")) is None:
        time.sleep(0.02)
    with claim:
        yield
