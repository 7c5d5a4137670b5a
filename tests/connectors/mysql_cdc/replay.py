"""Helpers: writers that change a table all the time, and a strict replay of the source's changes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from servers.mariadb import MARIADB_SERVERS, MariaDBServer
from servers.mysql import MySQLServer

KEYS = 400

# `make test` runs what reads rows on MySQL and on the newest MariaDB; `make faults` all on all three.
_MYSQL = pytest.param(MySQLServer, id="mysql-8.0")
_NEWEST, *_OLDER = MARIADB_SERVERS
_OLDER_ONES = [pytest.param(kind, id=f"mariadb-{kind.version}", marks=pytest.mark.grid) for kind in _OLDER]
SERVERS = [_MYSQL, pytest.param(_NEWEST, id=f"mariadb-{_NEWEST.version}"), *_OLDER_ONES]
"""The servers that the source reads, for fixtures to be parametrised with."""
SERVERS_IN_GRID = [
    _MYSQL,
    pytest.param(_NEWEST, id=f"mariadb-{_NEWEST.version}", marks=pytest.mark.grid),
    *_OLDER_ONES,
]
"""The same, MariaDB's for `make faults` only."""


EVERY_MARIADB = [pytest.param(kind, id=f"mariadb-{kind.version}") for kind in MARIADB_SERVERS]
"""Those of MariaDB, for what both must show in every run."""


def is_mariadb(server: MySQLServer) -> bool:
    return isinstance(server, MariaDBServer)


def is_mysql_8(server: MySQLServer) -> bool:
    """Whether it is the embedded MySQL, or one that behaves like it; not a newer one (``BACKLOG_SPARK_MYSQLD``)."""
    return not is_mariadb(server) and str(server.execute("SELECT VERSION()")[0][0]).startswith("8.0.")


def options(server: MySQLServer, table: str, **more: object) -> dict[str, str]:
    """Options of the source for a table of the embedded server."""
    base = {"host": "127.0.0.1", "port": server.port, "user": "root", "table": table, **more}
    return {k: str(v) for k, v in base.items()}


def reader(given: dict[str, str]) -> MySqlCdcStreamReader:
    """The reader as Spark would make it. Unless asked, it reads no table again after an ALTER TABLE."""
    parsed = MySqlOptions.parse({"rewritingAlter": "ignore", **given})
    return MySqlCdcStreamReader(parsed, check(given))


def read(stream: MySqlCdcStreamReader, partition: Any) -> list[tuple[Any, ...]]:
    """All rows of a partition."""
    rows: list[tuple[Any, ...]] = []
    for batch in stream.read(partition):
        rows += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return rows


def take(stream: MySqlCdcStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The next batch: its end offset and its rows."""
    end = stream.latestOffset(start, ReadMaxRows(10**6))
    return end, [row for p in stream.partitions(start, end) for row in read(stream, p)] if end is not start else []


class Writers:
    """Threads that change ``table`` (id, n, v) by every kind of statement, with rollbacks, until stopped.

    ``pause`` is what each waits before it commits, in seconds. 20 ms leave the processor to a query beside them.
    """

    def __init__(
        self, server: MySQLServer, table: str, seed: int, threads: int = 4, keys: int = KEYS, pause: float = 0.004
    ) -> None:
        self._server, self._table = server, table
        self._keys = keys
        self._pause = pause
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed * 100 + i,)) for i in range(threads)]
        self.commits = 0

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        connection = self._server.connect(autocommit=False)
        self._begin(connection)
        cursor = connection.cursor()
        while not self._stop.is_set():
            try:
                for _ in range(chance.randint(1, 6)):
                    self._statement(cursor, chance)
                time.sleep(self._pause)
                if chance.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()
                    self.commits += 1
            except (pymysql.err.OperationalError, pymysql.err.IntegrityError):  # deadlocks, duplicate keys
                connection.rollback()
        connection.close()

    def _begin(self, connection: Any) -> None:
        """Set a new connection up."""

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        table, key, what = self._table, chance.randrange(self._keys), chance.random()
        if what < 0.25:
            cursor.execute(
                f"INSERT INTO {table} VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE n = n + 1",
                (key, chance.randrange(10**6), f"i{chance.randrange(10**6)}"),
            )
        elif what < 0.5:
            cursor.execute(
                f"UPDATE {table} SET n = %s, v = %s WHERE id BETWEEN %s AND %s",
                (chance.randrange(10**6), f"u{chance.randrange(10**6)}", key, key + chance.randrange(4)),
            )
        elif what < 0.7:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
        elif what < 0.8:
            cursor.execute(f"REPLACE INTO {table} VALUES (%s, %s, 'r')", (key, chance.randrange(10**6)))
        elif what < 0.95:
            cursor.execute(f"UPDATE IGNORE {table} SET id = %s WHERE id = %s", (chance.randrange(self._keys), key))
        else:
            cursor.execute("SAVEPOINT a")
            cursor.execute(f"DELETE FROM {table} WHERE id >= %s AND id < %s", (key, key + 5))
            if chance.random() < 0.7:
                cursor.execute("ROLLBACK TO SAVEPOINT a")


def apply(state: dict[int, tuple[Any, ...]], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    """Apply change rows in order; yields whatever does not fit the state, which must be nothing."""
    for row in rows:
        values, kind = row[:-3], row[-3]
        key = values[0]
        if kind == "insert":
            if key in state:
                yield f"insert of {values}, but {state[key]} is there"
            state[key] = values
        elif kind in ("delete", "update_preimage"):
            if state.get(key) != values:
                yield f"{kind} of {values}, but {state.get(key)} is there"
            if kind == "delete":
                state.pop(key, None)
        else:
            assert kind == "update_postimage"
            state[key] = values


def table_rows(server: MySQLServer, table: str) -> dict[int, tuple[Any, ...]]:
    """The table as it is now."""
    return {row[0]: row for row in server.execute(f"SELECT * FROM {table}")}


_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")


def clean(server: MySQLServer) -> None:
    """Remove what a module's tests have made, for the next module's."""
    for (name,) in server.execute("SHOW DATABASES"):
        if name not in _SYSTEM:
            server.execute("DROP DATABASE `{}`".format(name.replace("`", "``")))
    for user, host in server.execute("SELECT User, Host FROM mysql.user"):
        if user != "root" and not user.startswith(("mysql.", "mariadb.")):
            server.execute(f"DROP USER '{user}'@'{host}'")
    forget_log(server)


def forget_log(server: MySQLServer) -> None:
    """Begin a new file of the binary log and purge those before it, with what other tests left in them."""
    server.execute("FLUSH BINARY LOGS")
    limit = time.monotonic() + 30
    while len(server.execute("SHOW BINARY LOGS")) > 1:
        # MariaDB keeps a file until the storage engine is done with it, which it says a moment later.
        server.execute(f"PURGE BINARY LOGS TO '{server.binlog_end()[0]}'")
        assert time.monotonic() < limit
        time.sleep(0.1)
