"""A self-contained HTML page of text, figures and small tables.

The page loads nothing: style and figures are inside the file, so it can be sent by mail and
opened anywhere. Text is escaped; it is never read as HTML.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from vspair.report.figures import DPI
from vspair.report.tables import Table
from vspair.runs.files import write_text

__all__ = ["Block", "Picture", "Section", "Table", "write_page"]


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Arguments:
        png: The bytes of a PNG file.
        caption: What is to be seen, under the figure.
        alt: The same in a few words, for those who cannot see it.
    """

    png: bytes
    caption: str
    alt: str = ""

    @property
    def source(self) -> str:
        """The image as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height on the page, in CSS pixels, from the PNG header."""
        pixels = (int.from_bytes(self.png[i : i + 4], "big") for i in (16, 20))
        width, height = (round(n * 96 / DPI) for n in pixels)
        return width, height


Block = str | Picture | Table


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, figures and tables in their order."""

    title: str
    blocks: Sequence[Block]


def render(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """Return the page as HTML."""
    import jinja2

    text = (resources.files("vspair.report") / "page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["picture"] = lambda block: isinstance(block, Picture)
    environment.tests["table"] = lambda block: isinstance(block, Table)
    template = environment.from_string(text)
    return template.render(title=title, lead=lead, sections=sections, footer=footer)


def write_page(
    path: str | Path, title: str, lead: str, sections: Sequence[Section], footer: str = ""
) -> None:
    """Write a page that needs nothing but itself.

    Arguments:
        path: The HTML file.
        title: The page's heading.
        lead: A paragraph that says what the page is about.
        sections: The rest, in order.
        footer: A last line in small type.
    """
    write_text(Path(path), render(title, lead, sections, footer))
