"""A program: files of a store, by Spark's own readers and by the source hybrid, into Delta tables on the same store.

The store's keys are in Spark's settings only.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LIMIT_S = 240


def main(root: str, readable: str, conf: str) -> None:
    """``readable``: the root as the source hybrid has to name it."""
    spark = local_session("stored files", conf=json.loads(conf))
    bs.register(spark)
    spark.range(300).selectExpr("id AS n").repartition(3).write.parquet(f"{root}/old")
    spark.range(300, 400).selectExpr("id AS n").write.parquet(f"{root}/live")

    def reads(folder: str) -> Any:
        def phase(reader: Any, ctx: bs.RunContext) -> DataFrame:
            return reader.schema("n BIGINT").parquet(f"{root}/{folder}")  # type: ignore[no-any-return]

        return phase

    phases = bs.hybrid(spark, "numbers", phases={"old": reads("old"), "live": reads("live")})
    query = bs.backlog_query(
        lambda ctx: ctx.frame.writeStream.format("delta").option("path", f"{root}/spark's table"),
        checkpoint=f"{root}/spark's checkpoint", source=phases, name="spark's readers", interval="300 ms",
    )  # fmt: skip
    limit = time.monotonic() + LIMIT_S
    while query.backlogProgress.rows < 400:
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.1)
    query.stop()
    options = {"path": f"{readable}/old", "metadataLocation": f"{readable}/lists"}
    source = bs.source("hybrid", name="numbers", phases="files", schema="n BIGINT", options=options)
    writer = source.write("hybrid").option("checkpointLocation", f"{root}/checkpoint")
    second = writer.to(bs.DeltaAppend(f"{root}/table")).start(spark)
    second.awaitTermination(LIMIT_S)
    assert second.exception() is None
    found = [
        sorted(row.n for row in spark.read.format("delta").load(f"{root}/{name}").collect())
        for name in ("spark's table", "table")
    ]
    print(f"found: {json.dumps(found)}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
