"""The definitions of a stream's tables when the stream was declared."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pymysql.connections import Connection

from ..offsets import Offset
from ..options import MySqlOptions
from ..server.mysql import load_schema
from .ddl.evolution import start_again
from .table import SchemaChanged, TableSchema

__all__ = ["DeclaredTables"]

_log = logging.getLogger(__name__)


class DeclaredTables:
    """The definitions that tables had when the stream was declared.

    Parameters
    ----------
    options, tables
        Where the tables are, and their definitions.
    """

    def __init__(self, options: MySqlOptions, tables: Iterable[TableSchema]) -> None:
        self._options = options
        self._tables = {(t.database, t.table): t for t in tables}

    def every(self) -> tuple[TableSchema, ...]:
        """All tables, in an offset or not."""
        return tuple(self._tables.values())

    def add(self, schema: TableSchema) -> None:
        """Declare a table that was found later."""
        self._tables[schema.database, schema.table] = schema

    def of(self, known: TableSchema) -> TableSchema:
        """The declared definition of an offset's table.

        Raises
        ------
        SchemaChanged
            The stream was declared without the table.
        """
        found = self._tables.get((known.database, known.table))
        if found is None:
            raise SchemaChanged(
                f"{known.database}.{known.table} is in the checkpoint, but is not among the tables that the options "
                "ask for, or does not exist any more.",
                "Ask for the same tables as before, or start with a new checkpoint.",
            )
        return found

    def captured(self, offset: Offset) -> tuple[TableSchema, ...]:
        """The tables of an offset, in its order."""
        return tuple(self.of(known) for known in offset.tables)

    def check_checkpoint(self, start: Offset) -> None:
        """Refuse a table whose columns are not the checkpoint's, unless ``schemaChange=evolve``.

        Raises
        ------
        SchemaChanged
            Says which table.
        SettingError
            The options choose other columns or another key than the checkpoint has.
        """
        for known in start.tables:
            self._options.columns.check_unchanged(known, self.of(known), start.salt_check)
            if self.of(known).fingerprint() != known.fingerprint() and not self._options.evolves:
                raise SchemaChanged(
                    f"The columns of {known.name} were altered since the checkpoint was made.",
                    "Set schemaChange=evolve to continue with it, or start the query again with a new checkpoint.",
                )
        captured = {(t.database, t.table) for t in start.tables}
        others = [t.name for name, t in self._tables.items() if name not in captured]
        if others and not self._options.adds_tables:
            _log.warning(
                "The checkpoint has %d tables; not among them: %s. They are not captured. To capture them, set "
                "scanNewlyAddedTables=true.",
                len(start.tables),
                ", ".join(others),
            )

    def same(self, offset: Offset) -> bool:
        """Whether all tables of the offset have their declared definitions."""
        return all(self.of(known).fingerprint() == known.fingerprint() for known in offset.tables)

    def check_unaltered(self, connection: Connection[Any], schema: TableSchema) -> None:
        """Refuse a table whose definition is no longer the declared one.

        Raises
        ------
        SchemaChanged
            Says what to do about it.
        """
        now = load_schema(connection, self._options, schema.database, schema.table)
        if now.fingerprint() != schema.fingerprint():
            if self._options.evolves:
                raise start_again(schema, "its columns are not those that the stream was declared with")
            raise SchemaChanged(f"{schema.name} was altered.", "Start the query again with a new checkpoint.")
