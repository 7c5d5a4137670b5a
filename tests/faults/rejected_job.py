"""Outputs of a query whose driver dies between the rejected rows of a batch and the others.

Arguments: the target, the side output, and the batch in which to die. Rows are computed from batch ids.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo, SinkContext
from backlog_spark.sinks.outputs import Outputs
from backlog_spark.sinks.rejected_rows import REJECTED_ROWS

from .session import job_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id BIGINT, n BIGINT, _change_type STRING, _commit_timestamp TIMESTAMP, _commit_seq BIGINT"
KEYS = 20


def changes(batch: int) -> list[tuple[int, int, str, None, int]]:
    """Each batch updates half of the keys; the first one inserts all."""
    kind = "update_postimage" if batch else "insert"
    return [(key, key + batch, kind, None, batch) for key in range(KEYS) if not batch or key % 2 == batch % 2]


def written(
    spark: SparkSession, target: str, beside: str, batches: range, newest: int | None, die_at: int = -1
) -> None:
    """Write batches, as a query whose newest planned batch is ``newest``."""

    class Deadly(bs.DeltaUpsert):
        def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
            if batch.batch_id == die_at:
                os.killpg(os.getpgrp(), signal.SIGKILL)
            super().write(batch_df, batch)

    outputs = Outputs({"": [Deadly(target, keys=["id"])], REJECTED_ROWS: [bs.DeltaAppend(beside)]})
    schema: Any = spark.createDataFrame([], SCHEMA).schema
    committed = None if newest is None else newest - 1
    outputs.open(SinkContext(spark, "app", schema, False, newest, committed), {}, lambda keys: False)
    for number in batches:
        outputs.write(spark.createDataFrame(changes(number), SCHEMA), {}, BatchInfo(number, False))
    outputs.close()


if __name__ == "__main__":
    written(job_session(), sys.argv[1], sys.argv[2], range(3), None, int(sys.argv[3]))
