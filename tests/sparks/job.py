"""A query over one of the sources: a native one, or with ``"whole": true`` one of backlog_spark.

    python job.py '{"format": …, "options": {…}, "checkpoint": …, "target": …}'

Runs until it is killed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def whole(spark: SparkSession, job: dict[str, Any]) -> None:
    """Run a query of backlog_spark."""
    import backlog_spark as bs

    writer = bs.source(job["format"], name="given", options=job["options"]).write("copy")
    writer = writer.trigger(processing_time="200 milliseconds", interval_during_backlog="1 second")
    writer = writer.option("checkpointLocation", job["checkpoint"])
    writer.to(bs.FilesSink(job["target"])).start(spark).awaitTermination()


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    if job["whole"]:
        whole(spark, job)
        return
    frame = spark.readStream.format(job["format"]).options(**job["options"]).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", job["checkpoint"])
        .option("path", job["target"])
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
