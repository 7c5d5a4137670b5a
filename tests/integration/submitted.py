"""A program for spark-submit: a query of files into Delta, and a read from Kafka. It prints one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import backlog_spark as bs
from backlog_spark.common.settings import parse_settings
from backlog_spark.spark.jvm.session import own_conf


def main(lines: str, target: str, broker: str = "", topic: str = "") -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.backlog.restart.delay", "5 s")
    source = bs.source(
        "hybrid", name="lines", phases="files", path=lines, fileFormat="json", schema="k STRING, v BIGINT"
    )
    query = (
        source.write("lines")
        .option("checkpointLocation", f"{target}/checkpoint")
        .to(bs.DeltaAppend(f"{target}/table"))
        .start(spark)
    )
    query.awaitTermination(500)
    found = {
        "package": bs.__file__,
        "settings": parse_settings(own_conf(spark)),
        "rows": sorted(map(list, spark.read.format("delta").load(f"{target}/table").select("k", "v").collect())),
        "tasks": sorted(set(spark.range(4, numPartitions=4).mapInPandas(places, "place string").toPandas()["place"])),
    }
    if broker:
        kafka = {"kafka.bootstrap.servers": broker, "subscribe": topic}
        records = spark.read.format("kafka").options(**kafka).load().selectExpr("CAST(value AS STRING) AS value")
        found["records"] = sorted(row.value for row in records.collect())
    print(f"submitted: {json.dumps(found)}")
    spark.stop()


def places(frames):  # type: ignore[no-untyped-def]
    """Where an executor has the package from. A zip stands in the executor's own directory."""
    import backlog_spark

    for frame in frames:
        yield frame.assign(place=str(Path(backlog_spark.__file__).absolute()))[["place"]]


if __name__ == "__main__":
    main(*sys.argv[1:])
