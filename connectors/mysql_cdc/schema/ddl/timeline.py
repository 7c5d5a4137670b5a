"""The columns of the tables along the binary log, while it is read (pure)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...binlog.positions import BinlogPosition
from ..table import SchemaChanged, TableSchema
from .alters import column_steps
from .history import Layout
from .renames import GONE, Name, altered_table, made
from .statements import changed_tables

__all__ = ["Copy", "Fixed", "Statements", "TableAltered", "TableName", "Timeline"]

TableName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TableAltered:
    """An ALTER TABLE of a captured table that may change its columns, or a RENAME that gives its name to another.

    Parameters
    ----------
    schema : TableSchema
        The table's declared definition.
    statement : str
    end : BinlogPosition
        The end of the statement.
    origin : (str, str) or None
        If another table has the name from here on: the name that it had, in lower case. `GONE` if no table has it. None
        if the table itself was altered.
    sql_mode : int or None
        The bits of the session's ``sql_mode``; None if not known.
    time_zone : str
        The session's, if the statement has converted times with it; else "".
    sequence, uuid, number, timestamp, file, server_id
        As in `TableEmptied`.
    """

    schema: TableSchema
    statement: str
    end: BinlogPosition
    origin: Name | None = None
    sql_mode: int | None = None
    time_zone: str = ""
    sequence: int = 0
    uuid: str = ""
    number: int = 0
    timestamp: int = 0
    file: str = ""
    server_id: int = 0

    @property
    def name(self) -> TableName:
        """Database and name of the table."""
        return self.schema.database, self.schema.table

    @property
    def is_taken(self) -> bool:
        """Whether another table has the name from here on."""
        return self.origin is not None and self.origin != GONE


class Copy(NamedTuple):
    """A table that may be made as a copy of another."""

    like: Name  # the table in CREATE TABLE … LIKE; `GONE` if the statement has the columns itself
    alters: list[str]  # each later ALTER TABLE


class Timeline:
    """Tables keep their declared columns: an ALTER TABLE ends the read."""

    decodes = True
    """Whether rows are decoded."""

    def layout(self, schema: TableSchema) -> Layout | None:
        """The table's columns in the rows that are read next; None for the declared ones."""
        return None

    def described(self, schema: TableSchema, names: tuple[str, ...]) -> None:
        """Called with all columns that the log names for the rows after it, if `decodes` is false."""

    def other(self, text: str, default: str) -> None:
        """Called with each statement that may make, alter or drop other tables, if `decodes` is false."""

    def altered(self, found: TableAltered) -> None:
        """Called when the read reaches an ALTER TABLE or a RENAME.

        Raises
        ------
        SchemaChanged
            The read cannot continue, as the columns may be others.
        """
        with contextlib.suppress(SchemaChanged):  # not understood
            if found.origin is None and not column_steps(found.statement):
                return
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
    """Only collects the statements, without rows: to look ahead.

    Attributes
    ----------
    found : list of TableAltered
    names : dict
        For numbers of statements: the columns that a table has in the log after so many of them. Only if the log names
        columns, and has rows there.
    copies : dict
        For numbers of statements: how the table that took the name with the statement was made and altered, if it was
        made since the statement before.
    """

    decodes = False

    def __init__(self) -> None:
        self.found: list[TableAltered] = []
        self.names: dict[int, tuple[str, ...]] = {}
        self.copies: dict[int, Copy] = {}
        self._made: dict[Name, Copy] = {}

    def described(self, schema: TableSchema, names: tuple[str, ...]) -> None:
        if names:
            self.names.setdefault(len(self.found), names)

    def altered(self, found: TableAltered) -> None:
        # A read that lost its connection may reach the same statement again.
        if not self.found or found.end.sort_key() > self.found[-1].end.sort_key():
            self.found.append(found)
            if copy := self._made.get(found.origin or GONE):
                self.copies[len(self.found)] = copy
            if found.origin != GONE:
                self._made.clear()  # they are copies of the table as it was

    def other(self, text: str, default: str) -> None:
        create = made(text, default)
        if create is not None and create[1] is not None:
            self._made[create[0]] = Copy(create[1], [])
        elif copy := self._made.get(altered_table(text, default) or GONE):
            copy.alters.append(text)
        else:
            for name in [create[0]] if create else changed_tables(text, default) or ():
                self._made.pop(name, None)
