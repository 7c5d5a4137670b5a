"""Leaving out records that are rows of the files before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog_spark.errors import BacklogError

__all__ = ["Known", "known"]

_last: tuple[str, tuple[str, ...], Known] | None = None  # the worker's


class Known:
    """Keys of rows. One with a NULL in it tells no row from another, so it is never known.

    Parameters
    ----------
    keys : pyarrow.Table
        A column for each key column, in their order.
    """

    def __init__(self, keys: pa.Table) -> None:
        self._names = keys.column_names
        # A set of one column stays in Arrow. Several columns are compared as tuples, 1 us a row: it is for the few
        # records only that overlap with files.
        self._single = keys.column(0).combine_chunks().unique().drop_null() if len(self._names) == 1 else None
        self._tuples = set() if self._single is not None else {row for row in _tuples(keys) if None not in row}

    def without(self, batch: pa.RecordBatch, may_be: pa.Array) -> pa.RecordBatch:
        """The rows of a batch without those that ``may_be`` (boolean) known and are."""
        if self._single is not None:
            column = batch.column(self._names[0])
            is_known = pc.is_in(column, value_set=self._single.cast(column.type))
        else:
            is_known = pa.array([row in self._tuples for row in _tuples(batch.select(self._names))], pa.bool_())
        return batch.filter(pc.invert(pc.and_(is_known, may_be)))


def known(path: str, key: tuple[str, ...], storage_options: Mapping[str, Any]) -> Known:
    """The keys in a file, which is read once a worker.

    Raises
    ------
    BacklogError
        It cannot be read, or has other columns.
    """
    global _last
    if _last is None or _last[:2] != (path, key):
        _last = (path, key, _read(path, key, storage_options))
    return _last[2]


def _read(path: str, key: tuple[str, ...], storage_options: Mapping[str, Any]) -> Known:
    try:
        with fsspec.open(path, "rb", **storage_options) as file:
            table = pq.read_table(file)
    except (OSError, ValueError) as error:
        raise BacklogError(
            f"The keys of the rows that files brought cannot be read from {path}: {type(error).__name__}.",
            "Executors must reach the stream's metadata location, as the driver does.",
        ) from error
    missing = [name for name in key if name not in table.column_names]
    if missing:
        raise BacklogError(
            f"{path} has no column {missing[0]!r} of dedupKey; it has {', '.join(table.column_names)}.",
            "dedupKey cannot be changed on an existing checkpoint.",
        )
    return Known(table.select(list(key)))


def _tuples(rows: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
