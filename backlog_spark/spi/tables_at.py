"""What a source's tables held at one of its offsets: the contract behind ``bs.verify``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["TablesAt"]


class TablesAt(ABC):
    """The rows of a source's tables as of one offset, however late they are read.

    A connector that can give them has a function
    ``tables_at(options, offset, *, table="", rows_per_chunk=None) -> TablesAt`` in its module. It is called in the
    driver's process, with the options of the source and an offset from Spark's log. The object is pickled to the
    executors, and only they call `read`.

    Attributes
    ----------
    position : str
        The offset's position in the source's log, for people to read.
    tables : tuple of str
        Names of the tables, as `TableName` writes them. So is ``table`` above.
    key : tuple of str
        Columns that identify a row.
    columns : StructType
        The columns of the rows, the key's among them: those that the tables had at the offset.
    added : tuple of str
        Columns of the stream that say where a row comes from. They are not compared unless ``columns`` has them.
    chunks : int
        How many parts there are to read. Together they have each row once.
    """

    position: str
    tables: tuple[str, ...]
    key: tuple[str, ...]
    columns: StructType
    added: tuple[str, ...]
    chunks: int

    @abstractmethod
    def read(self, chunk: int) -> Iterator[pa.RecordBatch]:
        """The rows of one part. Called any number of times, in any process; the rows are always the same.

        Parameters
        ----------
        chunk : int
            From 0 to ``chunks - 1``.

        Raises
        ------
        BacklogError
            If the source can no longer tell what it held at the offset.
        """

    @abstractmethod
    def keys_changed(self, since: Mapping[str, Any], until: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """The columns ``key`` of all rows that the source's stream has between two offsets, in any process.

        Parameters
        ----------
        since, until : mapping
            Offsets from Spark's log: this object's own or a later one, and one at or after it.

        Raises
        ------
        BacklogError
            If there is no such list: the tables were altered or emptied, or the source is another one meanwhile.
        """
