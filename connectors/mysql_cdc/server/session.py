"""The connection on which a query's batches are planned, and the server that it reaches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError

from ..offsets import Offset
from ..options import MySqlOptions
from .continuity import check_history
from .failover import PositionsByGtid, moved
from .mysql import open_connection, server_identity
from .retries import Retries, ServerMoved, is_transient

__all__ = ["Session"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Session:
    """Opens the connection when it is needed, and again when it is lost. Another server may answer then.

    Attributes
    ----------
    server : str
        Identity of the server that the connection reaches; "" until `here` was called on it.
    """

    def __init__(self, options: MySqlOptions) -> None:
        self._options = options
        self._connection: Connection[Any] | None = None
        self.server = self._moved_from = ""
        self._checked_history = False
        self._positions: PositionsByGtid = {}

    def run(self, action: Callable[[Connection[Any]], _T]) -> _T:
        """Run on the connection. After an error that may pass, run again on another one.

        Another connection of ``action`` may have led to another server. Then this one is opened again too.
        """
        retries = Retries(self._options)
        while True:
            try:
                if self._connection is None:
                    self._connection = open_connection(self._options)
                return action(self._connection)
            except (pymysql.err.MySQLError, BacklogError, OSError) as error:
                if not (is_transient(error) or isinstance(error, ServerMoved)):
                    raise
                self.close()
                if not retries.again():
                    raise

    def here(self, connection: Connection[Any], offset: Offset) -> Offset:
        """The offset, translated to the server that the connection reaches.

        Raises
        ------
        BacklogError
            The server is another one, and the query cannot continue there.
        """
        self.server = self.server or server_identity(connection)
        if offset.server == self.server:
            return offset
        found = moved(connection, self._options, offset, self.server, self._positions)
        if self._moved_from != offset.server:
            self._moved_from = offset.server
            _log.warning("The query continues on server %s; its checkpoint is of %s.", self.server, offset.server)
        return found

    def check_history(self, connection: Connection[Any], start: Offset) -> None:
        """Refuse a log that is not the checkpoint's. Checks once for each connection."""
        if not self._checked_history and not start.is_finished:
            check_history(connection, self.same_server, start)
        self._checked_history = True

    @property
    def same_server(self) -> MySqlOptions:
        """The options for further connections, which must reach the same server."""
        return replace(self._options, server=self.server)

    def close(self) -> None:
        """Close the connection. The address may belong to another server when it is opened again."""
        if self._connection is not None:
            self._connection._force_close()
            self._connection = None
            self._checked_history, self.server = False, ""
