"""The table that a sink keeps: made if it is missing, else checked against the stream's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import types as st

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.columns import StoredColumn, TableColumn
from backlog_spark.sinks.database.dialect import Dialect, Run

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

__all__ = ["check_keys", "check_rights", "check_types", "create_table", "located", "stored_columns"]

_NO_KEYS: Final = (st.FloatType, st.DoubleType)


def located(dialect: Dialect, run: Run, place: Place) -> Place:
    """A table with its schema.

    Raises
    ------
    SettingError
        It has none, and neither has the connection.
    """
    schema = place.schema or dialect.schema(run)
    if not schema:
        raise SettingError("table", str(place), "the connection has no schema.", 'Write table="schema.table".')
    return Place(schema, place.table)


def create_table(dialect: Dialect, run: Run, place: Place, fields: Sequence[StructField], keys: Sequence[str]) -> None:
    """Make the table, with the keys as its primary key.

    Raises
    ------
    BacklogError
        A name is too long, or the server refuses the table.
    """
    collation = dialect.text_collation(run)
    defined = {f.name: dialect.definition(f.dataType, is_key=f.name in keys, collation=collation) for f in fields}
    for name in defined:
        if dialect.length(name) > dialect.longest_name:
            raise BacklogError(
                f"The column {name} has a longer name than {dialect.name} takes ({dialect.longest_name}).",
                "Give it another one with .map('… AS shorter').",
            )
    run(dialect.create_table(place, [(name, definition or "") for name, definition in defined.items()], keys))


def check_types(dialect: Dialect, fields: Sequence[StructField], keys: Sequence[str]) -> None:
    """Refuse types that no table of the server can have.

    Raises
    ------
    BacklogError
    """
    for field in fields:
        kind, is_key = field.dataType, field.name in keys
        if dialect.definition(kind, is_key=is_key, collation="") is None:
            raise BacklogError(
                f"The column {field.name} is {kind.simpleString()}, for which {dialect.name} has no type here.",
                f"Make a text of it, .map('to_json({field.name}) AS {field.name}'), or leave it out.",
            )
        if is_key and isinstance(kind, _NO_KEYS):
            raise BacklogError(
                f"The key {field.name} is {kind.simpleString()}: equal values may not be found again.",
                "Name other keys, or cast it to a decimal with .map(…).",
            )


def check_rights(dialect: Dialect, run: Run, place: Place, columns: Sequence[str], stage: Place) -> None:
    """Do what a batch does without changing a row. ``stage``: a table that is made and dropped."""
    for statement in dialect.probes(place, columns) if columns else ():
        run(statement)
    run(f"DROP TABLE IF EXISTS {dialect.quoted_table(stage)}")  # a killed driver may have left it
    run(dialect.create_table(stage, dialect.mark_columns, ["app_id"]))
    run(dialect.probes(stage, [name for name, _ in dialect.mark_columns])[0])
    run(f"DROP TABLE {dialect.quoted_table(stage)}")


def stored_columns(
    dialect: Dialect, place: Place, table: Sequence[TableColumn], fields: Sequence[StructField], keys: Sequence[str]
) -> tuple[StoredColumn, ...]:
    """The table's columns for the stream's, in the stream's order.

    Raises
    ------
    BacklogError
        The table lacks a column, has one with another type, or needs one that the stream lacks.
    """
    found = []
    for field in fields:
        is_key = field.name in keys
        column = next((each for each in table if dialect.same_name(each.name, field.name)), None)
        if column is None:
            raise BacklogError(
                f"The table {place} has no column {field.name}; it has {', '.join(each.name for each in table)}.",
                f"Add it (ALTER TABLE … ADD COLUMN, type {field.dataType.simpleString()} in Spark), or leave it out of "
                "the stream with .map(…) or metadata_columns.",
            )
        wanted = dialect.unfit(field.dataType, column)
        if wanted:
            raise BacklogError(
                f"The column {column.name} of {place} is {column.type}. The stream's type is "
                f"{field.dataType.simpleString()}, which fits: {wanted}.",
                "Change the column, or cast it in the stream with .map(…).",
            )
        if column.is_generated:
            raise BacklogError(
                f"The server alone writes the column {column.name} of {place}.", "Leave it out of the stream."
            )
        if is_key and not column.compares_bytes:
            raise BacklogError(
                f"The key {column.name} of {place} has the collation {column.collation}, in which different texts are "
                "equal: rows of different keys would replace each other.",
                "Give it a binary one, such as utf8mb4_bin in MySQL.",
            )
        limits = dialect.limits(field.dataType, column, is_key=is_key)
        found.append(StoredColumn(column.name, field.dataType, column, is_key, limits))
    names = {column.name for column in found}
    if lacking := [column.name for column in table if column.name not in names and column.needs_value]:
        raise BacklogError(
            f"The column {lacking[0]} of {place} must have a value, and the stream has no such column.",
            "Give it a default, or let it be NULL.",
        )
    return tuple(found)


def check_keys(dialect: Dialect, run: Run, place: Place, keys: Sequence[str]) -> None:
    """As of `Dialect.check_table`, for the table as it is now."""
    dialect.check_table(run, place, keys, dialect.unique_indexes(run, place))
