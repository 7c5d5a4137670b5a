"""The inputs of the grid's queries: tables, files and topics, and which rows the test has put into each."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from servers.kafka import KafkaServer
from servers.mysql import MySQLServer
from tests.integration.topics import Topic

from .operators import FAR, FLUSH, Row

__all__ = ["Hybrid", "Input", "MySqlCdc", "SparkKafka"]

KEYS = 7
_FLUSH_FILE = 3  # files of a history


class Input(ABC):
    """One input. ``rows``: those that are there, by their number."""

    first_phase: str
    """What its backlog is called."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, Row] = {}
        self.chance = random.Random(seed)
        self._from_s = 0

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """For the job."""

    @abstractmethod
    def _add(self, rows: Sequence[Row]) -> None: ...

    def feed(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        self._add(rows)
        self.rows.update({row.seq: row for row in rows})

    def begin(self, rows: Sequence[Row]) -> None:
        """The history, before the first start."""
        self.feed(rows)

    def change(self) -> None:  # noqa: B027
        """Update and delete some rows, where the source has such changes."""

    def burst(self, rows: Sequence[Row]) -> None:
        """So many rows, or so old ones, that the source goes back into backlog if it reads them now."""
        self.feed(rows)

    def made(self, numbers: range) -> list[Row]:
        """New rows with these numbers. Row n is of second n, less at most 1.9.

        They are given in the order of their numbers. So none is two seconds behind one that was given before it, and
        none is late at any pace.
        """
        return [
            Row(n, n % KEYS, self.chance.randrange(10_000), self._from_s + round(n - self.chance.uniform(0, 1.9), 3))
            for n in numbers
        ]

    def flush(self, number: int) -> None:
        """Add a row of a key of its own that ends all windows of the rows before. Rows `made` later come after it."""
        self._from_s += FAR
        self.feed([Row(number, FLUSH, 0, self._from_s)])


class MySqlCdc(Input):
    """A table of MySQL. ``changes``: whether its rows are updated and deleted."""

    first_phase = "snapshot"

    def __init__(self, server: MySQLServer, port: int, table: str, *, seed: int, changes: bool, ends: bool) -> None:
        super().__init__(seed)
        self._server, self._port, self.table = server, port, f"grid.{table}"
        self._changes, self._ends = changes, ends
        server.execute("CREATE DATABASE IF NOT EXISTS grid")
        server.execute(
            f"CREATE TABLE {self.table} (seq BIGINT PRIMARY KEY, k BIGINT NOT NULL, v BIGINT NOT NULL, "
            "ts TIMESTAMP(6) NOT NULL)"
        )

    def options(self) -> dict[str, Any]:
        mode = {"startup.mode": "snapshot"} if self._ends else {}
        return {"table": self.table, "port": self._port, **mode}

    def _add(self, rows: Sequence[Row]) -> None:
        values = ",".join(f"({r.seq},{r.k},{r.v},'{r.ts:%Y-%m-%d %H:%M:%S.%f}')" for r in rows)
        self._server.execute(f"INSERT INTO {self.table} VALUES {values}")

    def change(self) -> None:
        if not self._changes:
            return
        gone, *others = self.chance.sample(list(self.rows.values()), 7)
        self._server.execute(f"DELETE FROM {self.table} WHERE seq = {gone.seq}")
        del self.rows[gone.seq]
        for number, row in enumerate(others):
            new = row._replace(v=row.v + 1, k=(row.k + 1) % KEYS if number < 2 else row.k)
            self._server.execute(f"UPDATE {self.table} SET v = {new.v}, k = {new.k} WHERE seq = {row.seq}")
            self.rows[row.seq] = new

    def burst(self, rows: Sequence[Row]) -> None:
        half = len(rows) // 2
        for row in rows[:half]:
            self.feed([row])
        # Its clock has seconds, and the threshold is one.
        time.sleep(2.5)
        self.feed(rows[half:])


class _OnKafka(Input):
    def __init__(self, broker: KafkaServer, address: str, topic: str, *, seed: int) -> None:
        super().__init__(seed)
        self._broker, self._address = broker, address
        self._topic = Topic(broker, topic, 1)

    def _kafka(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._address, "subscribe": self._topic.name}

    def options(self) -> dict[str, Any]:
        return self._kafka()

    def _add(self, rows: Sequence[Row]) -> None:
        self._topic.send({"k": r.k, "v": r.v, "seq": r.seq, "ts": r.ts.isoformat()} for r in rows)


class SparkKafka(_OnKafka):
    """A topic that Spark's own reader reads."""

    first_phase = "backlog"


class Hybrid(_OnKafka):
    """Files, then a topic; or files alone. ``ends``: the latter."""

    first_phase = "files"

    def __init__(self, broker: KafkaServer, address: str, topic: str, folder: Path, *, seed: int, ends: bool) -> None:
        super().__init__(broker, address, topic, seed=seed)
        self._folder, self._ends = folder, ends

    def options(self) -> dict[str, Any]:
        files = {"path": str(self._folder)}
        return {"phases": "files", **files} if self._ends else {**files, **self._kafka()}

    def begin(self, rows: Sequence[Row]) -> None:
        self._folder.mkdir(parents=True)
        size = -(-len(rows) // _FLUSH_FILE)
        for number in range(_FLUSH_FILE):
            columns = zip(*[(r.k, r.v, r.seq, r.ts) for r in rows[number * size : (number + 1) * size]], strict=True)
            types = [pa.int64(), pa.int64(), pa.int64(), pa.timestamp("us", "UTC")]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            pq.write_table(pa.table(arrays, ["k", "v", "seq", "ts"]), self._folder / f"{number}.parquet")
        self.rows.update({row.seq: row for row in rows})
