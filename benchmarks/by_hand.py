"""The jobs that a user would write by hand on ``format("mysql_cdc")``: foreachBatch with Delta's MERGE or append.

The first batch, the whole snapshot, is written as a new table: MERGE would find no match in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from servers.mysql import MySQLServer

__all__ = ["METADATA", "append", "keyed_sum", "merge", "temporal_join", "upsert"]

METADATA = ("_change_type", "_commit_timestamp", "_commit_seq")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def merge(rows: DataFrame, table: Path, key: str) -> None:
    """MERGE of rows that are the newest of their key. A row with ``_change_type`` ``delete`` removes its key."""
    from delta.tables import DeltaTable

    stored = {name: f"s.{name}" for name in rows.columns if name not in METADATA}
    into = DeltaTable.forPath(rows.sparkSession, str(table)).alias("t").merge(rows.alias("s"), f"t.{key} = s.{key}")
    if "_change_type" in rows.columns:
        into = into.whenMatchedDelete("s._change_type = 'delete'")
        into.whenMatchedUpdate(set=stored).whenNotMatchedInsert("s._change_type <> 'delete'", stored).execute()
    else:
        into.whenMatchedUpdate(set=stored).whenNotMatchedInsert(values=stored).execute()


def _changes(spark: SparkSession, server: MySQLServer, table: str) -> DataFrame:
    options = {
        "host": "127.0.0.1",
        "port": str(server.port),
        "user": server.user,
        "table": table,
        "intervalDuringBacklog": "0",
    }
    return spark.readStream.format("mysql_cdc").options(**options).load()


def _start(
    rows: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: Path, interval: str, mode: str = "append"
) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(write).outputMode(mode).trigger(processingTime=interval)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def append(spark: SparkSession, server: MySQLServer, folder: Path, interval: str) -> list[StreamingQuery]:
    """The log of changes, with Delta's own mark against repeated batches."""
    return [_start(_changes(spark, server, "shop.t"), _appending(folder / "out"), folder / "checkpoint", interval)]


def _appending(table: Path) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", "by hand").option("txnVersion", batch_id).save(str(table))

    return write


def upsert(
    spark: SparkSession, server: MySQLServer, folder: Path, interval: str, name: str = "out"
) -> list[StreamingQuery]:
    """The newest change of each key, with MERGE."""
    table = folder / name

    def write(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            batch.drop(*METADATA).write.format("delta").mode("overwrite").save(str(table))
            return
        order = Window.partitionBy("id").orderBy(F.col("_commit_seq").desc())
        changes = batch.where("_change_type <> 'update_preimage'").withColumn("rank", F.row_number().over(order))
        merge(changes.where("rank = 1").drop("rank"), table, "id")

    return [_start(_changes(spark, server, "shop.t"), write, folder / f"checkpoint {name}", interval)]


def keyed_sum(spark: SparkSession, server: MySQLServer, folder: Path, interval: str) -> list[StreamingQuery]:
    """Spark's aggregation of signed rows in update mode on RocksDB, and MERGE of the changed keys."""
    table = folder / "out"
    sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END AS sign"
    signed = _changes(spark, server, "shop.t").selectExpr("k", "v", sign)
    sums = signed.groupBy("k").agg(F.sum(F.expr("sign * v")).alias("total"), F.sum("sign").cast("long").alias("n"))

    def write(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            batch.write.format("delta").mode("overwrite").save(str(table))
        else:
            merge(batch, table, "k")

    with session_conf(spark, {"spark.sql.streaming.stateStore.providerClass": _ROCKSDB}):
        return [_start(sums, write, folder / "checkpoint", interval, "update")]


def temporal_join(spark: SparkSession, server: MySQLServer, folder: Path, interval: str) -> list[StreamingQuery]:
    """One query keeps the users as a Delta table with MERGE. Another joins each batch of clicks with that table."""
    users = upsert(spark, server, folder, interval, "users")
    while users[0].isActive and users[0].lastProgress is None:
        time.sleep(0.1)
    clicks = _changes(spark, server, "shop.clicks").where("_change_type = 'insert'").drop(*METADATA)
    names = spark.read.format("delta").load(str(folder / "users")).selectExpr("id AS user_id", "note")
    joined = clicks.join(names, "user_id", "left").select("id", "user_id", "v", "note")
    return [_start(joined, _appending(folder / "out"), folder / "checkpoint", interval), *users]
