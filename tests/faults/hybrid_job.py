"""Files, then a topic, into Delta, as a program of its own for tests that kill it; by either road."""

from __future__ import annotations

import json
import sys
from typing import Any

import backlog_spark as bs

__all__ = ["start"]


def start(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery | bs.ForeignQuery:
    """Start the query that ``job`` describes: the same here and after the kill."""
    return _native(spark, job) if job["road"] == "native" else _source(spark, job)


def _source(spark: Any, job: dict[str, Any]) -> bs.BacklogQuery:
    options = {
        "path": job["files"],
        "schema": "n BIGINT",
        "valueFormat": "json",
        "kafka.bootstrap.servers": job["broker"],
        "subscribe": job["topic"],
        "startingOffsets": "earliest",
        "maxRowsPerBatch": job["rows"],
    }
    return (
        bs.source("hybrid", name="numbers", options=options)
        .write("numbers")
        .trigger(processing_time="300 ms", interval_during_backlog=job["during"])
        .option("checkpointLocation", job["checkpoint"])
        .to(bs.DeltaAppend(job["target"]))
        .start(spark)
    )


def _native(spark: Any, job: dict[str, Any]) -> bs.ForeignQuery:
    def live(reader: Any, ctx: bs.RunContext) -> Any:
        kafka = (
            reader.format("kafka").option("kafka.bootstrap.servers", job["broker"]).option("subscribe", job["topic"])
        )
        kafka = kafka.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", job["rows"])
        return kafka.load().selectExpr("from_json(cast(value AS string), 'n long').n AS n")

    phases = {
        "old": lambda reader, ctx: reader.schema("n long").option("maxFilesPerTrigger", 1).parquet(job["files"]),
        "live": live,
    }
    return bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.format("delta").option("path", job["target"]),
        checkpoint=job["checkpoint"],
        spark=spark,
        source=bs.hybrid(spark, "numbers", phases=phases),
        interval="300 ms",
        interval_during_backlog=job["during"],
    )


def main() -> None:
    from backlog_spark.embedded.jars import spark_kafka_jars
    from backlog_spark.embedded.session import local_session

    job = json.loads(sys.argv[1])
    # Lives are short: compiling more than simply costs more than it gains.
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
    }
    start(local_session("job", conf=conf), job).awaitTermination()


if __name__ == "__main__":
    main()
