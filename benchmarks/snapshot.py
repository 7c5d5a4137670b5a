"""Reading a whole MySQL table: the snapshot of ``mysql_cdc`` against Spark's own JDBC reader.

Both read the demo's orders table (10 columns of mixed types) from an embedded MySQL at local[2] into the ``noop`` sink,
which drops every row. The table does not change. Client and server share the machine.

* ``ours`` is a streaming query with ``availableNow`` that ends with the backlog, in one micro-batch
  (``intervalDuringBacklog=0``). Each run has a new checkpoint. It is measured from ``start()`` to the end of
  ``awaitTermination()``. That includes the query's start, planning of chunks, checks of server and table, the
  checkpoint's logs, reading, the rewind to the low watermark over the binary log, and the query's end. It reads the
  three change columns in addition to the table's.
* ``spark_jdbc`` is ``spark.read.format("jdbc")`` with 8 partitions by ``id``. The whole ``save()`` is measured. It runs
  twice in each round: with the driver's default fetch size, which buffers the result of a partition, and streaming row
  by row (``Integer.MIN_VALUE``). The faster one is the peer.

``load()``, which asks the server for the columns, is measured on neither side. Before the first run the rows of all
three are compared: their number, and the sum of a hash of all columns.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, Protocol

from backlog_spark.spark.jvm.session import register
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from examples.demo import load
from servers.jars import jdbc_jar
from servers.mysql import MySQLServer
from servers.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["STREAMING", "Fingerprint", "fingerprint", "jdbc_frame", "stream_frame"]

_TABLE = "shop.orders"
_PARTITIONS = 8
_METADATA = ("_change_type", "_commit_timestamp", "_commit_seq")
# Connector/J sends the rows one by one with this fetch size. By default it buffers the whole result.
STREAMING = -(2**31)


class Fingerprint(NamedTuple):
    """What two reads of the same table have in common, in any order of rows."""

    rows: int
    hashes: Decimal


def stream_frame(spark: SparkSession, server: MySQLServer) -> DataFrame:
    """The table as a stream of ours that ends with the snapshot."""
    options = {
        "host": "127.0.0.1",
        "port": str(server.port),
        "user": server.user,
        "table": _TABLE,
        "intervalDuringBacklog": "0",
        "availableNowTarget": "backlogEnd",
        "ssl.mode": "disabled",  # like the peer
    }
    return spark.readStream.format("mysql_cdc").options(**options).load()


class Address(Protocol):
    """Where a server is, and who reads."""

    @property
    def port(self) -> int: ...

    @property
    def user(self) -> str: ...

    @property
    def password(self) -> str: ...


def jdbc_frame(
    spark: SparkSession,
    server: Address,
    rows: int,
    fetch_size: int,
    *,
    table: str = _TABLE,
    partitions: int = _PARTITIONS,
) -> DataFrame:
    """A table through Spark's JDBC reader.

    Parameters
    ----------
    rows : int
        Partitions are ranges of ``id`` between 1 and this number.
    fetch_size : int
        0 is the driver's default.
    table : str
        Its name, or a query in brackets with an alias.
    partitions : int
        0 reads by one connection.
    """
    url = f"jdbc:mysql://127.0.0.1:{server.port}/?useSSL=false&allowPublicKeyRetrieval=true"
    options = {
        # Set both zones: the server's may be the machine's.
        "url": f"{url}&connectionTimeZone=UTC&forceConnectionTimeZoneToSession=true",
        "driver": "com.mysql.cj.jdbc.Driver",
        "user": server.user,
        "password": server.password,
        "dbtable": table,
        "preferTimestampNTZ": "true",
        "fetchsize": str(fetch_size),
    }
    if partitions:
        options |= {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(rows + 1)}
        options |= {"numPartitions": str(partitions)}
    return spark.read.format("jdbc").options(**options).load()


def fingerprint(frame: DataFrame, schema: StructType) -> Fingerprint:
    """Number of rows and sum of their hashes. Each column is cast to its type in ``schema``."""
    import pyspark.sql.functions as F

    # xxhash64 skips NULLs, so a NULL becomes a value: otherwise (NULL, 'a') would equal ('a', NULL).
    texts = [F.coalesce(F.col(f.name).cast(f.dataType).cast("string"), F.lit("\0")) for f in schema]
    # As a decimal, because a sum of longs may overflow, which is an error in Spark 4.
    hashes = F.sum(F.xxhash64(*texts).cast("decimal(20,0)"))
    row = frame.agg(F.count("*"), F.coalesce(hashes, F.lit(0))).first()
    assert row is not None, "an aggregate without keys has one row"
    return Fingerprint(row[0], Decimal(row[1]))


def _finish(writer: DataStreamWriter) -> float:
    """Run a query to its end with a new checkpoint. Returns the seconds from its start."""
    with tempfile.TemporaryDirectory(prefix="backlog-bench-") as checkpoint:
        began = time.perf_counter()
        query: StreamingQuery = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        return time.perf_counter() - began


def _stream_fingerprint(frame: DataFrame, schema: StructType) -> Fingerprint:
    found: list[Fingerprint] = []

    def add(batch: DataFrame, batch_id: int) -> None:
        found.append(fingerprint(batch, schema))

    _finish(frame.writeStream.foreachBatch(add))
    return Fingerprint(sum(f.rows for f in found), sum((f.hashes for f in found), Decimal(0)))


def _batch_time(frame: DataFrame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def run(arguments: argparse.Namespace) -> None:
    """Load the table, compare the results, then measure."""
    rows: int = arguments.rows
    with contextlib.ExitStack() as stack:
        progress("starting MySQL")
        server = stack.enter_context(MySQLServer())
        progress(f"loading {rows:,} rows")
        load(server, rows)
        progress("starting Spark")
        conf = {
            "spark.jars": str(jdbc_jar()),
            # Spark's JDBC reader takes an ENUM for a CHAR of its longest label, and would pad the shorter ones.
            "spark.sql.readSideCharPadding": "false",
        }
        spark = local_session("snapshot benchmark", master="local[2]", conf=conf)
        stack.callback(spark.stop)
        register(spark)
        ours = stream_frame(spark, server)
        peers = {
            "spark_jdbc (fetchsize default)": jdbc_frame(spark, server, rows, 0),
            "spark_jdbc (fetchsize streaming)": jdbc_frame(spark, server, rows, STREAMING),
        }
        progress("comparing the results")
        schema = ours.drop(*_METADATA).schema
        require_equal(
            {"ours": _stream_fingerprint(ours, schema)}
            | {name: fingerprint(frame, schema) for name, frame in peers.items()}
        )
        times = interleave(
            {"ours": lambda: _finish(ours.writeStream.format("noop"))}
            | {name: lambda frame=frame: _batch_time(frame) for name, frame in peers.items()},
            arguments.runs,
        )
        speeds = {name: show(name, rows, times[name]) for name in times}
        result("snapshot", f"rows={rows}", speeds["ours"], {"spark_jdbc": max(speeds[name] for name in peers)})


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=1_000_000)))
