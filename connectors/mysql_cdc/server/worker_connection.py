"""One connection for each worker process, kept from chunk to chunk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.connections import Connection

from ..options import MySqlOptions
from .connection import reopened
from .mysql import query

__all__ = ["worker_connection"]

# Seconds that the server waits for a worker to take rows. Rows go on to Spark as they come, so a slow consumer there
# stops the worker. By default the server gives up after one minute.
_WRITE_TIMEOUT_S = 3_600

# Opening a connection, including TLS, takes a quarter of the time of a chunk.
_idle: dict[MySqlOptions, Connection[Any]] = {}
_MOST_IDLE = 2  # the server of the log, and a replica for the snapshot


@contextlib.contextmanager
def worker_connection(options: MySqlOptions) -> Iterator[Connection[Any]]:
    """A connection without value decoders. It is kept for the worker's next chunk unless there is an error."""
    kept = _idle.pop(options, None)
    connection: Connection[Any] | None = None
    if kept is not None:
        with contextlib.suppress(pymysql.err.MySQLError, OSError):
            kept.ping(reconnect=False)
            connection = kept
        if connection is None:
            kept._force_close()
    if connection is None:
        connection = reopened(options, conv={})
        query(connection, f"SET SESSION net_write_timeout = {_WRITE_TIMEOUT_S}")
    try:
        yield connection
    except BaseException:
        connection._force_close()  # rows may still be on their way
        raise
    while len(_idle) >= _MOST_IDLE:
        _idle.pop(next(iter(_idle)))._force_close()
    _idle[options] = connection
