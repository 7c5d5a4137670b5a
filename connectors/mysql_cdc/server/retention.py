"""Compares how long the server keeps its binary log with how long a snapshot takes."""

from __future__ import annotations

import logging
from typing import Any

from pymysql.connections import Connection

from backlog_spark.common.durations import format_duration

from ..offsets import Offset
from ..options import MySqlOptions
from ..staging.staged_end import check_log
from .connection import query

__all__ = ["Retention", "kept_ms"]

_log = logging.getLogger(__name__)

_LOOK_MS = 60_000
_WARN_FROM = 0.5  # of the time that the log is kept


def kept_ms(connection: Connection[Any]) -> int | None:
    """Milliseconds after which the server purges its binary log by itself; None for never."""
    names = ("binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge")
    rows = query(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN (%s, %s, %s)", names)
    found = {str(name).lower(): str(value) for name, value in rows}
    if found.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return None
    seconds = float(found.get("binlog_expire_logs_seconds", 0)) or float(found.get("expire_logs_days", 0)) * 86_400
    return int(seconds * 1000) or None


class Retention:
    """Checks once a minute that the server still has, and will keep, the log that a snapshot needs.

    Otherwise a snapshot of many hours could end with an error: the changes since its beginning are gone. If they are
    staged, the server need not keep them.

    Parameters
    ----------
    options : MySqlOptions
    """

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        self._looked_ms: float | None = None
        self._warned = False

    def look(self, connection: Connection[Any], offset: Offset, now_ms: float) -> None:
        """Check the log before a batch of the snapshot. Warns once if the log is not kept long enough.

        Raises
        ------
        BacklogError
            The log after the snapshot's first watermark has been purged.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        kept = kept_ms(connection)
        if offset.ranges:
            check_log(connection, self._options, offset)
        if kept is None or self._warned or self._options.stages:
            return
        began = offset.ranges[0].at_ms if offset.ranges else now_ms
        expected = self._expected_ms(offset, began, now_ms)
        if max(expected, now_ms - began) > _WARN_FROM * kept:
            self._warned = True
            _log.warning(
                "The snapshot has run for %s%s, and the server keeps its binary log for %s. If the server purges what "
                "was logged since the snapshot began, the snapshot is lost: set binlog_expire_logs_seconds on the "
                "server to more than twice the snapshot's duration, or to 0.",
                format_duration(_seconds(now_ms - began)),
                f" of about {format_duration(_seconds(expected))}" if expected else "",
                format_duration(kept),
            )

    def _expected_ms(self, offset: Offset, began: float, now_ms: float) -> float:
        """Estimated duration of the whole snapshot, from its progress; 0 while it is unknown."""
        share = offset.rows / offset.total if offset.total else 0
        return (now_ms - began) / share if share > 0 else 0


def _seconds(ms: float) -> int:
    return int(ms // 1000) * 1000
