"""What a row, a batch and an offset cost as things grow: rows, keys, files, tables, chunks and cores.

Kinds:

* ``rows``: a sum by key in backlog over 10^6 rows and more, up to ``--rows``, and Spark's batch.
* ``keys``: the same over 10^7 rows (or ``--rows``) with 10^3 keys and more, and a live batch of 1,000 rows over the
  state of all keys.
* ``files``: a live batch of 1,000 scattered changes into a Delta table with 10 files and more.
* ``tables``: ``DeltaTables`` of one database with one table and more: the start, and a live batch with changes of ten
  tables.
* ``chunks``: the snapshot of one MySQL table in 10 chunks and more.
* ``cores``: the sum by key with one thread, with two, and on a cluster with two workers of one core.

Each size has a process of its own, so that none finds what another one has prepared. ``--rows`` bounds all sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import backlog_spark as bs
from backlog_spark.spark.jvm.session import register
from benchmarks.common import arguments_parser, main, progress, result
from benchmarks.flag import add_flag_connector
from benchmarks.live_sinks import LiveBatches, filled, table
from benchmarks.proof_page import facts, spread_table, write_page
from benchmarks.reduce import DDL, Ours, Written, live_times, made_rows, totals
from servers.mysql import MySQLServer
from servers.session import local_session
from servers.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES: Final = 100
_KEYS: Final = 200_000
_CHANGES: Final = 1_000
_FEW: Final = 10
_BATCHES: Final = 5
_CHUNK_ROWS: Final = 1_000_000
_TABLE_ROWS: Final = 20
_CHANGED_TABLES: Final = 10
_LIMIT_S: Final = 1_800

Figures = Mapping[str, float]


def _session(master: str = "local[2,4]", **conf: str) -> SparkSession:
    given = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "400", "spark.backlog.progress": "off", **conf}
    spark = local_session("growth benchmark", master=master, conf=given)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _sum(spark: SparkSession, folder: Path, rows: int, keys: int, *, live: bool = False) -> Figures:
    """The sum by key: the second run of each counts."""
    add_flag_connector()
    made_rows(spark, 0, rows, keys, _FILES).write.parquet(str(folder / "rows"))

    def ours() -> float:
        query = Ours(spark, folder / "rows", keys, Written())
        try:
            return query.until(1)
        finally:
            query.stop()

    def batch() -> float:
        began = time.perf_counter()
        totals(spark.read.schema(DDL).parquet(str(folder / "rows"))).write.format("noop").mode("append").save()
        return time.perf_counter() - began

    taken = {run.__name__: [run() for _ in range(2)][-1] for run in (ours, batch)}
    found = {"µs a row": 1e6 * taken["ours"] / rows, "Spark's batch, µs a row": 1e6 * taken["batch"] / rows}
    if live:
        found["live batch of 1,000 rows, s"] = live_times(spark, folder / "rows", keys, (_CHANGES,))[_CHANGES]
    return found


def _rows(size: int, folder: Path) -> Figures:
    return _sum(_session(), folder, size, _KEYS)


def _keys(size: int, folder: Path, most: int) -> Figures:
    return _sum(_session(), folder, most, size, live=True)


def _cores(size: int, folder: Path, most: int) -> Figures:
    if size == 3:
        root = str(Path(__file__).parents[1])
        with SparkCluster(environment={"PYTHONPATH": root}, memory="2g") as cluster:
            return _sum(_session(cluster.url), folder, most, _KEYS)
    return _sum(_session(f"local[{size},4]"), folder, most, _KEYS)


def _files(size: int, folder: Path) -> Figures:
    """The files have ten rows each, or more if they are few."""
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    spark = _session()
    rows = max(100_000, 10 * size)
    out = folder / "out"
    write = filled(bs.DeltaUpsert(str(out), keys=["id"], compact=False, on_existing_rows="keep"), table(spark, _FEW))
    schema = table(spark, 1).toArrow().schema
    each, added = rows // size, []
    for number in range(size):
        first = 1 + _FEW + number * each
        ids = range(first, first + each)
        columns = [ids, [i % 50_000 for i in ids], [i % 1000 for i in ids], [f"order {i}" for i in ids]]
        data = pa.table([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema.names)
        path = out / f"part-{number}.parquet"
        pq.write_table(data, path)
        ends = {"minValues": {"id": first}, "maxValues": {"id": first + each - 1}, "nullCount": {"id": 0}}
        stats = json.dumps({"numRecords": each, **ends})
        added.append(AddAction(path.name, path.stat().st_size, {}, int(time.time() * 1000), True, stats))
    log = DeltaTable(out)
    log.create_write_transaction(added, "append", log.schema(), [])
    DeltaTable(out).create_checkpoint()
    live = LiveBatches(write, spark, folder, rows, _CHANGES)
    times = [live() for _ in range(2 + _BATCHES)][2:]
    return {"live batch of 1,000 changes, s": statistics.median(times)}


def _source(server: MySQLServer, **options: object) -> bs.BacklogStream:
    return bs.source("mysql_cdc", name="shop", host="127.0.0.1", port=server.port, user=server.user, **options)


def _offset_bytes(checkpoint: Path) -> int:
    """Bytes of the newest offset of Spark's log."""
    return max((int(p.name), p.stat().st_size) for p in (checkpoint / "offsets").iterdir() if p.name.isdigit())[1]


