"""docs/proof/soak.md and its plots."""

from __future__ import annotations

import datetime as dt
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from servers.kafka import KafkaServer
from servers.mysql import MySQLServer

from . import plan
from .flat import PERCENT_AN_HOUR, WARM_UP, Point, Verdict, judge, judged
from .plan import CHANGES, QUERIES, RECORDS
from .soak import Result
from .stage import Load
from .svg import Panel, plot

LEAST_JUDGED_S = 300.0
"""A shorter time is shown and not judged: start-up and the pools of the JVM are all that it sees."""
# The sink cleans a table's log up every ten minutes, and `Watch` removes data files every minute or less often.
_LOG_S, _DATA_S = 720.0, 300.0
# Spark keeps the files of 100 batches, and at 2 s each these take some minutes.
_BATCHES_S = 300.0


@dataclass(frozen=True)
class Rule:
    """By how much a figure may rise within the judged time whatever the percent, and how long it takes to settle."""

    least: float
    settles_s: float = 0.0


def rules(away_s: float) -> dict[str, Rule]:
    """By figure; the table's log is kept for longer than a driver is away."""
    return {
        "driver, MiB": Rule(8),
        "heap, MiB": Rule(12),
        "outside of the heap, MiB": Rule(16),
        "jvm, MiB": Rule(48),
        "largest worker, MiB": Rule(24),
        "driver threads": Rule(3),
        "jvm threads": Rule(24),
        "driver descriptors": Rule(4),
        "jvm descriptors": Rule(24),
        "checkpoint files": Rule(60, _BATCHES_S),
        "checkpoint, MiB": Rule(4, _BATCHES_S),
        "table files": Rule(60, _DATA_S),
        "table, MiB": Rule(40, _DATA_S),
        "table log files": Rule(100, _LOG_S + away_s + 180),
    }


NAMES = {
    "driver, MiB": "driver (Python), resident, MiB",
    "heap, MiB": "JVM's heap after a collection, MiB",
    "outside of the heap, MiB": "JVM's classes and compiled code, MiB",
    "jvm, MiB": "JVM, resident, MiB",
    "largest worker, MiB": "largest Python worker, resident, MiB",
    "driver threads": "threads of the driver",
    "jvm threads": "threads of the JVM",
    "driver descriptors": "file descriptors of the driver",
    "jvm descriptors": "file descriptors of the JVM",
    "checkpoint files": "files of the checkpoint",
    "checkpoint, MiB": "checkpoint, MiB",
    "table files": "data files on disk",
    "table, MiB": "data files on disk, MiB",
    "table log files": "files of the table's log",
}
TITLES = {CHANGES: "MySQL to Delta", RECORDS: "files and Kafka to sums"}


# By finding, what became of it.
FOUND = {
    "Each task with state leaves a socket open in the executor: two file descriptors for each batch of the sums, until "
    "the driver ends. It is a fault of Spark 4.2.0 (SPARK-58932).": "the worker ends a task so that Spark closes the "
    "socket (`backlog_spark/spark/plan/state_connection.py`); a test counts sockets",
    "Data files of the changes' table stayed on disk although `VACUUM` ran. Without `full=True` delta-rs only removes "
    "files that the table's log still names.": "the soak asks for `full=True`",
    "A driver that starts again, and backlog of the binary log, write with Spark's `MERGE`. On a busy machine the "
    "first batches took 36 to 108 s, where a live one of 20,000 rows took 1.5 to 2 s. So the query fell behind 5,000 "
    "changes/s.": "open; the soak lets live batches of 200,000 rows go to the table without `MERGE`, and sizes "
    "those of the backlog for 2 minutes",
}


