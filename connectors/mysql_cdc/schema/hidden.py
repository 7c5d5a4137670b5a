"""Finds a server's hidden columns: a SELECT does not show them, but the binary log does (pure).

MySQL has one for each expression in an index. Its position does not change when columns are added. The log describes it
with the table, but has no values for it. MariaDB has one for each UNIQUE key that it stores as a hash. It stands after
all other columns, and the log has its values; since 11.8 only those of inserts.

Sources: MySQL Reference Manual, "CREATE INDEX", "SHOW COLUMNS"; MariaDB Knowledge Base, "Getting Started with Indexes".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .table import Hidden, SchemaChanged, TableSchema, altered

__all__ = ["hidden_columns", "visible"]

# For an expression: the MD5 of what the column is for or, since MySQL 8.0.17, what it is for.
_NAME = re.compile(r"[0-9a-f]{32}|!hidden!.*|(?P<hash>DB_ROW_HASH_\d+)", re.IGNORECASE | re.DOTALL)

_SHOWN = 50


def visible(names: Sequence[str]) -> tuple[str, ...]:
    """The names without those that servers give to hidden columns."""
    return tuple(name for name in names if not _NAME.fullmatch(name))


def _listed(names: Sequence[str]) -> str:
    """Names for an error. Of very many the first."""
    more = f" … ({len(names):,} columns)" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def hidden_columns(
    schema: TableSchema, columns: Sequence[str], described: int, names: Sequence[str], *, same_order: bool
) -> list[Hidden]:
    """The hidden ones among the columns that the log describes.

    Parameters
    ----------
    schema : TableSchema
    columns : sequence of str
        The visible columns that the log should have.
    described : int
        How many columns the log has.
    names : sequence of str
        The names of the log's columns, if it has them.
    same_order : bool
        Whether ``columns`` are those of ``schema`` in its order, except that either may have more at its end.

    Raises
    ------
    SchemaChanged
        The log has other columns.
    """
    more = described - len(columns)
    if more < 0:
        raise altered(schema, f"{described} columns instead of {len(columns)}")
    if names:
        shown = {name.lower() for name in columns}
        others = {at: name for at, name in enumerate(names) if name.lower() not in shown}
        found = {at: match for at, name in others.items() if (match := _NAME.fullmatch(name))}
        own = [name for at, name in enumerate(names) if at not in found]
        if [name.lower() for name in own] != [name.lower() for name in columns]:
            raise altered(schema, f"columns {_listed(own)} instead of {_listed(columns)}")
        return [Hidden(at, is_logged=match["hash"] is not None) for at, match in found.items()]
    if not more:
        return []
    if more != len(schema.hidden):
        counts = f"{described} columns instead of {len(columns) + len(schema.hidden)}"
        raise altered(schema, f"{counts}. If that is for an index that was added, start the query again")
    if all(hidden.is_logged for hidden in schema.hidden):
        return [Hidden(len(columns) + n, is_logged=True) for n in range(more)]
    if same_order and all(hidden.index < described for hidden in schema.hidden):
        # If they had other indexes then, `RowDecoder.of_images` finds values at these indexes.
        return list(schema.hidden)
    raise SchemaChanged(
        f"The table {schema.database}.{schema.table} was altered: the binary log has other columns. Only with "
        "binlog_row_metadata=FULL it shows which of them are hidden ones for indexes on expressions.",
        "Start the query again as it is: it continues if it has read everything before the ALTER TABLE. If it stops "
        "here again, set binlog_row_metadata=FULL and start with a new checkpoint.",
    )
