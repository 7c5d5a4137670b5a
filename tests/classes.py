"""Archives the classes that Spark loads, so that the tests' JVMs start in half the time.

A test that kills a driver starts a JVM for each kill, which loads and verifies 20,000 classes before it does anything:
most of its processor time. Java keeps them in a file as they are once loaded (class data sharing). A JVM that cannot
use the file, of another version say, does as if there were none.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

__all__ = ["java_options"]

# No plan of a test runs long enough to earn what the second compiler costs; nor what collecting beside it does. With
# one compiler Java keeps 48 MB of compiled code, which the tests fill, and compiles again what it then throws away.
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
# What Spark takes a JVM's options from, beside those that a session asks for.
_VARIABLE = "SPARK_SUBMIT_OPTS"
_LIMIT_S = 300


def java_options() -> dict[str, str]:
    """Environment variables for the tests and the processes that they start."""
    archive = _archive()
    # It says nothing when it cannot be used: some tests compare what is said.
    shared = f" -Xlog:disable -Xlog:all=error:stderr -XX:SharedArchiveFile={archive}" if archive.exists() else ""
    return {_VARIABLE: f"{os.environ.get(_VARIABLE, '')} {_OPTIONS}{shared}".strip()}


def _archive() -> Path:
    """Its path in the tests' environment, if it exists."""
    from servers.jars import java_executable

    java = java_executable()
    version = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    kind = hashlib.sha256("\n".join([java, version, pyspark.__version__, _OPTIONS]).encode()).hexdigest()
    return Path(sys.prefix) / f"spark-classes-{kind[:12]}.jsa"


def _make() -> None:
    """Make it unless it exists, with a session in a separate process."""
    archive = _archive()
    if archive.exists():
        return
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        environment = {**os.environ, _VARIABLE: f"{_OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={made}"}
        subprocess.run(
            [sys.executable, "-c", "from tests.classes import _use_spark; _use_spark()"],
            env=environment, timeout=_LIMIT_S, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        made.replace(archive)


def _use_spark() -> None:
    """Load the classes that the tests' queries load: files, Delta, a keyed operator in both modes."""
    import pyspark.sql.functions as F
    from pyspark import SparkContext

    import backlog_spark as bs
    from servers.session import local_session

    spark = local_session("classes", conf={"spark.sql.shuffle.partitions": "2", "spark.backlog.progress": "off"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = spark.range(100).select(F.col("id"), (F.col("id") % 3).alias("k"), F.lit("text").alias("name"))
        rows.write.parquet(f"{folder}/rows")
        stream = bs.stream(spark.readStream.schema(rows.schema).parquet(f"{folder}/rows"))
        query = (
            stream.key_by("k").aggregate("sum(id) AS total").write("classes")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .to(bs.sinks.DeltaUpsert(f"{folder}/table", ["k"])).start(spark)
        )  # fmt: skip
        query.processAllAvailable()
        query.stop()
        spark.read.format("delta").load(f"{folder}/table").collect()
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    # The archive is written by a JVM that ends by itself.
    gateway.proc.stdin.close()
    gateway.proc.wait(_LIMIT_S)


if __name__ == "__main__":
    try:
        _make()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no archive of Spark's classes, the tests take longer: {error}", file=sys.stderr)
