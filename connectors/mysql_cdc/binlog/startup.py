"""Decides where in the binary log a stream without a snapshot starts, as ``startup.mode`` says.

The first batch decides the position once, and whether the log from there on is backlog. It has no rows; its end offset,
in Spark's offset log, holds the position. So a query that is restarted before it has read anything starts at the same
position.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError

from ..offsets import Offset
from ..options import MySqlOptions
from ..schema.ddl.timeline import Statements
from ..schema.declared import DeclaredTables
from ..schema.table import SchemaChanged, TableSchema
from ..server import mariadb
from ..server.connection import is_mariadb, log_files, query, server_time_ms, text
from ..server.gtid import GtidSet, previous_gtids
from ..server.mysql import end_position, has_gtids
from ..server.purged import check_log
from ..server.retries import is_transient
from ..server.unlogged import without_prepared
from ..server.watermark import origin
from .dump import open_dump
from .positions import FIRST_EVENT, BinlogPosition
from .reading import TransactionEnd, read_changes

__all__ = ["check_start", "decided"]

# Events that may come between two transactions, as SHOW BINLOG EVENTS names them.
_BETWEEN = {
    "gtid", "anonymous_gtid", "gtid_tagged_log_event", "rotate", "stop", "format_desc", "previous_gtids", "gtid_list",
    "binlog_checkpoint", "start_encryption",
}  # fmt: skip
_FORMAT, _PREVIOUS_GTIDS = 15, 35


def decided(connection: Connection[Any], options: MySqlOptions, tables: DeclaredTables, start: Offset) -> Offset:
    """The end offset of the first batch.

    Raises
    ------
    BacklogError
        The position is not, or no longer, in the server's log, or is inside a transaction; or a table was altered
        after it.
    """
    found = _decide(connection, options, start)
    captured = tables.captured(start)
    later = _Ahead()
    end = end_position(connection, options)
    began_at: int | None = None
    for change in read_changes(options, captured, origin(found), end, timeline=later):
        if began_at is None and later.has_rows and isinstance(change, TransactionEnd):
            began_at = change.timestamp
    for altered in later.found:
        raise SchemaChanged(
            f"{altered.schema.name} was altered after the position where the stream would start, by "
            f"{altered.statement[:200]!r}: the binary log does not say which columns it had before.",
            f"Start after it: startup.mode=specific, startup.file={altered.end.file}, "
            f"startup.position={altered.end.pos}.",
        )
    for schema in captured:
        tables.check_unaltered(connection, schema)
    threshold = options.backlog_lag_ms
    lags = threshold is not None and began_at is not None and server_time_ms(connection) - began_at * 1000 > threshold
    return replace(found, tables=captured, is_lagging=lags, no_rows_yet=True)


class _Ahead(Statements):
    """Also notes whether there are rows of the tables."""

    has_rows = False

    def described(self, schema: TableSchema, names: tuple[str, ...]) -> None:
        self.has_rows = True
        super().described(schema, names)


def check_start(connection: Connection[Any], options: MySqlOptions) -> None:
    """Check a position that the user gives, without reading the log.

    Raises
    ------
    BacklogError
        It is not, or no longer, in the server's log, or is inside a transaction.
    """
    if options.startup_mode == "specific":
        if options.startup_gtid_set:
            _after_gtids(connection, options, Offset(""))
        else:
            _checked(connection, BinlogPosition(options.startup_file or "", options.startup_position))


def _decide(connection: Connection[Any], options: MySqlOptions, offset: Offset) -> Offset:
    if options.startup_mode == "specific" and options.startup_gtid_set:
        return _after_gtids(connection, options, offset)
    if options.startup_mode == "latest":
        position = without_prepared(connection, lambda: _end(connection, options))
    elif options.startup_mode == "earliest":
        position = BinlogPosition(log_files(connection)[0][0], FIRST_EVENT)
    elif options.startup_mode == "timestamp":
        position = _at_timestamp(connection, options)
    else:
        assert options.startup_file
        position = _checked(connection, BinlogPosition(options.startup_file, options.startup_position))
    if not is_mariadb(connection):
        gtid = _gtids_before(options, position) if has_gtids(connection) else ""
    else:
        found = mariadb.gtids_at_position(connection, position)
        if found is None:
            raise BacklogError(
                f"No transaction of the server ends at {position.file}:{position.pos}.",
                "Give a position from SHOW BINLOG EVENTS, after a COMMIT.",
            )
        gtid = str(found)
    return replace(offset, position=position, gtid=gtid, is_backlog=False)


def _gtids_before(options: MySqlOptions, position: BinlogPosition) -> str:
    """MySQL: all transactions before a log position: those in its file, and the older ones that the file lists."""
    beginning = BinlogPosition(position.file, FIRST_EVENT)
    found = GtidSet()
    for uuid, first, last in previous_gtids(_first_event(options, beginning, _PREVIOUS_GTIDS)):
        found.add_range(uuid, first, last)
    for change in read_changes(options, (), beginning, position):
        if isinstance(change, TransactionEnd) and change.uuid:
            found.add(change.uuid, change.number)
    return str(found)


def _end(connection: Connection[Any], options: MySqlOptions) -> BinlogPosition:
    if is_mariadb(connection):
        # The end that SHOW MASTER STATUS gives may lie in a file that a commit is about to leave.
        return mariadb.visible_position(connection).position
    return end_position(connection, options)


def _checked(connection: Connection[Any], position: BinlogPosition) -> BinlogPosition:
    """The user's position, if reading may start there."""
    name = f"{position.file}:{position.pos}"
    files = dict(log_files(connection))
    if position.file not in files:
        raise BacklogError(
            f"The server has no binary log file {position.file!r} (startup.file); it has {', '.join(files)}.",
            "It may have been purged: start with a snapshot, or from a file that the server has.",
        )
    if position.pos == files[position.file]:
        return position
    try:
        # The number is in the statement: a connection without value decoders cannot encode one.
        found = query(connection, f"SHOW BINLOG EVENTS IN %s FROM {position.pos} LIMIT 1", (position.file,))
    except pymysql.err.MySQLError as error:
        if is_transient(error):
            raise
        found, why = [], str(error.args[-1])
    else:
        why = "it is beyond the end"
    kind = text(found[0][2]).lower() if found else ""
    if kind not in _BETWEEN or int(found[0][1]) != position.pos:
        why = f"a {kind} event is there" if kind else why
        raise BacklogError(
            f"startup.position: {name} is not between two transactions: {why}.",
            "Give the Pos of a Gtid event, as SHOW BINLOG EVENTS lists them, or the end of the file.",
        )
    return position


