"""The interface of a file format: gives the layout of a file, and its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import pyarrow as pa

from ..needed import Fields
from .entries import DataFile, Piece
from .layouts import Layout
from .schemas.records import json_type
from .schemas.types import of_files

__all__ = ["BATCH_ROWS", "Asked", "Format", "Rows", "Spans", "Unreadable"]

# With 8 mixed columns, 16,384 rows per batch reach Spark 8 % faster than 10,000, and are read as fast as 131,072.
BATCH_ROWS = 16_384


#: Begin and end of pieces of a file, and their greatest microseconds since 1970; None if there is no time.
Spans = list[tuple[int, int | None, int | None]]


class Unreadable(Exception):
    """A file is damaged, or has another format."""


class Rows(NamedTuple):
    """Some rows: their number, their columns in the requested order, and what does not fit as objects of JSON."""

    number: int
    columns: list[pa.Array]
    rescued: pa.Array | None = None


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
    modified_ms : int
        Time of the file's last change, milliseconds since 1970; 0 if the store does not report it.
    seen : callable, optional
        Gets the columns that the file declares, in Spark's types. With it the rows have what does not fit the columns
        (`Rows.rescued`), names are compared with case, and values of other types are no error.
    may_lack : bool
        Whether the file may lack declared columns, although its header names others.
    """

    record: pa.Schema
    wanted: tuple[str, ...]
    needed: Fields | None = None
    modified_ms: int = 0
    seen: Callable[[pa.Schema], None] | None = None
    may_lack: bool = False

    @property
    def rescues(self) -> bool:
        """Whether the rows have what does not fit the columns."""
        return self.seen is not None

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
    #: Whether the bounds of its pieces are bytes.
    has_bytes: ClassVar[bool] = False
    #: Whether the columns' types are only known from values.
    is_untyped: ClassVar[bool] = False

    @abstractmethod
    def schema(self, source: pa.NativeFile) -> pa.Schema | None:
        """The columns that the file declares, in Spark's types; None if it declares none."""

    def sample(self, source: pa.NativeFile, name: str, most: int) -> pa.Schema | None:
        """The columns of a file, as far as about ``most`` bytes of its rows tell. Types that are not known are null."""
        return self.schema(source)

    def merged(self, one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
        """The type of a column that has two types in a sample. None: there is none."""
        return of_files(one, other)

    def type_of(self, value: object) -> pa.DataType:
        """The type of a value in the tree of `Rows.rescued`."""
        return json_type(value)

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
