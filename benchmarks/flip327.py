"""The two benchmarks of FLIP-327 beside Spark's and Flink's batch and streaming.

All read the same Parquet files with two threads and drop their results.

* ``reduce``: a sum by key of ``--rows`` records of ``--keys`` keys.
* ``cogroup``: two inputs with a fifth of ``--rows`` each. Keys are unique and the same on both sides. A function
  emits a 1 for each key.

Candidates:

* ``ours``: from ``start()`` of a new query with an interval during backlog of 0 until its backlog has been written;
  ``ours, live`` until the first live batch after it has been written, for ``reduce``. ``ours, per key`` has a Python
  function of one key: the reduce function, or the co-group function.
* ``spark_batch``: ``groupBy`` and ``sum``, and a full outer join.
* ``spark_stream``: the same in Spark's streaming on RocksDB, with all files in one batch.
* ``flink_batch``, ``flink_stream``: ``keyBy`` and ``reduce``, and ``coGroup`` in a window of a day, in Flink's
  DataStream API, the stream with RocksDB and a checkpoint every three minutes.
* ``flink_end``: the stream with ``GlobalWindows.createWithEndOfStreamTrigger()``, which FLIP-327 has become. Flink then
  sorts inputs as in batch. It runs no checkpoint, and nothing can follow.

Results are compared before a time counts: of ``reduce`` the number of keys and a checksum of the sums, of ``cogroup``
the number of rows.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from benchmarks.backlogs import Written, batch_time, fingerprint, ours_time, stream_time
from benchmarks.cogroup import DDL as PAIR_DDL
from benchmarks.cogroup import One, Ones, co_grouped, write_sides
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.flag import add_flag_connector
from benchmarks.flink_peer import FLINK_THREADS, run_program
from benchmarks.proof_page import facts, spread_table, write_page
from benchmarks.reduce import DDL, Ours, made_rows, totals
from benchmarks.reduce import Written as WrittenSums
from servers.flink_jars import FLINK_VERSION
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = 100
_LIVE_ROWS = 1_000
_LIMIT_S = 1_800.0
_CHECKSUM = "pmod(value * 31 + key, 1000000007)"  # as the program of Flink has it
_SLOW = ("spark_stream", "flink_stream")  # of these one measured run is enough


def _reduced(keyed: Any) -> bs.BacklogStream:
    return keyed.reduce(lambda one, other: one._replace(value=one.value + other.value))


class _Reduce:
    """The sum by key."""

    name = "reduce"

    def __init__(self, spark: SparkSession, folder: Path, rows: int, keys: int) -> None:
        self._spark, self._keys = spark, keys
        self.rows = rows
        self.inputs = [folder / "reduce"]
        made_rows(spark, 0, rows, keys, _FILES).write.parquet(str(self.inputs[0]))
        self.live: list[float] = []

    def _batch(self) -> DataFrame:
        return totals(self._spark.read.schema(DDL).parquet(str(self.inputs[0])))

    def expected(self) -> tuple[int, int]:
        """As Flink's program checks its result."""
        found = self._batch().selectExpr("count(*)", f"sum({_CHECKSUM})").first()
        assert found is not None, "an aggregate without keys has one row"
        return found[0], found[1]

    def check(self) -> None:
        found = {"spark_batch": fingerprint(self._batch())}
        for name, operate in (("ours", _summed), ("ours, per key", _reduced)):
            sink = WrittenSums(fingerprint=True)
            query = Ours(self._spark, self.inputs[0], self._keys, sink, operate)
            try:
                query.until(1)
            finally:
                query.stop()
            found[name] = sink.found
        require_equal(found)

    def _ours(self, operate: Callable[[Any], bs.BacklogStream], live: list[float] | None = None) -> float:
        ahead = 0 if live is None else _LIVE_ROWS
        query = Ours(self._spark, self.inputs[0], self._keys, WrittenSums(), operate, ahead=ahead)
        try:
            took = query.until(1)
            if live is not None:
                query.go_live()
                live.append(query.until(2))
            return took
        finally:
            query.stop()

    def candidates(self) -> dict[str, Callable[[], float]]:
        return {
            "ours": lambda: self._ours(_summed, self.live),
            "ours, per key": lambda: self._ours(_reduced),
            "spark_batch": lambda: batch_time(self._batch()),
        }

    def stream(self) -> float:
        return stream_time(
            self._spark, lambda: totals(self._spark.readStream.schema(DDL).parquet(str(self.inputs[0]))), "update"
        )


def _summed(keyed: Any) -> bs.BacklogStream:
    return keyed.sum("value")


