"""Columns that a server keeps for itself: no SELECT shows them, the binary log does (pure).

MySQL has one for each expression of an index, which stays where it was put when further columns come. The log describes
it with the table, and has no values of it. MariaDB has one for each UNIQUE key that it keeps as a hash, behind all
others; the log has its values.

Sources: MySQL Reference Manual, "CREATE INDEX", "SHOW COLUMNS"; MariaDB Knowledge Base, "Getting Started with Indexes".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .table import Hidden, SchemaChanged, TableSchema, altered

__all__ = ["hidden_columns"]

# Of an expression: the MD5 of what it is for, or, since MySQL 8.0.17, what it is for.
_NAME = re.compile(r"[0-9a-f]{32}|!hidden!.*|(?P<hash>DB_ROW_HASH_\d+)", re.IGNORECASE | re.DOTALL)


def hidden_columns(
    schema: TableSchema, columns: Sequence[str], described: int, names: Sequence[str], *, same_order: bool
) -> list[Hidden]:
    """Which of the columns that the log describes nobody sees.

    Parameters
    ----------
    schema : TableSchema
    columns : sequence of str
        The columns that there should be beside.
    described : int
        How many there are.
    names : sequence of str
        What those are called, if the log tells.
    same_order : bool
        Whether ``columns`` are those of ``schema`` in its order, but for some that one of the two has more at its end.

    Raises
    ------
    SchemaChanged
        There are others.
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
            raise altered(schema, f"columns {', '.join(own)} instead of {', '.join(columns)}")
        return [Hidden(at, is_logged=match["hash"] is not None) for at, match in found.items()]
    if not more:
        return []
    if more != len(schema.hidden):
        counts = f"{described} columns instead of {len(columns) + len(schema.hidden)}"
        raise altered(schema, f"{counts}. If that is for an index that was added, start the query again")
    if all(hidden.is_logged for hidden in schema.hidden):
        return [Hidden(len(columns) + n, is_logged=True) for n in range(more)]
    if same_order and all(hidden.index < described for hidden in schema.hidden):
        # If they have been elsewhere, no value is where they are taken to be, which the rows are asked.
        return list(schema.hidden)
    raise SchemaChanged(
        f"The table {schema.database}.{schema.table} was altered: the binary log has other columns, and where among "
        "them those are that the server keeps for indexes on expressions it tells only with binlog_row_metadata=FULL.",
        "Start the query again as it is, which goes on if it has read all that was before the ALTER TABLE. If it stops "
        "here again, set binlog_row_metadata=FULL and start with a new checkpoint.",
    )
