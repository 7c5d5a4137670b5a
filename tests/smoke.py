"""What `make check` runs in a clean environment with the built wheel: all modules load, and a keyed query runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

# Spark starts its Python processes with this interpreter, and finds no module of the checkout.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo, SinkContext


class Rows(bs.Sink):
    """Keeps the newest result of each key in memory."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}

    def open(self, context: SinkContext) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        self.found.update({row.k: row.total for row in batch_df.collect()})


def main() -> None:
    assert Path(bs.__file__).is_relative_to(sys.prefix), f"{bs.__file__} is not the installed package"
    # They run when a Python process of Spark starts, and on their own path.
    started = {f"backlog_spark.spark.startup.{name}" for name in ("sitecustomize", "backlog_forks", "backlog_quiet")}
    for module in pkgutil.walk_packages(bs.__path__, "backlog_spark."):
        if module.name not in started and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in bs.__all__:
        getattr(bs, name)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.backlog.keyGroups", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "in").mkdir()
        Path(folder, "in", "a.json").write_text('{"k":"a","v":1}\n{"k":"b","v":2}\n{"k":"a","v":3}\n')
        sink = Rows()
        lines = bs.source(
            "hybrid", name="lines", phases="files", path=f"{folder}/in", fileFormat="json", schema="k STRING, v BIGINT"
        )
        query = (
            lines.key_by("k")
            .aggregate("sum(v) AS total")
            .write("totals")
            .trigger(processing_time="1 second", interval_during_backlog=0)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .to(sink)
            .start(spark)
        )
        query.awaitTermination(300)
        assert sink.found == {"a": 4, "b": 2}, sink.found
    spark.stop()
    print(f"smoke: OK backlog-spark {importlib.metadata.version('backlog-spark')}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
