"""Self-contained HTML pages: a template of words that shows figures and tables.

A page loads nothing: style and figures are inside the file, so it can be sent by mail and opened
anywhere. Values are escaped; they are never read as HTML.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from vspair.report import figures
from vspair.runs.files import write_text

__all__ = ["Picture", "render", "write_page"]


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, which a template shows.

    Arguments:
        png: The bytes of a PNG file.
        caption: What is to be seen, under the figure.
    """

    png: bytes
    caption: str

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on the page, in CSS pixels, from the PNG header."""
        width, height = (int.from_bytes(self.png[i : i + 4], "big") for i in (16, 20))
        return round(width * 96 / figures.DPI), round(height * 96 / figures.DPI)

    def __html__(self) -> str:
        """Return the figure as HTML."""
        source = "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")
        (width, height), brief = self.size, escape(self.caption.split(". ")[0])
        image = f'<img src="{source}" width="{width}" height="{height}" alt="{brief}">'
        return f"<figure>\n{image}\n<figcaption>{escape(self.caption)}</figcaption>\n</figure>"


def render(template: str, **values: Any) -> str:
    """Return a page as HTML.

    Arguments:
        template: A Jinja template that extends ``report/page.html``, by its path in the package.
        values: What it shows: pictures, tables, numbers and words.
    """
    import jinja2

    root = resources.files("vspair")
    loader = jinja2.FunctionLoader(lambda path: (root / path).read_text(encoding="utf-8"))
    how: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    pages = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, **how)
    return pages.get_template(template).render(values)


def write_page(path: str | Path, template: str, **values: Any) -> None:
    """Write a page that needs nothing but itself; see :func:`render`."""
    write_text(Path(path), render(template, **values))
