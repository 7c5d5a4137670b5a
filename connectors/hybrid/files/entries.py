"""The files of a phase, and the pieces of them that tasks read (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

__all__ = ["DataFile", "FilePartition", "Names", "Piece"]

#: Name in the file, name in the table, and those of the fields within; lists and maps have ``element``, ``key`` and
#: ``value`` for both.
Names = tuple[str, str, tuple["Names", ...]]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file as it was when the phase began.

    Parameters
    ----------
    path : str
        As its store opens it.
    size : int
        Bytes.
    tag : str
        Another content has another one: an ETag, or the time of the last change. "" if only the size tells.
    values : tuple of (str, str or None)
        Names and values, as text, of the columns that the file itself does not hold.
    rows : int or None
        Rows in it, if known without opening it; those deleted do not count.
    deleted : bytes
        A compressed bitmap of the rows that are kept (see `connectors.hybrid.files.bitmaps`); empty for all.
    names : tuple of Names
        Of the columns that are called otherwise in the file.
    """

    path: str
    size: int
    tag: str = ""
    values: tuple[tuple[str, str | None], ...] = ()
    rows: int | None = None
    deleted: bytes = b""
    names: tuple[Names, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a file.

    Parameters
    ----------
    file : DataFile
    first : int
        Where it begins: number of a row group or stripe, or a byte of a text file. A record belongs to the piece in
        which its first byte lies.
    end : int or None
        Where the next piece begins; None for the file's end.
    """

    file: DataFile
    first: int = 0
    end: int | None = None


class FilePartition(InputPartition):
    """What one task reads: pieces, in the order of the rows."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilePartition) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __repr__(self) -> str:
        return f"FilePartition({list(self.pieces)!r})"
