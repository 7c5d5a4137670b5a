"""Decides what the statements of the binary log do to the captured tables (pure).

A statement that may change a captured table in a way that the stream cannot show is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..schema.ddl.renames import Name, moves, origin_of
from ..schema.ddl.statements import (
    ANY_DATABASE,
    DROP,
    changed_tables,
    dropped_database,
    drops_key,
    empties_memory_table,
    named_tables,
    removal,
)
from ..schema.ddl.writes import KNOWN_TOOLS, has_rules_of, is_system, named_for_people, written_table
from ..schema.table import RowsRemoved, SchemaChanged, TableSchema
from .truncated_tables import removed_tables

__all__ = ["NO_CHANGES", "CapturedTables", "TableChanges"]

_EMPTIED = "Set tableEvents=emit or tableEvents=skip to continue with this checkpoint, or start with a new checkpoint."
_START_ANEW = "Start the query again with a new checkpoint and a new target."
_MOST_NAMED = 10  # tables of a statement, in an error


class TableChanges(NamedTuple):
    """What a statement does to captured tables.

    Parameters
    ----------
    statement : str
    altered : sequence of (TableSchema, (str, str) or None)
        The tables that it alters or renames, with the ``origin`` of `TableAltered`.
    removed : sequence of TableSchema
        The tables that lose all rows.
    removal : str
        ``TRUNCATE`` or ``DROP`` of `statements`, if there are such tables.
    """

    statement: str
    altered: Sequence[tuple[TableSchema, Name | None]] = ()
    removed: Sequence[TableSchema] = ()
    removal: str = ""


NO_CHANGES = TableChanges("")


class CapturedTables:
    """The captured tables of a read, by the names that statements give them.

    Parameters
    ----------
    ignored : str
        Regular expression over ``database.table``: statement-format changes of rows in such tables pass.
    folds_case : callable
        Whether the server takes names of tables for equal that differ in case.
    removals : frozenset of str
        Kinds of statements that may remove all rows of a table: ``"truncate"``, ``"drop"``. Others are refused.
    reads_swaps_again : bool
        Whether a RENAME that gives a table's name to another one, or to none, counts as a DROP, unless a known tool
        swaps.
    """

    def __init__(
        self,
        tables: Sequence[TableSchema],
        ignored: str,
        folds_case: Callable[[], bool],
        *,
        removals: frozenset[str] = frozenset(),
        reads_swaps_again: bool = False,
    ) -> None:
        self._tables = {(t.database, t.table): t for t in tables}
        # By the lower-case name that a statement may use. Several tables if their names differ only in case.
        self._folded: dict[Name, list[TableSchema]] = {}
        for t in tables:
            self._folded.setdefault((t.database.lower(), t.table.lower()), []).append(t)
        self._keyed_by_index = [t for t in tables if t.key_index]
        self._ignored = re.compile(f"{KNOWN_TOOLS}|{ignored}" if ignored else KNOWN_TOOLS)
        self._folds_case = folds_case
        self._removals = removals
        self._reads_swaps_again = reads_swaps_again

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, database: str, table: str) -> TableSchema | None:
        """The table of this name, if it is captured."""
        return self._tables.get((database, table))

    def drop(self, schema: TableSchema) -> None:
        """Forget a table: from here on its name belongs to another one."""
        self._tables.pop((schema.database, schema.table), None)
        name = schema.database.lower(), schema.table.lower()
        self._folded[name].remove(schema)
        if not self._folded[name]:
            del self._folded[name]

    def unsafe_write(self, first: str, text: str, default: str) -> str | None:
        """What to say of a statement-format change of rows that may reach a captured table; None if it cannot.

        Parameters
        ----------
        first : str
            The statement's first word.
        default : str
            The session's database.
        """
        named = self._named(named_tables(text, default))
        if (not named and empties_memory_table(text)) or self._passes(text, default, named):
            return None
        # It may change any table through a view, a trigger or a function, whatever table it names.
        names = ", ".join(t.name for t in named or self._tables.values())
        # The statement's values are somebody's data.
        told = ", ".join(named_for_people(text, default)[:_MOST_NAMED])
        return f"a statement-format change, {first}{told and f' with the tables {told}'}, that may reach {names},"

    def changes(self, first: str, text: str, default: str) -> TableChanges:
        """What another statement does to captured tables.

        Raises
        ------
        SchemaChanged
            The read cannot continue.
        """
        self._refuse_rules(first, text, default)
        self._refuse_lost_keys(text, default)
        found = removal(text, default)
        if found is not None and found.kind in self._removals:
            gone_tables = removed_tables(found, self._tables.values(), self._folds_case)
            return TableChanges(text, removed=gone_tables, removal=found.kind)
        gone = dropped_database(text)
        for (database, _), schemas in self._folded.items():
            if database in gone:
                raise RowsRemoved(f"The database of {schemas[0].name} was dropped: {text[:200]!r}.", _EMPTIED)
        changed = changed_tables(text, default)
        if changed is None:
            raise SchemaChanged(
                f"mysql_cdc cannot tell which tables this statement of the binary log changes: {text[:200]!r}.",
                f"{_START_ANEW} Report this with the statement.",
            )
        named = self._named(changed)
        if not named:
            return NO_CHANGES
        if first not in ("ALTER", "RENAME"):
            problem = f"The table {named[0].name} was changed by {text[:200]!r}."
            raise RowsRemoved(problem, _EMPTIED) if found else SchemaChanged(problem, _START_ANEW)
        return self._altered(first, text, default, named)

    def _refuse_rules(self, first: str, text: str, default: str) -> None:
        for rule in has_rules_of(text, default) if first == "CREATE" else ():
            if self._ignored.fullmatch(".".join(rule)):
                raise SchemaChanged(
                    f"{'.'.join(rule)} became a view or got a trigger, so that a statement that writes it may change "
                    "captured tables.",
                    "Drop it, and start with a new checkpoint. Statement-format changes pass only for tables without.",
                )

    def _refuse_lost_keys(self, text: str, default: str) -> None:
        for schema in self._keyed_by_index:
            folded = schema.database.lower(), schema.table.lower()
            if drops_key(text, default, folded, schema.key_index):
                raise SchemaChanged(
                    f"The unique key {schema.key_index} of {schema.name}, which identifies its rows "
                    f"(messageKeyColumns), was dropped or renamed: {text[:200]!r}.",
                    _START_ANEW,
                )

    def _altered(self, first: str, text: str, default: str, named: list[TableSchema]) -> TableChanges:
        """What an ALTER TABLE or a RENAME TABLE does to the captured tables that it names."""
        if moves(text, default) is None:
            raise SchemaChanged(
                f"mysql_cdc cannot tell whether a statement of the binary log renames {named[0].name}: {text[:200]!r}.",
                f"{_START_ANEW} Report this with the statement.",
            )
        altered: list[tuple[TableSchema, Name | None]] = []
        removed: list[TableSchema] = []
        for schema in named:
            origin, by_tool = origin_of((schema.database, schema.table), text, default, self._folds_case)
            if origin is not None and self._reads_swaps_again and not by_tool:
                removed.append(schema)
            elif origin in self._folded:
                raise SchemaChanged(
                    f"{schema.name} is another captured table since {text[:200]!r}: both have other rows than before.",
                    _START_ANEW,
                )
            elif origin is not None or first == "ALTER":
                altered.append((schema, origin))
        return TableChanges(text, altered, removed, DROP)

    def _passes(self, text: str, default: str, named: list[TableSchema]) -> bool:
        """Whether a statement-format change writes one table that is known to be not a captured one."""
        target = written_table(text, default)
        if target is None:
            return False
        if is_system(target[0]):
            return not named
        is_captured = (target[0].lower(), target[1].lower()) in self._folded
        return not is_captured and self._ignored.fullmatch(".".join(target)) is not None

    def _named(self, names: set[Name]) -> list[TableSchema]:
        """The captured tables among those that a statement names."""
        return [
            schema
            for (database, table), schemas in self._folded.items()
            if (database, table) in names or (ANY_DATABASE, table) in names
            for schema in schemas
        ]
