"""Checks that a server's log is still the one that a checkpoint was read from.

After RESET, or after a server was restored from a backup, its log begins again or diverges. Then the same files and
offsets hold other transactions. The GTIDs in the checkpoint show the difference. MariaDB gives the GTIDs at a position
(`mariadb.check_position`).

Source: MySQL Reference Manual, "Replication with Global Transaction Identifiers".
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from ..binlog.dump import explained
from ..binlog.positions import FAR, BinlogPosition
from ..binlog.reading import first_position
from ..offsets import Offset
from ..options import MySqlOptions
from ..staging.staged_end import check_log
from .connection import is_mariadb, query
from .failover import known_gtids
from .gtid import GtidSet, MariaDbGtids
from .log_gone import LogGone
from .mysql import has_gtids
from .purged import present

__all__ = ["check_history"]

# A transaction is in the log before it counts as executed, for as long as its commit takes.
_EXECUTED_S, _LOOK_S = 10.0, 0.1
_ATTEMPTS = 3


def check_history(connection: Connection[Any], options: MySqlOptions, start: Offset) -> None:
    """Refuse a log that is another one, or that lacks changes that a query continuing at ``start`` would read.

    Raises
    ------
    LogGone
        Says what is missing or different.
    """
    reached = check_log(connection, options, start)
    if reached is None and start.position is not None:
        reached = replace(start.position, gtids=start.gtid)
    position = None if reached is None else present(connection, reached)
    if is_mariadb(connection):
        if position is not None and position.pos >= FAR:
            # The server gives no GTIDs for a position beyond 4 GiB.
            _check_position(options, position, MariaDbGtids(position.gtids), position.gtids)
        return
    known = known_gtids(start)
    if known is None or not has_gtids(connection):
        return
    _check_executed(connection, known)
    if position is not None and start.gtid_until is None:
        # Purged transactions are not in the log. A dump that does not skip them is refused.
        read = GtidSet(position.gtids)
        read.update(GtidSet(str(query(connection, "SELECT @@global.gtid_purged")[0][0])))
        _check_position(options, position, str(read), position.gtids)


def _check_executed(connection: Connection[Any], known: GtidSet) -> None:
    limit = time.monotonic() + _EXECUTED_S
    while True:
        executed = GtidSet(str(query(connection, "SELECT @@global.gtid_executed")[0][0]))
        if executed.issuperset(known):
            return
        if time.monotonic() > limit:
            break
        time.sleep(_LOOK_S)
    raise LogGone(
        f"The server's binary log was reset or is another one: it has executed {str(executed) or 'nothing'}, and the "
        f"checkpoint includes {known}.",
        "With semi-synchronous replication the server may be waiting for a replica: start the replicas, then the query "
        "again. Otherwise start with a new checkpoint and a new target.",
    )


def _same_32_bits(wanted: BinlogPosition | None, found: BinlogPosition | None) -> bool:
    """Whether positions may be the same: MariaDB's dump by GTID gives only 32 bits of them."""
    return bool(wanted and found and wanted.file == found.file and wanted.pos % FAR == found.pos % FAR)


def _check_position(options: MySqlOptions, position: BinlogPosition, read: str | MariaDbGtids, gtids: str) -> None:
    """Check that the transaction after ``position`` is the first one that was not read yet."""
    try:
        for _ in range(_ATTEMPTS):
            wanted, found = first_position(options, read), first_position(options, position)
            if wanted == found or (isinstance(read, MariaDbGtids) and _same_32_bits(wanted, found)):
                return
            if wanted is not None:  # otherwise a transaction may have arrived between the two looks
                break
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1236:
            raise
        raise explained(error, position) from None
    raise LogGone(
        f"The server's binary log was reset or is another one: the first transaction after {position} is at "
        f"{found or 'no position'}, but the first one that the checkpoint does not include is at "
        f"{wanted or 'no position'}. The checkpoint includes {gtids}.",
        "Start with a new checkpoint and a new target.",
    )