def verdicts(result: Result, away_s: float) -> dict[str, dict[str, tuple[Verdict, Sequence[Point]]]]:
    """By query and figure: the verdict on the driver's longest life, and the judged points."""
    found: dict[str, dict[str, tuple[Verdict, Sequence[Point]]]] = {}
    for query in QUERIES:
        begin, end = longest(result, query)
        found[query] = {}
        for name, rule in rules(away_s).items():
            all_points = result.series.of[query].get(name, [])
            if not all_points:
                continue
            points = judged(all_points, begin, end, rule.settles_s)
            verdict = judge(points, rule.least)
            if not points or points[-1][0] - points[0][0] < LEAST_JUDGED_S:
                points = judged(all_points, begin, end)
                verdict = replace(judge(points, rule.least), is_flat=None)
            found[query][name] = verdict, points
    return found


def longest(result: Result, query: str) -> tuple[float, float]:
    """From when to when the driver lived longest."""
    return max(result.lives[query], key=lambda life: life[1] - life[0])


def rising(result: Result, away_s: float) -> list[str]:
    """Figures that are not flat."""
    return [
        f"{TITLES[query]}: {NAMES[name]} rose from {verdict.first:,.0f} to {verdict.last:,.0f}, "
        f"{verdict.percent_an_hour:.0f} % an hour"
        for query, figures in verdicts(result, away_s).items()
        for name, (verdict, _) in figures.items()
        if verdict.is_flat is False
    ]


def write(folder: Path, result: Result, load: Load, minutes: float, command: str) -> Path:
    """Write the page and its plots; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in plots(result).items():
        (folder / f"soak-{name}.svg").write_text(text, encoding="utf-8")
    page = folder / "soak.md"
    page.write_text(text_of(result, load, minutes, command), encoding="utf-8")
    return page


def plots(result: Result) -> dict[str, str]:
    """Each plot's text by name."""
    series, seconds = result.series, result.seconds
    note = "Dotted lines: faults. Grey: the query's driver is stopped."

    def panel(title: str, unit: str, query: str, names: dict[str, str]) -> Panel:
        lines = {short: series.of[query].get(name, []) for name, short in names.items()}
        away = [series.away[query]] if query in series.away else []
        return Panel(f"{TITLES[query]}: {title}", unit, lines, [at for at, _ in series.faults], away)

    memory = {
        "jvm, MiB": "JVM, resident",
        "heap, MiB": "heap after a collection",
        "workers, MiB": "workers",
        "driver, MiB": "driver",
    }
    counts = {
        "jvm descriptors": "JVM's descriptors",
        "jvm threads": "JVM's threads",
        "driver descriptors": "driver's descriptors",
        "driver threads": "driver's threads",
    }
    files = {"table log files": "table's log", "checkpoint files": "checkpoint", "table files": "table"}
    sizes = {"table, MiB": "table", "checkpoint, MiB": "checkpoint", "event log, MiB": "event log"}
    pairs = [(query, TITLES[query]) for query in QUERIES]
    rates = [
        Panel(
            f"{TITLES[query]}: written", f"1,000 {query} a second",
            {"rate": rate(series.of[query].get("written", []))}, [at for at, _ in series.faults],
        )
        for query, _ in pairs
    ]  # fmt: skip
    lags = [
        panel("lag", "seconds", CHANGES, {"lag": "age of the target"}),
        Panel(
            f"{TITLES[RECORDS]}: lag", "million records",
            {"records not in the target yet": [(at, value / 1e6) for at, value in series.of[RECORDS].get("lag", [])]},
            [at for at, _ in series.faults], [series.away[RECORDS]] if RECORDS in series.away else [],
        ),
    ]  # fmt: skip
    return {
        "memory": plot("Memory", [panel("memory", "MiB", query, memory) for query in QUERIES], seconds, note),
        "threads": plot(
            "Threads and file descriptors",
            [panel("counts", "count", query, counts) for query in QUERIES],
            seconds,
            note,
        ),
        "files": plot(
            "Files",
            [panel("files", "files", query, files) for query in QUERIES]
            + [panel("sizes", "MiB", query, sizes) for query in QUERIES],
            seconds,
            note,
        ),
        "rates": plot("Load and lag", [*rates, *lags], seconds, note),
    }