def _tables(size: int, folder: Path) -> Figures:
    spark = _session()
    register(spark)
    with MySQLServer(fast=True) as server:
        server.execute("CREATE DATABASE many")
        rows = ", ".join(f"({number}, 0)" for number in range(_TABLE_ROWS))
        for number in range(size):
            server.execute(f"CREATE TABLE many.t{number} (id BIGINT PRIMARY KEY, v BIGINT NOT NULL)")
            server.execute(f"INSERT INTO many.t{number} VALUES {rows}")
        stream = _source(
            server,
            tablePattern=r"many\..*",
            format="debezium",
            metadataColumns="_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns",
        )
        writer = stream.write("growth").trigger(processing_time="50 ms", interval_during_backlog=0)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        began = time.perf_counter()
        query = writer.to(bs.DeltaTables(str(folder / "lake"), compact=False)).start(spark)
        try:
            while query.isProcessingBacklog:
                _check(query, began)
                time.sleep(0.02)
            query.processAllAvailable()
            ready = time.perf_counter() - began
            times = []
            for _ in range(2 + _BATCHES):
                at = time.perf_counter()
                for number in range(min(size, _CHANGED_TABLES)):
                    server.execute(f"UPDATE many.t{number * (size // min(size, _CHANGED_TABLES))} SET v = v + 1")
                query.processAllAvailable()
                times.append(time.perf_counter() - at)
        finally:
            query.stop()
        return {
            "snapshot, ms a table": 1000 * ready / size,
            "live changes of ten tables, s": statistics.median(times[2:]),
            "bytes of an offset": _offset_bytes(folder / "checkpoint"),
        }


