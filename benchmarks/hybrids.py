"""Files, then Kafka: ``bs.source("hybrid")`` against ``bs.hybrid``, which runs Spark's own readers one after the other.

Both read ``--rows`` rows of 8 mixed columns from 16 files, then a tenth as many JSON records from a topic of 4
partitions, at local[2,4] and with an interval during backlog of 0. Both append to a Delta table: `DeltaAppend`, and
``writeStream.format("delta")``. The topic is complete before the query starts. Broker and query share the machine.
Each run has a new checkpoint and a new table. Times are those of the table's commits.

For each format of the files (``--kind=parquet,json,csv``):

* ``files``: rows per second, from ``start()`` to the commit that completes the files' rows; so the start counts.
* ``cores``: processor seconds per second of that time, of the driver's JVM and all Python processes.
* ``cpu``: the same in seconds for a million rows.
* ``switch``: seconds from the last commit of the files to the first commit with a row of the topic. A live batch is
  limited to a quarter of the topic, so this includes reading and writing a quarter.
* ``kafka``: rows per second of the other three quarters, from the first commit with a row of the topic to the last.

The rows of both tables, and of the tables of all formats, are compared after each run: their number, and the sum of a
hash of all columns. A run with other rows ends the benchmark, and no time is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

import backlog_spark as bs
from benchmarks.backlogs import LIMIT_S, fingerprint
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result
from benchmarks.hybrid import write_topic
from benchmarks.processes import jvm_of, spent, usage
from examples.freshness import read_log
from servers.jars import spark_kafka_jars
from servers.kafka import KafkaServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["measure"]

_KINDS = ("parquet", "json", "csv")
_FILES, _LIVE_BATCHES = 16, 4
_BLOCK_ROWS = 100_000
_TOPIC = "hybrids"
_MONEY = pa.decimal128(12, 2)
_NAMES = {"source": 'bs.source("hybrid")', "native": "bs.hybrid"}
_DDL = (
    "id BIGINT, customer INT, status STRING, amount DECIMAL(12,2), discount DOUBLE, note STRING, day DATE, at TIMESTAMP"
)


class _Figures(NamedTuple):
    """Of one run; see above. ``cores`` is a number of cores."""

    files: float
    kafka: float
    switch: float
    cpu: float
    cores: float


def _rows(first: int, count: int) -> pa.Table:
    """Rows of the numbers from ``first`` on."""
    ids = pa.array(np.arange(first, first + count))

    def modulo(value: Any, divisor: int) -> Any:
        return pc.subtract(value, pc.multiply(pc.divide(value, divisor), divisor))

    def text(prefix: str, value: Any) -> Any:
        return pc.binary_join_element_wise(prefix, pc.cast(value, pa.string()), "")

    cents = pc.cast(modulo(pc.multiply(ids, 37), 100_000), pa.decimal128(19, 0))
    discount = pc.divide(pc.cast(modulo(ids, 100), pa.float64()), 7.0)
    statuses = pa.array(["new", "paid", "shipped", "returned"])
    return pa.table(
        {
            "id": ids,
            "customer": pc.cast(modulo(pc.multiply(ids, 7919), 200_000), pa.int32()),
            "status": statuses.take(modulo(ids, 4)),
            "amount": pc.cast(pc.multiply(cents, pa.scalar("0.01", pa.string()).cast(pa.decimal128(3, 2))), _MONEY),
            "discount": pc.if_else(pc.equal(modulo(ids, 5), 0), None, discount),
            "note": pc.if_else(pc.equal(modulo(ids, 11), 0), None, text("order ", ids)),
            "day": pc.cast(pc.cast(pc.add(modulo(ids, 700), 19_723), pa.int32()), pa.date32()),
            "at": pc.cast(pc.add(pc.multiply(ids, 1_000_001), 1_704_067_200_000_000), pa.timestamp("us", "UTC")),
        }
    )


def _texts(rows: pa.Table) -> pa.Table:
    """The same with all columns as text. Timestamps have the form of ISO 8601."""
    texts = {name: pc.cast(rows[name], pa.string()) for name in rows.column_names}
    texts["at"] = pc.replace_substring(texts["at"], " ", "T")
    return pa.table(texts)


def _json(rows: pa.Table) -> pa.ChunkedArray:
    """A JSON object for each row. NULL is ``null``; no text needs an escape."""
    texts = _texts(rows)
    parts: list[Any] = []
    for name, declared in zip(rows.column_names, rows.schema.types, strict=True):
        is_number = pa.types.is_integer(declared) or pa.types.is_floating(declared) or pa.types.is_decimal(declared)
        value = texts[name] if is_number else pc.binary_join_element_wise('"', texts[name], '"', "")
        parts += [f'{", " if parts else "{"}"{name}": ', pc.fill_null(value, "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


def _write(folder: Path, kinds: list[str], rows: int) -> None:
    """Files of all formats with the same rows."""
    for kind in kinds:
        (folder / kind).mkdir()
    of_file = -(-rows // _FILES)
    for number in range(_FILES):
        progress(f"writing file {number + 1} of {_FILES}")
        first = number * of_file
        made = _rows(first, max(0, min(of_file, rows - first)))
        if "parquet" in kinds:
            pq.write_table(made, folder / "parquet" / f"{number:02}.parquet", row_group_size=_BLOCK_ROWS)
        if "csv" in kinds:
            quotes = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
            pyarrow.csv.write_csv(_texts(made), folder / "csv" / f"{number:02}.csv", write_options=quotes)
        if "json" in kinds:
            with (folder / "json" / f"{number:02}.json").open("wb") as file:
                for chunk in _json(made).chunks:
                    file.write("".join(f"{line}\n" for line in chunk.to_pylist()).encode())


def _records(first: int, count: int) -> Iterator[bytes]:
    """Values of the topic's records."""
    for start in range(first, first + count, _BLOCK_ROWS):
        for chunk in _json(_rows(start, min(_BLOCK_ROWS, first + count - start))).chunks:
            yield from chunk.cast(pa.binary()).to_pylist()


