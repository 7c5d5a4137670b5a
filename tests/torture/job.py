"""Two queries on the tables as a program of its own, for a torture that kills it: their state, and their changes."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import backlog_spark as bs

LOG, STATE = "log", "state"
CONF = {
    "spark.driver.memory": "1g",
    # Lives are short: compiling more than simply costs more than it gains.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m",
    "spark.sql.shuffle.partitions": "2",
    "spark.backlog.restart.maxAttempts": "8",
    "spark.backlog.restart.delay": "200 ms",
}
_METADATA = "_change_type,_commit_timestamp,_commit_seq,_database,_table,_is_snapshot"


def start(spark: Any, job: dict[str, Any]) -> list[bs.BacklogQuery]:
    """Start the queries that ``job`` describes: the same here and after a kill."""
    from delta.tables import DeltaTable
    from pyspark.sql.types import StructType

    queries = []
    for name, more, metadata in (
        (
            LOG,
            {"metadataColumns": _METADATA},
            "_change_type string, _commit_timestamp timestamp, _commit_seq long, _is_snapshot boolean, ",
        ),
        (STATE, {}, ""),
    ):
        # All columns that may come: a sink with merge_schema=True would need neither this nor a limit on ALTER TABLE.
        columns: Any = StructType.fromDDL(f"{metadata}_database string, _table string, {job['columns']}")
        DeltaTable.createIfNotExists(spark).location(job[name]).addColumns(columns).execute()
        keys = ["_database", "_table", *job["key"]]
        sink = bs.DeltaAppend(job[name]) if name == LOG else bs.DeltaUpsert(job[name], keys=keys)
        source = bs.source("mysql_cdc", name="rows", options={**job["source"], **more})
        queries.append(
            source.write(name)
            .trigger(processing_time="300 ms", interval_during_backlog="1 second")
            .option("checkpointLocation", job["checkpoints"] + "/" + name)
            .to(sink)
            .start(spark)
        )
    return queries


def main() -> None:
    from servers.session import local_session

    job = json.loads(sys.argv[1])
    queries = start(local_session("torture", conf=CONF), job)
    while all(query.isActive for query in queries):
        time.sleep(0.2)
    sys.exit("\n".join(str(query.exception()) for query in queries))


if __name__ == "__main__":
    main()
