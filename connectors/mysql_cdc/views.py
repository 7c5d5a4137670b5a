"""A read view whose transactions are known exactly, without locks.

`executed_gtids` taken before a view is a lower bound of what the view sees, and the binary log's end taken after it an
upper bound. Between the two lie the commits under way. If none of them is of the table, the view has of the table just
what the lower bound has. A table would have to be changed without pause for this not to happen within a few
attempts, each of which takes some milliseconds.
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from .gtid import GtidSet
from .options import MySqlOptions
from .rewind import NetChanges
from .server import end_position, query

__all__ = ["begin_exact_view", "begin_view"]

_ATTEMPTS = 500
_WAIT_S = 0.002  # for commits under way to end; grows with each attempt up to fifty times this


def begin_view(connection: Connection[Any]) -> None:
    """Begin a transaction that sees the tables as they are now; ended by COMMIT."""
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def begin_exact_view(connection: Connection[Any], options: MySqlOptions, log: NetChanges) -> None:
    """Begin a view of which ``log`` then holds every transaction since its low watermark, and no other.

    Raises
    ------
    BacklogError
        When the table is changed so densely that no view falls between two changes.
    """
    for attempt in range(_ATTEMPTS):
        text = query(connection, "SELECT @@global.gtid_executed")[0][0]
        executed = GtidSet(text.decode() if isinstance(text, bytes) else str(text))
        begin_view(connection)
        log.advance(end_position(connection, options))
        if log.settled(executed):
            return
        query(connection, "ROLLBACK")
        time.sleep(_WAIT_S * min(50, attempt))
    raise BacklogError(
        f"{options.database}.{options.table} has no primary key and was changed during each of {_ATTEMPTS} attempts to "
        "begin a read between two changes.",
        "Add a primary key to the table, or start the query when it is changed less.",
    )
