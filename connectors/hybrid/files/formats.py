"""What a kind of file can do: tell how it is made up, and give rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import pyarrow as pa

from .entries import DataFile, Piece
from .layouts import Layout

__all__ = ["BATCH_ROWS", "Format", "Rows", "Spans", "Unreadable"]

# Of 8 mixed columns 16,384 rows a batch took 8 % less time into Spark than 10,000, and are as fast to read as 131,072.
BATCH_ROWS = 16_384


#: Where pieces of a file begin and end, and their greatest microseconds since 1970; None for no time at all.
Spans = list[tuple[int, int | None, int | None]]


class Unreadable(Exception):
    """A file is damaged, or no file of this kind."""


class Rows(NamedTuple):
    """Some rows: how many, and their columns in the order asked for."""

    number: int
    columns: list[pa.Array]


class Format(ABC):
    """A kind of file. Pickled with the phase, so it holds nothing that is open."""

    #: Name as in the options.
    name: ClassVar[str]
    #: Files that planning one batch looks into, at most; beyond, their rows are estimated by their size. 256 footers of
    #: local files take 30 ms, and of text one file's beginning tells enough.
    looks: ClassVar[int]

    @abstractmethod
    def schema(self, source: pa.NativeFile) -> pa.Schema | None:
        """The columns that the file declares, in types that Spark has; None if it declares none."""

    @abstractmethod
    def layout(self, source: pa.NativeFile, file: DataFile) -> Layout:
        """How the file is made up; a few reads."""

    @abstractmethod
    def read(
        self, source: pa.NativeFile, name: str, piece: Piece, record: pa.Schema, wanted: tuple[str, ...]
    ) -> Iterator[Rows]:
        """The rows of a piece, at most `BATCH_ROWS` each.

        Parameters
        ----------
        source : pyarrow.NativeFile
        name : str
            Of the file, for errors.
        piece : Piece
        record : pyarrow.Schema
            All declared columns that the file may hold.
        wanted : tuple of str
            Those to give.

        Raises
        ------
        BacklogError
            If a column does not fit, or a value of it.
        Unreadable
        """

    def rows_before(self, source: pa.NativeFile, first: int) -> int:
        """Rows of the file before an offset. Called only for formats whose rows can be deleted by number."""
        raise AssertionError(f"rows of {self.name} have no numbers")

    def latest(self, source: pa.NativeFile, file: DataFile, column: str) -> Spans | None:
        """Greatest time of a column by what the file itself tells; None if the rows must be read to know."""
        return None
