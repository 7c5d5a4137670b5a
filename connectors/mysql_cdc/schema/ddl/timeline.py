"""The columns of the tables along the binary log, while it is read (pure)."""

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
        The table's declared definition.
    statement : str
    end : BinlogPosition
        The end of the statement.
    """

    schema: TableSchema
    statement: str
    end: BinlogPosition


class Timeline:
    """Tables keep their declared columns: an ALTER TABLE ends the read."""

    decodes = True
    """Whether rows are decoded."""

    def layout(self, schema: TableSchema) -> Layout | None:
        """The table's columns in the rows that are read next; None for the declared ones."""
        return None

    def altered(self, found: TableAltered) -> None:
        """Called when the read reaches an ALTER TABLE.

        Raises
        ------
        SchemaChanged
            The read cannot continue.
        """
        raise SchemaChanged(
            f"The table {found.schema.name} was changed by {found.statement[:200]!r}.",
            "Set schemaChange=evolve to continue with the same checkpoint, or start with a new checkpoint and target.",
        )


class Fixed(Timeline):
    """Layouts that stay the same up to the end of the read. Only the last statement may change them.

    Parameters
    ----------
    layouts : mapping
        Layouts of the tables that have other columns than declared.
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
    """Only collects the ALTER TABLEs, without rows: to look ahead."""

    decodes = False

    def __init__(self) -> None:
        self.found: list[TableAltered] = []

    def altered(self, found: TableAltered) -> None:
        # A read that lost its connection may reach the same statement again.
        if not self.found or found.end.sort_key() > self.found[-1].end.sort_key():
            self.found.append(found)
