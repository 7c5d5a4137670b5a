"""What a read of the binary log takes the columns of its tables to be, as it goes on (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...offsets import BinlogPosition
from ..table import SchemaChanged, TableSchema
from .history import Layout

__all__ = ["Fixed", "Statements", "TableAltered", "TableName", "Timeline"]

TableName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TableAltered:
    """An ALTER TABLE of a captured table that may change its columns.

    Parameters
    ----------
    schema : TableSchema
        The table as it was declared.
    statement : str
    end : BinlogPosition
        Where the statement ends.
    """

    schema: TableSchema
    statement: str
    end: BinlogPosition


class Timeline:
    """Tables that stay as they were declared: an ALTER TABLE ends the read."""

    decodes = True
    """Whether rows are asked for at all."""

    def layout(self, schema: TableSchema) -> Layout | None:
        """The table's columns in what is read next; None for the declared ones."""
        return None

    def altered(self, found: TableAltered) -> None:
        """The read has come to an ALTER TABLE.

        Raises
        ------
        SchemaChanged
            It cannot go on.
        """
        raise SchemaChanged(
            f"The table {found.schema.name} was changed by {found.statement[:200]!r}.",
            "Set schemaChange=evolve to go on with the same checkpoint, or start with a new checkpoint and target.",
        )


class Fixed(Timeline):
    """Layouts that stay up to the end of the read, where a statement may be that changes them.

    Parameters
    ----------
    layouts : mapping
        Of the tables that are not as they were declared.
    until : BinlogPosition
        The end of the read.
    """

    def __init__(self, layouts: Mapping[TableName, Layout], until: BinlogPosition) -> None:
        self._layouts = layouts
        self._until = until

    def layout(self, schema: TableSchema) -> Layout | None:
        return self._layouts.get((schema.database, schema.table))

    def altered(self, found: TableAltered) -> None:
        if found.end.sort_key() < self._until.sort_key():
            super().altered(found)


class Statements(Timeline):
    """Only collects what changes the tables: for a look ahead."""

    decodes = False

    def __init__(self) -> None:
        self.found: list[TableAltered] = []

    def altered(self, found: TableAltered) -> None:
        # A read that lost its connection comes by again.
        if not self.found or found.end.sort_key() > self.found[-1].end.sort_key():
            self.found.append(found)
