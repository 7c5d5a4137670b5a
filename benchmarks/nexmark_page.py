"""docs/nexmark.md: the figures of runs of ``benchmarks.nexmark``, and what they mean.

A run may have some queries only. ``nexmark_figures.json`` has the newest figures of each query, for each number of
events.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.nexmark_jobs import QUERIES
from benchmarks.proof_page import spread_table
from servers.flink_jars import FLINK_VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Facts", "Row", "write"]

_PAGE = Path(__file__).parents[1] / "docs" / "nexmark.md"
_FIGURES = Path(__file__).with_name("nexmark_figures.json")


@dataclass
class Row:
    """The figures of one query at one number of events. Each mapping is by the name of a candidate.

    Parameters
    ----------
    seconds : dict
        Of the backlog, or of the whole batch.
    cores, switch, batch, fresh, state : dict
        As the module of the benchmark describes them.
    first : dict
        Seconds of the first runs, which wrote their results.
    why : dict
        Why a candidate has no figures.
    date : str
        Of the run.
    """

    query: str
    events: int
    seconds: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)
    switch: dict[str, float] = field(default_factory=dict)
    batch: dict[str, float] = field(default_factory=dict)
    fresh: dict[str, tuple[float, float]] = field(default_factory=dict)
    state: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    date: str = ""


@dataclass(frozen=True)
class Facts:
    """Where and how a run was made."""

    cores: int
    memory_gb: int
    date: dt.date
    spark: str
    java: str
    command: str
    rate: int
    seconds: float

    @classmethod
    def of(cls, spark: SparkSession, arguments: argparse.Namespace) -> Facts:
        """Of this machine and run."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        events = ",".join(map(str, arguments.events))
        command = f"make bench CASE=nexmark EVENTS={events}"
        if arguments.queries != list(QUERIES):
            command += f" QUERIES={','.join(arguments.queries)}"
        if arguments.peers != "all":
            command += f" PEERS={arguments.peers}"
        return cls(
            cores=len(os.sched_getaffinity(0)),
            memory_gb=round(memory / 2**30),
            date=dt.datetime.now(dt.UTC).date(),
            spark=spark.version,
            java=str(spark._jvm.java.lang.System.getProperty("java.version")),  # type: ignore[union-attr]
            command=f"{command} RATE={arguments.rate} SECONDS={arguments.seconds:g} WRITE=1",
            rate=arguments.rate,
            seconds=arguments.seconds,
        )


_CANDIDATES = {
    "ours": "`bs.sql`",
    "spark_batch": "Spark batch",
    "spark_stream": "Spark stream",
    "flink_batch": "Flink batch",
    "flink_stream": "Flink stream",
}

_ABOUT = """# Nexmark

<!-- Written by `make bench CASE=nexmark WRITE=1`. Do not edit. -->

[Nexmark](https://github.com/nexmark/nexmark) has 24 queries over the persons, auctions and bids of an auction site.
The statements are our own, with the same questions and forms of the language:
[benchmarks/nexmark_queries]({blob}/benchmarks/nexmark_queries). So is the generator, with the public one's
distributions. Its events are 1 ms apart, and the order is mixed within a second.

| | |
|---|---|
| machine | {cores} cores, {memory} GB of memory |
| versions | Spark {spark}, Flink {flink}, Java {java} |
| last run | {date}, `{command}` |

All candidates of a row run on the same machine, in the same run, with two threads. Each has run once before it is
timed. Only figures whose results are equal are shown. Use the ratios within a row; another machine gives other figures.

## Backlog

Events per second over events in Parquet files, and in brackets the processor seconds per second.

* `bs.sql` reads the files with `bs.source("hybrid")` at an interval during backlog of 0. The time includes the start of
  the query, 1.3 to 2.7 s. The state that the live rows need is saved after it: see *switch* below.
* `hybrid` reads files in Python workers, and Spark converts their rows twice. It reads the columns of q12 of 10,000,000
  events in 3.4 s, and Spark's own reader in 1.5 s. q3 and q8 read the files twice, once for each of their tables. So
  queries in which Spark does little beside reading, such as q12 and q13, are far below its batch. `bs.hybrid` has
  Spark's readers.
* Spark stream has all files in its first batch, and RocksDB.
* Flink has its cluster running. Flink stream has RocksDB and the settings of the public benchmark: a checkpoint every
  three minutes.

"""

_LIVE = """
## Live

After the files, 10,000 events of a topic in batches of 1,000, one after another; then {rate} events per second for
{seconds:g} s.

* *switch* is the time from the last write of the backlog to the first write of live rows, and *batch* that between two
  writes after it (median). Seconds.
* *p50* and *p95* are the seconds from an event's way to Kafka to the end of the write of its batch, at {rate} events
  per second. For a window this is not the time of its result, which waits for the watermark.
* *state* is the checkpoint at the end, in MB.
* q7 joins bids with the highest price of each ten seconds by the price alone, as in Flink. So its state keeps all bids,
  and a batch reads those of 1,000 prices: at 10,000,000 events 482 for each bid, on average.

"""

