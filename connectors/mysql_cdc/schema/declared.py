"""The definitions of a stream's tables when the stream was declared."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import SettingError

from ..binlog.reading import TableEmptied, read_changes
from ..offsets import Offset
from ..options import MySqlOptions
from ..output.rows import output_of
from ..server.mysql import end_position, load_schema
from ..server.watermark import origin, resume_after
from .choice import matches
from .ddl.evolution import start_again
from .ddl.statements import DROP
from .ddl.timeline import Statements, TableName
from .table import SchemaChanged, TableSchema

__all__ = ["DeclaredTables"]

_log = logging.getLogger(__name__)


def _lower(name: TableName) -> TableName:
    database, table = name
    return database.lower(), table.lower()


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
        self._first = next(iter(self._tables.values()))
        self._until_drop: dict[TableName, TableSchema] = {}

    def every(self) -> tuple[TableSchema, ...]:
        """All tables, in an offset or not."""
        return tuple(self._tables.values())

    def add(self, schema: TableSchema) -> None:
        """Declare a table that was found later."""
        self._until_drop.pop((schema.database, schema.table), None)
        self._tables[schema.database, schema.table] = schema

    def of(self, known: TableSchema) -> TableSchema:
        """The declared definition of an offset's table.

        One that was dropped keeps its last known definition or, if it had other columns than the stream, has those.
        """
        name = known.database, known.table
        found = self._until_drop.get(name) or self._tables.get(name)
        if found is not None:
            return found
        # Of a dropped table a column's type may be unknown. The stream does not have such a column.
        found = replace(known, columns=tuple(c for c in known.columns if c.data_type))
        output = output_of(self._options.format, self._options.metadata)
        try:
            output.check((self._first, found))
        except SettingError:
            has = {column.name for column in self._first.columns}
            if has >= {*known.key, *known.chunk_key}:
                return replace(known, columns=self._first.columns, hidden=self._first.hidden)
        return found

    def is_dropped(self, known: TableSchema) -> bool:
        """Whether the log ahead has a DROP of the table, and the server has another one of its name: `find_dropped`."""
        return (known.database, known.table) in self._until_drop

    def find_dropped(self, connection: Connection[Any], start: Offset) -> None:
        """Find tables that were dropped and made anew in another form after ``start``.

        Up to the DROP, `of` gives their definitions of then. Rows of the stream's form have no columns of their own, so
        only envelopes can hold them.
        """
        if self._options.format == "row" or not (start.complete or start.ranges):
            return
        begin = origin(start) if start.complete else resume_after(start.ranges[0].low)
        others = [known for known in start.tables if self.of(known).fingerprint() != known.fingerprint()]
        if others:
            end = end_position(connection, self._options)
            for change in read_changes(self._options, others, begin, end, timeline=Statements()):
                if isinstance(change, TableEmptied) and change.kind == DROP:
                    self._until_drop[change.schema.database, change.schema.table] = change.schema

    def forget_dropped(self) -> None:
        """Forget what `find_dropped` found: the log that has the DROP will not be read."""
        self._until_drop.clear()

    def asks_for(self, database: str, table: str) -> bool:
        """Whether the options ask for a table, if there is one of this name."""
        if (database, table) in self._tables:
            return True
        if matches(self._options.tables_exclude, f"{database}.{table}"):
            return False
        if self._options.table_pattern:
            return bool(re.fullmatch(self._options.table_pattern, f"{database}.{table}"))
        # The server may have had it under another spelling.
        found = {_lower(name) for name in self._tables}
        return _lower((database, table)) in {_lower(name) for name in self._options.tables} - found

    def check_all(self, connection: Connection[Any]) -> None:
        """Refuse a new stream if the server lacks one of its tables.

        Raises
        ------
        SettingError
            Names the table.
        """
        for name in self._options.tables:
            if name not in self._tables and self.asks_for(*name):
                load_schema(connection, self._options, *name)

    def removed(self, start: Offset) -> list[TableName]:
        """The tables of a checkpoint that the options do not ask for any more.

        Raises
        ------
        BacklogError
            The options ask for none of them.
        """
        found = self.check_some_asked(start)
        if found:
            _log.warning(
                "The options do not ask for %s any more. The query goes on without; the target keeps the rows.",
                ", ".join(map(".".join, found)),
            )
        return found

    def check_some_asked(self, start: Offset) -> list[TableName]:
        """The tables of a checkpoint that the options do not ask for any more.

        Raises
        ------
        SettingError
            The options ask for none of them: the checkpoint is another query's.
        """
        names = [*((t.database, t.table) for t in start.tables), *start.gone]
        found = [name for name in names if not self.asks_for(*name)]
        if found and len(found) == len(names) and not self._options.adds_tables:
            asked = self._options.table_pattern or ", ".join(map(".".join, self._options.tables))
            raise SettingError(
                "tablePattern" if self._options.table_pattern else "table", asked,
                f"the checkpoint is of {', '.join(map('.'.join, found))} (server {start.server}), and of none of these "
                "tables. The target has the rows of its tables.",
                "Give each query a checkpoint and a target of its own. To go on with this one, ask for its tables. "
                "scanNewlyAddedTables=true adds tables to it.",
            )  # fmt: skip
        return found

    def check_like(self, tables: Sequence[TableSchema]) -> None:
        """Refuse tables that were found later and do not fit into the stream as it was declared.

        Raises
        ------
        SettingError
            The stream has other tables, of other columns.
        SchemaChanged
            The stream's only table came back with other columns or another key.
        """
        if self._options.format != "row":
            return
        output = output_of(self._options.format, self._options.metadata)
        for table in tables:
            before = self._tables.get((table.database, table.table))
            if before is not None and before.key != table.key:
                raise SchemaChanged(
                    f"The primary key of {table.name} was ({', '.join(before.key)}). The table was dropped, and the "
                    f"one that has its name now has the key ({', '.join(table.key)}).",
                    "Start the query again with a new checkpoint and a new target, or without the table.",
                )
            try:
                output.check((self._first, table))
            except SettingError:
                if len(self._tables) > 1 or before is None:
                    raise
                raise start_again(
                    table, "it was dropped, and the table that has its name now has other columns"
                ) from None

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
        captured = {*start.gone, *((t.database, t.table) for t in start.tables)}
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
