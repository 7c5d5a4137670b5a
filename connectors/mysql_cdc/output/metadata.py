"""The metadata columns: they show where a row comes from (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import types as st

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions

if TYPE_CHECKING:
    from ..schema.types import Column

__all__ = ["BY_DEFAULT", "METADATA", "arrow_fields", "by_default", "check_names", "parse_names", "spark_fields"]

METADATA: Final[dict[str, tuple[st.DataType, pa.DataType, str]]] = {
    "_change_type": (
        st.StringType(),
        pa.string(),
        "`insert`, `update_preimage`, `update_postimage` or `delete`; `insert` for rows of the snapshot; "
        "`update_postimage` for rows that are [read again](mysql_cdc_signals.md); `truncate` or `drop` for "
        "[such a statement](mysql_cdc_schema.md#truncated-and-dropped-tables)",
    ),
    "_commit_timestamp": (
        st.TimestampType(),
        pa.timestamp("us", tz="UTC"),
        "when the statement ran; for rows of the snapshot, the time of the low watermark",
    ),
    "_commit_seq": (
        st.LongType(),
        pa.int64(),
        "0 for rows of the snapshot; then grows along the binary log, unique for each row. Rows of a snapshot that is "
        "read later have one number that is greater than all before. Rows that are read again have that of the place "
        "that they are as of",
    ),
    "_database": (st.StringType(), pa.string(), "the table's database"),
    "_table": (st.StringType(), pa.string(), "the table"),
    "_gtid": (
        st.StringType(),
        pa.string(),
        "the transaction's GTID, `uuid:number` or MariaDB's `domain-server-number`; NULL without GTIDs and for rows of "
        "the snapshot",
    ),
    "_is_snapshot": (st.BooleanType(), pa.bool_(), "whether the row is of a snapshot, also of a later one"),
    "_columns": (
        st.StringType(),
        pa.string(),
        "the table's key and columns at that row, as JSON: name, Spark's type, and how the value of `format=debezium` "
        "is written; NULL in a `truncate` of a table that was dropped before a "
        "[new snapshot](mysql_cdc_server.md#purged-logs)",
    ),
}
"""By name: Spark's type, Arrow's type, and the meaning."""

BY_DEFAULT: Final = ("_change_type", "_commit_timestamp", "_commit_seq")


def by_default(several: bool) -> tuple[str, ...]:
    """The default metadata columns. With several tables they also name the table."""
    return (*BY_DEFAULT, "_database", "_table") if several else BY_DEFAULT


def parse_names(given: UserOptions, name: str) -> tuple[str, ...]:
    """Parse the option ``metadataColumns``: names in any case, separated by commas. An empty text has no names.

    Raises
    ------
    SettingError
        A name is unknown or given twice.
    """
    text = given.text(name, ",".join(BY_DEFAULT))
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for each in names:
        if each not in METADATA:
            raise SettingError("metadataColumns", text, f"there is no {each!r}.", f"There are {', '.join(METADATA)}.")
    if len(set(names)) != len(names):
        raise SettingError("metadataColumns", text, "names a column twice.", "Name each once.")
    return names


def check_names(names: Sequence[str], columns: Sequence[Column]) -> None:
    """Refuse a table that has a column with the name of a metadata column.

    Raises
    ------
    SettingError
        Names the column.
    """
    taken = {c.name.lower() for c in columns}
    for name in names:
        if name in taken:
            raise SettingError(
                "metadataColumns", ",".join(names), f"the table has a column {name!r} itself.",
                "Leave it out of metadataColumns, or rename the table's column.",
            )  # fmt: skip


def spark_fields(names: Sequence[str]) -> list[st.StructField]:
    """The columns for Spark's schema."""
    return [st.StructField(name, METADATA[name][0]) for name in names]


def arrow_fields(names: Sequence[str]) -> list[pa.Field]:
    """The columns for Arrow's schema."""
    return [pa.field(name, METADATA[name][1]) for name in names]
