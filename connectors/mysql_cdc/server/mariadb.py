"""Questions to a MariaDB server where it differs from MySQL: low watermarks, positions, settings.

Sources: MariaDB Knowledge Base, "Enhancements for START TRANSACTION WITH CONSISTENT SNAPSHOT" and "BINLOG_GTID_POS";
MariaDB source, sql/log.cc (``trx_group_commit_leader``, ``MYSQL_BIN_LOG::open``).
"""

from __future__ import annotations

import re
import time
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError

from ..binlog.positions import BinlogPosition
from ..schema.table import TableSchema
from .connection import query, server_time_ms, text
from .gtid import MariaDbGtids
from .log_gone import LogGone
from .watermark import PositionWatermark

__all__ = [
    "NEEDED",
    "check_generated",
    "check_position",
    "gtids_at_position",
    "low_watermark",
    "view_position",
    "visible_position",
]

NEEDED = (
    (
        "binlog_optimize_thread_scheduling",
        "ON",
        "without it transactions become visible one by one after the position of their group is told",
    ),
)
"""Variables that MySQL does not have, their required values, and why."""

# 11.4 logs generated columns in all images, 11.8 only in those of inserts. The releases between are not supported.
_LEAVES_OUT_GENERATED = (11, 5)
_GENERATED = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND IS_GENERATED = 'ALWAYS' ORDER BY ORDINAL_POSITION
"""
_ATTEMPTS = 10
_SETTLE_S = 0.02
"""More time than a thread needs to take a free lock on a busy machine. Spent once for each snapshot batch."""


def check_generated(connection: Connection[Any], schema: TableSchema) -> None:
    """Refuse generated columns that the server leaves out of the images of updates and deletes.

    Raises
    ------
    BacklogError
        Names the columns, and the value of ``columns.exclude`` that leaves them out.
    """
    version = text(query(connection, "SELECT VERSION()")[0][0])
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _LEAVES_OUT_GENERATED:
        return
    generated = {text(row[0]) for row in query(connection, _GENERATED, (schema.database, schema.table))}
    found = [column.name for column in schema.read if column.name in generated]
    if found:
        patterns = ",".join(re.escape(f"{schema.name}.{name}") for name in found)
        raise BacklogError(
            f"{schema.name} has generated columns: {', '.join(found)}. MariaDB {version} leaves them out of the log's "
            "updates and deletes.",
            f"Set columns.exclude={patterns}.",
        )


def low_watermark(connection: Connection[Any]) -> tuple[str, int]:
    """A low watermark in the form that an offset keeps, and the server's time in ms."""
    position = visible_position(connection)
    return str(position), server_time_ms(connection)


def visible_position(connection: Connection[Any]) -> PositionWatermark:
    """A log position such that any later SELECT sees every transaction before it.

    To give the GTIDs there, the server reads the log's current file up to the position: about a second for each
    gigabyte.

    Raises
    ------
    BacklogError
        The server gave no correct position in ten attempts.
    """
    position = BinlogPosition("", 0)
    for _ in range(_ATTEMPTS):
        position = _snapshot_position(connection)
        # A commit that also rotates the log moves the position to the new file before it makes its transactions
        # visible: with tiny files one position in eight was too far. Until they are visible, the commit holds first the
        # lock of the log, then the lock of the commit order. So wait for both: reading the log's end takes the first
        # one, beginning a consistent snapshot takes the second one. Between the two the commit holds neither lock for
        # a few instructions.
        file, pos = query(connection, "SHOW MASTER STATUS")[0][:2]
        time.sleep(_SETTLE_S)
        later = _snapshot_position(connection).sort_key()
        # If another session rotates the log in those instructions, the position has the new file with an offset of the
        # old one until the next commit. Then it is beyond the end, or goes back, or no event ends there.
        if position.sort_key() <= min(later, BinlogPosition(text(file), int(pos)).sort_key()):
            gtids = gtids_at_position(connection, position)
            if gtids is not None:
                return PositionWatermark(position, gtids)
    raise BacklogError(
        f"The server says that a snapshot was at {position.file}:{position.pos}, but no transaction ends there.",
        "If the binary log was reset or purged meanwhile, start the query again. Otherwise commit any change first.",
    )


def _snapshot_position(connection: Connection[Any]) -> BinlogPosition:
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        return view_position(connection)
    finally:
        query(connection, "ROLLBACK")


def view_position(connection: Connection[Any]) -> BinlogPosition:
    """The log position of the connection's consistent snapshot, as the server reports it.

    It can be wrong while the log rotates: see `visible_position`.

    Raises
    ------
    SettingError
        The binary log is off.
    """
    status = query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")  # no arguments: % stays as it is
    found = {text(name).lower(): text(value) for name, value in status}
    file, pos = found.get("binlog_snapshot_file", ""), found.get("binlog_snapshot_position", "")
    if not file or not pos.isdecimal():
        raise SettingError("log_bin", "OFF", "the server writes no binary log.", "Start it with --log-bin.")
    return BinlogPosition(file, int(pos))


def gtids_at_position(connection: Connection[Any], position: BinlogPosition) -> MariaDbGtids | None:
    """The GTIDs before a log position. None if no event ends there, as in a file that is gone."""
    # The number is in the statement: a connection without value decoders cannot encode one.
    told = query(connection, f"SELECT BINLOG_GTID_POS(%s, {position.pos})", (position.file,))[0][0]
    return None if told is None else MariaDbGtids(text(told))


def check_position(connection: Connection[Any], position: BinlogPosition, gtids: str) -> None:
    """Refuse a log that is not, or no longer, the one to which the position belongs.

    Parameters
    ----------
    position : BinlogPosition
        The position up to which a checkpoint has read.
    gtids : str
        The last transaction of each domain at the position.

    Raises
    ------
    LogGone
        The log was purged or reset, or is another server's.
    """
    told = gtids_at_position(connection, position)
    if told is None:
        raise LogGone(
            f"The server's binary log has no transaction's end at {position.file}:{position.pos} any more, up to which "
            "it was read: it was purged or reset.",
            "Start with a new checkpoint and raise binlog_expire_logs_seconds.",
        )
    if not MariaDbGtids(gtids).is_where(told):
        raise LogGone(
            f"The server's binary log was reset or is another one: at {position.file}:{position.pos} it is after "
            f"transaction {str(told) or 'none'}, where the checkpoint has {gtids or 'none'}.",
            "Connect to the first server, or start with a new checkpoint and a new target.",
        )
