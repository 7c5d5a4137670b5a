"""Translates an offset to another server of the same replication, so that a query can continue there.

MySQL's GTIDs name a transaction on every server. Log positions, and the order of independent transactions, differ from
server to server. So reading continues by the GTID set of what has been read. MariaDB keeps the order within a
replication domain on every server. So a position in one log mostly has a counterpart in the other: the position after
the same last transaction of each domain.

Sources: MySQL Reference Manual, "Replication with GTIDs"; MariaDB Knowledge Base, "Global Transaction ID",
``slave_connect_state`` and ``BINLOG_GTID_POS``.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..binlog.positions import BinlogPosition
from ..binlog.reading import first_position
from ..offsets import Offset
from ..options import MySqlOptions
from .connection import is_mariadb, query
from .gtid import GtidSet, MariaDbGtids
from .log_gone import LogGone
from .mariadb import gtids_at_position, visible_position
from .mysql import end_position, has_gtids
from .unlogged import is_replica
from .watermark import GtidWatermark, PositionWatermark, watermark

__all__ = ["PositionsByGtid", "known_gtids", "moved"]

_VISIBLE_ATTEMPTS, _VISIBLE_WAIT_S = 100, 0.1

PositionsByGtid = dict[tuple[str, str], BinlogPosition]
"""MariaDB: positions that were found, by server and GTIDs."""


def moved(
    connection: Connection[Any],
    options: MySqlOptions,
    start: Offset,
    server: str,
    positions: PositionsByGtid | None = None,
) -> Offset:
    """Translate an offset of another server to the server that the connection reaches.

    Parameters
    ----------
    server : str
        Identity of the connected server.
    positions : dict, optional
        MariaDB positions that are known; new ones are added.

    Raises
    ------
    LogGone
        The server cannot give what follows the offset.
    BacklogError
        The server does not (yet) have all transactions that the offset includes; or there are no GTIDs to compare; or
        MariaDB's log has the transactions of several domains in another order.
    """
    if start.server.startswith("mariadb-") and is_mariadb(connection) and not start.is_undecided:
        return _moved_in_mariadb(
            connection, replace(options, server=server), start, {} if positions is None else positions
        )
    known = known_gtids(start)
    if known is None or is_mariadb(connection) or not has_gtids(connection):
        raise LogGone(
            f"The checkpoint is about the server {start.server}, but {options.host}:{options.port} "
            f"is {server}: its binary log has other positions.",
            "Connect to the first server, or start with a new checkpoint.",
        )
    # Read before the log's end, so that the end is at or after all of these transactions.
    executed = GtidSet(str(query(connection, "SELECT @@global.gtid_executed")[0][0]))
    end = end_position(connection, options)
    if not executed.issuperset(known):
        raise _lacking(connection)(
            f"The checkpoint is about the server {start.server}, and the server {server} at {options.host}:"
            f"{options.port} lacks transactions that it includes: it has {executed}, the checkpoint {known}.",
            "If it replicates from the first server, start the query again when it has caught up. Otherwise start with "
            "a new checkpoint.",
        )
    if not start.complete:
        return replace(start, server=server)
    return replace(
        start,
        server=server,
        start=start.gtid if start.position else start.start,
        position=None,
        gtid_until=end,
        filter_until=end if start.filter_until else None,
        shift=_shift(start),
    )


def _shift(start: Offset) -> int:
    """A shift beyond all file numbers so far. It depends only on the offset, so a repeated batch has the same one."""
    return start.shift + (0 if start.position is None else start.position.file_number + 1)


def _moved_in_mariadb(
    connection: Connection[Any], options: MySqlOptions, start: Offset, positions: PositionsByGtid
) -> Offset:
    def position_of(gtids: str) -> BinlogPosition:
        if (options.server, gtids) not in positions:
            positions[options.server, gtids] = _position_after(connection, options, start, MariaDbGtids(gtids))
        return positions[options.server, gtids]

    def here(low: str) -> str:
        mark = watermark(low)
        assert isinstance(mark, PositionWatermark), "MariaDB's are positions"
        return str(PositionWatermark(position_of(str(mark.gtids)), mark.gtids))

    position = None if start.position is None else position_of(start.gtid)
    found = replace(
        start,
        server=options.server,
        position=position,
        start=here(start.start) if start.start else "",
        ranges=tuple(replace(each, low=here(each.low)) for each in start.ranges),
        shift=_shift(start),
    )
    # The log's end lies after all watermarks, which are now positions in this log.
    return replace(found, filter_until=end_position(connection, options)) if start.filter_until else found


def _position_after(
    connection: Connection[Any], options: MySqlOptions, start: Offset, gtids: MariaDbGtids
) -> BinlogPosition:
    """The log position at which these are the last transactions of all domains."""
    end = end_position(connection, options)
    try:
        # In a file of 4 GiB or more the position may be wrong. Then the check below finds other transactions there.
        found = first_position(options, gtids) or end
    except pymysql.err.OperationalError as error:
        if error.args[0] != 1236:
            raise
        kind = LogGone if "purged" in str(error.args[1]).lower() else _lacking(connection)
        raise kind(
            f"The checkpoint is about the server {start.server}, and the server {options.server} at {options.host}:"
            f"{options.port} lacks transactions that it includes, or has purged them: {error.args[1]} (1236).",
            "If it replicates from the first server, with log_slave_updates=ON, start the query again when it has "
            "caught up. Otherwise start with a new checkpoint.",
        ) from None
    told = gtids_at_position(connection, found)
    if told != gtids:
        raise LogGone(
            f"The checkpoint is about the server {start.server}, after transactions {gtids}, and the binary log of "
            f"the server {options.server} at {options.host}:{options.port} has no such position: "
            f"{found.file}:{found.pos} is after {str(told or '') or 'none'}.",
            "It has transactions of its own, or those of several replication domains in another order: connect to the "
            "first server, or start with a new checkpoint.",
        )
    # A transaction is in the log before a SELECT sees it. Rows that are read now must include everything up to here.
    for _ in range(_VISIBLE_ATTEMPTS):
        if visible_position(connection).position.sort_key() >= found.sort_key():
            return found
        time.sleep(_VISIBLE_WAIT_S)
    raise BacklogError(
        f"The server {options.server} at {options.host}:{options.port} does not show the transactions before "
        f"{found.file}:{found.pos} that are in its binary log.",
        "Start the query again when it has caught up.",
    )


def _lacking(connection: Connection[Any]) -> type[BacklogError]:
    """The error for a server that lacks transactions. A replica may still get them."""
    return BacklogError if is_replica(connection) else LogGone


def known_gtids(start: Offset) -> GtidSet | None:
    """All transactions that an offset includes; None if they are not known as a set."""
    if start.is_undecided or start.server.startswith("mariadb-"):
        return None
    found = GtidSet(start.gtid) if start.position else GtidSet()
    if start.position and not start.gtid:
        return None
    for text in {start.start, *(r.low for r in start.ranges)} - {""}:
        low = watermark(text)
        if not isinstance(low, GtidWatermark):
            return None
        found.update(low.gtids)
    return found
