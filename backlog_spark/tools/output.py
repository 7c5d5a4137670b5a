"""Prints texts for people. Control characters of names and values reach no terminal, and a pipe cuts nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from backlog_spark.common.printable import printable

__all__ = ["say", "show", "table", "tell", "tell_json"]

# Columns of a line that goes into a file or another program: more than any name has.
_WIDE: Final = 100_000


def tell(text: str) -> None:
    """Print a result."""
    click.echo(printable(text, keep="\n"))


def say(text: str) -> None:
    """Print a message, to stderr."""
    click.echo(printable(text, keep="\n"), err=True)


def tell_json(found: Any, *, indent: int | None = 2) -> None:
    """Print a result for programs."""
    click.echo(json.dumps(found, indent=indent))


def show(*shown: Table | Text) -> None:
    """Print tables and lines. A terminal breaks long ones."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    for each in shown:
        console.print(each, soft_wrap=isinstance(each, Text))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None, lines: bool = True
) -> Table:
    """A table of texts. Without names of columns it has no head, without ``lines`` no frame."""
    made = Table(
        title=None if title is None else Text(printable(title)), title_justify="left", show_header=any(columns)
    )
    if not lines:
        made.box = None
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(each)) for each in row))
    return made
