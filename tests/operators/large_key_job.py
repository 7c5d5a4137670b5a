"""A program whose workers have a limit on memory, with one key of many rows on both sides of a co-group."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import backlog_spark as bs
from servers.session import local_session


class Matched(bs.CoGroupFunction):
    output = "n long, total long"

    def co_group(self, left: Iterable[Any], right: Iterable[Any]) -> Iterator[tuple[int, int]]:
        count = total = 0
        for side in (left, right):
            for row in side:
                count, total = count + 1, total + row.v
        yield count, total


def main(rows: int, memory: str, root: Path) -> None:
    # Spark divides the memory by the cores of an executor.
    conf = {"spark.executor.pyspark.memory": memory, "spark.backlog.restart.maxAttempts": "0"}
    spark = local_session("large key", master="local[1]", conf=conf)
    at = "timestamp_seconds(1700000000) AS t"
    spark.range(0, rows, 1, 8).selectExpr("7 AS k", "id AS v", at).write.parquet(str(root / "in"))
    both = [
        bs.source("hybrid", name=name, phases="files", path=str(root / "in"), schema="k int, v long, t timestamp")
        for name in ("left", "right")
    ]
    left, right = (stream.with_watermark("t", "1 second") for stream in both)
    joined = left.co_group(right).where("k").equal_to("k").window(bs.TumblingEventTimeWindows.of("1 hour"))
    writer = joined.apply(Matched()).write("large").trigger(interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(root / "c")).to(bs.DeltaAppend(str(root / "target"))).start(spark)
    query.awaitTermination()
    print(spark.read.format("delta").load(str(root / "target")).collect(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
