"""A table with a composite key of bytes and text, through Spark and its checkpoint into Delta."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.offsets import Offset

from .test_main_job import contents, wait, writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

import backlog_spark as bs

SPELLINGS = "aáAbBcçC"


@pytest.mark.grid
def test_a_composite_key_goes_through_the_checkpoint_and_back(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS job")
    mysql.execute("DROP TABLE IF EXISTS job.composite")
    mysql.execute(
        "CREATE TABLE job.composite (v VARBINARY(4), k VARCHAR(9) COLLATE utf8mb4_0900_ai_ci, n INT, "
        "PRIMARY KEY (v, k))"
    )
    rows = ",".join(f"(x'00ff{n % 3:02x}', '{SPELLINGS[n % 8]}{n:03d}', {n})" for n in range(300))
    mysql.execute(f"INSERT INTO job.composite VALUES {rows}")
    sink = bs.DeltaUpsert(str(tmp_path / "target"), keys=["v", "k"])
    made = writer(mysql, "composite", tmp_path, sink, maxRowsPerBatch=110, chunkSize=40)

    def table() -> Counter[tuple[Any, ...]]:
        return Counter(mysql.execute("SELECT v, k, n FROM job.composite"))

    def copied() -> bool:
        return Counter({(bytes(v), *rest): n for (v, *rest), n in contents(spark, tmp_path).items()}) == table()

    for change in ("UPDATE job.composite SET n = n + 1000, k = UPPER(k) WHERE n % 5 = 0", "DELETE FROM job.composite"):
        query = made.trigger(processing_time="200 ms").start(spark)
        try:
            wait(copied, query)
            mysql.execute(f"{change} LIMIT 40")
            wait(copied, query)
        finally:
            query.stop()
    offsets = sorted(
        (tmp_path / "checkpoint" / "offsets").iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1
    )
    found = [Offset.from_json(json.loads(p.read_text().splitlines()[-1])) for p in offsets if p.name.isdigit()]
    snapshot = next(o for o in found if o.complete)
    assert [type(part) for part in (snapshot.ranges[0].end or ())] == [bytes, str]
    assert len(snapshot.ranges) == 3
