"""What takes all rows of a table, or gives its name to another one: TRUNCATE, DROP and CREATE, and RENAME."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from servers.mysql import MySQLServer

from .repeating import LATER, Repeating
from .tables import DATABASE, TABLES, Shape, columns_of, following
from .writers import is_lost, patiently


def run(server: MySQLServer, statement: str, is_done: Callable[[], bool] = lambda: False) -> None:
    """Run a statement until it has succeeded, on a server that may be killed.

    Parameters
    ----------
    is_done : callable
        Asked after a lost connection; by default the statement is run again.
    """
    while True:
        try:
            server.execute(statement)
            return
        except (OSError, pymysql.err.Error) as error:
            if not is_lost(error):
                if error.args[0] not in LATER:
                    raise
            elif patiently(lambda: server.execute("SELECT 1") and is_done()):  # not for ever: it may be gone
                return


def exists(server: MySQLServer, table: str) -> bool:
    found: tuple[Any, ...] = patiently(
        lambda: server.execute(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", (DATABASE, table)
        )
    )
    return bool(found)


def rename(server: MySQLServer, statement: str, moves: str) -> None:
    """Run a RENAME that gives the table ``moves`` another name."""
    run(server, statement, lambda: not exists(server, moves))


def swap_for_copy(server: MySQLServer, table: str, number: int, clauses: str) -> None:
    """Change a table as the tools do: an altered copy takes its name. Nobody may write meanwhile."""
    shadow, old = f"_{table}_new", f"_{table}_old"
    names = ", ".join(patiently(lambda: columns_of(server, table)))
    for statement in (
        f"DROP TABLE IF EXISTS {DATABASE}.{shadow}",
        f"CREATE TABLE IF NOT EXISTS {DATABASE}.{shadow} LIKE {DATABASE}.{table}",
        f"REPLACE INTO {DATABASE}.{shadow} ({names}) SELECT {names} FROM {DATABASE}.{table}",
        f"ALTER TABLE {DATABASE}.{shadow} {clauses}",
    ):
        before = _definition(server, shadow)
        run(server, statement, lambda before=before: _definition(server, shadow) != before)  # type: ignore[misc]
    rename(
        server,
        f"RENAME TABLE {DATABASE}.{table} /* {number} */ TO {DATABASE}.{old}, {DATABASE}.{shadow} TO "
        f"{DATABASE}.{table}",
        shadow,
    )
    run(server, f"DROP TABLE IF EXISTS {DATABASE}.{old}")


def _definition(server: MySQLServer, table: str) -> Any:
    if not exists(server, table):
        return None
    return patiently(lambda: server.execute(f"SHOW CREATE TABLE {DATABASE}.{table}"))[0][1]


_KINDS = ("truncate", "truncate", "drop", "swap", "swap_in_steps")


class Swaps(Repeating):
    """Empties one of the tables, or gives its name to a table with other rows.

    Parameters
    ----------
    server, shape, seed, pause
    is_calm : callable
        Whether every stream reads only the log, and is past a position. Then all of them tell of what comes next.
    most : int, optional
        How often it does something at most.
    """

    def __init__(
        self,
        server: MySQLServer,
        shape: Shape,
        seed: int,
        pause: float,
        is_calm: Callable[[BinlogPosition], bool],
        most: int | None = None,
    ) -> None:
        super().__init__(seed, pause)
        self._server, self._shape, self._is_calm, self._most = server, shape, is_calm, most

    def act(self) -> None:
        if self._most is not None and self.done.total() >= self._most:
            return
        kind, table = self.chance.choice(_KINDS), self.chance.choice(TABLES)
        with self._shape.lock:
            if not self.is_calm():
                return
            getattr(self, f"_{kind}")(table)
            self._shape.swapped = BinlogPosition(*patiently(self._server.binlog_end))
        self.done[kind] += 1

    def is_calm(self) -> bool:
        """Whether every stream has passed all that was done to the tables.

        Nothing tells the columns of a table that is altered and gone before a stream has read either.
        """
        return self._is_calm(max(self._shape.swapped, self._shape.altered, key=BinlogPosition.sort_key))

    def _truncate(self, table: str) -> None:
        run(self._server, f"TRUNCATE TABLE {DATABASE}.{table}")

    def _drop(self, table: str) -> None:
        other = TABLES[1 - TABLES.index(table)]
        run(self._server, f"DROP TABLE {DATABASE}.{table}", lambda: not exists(self._server, table))
        create = f"CREATE TABLE {DATABASE}.{table} LIKE {DATABASE}.{other}"
        run(self._server, create, lambda: exists(self._server, table))

    def _swap(self, table: str, *, in_steps: bool = False) -> None:
        server, new, away = self._server, following(table), f"{table}_away"
        keys = ", ".join(self._shape.key_columns)
        other = TABLES[1 - TABLES.index(table)]
        run(server, f"DROP TABLE IF EXISTS {DATABASE}.{new}")
        create = f"CREATE TABLE {DATABASE}.{new} LIKE {DATABASE}.{table}"
        run(server, create, lambda: exists(server, new))
        run(
            server,
            f"REPLACE INTO {DATABASE}.{new} ({keys}, n, v) SELECT {keys}, -n, 'other' FROM {DATABASE}.{other} "
            f"WHERE MOD(n, 3) > 0",
        )
        first, second = f"{DATABASE}.{table} TO {DATABASE}.{away}", f"{DATABASE}.{new} TO {DATABASE}.{table}"
        if in_steps:
            rename(server, f"RENAME TABLE {first}", table)
            rename(server, f"RENAME TABLE {second}", new)
        else:
            rename(server, f"RENAME TABLE {first}, {second}", new)
        run(server, f"DROP TABLE IF EXISTS {DATABASE}.{away}")

    def _swap_in_steps(self, table: str) -> None:
        self._swap(table, in_steps=True)