class _CoGroup:
    """The co-group of two inputs."""

    name = "cogroup"

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self._spark, self._each = spark, rows
        self.rows = 2 * rows
        self._frames = write_sides(spark, folder, rows)
        self.inputs = [folder / side for side in self._frames]
        self.live: list[float] = []

    def _joined(self, read: Callable[[Path], DataFrame]) -> DataFrame:
        left, right = (read(path).where("key >= 0") for path in self.inputs)
        return left.join(right, "key", "full").selectExpr("1 AS one")

    def _streamed(self) -> DataFrame:
        """A join of streams in windows of a day."""
        sides = []
        for path in self.inputs:
            side = self._spark.readStream.schema(PAIR_DDL).parquet(str(path)).where("key >= 0")
            sides.append(side.withWatermark("ts", "0 seconds").selectExpr("key", "window(ts, '1 day') AS day", "value"))
        return sides[0].join(sides[1], ["key", "day"], "full").selectExpr("1 AS one")

    def expected(self) -> tuple[int, int]:
        return self._each, 0

    def check(self) -> None:
        found = {}
        for name, function in (("ours", Ones()), ("ours, per key", One())):
            sink = Written(fingerprint=True)
            self._ours(function, sink)
            found[name] = sink.rows
        require_equal({**found, "spark_batch": self._batch().count()})

    def _batch(self) -> DataFrame:
        return self._joined(lambda path: self._spark.read.schema(PAIR_DDL).parquet(str(path)))

    def _ours(self, function: bs.CoGroupFunction, sink: Written | None = None) -> float:
        inputs = {path.name: (path, PAIR_DDL) for path in self.inputs}
        return ours_time(self._spark, inputs, co_grouped(function), self._each, sink)

    def candidates(self) -> dict[str, Callable[[], float]]:
        return {
            "ours": lambda: self._ours(Ones()),
            "ours, per key": lambda: self._ours(One()),
            "spark_batch": lambda: batch_time(self._batch()),
        }

    def stream(self) -> float:
        return stream_time(self._spark, self._streamed, "append")


