"""A driver that takes orders: one line of JSON each on its standard input, and one answer each on its output.

====================================  ==================================================================================
``{"do": "start", "job"}``   Start the query
``{"do": "settle"}``         Wait until all that is there is committed, or the query has ended
``{"do": "wait"}``           Wait until the query ends
``{"do": "stop"}``           Stop it
``{"do": "read", "path"}``   The rows of a Delta table
``{"do": "state"}``          Whether the query is active and in backlog, its rows, and its error
====================================  ==================================================================================

An answer is ``{"value": …}``, or ``{"error": text, "step": hint}`` if the query has failed or was refused.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from servers.jars import spark_kafka_jars
from tests.faults.session import job_session

from .job import start


class Driver:
    """One session, with one query at a time."""

    def __init__(self) -> None:
        self.spark = job_session(
            **{
                "spark.jars": ",".join(map(str, spark_kafka_jars())),
                "spark.sql.shuffle.partitions": "2",
                "spark.backlog.restart.delay": "500 ms",
                "spark.backlog.rule.minStay": "0 s",
                # State as small as here would be put into one file.
                "spark.sql.adaptive.coalescePartitions.enabled": "false",
            }
        )
        self.spark.range(1).count()
        self.query: Any = None

    def start(self, job: dict[str, Any]) -> None:
        self.query = start(self.spark, job)

    def settle(self) -> bool:
        self.query.processAllAvailable()
        self._check()
        return bool(self.query.isActive)

    def wait(self) -> None:
        self.query.awaitTermination()

    def stop(self) -> None:
        self.query.stop()
        self._check()

    def state(self) -> dict[str, Any]:
        error = self.query.exception()
        return {
            "active": self.query.isActive,
            "backlog": self.query.isProcessingBacklog,
            "rows": self.query.backlogProgress.rows,
            "after": self.query.backlogProgress.commits_after,
            "late": self.query.lateRows,
            "error": None if error is None else str(error),
        }

    def read(self, path: str, columns: list[str]) -> list[list[Any]]:
        return [list(row) for row in self.spark.read.format("delta").load(path).select(*columns).collect()]

    def _check(self) -> None:
        error = self.query.exception()
        if error is not None:
            raise error


def main() -> None:
    # Whatever prints, prints into the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, default=str) + "\n")
        answers.flush()

    driver = Driver()
    answer({"value": "ready"})
    for line in sys.stdin:
        order = json.loads(line)
        what = order.pop("do")
        try:
            answer({"value": getattr(driver, what)(**order)})
        except Exception as error:
            print(f"{what} failed:", error, file=sys.stderr, flush=True)
            answer({"error": str(error), "step": getattr(error, "hint", "")})
    if driver.query is not None:
        driver.query.stop()


if __name__ == "__main__":
    main()
