"""A captured table: its name, columns and key, and the Spark and Arrow schemas of its stream (pure)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as st

from .types import Column, kind_of, quote_identifier

__all__ = ["TableSchema"]

_METADATA = (
    st.StructField("_change_type", st.StringType()),
    st.StructField("_commit_timestamp", st.TimestampType()),
    st.StructField("_commit_seq", st.LongType()),
)
METADATA_ARROW = (
    pa.field("_change_type", pa.string()),
    pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_commit_seq", pa.int64()),
)


@dataclass(frozen=True)
class TableSchema:
    """A table that is captured: its name, its columns in order and its key column."""

    database: str
    table: str
    columns: tuple[Column, ...]
    key: str

    @property
    def qualified(self) -> str:
        """``database.table`` as SQL identifiers."""
        return f"{quote_identifier(self.database)}.{quote_identifier(self.table)}"

    @property
    def key_index(self) -> int:
        return next(i for i, c in enumerate(self.columns) if c.name == self.key)

    @property
    def key_column(self) -> Column:
        return self.columns[self.key_index]

    def fingerprint(self) -> str:
        """Twelve hex digits that change with any column's name, place, type, labels or character set."""
        parts = [(c.name, c.column_type, c.charset) for c in self.columns]
        return hashlib.sha256(repr((self.key, parts)).encode()).hexdigest()[:12]

    def spark_schema(self) -> st.StructType:
        """The table's columns, then ``_change_type``, ``_commit_timestamp``, ``_commit_seq``."""
        # Nullable throughout: Arrow batches from Python sources are, and a mismatch is refused.
        fields = [st.StructField(c.name, kind_of(c).spark(c)) for c in self.columns]
        return st.StructType([*fields, *_METADATA])

    def arrow_schema(self) -> pa.Schema:
        """The same in Arrow."""
        fields = [pa.field(c.name, kind_of(c).arrow(c)) for c in self.columns]
        return pa.schema([*fields, *METADATA_ARROW])
