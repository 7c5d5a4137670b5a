"""Whether a server's log is still the one that a checkpoint was read from.

After RESET, or when a server was restored in place, its log begins anew or turns off somewhere: the same files and
bytes then stand for other transactions. The GTIDs that a checkpoint has tell them apart. A MariaDB is asked for those
at the place itself (`mariadb.check_position`).

Source: MySQL Reference Manual, "Replication with Global Transaction Identifiers".
"""

from __future__ import annotations

import time
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..binlog.dump import explained
from ..binlog.reading import first_position
from ..offsets import FAR, BinlogPosition, Offset
from ..options import MySqlOptions
from .connection import is_mariadb, query
from .failover import known_gtids
from .gtid import GtidSet, MariaDbGtids
from .mysql import check_log, has_gtids

__all__ = ["check_history"]

# A transaction is in the log before it counts as executed: for as long as its commit takes.
_EXECUTED_S, _LOOK_S = 10.0, 0.1
_ATTEMPTS = 3


def check_history(connection: Connection[Any], options: MySqlOptions, start: Offset) -> None:
    """Refuse a log that has not, or no longer, all that a query reads which goes on at ``start``, or is another one.

    Raises
    ------
    BacklogError
        Naming what is missing or other.
    """
    check_log(connection, start)
    if is_mariadb(connection):
        if start.position is not None and start.position.pos >= FAR:
            # The server does not tell of such a place.
            _check_position(options, start.position, MariaDbGtids(start.gtid), start.gtid)
        return
    known = known_gtids(start)
    if known is None or not has_gtids(connection):
        return
    _check_executed(connection, known)
    if start.position is not None and start.gtid_until is None:
        # What was purged is not in the log, and a dump that leaves less out is refused.
        read = GtidSet(start.gtid)
        read.update(GtidSet(str(query(connection, "SELECT @@global.gtid_purged")[0][0])))
        _check_position(options, start.position, str(read), start.gtid)


def _check_executed(connection: Connection[Any], known: GtidSet) -> None:
    limit = time.monotonic() + _EXECUTED_S
    while True:
        executed = GtidSet(str(query(connection, "SELECT @@global.gtid_executed")[0][0]))
        if executed.issuperset(known):
            return
        if time.monotonic() > limit:
            break
        time.sleep(_LOOK_S)
    raise BacklogError(
        f"The server's binary log was reset or is another one: it has executed {str(executed) or 'nothing'}, and the "
        f"checkpoint includes {known}.",
        "With semi-synchronous replication it may be waiting for a replica: start the replicas, and the query again. "
        "Else start with a new checkpoint and a new target.",
    )


def _same_32_bits(wanted: BinlogPosition | None, found: BinlogPosition | None) -> bool:
    """Whether places may be the same: a MariaDB's dump by GTID tells 32 bits of them."""
    return bool(wanted and found and wanted.file == found.file and wanted.pos % FAR == found.pos % FAR)


def _check_position(options: MySqlOptions, position: BinlogPosition, read: str | MariaDbGtids, gtids: str) -> None:
    """The transaction after the place has to be the first one that is not among those that were read."""
    try:
        for _ in range(_ATTEMPTS):
            wanted, found = first_position(options, read), first_position(options, position)
            if wanted == found or (isinstance(read, MariaDbGtids) and _same_32_bits(wanted, found)):
                return
            if wanted is not None:  # else there may be one only since
                break
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1236:
            raise
        raise explained(error, position) from None
    raise BacklogError(
        f"The server's binary log was reset or is another one: the first transaction after {position} is at "
        f"{found or 'no position'}, but the first one that the checkpoint does not include is at "
        f"{wanted or 'no position'}. The checkpoint includes {gtids}.",
        "Start with a new checkpoint and a new target.",
    )
