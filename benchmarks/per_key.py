"""The peer ``tws_per_key``: Spark's own keyed state in Python, one key at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PER_KEY_ROWS", "per_key_time"]

PER_KEY_ROWS = 100_000
"""Rows of the run. It is slow."""

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class _Total(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        found = self._total.get() if self._total.exists() else (0,)
        total = int(found[0]) + sum(int(frame["value"].sum()) for frame in rows)
        self._total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "value": [total]})

    def close(self) -> None:
        pass


def per_key_time(spark: SparkSession, folder: Path, rows: Callable[[], DataFrame]) -> float:
    """Seconds for `PER_KEY_ROWS` rows of ``key`` and ``value`` in one batch of a streaming query."""
    rows().write.parquet(str(folder / "per-key"))
    frame = spark.readStream.schema("key long, value long").parquet(str(folder / "per-key"))
    totals = frame.groupBy("key").transformWithStateInPandas(_Total(), "key long, value long", "update", "None")
    writer = totals.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "per-key-checkpoint"))
    with session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": _ROCKSDB}):
        began = time.perf_counter()
        query = writer.start()
    query.awaitTermination()
    return time.perf_counter() - began
