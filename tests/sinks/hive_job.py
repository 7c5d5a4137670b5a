"""A query into tables of a Hive metastore, whose driver may be killed.

Arguments: a directory, the moment, and the metastore's address; "" for one in the driver's JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import backlog_spark as bs
from backlog_spark.sinks.delta import sink as sinks
from tests.faults.session import job_session


def main() -> None:
    """Read 30 rows in three batches into a managed and an external table."""
    root, moment, uri = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    own = {"javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root}/metastore;create=true"}
    metastore = {"hive.metastore.uris": uri} if uri else own
    spark = job_session(
        **{
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(root / "warehouse"),
            **{f"spark.hadoop.{name}": text for name, text in metastore.items()},
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={root}/derby.log",
        }
    )
    spark.sql("CREATE SCHEMA IF NOT EXISTS shop")

    def die(*_: Any) -> None:
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if moment == "created":
        create = sinks.create_named
        sinks.create_named = lambda *given: die(create(*given))
    folder = root / "in"
    if not folder.exists():
        spark.range(0, 30, 1, 3).selectExpr("id", "'live' AS v").write.parquet(str(folder))
    rows = bs.stream(
        spark.readStream.schema("id BIGINT, v STRING").option("maxFilesPerTrigger", 1).parquet(str(folder))
    )
    writer = rows.write("hive").trigger(available_now=True).option("checkpointLocation", str(root / "checkpoint"))
    first = bs.DeltaUpsert(keys=["id"], table="shop.orders", change_type=None, sequence=None, metadata_columns=())
    second = bs.DeltaAppend(root / "away", table="shop.away")
    if moment == "committed":
        second.write = die  # type: ignore[method-assign]
        second.for_output = lambda: second  # type: ignore[method-assign]
    query = writer.to(first).to(second).start(spark)
    query.awaitTermination(200)
    assert query.exception() is None, query.exception()
    found = {name: sorted(map(list, spark.table(name).collect())) for name in ("shop.orders", "shop.away")}
    (root / "rows.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
