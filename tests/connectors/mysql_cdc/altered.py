"""A target that is kept as `DeltaUpsert` keeps it, without Spark: to try many ALTER TABLEs in little time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.ddl.evolution import StartAgain
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.fills import values_of
from backlog_spark.spi.offset_flags import fills

from .replay import reader

__all__ = ["Target", "snapshot_of"]

_META = ("_change_type", "_commit_timestamp", "_commit_seq")
_MOST_STEPS = 200


class Target:
    """A table of the newest change of each key, and the query that follows the source into it.

    Parameters
    ----------
    given : dict
        The source's options, for one table.
    replays : callable
        Called for each batch: whether it is read once more by another process, as after a crash.
    """

    def __init__(self, given: dict[str, str], replays: Callable[[], bool] = lambda: False) -> None:
        self._given = {"rewritingAlter": "snapshot", **given}
        self._replays = replays
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.columns: dict[str, None] = {}
        self.offset: dict[str, Any] | None = None
        self.key: tuple[str, ...] = ()
        self.backlogs = 0  # batches after which the source is in backlog
        self.emptied = self.filled = 0
        self._reader: MySqlCdcStreamReader | None = None

    def follow(self, *, batches: int | None = None, rows: int = 10**6) -> str:
        """Read all that there is, or some batches; returns the error that stopped the stream, else ""."""
        for _ in range(_MOST_STEPS) if batches is None else range(batches):
            try:
                if not self._step(rows):
                    return ""
            except StartAgain:
                self.restart()
            except BacklogError as error:
                self.restart()
                return str(error)
        assert batches is not None, "the stream does not come to its end"
        return ""

    def restart(self) -> None:
        """A new process goes on."""
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    def _step(self, rows: int) -> bool:
        stream = self._reader = self._reader or reader(self._given)
        if self.offset is None:
            self.offset = stream.initialOffset()
        start, end = self.offset, stream.latestOffset(self.offset, ReadMaxRows(rows))
        if end is start:
            return False
        if self._replays():
            for _ in stream.partitions(start, end):
                pass
            self.restart()
            stream = self._reader = reader(self._given)
        read = _rows if self._given.get("format", "row") == "row" else _envelopes
        batch = [row for partition in stream.partitions(start, end) for row in read(stream, partition)]
        self._apply(batch, end)
        self.offset = end
        return True

    def _apply(self, batch: list[dict[str, Any]], end: dict[str, Any]) -> None:
        assert self._reader is not None
        (schema,) = self._reader._planner.tables.every()
        self.key = tuple(name.lower() for name in schema.key)
        for column in schema.read:
            self.columns.setdefault(column.name.lower())
        batch = [row for row in batch if row["_change_type"] != "drop"]
        emptied = [row["_commit_seq"] for row in batch if row["_change_type"] == "truncate"]
        if emptied:
            self.emptied += 1
            self.rows.clear()
            batch = [r for r in batch if r["_change_type"] != "truncate" and r["_commit_seq"] > max(emptied)]
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        order = sorted(batch, key=lambda r: (r["_commit_seq"], r["_change_type"] in ("insert", "update_postimage")))
        for row in order:
            newest[tuple(_hashable(row[name]) for name in self.key)] = row
        for key, row in newest.items():
            if row["_change_type"] in ("insert", "update_postimage"):
                kept = dict.fromkeys(self.columns) | self.rows.get(key, {})
                self.rows[key] = kept | {name: row[name] for name in row if name not in _META}
            else:
                self.rows.pop(key, None)
        for _, _, text in fills(end):
            self.filled += 1
            for row in self.rows.values():
                row.update(_folded(values_of(text).to_pylist()[0]))
        self.backlogs += bool(end["isProcessingBacklog"])

    def differences(self, fresh: Target) -> list[str]:
        """What is other than in a target that a new query has just filled."""
        found = []
        for key in {**self.rows, **fresh.rows}:
            one, other = self.rows.get(key), fresh.rows.get(key)
            if one is None or other is None:
                found.append(f"{key}: {'missing' if one is None else 'not in the source'}")
                continue
            found += [
                f"{key}.{name}: {one.get(name)!r} instead of {value!r}"
                for name, value in other.items()
                if not _equal(one.get(name), value)
            ]
        return found


def snapshot_of(given: dict[str, str]) -> Target:
    """What a new query gets now."""
    fresh = Target(given)
    problem = fresh.follow()
    fresh.restart()
    assert not problem, problem
    return fresh


def _rows(stream: MySqlCdcStreamReader, partition: Any) -> list[dict[str, Any]]:
    found = itertools.chain.from_iterable(batch.to_pylist() for batch in stream.read(partition))
    return [_folded(row) for row in found]


def _folded(row: dict[str, Any]) -> dict[str, Any]:
    """Names of columns in lower case: Delta takes them for equal."""
    return {name.lower(): value for name, value in row.items()}


def _envelopes(stream: MySqlCdcStreamReader, partition: Any) -> list[dict[str, Any]]:
    """The images in envelopes, as rows."""
    found = []
    for row in _rows(stream, partition):
        envelope = json.loads(row["value"])
        image = envelope.get("after") or envelope.get("before") or {}
        found.append(_folded(image) | {name: row[name] for name in _META})
    return found


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)
