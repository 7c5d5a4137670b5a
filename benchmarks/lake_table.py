"""The table of the lake benchmark: loaded once, changed in the same way for each candidate, and put back after it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from examples.demo import FILL, ORDERS

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

__all__ = ["OPTIONS", "Changes", "Fingerprint", "Orders"]

OPTIONS: Final = {
    "innodb-buffer-pool-size": "2G",  # the default of 128 MB is not what such tables are served with
    "innodb-log-file-size": "1G",
    "max-binlog-size": "1G",
}
"""Of the server, beside those of `MySQLServer`."""

_STEP = 100_000
_OF_A_TRANSACTION = 1_000
_CONNECTIONS = 2
# Any prime that does not divide the number of rows scatters them.
_SCATTER = 1_000_003

# As text with one form in MySQL and in DuckDB. A discount has 9 decimals.
_HASH = """
SELECT COUNT(*), COALESCE(SUM(CAST(CONV(LEFT(MD5(CONCAT_WS('|', id, customer_id, status, CAST(amount * 100 AS SIGNED),
  COALESCE(CAST(ROUND(discount * 1000000000) AS SIGNED), '~'), quantity, COALESCE(note, '~'),
  COALESCE(TO_DAYS(ordered_on) - TO_DAYS('1970-01-01'), '~'), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at),
  CAST(UNIX_TIMESTAMP(updated_at) * 1000000 AS SIGNED))), 8), 16, 10) AS UNSIGNED)), 0)
