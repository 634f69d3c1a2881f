"""What a sweep keeps on disk: the settings that its trials share, and a row of each finished one.

A row is ``scores.json`` of the trial's run folder; tables and figures are made from rows alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vspair import runs
from vspair.claims import alone
from vspair.config import Config
from vspair.errors import VspairError

__all__ = [
    "Settings",
    "agree",
    "flat",
    "folder_name",
    "mend",
    "read_row",
    "rows",
    "settle",
    "short",
]

Settings = dict[str, Any]


def short(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def flat(config: Config) -> Settings:
    """Return a configuration as one dictionary of dotted keys, of values that JSON knows."""

    def walk(values: Settings, prefix: str) -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, list(value) if isinstance(value, tuple) else value

    return dict(walk(dataclasses.asdict(config), ""))


def folder_name(settings: Settings) -> str:
    """Return the name of a trial's folder: readable, and unique by a digest of the settings."""
    digest = hashlib.blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()
    words = ",".join(f"{short(key)}={value}" for key, value in settings.items())
    return re.sub(r"[^\w.=,+-]", "", words or "base")[:80] + f"-{digest}"


def settle(sweep: Path, settings: Settings, free: list[str]) -> Settings:
    """Keep what all trials share, or return what was kept; refuse what contradicts it.

    Arguments:
        sweep: The sweep's folder.
        settings: What all trials share.
        free: Keys that may differ, because every trial has a value of its own.
    """
    path = sweep / "settings.json"
    with alone(sweep):
        if not path.exists():
            runs.write_text(path, json.dumps(settings, indent=1) + "\n")
        kept = runs.read_json(path, "Name another folder.")
    agree(sweep, {key: value for key, value in kept.items() if key not in free}, settings)
    return kept | {key: settings[key] for key in settings if key not in kept}


def agree(
    where: Path,
    kept: Settings,
    settings: Settings,
    advice: str = "Name another folder, or give the same settings.",
) -> None:
    """Refuse settings that contradict those that were kept.

    Arguments:
        where: What was made with the kept ones.
        kept: The settings there.
        settings: The settings here.
        advice: What to do where they differ.
    """
    wrong = [key for key in kept if key in settings and kept[key] != settings[key]]
    if wrong:
        words = "; ".join(f"{k} is {kept[k]} there and {settings[k]} here" for k in wrong[:4])
        more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise VspairError(f"{where} was made with other settings: {words}{more}. {advice}")


def read_row(trial: Path) -> Settings | None:
    """Return a trial's settings and scores, or nothing where it is not finished."""
    path = trial / "scores.json"
    if not path.is_file():
        return None
    return runs.read_json(path, "Remove it, and the trial is scored again.")


def rows(sweep: Path) -> list[Settings]:
    """Return the settings and scores of every trial that is finished."""
    found = (read_row(path) for path in sorted((sweep / "trials").glob("*/")))
    return [row for row in found if row is not None]


def mend(journal: Path) -> None:
    """Remove what a process that was killed left behind: its lock, and half a line."""
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.is_file() and not (text := journal.read_bytes()).endswith(b"\n"):
        os.truncate(journal, text.rfind(b"\n") + 1)
