"""The hand-over from a phase of files to the next phase: the greatest time in the files, and keys of recent rows."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from ..phases import TIME, Columns
from .entries import DataFile, Piece
from .formats import Format, Spans
from .manifest import digest_of
from .options import ReadOptions
from .reading import Reader

__all__ = ["Handover", "check_handover"]

# Keys are made distinct whenever this many have accumulated, so that only distinct ones take memory.
_KEYS = 1_000_000
_THREADS = 16


def check_handover(options: ReadOptions, data: pa.Schema) -> None:
    """Check that the columns in the options exist and have suitable types.

    Raises
    ------
    BacklogError
    """
    for setting, names in (("timestampColumn", [options.timestamp_column]), ("dedupKey", options.dedup_key)):
        for name in filter(None, names):
            if name not in data.names:
                raise BacklogError(
                    f"{setting}: the stream has no column {name}; it has {', '.join(data.names)}.",
                    "Use one of these names, spelt as declared.",
                )
    if options.timestamp_column:
        kind = data.field(options.timestamp_column).type
        if not pa.types.is_timestamp(kind):
            raise BacklogError(
                f"timestampColumn: {options.timestamp_column} is {kind}, not a timestamp.",
                "Declare it as timestamp or timestamp_ntz, or leave out timestampColumn.",
            )
    for name in options.dedup_key:
        kind = data.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise BacklogError(
                f"dedupKey: {name} is {kind}, whose values cannot be compared reliably.",
                "Use columns of other types.",
            )


class Handover:
    """Scans all files of a phase at its end.

    Parameters
    ----------
    files : sequence of DataFile
    reader : Reader
    form : Format
    columns : Columns
    options : ReadOptions
        With a timestamp column.
    """

    def __init__(
        self, files: Sequence[DataFile], reader: Reader, form: Format, columns: Columns, options: ReadOptions
    ) -> None:
        self._files = files
        self._reader = reader
        self._format = form
        self._columns = columns
        self._options = options

    def as_json(self, metadata: Callable[[], tuple[Store, str]]) -> dict[str, Any]:
        """``lastTimestamp`` in milliseconds since 1970, rounded down, and ``dedup``, the path of the file with keys.

        Empty if no row has a time. ``metadata`` returns the store and directory for that file.
        """
        spans = list(self._spans())
        greatest = max((last for _, last in spans if last is not None), default=None)
        if greatest is None:
            return {}
        found: dict[str, Any] = {"lastTimestamp": greatest // 1000}
        if self._options.dedup_key and self._options.overlap_ms is not None:
            since = (greatest // 1000 - self._options.overlap_ms) * 1000
            keys = self._keys([piece for piece, last in spans if last is not None and last >= since], since)
            sink = io.BytesIO()
            pq.write_table(keys, sink, compression="zstd")
            data = sink.getvalue()
            store, directory = metadata()
            path = f"{directory.rstrip('/')}/keys-{digest_of(data)}.parquet"
            store.write(path, data)
            found["dedup"] = store.name(path)
        return found

    def newest(self) -> tuple[int | None, bool]:
        """The greatest time in milliseconds, as in `as_json`, and whether the files' metadata alone tell it."""
        greatest: list[int] = []
        for _, spans in self._latest():
            if spans is None:
                return None, False
            greatest += [last for _, _, last in spans if last is not None]
        return (max(greatest) // 1000 if greatest else None), True

    def _spans(self) -> Iterator[tuple[Piece, int | None]]:
        """The pieces of all files, with their greatest microseconds."""
        for file, spans in self._latest():
            if spans is None:
                yield Piece(file), self._scanned(Piece(file))
            else:
                yield from ((Piece(file, first, end), last) for first, end, last in spans)

    def _latest(self) -> Iterator[tuple[DataFile, Spans | None]]:
        """All files, with the greatest times of their pieces from their metadata, if these have them."""
        column = self._options.timestamp_column

        def latest(file: DataFile) -> tuple[DataFile, Spans | None]:
            # Times in the metadata include deleted rows, or belong to a file column that a directory replaces.
            if file.deleted or any(name.casefold() == column.casefold() for name, _ in file.values):
                return file, None
            return file, self._reader.use(file, lambda source: self._format.latest(source, file, column))

        with ThreadPoolExecutor(_THREADS) as pool:
            for at in range(0, len(self._files), 1_000):
                yield from pool.map(latest, self._files[at : at + 1_000])

    def _scanned(self, piece: Piece) -> int | None:
        found = []
        for _, (times,), _ in self._reader.rows(piece, (self._options.timestamp_column,)):
            greatest = pc.max(times.cast(pa.int64())).as_py()
            if greatest is not None:
                found.append(greatest)
        return max(found, default=None)

    def _keys(self, pieces: Sequence[Piece], since: int) -> pa.Table:
        """Distinct keys, with their times, of rows from a time on. A row with another time is another version."""
        time = self._options.timestamp_column
        names = tuple(dict.fromkeys([*self._options.dedup_key, time]))
        schema = pa.schema([self._columns.data.field(name) for name in names], {TIME: time.encode()})
        found: list[pa.RecordBatch] = []
        count = 0
        for piece in pieces:
            for _, keys, _ in self._reader.rows(piece, names):
                times = keys[names.index(time)]
                late = pc.fill_null(pc.greater_equal(times.cast(pa.int64()), since), False)
                batch = pa.RecordBatch.from_arrays(keys, schema=schema).filter(late)
                found.append(batch)
                count += batch.num_rows
                if count >= _KEYS:
                    found, count = _distinct(found, schema).to_batches(), 0
        return _distinct(found, schema).sort_by([(name, "ascending") for name in names])


def _distinct(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(batches, schema)
    return table.group_by(list(schema.names), use_threads=False).aggregate([]).cast(schema)
