"""docs/proof/freshness.md: the figures of a run of ``benchmarks.freshness``."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.proof_page import facts, spread_table, write_page
from examples.freshness import percentile

if TYPE_CHECKING:
    from benchmarks.freshness import Measured

__all__ = ["PERCENTS", "write"]

PERCENTS = (50, 95, 99)
"""The percentiles of the waits that are shown."""

_ABOUT = """An application changes a table of {rows:,} rows on a real server: half updates of scattered rows, half new
rows. A query keeps a Delta table, with an interval of {interval}. At the end the table is equal to the server's.

"""
_HOW = """
* *p50*, *p95*, *p99*: seconds from the server's commit to the commit of the Delta table that has the change. They
  include the wait for the next interval.
* *cpu*: processor seconds of the query's JVM and Python processes for 1,000 changes, without server and application.
* *idle*: the same in percent of one core while nothing changes.
* *by hand*: `foreachBatch` with MERGE or append on `format("mysql_cdc")`, and Spark's own aggregation and join.
* Server, application and query share the machine. A line whose *reached* is below the rate shows what it can do.
"""
_QUERIES = {
    "append": "the log of changes in `DeltaAppend`",
    "upsert": "a copy in `DeltaUpsert`",
    "sum": "sum and count of {keys:,} keys in `DeltaUpsert`",
    "join": "clicks, a second table, joined with the users' table by processing time, in `DeltaAppend`",
}


def write(
    compared: Mapping[tuple[str, int], Mapping[str, Measured]], arguments: argparse.Namespace, version: str
) -> None:
    """Write docs/proof/freshness.md.

    Parameters
    ----------
    compared : mapping
        By kind and rate, then by candidate.
    arguments : argparse.Namespace
        As of `parser`.
    version : str
        Of the server.
    """
    kinds = list(dict.fromkeys(kind for kind, _ in compared))
    rates = ",".join(str(rate) for rate in dict.fromkeys(rate for _, rate in compared))
    command = (
        f"make bench CASE=freshness KIND={','.join(kinds)} RATE={rates} SECONDS={arguments.seconds:g} "
        f"ROWS={arguments.rows} KEYS={arguments.keys} RUNS={arguments.runs} WRITE=1"
    )
    lines = _ABOUT.format(rows=arguments.rows, interval=arguments.interval).splitlines()
    lines += [*facts(command, MySQL=version), *_HOW.splitlines()]
    names = {"ours": "backlog_spark", "handwritten": "by hand"}
    for kind in kinds:
        rows = []
        for (each, rate), measured in compared.items():
            if each == kind:
                for candidate, found in measured.items():
                    waited = [f"{percentile(found.waits, percent):.2f}" for percent in PERCENTS]
                    cpu = 1000 * found.cpu / max(1.0, found.rate * found.seconds)
                    idle = f"{statistics.median(found.idle):.1f} %"
                    rows.append([f"{rate:,}", names[candidate], f"{found.rate:,.0f}", *waited, f"{cpu:.2f}", idle])
        head = ["changes/s", "", "reached", *(f"p{percent}" for percent in PERCENTS), "cpu", "idle"]
        about = _QUERIES[kind].format(keys=arguments.keys)
        lines += ["", f"## {kind}", "", f"The query keeps {about}.", "", *spread_table(head, rows)]
    write_page("freshness", "Freshness and the cost of idling", "make bench CASE=freshness WRITE=1", lines)
