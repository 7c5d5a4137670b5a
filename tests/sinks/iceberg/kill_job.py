"""An upsert whose driver is killed at a given point of a batch. Rows are computed from batch ids.

Arguments: the directory of the catalog, a file for the newest committed batch, the point, `small_batch_rows`, and which
rows the table keeps.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from tests.faults.session import job_session
from tests.sinks.iceberg.places import TABLE, catalog_at

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

PLAIN, VERSIONS = "plain", "versions"
SCHEMA = StructType().add("id", LongType()).add("batch", LongType())
CHANGES = (
    StructType([*SCHEMA.fields])
    .add("_change_type", StringType())
    .add("_commit_timestamp", TimestampType())
    .add("_commit_seq", LongType())
)
MOMENTS = ("before", "during", "swapped", "after")
ROWS = 30


def batch(spark: SparkSession, batch_id: int, form: str = PLAIN) -> DataFrame:
    """Half of its keys were in the batch before."""
    first = ROWS // 2 * batch_id
    rows = spark.range(first, first + ROWS, 1, 2).selectExpr("id", f"CAST({batch_id} AS BIGINT) AS batch")
    if form == PLAIN:
        return rows
    more = ("'insert' AS _change_type", "timestamp_seconds(batch) AS _commit_timestamp", "batch AS _commit_seq")
    return rows.selectExpr("*", *more)


def expected(batches: int, form: str = PLAIN) -> Counter[tuple[Any, ...]]:
    """Each key and its newest batch; or each version with its begin, its end and whether it is the current one."""
    of_keys: dict[int, list[int]] = {}
    for number in range(batches):
        for key in range(ROWS // 2 * number, ROWS // 2 * number + ROWS):
            of_keys.setdefault(key, []).append(number)
    if form == PLAIN:
        return Counter((key, numbers[-1]) for key, numbers in of_keys.items())
    pairs = {key: zip(numbers, [*numbers[1:], None], strict=True) for key, numbers in of_keys.items()}
    return Counter((key, n, n, end, end is None) for key, of_key in pairs.items() for n, end in of_key)


def found(table: Table) -> Counter[tuple[Any, ...]]:
    """The table as `expected` has it."""
    rows = table.refresh().scan().to_arrow()
    columns = [pc.divide(c.cast("int64"), 1_000_000) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def opened(
    spark: SparkSession, lake: str, noted: Path, small_batch_rows: int, form: str = PLAIN
) -> tuple[IcebergUpsert, int]:
    """The sink, opened like in a query, and the first batch not recorded as committed."""
    first = int(noted.read_text()) + 1 if noted.exists() else 0
    # Whether a batch was planned is not written down; so the next one may have been.
    planned, committed = (first, first - 1) if first else (0, None)
    rows: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    if form == VERSIONS:
        rows = {"history": "scd2"}
    sink = IcebergUpsert(TABLE, ["id"], catalog_at(lake), small_batch_rows=small_batch_rows, **rows)
    schema = SCHEMA if form == PLAIN else CHANGES
    sink.open(SinkContext(spark, "app", schema, False, planned, committed))
    return sink, first


def note(noted: Path, batch_id: int) -> None:
    """Record a commit after the sink's, like Spark's commit log."""
    noted.with_suffix(".new").write_text(str(batch_id))
    noted.with_suffix(".new").rename(noted)


def die(*_: Any) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def at(owner: Any, name: str, *, after: bool) -> None:
    """Die when a function is called, or when it has returned."""
    plain: Callable[..., Any] = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        if after:
            plain(*arguments, **named)
        return die()

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(dying) if is_static else dying)


def main() -> None:
    lake, noted, moment, small_batch_rows = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    form = sys.argv[5]
    spark = job_session()
    sink, first = opened(spark, lake, noted, small_batch_rows, form)
    sink.write(batch(spark, first, form), BatchInfo(first, False))
    note(noted, first)

    from pyiceberg.catalog.sql import SqlCatalog

    from backlog_spark.sinks.iceberg import commits

    if moment == "before":
        at(commits, "commit_batch", after=False)  # the files are there
    elif moment == "during":
        at(SqlCatalog, "_write_metadata", after=True)  # the new metadata are there, and nobody refers to them
    elif moment == "swapped":
        at(SqlCatalog, "commit_table", after=True)
    else:
        at(commits, "commit_batch", after=True)
    sink.write(batch(spark, first + 1, form), BatchInfo(first + 1, False))


if __name__ == "__main__":
    main()
