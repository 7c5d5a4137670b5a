"""Appends each batch as files, exactly once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.change_columns import check_stored, checked_columns
from backlog_spark.spark.checkpoint.store import CheckpointStore
from backlog_spark.spark.jvm.file_sink import METADATA, add_batch, check_format, file_sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FilesSink", "ParquetSink"]

_OWNER: Final = "_backlog_spark.json"
_FORMATS: Final = ("parquet", "csv", "json", "orc", "text", "avro")


class FilesSink(Sink):
    """Appends each batch as files of a format of Spark, exactly once.

    The files are those of Spark's own file sink, ``writeStream.format("csv")``: a log in ``_spark_metadata`` names the
    files of each batch, and is written atomically after them. ``spark.read`` follows it. So a batch is visible as a
    whole or not at all, and one that the log has is not written again. One query writes to a path.

    Parameters
    ----------
    path : str
        A directory on any filesystem that Spark supports. The first start creates it.
    format : {"parquet", "csv", "json", "orc", "text", "avro"}, default "parquet"
        Avro needs Spark's package spark-avro.
    partition_by : sequence of str
        Columns whose values become directories, such as ``day=2024-01-01``, and are not in the files.
    options : mapping of str to str
        Spark's options for the format, such as ``compression`` or ``header``.

    Raises
    ------
    SettingError
        There is no such format.

    Examples
    --------
    >>> FilesSink("/lake/clicks", "csv", partition_by=["day"])
    FilesSink('/lake/clicks')
    """

    @checked_arguments
    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if format not in _FORMATS:
            raise SettingError("format", format, f"must be one of {', '.join(_FORMATS)}.", "Choose one of them.")
        self.path = os.fspath(path)
        self.format = format
        self.partition_by = checked_columns("partition_by", partition_by)
        self.options = dict(options)
        self._query = ""

    def for_output(self) -> FilesSink:
        return FilesSink(self.path, self.format, partition_by=self.partition_by, options=self.options)

    def described(self) -> dict[str, Any]:
        return {"kind": "FilesSink", "path": self.path, "format": self.format}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        return _owner(CheckpointStore(spark, self.path)) == txn_app_id

    def open(self, context: SinkContext) -> None:
        """Check that the path is this query's, and has its batches. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            The format cannot be written, or `partition_by` names a column that is not there or has each one.
        BacklogError
            The path has files of others, or lacks batches.
        """
        from pyspark.sql.types import StructType

        check_stored("FilesSink", "partition_by", self.partition_by, context.schema.fields)
        if len(self.partition_by) == len(context.schema):
            raise SettingError(
                "partition_by", ",".join(self.partition_by), "leaves no column for the files.", "Leave one out."
            )
        kept = [field for field in context.schema.fields if field.name not in self.partition_by]
        try:
            check_format(context.spark, self.format, StructType(kept))
        except BacklogError:
            raise
        except Exception as error:
            raise SettingError(
                "format", self.format, f"Spark cannot write it: {str(error).partition(chr(10))[0]}.",
                "Choose another format, or cast the column. Avro needs Spark's package spark-avro.",
            ) from None  # fmt: skip
        files, self._query = CheckpointStore(context.spark, self.path), context.txn_app_id
        owner = _owner(files)
        if owner is None and (others := files.names_in(".")):
            raise BacklogError(
                f"{self.path} has files that this query did not write, such as {min(others)}. Readers would no longer "
                "find them.",
                "Name an empty directory.",
            )
        if owner not in (None, context.txn_app_id):
            raise BacklogError(
                f"{self.path} has the files of another query.",
                "Name an empty directory, or go on with that query's checkpointLocation.",
            )
        newest, committed, planned = (
            -1 if each is None else each for each in (_newest(files), context.newest_committed, context.newest_planned)
        )
        if not committed <= newest <= planned:
            raise BacklogError(
                f"{self.path} has batches of this query up to {newest}; its checkpoint has committed up to "
                f"{committed} and planned up to {planned}: one of them is an older copy.",
                "Put it back, or start with a new checkpointLocation and an empty path.",
            )
        if owner is None:
            files.make_directory(".")
            files.create_file(_OWNER, json.dumps({"query": context.txn_app_id}))

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        files = CheckpointStore(batch_df.sparkSession, self.path)
        if _owner(files) != self._query:
            raise BacklogError(f"{self.path} is no longer this query's.", "Start with a new path and checkpoint.")
        newest = _newest(files)
        if newest is not None and newest >= batch.batch_id:
            self.written = Written(batch.batch_id, "none", "the path has the batch")
            return
        add_batch(self._sink(batch_df.sparkSession), batch_df, batch.batch_id)
        self.written = Written(batch.batch_id, "spark", "Spark writes its files")

    def _sink(self, spark: SparkSession) -> Any:
        return file_sink(spark, self.format, self.partition_by, {**self.options, "path": self.path})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"


class ParquetSink(FilesSink):
    """`FilesSink` with files of Parquet."""

    @checked_arguments
    def __init__(self, path: str | os.PathLike[str], *, partition_by: Sequence[str] = ()) -> None:
        super().__init__(path, partition_by=partition_by)


def _owner(files: CheckpointStore) -> str | None:
    found = files.read_object(_OWNER)
    return None if found is None else str(found["query"])


def _newest(files: CheckpointStore) -> int | None:
    """The newest batch in Spark's log. Each batch is there, also one without rows."""
    found = (re.fullmatch(r"(\d+)(\.compact)?", name) for name in files.names_in(METADATA))
    return max((int(each[1]) for each in found if each), default=None)
