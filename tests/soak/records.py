"""Sends numbered records to a topic at a rate, and knows the sum of each key; a process of its own.

Record ``i`` has the number ``i`` and a key that follows from ``i`` and the seed, so the sums of all records are known
from their count. A sum shows a record that is lost or that comes twice.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .orders import Answer, Orders

TOPIC = "records"
PARTITIONS = 4
_CYCLE = 1 << 16
_PIECES_A_SECOND = 50
_MOST_BEHIND_S = 2.0


def keys_of(seed: int, keys: int) -> np.ndarray:
    """The key of record ``i`` is at ``i % len``."""
    return np.random.default_rng(seed).integers(0, keys, _CYCLE)


def sums(seed: int, keys: int, count: int, begin: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sum and count by key of the numbers ``begin`` + i of the first ``count`` records."""
    of = keys_of(seed, keys)
    cycles, rest = divmod(count, _CYCLE)
    number = np.arange(_CYCLE, dtype=np.int64) + begin
    total, records = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
    # The sum over all cycles c of (number + c * _CYCLE), for each place in the cycle.
    np.add.at(total, of, cycles * number + _CYCLE * (cycles * (cycles - 1) // 2))
    np.add.at(records, of, cycles)
    np.add.at(total, of[:rest], number[:rest] + cycles * _CYCLE)
    np.add.at(records, of[:rest], 1)
    return total, records


def write_files(folder: Path, seed: int, keys: int, count: int, files: int = 8) -> None:
    """The files that come before the topic, with negative numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    of = np.resize(keys_of(seed, keys), count)
    number = np.arange(count, dtype=np.int64) - count
    folder.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(count), files)):
        table = pa.table({"k": of[rows].astype("int32"), "n": number[rows]})
        pq.write_table(table, folder / f"{part:03}.parquet")


class Records:
    """Sends at a rate.

    Parameters
    ----------
    given : dict
        ``broker``, ``rate``, ``keys`` and ``seed``.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._rate = given["rate"]
        self._keys = keys_of(given["seed"], given["keys"]).tolist()
        self._producer = Producer(
            {
                "bootstrap.servers": given["broker"],
                "enable.idempotence": True,  # a broker that is killed gets each record once
                "message.timeout.ms": 0,
                "linger.ms": 20,
                "batch.num.messages": 20_000,
                "queue.buffering.max.messages": 2_000_000,
                "compression.type": "lz4",
                "log_level": 0,
            }
        )
        self._sent = self._pieces = 0
        self._due = 0.0
        self.orders = Orders()

    def serve(self) -> None:
        """Until standard input ends."""
        self.orders.serve({"pause": self._pause}, self._work)

    def _work(self) -> None:
        now = time.monotonic()
        if now < self._due:
            self._producer.poll(self._due - now)
        if now > self._due + _MOST_BEHIND_S:
            self._due = now
        size = max(1, self._rate // _PIECES_A_SECOND)
        keys, cycle = self._keys, _CYCLE - 1
        left = [
            {"value": b'{"k":%d,"n":%d}' % (keys[i & cycle], i)} for i in range(self._sent, self._sent + size)
        ]  # fmt: skip
        while left:
            sent = self._producer.produce_batch(TOPIC, left, partition=self._pieces % PARTITIONS)
            left = [{"value": one["value"]} for one in left if "_error" in one] if sent < len(left) else []
            self._producer.poll(0.05 if left else 0)
        self._sent += size
        self._pieces += 1
        self._due += size / self._rate
        self.orders.tell(records=self._sent)

    def _pause(self, _: Answer) -> Answer:
        while self._producer.flush(5):
            pass
        return {"records": self._sent}


if __name__ == "__main__":
    Records(json.loads(sys.argv[1])).serve()