def _flink(mode: str, end: str, cases: list[_Reduce | _CoGroup], runs: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of Flink's runs by case. The first run of each is not counted: it shows that its result is right."""
    given = [mode, str(FLINK_THREADS), str(2 * FLINK_THREADS), str(folder / "checkpoints")]
    for at in range(runs + 1):
        for case in cases:
            inputs = ",".join(map(str, case.inputs))
            given += [f"{case.name}-{at}", case.name + end, inputs, "-" if at else "check"]
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    expected = {case.name: case.expected() for case in cases}
    said = run_program("Flip327Peer", given, folder / f"{mode}{end}.log", limit_s=_LIMIT_S)
    for kind, run, figures in said:
        name, _, number = run.rpartition("-")
        if kind == "CHECK":
            count, checksum = map(int, figures.split())
            require_equal({f"flink {mode}{end}": (count, checksum), "spark_batch": expected[name]})
        elif kind == "FAILED":
            raise BacklogError(f"Flink cannot run {name}{end} as {mode}: {figures}.")
        elif number != "0":
            times[name].append(float(figures.split()[0]))
    if any(len(each) != runs for each in times.values()):
        raise BacklogError(f"Flink did not end {mode}{end} in {_LIMIT_S:.0f} s.")
    return times


_START = "start"


def _few(spark: SparkSession, folder: Path, name: str, keys: int) -> list[_Reduce | _CoGroup]:
    """The case with 1,000 records."""
    return [_Reduce(spark, folder, 1_000, keys) if name == "reduce" else _CoGroup(spark, folder, 500)]


_FLINK = {
    "flink_batch": ("batch", ""),
    "flink_stream": ("streaming", ""),
    "flink_end": ("streaming", "-end"),
}


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    rows, keys = arguments.rows, arguments.keys
    seconds: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress("starting Spark")
        conf = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "400"}
        spark = local_session("flip327 benchmark", master=f"local[{FLINK_THREADS},4]", conf=conf)
        stack.callback(spark.stop)
        add_flag_connector()
        progress(f"making {rows:,} records")
        cases: list[_Reduce | _CoGroup] = [_Reduce(spark, folder, rows, keys), _CoGroup(spark, folder, rows // 5)]
        for case in cases:
            progress(f"comparing the results of {case.name}")
            case.check()
            times = interleave(case.candidates(), arguments.runs)
            if case.live:
                times["ours, live"] = case.live[1:]  # the first was the warm-up's
            progress(f"{case.name}: spark_stream")
            times["spark_stream"] = [case.stream()]
            times[_START] = [few.candidates()["ours"]() for few in _few(spark, folder / "few", case.name, keys)]
            seconds[case.name] = times
        for candidate, (mode, end) in _FLINK.items():
            progress(candidate)
            runs = 1 if candidate in _SLOW else arguments.runs
            for name, each in _flink(mode, end, cases, runs, folder).items():
                seconds[name][candidate] = each
        progress("")
    counts = {case.name: case.rows for case in cases}
    for name, times in seconds.items():
        speeds = {each: show(f"{name}, {each}", counts[name], times[each]) for each in _CANDIDATES if each in times}
        peers = {each: speeds[each] for each in speeds if not each.startswith("ours")}
        result("flip327", name, speeds["ours"], peers)
        result("flip327", f"{name}, per key", speeds["ours, per key"], peers)
    if arguments.write:
        _write(counts, seconds, keys, arguments)


_CANDIDATES = {
    "ours": "backlog_spark, backlog",
    "ours, live": "backlog_spark, until the first live batch",
    "ours, per key": "backlog_spark, backlog, with a Python function of one key",
    "spark_batch": "Spark batch",
    "spark_stream": "Spark stream",
    "flink_batch": "Flink batch",
    "flink_stream": "Flink stream",
    "flink_end": "Flink stream, window that ends with the stream",
}
_PUBLISHED = (
    ("reduce", "stream", "28.8 s", "11.6 s", "2.5"),
    ("reduce", "batch", "11.1 s", "11.6 s", "1.0"),
    ("cogroup", "stream", "56 s for 2 × 2,000,000 records", "46 s for 2 × 50,000,000 records", "20"),
    ("cogroup", "batch", "118 s for 2 × 50,000,000 records", "46 s", "2.5"),
)
_GOALS = {"flink_batch": 2.0, "flink_stream": 8.0}


_ABOUT = """FLIP-327 comes with two benchmarks: a sum by key, and a co-group of two inputs with unique keys, whose
function emits a 1. This page has them on `backlog_spark`, Spark and Flink.

"""
_HOW = """
All candidates read the same Parquet files with two threads on the same machine, and drop their results. The results are
compared before a time counts. Times are the median of the runs after a warm-up.

* `backlog_spark` starts a new query with an interval during backlog of 0. Its time includes the query's start and the
  state on disk. Live rows can follow. In the first line the sum is declared, and the co-group's function gets many keys
  at once. With *a Python function of one key* it is a function as in the proposal.
* Spark batch and Spark stream use `groupBy`, and a full outer join. The stream has RocksDB and one batch.
* Flink uses the DataStream API in a running cluster: `keyBy().reduce()`, and `coGroup` in a window of a day. Flink
  stream has RocksDB and a checkpoint every three minutes.
* *Window that ends with the stream* is `GlobalWindows.createWithEndOfStreamTrigger()`: the form that Flink 2 has of the
  proposal. Flink sorts the inputs as in batch. It refuses checkpoints for them, and nothing can follow.
"""


def _write(
    counts: Mapping[str, int],
    seconds: Mapping[str, Mapping[str, list[float]]],
    keys: int,
    arguments: argparse.Namespace,
) -> None:
    command = f"make bench CASE=flip327 ROWS={arguments.rows} KEYS={keys} RUNS={arguments.runs} WRITE=1"
    lines = [*_ABOUT.splitlines(), *facts(command, Flink=FLINK_VERSION), *_HOW.splitlines()]
    for name, times in seconds.items():
        about = (
            f"{counts[name]:,} records of {keys:,} keys" if name == "reduce" else f"2 × {counts[name] // 2:,} records"
        )
        lines += ["", f"## {name}: {about}", ""]
        best = statistics.median(times["ours"])
        rows = []
        for each, title in _CANDIDATES.items():
            if each in times:
                took = statistics.median(times[each])
                ratio = "" if each.startswith("ours") else f"{took / best:.1f}"
                goal = f"at least {_GOALS[each]:g}" if each in _GOALS else ""
                shown = ", ".join(f"{run:.1f}" for run in times[each])
                rows.append([title, f"{counts[name] / took:,.0f}", f"{took:.1f}", shown, ratio, goal])
        head = ["candidate", "records/s", "seconds", "runs", "times of backlog_spark", "goal"]
        lines += spread_table(head, rows)
        if _START in times:
            took = statistics.median(times[_START])
            lines += [
                "",
                f"Of `backlog_spark`'s time {took:.1f} s are the start of the query: so long 1,000 records take.",
            ]
    lines += [
        "",
        "## What the proposal published",
        "",
        "On another machine, with one thread and older versions of Flink (1.17 and 1.19 snapshots). A generator made",
        "the records.",
        "",
        *spread_table(["benchmark", "compared with", "without the proposal", "with it", "times"], _PUBLISHED),
    ]
    write_page("flip327", "The benchmarks of FLIP-327", "make bench CASE=flip327 WRITE=1", lines)


def _parser() -> argparse.ArgumentParser:
    parser = arguments_parser(__doc__, rows=10_000_000, keys=200_000)
    parser.add_argument("--write", action="store_true", help="write docs/proof/flip327.md")
    return parser


if __name__ == "__main__":
    sys.exit(main(run, _parser()))