def rate(points: Sequence[Point], over: int = 6) -> list[Point]:
    """Thousands a second, over so many points at a time."""
    return [
        (points[i][0], (points[i][1] - points[i - over][1]) / (points[i][0] - points[i - over][0]) / 1000)
        for i in range(over, len(points))
        if points[i][0] > points[i - over][0]
    ]


def text_of(result: Result, load: Load, minutes: float, command: str) -> str:
    """The page."""
    head = _HEAD.format(
        day=dt.date.today(),
        cores=os.cpu_count(),
        memory=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages=", ".join(
            f"{name} {version(name)}" for name in ("pyspark", "delta-spark", "deltalake", "confluent-kafka")
        ),
        servers=f"MySQL {MySQLServer.version}, Kafka {KafkaServer.version}",
        command=command,
        minutes=f"{minutes:g}",
        seconds=f"{result.seconds / 60:.0f}",
        each=f"{minutes / plan.STAGES:.3g}",
        away=f"{load.away_s / 60:.3g}",
        sums=f"{load.sums:,}",
        before=f"{load.before:,}",
        rows=f"{load.keys // 2:,}",
    )
    parts = [head, "## Load", "", *_load(result, load), "", "![Load and lag](soak-rates.svg)", ""]
    parts += ["## Comparisons", "", *_comparisons(result), "", "## Faults that struck", "", *_struck(result), ""]
    parts += ["## After a driver was away", "", *_catch_ups(result), ""]
    parts += ["## Memory, threads and files", "", *_flatness(result, load.away_s), ""]
    for name, title in (("memory", "Memory"), ("threads", "Threads and file descriptors"), ("files", "Files")):
        parts += [f"![{title}](soak-{name}.svg)", ""]
    found = [f"| {what} | {answer} |" for what, answer in FOUND.items()]
    parts += [
        "## What it has found",
        "",
        "The figures above are from before these changes.",
        "",
        "| found | answer |",
        "|---|---|",
        *found,
        "",
    ]
    return "\n".join([*parts, *_tail(minutes)])


def _load(result: Result, load: Load) -> list[str]:
    rows = ["| | target | written | all |", "|---|---|---|---|"]
    done = result.comparisons[-1] if result.comparisons else None
    for query, target in ((CHANGES, load.changes), (RECORDS, load.records)):
        count = (done.changes if query == CHANGES else done.records) if done else 0
        reached = count / result.written_s if result.written_s else 0
        rows.append(f"| {query} | {target:,}/s | {reached:,.0f}/s | {count:,} |")
    shown = {query: _median(result, query, "lag") for query in QUERIES}
    return [
        *rows,
        "",
        f"Median lag: the newest row in the target was {shown[CHANGES]:.1f} s old, and {shown[RECORDS]:,.0f} records "
        "were not in the sums yet. Times without a driver count too. Batches with rows: "
        f"{result.commits[CHANGES]:,} and {result.commits[RECORDS]:,}. The queries restarted "
        f"{result.restarts[CHANGES]} and {result.restarts[RECORDS]} times by themselves, after faults and for new "
        "columns.",
        "",
        f"The machine's load average was {_median(result, CHANGES, 'load'):.1f} (median) on {os.cpu_count()} cores, "
        "which other work shared.",
    ]


def _median(result: Result, query: str, name: str) -> float:
    values = [value for _, value in result.series.of[query].get(name, [])]
    return statistics.median(values) if values else float("nan")


def _comparisons(result: Result) -> list[str]:
    rows = ["| minute | changes | rows in MySQL | records | all there after | different |", "|---|---|---|---|---|---|"]
    for done in result.comparisons:
        took = ", ".join(f"{done.caught_up_s[query]:.1f} s" for query in QUERIES)
        rows.append(
            f"| {done.at_s / 60:.1f} | {done.changes:,} | {done.rows[CHANGES]:,} | {done.records:,} | {took} | "
            f"{len(done.faults) or 0} |"
        )
    return rows


