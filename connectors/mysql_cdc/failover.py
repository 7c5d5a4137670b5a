"""Going on at another server of the same replication: what an offset is there.

MySQL's GTIDs name a transaction on every server, while byte positions and the order of transactions that do not touch
one another are each server's own. So reading goes on by the set of what has been read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from .connection import is_mariadb, log_files, query
from .gtid import GtidSet
from .offsets import Offset, file_number
from .options import MySqlOptions
from .server import end_position, has_gtids
from .watermark import GtidWatermark, watermark

__all__ = ["moved"]


def moved(connection: Connection[Any], options: MySqlOptions, start: Offset, server: str) -> Offset:
    """An offset of another server as one of the server that is connected to.

    Parameters
    ----------
    server : str
        Its identity.

    Raises
    ------
    BacklogError
        It has not, or not yet, all that the offset includes; or there are no GTIDs by which to tell.
    """
    known = _known(start)
    if known is None or is_mariadb(connection) or not has_gtids(connection):
        raise BacklogError(
            f"The checkpoint is about the server {start.server}, but {options.host}:{options.port} "
            f"is {server}: its binary log has other positions.",
            "Connect to the first server, or start with a new checkpoint.",
        )
    # Read before the log's end, which is then at or behind all of it.
    executed = GtidSet(str(query(connection, "SELECT @@global.gtid_executed")[0][0]))
    end = end_position(connection, options)
    if not executed.issuperset(known):
        raise BacklogError(
            f"The checkpoint is about the server {start.server}, and the server {server} at {options.host}:"
            f"{options.port} lacks transactions that it includes: it has {executed}, the checkpoint {known}.",
            "If it replicates from the first server, start the query again when it has caught up; else start with a "
            "new checkpoint.",
        )
    if not start.complete:
        return replace(start, server=server)
    shift = start.shift
    if start.position is not None:
        least = file_number(log_files(connection)[0][0])
        shift = max(shift, shift + start.position.file_number + 1 - least)
    return replace(
        start,
        server=server,
        start=start.gtid if start.position else start.start,
        position=None,
        gtid_until=end,
        filter_until=end if start.filter_until else None,
        shift=shift,
    )


def _known(start: Offset) -> GtidSet | None:
    """All transactions that an offset includes; None where they are not known as a set."""
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
