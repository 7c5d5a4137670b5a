"""Begins a read view whose transactions are known exactly, without locks.

MySQL: `gtid_executed`, read before the view begins, is a lower bound of what the view sees. The binary log's end, read
after that, is an upper bound. Commits that are under way lie between the two. If none of them changes the table, the
view's rows of the table are exactly those of the lower bound. A few attempts of some milliseconds are enough, unless
the table is changed without pause.

MariaDB gives the log position of each view. Only a commit that also rotates the log can make it wrong: the position is
then in the new file, while that commit's rows are not visible yet. So a view is accepted only if its position is in the
same file as an earlier position before which everything was visible.
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from ..schema.table import TableSchema
from ..server import mariadb
from ..server.connection import is_mariadb, text
from ..server.gtid import GtidSet
from ..server.mysql import end_position, query
from ..server.watermark import GtidWatermark, PositionWatermark
from .rewind import NetChanges

__all__ = ["begin_exact_view", "begin_view"]

_ATTEMPTS = 500
_WAIT_S = 0.002  # for commits that are under way; grows with each attempt, up to fifty times this


def begin_view(connection: Connection[Any]) -> None:
    """Begin a transaction that sees the tables as they are now. COMMIT ends it."""
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def begin_exact_view(connection: Connection[Any], options: MySqlOptions, schema: TableSchema, log: NetChanges) -> None:
    """Begin a view, and read into ``log`` exactly the transactions that the view sees after the log's low watermark.

    Raises
    ------
    BacklogError
        The table changes so often that no view falls between two changes; on MariaDB, the server begins new log files
        that often.
    """
    of_mariadb = is_mariadb(connection)
    for attempt in range(_ATTEMPTS):
        if _begun_at_position(connection, log) if of_mariadb else _begun_between(connection, options, log):
            return
        query(connection, "ROLLBACK")
        time.sleep(_WAIT_S * min(50, attempt))
    name = f"{schema.name} has no primary key and"
    if of_mariadb:
        raise BacklogError(
            f"{name} the server began a new binary log file during each of {_ATTEMPTS} attempts to begin a read of it.",
            "Raise max_binlog_size on the server, or add a primary key to the table.",
        )
    raise BacklogError(
        f"{name} was changed during each of {_ATTEMPTS} attempts to begin a read between two changes.",
        "Add a primary key to the table, or start the query when it is changed less.",
    )


def _begun_between(connection: Connection[Any], options: MySqlOptions, log: NetChanges) -> bool:
    executed = GtidWatermark(GtidSet(text(query(connection, "SELECT @@global.gtid_executed")[0][0])))
    begin_view(connection)
    log.advance(end_position(connection, options), executed)
    return log.is_emptied or log.settled(executed)


def _begun_at_position(connection: Connection[Any], log: NetChanges) -> bool:
    before = mariadb.visible_position(connection)
    begin_view(connection)
    at = mariadb.view_position(connection)
    if at.file != before.position.file or at.pos < before.position.pos:
        return False
    seen = PositionWatermark(at, before.gtids)
    log.advance(at, seen)
    return log.is_emptied or log.settled(seen)