FROM shop.orders WHERE id BETWEEN {first} AND {last}"""


class Fingerprint(NamedTuple):
    """Number of rows, and the sum of a hash of each: 32 bits of the MD5 of its columns."""

    rows: int
    hashes: int


@dataclass(frozen=True)
class Changes:
    """A tenth as many changes as rows: half updates, a quarter inserts, a quarter deletes, each of another row.

    Parameters
    ----------
    rows : int
        Of the table. Their ``id`` are 1 to this number.
    newest : datetime
        The newest ``updated_at`` of the table. Each transaction has a newer one.
    """

    rows: int
    newest: datetime

    def __len__(self) -> int:
        return self.rows // 10 // 4 * 4

    @property
    def quarter(self) -> int:
        return len(self) // 4

    def updated(self) -> Sequence[int]:
        return _Scattered(self.rows, 0, 2 * self.quarter)

    def deleted(self) -> Sequence[int]:
        return _Scattered(self.rows, 2 * self.quarter, 3 * self.quarter)

    @property
    def last(self) -> datetime:
        """``updated_at`` of the last transaction."""
        return self.at(math.ceil(self.quarter / (_OF_A_TRANSACTION // 4)) - 1)

    def at(self, transaction: int) -> datetime:
        return self.newest + timedelta(seconds=1, milliseconds=transaction)

    def transactions(self) -> Iterator[list[str]]:
        """The statements of each transaction."""
        updated, deleted, step = self.updated(), self.deleted(), _OF_A_TRANSACTION // 4
        for number, first in enumerate(range(0, self.quarter, step)):
            last = min(first + step, self.quarter)
            at, new = self.at(number), self.rows + 1
            values = [
                f"({n},{n % 200000},'new',{n % 1000}.25,{n % 7}.5,{1 + n % 9},'new order {n}','2026-01-02',"
                f"'2026-01-02 03:04:05.678','{at}')"
                for n in range(new + first, new + last)
            ]
            yield [
                "UPDATE shop.orders SET status = 'returned', amount = amount + 1, note = CONCAT('again ', id), "
                f"updated_at = '{at}' WHERE id IN ({_listed(updated[2 * first : 2 * last])})",
                f"INSERT INTO shop.orders VALUES {','.join(values)}",
                f"DELETE FROM shop.orders WHERE id IN ({_listed(deleted[first:last])})",
            ]


class _Scattered(Sequence[int]):
    """Different numbers from 1 to ``rows`` in an order that jumps about, from a place to another."""

    def __init__(self, rows: int, begin: int, end: int) -> None:
        self._rows, self._places = rows, range(begin, end)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._id(place) for place in self._places[at]]
        return self._id(self._places[at])

    def _id(self, place: int) -> int:
        return 1 + place * _SCATTER % self._rows


def _listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


class Orders:
    """``shop.orders`` on a server, with an index on ``updated_at`` for those who read by it.

    Parameters
    ----------
    server : MySQLServer
    rows : int
    say : callable
        Told how far the work is.
    """

    def __init__(self, server: MySQLServer, rows: int, say: Callable[[str], None]) -> None:
        assert math.gcd(rows, _SCATTER) == 1, f"{rows} is a multiple of {_SCATTER}, which does not scatter it"
        self._server, self.rows, self._say = server, rows, say
        self._load()
        self.changes = Changes(rows, self._newest())
        self.before = self.fingerprint()
        self._keep()
        self._say("rehearsing the changes")
        self.change()
        self.after = self.fingerprint()
        self.undo()
        assert self.fingerprint() == self.before, "the changes could not be undone"

    def _load(self) -> None:
        self._server.execute("CREATE DATABASE shop")
        self._server.execute(ORDERS)
        pieces = [(first, min(self.rows, first + _STEP - 1)) for first in range(1, self.rows + 1, _STEP)]

        def fill(piece: tuple[int, int]) -> None:
            first, last = piece
            self._unlogged(f"SET cte_max_recursion_depth = {_STEP + 1}", FILL.format(first=first, last=last))
            self._say(f"loading rows: {last:,} of {self.rows:,}")

        self._parallel(fill, pieces)
        self._unlogged("ALTER TABLE shop.orders ADD KEY (updated_at)")

    def _keep(self) -> None:
        """Copy the rows that will be updated or deleted."""
        self._server.execute("CREATE TABLE shop.kept LIKE shop.orders")
        ids = [*self.changes.updated(), *self.changes.deleted()]
        for first in range(0, len(ids), _STEP):
            some = _listed(ids[first : first + _STEP])
            self._unlogged(f"INSERT INTO shop.kept SELECT * FROM shop.orders WHERE id IN ({some})")

    def fingerprint(self) -> Fingerprint:
        """Of the whole table."""
        self._say("hashing the table in MySQL")
        step = 10 * _STEP
        pieces = [(first, first + step - 1) for first in range(0, self.rows + len(self.changes) + 1, step)]
        found = self._parallel(lambda piece: self._hashed(*piece), pieces)
        return Fingerprint(sum(rows for rows, _ in found), sum(hashes for _, hashes in found))

    def _hashed(self, first: int, last: int) -> Fingerprint:
        with self._server.connect(init_command="SET time_zone = '+00:00'") as connection, connection.cursor() as cursor:
            cursor.execute(_HASH.format(first=first, last=last))
            rows, hashes = cursor.fetchone()
            return Fingerprint(rows, int(hashes))

    def change(self) -> tuple[float, float]:
        """Make all changes, as fast as the server takes them. Returns the times of the first and the last commit."""
        commits: list[float] = []
        zone = "SET time_zone = '+00:00'"
        with self._server.connect(autocommit=False, init_command=zone) as connection, connection.cursor() as cursor:
            for statements in self.changes.transactions():
                for statement in statements:
                    cursor.execute(statement)
                connection.commit()
                commits.append(time.time())
                if len(commits) % 100 == 0:
                    self._say(f"changes: {len(commits) * _OF_A_TRANSACTION:,} of {len(self.changes):,}")
        return commits[0], commits[-1]

    def undo(self) -> None:
        """Put the table back to what it was after the load. The binary log has nothing of it, and begins anew."""
        self._say("undoing the changes")
        self._unlogged(
            f"DELETE FROM shop.orders WHERE id > {self.rows}", "REPLACE INTO shop.orders SELECT * FROM shop.kept"
        )
        self._server.execute("FLUSH BINARY LOGS")
        self._server.execute(f"PURGE BINARY LOGS TO '{self._server.execute('SHOW BINARY LOGS')[-1][0]}'")

    def _newest(self) -> datetime:
        with self._server.connect(init_command="SET time_zone = '+00:00'") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT MAX(updated_at) FROM shop.orders")
            return cursor.fetchone()[0]  # type: ignore[no-any-return]

    def _unlogged(self, *statements: str) -> None:
        with self._server.connect(init_command="SET sql_log_bin = 0") as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _parallel(self, run: Callable[[tuple[int, int]], Any], pieces: Sequence[tuple[int, int]]) -> list[Any]:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            return list(pool.map(run, pieces))
