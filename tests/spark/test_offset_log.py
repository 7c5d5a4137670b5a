"""Keyed queries in a session whose offset logs have Spark's second format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.spark.jvm.session import session_conf
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# All other tests run with the first one.
@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.grid), "2"])
def test_a_keyed_query_goes_from_backlog_to_stream(spark: SparkSession, tmp_path: Path, version: str) -> None:
    append(tmp_path / "s", pa.table({"k": [1, 2], "v": [1, 2]}), backlog=True)
    append(tmp_path / "s", pa.table({"k": [1], "v": [10]}), backlog=False)
    sink = Collect()
    summed = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k").sum("v")
    conf = {"spark.sql.streaming.offsetLog.formatVersion": version, "spark.backlog.restart.maxAttempts": "0"}
    with session_conf(spark, conf):
        query = (
            summed.write("sums")
            .trigger(processing_time="100 ms", interval_during_backlog=0)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .to(sink)
            .start(spark)
        )
        try:
            wait(lambda: len(sink.batches) >= 2, query)
        finally:
            query.stop()
    assert (tmp_path / "checkpoint" / "offsets" / "1").read_text().startswith(f"v{version}\n")
    assert sink.newest(1) == {(1,): (11,), (2,): (2,)}
    assert sink.backlog == {0: True, 1: False}
