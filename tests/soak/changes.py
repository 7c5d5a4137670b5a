"""Changes a table of MySQL at a rate, and alters and truncates it when told; a process of its own.

Each statement changes a range of keys. Keys stay below a bound, and about half of them have a row, so the table does
not grow. The row with the id -1 has the time of its last change: what a target shows of it is as fresh as the target.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from typing import Any

import pymysql

from .orders import Answer, Orders

DATABASE, TABLE = "soak", "soak.t"
CREATE = (
    f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n BIGINT NOT NULL, v VARCHAR(40), amount DECIMAL(12,2), "
    "at DATETIME(3), note VARCHAR(80))"
)
BEAT = -1
# The columns that come and go. A default is filled into the rows that are there.
_POOL = {"e1": "INT", "e2": "VARCHAR(20)", "e3": "INT DEFAULT 7", "e4": "VARCHAR(20) DEFAULT 'seven'"}
_STATEMENTS_A_SECOND = 25
_BEAT_EACH_S = 0.5
# After a longer pause of the server the writer does not try to make up for it.
_MOST_BEHIND_S = 2.0
_RETRY_S = 0.2


class Changes:
    """Writes at a rate.

    Parameters
    ----------
    given : dict
        ``port``, ``rate`` (changed rows a second), ``keys`` and ``seed``.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self._port, self._rate, self._keys = given["port"], given["rate"], given["keys"]
        self._chance = random.Random(given["seed"])
        self._connection: Any = None
        self._size = max(1, round(self._rate / _STATEMENTS_A_SECOND))
        self._due = self._beaten = 0.0
        self._rows = self._changes = self._statements = 0
        self._extra: list[str] = []
        self.orders = Orders()

    def serve(self) -> None:
        """Until standard input ends."""
        of = {"fill": self._fill, "pause": self._pause, "port": self._move, "alter": self._alter}
        self.orders.serve({**of, "truncate": self._truncate}, self._work)

    def _execute(self, sql: str, *, many: bool = True) -> int:
        """Run a statement, again after a lost connection; how many rows it changed."""
        while True:
            try:
                if self._connection is None:
                    self._connection = pymysql.connect(
                        host="127.0.0.1", port=self._port, user="root", autocommit=True, ssl_disabled=True
                    )
                    self._connection.cursor().execute("SET SESSION cte_max_recursion_depth = 100000000")
                with self._connection.cursor() as cursor:
                    changed = int(cursor.execute(sql))
                if many:
                    self._changes += changed
                    self._statements += 1
                return changed
            except (OSError, pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                self._hang_up()
                time.sleep(_RETRY_S)

    def _hang_up(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        self._connection = None

    def _fill(self, _: Answer) -> Answer:
        self._execute(
            f"INSERT INTO {TABLE} (id, n, v, amount, at, note) WITH RECURSIVE s (i) AS (SELECT 0 UNION ALL "
            f"SELECT i + 1 FROM s WHERE i < {self._keys} - 1) SELECT i, i, CONCAT('v', i), i / 4, NOW(3), 'first' "
            "FROM s WHERE i % 2 = 0",
            many=False,
        )
        self._rows = self._keys // 2
        self._beat()
        return {"rows": self._rows}

    def _work(self) -> None:
        now = time.monotonic()
        if now - self._beaten > _BEAT_EACH_S:
            self._beaten = now
            self._beat()
        if now < self._due:
            time.sleep(self._due - now)
        if now > self._due + _MOST_BEHIND_S:
            self._due = now
        self._due += self._change() / self._rate
        self.orders.tell(changes=self._changes, rows=self._rows, statements=self._statements)

    def _change(self) -> int:
        """One statement; how many rows it changed, or at least 1."""
        chance, size = self._chance, self._size
        begin = chance.randrange(max(1, self._keys - 2 * size))
        among = f"id BETWEEN {begin} AND {begin + 2 * size - 1}"  # half of the keys have a row
        kind = chance.random()
        emptied = self._rows < self._keys // 8
        if kind < 0.2 and not emptied:
            changed = self._execute(f"DELETE FROM {TABLE} WHERE {among} LIMIT {size}")
            self._rows -= changed
        elif kind < 0.4 or emptied:
            now, names = time.time(), ", ".join(["id", "n", "v", "amount", "at", "note", *self._extra])
            ids = (
                sorted(chance.sample(range(begin, begin + 2 * size), size))
                if not emptied
                else range(begin, begin + size)
            )
            more = "".join(", 5" for _ in self._extra)
            rows = ",".join(
                f"({i}, {i}, 'i{chance.random():.6f}', {i % 9973}.25, FROM_UNIXTIME({now:.3f}), "
                f"REPEAT('n', {i % 60}){more})"
                for i in ids
            )
            changed = self._execute(f"INSERT IGNORE INTO {TABLE} ({names}) VALUES {rows}")
            self._rows += changed
        else:
            more = "".join(f", {name} = n % 100" for name in self._extra)
            changed = self._execute(
                f"UPDATE {TABLE} SET n = n + 1, v = 'u{chance.random():.6f}', amount = amount + 0.25, "
                f"at = NOW(3){more} WHERE {among} LIMIT {size}"
            )
        return max(1, changed)

    def _beat(self) -> int:
        now = round(time.time() * 1000)
        self._execute(
            f"INSERT INTO {TABLE} (id, n) VALUES ({BEAT}, {now}) ON DUPLICATE KEY UPDATE n = VALUES(n)", many=False
        )
        return now

    def _pause(self, _: Answer) -> Answer:
        # Later than all beats before, so that it is seen whether the target has it.
        time.sleep(0.002)
        return {"beat": self._beat(), "changes": self._changes, "rows": self._rows, "statements": self._statements}

    def _move(self, order: Answer) -> Answer:
        self._port = order["port"]
        self._hang_up()
        return {}

    def _alter(self, _: Answer) -> Answer:
        absent = [name for name in _POOL if name not in self._extra]
        adds = absent and (not self._extra or self._chance.random() < 0.5)
        name = self._chance.choice(absent if adds else self._extra)
        self._execute(f"ALTER TABLE {TABLE} " + (f"ADD COLUMN {name} {_POOL[name]}" if adds else f"DROP COLUMN {name}"))
        (self._extra.append if adds else self._extra.remove)(name)
        return {"did": f"{'ADD' if adds else 'DROP'} COLUMN {name}"}

    def _truncate(self, _: Answer) -> Answer:
        self._execute(f"TRUNCATE {TABLE}", many=False)
        self._rows = 0
        self._beat()
        return {}


if __name__ == "__main__":
    Changes(json.loads(sys.argv[1])).serve()
