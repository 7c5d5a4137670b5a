"""Threads that change the tables by every kind of statement."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql

from servers.mysql import MySQLServer

from .tables import DATABASE, KEYS, TABLES, Shape, insert

_LOST = {2006, 2013, 2014, 2055, 1053, 1927, 0}
_T1, _T2 = (f"{DATABASE}.{t}" for t in TABLES)


class Writers:
    """Transactions of one to six statements, some of them rolled back, until stopped.

    Parameters
    ----------
    server, shape
        Where and on which columns.
    seed : int
    scratch : Path
        An empty directory, for LOAD DATA.
    threads : int
    pause : float
        Seconds before each COMMIT, with the transaction open.

    Attributes
    ----------
    limit : int or None
        They wait when there were so many transactions, until this is raised.
    """

    def __init__(
        self, server: MySQLServer, shape: Shape, seed: int, scratch: Path, threads: int = 3, pause: float = 0.002
    ) -> None:
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self.limit: int | None = None
        self._writers = [_Writer(server, shape, seed * 100 + i, scratch / f"{i}", pause) for i in range(threads)]
        self._threads = [threading.Thread(target=self._run, args=(w,), name="torture-writer") for w in self._writers]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the transactions under way.

        Raises
        ------
        BaseException
            What a writer failed with.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]

    @property
    def commits(self) -> int:
        return sum(writer.commits for writer in self._writers)

    @property
    def statements(self) -> Counter[str]:
        """How often each kind was run without an error."""
        return sum((writer.done for writer in self._writers), Counter[str]())

    def _run(self, writer: _Writer) -> None:
        try:
            writer.run(self._stop, lambda: self.limit is None or self.commits < self.limit)
        except BaseException as error:
            self._failed.append(error)


class _Writer:
    def __init__(self, server: MySQLServer, shape: Shape, seed: int, file: Path, pause: float) -> None:
        self._server, self._shape = server, shape
        self._gate = shape.gate()
        self._chance = random.Random(seed)
        self._file, self._pause = file, pause
        # Whatever is written can be told from all else that is.
        self._stamps = itertools.count(seed % 1000 * 10**9 + 10**6)
        self._cursor: Any = None
        self.commits = 0
        self.done: Counter[str] = Counter()

    def run(self, stop: threading.Event, may_go: Callable[[], bool]) -> None:
        while not stop.is_set():
            try:
                with self._server.connect(autocommit=False, local_infile=True, read_timeout=60) as connection:
                    while not stop.is_set():
                        if may_go():
                            with self._gate:
                                self._transaction(connection)
                        else:
                            stop.wait(0.005)
            except (OSError, pymysql.err.Error) as error:
                if not is_lost(error):
                    raise
                stop.wait(0.05)

    def _transaction(self, connection: Any) -> None:
        chance = self._chance
        with connection.cursor() as self._cursor:
            for _ in range(chance.choice([1, 1, 2, 3, 6])):
                name = chance.choices(_NAMES, _WEIGHTS)[0]
                try:
                    getattr(self, f"_{name}")(chance.choice(TABLES), chance.randrange(KEYS))
                    self.done[name] += 1
                except (pymysql.err.MySQLError, OSError) as error:
                    # Two of one key, a deadlock, a column that is gone: also half of a statement is rolled back.
                    if is_lost(error):
                        raise
                    if chance.random() < 0.5:
                        break
            time.sleep(self._pause * chance.random() * 2)
            if chance.random() < 0.12:
                connection.rollback()
            else:
                connection.commit()
                self.commits += 1

    def _run(self, statement: str, *values: Any) -> None:
        self._cursor.execute(statement, values or None)

    def _row(self, number: int) -> dict[str, Any]:
        return {**self._shape.key_of(self._chance, number), **self._values()}

    def _values(self) -> dict[str, Any]:
        return self._shape.values(self._chance, next(self._stamps))

    def _between(self, first: int, rows: int = 4, of: str = "") -> str:
        bounds = (self._shape.id_of(first), self._shape.id_of(first + self._chance.randrange(rows)))
        return f"{of}id BETWEEN {bounds[0]!r} AND {bounds[1]!r}"

    def _insert(self, table: str, key: int) -> None:
        row = self._row(key)
        self._run(insert(table, row), *row.values())

    def _insert_many(self, table: str, key: int) -> None:
        first = self._row(key)
        rows = [
            first,
            *({**first, **self._shape.key_of(self._chance, key + i), "n": next(self._stamps)} for i in (1, 2, 3)),
        ]
        more = f", ({', '.join(['%s'] * len(first))})" * 3
        self._run(insert(table, first, "INSERT IGNORE") + more, *(v for row in rows for v in row.values()))

    def _insert_select(self, table: str, key: int) -> None:
        names = ", ".join(self._shape.key_columns)
        other = TABLES[1 - TABLES.index(table)]
        self._run(
            f"INSERT IGNORE INTO {DATABASE}.{table} ({names}, n, v) SELECT {names}, n + {next(self._stamps)}, v "
            f"FROM {DATABASE}.{other} WHERE {self._between(key, 8)}"
        )

    def _upsert(self, table: str, key: int) -> None:
        row = self._row(key)
        update = ", ".join(f"{name} = VALUES({name})" for name in row if name not in self._shape.key_columns)
        self._run(f"{insert(table, row)} ON DUPLICATE KEY UPDATE {update}", *row.values())

    def _replace(self, table: str, key: int) -> None:
        row = self._row(key)
        self._run(insert(table, row, "REPLACE"), *row.values())

    def _update(self, table: str, key: int) -> None:
        row = self._values()
        told = ", ".join(f"{name} = %s" for name in row)
        self._run(f"UPDATE {DATABASE}.{table} SET {told} WHERE {self._between(key)}", *row.values())

    def _update_key(self, table: str, key: int) -> None:
        new = self._shape.key_of(self._chance, self._chance.randrange(KEYS))
        told = ", ".join(f"{name} = %s" for name in new)
        self._run(f"UPDATE IGNORE {DATABASE}.{table} SET {told} WHERE {self._between(key, 1)}", *new.values())

    def _update_keys(self, table: str, key: int) -> None:
        if self._shape.key == "text":  # 'a' for 'A' is the same key to the server and not to the log
            self._run(f"UPDATE {DATABASE}.{table} SET id = UPPER(id) WHERE {self._between(key)}")
        else:
            order = f"WHERE {self._between(key, 6)} ORDER BY id DESC"
            self._run(f"UPDATE {DATABASE}.{table} SET id = id + 1, n = {next(self._stamps)} {order}")

    def _update_nothing(self, table: str, key: int) -> None:
        self._run(f"UPDATE {DATABASE}.{table} SET n = n, v = v WHERE {self._between(key)}")

    def _update_two(self, table: str, key: int) -> None:
        self._run(
            f"UPDATE {_T1} a JOIN {_T2} b ON a.id = b.id SET a.n = {next(self._stamps)}, b.n = {next(self._stamps)}, "
            f"b.v = a.v WHERE {self._between(key, 6, 'a.')}"
        )

    def _delete(self, table: str, key: int) -> None:
        self._run(f"DELETE FROM {DATABASE}.{table} WHERE {self._between(key, 3)}")

    def _delete_two(self, table: str, key: int) -> None:
        self._run(f"DELETE a, b FROM {_T1} a JOIN {_T2} b ON a.id = b.id WHERE {self._between(key, 3, 'a.')}")

    def _savepoint(self, table: str, key: int) -> None:
        self._run("SAVEPOINT here")
        self._upsert(table, key)
        self._delete(table, key + 1)
        if self._chance.random() < 0.7:
            self._run("ROLLBACK TO SAVEPOINT here")
        self._update(table, key)

    def _through_view(self, table: str, key: int) -> None:
        what = self._chance.random()
        if what < 0.4:
            row = {**self._shape.key_of(self._chance, key), "n": next(self._stamps), "v": "seen"}
            self._run(insert("seen", row, "REPLACE"), *row.values())
        elif what < 0.8:
            self._run(f"UPDATE {DATABASE}.seen SET n = {next(self._stamps)} WHERE {self._between(key)}")
        else:
            self._run(f"DELETE FROM {DATABASE}.seen WHERE {self._between(key, 1)}")

    def _by_trigger(self, table: str, key: int) -> None:
        self._run(
            f"INSERT INTO {DATABASE}.feed VALUES (%s, %s), (%s, %s)", key, next(self._stamps), key, next(self._stamps)
        )

    def _load_data(self, table: str, key: int) -> None:
        rows = [{**self._shape.key_of(self._chance, key + i), "n": next(self._stamps), "v": f"l{i}"} for i in range(5)]
        self._file.write_text("".join("\t".join(map(str, row.values())) + "\n" for row in rows))
        verb = self._chance.choice(["REPLACE", "IGNORE"])
        self._run(f"LOAD DATA LOCAL INFILE '{self._file}' {verb} INTO TABLE {DATABASE}.{table} ({', '.join(rows[0])})")

    def _elsewhere(self, table: str, key: int) -> None:
        self._run(f"INSERT INTO {DATABASE}.other (n) VALUES ({next(self._stamps)}), ({next(self._stamps)})")
        self._run(f"DELETE FROM {DATABASE}.other ORDER BY id LIMIT 1")

    def _large(self, table: str, key: int) -> None:
        """All rows in one transaction, and many that go again."""
        self._run(f"UPDATE {DATABASE}.{table} SET n = n + {next(self._stamps)}")
        rows = [
            {**self._shape.key_of(self._chance, KEYS + 20 + i), "n": next(self._stamps), "v": "l"} for i in range(900)
        ]
        self._cursor.executemany(insert(table, rows[0], "INSERT IGNORE"), [list(row.values()) for row in rows])
        keep = self._chance.randrange(900)
        self._run(f"DELETE FROM {DATABASE}.{table} WHERE id > {self._shape.id_of(KEYS + 20 + keep)!r}")


# How often each is, for a hundred or so.
_STATEMENTS = {
    "insert": 8, "insert_many": 5, "insert_select": 5, "upsert": 12, "replace": 8, "update": 16, "update_key": 8,
    "update_keys": 4, "update_nothing": 3, "update_two": 5, "delete": 8, "delete_two": 3, "savepoint": 4,
    "through_view": 5, "by_trigger": 4, "load_data": 3, "elsewhere": 4, "large": 0.25,
}  # fmt: skip
_NAMES, _WEIGHTS = list(_STATEMENTS), list(_STATEMENTS.values())


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone."""
    code = error.args[0] if error.args else 0
    refused = isinstance(error, pymysql.err.OperationalError) and code == 2003
    return isinstance(error, OSError | pymysql.err.InterfaceError) or code in _LOST or refused


def patiently(act: Callable[[], Any], limit_s: float = 90) -> Any:
    """Do what may meet a server that is down, once it is up."""
    limit = time.monotonic() + limit_s
    while True:
        try:
            return act()
        except (OSError, pymysql.err.Error) as error:
            if not is_lost(error) or time.monotonic() > limit:
                raise
        time.sleep(0.05)
