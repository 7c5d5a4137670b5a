"""The targets of one query, measured beside each other: Iceberg, history, several targets, Kafka and databases.

Kinds. Candidates of a kind take turns after a warm-up, and the rows that they wrote are compared.

* ``backlog``: ``--rows`` rows of 10 columns from Parquet files, with unique keys, in one batch of backlog into a new
  table of ``IcebergUpsert`` (a catalog in SQLite) and of ``DeltaUpsert``. The sink's ``write`` is measured.
* ``freshness``: as ``upsert`` of the benchmark ``freshness``, for both sinks: seconds from MySQL's commit to the
  table's, at ``--rate`` changes per second.
* ``history``: a live batch into ``DeltaUpsert(history="scd2")``, and into a plain ``DeltaUpsert``.
* ``several``: a query that copies a table of MySQL into two Delta tables, and into one. The backlog is measured from
  ``start()`` to the last commit, a live batch by Spark's ``addBatch``.
* ``kafka``: a live batch into ``KafkaSink`` with ``format="json"``, exactly once and at least once, and by Spark's own
  sink of Kafka, which writes at least once.
* ``databases``: a live batch into ``JdbcUpsert`` on PostgreSQL and MySQL, and into ``DeltaUpsert``.

A live batch has 1,000 scattered changes, half of them inserts, of a table of 200,000 rows (or of ``--rows``, if that is
less). Its figure is the median of 15. ``freshness`` has a table of a million rows at most. Servers share the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from backlog_spark.spark.jvm.session import register
from benchmarks.common import arguments_parser, main, positives, progress, result
from benchmarks.figures import Figure, show_figures
from benchmarks.target_queries import fresh, several
from benchmarks.target_sinks import Bench, backlog, databases, history, kafka
from servers.jars import spark_kafka_jars
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KINDS", "measure"]

KINDS: Final[Mapping[str, Callable[[Bench], Iterator[Figure]]]] = {
    "backlog": backlog,
    "freshness": fresh,
    "history": history,
    "several": several,
    "kafka": kafka,
    "databases": databases,
}


def measure(spark: SparkSession, arguments: argparse.Namespace) -> list[Figure]:
    """Measure each kind. One that fails does not keep the others from being measured.

    Raises
    ------
    Exception
        The first error, at the end.
    """
    figures: list[Figure] = []
    errors: list[Exception] = []
    for name in arguments.kind:
        with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as made:
            try:
                for figure in KINDS[name](Bench(spark, Path(made), arguments)):
                    figures.append(figure)
                    peers = {figure.peer: figure.theirs} if figure.peer else {}
                    result("targets", figure.name, figure.ours, peers, less_is_better=figure.unit == "s")
            except Exception as error:
                traceback.print_exc()
                errors.append(error)
    progress("")
    show_figures(figures)
    if errors:
        raise errors[0]
    return figures


def run(arguments: argparse.Namespace) -> None:
    """Start Spark, and measure."""
    conf = {"spark.jars": ",".join(map(str, spark_kafka_jars())), "spark.backlog.progress": "off"}
    spark = local_session("targets benchmark", conf=conf)
    try:
        spark.sparkContext.setLogLevel("ERROR")  # hides "falling behind" for each batch
        register(spark)
        measure(spark, arguments)
    finally:
        spark.stop()


def parser() -> argparse.ArgumentParser:
    """The benchmark's arguments."""
    made = arguments_parser(__doc__, rows=2_000_000)

    def kinds(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in KINDS]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
        return text.split(",")

    made.add_argument("--kind", type=kinds, default=list(KINDS), help="some of them, separated by commas; default all")
    made.add_argument("--rate", type=positives, default=[500], help="changes per second of freshness, default 500")
    made.add_argument("--seconds", type=float, default=60, help="how long freshness is measured, default 60")
    made.add_argument("--interval", default="1 second", help="commit interval of queries, default 1 second")
    return made


if __name__ == "__main__":
    sys.exit(main(run, parser()))
