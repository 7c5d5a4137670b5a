"""Where the staged log ends, and whether the server has what follows it."""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from ..binlog.positions import BinlogPosition
from ..offsets import Offset
from ..options import MySqlOptions
from ..server import purged
from ..server.log_gone import LogGone
from ..server.purged import present
from .segments import Segments, staged_in

__all__ = ["Patience", "check_log"]

# A server may purge a file as soon as it has sent all of it. Its segment appears when it has been written.
_WRITING_S, _LOOK_S = 15.0, 0.2


class Patience:
    """Waits for a segment that is being written."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._limit = time.monotonic() + _WRITING_S

    def present(self, connection: Connection[Any], end: BinlogPosition) -> BinlogPosition | None:
        """Where the server's log goes on after the staged log. None if it is time to look for another segment.

        Raises
        ------
        LogGone
            The server has purged what follows, and no segment has it.
        """
        try:
            return present(connection, end)
        except LogGone as gone:
            if time.monotonic() > self._limit:
                raise LogGone(
                    f"{gone.problem} The staged log {self._segments.name} ends at {end}.", gone.hint
                ) from None
        time.sleep(_LOOK_S)
        return None


def check_log(connection: Connection[Any], options: MySqlOptions, start: Offset) -> BinlogPosition | None:
    """As `purged.check_log`, but the log may also be staged.

    Returns
    -------
    BinlogPosition or None
        Where the staged log ends, with its GTIDs, if the server no longer has what is before.
    """
    try:
        purged.check_log(connection, start)
    except LogGone:
        begin, segments = purged.needed_from(start), staged_in(options, start.server)
        place = None if segments is None or begin is None else segments.place(begin)
        if segments is None or place is None:
            raise
        patience = Patience(segments)
        while patience.present(connection, end := segments.end(place)) is None:
            pass
        return end
    return None
