"""What studies say: the paper's numbers, labels, captions and texts, from ``words.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["Words", "read_words"]


@dataclass(frozen=True)
class Words:
    """Texts by name, with places for :meth:`str.format`, and captions by the file of a figure.

    What the paper prints is by model and metric. Metrics are named by the table whose rows they
    are, or as labels of another place; methods by the name of their answers.
    """

    text: dict[str, str]
    captions: dict[str, str]
    paper: dict[str, dict[str, float]] = field(default_factory=dict)
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@cache
def read_words(study: str) -> Words:
    """Return the words of the study in a folder of this package; lines of a paragraph are one."""
    path = resources.files("vspair") / "studies" / study / "words.toml"
    return Words(**_unwrapped(tomllib.loads(path.read_text(encoding="utf-8"))))


def _unwrapped(value: Any) -> Any:
    if isinstance(value, str):
        return "\n\n".join(" ".join(part.split()) for part in value.split("\n\n"))
    return {k: _unwrapped(v) for k, v in value.items()} if isinstance(value, dict) else value
