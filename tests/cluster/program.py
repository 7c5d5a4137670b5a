"""A query of another test module, until a file asks for its end and its table.

Arguments: the module whose ``start(spark, job)`` starts the query, the job as JSON, and what dies where.

The job's key ``folder`` is a directory for ``end``, which asks for the end, and ``found``, the rows as JSON. With a key
``conf`` the program makes a local session, otherwise spark-submit has given the settings.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.faults.session import job_session


def once(mark: str) -> bool:
    """Whether this is the first call with this mark, in all processes."""
    try:
        Path(mark).unlink()
    except FileNotFoundError:
        return False
    return True


def kill_my_executor() -> None:
    """From a Python worker: SIGKILL the JVM that started the daemon that forked it, and end with it."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    os.kill(int(daemon[1]), signal.SIGKILL)
    time.sleep(60)  # the daemon kills its workers


def dying(rows: Any, mark: str) -> Any:
    """The same rows. The executor of the first task with a piece dies when the piece is on its way."""

    def pieces(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if once(mark):
                kill_my_executor()

    return rows.mapInArrow(pieces, rows.schema)


def around(owner: type, name: str, how: Callable[..., Any]) -> None:
    """Replace a method by ``how(original, self, …)``."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        return how(functools.partial(original, self), *given, **named)

    setattr(owner, name, wrapped)


def before_the_shuffle(mark: str) -> None:
    """Rows of the batch are on their way to the fold."""
    from backlog_spark.operators.merge import AggregateFold

    around(AggregateFold, "fold", lambda fold, rows, base: fold(dying(rows, mark), base))


def behind_the_shuffle(mark: str) -> None:
    """The executor has written pieces of the shuffle that the other one has yet to read."""
    from backlog_spark.operators.merge import AggregateFold

    around(AggregateFold, "fold", lambda fold, rows, base: dying(fold(rows, base), mark))


def in_the_sink(mark: str) -> None:
    """Results are on their way to the table or to the driver."""
    import backlog_spark as bs

    around(bs.DeltaUpsert, "write", lambda write, rows, info: write(dying(rows, mark), info))


def between_two_jobs(mark: str) -> None:
    """The first job of a live batch has kept its rows on the executors, and the second job misses some of them."""
    from backlog_spark.sinks.delta.writers import DirectWriter

    def collected(collect: Any) -> Any:
        found = collect()
        if not Path(mark).exists():
            return found
        session = collect.args[0].batch.rows.sparkSession
        dying(session.range(2), mark).write.format("noop").mode("overwrite").save()
        return None, "an executor has died"

    around(DirectWriter, "_collected", collected)


DEATHS: dict[str, Callable[[str], None]] = {
    "before the shuffle": before_the_shuffle,
    "behind the shuffle": behind_the_shuffle,
    "in the sink": in_the_sink,
    "between two jobs": between_two_jobs,
}


def main() -> None:
    from pyspark.sql import SparkSession

    module, job, folder = sys.argv[1], json.loads(sys.argv[2]), Path(json.loads(sys.argv[2])["folder"])
    for death in sys.argv[3:]:
        DEATHS[death](str(folder / death))
    spark = job_session(**job["conf"]) if "conf" in job else SparkSession.builder.getOrCreate()
    query = importlib.import_module(module).start(spark, job)
    while not (folder / "end").exists():
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended early")
        time.sleep(0.05)
    query.processAllAvailable()
    query.stop()
    if query.exception() is not None:
        raise query.exception()
    rows = [list(row.asDict().values()) for row in spark.read.format("delta").load(job["target"]).collect()]
    (folder / "found.new").write_text(json.dumps(rows, default=str))
    (folder / "found.new").rename(folder / "found")
    with contextlib.suppress(Exception):
        spark.stop()


if __name__ == "__main__":
    main()
