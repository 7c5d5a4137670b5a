"""The application of the freshness benchmark: a process of its own that changes MySQL at a given rate.

A transaction consists of some statements of many rows: half of its changes update scattered rows, half insert new ones.
One of them is the *mark*: its value is the transaction's number. So an output shows which transaction it has reached.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

__all__ = ["MARK_ID", "MARK_KEY", "Application", "changing", "fill", "reset"]

MARK_ID, MARK_KEY = 0, -1
"""The mark's row in ``shop.t``, and its value of ``k``. In ``shop.clicks`` it is a click of that user."""

_TRANSACTIONS_A_SECOND = 20
_FILL_STEP = 500_000


def fill(server: MySQLServer, rows: int, keys: int) -> None:
    """Create ``shop.t`` with rows 1 to ``rows`` and the mark, and an empty ``shop.clicks``."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute(
            "CREATE TABLE shop.t (id BIGINT PRIMARY KEY, k INT NOT NULL, v BIGINT NOT NULL, note VARCHAR(60))"
        )
        cursor.execute("CREATE TABLE shop.clicks (id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, v BIGINT NOT NULL)")
        cursor.execute(f"SET cte_max_recursion_depth = {_FILL_STEP + 1}")
        for first in range(1, rows + 1, _FILL_STEP):
            cursor.execute(
                f"INSERT INTO shop.t WITH RECURSIVE s (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < "
                f"{min(rows, first + _FILL_STEP - 1)}) SELECT n, n % {keys}, n % 1000, CONCAT('order ', n) FROM s"
            )
        cursor.execute(f"INSERT INTO shop.t VALUES ({MARK_ID}, {MARK_KEY}, 0, 'mark')")


def reset(server: MySQLServer, rows: int) -> None:
    """Remove the rows that an application has inserted, and reset the mark."""
    server.execute(f"DELETE FROM shop.t WHERE id > {rows}")
    server.execute("DELETE FROM shop.clicks")
    server.execute(f"UPDATE shop.t SET v = 0 WHERE id = {MARK_ID}")


@dataclass
class Application:
    """The record of an application's changes.

    Parameters
    ----------
    changes : int
        Rows that one transaction changes.
    transactions : list of (int, float)
        Number of each transaction, and the time of its COMMIT in seconds since 1970. Complete once the application
        ended.
    """

    changes: int
    transactions: list[tuple[int, float]] = field(default_factory=list)

    def rate(self, begin: float, end: float) -> float:
        """Changes per second between two times."""
        return sum(begin <= at < end for _, at in self.transactions) * self.changes / (end - begin)


@contextlib.contextmanager
def changing(
    server: MySQLServer, *, rows: int, keys: int, rate: int, clicks: bool
) -> Iterator[tuple[Application, Any]]:
    """An application that changes the tables. Yields its record, and a function that ends it.

    Parameters
    ----------
    rows, keys : int
        The numbers with which the table was filled.
    rate : int
        Changes per second.
    clicks : bool
        Insert clicks, also as the mark, instead of rows of ``shop.t``.
    """
    application = Application(max(3, rate // _TRANSACTIONS_A_SECOND))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (server.port, rows, keys, application.changes, rate, clicks, theirs)
    process = context.Process(target=_change, args=arguments, daemon=True)
    process.start()
    theirs.close()

    def end() -> None:
        if not application.transactions:
            ours.send(None)
            application.transactions.extend(ours.recv())
            process.join()

    try:
        yield application, end
    finally:
        process.kill()
        process.join()


def _change(port: int, rows: int, keys: int, changes: int, rate: int, clicks: bool, parent: Any) -> None:
    import pymysql

    chance = random.Random(1)
    connection = pymysql.connect(host="127.0.0.1", port=port, user="root", database="shop")
    cursor = connection.cursor()
    transactions: list[tuple[int, float]] = []
    began, new = time.time(), rows
    updates = (changes - 1) // 2
    while not parent.poll():
        number = len(transactions) + 1
        inserted = range(new + 1, new + changes - updates)
        new = inserted.stop - 1
        ids = ",".join(map(str, chance.sample(range(1, rows + 1), updates)))
        cursor.execute(f"UPDATE t SET v = v + 1 WHERE id IN ({ids})")
        if clicks:
            values = [f"({id_},{chance.randint(1, rows)},5)" for id_ in inserted]
            values.append(f"({-number},{MARK_ID},{number})")
            cursor.execute(f"INSERT INTO clicks VALUES {','.join(values)}")
        else:
            cursor.execute("INSERT INTO t VALUES " + ",".join(f"({i},{i % keys},5,'new')" for i in inserted))
            cursor.execute(f"UPDATE t SET v = {number} WHERE id = {MARK_ID}")
        # Before the commit, because the server may send rows to replicas before it answers.
        transactions.append((number, time.time()))
        connection.commit()
        # By the clock, so that the next transactions catch up after a slow one.
        time.sleep(max(0.0, began + number * changes / rate - time.time()))
    connection.close()
    parent.send(transactions)
