"""A whole job with a password, its failure with a traceback, and all that tells of it. Everything goes to the output.

``python -m tests.secret_job PORT TABLE DIRECTORY``; the password is in the variable SECRET_JOB.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import backlog_spark as bs
from backlog_spark.tools.inspection import inspected
from backlog_spark.tools.report import page
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LIMIT_S = 120


class FailsOnce(bs.DeltaUpsert):
    """Fails in the first live batch with rows."""

    has_failed = False

    def write(self, batch_df: DataFrame, batch: bs.BatchInfo) -> None:
        if not FailsOnce.has_failed and not batch.is_backlog:
            FailsOnce.has_failed = True
            raise OSError("the disk was full")
        super().write(batch_df, batch)


def told(query: bs.BacklogQuery) -> None:
    """Wait for the query's failure, and show all that tells of it."""
    try:
        query.awaitTermination(_LIMIT_S)
    except Exception as error:
        traceback.print_exc()
        print(repr(error), error)
    print(repr(query.exception()), query.recentProgress)


def main(port: str, table: str, directory: str) -> None:
    logging.basicConfig(level=logging.INFO)  # py4j writes every call at DEBUG, with all options
    logging.getLogger("backlog_spark").setLevel(logging.DEBUG)
    root = Path(directory)
    (root / "spark-events").mkdir()
    spark = local_session(
        "secret", conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": (root / "spark-events").as_uri()}
    )
    options = {
        "host": "127.0.0.1",
        "port": port,
        "user": "keeper",
        "password": os.environ["SECRET_JOB"],
        "table": table,
    }
    changes = bs.source("mysql_cdc", name="changes", options=options)
    totals = bs.sql(spark, "SELECT v, count(*) AS n FROM changes GROUP BY v", changes=changes)
    bs.explain(totals, spark=spark)
    writer = totals.write("totals").option("checkpointLocation", str(root / "checkpoint"))
    writer = writer.trigger(processing_time="300 ms", interval_during_backlog=0)
    query = writer.to(FailsOnce(str(root / "target"), keys=["v"])).start(spark)
    print("READY", flush=True)
    sys.stdin.readline()  # rows were changed
    for _ in range(2):  # the sink fails in the first one, and the query starts again
        try:
            query.processAllAvailable()
        except Exception as error:
            traceback.print_exc()
            print(repr(error), error)
    query.explain(extended=True)
    print(repr(query), query.status, query.lastProgress, query.backlogProgress, query.history)
    print("DONE", flush=True)
    sys.stdin.readline()  # the user is gone
    told(query)
    try:
        bs.source("mysql_cdc", name="again", options=options).write("again").option(
            "checkpointLocation", str(root / "again")
        ).to(bs.DeltaUpsert(str(root / "other"), keys=["id"])).start(spark)
    except Exception as error:
        traceback.print_exc()
        print(repr(error), error.__dict__)
    checkpoint = StoredCheckpoint(str(root / "checkpoint"))
    print(json.dumps(inspected(checkpoint)))
    (root / "report.html").write_text(page(checkpoint))
    spark.stop()
    print("END", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
