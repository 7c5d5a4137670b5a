"""Decides after which errors of a server or a network to try again, and how often.

All connections of the source use it: those of the planner and the tasks, and dumps of the binary log.

Sources: MySQL 8.0 Error Message Reference; MariaDB Knowledge Base, "MariaDB Error Codes".
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import pymysql

from backlog_spark.errors import BacklogError

__all__ = ["CANNOT_CONNECT", "ConnectionLost", "Retries", "ServerMoved", "is_transient", "retrying"]

_T = TypeVar("_T")

CANNOT_CONNECT = {2002, 2003, 2005}
"""The client found no server at the address."""
_LOST = {2006, 2013, 2014, 2055, 4031, 1927, 1317, 3169, *range(1158, 1162), 1152, 1184}  # broken, killed or idle
_BUSY = {1040, 1041, 1135, 1203, 1226}  # too many connections, no memory or no thread for another
_ENDING = {1053, 1077, 1079, 3032}  # the server shuts down, or is in offline mode
_READ_ONLY = {1836}  # a failover is under way
_LOCKED = {1205, 1213}  # lock wait timeout, deadlock
_PREPARE_AGAIN = {1615}
_TRANSIENT = CANNOT_CONNECT | _LOST | _BUSY | _ENDING | _READ_ONLY | _LOCKED | _PREPARE_AGAIN
_OPTION_PREVENTS = 1290  # transient only for the options below
_READ_ONLY_OPTIONS = ("read-only", "read_only")
_NETWORK = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENETRESET}

_LONGEST_WAIT_S = 30.0


class ConnectionLost(BacklogError):
    """A server cannot be reached, or a connection was lost. Another attempt may succeed."""


class ServerMoved(BacklogError):
    """A new connection led to another server than before. Positions of the old one have no meaning there."""


class _Patience(Protocol):
    """The options of `MySqlOptions` that this module needs."""

    @property
    def max_retries(self) -> int: ...
    @property
    def backoff_ms(self) -> int: ...


def is_transient(error: BaseException) -> bool:
    """Whether the same attempt may succeed a little later, perhaps on a new connection."""
    cause = getattr(error, "original_exception", error)  # PyMySQL keeps a network's error there
    if isinstance(cause, ssl.SSLCertVerificationError):
        return False
    if isinstance(error, ConnectionLost | pymysql.err.InterfaceError):  # the latter: the connection is closed
        return True
    if isinstance(error, pymysql.err.MySQLError):
        code = error.args[0] if error.args else 0
        if code == _OPTION_PREVENTS:
            return any(name in str(error.args[1:]).lower() for name in _READ_ONLY_OPTIONS)
        return code in _TRANSIENT
    if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError | socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in _NETWORK


class Retries:
    """Counts consecutive failed attempts, and waits before the next one.

    Parameters
    ----------
    options : MySqlOptions
        ``connect.max-retries`` and ``connect.backoff``. The wait doubles with each failure, up to 30 s.
    wait : callable
        Called with seconds.
    """

    def __init__(self, options: _Patience, wait: Callable[[float], None] = time.sleep) -> None:
        self._most = options.max_retries
        self._first_s = options.backoff_ms / 1000
        self._wait = wait
        self.failed = 0

    def again(self) -> bool:
        """Note a failure. If another attempt is allowed, waits and returns True. Otherwise returns False."""
        self.failed += 1
        if self.failed > self._most:
            return False
        self._wait(min(_LONGEST_WAIT_S, self._first_s * 2.0 ** min(self.failed - 1, 30)))
        return True

    def succeeded(self) -> None:
        """Start counting again."""
        self.failed = 0


def retrying(
    options: _Patience,
    action: Callable[[], _T],
    passes: Callable[[Exception], bool] = is_transient,
    wait: Callable[[float], None] = time.sleep,
) -> _T:
    """The result of ``action``. It is called again after an error that may pass.

    Raises
    ------
    BacklogError
        There is no attempt left. This is not a `ConnectionLost`, so that callers do not retry again.
    """
    retries = Retries(options, wait)
    while True:
        try:
            return action()
        except (pymysql.err.MySQLError, ConnectionLost, OSError) as error:
            if not passes(error):
                raise
            if not retries.again():
                raise given_up(error) from None


def given_up(error: Any) -> Exception:
    """The error to raise when there is no attempt left."""
    return BacklogError(error.problem, error.hint) if isinstance(error, ConnectionLost) else error
