"""One type of table, which writes itself as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Table", "format_number"]


@dataclass(frozen=True)
class Table:
    """A table of words; the first column names the rows.

    Arguments:
        columns: The heads.
        rows: The words of each row.
        caption: What the table shows.
        strong: The indices of the rows to set off.

    Example:
        >>> print(Table(["", "MSE"], [["ridge", "0.1"]]).markdown())
        | | MSE |
        |---|---|
        | ridge | 0.1 |
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    strong: Sequence[int] = ()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [f"| {' | '.join(row)} |".replace("|  |", "| |", 1) for row in self._lines()]
        return "\n".join([lines[0], "|---" * len(self.columns) + "|", *lines[1:]])

    def _lines(self) -> list[Sequence[str]]:
        bold = [
            [f"**{word}**" if word else "" for word in row] if i in self.strong else row
            for i, row in enumerate(self.rows)
        ]
        return [self.columns, *bold]

    def __html__(self) -> str:
        """Return the table as HTML, as templates show it."""
        head = "".join(f'<th scope="col">{escape(word)}</th>' for word in self.columns)
        lines = [
            f"<table>\n<caption>{escape(self.caption)}</caption>" if self.caption else "<table>"
        ]
        lines.append(f"<thead><tr>{head}</tr></thead>\n<tbody>")
        for i, (name, *words) in enumerate(self.rows):
            entries = "".join(f"<td>{escape(word)}</td>" for word in words)
            kind = ' class="strong"' if i in self.strong else ""
            lines.append(f'<tr{kind}><th scope="row">{escape(name)}</th>{entries}</tr>')
        return "\n".join([*lines, "</tbody>\n</table>"])


def format_number(value: float | None, digits: int = 4) -> str:
    """Return a number in as many digits as a table needs; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:.{digits}g}"
