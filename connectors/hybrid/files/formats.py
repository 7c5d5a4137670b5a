"""The interface of a file format: gives the layout of a file, and its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import pyarrow as pa

from ..needed import Fields
from .entries import DataFile, Piece
from .layouts import Layout

__all__ = ["BATCH_ROWS", "Asked", "Format", "Rows", "Spans", "Unreadable"]

# With 8 mixed columns, 16,384 rows per batch reach Spark 8 % faster than 10,000, and are read as fast as 131,072.
BATCH_ROWS = 16_384


#: Begin and end of pieces of a file, and their greatest microseconds since 1970; None if there is no time.
Spans = list[tuple[int, int | None, int | None]]


class Unreadable(Exception):
    """A file is damaged, or has another format."""


class Rows(NamedTuple):
    """Some rows: their number, and their columns in the requested order."""

    number: int
    columns: list[pa.Array]


@dataclass(frozen=True)
class Asked:
    """What is asked of a file.

    Parameters
    ----------
    record : pyarrow.Schema
        All declared columns that may be in the file.
    wanted : tuple of str
        The columns of the rows.
    needed : mapping, optional
        As in `Columns`: others of the columns may be NULL.
    """

    record: pa.Schema
    wanted: tuple[str, ...]
    needed: Fields | None = None

    @property
    def whole(self) -> Asked:
        """The same with all fields of the needed structs."""
        return self if self.needed is None else replace(self, needed={name: {} for name in self.needed})


class Format(ABC):
    """A file format. Pickled with the phase, so it holds nothing open."""

    #: Name in the options.
    name: ClassVar[str]
    #: The most files that are opened to plan one batch. For further files rows are estimated from the size. 256 footers
    #: of local files take 30 ms. For text the beginning of one file is enough.
    looks: ClassVar[int]

    @abstractmethod
    def schema(self, source: pa.NativeFile) -> pa.Schema | None:
        """The columns that the file declares, in Spark's types; None if it declares none."""

    @abstractmethod
    def layout(self, source: pa.NativeFile, file: DataFile) -> Layout:
        """The layout of the file. Takes a few reads."""

    @abstractmethod
    def read(self, source: pa.NativeFile, name: str, piece: Piece, asked: Asked) -> Iterator[Rows]:
        """The rows of a piece, at most `BATCH_ROWS` each.

        Parameters
        ----------
        source : pyarrow.NativeFile
        name : str
            Name of the file, for errors.
        piece : Piece
        asked : Asked

        Raises
        ------
        BacklogError
            If a column or a value does not fit.
        Unreadable
        """

    def rows_before(self, source: pa.NativeFile, first: int) -> int:
        """Rows of the file before an offset. Called only for formats whose rows can be deleted by number."""
        raise AssertionError(f"{self.name} has no row numbers")

    def latest(self, source: pa.NativeFile, file: DataFile, column: str) -> Spans | None:
        """Greatest times of a column from the file's metadata; None if the rows must be read for that."""
        return None
