"""A temporal join by processing time, over files in backlog and as a stream.

At local[2,4], into the ``noop`` sink. The build side has ``--keys`` rows with distinct keys. The probe side has
``--rows`` rows; one in eleven has no match. All read the same Parquet files with Spark's own reader.

``backlog``: both sides are backlog, and the interval during backlog is 0. The probe side waits for the build side, as
files, and is joined with all of it. Measured from ``start()`` of a new query until its batch has been written, against
``spark_batch``, Spark's batch join of the same files.

``stream``: a tenth of the keys and two fifths of the probe rows, in 20 files per side that come one by one, against
``tws_per_key``: the same join with Spark's ``transformWithStateInPandas``, key by key, over fewer rows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import backlog_spark as bs
from benchmarks.backlogs import Written, batch_time, fingerprint, ours_time, stream_time
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from benchmarks.flag import add_flag_connector
from servers.session import local_session

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

_PROBE, _BUILD = "key long, click long", "key long, name string, at long"
_FILES, _STREAM_FILES = 100, 20
_PER_KEY_ROWS = 50_000


def _write(spark: SparkSession, folder: Path, rows: int, keys: int, files: int) -> dict[str, tuple[Path, str]]:
    probe = spark.range(0, rows, 1, files).selectExpr(f"pmod(xxhash64(id), {keys + keys // 10}) AS key", "id AS click")
    build = spark.range(0, keys, 1, files).selectExpr("id AS key", "concat('user ', id) AS name", "id AS at")
    probe.write.parquet(str(folder / "probe"))
    build.write.parquet(str(folder / "build"))
    return {"probe": (folder / "probe", _PROBE), "build": (folder / "build", _BUILD)}


def _ours(inputs: Mapping[str, bs.BacklogStream]) -> bs.BacklogStream:
    return inputs["probe"].temporal_join(inputs["build"], on="key", order="at").map("key", "click", "name")


def _batch(spark: SparkSession, inputs: Mapping[str, tuple[Path, str]]) -> DataFrame:
    probe, build = (spark.read.schema(ddl).parquet(str(path)) for path, ddl in inputs.values())
    return probe.join(build, "key", "left").select("key", "click", "name")


class _Newest(StatefulProcessor):
    """Rows of both sides. Rows of the probe side have a click."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._name = handle.getValueState("name", "name string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        for frame in rows:
            build = frame[frame["click"].isna()]
            if len(build):
                self._name.update((build["name"].iloc[-1],))
            name = self._name.get()[0] if self._name.exists() else None
            clicks = frame["click"].dropna()
            if len(clicks):
                yield pd.DataFrame({"key": key[0], "click": clicks.astype("int64"), "name": name})

    def close(self) -> None:
        pass


def _per_key(spark: SparkSession, inputs: Mapping[str, tuple[Path, str]]) -> DataFrame:
    probe, build = (spark.readStream.schema(ddl).parquet(str(path)) for path, ddl in inputs.values())
    both = probe.selectExpr("key", "click", "CAST(NULL AS STRING) AS name").unionByName(
        build.selectExpr("key", "CAST(NULL AS LONG) AS click", "name")
    )
    columns = "key long, click long, name string"
    return both.groupBy("key").transformWithStateInPandas(_Newest(), columns, "append", "None")


def run(arguments: argparse.Namespace) -> None:
    """Make the data, compare the results, then measure."""
    rows, keys = arguments.rows, arguments.keys
    with contextlib.ExitStack() as stack:
        progress("starting Spark")
        conf = {"spark.sql.sources.parallelPartitionDiscovery.threshold": "400", "spark.backlog.progress": "off"}
        spark = local_session("temporal join benchmark", conf=conf)
        stack.callback(spark.stop)
        add_flag_connector()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backlog-bench-")))
        progress(f"making {rows:,} probe rows and {keys:,} build rows")
        inputs = _write(spark, folder, rows, keys, _FILES)
        progress("comparing the results")
        sink = Written(fingerprint=True)
        ours_time(spark, inputs, _ours, rows, sink, use_processing_time=True)
        require_equal({"ours": sink.found, "spark_batch": fingerprint(_batch(spark, inputs))})
        times = interleave(
            {
                "ours": lambda: ours_time(spark, inputs, _ours, rows, use_processing_time=True),
                "spark_batch": lambda: batch_time(_batch(spark, inputs)),
            },
            arguments.runs,
        )
        speeds = {name: show(f"backlog, {name}", rows + keys, taken) for name, taken in times.items()}
        result("temporal_join", f"backlog keys={keys}", speeds["ours"], {"spark_batch": speeds["spark_batch"]})

        live, fewer = max(1, rows * 2 // 5), max(1, keys // 10)
        streamed = _write(spark, folder / "stream", live, fewer, _STREAM_FILES)
        few = _write(spark, folder / "few", _PER_KEY_ROWS, _PER_KEY_ROWS, 2)
        progress("stream")
        began = time.perf_counter()
        stream = ours_time(spark, streamed, _ours, live, in_backlog=False, use_processing_time=True)
        progress(f"tws_per_key, after {time.perf_counter() - began:.0f} s")
        slow = stream_time(spark, lambda: _per_key(spark, few), "append")
        progress("")
        ours = show("stream, ours", live + fewer, [stream])
        result(
            "temporal_join",
            f"stream keys={fewer}",
            ours,
            {"tws_per_key": show("stream, tws_per_key", 2 * _PER_KEY_ROWS, [slow])},
        )


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=5_000_000, keys=1_000_000)))
