"""Which columns of its own a sink adds to a table, and what becomes of rows that are deleted at the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError
from backlog_spark.model.changes import TABLE_EVENTS
from backlog_spark.sinks.newest_changes import DELETES
from backlog_spark.sinks.truncate import Statement, is_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "COMMIT_TIME",
    "DELETED_COLUMN",
    "IGNORE",
    "REMOVE",
    "SOFT",
    "SoftDeletes",
    "TableForm",
    "check_time",
    "first_time",
    "refuse_names",
    "without_deletes",
]

DELETED_COLUMN: Final = "_is_deleted"
REMOVE: Final = "remove"
SOFT: Final = "soft"
IGNORE: Final = "ignore"
COMMIT_TIME: Final = "_commit_timestamp"


class TableForm:
    """A table with the stream's columns only, in which a deleted row is gone."""

    @property
    def names(self) -> tuple[str, ...]:
        """Columns that the sink adds."""
        return ()

    def noted(self) -> dict[str, str]:
        """What a later query must not change, by setting. Empty if the table is a plain one."""
        return {}

    def fields(
        self, schema: StructType, stored: Sequence[StructField], keys: Sequence[str], sequence: str | None, sink: str
    ) -> list[StructField]:
        """The added columns.

        Parameters
        ----------
        schema : StructType
            The stream's.
        stored : sequence of StructField
            The stream's columns that are stored.
        keys : sequence of str
        sequence : str or None
            The column that orders changes.
        sink : str
            The sink's class, for messages.

        Raises
        ------
        SettingError
            The stream lacks a column, or has one with the name of an added one.
        """
        return []

    def rows(self, rows: DataFrame, change_type: str | None) -> DataFrame:
        """A batch with the added columns."""
        return rows

    @property
    def time_of_changes(self) -> str | None:
        """The stream's column that the added columns need."""
        return None

    def since(
        self,
        rows: DataFrame,
        statements: Sequence[Statement],
        keys: Sequence[str],
        change_type: str,
        sequence: str,
    ) -> DataFrame:
        """The changes of a batch in which statements emptied tables."""
        raise AssertionError(f"{self!r} keeps no rows")

    def gone(self, statements: Sequence[Statement]) -> dict[str, str | Column]:
        """Values of a row of the target, under the alias t, that goes without a change of its own."""
        return {}

    def compared(self, columns: Sequence[str], keys: Sequence[str]) -> list[str]:
        """The columns of a batch, beside the keys, whose values decide what becomes of a row."""
        return []

    def is_there(self, prefix: str) -> Column:
        """Whether a row, whose columns have this prefix, is one that `current` returns."""
        return F.lit(True)

    def is_matched(self, prefix: str) -> Column:
        """Whether a row of the target, whose columns have this prefix, may be changed by a change of its key."""
        return F.lit(True)

    @property
    def is_filled(self) -> Column:
        """Whether a row of the target, under the alias t, gets the value of a new column."""
        return F.lit(True)

    def filled(self, value: Column, source: Mapping[str, str], name: str) -> Column:
        """The value of a new column in a row of the batch."""
        return value

    def current(self, table: DataFrame) -> DataFrame:
        """The table's rows that the source has too, with the stream's columns."""
        return table


