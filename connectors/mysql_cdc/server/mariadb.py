"""What ``mysql_cdc`` asks a MariaDB server where it differs from MySQL: low watermarks, identity, settings.

Sources: MariaDB Knowledge Base, "Enhancements for START TRANSACTION WITH CONSISTENT SNAPSHOT" and "BINLOG_GTID_POS";
MariaDB source, sql/log.cc (``trx_group_commit_leader``, ``MYSQL_BIN_LOG::open``).
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError

from ..offsets import BinlogPosition
from .connection import query, server_time_ms, text
from .gtid import MariaDbGtids
from .watermark import PositionWatermark

__all__ = ["NEEDED", "check_position", "gtids_at_position", "low_watermark", "view_position", "visible_position"]

NEEDED = (
    ("log_bin_compress", "OFF", "compressed rows are not read"),
    (
        "binlog_optimize_thread_scheduling",
        "ON",
        "without it transactions become visible one by one after the position of their group is told",
    ),
)
"""Variables that MySQL does not have, the value that each must have, and why."""

_ATTEMPTS = 10
_SETTLE_S = 0.02
"""More than a thread that is about to take a free lock should need on a busy machine; once a snapshot batch."""


def low_watermark(connection: Connection[Any]) -> tuple[str, int]:
    """A low watermark, as an offset keeps it, and the server's time in ms."""
    position = visible_position(connection)
    return str(position), server_time_ms(connection)


def visible_position(connection: Connection[Any]) -> PositionWatermark:
    """A place in the log before which all is visible to any later SELECT.

    The server reads the log's current file up to that place, to tell the GTIDs there: about a second a gigabyte.

    Raises
    ------
    BacklogError
        The server told no right place in ten attempts.
    """
    position = BinlogPosition("", 0)
    for _ in range(_ATTEMPTS):
        position = _snapshot_position(connection)
        # A commit that also rotates the log moves the position to the new file before it makes its transactions
        # visible: with tiny files one position in eight was too far. Until then it holds the log's lock, then the lock
        # of the commit order. Wait for the one, under which the log's end is read, then for the other, under which a
        # consistent snapshot begins. Between the two it holds neither for some instructions.
        file, pos = query(connection, "SHOW MASTER STATUS")[0][:2]
        time.sleep(_SETTLE_S)
        later = _snapshot_position(connection).sort_key()
        # If another session rotates the log in those instructions, the position is in the new file at a byte of the
        # old one until the next commit: beyond the end, going back, or where no event ends.
        if position.sort_key() <= min(later, BinlogPosition(text(file), int(pos)).sort_key()):
            gtids = gtids_at_position(connection, position)
            if gtids is not None:
                return PositionWatermark(position, gtids)
    raise BacklogError(
        f"The server says that a snapshot was at {position.file}:{position.pos}, but no transaction ends there.",
        "If someone reset or purged the binary log meanwhile, start the query again; else commit any change first.",
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
        With the binary log off.
    """
    status = query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")  # no arguments: % stays as it is
    found = {text(name).lower(): text(value) for name, value in status}
    file, pos = found.get("binlog_snapshot_file", ""), found.get("binlog_snapshot_position", "")
    if not file or not pos.isdigit():
        raise SettingError("log_bin", "OFF", "the server writes no binary log.", "Start it with --log-bin.")
    return BinlogPosition(file, int(pos))


def gtids_at_position(connection: Connection[Any], position: BinlogPosition) -> MariaDbGtids | None:
    """The GTIDs before a place in the log, or None where no event ends there, as in a file that is gone."""
    # A connection without value decoders cannot encode a number either.
    told = query(connection, f"SELECT BINLOG_GTID_POS(%s, {position.pos})", (position.file,))[0][0]
    return None if told is None else MariaDbGtids(text(told))


def check_position(connection: Connection[Any], position: BinlogPosition, gtids: str) -> None:
    """Refuse a log that is not the one, or no longer the one, in which the place was told.

    Parameters
    ----------
    position : BinlogPosition
        Up to which a checkpoint has read.
    gtids : str
        The last transaction of each domain there.

    Raises
    ------
    BacklogError
        The log was purged or reset, or is another server's.
    """
    told = gtids_at_position(connection, position)
    if told is None:
        raise BacklogError(
            f"The server's binary log has no transaction's end at {position.file}:{position.pos} any more, up to which "
            "it was read: it was purged or reset.",
            "Start with a new checkpoint and raise binlog_expire_logs_seconds.",
        )
    if not MariaDbGtids(gtids).is_where(told):
        raise BacklogError(
            f"The server's binary log was reset or is another one: at {position.file}:{position.pos} it is after "
            f"transaction {str(told) or 'none'}, where the checkpoint has {gtids or 'none'}.",
            "Connect to the first server, or start with a new checkpoint and a new target.",
        )
