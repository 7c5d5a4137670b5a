"""The tables of a stream as it was declared, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pymysql.connections import Connection

from ..offsets import Offset
from ..options import MySqlOptions
from ..server.mysql import load_schema
from .ddl.evolution import start_again
from .table import SchemaChanged, TableSchema

__all__ = ["DeclaredTables"]


class DeclaredTables:
    """The tables as the stream was declared with them.

    Parameters
    ----------
    options, tables
        Where they are, and what they were.
    """

    def __init__(self, options: MySqlOptions, tables: Iterable[TableSchema]) -> None:
        self._options = options
        self._tables = {(t.database, t.table): t for t in tables}

    def every(self) -> tuple[TableSchema, ...]:
        """All of them, whether an offset knows them or not."""
        return tuple(self._tables.values())

    def add(self, schema: TableSchema) -> None:
        """Declare a table that was found later."""
        self._tables[schema.database, schema.table] = schema

    def of(self, known: TableSchema) -> TableSchema:
        """A table of an offset as it was declared.

        Raises
        ------
        SchemaChanged
            The stream was declared without it.
        """
        found = self._tables.get((known.database, known.table))
        if found is None:
            raise SchemaChanged(
                f"{known.database}.{known.table}, which the checkpoint is about, is not among the tables that the "
                "options ask for, or is gone.",
                "Ask for the same tables as before, or start with a new checkpoint.",
            )
        return found

    def captured(self, offset: Offset) -> tuple[TableSchema, ...]:
        """Those of an offset, in its order."""
        return tuple(self.of(known) for known in offset.tables)

    def others(self, offset: Offset) -> list[TableSchema]:
        """Those that an offset does not know."""
        known = {(t.database, t.table) for t in offset.tables}
        return [t for name, t in self._tables.items() if name not in known]

    def same(self, offset: Offset) -> bool:
        """Whether the offset's tables are as declared."""
        return all(self.of(known).fingerprint() == known.fingerprint() for known in offset.tables)

    def check_unaltered(self, connection: Connection[Any], schema: TableSchema) -> None:
        """Refuse a table that is no longer as it was declared.

        Raises
        ------
        SchemaChanged
            With what to do about it.
        """
        now = load_schema(connection, self._options, schema.database, schema.table)
        if now.fingerprint() != schema.fingerprint():
            if self._options.evolves:
                raise start_again(schema, "its columns are not those that the stream was declared with")
            raise SchemaChanged(f"{schema.name} was altered.", "Start the query again with a new checkpoint.")
