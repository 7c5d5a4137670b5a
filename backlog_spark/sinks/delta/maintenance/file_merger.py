"""Writes small files of a Delta table as one file, with Delta's statistics, and commits nothing."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from backlog_spark.sinks.delta.maintenance.small_files import DataFile

__all__ = ["FileMerger", "OldCalendar", "is_of_old_calendar"]

_INDEXED_COLUMNS: Final = "delta.dataSkippingNumIndexedCols"
# Delta's default.
_INDEXED: Final = 32
# Size in Arrow, which is ten times the size in Parquet.
_ROW_GROUP_BYTES: Final = 128 << 20
_SPARK_VERSION: Final = b"org.apache.spark.version"
_LEGACY: Final = frozenset({b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"})
_LONGEST_TEXT: Final = 32

_EPOCH: Final = datetime(1970, 1, 1)
_DAY_US: Final = 86_400_000_000


class FileMerger:
    """Writes each group of files as one file."""

    def __init__(
        self,
        table: DeltaTable,
        storage_options: dict[str, str],
        added: pa.Table,
        properties: Mapping[str, str],
    ) -> None:
        # With the sizes given, opening a file needs no request to the storage.
        sizes = dict(zip(added["path"].to_pylist(), added["size_bytes"].to_pylist(), strict=True))
        self._handler = DeltaStorageHandler(table.table_uri, storage_options or None, sizes)
        self._partition_columns = table.metadata().partition_columns
        fields = [field for field in pa.schema(table.schema().to_arrow()) if field.name not in self._partition_columns]
        self._schema = pa.schema(fields)
        rows = added.select(["path", "num_records"]).to_pylist()
        self._rows = {row["path"]: row["num_records"] for row in rows}
        indexed = int(properties.get(_INDEXED_COLUMNS, _INDEXED))
        self._indexed = self._schema.names if indexed < 0 else self._schema.names[:indexed]

    def merge(self, group: Sequence[DataFile]) -> list[AddAction | RemoveAction]:
        # By default Spark writes timestamps as INT96; as nanoseconds they would end in the year 2262.
        options = pads.ParquetReadOptions(coerce_int96_timestamp_unit="us")
        rows: pads.FileSystemDataset = pads.dataset(
            [file.path for file in group],
            schema=self._schema,
            format=pads.ParquetFileFormat(read_options=options),
            filesystem=pafs.PyFileSystem(self._handler),
        )
        for fragment in rows.get_fragments():
            if is_of_old_calendar(fragment.metadata.metadata or {}):
                raise OldCalendar(fragment.path)
            # Arrow would treat a name in another case as another column, and this column as NULL.
            lower = {name.lower() for name in self._schema.names}
            for name in fragment.physical_schema.names:
                if name.lower() in lower and name not in self._schema.names:
                    raise ValueError(f"{fragment.path} has the column {name!r}, which the table writes in another case")
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, self._schema, compression="zstd", store_schema=False) as writer:
            for table in _row_groups(rows.scanner(batch_readahead=4, fragment_readahead=4).to_batches()):
                writer.write_table(table)
        content = sink.getvalue()
        written = pq.read_metadata(pa.BufferReader(content))
        known = [self._rows[file.path] for file in group]
        if None not in known and sum(known) != written.num_rows:
            raise RuntimeError(f"merged {written.num_rows} rows, but the files have {sum(known)}")
        directory = group[0].path.rpartition("/")[0]
        name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        path = f"{directory}/{name}" if directory else name
        # Uses the inner handler directly: the file that `open_output_stream` returns passes it buffers, but it needs
        # bytes.
        stream: Any = self._handler._handler.open_output_stream(path)
        try:
            stream.write(content.to_pybytes())
        finally:
            stream.close()
        now = int(time.time() * 1000)
        values = _written(self._partition_columns, group[0].partition)
        stats = json.dumps(_statistics(written, self._schema, self._indexed))
        removed = [RemoveAction(file.path, False, now, file.size, values) for file in group]
        return [AddAction(path, content.size, values, now, False, stats), *removed]


class OldCalendar(Exception):
    """Its argument is the path of a file whose dates use another calendar."""


def is_of_old_calendar(metadata: Mapping[bytes, bytes]) -> bool:
    """Whether Spark wrote a file with the calendar of Spark 1 and 2, according to the file's metadata."""
    return metadata.get(_SPARK_VERSION, b"3").startswith((b"1.", b"2.")) or not _LEGACY.isdisjoint(metadata)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine the batches of many small files: small row groups are as slow as small files."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.nbytes for one in held) >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _written(columns: Sequence[str], partition: Any) -> dict[str, str | None]:
    """A partition in the form of the log."""
    values = dict(partition)
    return {name: _text(values[name]) for name in columns}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _statistics(written: pq.FileMetaData, schema: pa.Schema, indexed: Sequence[str]) -> dict[str, Any]:
    """Delta's statistics of a file, for columns whose order is the same for every reader."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [written.row_group(number) for number in range(written.num_row_groups)]
    indices = {written.schema.column(number).path: number for number in range(written.num_columns)}
    for name in indexed:
        # Nested columns have other paths.
        if name not in indices or pa.types.is_nested(schema.field(name).type):
            continue
        chunks = [group.column(indices[name]).statistics for group in groups if group.num_rows]
        if not chunks or not all(chunk is not None and chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        bounded = [chunk for chunk in chunks if chunk.num_values]  # nulls are not counted
        bounds = [_bounds(chunk, schema.field(name).type) for chunk in bounded]
        found = [bound for bound in bounds if bound is not None]
        if found and len(found) == len(bounds):
            least[name], most[name] = min(low for low, _ in found), max(high for _, high in found)
    return {"numRecords": written.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(chunk: pq.Statistics, type: pa.DataType) -> tuple[Any, Any] | None:
    """Minimum and maximum in Delta's JSON, as texts in the order of their values; None if unsure.

    Floats have none: NaN is the greatest value in Spark, and Parquet leaves it out. Decimals have none: some readers
    parse numbers in JSON as floats.
    """
    if not chunk.has_min_max:
        return None
    if pa.types.is_integer(type):
        return chunk.min, chunk.max
    if pa.types.is_string(type):
        return (chunk.min, chunk.max) if max(len(chunk.min), len(chunk.max)) <= _LONGEST_TEXT else None
    # From the raw numbers of the file: Python's dates and times are limited to the years 1 to 9999.
    if pa.types.is_date32(type):
        low, high = _time(chunk.min_raw * _DAY_US), _time(chunk.max_raw * _DAY_US)
        return (low[:10], high[:10]) if low and high else None
    if pa.types.is_timestamp(type):
        # Some readers look at milliseconds only.
        low, high = _time(chunk.min_raw // 1000 * 1000), _time(-(-chunk.max_raw // 1000) * 1000)
        zone = "Z" if type.tz else ""
        return (low[:23] + zone, high[:23] + zone) if low and high else None
    return None


def _time(microseconds: int) -> str:
    """The timestamp as text; empty if its year does not have four digits."""
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        return ""
