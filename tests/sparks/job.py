"""A native query over one of the sources, for any version of Spark that has Python sources.

    python job.py '{"format": …, "options": {…}, "checkpoint": …, "target": …}'

Runs until it is killed.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


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
