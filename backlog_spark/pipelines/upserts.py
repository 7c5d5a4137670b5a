"""Makes upserts of plain rows: a later row replaces the earlier one of its key.

The rows are numbered in Python, because Spark refuses ``monotonically_increasing_id`` in a stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["as_upserts"]


def as_upserts(rows: DataFrame) -> DataFrame:
    """The rows with the columns of a change stream. The order is that within a task, which reads a key's rows.

    For `BacklogStream.transform`.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType, StructField, StructType

    from backlog_spark.model.changes import CHANGE_TYPE, INSERT

    numbered = map_in_arrow(rows, _numbered, StructType([*rows.schema, StructField("_commit_seq", LongType())]))
    of_change = F.lit(INSERT).alias(CHANGE_TYPE), F.lit(None).cast("timestamp").alias("_commit_timestamp")
    return numbered.select(*rows.columns, *of_change, "_commit_seq")


def _numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in batches:
        numbers = pa.array(np.arange(count, count + batch.num_rows, dtype=np.int64))
        count += batch.num_rows
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], [*batch.schema.names, "_commit_seq"])
