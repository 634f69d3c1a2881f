"""Results that stand: what a folder published before, kept where it is not made again.

Results outlive the trainings that they are of. Where a stage is added to a study later, its rows
and figures are published beside those that stand: of methods that were not asked again every
number stays as it is, and so does the word by which command, commit and machine it was made.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vspair.errors import VspairError
from vspair.runs import Groups, read_groups, read_json
from vspair.studies.results import Row

__all__ = ["FIGURES", "SUMMARY", "Standing", "joined", "made_by"]

FIGURES, SUMMARY = "figures.npz", "summary.json"
"""The files of a results folder that hold its numbers."""

ORIGIN = ("command", "commit", "machine", "versions")
"""What is known of how rows were made."""

_ADVICE = "Restore it, or name another folder by --out."


@dataclass(frozen=True)
class Standing:
    """What a results folder holds.

    Arguments:
        rows: Every number.
        numbers: The arrays behind the figures, in the precision that they were kept in.
        made: How they were made: methods, and the command, commit and machine that made theirs.
        scale: How much was computed, and of which data.
    """

    rows: list[Row] = field(default_factory=list)
    numbers: Groups = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    scale: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> Standing:
        """Return what a folder holds; nothing where there are no results in it."""
        path = out / SUMMARY
        if not path.is_file():
            return cls()
        found = read_json(path, _ADVICE)
        rows = [Row(**{"preset": "", **row}) for row in found["rows"]]
        made = {k: found[k] for k in ORIGIN if k in found}
        scale = dict(found["scale"])
        nested = scale.pop("scale", {}) | scale.pop("data", {})  # as studies wrote them once
        figures = out / FIGURES
        numbers = read_groups(figures, _ADVICE, widen=False) if figures.is_file() else {}
        every = found.get("made", [{"methods": list(_by_method(rows)), **made}])
        return cls(rows, numbers, every, scale | nested)

    def check(self, settings: Mapping[str, Any], out: Path) -> None:
        """Refuse to stand beside rows of other settings or data.

        Arguments:
            settings: What new rows depend on, by name.
            out: The folder, for the message.
        """
        wrong = [k for k, v in settings.items() if k in self.scale and self.scale[k] != v]
        if wrong:
            words = "; ".join(
                f"{k} is {self.scale[k]} there and {settings[k]} here" for k in wrong
            )
            raise VspairError(
                f"The results in {out} are of other settings: {words}. New rows cannot stand "
                "beside them: give the same options, or name another folder by --out."
            )

    def join_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Return all rows, new ones in the place of those of the same method that stood."""
        found = _by_method(self.rows) | _by_method(rows)
        return [row for each in found.values() for row in each]

    def join_numbers(self, numbers: Groups) -> Groups:
        """Return the arrays of all figures; new ones take the place of those that stood."""
        names = dict.fromkeys([*self.numbers, *numbers])
        return {name: {**self.numbers.get(name, {}), **numbers.get(name, {})} for name in names}

    def join_scale(
        self, scale: Mapping[str, Any], recorded: Container[str], fields: Container[str]
    ) -> dict[str, Any]:
        """Return what is said of the scale of all rows.

        Arguments:
            scale: What is said of that of the new rows.
            recorded: The settings that these depend on.
            fields: All settings: where new rows do not depend on one, it is of those that stand.
        """
        stands = {
            k: v
            for k, v in self.scale.items()
            if k not in scale or (k in fields and k not in recorded)
        }
        whole = self.scale.get("paper_scale", True) and scale.get("paper_scale", False)
        return {**scale, **stands} | ({"paper_scale": whole} if "paper_scale" in scale else {})

    def join_made(self, rows: Sequence[Row], made: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return how all rows were made, the new ones last."""
        new = list(_by_method(rows))
        kept = [{**m, "methods": [k for k in m["methods"] if k not in new]} for m in self.made]
        return [*(m for m in kept if m["methods"]), {"methods": new, **made}]


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by the name of the method with its preset, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = f"{row.model} ({row.preset})" if row.preset else row.model
        found.setdefault(name, []).append(row)
    return found


def joined(made: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the commands, commits and machines that made rows, each as one text."""
    words = {"command": "; ", "commit": ", ", "machine": ", "}
    return {k: mark.join(dict.fromkeys(m[k] for m in made if m[k])) for k, mark in words.items()}


def made_by(made: Sequence[Mapping[str, Any]], study: str) -> str:
    """Return a sentence about each command that made some of the rows."""
    words = []
    for each in made:
        command = each["command"]
        called = f"`{command}`" if command else f"the study `{study}`, called from Python,"
        methods = "" if len(made) == 1 else f": {', '.join(each['methods'])}"
        words.append(f"Made by {called} at commit {each['commit']} on {each['machine']}{methods}.")
    return " ".join(words)