def _chunks(size: int, folder: Path, most: int) -> Figures:
    from benchmarks.changes import fill

    rows = min(_CHUNK_ROWS, most)
    spark = _session()
    register(spark)
    with MySQLServer() as server:
        fill(server, rows, 1_000)
        took = []
        for run in range(2):
            made = folder / f"checkpoint {run}"
            writer = _source(server, table="shop.t", chunkSize=max(1, rows // size)).write("growth")
            writer = writer.trigger(interval_during_backlog=0).option("checkpointLocation", str(made))
            sink = Written()
            began = time.perf_counter()
            query = writer.to(sink).start(spark)
            try:
                while not sink.at or query.isProcessingBacklog:
                    _check(query, began)
                    time.sleep(0.02)
                took.append(sink.at[-1] - began)
                query.processAllAvailable()
            finally:
                query.stop()
        return {"µs a row": 1e6 * took[-1] / rows, "bytes of an offset": _offset_bytes(made)}


def _check(query: Any, began: float) -> None:
    if not query.isActive or time.perf_counter() - began > _LIMIT_S:
        raise query.exception() or TimeoutError("the query ended early or takes too long")


@dataclass(frozen=True)
class Kind:
    """What grows.

    Parameters
    ----------
    title, about : str
    sizes : sequence of int
    run : callable
        Takes a size, an empty folder and the bound, and returns figures by name.
    names : mapping of int to str
        Of sizes that are no numbers.
    bounded : bool
        Whether sizes above the bound are left out.
    """

    title: str
    about: str
    sizes: Sequence[int]
    run: Callable[[int, Path, int], Figures]
    names: Mapping[int, str] = field(default_factory=dict)
    bounded: bool = True


KINDS: Final = {
    "rows": Kind(
        "Rows",
        f"A sum by key in backlog, of {_KEYS:,} keys. Small inputs show the start of the query.",
        (1_000_000, 10_000_000, 100_000_000),
        lambda size, folder, most: _rows(size, folder),
    ),
    "keys": Kind(
        "Keys",
        "The same by the number of keys, and a live batch of 1,000 rows over the state of all keys.",
        (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
        lambda size, folder, most: _keys(size, folder, min(most, 10_000_000)),
    ),
    "files": Kind(
        "Files of a Delta table",
        "A live batch of 1,000 scattered changes, half of them updates, into a table of small files without "
        "compaction. Each update is in another file, as long as there are enough.",
        (10, 100, 1_000, 10_000, 100_000),
        lambda size, folder, most: _files(size, folder),
    ),
    "tables": Kind(
        "Tables",
        f"`DeltaTables` of a database whose tables have {_TABLE_ROWS} rows each: from the start to the end of the "
        "snapshot, and changes of all rows of ten tables until they are in the Delta tables.",
        (1, 10, 100, 1_000),
        lambda size, folder, most: _tables(size, folder),
    ),
    "chunks": Kind(
        "Chunks of a snapshot",
        "A table of 1,000,000 rows, read in ever smaller chunks.",
        (10, 100, 1_000, 10_000, 100_000),
        _chunks,
    ),
    "cores": Kind(
        "Cores",
        "The sum by key. All run on the same machine with two cores; the cluster has a master and two workers there.",
        (1, 2, 3),
        lambda size, folder, most: _cores(size, folder, min(most, 10_000_000)),
        {1: "one thread", 2: "two threads", 3: "two workers"},
        bounded=False,
    ),
}


def _measured(name: str, size: int, most: int) -> Figures:
    """Run one size in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.growth", "--kind", name, "--one", str(size), "--rows", str(most)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def run(arguments: argparse.Namespace) -> None:
    """Measure each kind at each size."""
    if arguments.one:
        with tempfile.TemporaryDirectory(prefix="backlog-bench-", ignore_cleanup_errors=True) as folder:
            figures = KINDS[arguments.kind[0]].run(arguments.one, Path(folder), arguments.rows)
        print(json.dumps(figures), flush=True)
        return
    found: dict[str, dict[int, Figures]] = {}
    for name in arguments.kind:
        kind = KINDS[name]
        for size in kind.sizes:
            if size <= arguments.rows or not kind.bounded:
                progress(f"{name}: {size:,}")
                figures = found.setdefault(name, {})[size] = _measured(name, size, arguments.rows)
                for what, figure in figures.items():
                    result("growth", f"{name}={size} {what}", figure, {}, less_is_better=True)
    progress("")
    if arguments.write:
        _write(found, arguments)


_ABOUT = """What a row, a batch and an offset cost as things grow. Each size runs in a process of its own, and includes
the start of its query. A flat line costs the same at each size.

"""


def _write(found: Mapping[str, Mapping[int, Figures]], arguments: argparse.Namespace) -> None:
    command = f"make bench CASE=growth KIND={','.join(found)} ROWS={arguments.rows} WRITE=1"
    lines = [*_ABOUT.splitlines(), *facts(command, MySQL=MySQLServer.version)]
    for name, sizes in found.items():
        kind = KINDS[name]
        heads = list(next(iter(sizes.values())))
        rows = [
            [kind.names.get(size, f"{size:,}"), *(_shown(figures[head]) for head in heads)]
            for size, figures in sizes.items()
        ]
        lines += ["", f"## {kind.title}", "", kind.about, "", *spread_table([name, *heads], rows)]
        if not kind.names:
            lines += ["", *_plot(kind.title, sizes, heads)]
    write_page("growth", "Growth", "make bench CASE=growth WRITE=1", lines)


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:.3g}"


_BARS: Final = 40


def _plot(title: str, sizes: Mapping[int, Figures], heads: Sequence[str]) -> list[str]:
    """Bars of text, each figure against the greatest of its line."""
    lines = ["```text"]
    for head in heads:
        most = max(figures[head] for figures in sizes.values())
        lines.append(head)
        for size, figures in sizes.items():
            bar = "█" * max(1, math.ceil(_BARS * figures[head] / most))
            lines.append(f"{size:>12,} {bar}")
    return [*lines, "```"]


def _parser() -> argparse.ArgumentParser:
    parser = arguments_parser(__doc__, rows=100_000_000)

    def kinds(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in KINDS]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
        return text.split(",")

    parser.add_argument(
        "--kind", type=kinds, default=list(KINDS), help="some of them, separated by commas; default all"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/proof/growth.md")
    return parser


if __name__ == "__main__":
    sys.exit(main(run, _parser()))
