"""Tables that Spark writes and changes, against Spark's own change data feed; and a table in S3."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, write_deltalake

from backlog_spark.errors import BacklogError
from tests.sinks.s3 import lake

from .test_following_model import CHANGES, Driver, rows_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.grid), 1])
def test_changes_by_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance, path = random.Random(seed), str(tmp_path / "t")
    partitioned = "PARTITIONED BY (k)" if seed % 2 else ""
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n BIGINT, k STRING) USING delta {partitioned} TBLPROPERTIES "
        "(delta.enableChangeDataFeed=true, delta.enableDeletionVectors=false)"
    )
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, concat('k ', id % 3) FROM range(20)")
    first = DeltaTable(path).version()
    options = {
        "phases": "live:delta", "path": path, "discovery": "continuous", "discoveryInterval": "0 s",
        "readChangeFeed": "true", "metadataColumns": ",".join(CHANGES), "maxFilesPerBatch": "2",
    }  # fmt: skip
    driver = Driver(options, chance, CHANGES)
    while not driver.log:
        driver.live(1)
    new = f"(SELECT id AS n, concat('k ', id % 3) AS k FROM range({first}, 45, 7))"
    steps = [
        f"INSERT INTO delta.`{path}` SELECT id + 100, 'k 0' FROM range(5)",
        f"DELETE FROM delta.`{path}` WHERE n % 7 = 3",
        f"UPDATE delta.`{path}` SET n = n + 1000 WHERE n % 5 = 1",
        f"MERGE INTO delta.`{path}` t USING {new} s ON t.n = s.n WHEN MATCHED THEN UPDATE SET k = 'merged' "
        "WHEN NOT MATCHED THEN INSERT *",
        f"OPTIMIZE delta.`{path}`",
        f"INSERT OVERWRITE delta.`{path}` SELECT id, 'k 1' FROM range(50, 60)",
        f"RESTORE delta.`{path}` TO VERSION AS OF {first}",
        f"DELETE FROM delta.`{path}` WHERE k = 'k 0'",
    ]  # fmt: skip
    for step in chance.sample(steps, len(steps)):
        spark.sql(step)
        driver.live(chance.randint(0, 2))
    driver.live()
    found = Counter({(*row[:3], row[3] // 2): n for row, n in driver.found().items() if row[3]})
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first + 1).load(path)
    expected = feed.select("n", "k", "_change_type", "_commit_version").collect()
    assert found == Counter(tuple(row) for row in expected)
    history = Counter({row[:2]: n for row, n in driver.found().items() if not row[3]})
    assert history == rows_at(tmp_path / "t", first)


@pytest.mark.slow
def test_deletion_vectors_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """In the first version they count. Later they are a change."""
    path = str(tmp_path / "t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (n BIGINT, k STRING) USING delta TBLPROPERTIES "
        "(delta.enableDeletionVectors=true)"
    )  # fmt: skip
    spark.range(0, 20, 1, 1).selectExpr("id AS n", "'k' AS k").write.format("delta").mode("append").save(path)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n < 5")
    options = {"phases": "live:delta", "path": path, "discovery": "continuous", "discoveryInterval": "0 s"}
    driver = Driver(options, random.Random(1))
    driver.live()
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (100, 'k')")
    driver.live()
    assert driver.found() == Counter([(n, "k") for n in [*range(5, 20), 100]])
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 7")
    with pytest.raises(BacklogError, match=r"Version 4 of .*\(DELETE\) is no append"):
        driver.live()


@pytest.mark.slow
def test_a_table_in_s3() -> None:
    with lake() as storage:
        url = "s3://lake/a table"
        chance = random.Random(3)

        def write(*numbers: int) -> None:
            import pyarrow as pa

            rows = pa.table({"n": pa.array(numbers, pa.int64()), "k": ["a b"] * len(numbers)})
            write_deltalake(url, rows, mode="append", partition_by=["k"], storage_options=storage)

        write(1, 2)
        options = {
            "phases": "live:delta", "path": url, "discovery": "continuous", "discoveryInterval": "0 s",
            **{f"fs.{name}": value for name, value in storage.items()},
        }  # fmt: skip
        driver = Driver(options, chance)
        driver.live()
        for n in range(3, 8):
            write(n)
            driver.live(1)
        driver.live()
        assert driver.found() == Counter((n, "a b") for n in range(1, 8))
        DeltaTable(url, storage_options=storage).delete("n = 1")
        with pytest.raises(BacklogError, match="is no append"):
            driver.live()
