"""Freshness in seconds: from MySQL's commit to the Delta commit with the change.

A process of its own changes a table of ``--rows`` rows in an embedded MySQL at a given rate: half updates of scattered
rows, half new rows. A query streams the table into a Delta table at local[2,4], with an interval of one second. Each
transaction also writes its number, which ends up in the Delta table, so the table's log shows when it arrived. The time
of a commit is that of its file. After a warm-up of each job, transactions count from ten seconds after the snapshot,
for ``--seconds``. Then the application ends, the query idles, and the table is compared with MySQL. Client and server
share the machine.

Kinds, and what a user would write by hand on ``readStream.format("mysql_cdc")`` (``handwritten``):

* ``append``: ``DeltaAppend``; foreachBatch that appends with ``txnAppId`` and ``txnVersion``.
* ``upsert``: ``DeltaUpsert``; foreachBatch with MERGE of the newest change of each key.
* ``sum``: sum and count of ``--keys`` keys, kept by ``DeltaUpsert``; Spark's aggregation of signed rows on RocksDB in
  update mode, and foreachBatch with MERGE of the changed keys.
* ``join``: clicks, a second table, joined with the users' table by processing time; a query that keeps the users as a
  Delta table as in ``upsert``, and a stream-static join of the clicks with it that appends.
* ``switch``: seconds from the last commit of the backlog to the first live one, for an upsert and for sums with as many
  keys as rows. No peer: it has no such switch.
* ``backpressure``: ``upsert`` at 5, 10 and 20 thousand changes per second: latency, seconds and rows of a commit, and
  the latency of the last third divided by that of the first (1: no queue grows). No peer.

``--write`` writes the figures of ``append``, ``upsert``, ``sum`` and ``join`` to docs/proof/freshness.md.

``cpu`` is processor time of the driver's JVM and all Python processes of the query, without the application and the
server. ``idle`` is the same in percent of a core while nothing changes.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import backlog_spark as bs
from backlog_spark.spark.jvm.session import register
from benchmarks import by_hand
from benchmarks import freshness_page as page
from benchmarks.by_hand import METADATA
from benchmarks.changes import MARK_ID, MARK_KEY, Application, changing, fill, reset
from benchmarks.common import arguments_parser, main, positives, progress, require_equal, result
from benchmarks.freshness_page import PERCENTS
from benchmarks.processes import jvm_of, spent, usage
from benchmarks.table_formats import DELTA, ICEBERG, TableFormat
from examples.freshness import Commit, gaps, percentile, waits
from servers.mysql import MySQLServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["UPSERTS", "Measured", "compare", "measure", "once", "running", "show", "source", "switched", "wait_for"]

_INTERVAL = "1 second"
_LIMIT_S = 600
_IDLE_S = 10
_POLL_S = 0.1
_WARM_S, _WARM_COMMITS = 10, 2  # warm-up: at least this long, and this many live commits

Start = Callable[["SparkSession", MySQLServer, Path, str], Sequence[Any]]


@dataclass(frozen=True)
class Kind:
    """A job in two forms, the mark in its output, and the comparison at the end.

    Parameters
    ----------
    ours, by_hand : callable
        Start the job. They return the queries; the first one writes ``out``.
    mark : (str, int, str)
        Output column that identifies the mark, its value there, and the column with the transaction's number.
    expected, found : str
        SQL for MySQL, and expressions over the output: number of rows, and the sum of a hash of each.
    format : TableFormat
        Of the output.
    """

    ours: Start
    by_hand: Start
    mark: tuple[str, int, str]
    expected: str
    found: tuple[str, str]
    clicks: bool = False
    format: TableFormat = DELTA


def source(server: MySQLServer, table: str = "t") -> bs.BacklogStream:
    """The stream of a table of `benchmarks.changes`."""
    return bs.source(
        "mysql_cdc", name=table, host="127.0.0.1", port=server.port, user=server.user, table=f"shop.{table}",
        useProcessingTimeDuringBinlog=True,
    )  # fmt: skip


def _ours(operate: Callable[[MySQLServer], bs.BacklogStream], sink: Callable[[str], bs.Sink], during: object) -> Start:
    def start(spark: SparkSession, server: MySQLServer, folder: Path, interval: str) -> Sequence[Any]:
        writer = operate(server).write("freshness").trigger(processing_time=interval, interval_during_backlog=during)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        return [writer.to(sink(str(folder / "out"))).start(spark)]

    return start


def _sum(server: MySQLServer) -> bs.BacklogStream:
    return source(server).key_by("k").aggregate("sum(v) AS total, count(*) AS n")


def _join(server: MySQLServer) -> bs.BacklogStream:
    clicks = source(server, "clicks").filter("_change_type = 'insert'").map("id", "user_id", "v")
    users = source(server).map("id AS user_id", "note", *METADATA)
    return clicks.temporal_join(users, on="user_id", how="left").map("id", "user_id", "v", "note")


def _hash(*columns: str) -> str:
    return f"crc32(concat_ws(',', {', '.join(columns)}))"


_ROW = ("id", "k", "v", "note")
_TABLE = f"SELECT COUNT(*), SUM({_hash(*_ROW)}) FROM shop.t"
# Counts each change of the log as often as it occurs: only a log without loss or duplicates gives the table.
_SIGN = "IF(_change_type IN ('insert', 'update_postimage'), 1L, -1L)"
_SUMS = "SELECT k, SUM(v) AS total, COUNT(*) AS n FROM shop.t GROUP BY k"
_CLICKS = "SELECT c.id, c.user_id, c.v, t.note FROM shop.clicks c LEFT JOIN shop.t t ON t.id = c.user_id"

_SUM = Kind(
    _ours(_sum, lambda path: bs.DeltaUpsert(path, keys=["k"]), 0),
    by_hand.keyed_sum,
    ("k", MARK_KEY, "total"),
    f"SELECT COUNT(*), SUM({_hash('k', 'total', 'n')}) FROM ({_SUMS}) s",
    ("count(*)", f"sum({_hash('k', 'total', 'n')})"),
)
_UPSERT = Kind(
    _ours(source, DELTA.upsert, "10 seconds"),
    by_hand.upsert,
    ("id", MARK_ID, "v"),
    _TABLE,
    ("count(*)", f"sum({_hash(*_ROW)})"),
)
UPSERTS = {
    "DeltaUpsert": _UPSERT,
    "IcebergUpsert": replace(_UPSERT, ours=_ours(source, ICEBERG.upsert, "10 seconds"), format=ICEBERG),
}
"""The kind ``upsert`` by its sink. Written by hand it is only there for Delta."""
KINDS = {
    "append": Kind(
        _ours(source, bs.DeltaAppend, "10 seconds"),
        by_hand.append,
        ("id", MARK_ID, "v"),
        _TABLE,
        (f"sum({_SIGN})", f"sum({_SIGN} * {_hash(*_ROW)})"),
    ),
    "upsert": _UPSERT,
    "sum": _SUM,
    "join": Kind(
        _ours(_join, bs.DeltaAppend, 0),
        by_hand.temporal_join,
        ("user_id", MARK_ID, "v"),
        f"SELECT COUNT(*), SUM({_hash('id', 'user_id', 'v', 'note')}) FROM ({_CLICKS}) s",
        ("count(*)", f"sum({_hash('id', 'user_id', 'v', 'note')})"),
        clicks=True,
    ),
}


@dataclass
class Measured:
    """The measurements of one candidate.

    Parameters
    ----------
    waits : list of float
        Seconds from MySQL's commit to Delta's, one per transaction. All transactions change the same number of rows.
    thirds : list of (float, float)
        For each run, the median wait in the first and in the last third.
    """

    waits: list[float] = field(default_factory=list)
    thirds: list[tuple[float, float]] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    commits: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    idle: list[float] = field(default_factory=list)
    rate: float = 0.0
    switch: float | None = None

    def add(
        self, marks: Sequence[tuple[float, int | None]], application: Application, begin: float, end: float
    ) -> None:
        """Add the transactions that were committed between two times."""
        counted = [(number, at) for number, at in application.transactions if begin <= at < end]
        found = waits(marks, counted)
        require_equal({"transactions": len(counted), "found in the table": len(found)})
        third = max(1, len(found) // 3)
        self.thirds.append((statistics.median(found[:third]), statistics.median(found[-third:])))
        self.waits += found
        commits = [at for at, mark in marks if mark is not None and begin <= at < end]
        self.between += gaps(commits)
        self.commits += len(commits)
        self.seconds += end - begin
        self.rate = application.rate(begin, end)


def _marks(log: Sequence[Commit], table: Path, mark: tuple[str, int, str]) -> list[tuple[float, int | None]]:
    """The time of each commit, and the number of its newest transaction."""
    key, value, number = mark
    found = []
    for commit in log:
        files = [pq.read_table(table / f["path"], columns=[number], filters=[(key, "==", value)]) for f in commit.files]
        numbers = [int(n) for each in files for n in each.column(number).to_pylist() if n is not None]
        found.append((commit.at, max(numbers, default=None)))
    return found


def wait_for(condition: Callable[[], object], queries: Sequence[Any]) -> None:
    """Wait for a condition. Raises the error of a query that ends meanwhile."""
    limit = time.monotonic() + _LIMIT_S
    while not condition():
        for query in queries:
            if not query.isActive:
                raise query.exception() or RuntimeError("the query ended early")
        if time.monotonic() > limit:
            raise TimeoutError(f"not reached within {_LIMIT_S} s")
        time.sleep(_POLL_S)


def switched(query: Any) -> float | None:
    """When our query left its backlog; for another query, when its first batch was done."""
    if isinstance(query, bs.BacklogQuery):
        return query.history[-1].timestamp if query.mode == "stream" and not query.isProcessingBacklog else None
    return time.time() if query.lastProgress is not None else None


def compare(server: MySQLServer, kind: Kind, output: DataFrame) -> None:
    """Refuse an output that is not what the tables in MySQL give."""
    found = output.selectExpr(*kind.found).first()
    assert found is not None, "an aggregate without keys has one row"
    require_equal({"MySQL": tuple(map(int, server.execute(kind.expected)[0])), "output": tuple(map(int, found))})


@contextlib.contextmanager
def running(queries: Sequence[Any]) -> Iterator[None]:
    """Stop the queries at the end of the block."""
    try:
        yield
    finally:
        for query in queries:
            query.stop()


def once(
    spark: SparkSession, server: MySQLServer, kind: Kind, start: Start, arguments: argparse.Namespace, rate: int,
    keys: int, into: Measured | None,
) -> None:  # fmt: skip
    """Run a job while the application changes the tables.

    Parameters
    ----------
    arguments : argparse.Namespace
        As of `parser`.
    rate, keys : int
        As of `changing`.
    into : Measured, optional
        Gets the measurements. None: a warm-up.
    """
    reset(server, arguments.rows)
    jvm = jvm_of(spark)
    with (
        tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as made,
        changing(server, rows=arguments.rows, keys=keys, rate=rate, clicks=kind.clicks) as (application, end_changes),
    ):
        folder = Path(made)
        out = folder / "out"
        queries = start(spark, server, folder, arguments.interval)
        with running(queries):
            flips: list[float | None] = []
            wait_for(lambda: flips.append(switched(queries[0])) or flips[-1], queries)
            flip = flips[-1]
            assert flip is not None
            warm = flip + min(_WARM_S, arguments.seconds)
            wait_for(lambda: sum(commit.at > flip for commit in kind.format.commits(out)) > _WARM_COMMITS, queries)
            wait_for(lambda: time.time() > warm, queries)
            if into is None:  # a warm-up
                return
            begin, used = time.time(), usage(jvm)
            time.sleep(arguments.seconds)
            into.cpu += spent(used, usage(jvm))
            end = time.time()
            end_changes()
            for query in reversed(queries):
                query.processAllAvailable()
            time.sleep(1)
            idle_s = min(_IDLE_S, arguments.seconds)
            used = usage(jvm)
            time.sleep(idle_s)
            into.idle.append(100 * spent(used, usage(jvm)) / idle_s)
        compare(server, kind, kind.format.rows(spark, out))
        marks = _marks(kind.format.commits(out), out, kind.mark)
        into.add(marks, application, begin, end)
        into.switch = min(at for at, _ in marks if at > flip) - max(at for at, _ in marks if at <= flip)


def show(name: str, rate: int, measured: Measured, changes: float) -> None:
    """Print the measurements. ``changes``: of a commit."""
    p50, p95, p99 = (percentile(measured.waits, percent) for percent in PERCENTS)
    print(
        f"{name}: {p50:.2f} s (p95 {p95:.2f}, p99 {p99:.2f}), {60 * measured.commits / measured.seconds:.1f} commits "
        f"a minute of {changes:,.0f} changes, {measured.cpu / max(1, measured.commits):.2f} s cpu a commit, "
        f"idle {statistics.median(measured.idle):.1f} % of a core, {measured.rate:,.0f} of {rate:,} changes/s",
        flush=True,
    )
    if measured.rate < 0.95 * rate:
        print(f"warning: the application did not reach {rate:,} changes/s", file=sys.stderr, flush=True)


def _compare(
    spark: SparkSession, server: MySQLServer, arguments: argparse.Namespace, name: str, rate: int, *, is_first: bool
) -> dict[str, Measured]:
    kind, variant = KINDS[name], f"{name} rate={rate}"
    candidates = {"ours": kind.ours, "handwritten": kind.by_hand}
    measured = {candidate: Measured() for candidate in candidates}
    # Warm up: otherwise the first candidate would pay for the JVM's compilation of Spark's and Delta's code.
    for candidate, start in candidates.items() if is_first else ():
        progress(f"{variant}, warm-up: {candidate}")
        once(spark, server, kind, start, arguments, rate, arguments.keys, None)
    for number in range(arguments.runs):
        for candidate, start in candidates.items():
            progress(f"{variant}, run {number + 1} of {arguments.runs}: {candidate}")
            once(spark, server, kind, start, arguments, rate, arguments.keys, measured[candidate])
    progress("")
    for candidate, each in measured.items():
        show(f"{variant}, {candidate}", rate, each, each.rate * each.seconds / max(1, each.commits))
    ours, theirs = measured.values()

    def less(what: str, mine: float, peers: float) -> None:
        result("freshness", f"{variant} {what}", mine, {"handwritten": peers}, less_is_better=True)

    for percent in PERCENTS:
        less(f"p{percent}", percentile(ours.waits, percent), percentile(theirs.waits, percent))
    minutes = 60 * ours.commits / ours.seconds, 60 * max(1, theirs.commits) / theirs.seconds
    result("freshness", f"{variant} commits a minute", minutes[0], {"handwritten": minutes[1]})
    less("cpu a commit", ours.cpu / max(1, ours.commits), theirs.cpu / max(1, theirs.commits))
    less("idle", statistics.median(ours.idle), statistics.median(theirs.idle))
    return measured


def _switch(spark: SparkSession, server: MySQLServer, arguments: argparse.Namespace, rate: int) -> None:
    # The table has fewer keys than rows. A sum by its primary key has one key per row.
    def by_id(server: MySQLServer) -> bs.BacklogStream:
        return source(server).key_by("id").aggregate("sum(v) AS total, count(*) AS n")

    keyed = Kind(
        _ours(by_id, lambda path: bs.DeltaUpsert(path, keys=["id"]), 0),
        by_hand.keyed_sum,
        ("id", MARK_ID, "total"),
        f"SELECT COUNT(*), SUM({_hash('id', 'v', '1')}) FROM shop.t",
        ("count(*)", f"sum({_hash('id', 'total', 'n')})"),
    )
    for what, kind in (("stateless", _UPSERT), (f"keys={arguments.rows}", keyed)):
        taken = []
        for number in range(arguments.runs):
            progress(f"switch {what}, run {number + 1} of {arguments.runs}")
            measured = Measured()
            once(spark, server, kind, kind.ours, arguments, rate, arguments.keys, measured)
            assert measured.switch is not None
            taken.append(measured.switch)
        progress("")
        print(f"switch {what}: {' '.join(f'{seconds:.2f}' for seconds in taken)} s", flush=True)
        result("freshness", f"switch {what} rate={rate}", statistics.median(taken), {}, less_is_better=True)


def _backpressure(spark: SparkSession, server: MySQLServer, arguments: argparse.Namespace, rate: int) -> None:
    measured = Measured()
    for number in range(arguments.runs):
        progress(f"backpressure rate={rate}, run {number + 1} of {arguments.runs}")
        once(spark, server, _UPSERT, _UPSERT.ours, arguments, rate, arguments.keys, measured)
    progress("")
    changes = measured.rate * measured.seconds / max(1, measured.commits)
    show(f"backpressure rate={rate}", rate, measured, changes)
    figures = {
        "p50": percentile(measured.waits, 50),
        "p95": percentile(measured.waits, 95),
        "seconds between commits": statistics.median(measured.between or [measured.seconds]),
        "changes a commit": changes,
        "last third over first": statistics.median(last / first for first, last in measured.thirds),
    }
    for what, figure in figures.items():
        result("freshness", f"backpressure rate={rate} {what}", figure, {}, less_is_better=True)


def measure(spark: SparkSession, server: MySQLServer, arguments: argparse.Namespace) -> None:
    """Fill the table, then run each kind at each rate."""
    progress(f"filling {arguments.rows:,} rows")
    fill(server, arguments.rows, arguments.keys)
    compared: dict[tuple[str, int], dict[str, Measured]] = {}
    for kind in arguments.kind:
        default = {"switch": [500], "backpressure": [5_000, 10_000, 20_000]}.get(kind, [500, 5_000])
        for number, rate in enumerate(arguments.rate or default):
            if kind == "switch":
                _switch(spark, server, arguments, rate)
            elif kind == "backpressure":
                _backpressure(spark, server, arguments, rate)
            else:
                compared[kind, rate] = _compare(spark, server, arguments, kind, rate, is_first=not number)
    if arguments.write:
        page.write(compared, arguments, server.version)


def run(arguments: argparse.Namespace) -> None:
    """Start the server and Spark, and measure."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(MySQLServer())
        spark = local_session("freshness benchmark", conf={"spark.backlog.progress": "off"})
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")  # hides "falling behind" for each batch
        register(spark)
        measure(spark, server, arguments)


def parser() -> argparse.ArgumentParser:
    """The benchmark's arguments."""
    made = arguments_parser(__doc__, rows=1_000_000, keys=200_000, runs=1)
    every = [*KINDS, "switch", "backpressure"]

    def kinds(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in every]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(every)}")
        return text.split(",")

    made.add_argument("--kind", type=kinds, default=every, help="some of them, separated by commas; default all")
    made.add_argument("--rate", type=positives, help="changes per second, separated by commas; default 500,5000")
    made.add_argument("--seconds", type=float, default=120, help="how long each is measured, default 120")
    made.add_argument("--write", action="store_true", help="write docs/proof/freshness.md")
    made.add_argument("--interval", default=_INTERVAL, help="commit interval, default 1 second")
    return made


if __name__ == "__main__":
    sys.exit(main(run, parser()))
