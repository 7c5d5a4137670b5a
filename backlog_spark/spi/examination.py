"""What a connector finds out about its server and tables before anything starts (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["MOST_COUNTED", "Examination", "Finding", "FoundTable", "Severity", "shown_rows"]

MOST_COUNTED: Final = 10_000
"""Up to this number of rows is counted; more are estimated."""


def shown_rows(rows: int) -> str:
    """A number of rows for people: ``1 row``, or ``about 25,000 rows`` if it may be an estimate."""
    return f"{'' if rows <= MOST_COUNTED else 'about '}{rows:,} {'row' if rows == 1 else 'rows'}"


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Worth knowing."""
    WARNING = "warning"
    """It may fail later."""
    ERROR = "error"
    """The pipeline would not start, or would stop."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Parameters
    ----------
    severity : Severity
    subject : str
        What was looked at, such as ``binlog_format``.
    problem : str
        What was found. Never a password.
    hint : str
        What to do.
    """

    severity: Severity
    subject: str
    problem: str
    hint: str = ""


@dataclass(frozen=True)
class FoundTable:
    """A table of the source.

    Parameters
    ----------
    name : str
        ``database.table``, as `TableName` writes it.
    key : tuple of str
        Columns that identify a row; empty if there are none.
    rows, size : int or None
        Rows, estimated if there are more than `MOST_COUNTED`, and the server's estimate of bytes.
    columns : tuple of (str, str)
        Name and type of each column.
    """

    name: str
    key: tuple[str, ...]
    rows: int | None = None
    size: int | None = None
    columns: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Examination:
    """All that a connector found.

    Parameters
    ----------
    findings : tuple of Finding
    tables : tuple of FoundTable
        Those that the options ask for.
    kept_ms : int or None
        How long the server keeps the changes that a snapshot needs; None: for ever.
    first : tuple of Finding
        Those that matter only if a query starts for the first time: where it begins, and what is there.
    """

    findings: tuple[Finding, ...]
    tables: tuple[FoundTable, ...] = ()
    kept_ms: int | None = None
    first: tuple[Finding, ...] = ()