def _after_gtids(connection: Connection[Any], options: MySqlOptions, offset: Offset) -> Offset:
    if is_mariadb(connection):
        raise SettingError(
            "startup.gtidSet", options.startup_gtid_set, "is for MySQL; the server is MariaDB.",
            "Give startup.file and startup.position.",
        )  # fmt: skip
    wanted = GtidSet(options.startup_gtid_set)
    executed = GtidSet(str(query(connection, "SELECT @@global.gtid_executed")[0][0]))
    if not executed.issuperset(wanted):
        raise SettingError(
            "startup.gtidSet", options.startup_gtid_set,
            f"has transactions that the server has not executed: it has {executed}.",
            "Give a set that the server has executed, for example from SELECT @@gtid_executed.",
        )  # fmt: skip
    # If the set has holes or is of several servers, some of it may lie after the end of the first batch. So up to the
    # log's end the set alone decides what is skipped.
    until = end_position(connection, options)
    decided = replace(offset, start=str(wanted), gtid_until=until, is_backlog=False)
    check_log(connection, decided)
    return decided


def _at_timestamp(connection: Connection[Any], options: MySqlOptions) -> BinlogPosition:
    """The position before the first transaction whose first event is of that second or a later one."""
    wanted = options.startup_timestamp_ms // 1000
    files = [name for name, _ in log_files(connection)]
    # The newest file that was begun before. A transaction is never in two files.
    low, high = 0, len(files) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _begun_at(options, files[middle]) < wanted:
            low = middle
        else:
            high = middle - 1
    position = BinlogPosition(files[low], FIRST_EVENT)
    end = _end(connection, options)
    for change in read_changes(options, (), position, end):
        assert isinstance(change, TransactionEnd), "no table is looked at"
        if change.timestamp >= wanted:
            return position
        position = change.position
    return position


def _begun_at(options: MySqlOptions, file: str) -> int:
    """When a log file's first event was written, seconds since 1970."""
    data = _first_event(options, BinlogPosition(file, FIRST_EVENT), _FORMAT)
    return int.from_bytes(data[1:5], "little")


def _first_event(options: MySqlOptions, start: BinlogPosition, kind: int) -> bytes:
    """The first event of a kind after a position, with one byte before it."""
    connection = open_dump(options, start).open()
    try:
        while True:
            packet = connection._read_packet()
            data: bytes = packet.get_all_data()
            if packet.is_eof_packet() or data[0]:
                raise BacklogError(
                    f"The binary log {start.file} has no event of type {kind}.",
                    "Start in another file, or with a snapshot (startup.mode=initial).",
                )
            if data[5] == kind:
                return data
    finally:
        with contextlib.suppress(OSError):
            connection._force_close()
