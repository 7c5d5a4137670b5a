"""Drops records that the files before already had as rows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog_spark.errors import BacklogError

from ..phases import TIME

__all__ = ["Known", "known"]

_last: tuple[str, tuple[str, ...], Known] | None = None  # the worker's


class Known:
    """Rows by their keys and times. A row with NULL in its key or time is never de-duplicated.

    Parameters
    ----------
    keys : pyarrow.Table
        The key columns and the time, with their names in the stream.
    """

    def __init__(self, keys: pa.Table) -> None:
        self._names = keys.column_names
        # A set of one column stays in Arrow. Several columns are compared as tuples, at 1 us for each row, but only for
        # the few records that overlap with files.
        self._single = keys.column(0).combine_chunks().unique().drop_null() if len(self._names) == 1 else None
        self._tuples = set() if self._single is not None else {row for row in _tuples(keys) if None not in row}

    def without(self, batch: pa.RecordBatch, may_be: pa.Array) -> pa.RecordBatch:
        """The rows of a batch without known ones. Only rows where ``may_be`` is true are looked up."""
        if self._single is not None:
            column = batch.column(self._names[0])
            is_known = pc.and_(may_be, pc.is_in(column, value_set=self._single.cast(column.type)))
        else:
            near = batch.select(self._names).filter(may_be)
            is_known = pc.replace_with_mask(
                may_be, may_be, pa.array([row in self._tuples for row in _tuples(near)], pa.bool_())
            )
        return batch.filter(pc.invert(is_known))


def known(path: str, key: tuple[str, ...], storage: Mapping[str, str]) -> Known:
    """The keys in a file, with the rows' times if it has them (see `TIME`). Each worker reads it once.

    Raises
    ------
    BacklogError
        The file cannot be read, or has other columns.
    """
    global _last
    if _last is None or _last[:2] != (path, key):
        _last = (path, key, _read(path, key, storage))
    return _last[2]


def _read(path: str, key: tuple[str, ...], storage: Mapping[str, str]) -> Known:
    from backlog_spark.common.stores import arguments_for, store_of  # 0.2 s, for the few readers of an overlap

    try:
        store, name = store_of(path, arguments_for(path, storage, plain=not arguments_for(path, storage, plain=False)))
        table = pq.read_table(io.BytesIO(store.read(name)))
    except (OSError, pa.ArrowException) as error:
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
    time = (table.schema.metadata or {}).get(TIME)
    return Known(table.select(list(dict.fromkeys([*key, *([time.decode()] if time else [])]))))


def _tuples(rows: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    # Times are numbers here: making and comparing them takes a tenth of the time.
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