_BLOB = "https://github.com/backlog-spark/backlog-spark/blob/main"


def _number(query: str) -> int:
    return int(query[1:])


def _speed(row: Row, name: str) -> str:
    if name not in row.seconds:
        return "differs" if "differs" in row.why.get(name, "") else ""
    return f"{row.events / row.seconds[name]:,.0f} ({row.cores[name]:.1f})"


def _backlog(rows: Sequence[Row]) -> list[str]:
    lines = [
        [row.query, QUERIES[row.query].about.rstrip("."), *(_speed(row, name) for name in _CANDIDATES), row.date]
        for row in rows
    ]
    return spread_table(["query", "question", *_CANDIDATES.values(), "date"], lines)


def _live(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        cells = [row.query]
        for name in ("ours", "spark_stream"):
            if name in row.batch:
                p50, p95 = row.fresh[name]
                cells += [f"{row.switch[name]:.1f}", f"{row.batch[name]:.2f}", f"{p50:.2f}", f"{p95:.2f}"]
                cells.append(f"{row.state[name] / 1e6:.1f}")
            else:
                cells += [""] * 5
        lines.append(cells)
    figures = ["switch", "batch", "p50", "p95", "state"]
    shown = [f"{_CANDIDATES[name]}: {figures[0]}" for name in ("ours", "spark_stream")]
    return spread_table(["query", shown[0], *figures[1:], shown[1], *figures[1:]], lines)


_MOST_OF_Q23 = 200_000
_Q23 = (
    "q23 joins all bids of a person with all auctions of this person. Its result grows with the square of the events: "
    "at 1,000,000 events it has more than 100,000,000 rows, so it is measured with fewer."
)


def _growth(rows: Sequence[Row], sizes: Sequence[int]) -> list[str]:
    """Events per second of ours and Spark's batch at each size, for queries with figures at two sizes or more."""
    found = {(row.query, row.events): row.seconds for row in rows if "ours" in row.seconds}
    lines = []
    for query in dict.fromkeys(row.query for row in rows):
        if sum((query, size) in found for size in sizes) > 1:
            every = [(name, size) for name in ("ours", "spark_batch") for size in sizes]
            seconds = [(size, found.get((query, size), {}).get(name)) for name, size in every]
            lines.append([query, *("" if took is None else f"{size / took:,.0f}" for size, took in seconds)])
    heads = [f"{_CANDIDATES[name]}, {size:,}" for name in ("ours", "spark_batch") for size in sizes]
    return spread_table(["query", *heads], lines)


def _missing(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        for name, why in row.why.items():
            told = why.replace("|", "\\|").replace("<", "&lt;")
            told = told[:_LONGEST] + ("…" if len(told) > _LONGEST else "")
            lines.append([row.query, f"{row.events:,}", _CANDIDATES[name], told])
    return spread_table(["query", "events", "", "why"], lines)


_LONGEST = 160


def text(rows: Sequence[Row], facts: Facts) -> str:
    """The page."""
    sizes = sorted({row.events for row in rows})
    rows = sorted(rows, key=lambda row: (-row.events, _number(row.query)))
    about = _ABOUT.format(
        blob=_BLOB, cores=facts.cores, memory=facts.memory_gb, date=facts.date, spark=facts.spark, flink=FLINK_VERSION,
        java=facts.java, command=facts.command,
    )  # fmt: skip
    lines: list[str] = []
    for made in (_backlog, _live):
        if made is _live:
            lines += _LIVE.format(rate=facts.rate, seconds=facts.seconds).splitlines()
        for size in reversed(sizes):
            lines += [f"### {size:,} events" + (" before" if made is _live else ""), ""]
            lines += [*made([row for row in rows if row.events == size]), ""]
    lines.pop()
    if len(sizes) > 1:
        lines += ["", "## Growth", "", "Events per second of the backlog, by the number of events.", ""]
        lines += _growth(rows, sizes)
    if any(row.why for row in rows):
        lines += ["", "## Without a figure", ""]
        if any("differs" in why for row in rows for why in row.why.values()):
            lines += ["A result that differs is one from Spark's batch.", ""]
        lines += _missing(rows)
    if not any(row.query == "q23" and row.events > _MOST_OF_Q23 for row in rows):
        lines += ["", _Q23]
    return about + "\n".join(lines) + "\n"


def write(rows: Sequence[Row], facts: Facts) -> None:
    """Add a run's figures to those of earlier runs, and write the page."""
    kept = [Row(**each) for each in json.loads(_FIGURES.read_text())] if _FIGURES.exists() else []
    newest = {(row.query, row.events): row for row in (*kept, *rows)}
    together = sorted(newest.values(), key=lambda row: (row.events, _number(row.query)))
    _FIGURES.write_text(json.dumps([asdict(row) for row in together], indent=1) + "\n")
    _PAGE.write_text(text(together, facts))
