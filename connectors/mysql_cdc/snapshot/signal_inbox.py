"""Takes signals from the signal table and from the query, and notes in the offset what they ask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.signals import QuerySignals, Signal

from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.choice import ColumnChoice
from ..schema.declared import DeclaredTables
from ..schema.table import TableSchema
from ..server.mysql import connect, load_schema, query
from ..server.retries import is_transient
from .reading import chunk_where
from .requests import Requests
from .signals import applied, check_condition, message_of, ranges_asked

__all__ = ["SignalInbox", "check_signal", "signal_table"]

_log = logging.getLogger(__name__)
_TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"}
_COLUMNS = 3


def signal_table(connection: Connection[Any], options: MySqlOptions) -> TableSchema | None:
    """The definition of the signal table; None without the option ``signal.table``.

    Raises
    ------
    SettingError
        There is no such table, or its first three columns are no texts.
    """
    if options.signal_table is None:
        return None
    found = load_schema(connection, replace(options, columns=ColumnChoice()), *options.signal_table)
    if len(found.columns) < _COLUMNS or any(c.data_type not in _TEXTS for c in found.columns[:_COLUMNS]):
        raise SettingError(
            "signal.table", found.name, "its first three columns must be texts: id, type and data.",
            f"CREATE TABLE {found.name} (id VARCHAR(42) PRIMARY KEY, type VARCHAR(32) NOT NULL, data VARCHAR(2048)).",
        )  # fmt: skip
    return found


def check_signal(options: MySqlOptions, tables: Sequence[TableSchema], signal: Signal) -> None:
    """Refuse a signal that cannot be carried out, before the query has it.

    Raises
    ------
    BacklogError
        Says what is wrong with it.
    """
    if options.startup_mode == "snapshot":
        raise BacklogError(
            "A stream with startup.mode=snapshot ends with its snapshot.", "Signals are for streams that go on."
        )
    with connect(options) as connection:
        _check_on_server(connection, tables, signal)


def _check_on_server(connection: Connection[Any], tables: Sequence[TableSchema], signal: Signal) -> None:
    applied(signal, Requests(), tables)
    if signal.type != "execute-snapshot":
        return
    by_name = {(t.database, t.table): t for t in tables}
    for condition, name in {(r.condition, r.table) for r in ranges_asked(signal, tables) if r.condition}:
        check_condition(condition)
        table = by_name[name]
        try:
            query(connection, f"EXPLAIN SELECT 1 FROM {table.qualified}{chunk_where(table, None, None, condition)}")
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
            raise BacklogError(
                f"The condition {condition!r} does not work for {table.name}: {error.args[1]}.", "Correct it."
            ) from None


class SignalInbox:
    """Takes the signals of one stream.

    Parameters
    ----------
    options, tables
        Those of the stream.
    """

    def __init__(self, options: MySqlOptions, tables: DeclaredTables) -> None:
        self._options = options
        self._tables = tables
        self._query = QuerySignals(options.signals_token)
        self._table: TableSchema | None = None

    def table(self, connection: Connection[Any]) -> TableSchema | None:
        """The signal table, as it was when the process began."""
        if self._table is None:
            self._table = signal_table(connection, self._options)
        return self._table

    def step(
        self, connection: Connection[Any], start: Offset, end: Offset | None, found: Sequence[Signal]
    ) -> Offset | None:
        """The end offset of a batch, with what signals ask.

        Parameters
        ----------
        start, end : Offset
            The batch so far; ``end`` is None if it has nothing yet.
        found : sequence of Signal
            Those that the batch's log has.
        """
        asked = self._query.after(start.requests.heard)
        if not found and not asked:
            return end
        after = end or start.quiet()
        state = after.requests
        captured = self._tables.captured(after)
        for signal in (*found, *asked):
            try:
                _check_on_server(connection, captured, signal)
                state = applied(signal, state, captured)
            except (BacklogError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                # Not BacklogError: data of an unexpected shape. An error here would come back after every restart.
                _log.warning("Signal %r is ignored: %s", signal.id, error)
                continue
            message = message_of(signal)
            _log.info("Signal %r: %s", signal.id, message if message is not None else signal.type)
        heard = asked[-1].number if asked else state.heard
        return replace(after, requests=replace(state, heard=heard))