def _struck(result: Result) -> list[str]:
    rows = ["| fault | times |", "|---|---|"]
    rows += [f"| {kind} | {result.struck[kind]} |" for kind in plan.FAULTS]
    ended = [(query, why) for query in QUERIES for why in result.ended[query]]
    if ended:
        rows += ["", f"A driver ended by itself {len(ended)} times, and was started again:", ""]
        rows += [f"* {TITLES[query]}: `{why[:200]}`" for query, why in ended]
    return rows


def _catch_ups(result: Result) -> list[str]:
    rows = [
        "| query | away | first commit after | caught up after | rows a second | said that it is in backlog |",
        "|---|---|---|---|---|---|",
    ]
    for query, done in result.catch_ups.items():
        is_done = done.seconds == done.seconds
        caught = f"{done.seconds:.0f} s" if is_done else "not while writers went on"
        speed = f"{(done.missed + done.written) / done.seconds:,.0f}" if is_done and done.seconds else ""
        rows.append(
            f"| {TITLES[query]} | {done.away_s / 60:.1f} min, {done.missed:,} rows | {done.first_commit_s:.0f} s | "
            f"{caught} | {speed} | {'yes' if done.saw_backlog else 'no'} |"
        )
    return rows


def _flatness(result: Result, away_s: float) -> list[str]:
    lines = [
        f"The longest life of each driver is judged, without its first {WARM_UP:.0%}. A line is fitted (Theil and "
        f"Sen's: the median of all slopes). A figure is *flat* if it rises by less than {PERCENT_AN_HOUR:.0f} % an "
        "hour, or within the judged time by less than the last column. So this run does not see a smaller leak.",
        "",
    ]
    for query, figures in verdicts(result, away_s).items():
        begin, end = longest(result, query)
        span = (end - begin) * (1 - WARM_UP) / 60
        lines += [
            f"**{TITLES[query]}**, {span:.0f} minutes of a life of {(end - begin) / 60:.0f}:",
            "",
            "| figure | least | line from | to | greatest | an hour | | not seen below |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, (verdict, points) in figures.items():
            values = [value for _, value in points] or [0.0]
            word = {True: "flat", False: "**rises**", None: "too short"}[verdict.is_flat]
            lines.append(
                f"| {NAMES[name]} | {min(values):,.0f} | {verdict.first:,.0f} | {verdict.last:,.0f} | "
                f"{max(values):,.0f} | {verdict.percent_an_hour:+.1f} % | {word} | {rules(away_s)[name].least:g} |"
            )
        lines.append("")
    return lines[:-1]


def _tail(minutes: float) -> list[str]:
    return [
        "## What it does not show",
        "",
        f"* This run had {minutes:g} minutes. A run of eight hours was not done.",
        "* All processes share the machine's cores, with other work beside them.",
        "* Servers, drivers and targets are on one machine. No disk was full, and no clock was set.",
        "",
    ]


_HEAD = """# Soak

Two queries under load, with faults every few minutes. Are their targets still equal, and do they need more and more?

| | |
|---|---|
| date | {day} |
| machine | {cores} cores, {memory} GiB, {system} |
| versions | Python {python}, {packages}, {servers} |
| command | `{command}` |
| length | {minutes} minutes of load; {seconds} with start, catch-up and comparisons |

* **MySQL to Delta**: `mysql_cdc` copies a table into a `DeltaUpsert`. A writer inserts, updates and deletes ranges of
  rows; the table keeps about {rows} rows. The query reads through an address that moves to a replica at a failover.
* **Files and Kafka to sums**: `hybrid` reads {before} rows of files, then a topic with JSON, to a sum and a count of
  {sums} keys in a `DeltaUpsert`.

Each query has a driver of its own (`local[2,4]`, 1.5 GB of heap). Every {each} minutes both writers pause until all
that they wrote is in the targets. Then all rows of the table are compared with MySQL's, and the sums with those that
follow from the number of records. Each driver is killed in a third of the time, is away for {away} minutes, and lives
on for half of the time, through all other faults. `VACUUM` runs in between, as the sink leaves that to a table's owner.

It is a *fault* if a row differs, a query does not catch up within 15 minutes of a pause, or a figure below rises.
"""