@dataclass(frozen=True)
class SoftDeletes(TableForm):
    """A table in which a column says whether a row is deleted. A NULL there means no.

    Parameters
    ----------
    column : str
    time_column : str or None
        Column with the time at which it was deleted.
    commit_time : str
        Column of the stream with the time of a change.
    """

    column: str
    time_column: str | None
    commit_time: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column, *([self.time_column] if self.time_column else []))

    def noted(self) -> dict[str, str]:
        return {"deletes": SOFT, "deleted_column": self.column}

    def fields(
        self, schema: StructType, stored: Sequence[StructField], keys: Sequence[str], sequence: str | None, sink: str
    ) -> list[StructField]:
        refuse_names({"deleted_column": self.column, "deleted_at_column": self.time_column}, stored, sink)
        if self.time_column:
            check_time("deleted_at_column", self.time_column, self.commit_time, schema, sink)
        kinds = (BooleanType(), TimestampType())
        return [StructField(name, kind) for name, kind in zip(self.names, kinds, strict=False)]

    def rows(self, rows: DataFrame, change_type: str | None) -> DataFrame:
        is_delete: Column = F.lit(False)
        if change_type is not None:
            is_delete = F.coalesce(F.col(quoted(change_type)).isin(*DELETES), F.lit(False))
        made = {self.column: is_delete}
        if self.time_column:
            made[self.time_column] = F.when(is_delete, F.col(quoted(self.commit_time)))
        return rows.withColumns(made)

    def current(self, table: DataFrame) -> DataFrame:
        return table.where(self.is_there("")).drop(*self.names)

    @property
    def time_of_changes(self) -> str | None:
        return self.commit_time if self.time_column else None

    def is_there(self, prefix: str) -> Column:
        return ~F.coalesce(F.col(f"{prefix}{quoted(self.column)}"), F.lit(False))

    def since(
        self,
        rows: DataFrame,
        statements: Sequence[Statement],
        keys: Sequence[str],
        change_type: str,
        sequence: str,
    ) -> DataFrame:
        # Changes that came before a statement emptied their table are marked.
        rows = rows.where(~F.coalesce(F.col(quoted(change_type)).isin(*TABLE_EVENTS), F.lit(False)))
        time: Column = F.lit(None).cast("timestamp")
        is_gone: Column = F.lit(False)
        for statement in reversed(statements):
            is_later = F.coalesce(F.col(quoted(sequence)) > F.lit(statement.sequence), F.lit(False))
            goes = is_of("", statement.table) & ~is_later
            # The first statement after the change counts.
            time, is_gone = F.when(goes, statement.time).otherwise(time), is_gone | goes
        made = {self.column: F.col(quoted(self.column)) | is_gone}
        if self.time_column:
            was_there = ~F.col(quoted(self.column)) & is_gone
            made[self.time_column] = F.when(was_there, time).otherwise(F.col(quoted(self.time_column)))
        return rows.withColumns(made)

    def gone(self, statements: Sequence[Statement]) -> dict[str, str | Column]:
        values: dict[str, str | Column] = {quoted(self.column): F.lit(True)}
        return values | ({quoted(self.time_column): first_time(statements)} if self.time_column else {})


def first_time(statements: Sequence[Statement]) -> Column:
    """When a row of the target, under the alias t, went.

    The first statement that emptied its table tells it. Without one it is only noticed now.
    """
    time = F.current_timestamp()
    for statement in reversed(statements):
        time = F.when(is_of("t.", statement.table), statement.time).otherwise(time)
    return time


def without_deletes(rows: DataFrame, change_type: str | None) -> DataFrame:
    """The rows that are no delete, no before-image and no statement that empties a table."""
    if change_type is None:
        return rows
    return rows.where(~F.coalesce(F.col(quoted(change_type)).isin(*DELETES, *TABLE_EVENTS), F.lit(False)))


def refuse_names(added: Mapping[str, str | None], stored: Sequence[StructField], sink: str) -> None:
    """Refuse added columns, by setting, that the stream has too, or that are equal."""
    taken = {field.name.lower() for field in stored}
    for setting, name in added.items():
        if name is not None and name.lower() in taken:
            raise SettingError(
                f"{sink} {setting}", name, "the stream, or another setting, has a column of this name.",
                "Give the added column another name.",
            )  # fmt: skip
        taken |= {name.lower()} if name is not None else set()


def check_time(setting: str, value: str, column: str, schema: StructType, sink: str) -> None:
    """Refuse a stream without the time of its changes."""
    found = schema[column].dataType.simpleString() if column in schema.names else "missing"
    if found != "timestamp":
        raise SettingError(
            f"{sink} {setting}", value,
            f"the time of a change comes from the stream's column {column!r}, which must be timestamp and is {found}.",
            "Name the column with the time in commit_time. A stream without one cannot have this setting.",
        )  # fmt: skip
