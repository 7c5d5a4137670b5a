"""The files of a phase, and the pieces that tasks read (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import InputPartition

__all__ = ["DataFile", "FilePartition", "Names", "Piece"]

#: Name in the file, name in the table, and the same for inner fields. For lists and maps both names are ``element``,
#: ``key`` and ``value``.
Names = tuple[str, str, tuple["Names", ...]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file as it was when the phase began.

    Parameters
    ----------
    path : str
        The path for its store.
    size : int
        Bytes.
    tag : str
        An ETag, or the time of the last change: other content has another tag. "": only the size identifies it.
    values : tuple of (str, str or None)
        Names and values (as text) of columns that are not in the file itself.
    rows : int or None
        Number of rows without deleted ones, if known without opening the file.
    deleted : bytes
        A compressed bitmap of the rows that are kept (see `connectors.hybrid.files.bitmaps`); empty for all.
    names : tuple of Names
        Columns that have another name in the file.
    chars : tuple of (str, int)
        Columns of type CHAR(n), with n: shorter values are padded with blanks.
    metadata : tuple of (str, object)
        Values of metadata columns.
    """

    path: str
    size: int
    tag: str = ""
    values: tuple[tuple[str, str | None], ...] = ()
    rows: int | None = None
    deleted: bytes = b""
    names: tuple[Names, ...] = ()
    chars: tuple[tuple[str, int], ...] = ()
    metadata: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file.

    Parameters
    ----------
    file : DataFile
    first : int
        Its begin: number of a row group or stripe, or a byte of a text file. A record belongs to the piece that
        contains its first byte.
    end : int or None
        Begin of the next piece; None for the end of the file.
    """

    file: DataFile
    first: int = 0
    end: int | None = None


class FilePartition(InputPartition):
    """The pieces that one task reads, in the order of the rows."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilePartition) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __repr__(self) -> str:
        return f"FilePartition({list(self.pieces)!r})"
