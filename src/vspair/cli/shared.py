"""What the commands have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

__all__ = ["Device", "say", "stoppable"]

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]


def say(text: str) -> None:
    """Print a line."""
    typer.echo(text)


@contextmanager
def stoppable(text: str, kind: type[KeyboardInterrupt] = KeyboardInterrupt) -> Iterator[None]:
    """Say what Ctrl-C leaves behind and exit with 130; typer would end without a word."""
    try:
        yield
    except kind:
        typer.echo(text, err=True)
        raise typer.Exit(130) from None