def _growth(table: Path) -> list[tuple[float, int]]:
    """The time of each commit of a Delta table, and its rows after it."""
    found, total = [], 0
    for commit in read_log(table):
        total += sum(json.loads(file["stats"])["numRecords"] for file in commit.files)
        found.append((commit.at, total))
    return found


def _decoded(records: DataFrame) -> DataFrame:
    """Spark's records of Kafka as rows."""
    return records.selectExpr(f"from_json(cast(value AS string), '{_DDL}') AS r").select("r.*")


class _Bench:
    def __init__(self, spark: SparkSession, folder: Path, broker: str, rows: int, records: int) -> None:
        self.spark, self.folder = spark, folder
        self.rows, self.records = rows, records
        self.kafka = {"kafka.bootstrap.servers": broker, "subscribe": _TOPIC, "startingOffsets": "earliest"}
        self.limited = {**self.kafka, "maxOffsetsPerTrigger": str(-(-records // _LIVE_BATCHES))}
        self.jvm = jvm_of(spark)
        self.expected: dict[str, object] = {}

    def expect(self, kind: str) -> None:
        """Note the rows that every table must have: those of Spark's batch readers."""
        files = self.spark.read.schema(_DDL).format(kind).load(str(self.folder / kind))
        records = _decoded(self.spark.read.format("kafka").options(**self.kafka).load())
        self.expected = {f"spark_{kind}": fingerprint(files.union(records))}

    def run(self, kind: str, start: Callable[[str, Path], Any]) -> _Figures:
        """One run on a new checkpoint, into a new table."""
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as made:
            target, before, began = Path(made) / "target", usage(self.jvm), time.time()
            query = start(kind, Path(made))
            try:
                self._wait(query, target, self.rows)
                used = spent(before, usage(self.jvm))
                self._wait(query, target, self.rows + self.records)
            finally:
                query.stop()
            found = fingerprint(self.spark.read.format("delta").load(str(target)))
            require_equal({**self.expected, f"{kind} {start.__name__}": found})
            commits = _growth(target)
        ended = next(at for at, rows in commits if rows >= self.rows)
        live = next((at, rows) for at, rows in commits if rows > self.rows)
        last = next(at for at, rows in commits if rows == self.rows + self.records)
        took = ended - began
        rest = self.rows + self.records - live[1]
        return _Figures(
            files=self.rows / took,
            kafka=rest / max(0.001, last - live[0]),
            switch=live[0] - ended,
            cpu=used / self.rows * 1_000_000,
            cores=used / took,
        )

    def source(self, kind: str, made: Path) -> Any:
        """``bs.source("hybrid")`` and `DeltaAppend`."""
        options = {**self.limited, "path": str(self.folder / kind), "fileFormat": kind, "valueFormat": "json"}
        if kind == "csv":
            options["multiLine"] = "false"  # the default of Spark's reader
        stream = bs.source("hybrid", name="orders", schema=_DDL, options=options)
        writer = stream.write("orders").trigger(interval_during_backlog=0)
        writer = writer.option("checkpointLocation", str(made / "checkpoint"))
        return writer.to(bs.DeltaAppend(str(made / "target"))).start(self.spark)

    def native(self, kind: str, made: Path) -> Any:
        """``bs.hybrid`` and Spark's writer for Delta."""
        phases = bs.hybrid(
            self.spark,
            "orders",
            phases={
                "old": lambda reader, ctx: reader.schema(_DDL).format(kind).load(str(self.folder / kind)),
                "live": lambda reader, ctx: _decoded(reader.format("kafka").options(**self.limited).load()),
            },
        )
        return bs.backlog_query(
            lambda ctx: ctx.frame.writeStream.format("delta").option("path", str(made / "target")),
            checkpoint=str(made / "checkpoint"), spark=self.spark, source=phases, interval_during_backlog="0",
        )  # fmt: skip

    @staticmethod
    def _wait(query: Any, table: Path, rows: int) -> None:
        limit = time.monotonic() + LIMIT_S
        while not any(found >= rows for _, found in _growth(table)):
            if not query.isActive or time.monotonic() > limit:
                raise query.exception() or TimeoutError("the query ended early or takes too long")
            time.sleep(0.02)


def measure(arguments: argparse.Namespace) -> None:
    """Write the data, then measure; each run compares its rows."""
    rows, records = arguments.rows, max(_LIVE_BATCHES, arguments.rows // 10)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress("starting Kafka and Spark")
        server = stack.enter_context(KafkaServer())
        conf = {
            "spark.jars": ",".join(map(str, spark_kafka_jars())),
            "spark.backlog.progress": "off",
        }
        spark = local_session("hybrids benchmark", master="local[2,4]", conf=conf)
        stack.callback(spark.stop)
        bs.register(spark)
        _write(folder, arguments.kind, rows)
        progress(f"writing {records:,} records")
        write_topic(server.address(), _TOPIC, _records(rows, records))
        bench = _Bench(spark, folder, server.address(), rows, records)
        bench.expect(arguments.kind[0])
        starts = {"source": bench.source, "native": bench.native}
        candidates = {
            f"{kind} {name}": partial(bench.run, kind, start)
            for kind in arguments.kind
            for name, start in starts.items()
        }
        found = interleave(candidates, arguments.runs)
    for kind in arguments.kind:
        medians = {name: _shown(kind, name, found[f"{kind} {name}"]) for name in starts}
        ours, peer = medians["source"], medians["native"]
        for figure in ("files", "kafka", "switch", "cpu"):
            values = getattr(ours, figure), {"bs_hybrid": getattr(peer, figure)}
            variant = f"{kind} {figure} rows={records if figure == 'kafka' else rows}"
            result("hybrids", variant, *values, less_is_better=figure in ("switch", "cpu"))


def _shown(kind: str, name: str, runs: Sequence[_Figures]) -> _Figures:
    """Print a candidate's line. Returns the median of each figure."""
    median = _Figures(*map(statistics.median, zip(*runs, strict=True)))
    each = "; ".join(f"{run.files:,.0f} {run.kafka:,.0f} {run.switch:.2f}" for run in runs)
    print(
        f"{kind} {_NAMES[name]}: files {median.files:,.0f} rows/s on {median.cores:.2f} cores, {median.cpu:.2f} cpu s "
        f"a million rows; switch {median.switch:.2f} s; kafka {median.kafka:,.0f} rows/s "
        f"(runs: files, kafka, switch: {each})",
        flush=True,
    )
    return median


def _kinds(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(_KINDS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(_KINDS)}")
    return found


if __name__ == "__main__":
    parser = arguments_parser(__doc__, rows=10_000_000)
    parser.add_argument("--kind", type=_kinds, default=list(_KINDS), help=f"formats, default {','.join(_KINDS)}")
    sys.exit(main(measure, parser))
