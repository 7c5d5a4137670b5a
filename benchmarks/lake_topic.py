"""The upsert topic that stands for a table in the lake benchmark: the newest record of each key is its row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from benchmarks.lake_table import Fingerprint
from benchmarks.lake_target import Version, duckdb_hash, micros_of_text

__all__ = ["TopicTarget"]

_RECORDS = 10_000
_WAIT_S = 2.0
_NEWEST = "SELECT * FROM read_json($files, format = 'newline_delimited', columns = {columns})"
_COLUMNS = {
    "place": "BIGINT", "key": "BIGINT", "id": "BIGINT", "customer_id": "INT", "status": "VARCHAR",
    "amount": "DECIMAL(12,2)", "discount": "DOUBLE", "quantity": "INT", "note": "VARCHAR", "ordered_on": "DATE",
    "created_at": "TIMESTAMP", "updated_at": "TIMESTAMP",
}  # fmt: skip


class TopicTarget:
    """A topic of JSON whose keys have an ``id``, with the broker's time of each record.

    Parameters
    ----------
    address : str
        Of the broker.
    topic : str
    partitions : int
        All records of a key are in one.
    ids : int
        The greatest ``id``.
    folder : Path
        For the records that were read.
    """

    def __init__(self, address: str, topic: str, partitions: int, ids: int, folder: Path) -> None:
        settings = {"bootstrap.servers": address, "group.id": "verify", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer(settings)
        self._parts = [TopicPartition(topic, number, 0) for number in range(partitions)]
        self._consumer.assign(self._parts)
        self._ends = [0] * partitions
        self._live = np.zeros(ids + 1, dtype=bool)
        self._file = (folder / "records.json").open("w")
        self._at, self._newest = 0.0, ""

    def close(self) -> None:
        self._consumer.close()
        self._file.close()

    def newest(self, below: int | None = None) -> Version | None:
        """All records so far. A version is their number, and there is none before it."""
        if below is not None:
            return None
        ends = [self._consumer.get_watermark_offsets(part)[1] for part in self._parts]
        while any(read < end for read, end in zip(self._ends, ends, strict=True)):
            for message in self._consumer.consume(_RECORDS, _WAIT_S):
                self._take(message)
        self._file.flush()
        total = sum(self._ends)
        return Version(total, self._at, [self._file.name]) if total else None

    def _take(self, message: Any) -> None:
        key, value = json.loads(message.key())["id"], message.value()
        self._live[key] = value is not None
        self._ends[message.partition()] = message.offset() + 1
        self._at = max(self._at, message.timestamp()[1] / 1000)
        row = json.loads(value) if value else {}
        self._newest = max(self._newest, row.get("updated_at", ""))
        # Records of one key are in one partition, so they are read in their order.
        row |= {"place": sum(self._ends), "key": key}
        self._file.write(json.dumps(row) + "\n")

    def quick(self, version: Version) -> tuple[int, int]:
        """Number of keys that have a row, and the newest ``updated_at`` in microseconds since 1970."""
        return int(self._live.sum()), micros_of_text(self._newest)

    def fingerprint(self, version: Version, without: Sequence[int] = ()) -> Fingerprint:
        """Of the rows of all keys."""
        assert not without, "a topic has the deleted rows"
        records = _NEWEST.format(columns=_COLUMNS)
        rows = f"({records} QUALIFY row_number() OVER (PARTITION BY key ORDER BY place DESC) = 1)"
        return duckdb_hash(f"{rows} WHERE id IS NOT NULL", version)
