"""Decides whether a server has purged changes that were not read yet.

A server may purge a log file as soon as another one has begun, also the one that holds a position. Then file names say
nothing about what is missing, but GTIDs do. If all purged transactions were read, reading goes on at the log's
beginning.

Sources: MySQL Reference Manual, ``gtid_purged``; MariaDB Knowledge Base, "Gtid_list Event".
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import SettingError

from ..binlog.positions import FAR, FIRST_EVENT, BinlogPosition
from ..offsets import Offset
from . import mariadb
from .connection import is_mariadb, log_files, query, text
from .gtid import GtidSet, MariaDbGtids
from .log_gone import LogGone
from .mysql import has_gtids
from .watermark import origin, resume_after

__all__ = ["check_log", "lacks_nothing", "needed_from", "present"]

_HINT = "Start with a new checkpoint and raise binlog_expire_logs_seconds."


def check_log(connection: Connection[Any], start: Offset) -> None:
    """Refuse a binary log that lacks changes that a query continuing at ``start`` would read.

    Raises
    ------
    LogGone
        Says what is missing.
    """
    begin = needed_from(start)
    if begin is None:
        return
    if isinstance(begin, str):
        _check_purged(connection, begin)
        return
    found = present(connection, begin)
    if found == begin and begin.pos < FAR and is_mariadb(connection):
        mariadb.check_position(connection, begin, begin.gtids)


def needed_from(start: Offset) -> BinlogPosition | str | None:
    """Where a query that continues at ``start`` reads the log from, as for `read_changes`; None for nowhere yet."""
    if start.position:
        return origin(start)
    low = start.start or (start.ranges[0].low if start.ranges else "")
    return resume_after(low) if low else None


def present(connection: Connection[Any], position: BinlogPosition) -> BinlogPosition:
    """Where reading after a position begins: there, or at the log's beginning if nothing between the two was purged.

    Raises
    ------
    LogGone
        The position's file is gone, and transactions after it may be gone too.
    """
    # Before the GTIDs: those include what is purged after this look.
    files = [name for name, _ in log_files(connection)]
    if position.file in files:
        return position
    first = BinlogPosition(files[0], FIRST_EVENT, position.gtids)
    follows = first.file_number > position.file_number  # otherwise the log was reset, or has another name
    if is_mariadb(connection):
        told = mariadb.gtids_at_position(connection, first) if follows else None
        # Equal, so no domain may have been forgotten: its last transactions may be among the purged ones.
        if told is not None and told == MariaDbGtids(position.gtids):
            return first
        raise LogGone(
            f"The server has purged binary logs that are still needed, or was reset: its log begins at {first.file} "
            f"after {told or 'no transaction'}, and was read up to {position} after {position.gtids or 'none'}.",
            _HINT,
        )
    if not follows or not position.gtids or not has_gtids(connection):
        raise LogGone(f"The server has purged binary logs that are still needed: from {position.file} on.", _HINT)
    purged, executed = _known(connection)
    if not lacks_nothing(GtidSet(position.gtids), purged, executed):
        raise _missing(purged, position.gtids)
    return first


def lacks_nothing(read: GtidSet, purged: GtidSet, executed: GtidSet) -> bool:
    """Whether the log of a MySQL has all of its transactions that were not read, and it has executed those that were.

    A server that was reset has not executed them. Its new transactions have the old numbers.
    """
    return read.issuperset(purged) and executed.issuperset(read)


def _check_purged(connection: Connection[Any], read: str) -> None:
    """Refuse a MySQL that has purged transactions which are not in ``read``."""
    if not has_gtids(connection):
        raise SettingError(
            "gtid_mode", "not ON", "the checkpoint was made with GTIDs and its snapshot needs them.",
            "Set gtid_mode=ON on the server, or start with a new checkpoint.",
        )  # fmt: skip
    purged, _ = _known(connection)
    if not GtidSet(read).issuperset(purged):
        raise _missing(purged, read)


def _known(connection: Connection[Any]) -> tuple[GtidSet, GtidSet]:
    """The transactions that the server has purged, and those that it has executed."""
    purged, executed = query(connection, "SELECT @@global.gtid_purged, @@global.gtid_executed")[0]
    return GtidSet(text(purged)), GtidSet(text(executed))


def _missing(purged: GtidSet, read: str) -> LogGone:
    return LogGone(
        f"The server has purged binary logs that are still needed, or was reset: it has purged {purged}, and only "
        f"{read} was read.",
        _HINT,
    )
