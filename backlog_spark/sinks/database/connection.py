"""The driver's connections to a database: reconnects, transactions, and errors that say what to do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from backlog_spark.common.requirements import required
from backlog_spark.errors import BacklogError, RejectedRowError
from backlog_spark.sinks.database.address import Account, Address
from backlog_spark.sinks.database.dialect import Dialect, Run
from backlog_spark.sinks.database.mysql import MySqlDialect
from backlog_spark.sinks.database.postgres import PostgresDialect

__all__ = ["Again", "Database", "Session"]

_T = TypeVar("_T")

# Longest time for an answer, in seconds. A statement for a small batch takes milliseconds, but may wait for a lock.
# The merge of a staged batch may take long.
_LIVE_S: Final = 300
_LONG_S: Final = 6 * 3600
# A server that restarts is back within these pauses, in seconds. Afterwards the query restarts by its own policy.
_PAUSES: Final = (0.2, 0.5, 1.0, 2.0)
_REJECTED: Final = "Change the table's constraint, or leave such rows out of the stream with .filter(…)."


class Again(BacklogError):
    """The connection was lost, or another transaction was in the way. What had not committed is undone."""


class Session(NamedTuple):
    """A transaction's connection, and what runs its statements."""

    connection: Any
    run: Run


class Database:
    """One database and its user.

    Parameters
    ----------
    address : Address
    account : Account
    """

    def __init__(self, address: Address, account: Account) -> None:
        self.address = address
        self.account = account
        self.dialect: Dialect = PostgresDialect() if address.scheme == "postgresql" else MySqlDialect()
        self._live: Any = None

    def close(self) -> None:
        """Close the connection that is kept for live batches."""
        connection, self._live = self._live, None
        if connection is not None:
            self._drop(connection)

    def copy(self) -> Database:
        """The same without a connection, for another query or process."""
        return Database(self.address, self.account)

    def __reduce__(self) -> tuple[object, ...]:
        return Database, (self.address, self.account)

    @contextlib.contextmanager
    def transaction(self, *, is_long: bool = False, at_once: bool = False) -> Iterator[Session]:
        """A transaction, which commits at the end of the block. After any error its connection is closed.

        Parameters
        ----------
        is_long : bool
            Whether its statements may take hours. It has a connection of its own.
        at_once : bool
            Whether a server that is not there is reported without another attempt.

        Raises
        ------
        Again
        BacklogError
            The server refuses the user or a statement.
        """
        connection = None if is_long else self._live
        self._live = self._live if is_long else None
        if connection is None:
            connection = self._connected(_LONG_S if is_long else _LIVE_S, at_once=at_once)
        try:
            with self._told():
                yield Session(connection, self.dialect.runner(connection))
                connection.commit()
        except BaseException:
            self._drop(connection)
            raise
        if is_long:
            self._drop(connection)
        else:
            self._live = connection

    def read(self, look: Callable[[Run], _T], *, at_once: bool = False) -> _T:
        """What a function reads. It is called again if the connection was lost."""
        try:
            with self.transaction(at_once=at_once) as session:
                return look(session.run)
        except Again:
            if at_once:
                raise
        with self.transaction() as session:
            return look(session.run)

    def _connected(self, read_s: int, *, at_once: bool) -> Any:
        pauses = iter(() if at_once else _PAUSES)
        while True:
            try:
                with self._told(), required(f"JdbcUpsert into {self.dialect.name}"):
                    return self.dialect.connect(self.address, self.account, read_s)
            except Again:
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the client library's errors into ours. The library's own may have values of rows, but no password."""
        dialect, where = self.dialect, self.address
        try:
            yield
        except BacklogError:
            raise
        except Exception as error:
            if not dialect.is_error(error):
                raise
            text = dialect.text(error)
            if dialect.is_denied(error):
                raise BacklogError(
                    f"{where} refuses user {self.account.user!r}: {text}.",
                    "Check user and password, and grant the rights that docs/databases.md lists.",
                ) from None
            if dialect.is_lost(error):
                raise Again(
                    f"{where} cannot be reached, or has ended the connection: {text}.",
                    "Check host and port, and that the server runs.",
                ) from None
            if dialect.is_transient(error):
                raise Again(f"{where}: another transaction is in the way: {text}.", "Let it end.") from None
            if dialect.is_rejection(error):
                raise RejectedRowError(f"{where} rejects a row: {text}.", _REJECTED) from None
            raise BacklogError(
                f"{where} refuses a statement: {text}.", "Change the table or the rows so that the values fit."
            ) from None

    def _drop(self, connection: Any) -> None:
        with contextlib.suppress(Exception):
            self.dialect.close(connection)
