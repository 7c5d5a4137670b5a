"""A captured table: its name, columns and keys (pure)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from backlog_spark.errors import BacklogError

from .columns import EXCLUDED, MASKED, Column, quote_identifier

__all__ = ["Hidden", "SchemaChanged", "TableSchema", "altered", "of_table", "zero_date"]


class SchemaChanged(BacklogError):
    """A table's columns or definition are not those that the stream needs."""


class RowsRemoved(SchemaChanged):
    """A TRUNCATE or DROP removed a table's rows, and the log does not have them."""


@dataclass(frozen=True)
class Hidden:
    """A column that only the server and its binary log see.

    Parameters
    ----------
    index : int
        Among all columns of the table, from 0.
    is_logged : bool
        Whether rows in the log have a value for it. Such a column stays after all columns that are added later.
    """

    index: int
    is_logged: bool = False


@dataclass(frozen=True)
class TableSchema:
    """A captured table: its name, its columns in order and its keys.

    Parameters
    ----------
    database, table : str
    columns : tuple of Column
    key : tuple of str
        Columns of the primary key, or of the unique key that ``messageKeyColumns`` names, in its order; empty without
        one.
    chunk_key : tuple of str
        Columns by which the snapshot is cut; empty when it is read in one piece.
    hidden : tuple of Hidden
        The hidden columns that the binary log has as well, as of now.
    key_index : str
        The index of a key that is not the primary one; "" for the primary key. Not in an offset.
    past : frozenset of str
        In an offset: names, in lower case, that columns had since the stream began. A target may have values there.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    chunk_key: tuple[str, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    key_index: str = ""
    past: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def read(self) -> tuple[Column, ...]:
        """The columns that are read. A row of storage values has all columns, with None for the others."""
        return tuple(c for c in self.columns if c.use != EXCLUDED)

    @property
    def qualified(self) -> str:
        """``database.table`` as SQL identifiers."""
        return f"{quote_identifier(self.database)}.{quote_identifier(self.table)}"

    @property
    def name(self) -> str:
        """``database.table``, for people to read."""
        return f"{self.database}.{self.table}"

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return self._named(self.key)

    @property
    def chunk_columns(self) -> tuple[Column, ...]:
        return self._named(self.chunk_key)

    def _named(self, names: tuple[str, ...]) -> tuple[Column, ...]:
        found = {c.name: c for c in self.columns}
        return tuple(found[name] for name in names)

    def indexes(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Indexes of columns in a row."""
        index_of = {c.name: i for i, c in enumerate(self.columns)}
        return tuple(index_of[name] for name in names)

    @property
    def chunks_stay(self) -> bool:
        """Whether a row stays in its chunk as long as it is the same row: the chunk key is part of the primary key.

        Only then may parts of the snapshot be of different times. Otherwise a row that moves from one part to another
        between these times would be in both parts, or in neither.
        """
        return bool(self.chunk_key) and set(self.chunk_key) <= set(self.key)

    def fingerprint(self) -> str:
        """A hash of all columns' names, order, types, labels and character sets, and of the keys: twelve hex digits."""
        keyed = {*self.key, *self.chunk_key}
        parts = [
            (c.name, c.column_type, c.charset, *([c.collation] if c.collation and c.name in keyed else []))
            for c in self.columns
        ]
        key = self.key[0] if len(self.key) == 1 else self.key
        chunks = () if self.chunk_key == self.key else (self.chunk_key,)
        return hashlib.sha256(repr((key, parts, *chunks)).encode()).hexdigest()[:12]


def zero_date(schema: TableSchema, column: Column, value: str) -> BacklogError:
    """The error for a date that Spark has no value for, with ``zeroDate=error``."""
    value = "***" if column.use == MASKED else value
    return BacklogError(
        f"The column {column.name!r} of {schema.name} holds the date {value}, which Spark has no value for.",
        "Set zeroDate=null to read such dates as NULL, or correct the rows and start with a new checkpoint.",
    )


def of_table(error: BacklogError, schema: TableSchema) -> BacklogError:
    """The same error, which then names the table."""
    if schema.name not in error.problem:
        error.problem = f"{schema.name}: {error.problem}"
    return error


def altered(schema: TableSchema, what: str) -> SchemaChanged:
    """The error for rows that do not fit the table's definition."""
    return SchemaChanged(
        f"The table {schema.database}.{schema.table} was altered: the binary log has {what}.",
        "Start the query again with a new checkpoint, so that the snapshot is taken with the present columns.",
    )
