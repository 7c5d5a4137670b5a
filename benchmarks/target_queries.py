"""Parts of the benchmark ``targets`` that run queries from MySQL: freshness, and several targets of one read."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import freshness
from benchmarks.changes import fill, reset
from benchmarks.common import interleave, progress, show
from benchmarks.figures import Figure
from benchmarks.table_formats import DELTA
from benchmarks.target_sinks import CHANGES, Bench
from examples.freshness import percentile
from servers.mysql import MySQLServer

__all__ = ["fresh", "several"]

_FRESH_ROWS: Final = 1_000_000
_LIVE_OF_A_READ: Final = 5


def fresh(bench: Bench) -> Iterator[Figure]:
    given = argparse.Namespace(**vars(bench.arguments))
    given.rows = min(given.rows, _FRESH_ROWS)
    keys = max(1, given.rows // 5)
    with MySQLServer() as server:
        progress(f"filling {given.rows:,} rows")
        fill(server, given.rows, keys)
        for rate in given.rate:
            measured = {name: freshness.Measured() for name in freshness.UPSERTS}
            for into in (None, measured):
                for name, kind in freshness.UPSERTS.items():
                    progress(f"freshness {name}{'' if into else ', warm-up'}")
                    found = None if into is None else into[name]
                    freshness.once(bench.spark, server, kind, kind.ours, given, rate, keys, found)
            for name, each in measured.items():
                freshness.show(f"freshness {name}", rate, each, each.rate * each.seconds / max(1, each.commits))
            for percent, goal in ((50, "< 2 s"), (95, "")):
                delta, iceberg = (percentile(each.waits, percent) for each in measured.values())
                what = f"freshness p{percent} rate={rate}"
                yield Figure(f"{what} IcebergUpsert", iceberg, "s", "DeltaUpsert", delta, goal)
                yield Figure(f"{what} DeltaUpsert", delta, "s", goal=goal)


class _Read(NamedTuple):
    """Seconds of a query's backlog, and of each of its live batches."""

    backlog: float
    live: list[float]


def _change(server: MySQLServer, number: int, rows: int) -> None:
    """One transaction of `CHANGES` changes at most: updates of scattered rows, and as many new rows."""
    half = min(CHANGES // 2, rows)
    apart = rows // half
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE shop.t SET v = v + 1 WHERE id BETWEEN 1 AND {half * apart} AND id % {apart} = {number % apart}"
        )
        new = f"SELECT id + {rows + number * half}, k, v, note FROM shop.t WHERE id BETWEEN 1 AND {half}"
        cursor.execute(f"INSERT INTO shop.t {new}")
        connection.commit()


def several(bench: Bench) -> Iterator[Figure]:
    rows, kind = bench.table_rows, freshness.UPSERTS["DeltaUpsert"]

    def read(server: MySQLServer, tables: int) -> _Read:
        reset(server, rows)
        with tempfile.TemporaryDirectory(dir=bench.folder, ignore_cleanup_errors=True) as made:
            outs = [Path(made, f"out {number}") for number in range(tables)]
            writer = freshness.source(server).write("several")
            writer = writer.trigger(processing_time=bench.arguments.interval, interval_during_backlog=0)
            writer = writer.option("checkpointLocation", f"{made}/checkpoint")
            for out in outs:
                writer = writer.to(DELTA.upsert(str(out)))
            began = time.time()
            query = writer.start(bench.spark)
            with freshness.running([query]):
                freshness.wait_for(lambda: freshness.switched(query), [query])
                ends = [commit.at for out in outs for commit in DELTA.commits(out) if commit.files]
                taken = max(ends) - began
                # The first live batch pays for what all later ones find prepared.
                for number in range(1 + _LIVE_OF_A_READ):
                    _change(server, number, rows)
                    query.processAllAvailable()
                reports = [each for each in query.recentProgress if each.numInputRows]
            for out in outs:
                freshness.compare(server, kind, DELTA.rows(bench.spark, out))
        return _Read(taken, [each.durationMs["addBatch"] / 1000 for each in reports[-_LIVE_OF_A_READ:]])

    with MySQLServer() as server:
        progress(f"filling {rows:,} rows")
        fill(server, rows, max(1, rows // 5))
        candidates = {"two tables": lambda: read(server, 2), "one table": lambda: read(server, 1)}
        taken = interleave(candidates, bench.arguments.runs)
    for what, goal in (("backlog", "< 1.4"), ("live", "< 1.4")):
        found = {}
        for name, reads in taken.items():
            times = [each.backlog for each in reads] if what == "backlog" else [s for each in reads for s in each.live]
            show(f"{what}, {name}", rows if what == "backlog" else CHANGES, times)
            found[name] = statistics.median(times)
        yield Figure(f"{what} of one read, two tables", found["two tables"], "s", "one table", found["one table"], goal)
