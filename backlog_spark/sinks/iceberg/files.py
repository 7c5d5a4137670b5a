"""Writes and reads data files of an Iceberg table, in the driver and in Spark's tasks, with pyiceberg's own code.

So the files have field ids, exact statistics and the table's partitions, in any storage that pyiceberg reaches. Nothing
here commits: readers of the table see no new file, and files of failed or repeated tasks are never referred to.

Reaches for ``_dataframe_to_data_files`` of pyiceberg 0.12: its public functions write and commit in one step, or read
the statistics of files without field ids.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.common.sql_names import quoted
from backlog_spark.sinks.iceberg.columns import arrow_schema, conformed

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["TableFiles", "read_rows", "rows_type", "write_rows"]

TARGET_BYTES: Final = "write.target-file-size-bytes"
_DEFAULT_TARGET: Final = 512 << 20
# A task holds this much of its rows at most, whatever size of files the table wants.
_MOST_BUFFERED: Final = 128 << 20
# Parquet writes no minimum and maximum of longer values. pyiceberg then takes those of the file's other row groups.
_LONGEST_WITH_BOUNDS: Final = 2048


@dataclass(frozen=True)
class TableFiles:
    """The files of one version of a table, as a value that goes to Spark's tasks.

    Parameters
    ----------
    metadata : TableMetadata
    io : FileIO
        With the credentials of the table's storage.
    """

    metadata: TableMetadata
    io: FileIO = field(repr=False)

    @classmethod
    def of(cls, table: Table) -> TableFiles:
        # A table may have thousands of snapshots, and no file depends on them.
        none: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        return cls(table.metadata.model_copy(update={**none, "current_snapshot_id": None}), table.io)

    @property
    def schema(self) -> pa.Schema:
        """All columns in Arrow."""
        return arrow_schema(self.metadata.schema())

    @property
    def form(self) -> tuple[int, int, str]:
        """What a file must be written for: columns, partitions and location of the table."""
        return self.metadata.current_schema_id, self.metadata.default_spec_id, self.metadata.location

    @property
    def partition_sources(self) -> list[str]:
        """The columns that the table is partitioned by, themselves or through a transform."""
        schema = self.metadata.schema()
        found = [schema.find_column_name(each.source_id) for each in self.metadata.spec().fields]
        return [name for name in found if name is not None and "." not in name]

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write rows as files; columns that they lack are NULL."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        if not rows.num_rows:
            return []
        rows = conformed(rows, self.schema)
        made = list(_dataframe_to_data_files(self.metadata, rows, self.io))
        for name in rows.column_names:
            if _is_long(rows[name]):
                number = self.metadata.schema().find_field(name).field_id
                for file in made:
                    file.lower_bounds.pop(number, None)
                    file.upper_bounds.pop(number, None)
        return made

    def read(self, task: FileScanTask, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file that are not deleted, with these columns or all."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        schema = self.metadata.schema()
        if columns is not None:
            schema = schema.select(*columns)
        found = ArrowScan(self.metadata, self.io, schema, AlwaysTrue()).to_table([task])
        return conformed(found, arrow_schema(schema))

    def written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A step in Spark: writes a task's rows, and yields a row for each file."""
        most = min(_MOST_BUFFERED, int(self.metadata.properties.get(TARGET_BYTES, _DEFAULT_TARGET)))
        buffered: list[pa.RecordBatch] = []
        for batch in batches:
            buffered.append(batch)
            if sum(each.nbytes for each in buffered) >= most:
                yield self._written(buffered)
                buffered = []
        if buffered:
            yield self._written(buffered)

    def _written(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        files = self.write(pa.Table.from_batches(batches))
        return pa.RecordBatch.from_pydict({"file": pa.array([pickle.dumps(file) for file in files], pa.binary())})


@dataclass(frozen=True)
class _Reader:
    """A step in Spark: reads the files whose numbers are in its rows."""

    files: TableFiles
    tasks: tuple[bytes, ...]
    columns: tuple[str, ...]
    target: pa.Schema
    path: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                task = pickle.loads(self.tasks[number])  # made by the driver
                rows = conformed(self.files.read(task, self.columns), self.target)
                if self.path:
                    names = pa.repeat(pa.scalar(task.file.file_path), rows.num_rows)
                    rows = rows.append_column(self.path, names)
                yield from rows.to_batches()


def write_rows(rows: DataFrame, files: TableFiles) -> list[DataFile]:
    """Write rows as files in Spark's tasks. Runs the plan of the rows once."""
    if sources := [name for name in files.partition_sources if name in rows.columns]:
        rows = rows.sortWithinPartitions(*map(quoted, sources))  # else a task writes many files of each partition
    made = map_in_arrow(rows, files.written, "file binary").collect()
    return [pickle.loads(row[0]) for row in made]  # from this query's tasks


def rows_type(files: TableFiles, columns: Sequence[str]) -> StructType:
    """Columns of the table as types of Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = files.schema
    return from_arrow_schema(pa.schema([schema.field(name) for name in columns]), prefer_timestamp_ntz=True)


def read_rows(
    spark: SparkSession, files: TableFiles, tasks: Sequence[FileScanTask], columns: Sequence[str], path: str = ""
) -> DataFrame:
    """The rows of files that are not deleted, read in Spark's tasks.

    Parameters
    ----------
    path : str
        The name of a column for the path of each row's file; "" for none.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType, StructField, StructType

    schema = rows_type(files, columns)
    target = to_arrow_schema(schema, timezone="UTC")
    reader = _Reader(files, tuple(pickle.dumps(task) for task in tasks), tuple(columns), target, path)
    if path:
        schema = StructType([*schema, StructField(path, StringType())])
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
    return numbers.mapInArrow(reader, schema)


def _is_long(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        return False
    longest = pc.max(pc.binary_length(column)).as_py()
    return longest is not None and longest > _LONGEST_WITH_BOUNDS
