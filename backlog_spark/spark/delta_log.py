"""A Delta table as Spark's Delta sees it: its state, its creation, and the files of a batch without their commit.

`write_files` and a commit by delta-rs take the place of Delta's own append, which first reads the whole state of the
table, for the transaction's number. In a new JVM a query's first commit, of 10^6 rows, comes after 11.3 s where it took
16.3 (docs/benchmarks.md).

Reaches for: ``DeltaLog``, ``Snapshot`` and ``OptimisticTransaction`` (seen in Delta 4.4 on Spark 4.2; entries "Delta
log" and "Delta files" of `backlog_spark.spark.internals`). Without the transaction Spark commits as well. There is no
fallback for the state: the batch that a table has decides whether one is written, and Delta's public API does not tell
it. delta-rs does, and sinks ask it first where it may read the table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped,unused-ignore]
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.errors import BacklogError
from backlog_spark.spark.internals import is_usable, require
from backlog_spark.spark.py4j_helpers import elements, file_system, java_class, qualified
from backlog_spark.spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "DeltaVersion", "conflicts", "create", "default_properties", "foreign_file", "log_path", "newest_version",
    "qualified_text", "read_text", "refuse_without_delta", "snapshot_conf", "write_files",
]  # fmt: skip

_DELTA: Final = "org.apache.spark.sql.delta"
_SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
# Delta's own default for _SNAPSHOT_PARTITIONS.
_DELTA_SNAPSHOT_PARTITIONS: Final = 50
_DEFAULT_PROPERTIES: Final = "spark.databricks.delta.properties.defaults."
# How many rows a file has is among them.
_STATISTICS: Final = "spark.databricks.delta.stats.collect"


def refuse_without_delta(spark: SparkSession) -> Any:
    """Delta's class of logs.

    Raises
    ------
    BacklogError
        If Delta is not on the class path, or is of an unknown version.
    """
    log_class = java_class(spark, f"{_DELTA}.DeltaLog")
    if isinstance(log_class, JavaPackage):
        raise BacklogError(
            "Delta is not on Spark's class path.",
            "Start with --packages io.delta:delta-spark_4.2_2.13:4.4.0, "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog.",
        )
    require("Delta log")
    return log_class


class DeltaVersion(NamedTuple):
    """A version of a table: number (-1 for no table), newest batch of a query, properties, JSON of the columns."""

    version: int
    batch: int | None
    configuration: Mapping[str, str]
    schema: str


def newest_version(spark: SparkSession, path: str, txn_app_id: str) -> DeltaVersion:
    """The table's newest version; needs jobs of Spark, but not where there is no table."""
    none = java_class(spark, "scala.Option").empty()
    log = refuse_without_delta(spark).forTable(cast("Any", spark)._jsparkSession, path)
    snapshot = log.update(False, none, none)
    version = int(snapshot.version())
    if version < 0:
        return DeltaVersion(version, None, {}, "")
    done = snapshot.transactions().get(txn_app_id)
    batch = int(done.get()) if done.isDefined() else None
    metadata = snapshot.metadata()
    properties = {str(entry._1()): str(entry._2()) for entry in elements(metadata.configuration().toSeq())}
    return DeltaVersion(version, batch, properties, str(metadata.schemaString()))


def snapshot_conf(spark: SparkSession) -> dict[str, str]:
    """Partitions for rebuilding the table's state, unless the user has set them.

    A transaction with an id needs the state, and Delta takes 50 tasks to build it whatever the machine:
    2.5 s a batch on two cores, 0.3 s with two tasks.
    """
    if spark.conf.get(_SNAPSHOT_PARTITIONS, None) is not None:
        return {}
    return {_SNAPSHOT_PARTITIONS: str(min(_DELTA_SNAPSHOT_PARTITIONS, spark.sparkContext.defaultParallelism))}


def default_properties(spark: SparkSession) -> list[str]:
    """Settings of the session by which Spark gives properties to each new table."""
    return [name for name in spark.conf.getAll if name.startswith(_DEFAULT_PROPERTIES)]


def create(
    spark: SparkSession, path: str, columns: StructType, partition_by: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Create a table, unless there is one or another query is faster."""
    from delta.exceptions import base
    from delta.tables import DeltaTable

    table = DeltaTable.createIfNotExists(spark).location(path).addColumns(columns)
    if partition_by:
        table = table.partitionedBy(*partition_by)
    for name, value in properties.items():
        table = table.property(name, value)
    with contextlib.suppress(base.ProtocolChangedException, base.MetadataChangedException, *conflicts()):
        table.execute()


def foreign_file(spark: SparkSession, path: str) -> str | None:
    """A file or directory at `path` that is no part of a new table; None if there is none."""
    location = qualified(spark, path)
    files = file_system(spark, location)
    names = [str(status.getPath().getName()) for status in files.listStatus(location)] if files.exists(location) else []
    # A crash within the very first commit leaves an empty log directory.
    return next((name for name in names if name != "_delta_log"), None)


def qualified_text(spark: SparkSession, location: str) -> str:
    """A location with its file system, absolute, the same however it was written."""
    return str(qualified(spark, location).toString())


def log_path(spark: SparkSession, path: str) -> Any:
    """Hadoop's path of a table's log, for `read_text`."""
    return java_class(spark, "org.apache.hadoop.fs.Path")(path, "_delta_log")


def read_text(spark: SparkSession, log: Any, name: str) -> str | None:
    """A small file of a log; None if there is none. Several threads may read at a time."""
    files, path = file_system(spark, log), log.suffix(f"/{name}")
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def conflicts() -> tuple[type[Exception], ...]:
    """What says that nothing was written, as another writer was faster."""
    from delta.exceptions import base

    # Not for another schema or protocol: those are checked when the query starts again.
    return (
        base.ConcurrentAppendException,
        base.ConcurrentDeleteDeleteException,
        base.ConcurrentDeleteReadException,
        base.ConcurrentTransactionException,
        base.ConcurrentWriteException,
        base.DeltaConcurrentModificationException,
    )


def write_files(rows: DataFrame, path: str, metadata: str, protocol: str) -> list[dict[str, Any]] | None:
    """Write rows as files of a table, in its directory and by Delta's own writer, and commit nothing.

    What a reader sees does not change. Files of tasks that failed or were run twice are not in the result; nobody
    refers to them, and VACUUM removes them.

    Parameters
    ----------
    rows : DataFrame
        With the table's columns, or some of them.
    path : str
        Of the table, qualified.
    metadata, protocol : str
        The table's, as actions of its log. By these the files are written, whatever Spark knows of the table.

    Returns
    -------
    list of dict, or None
        Delta's actions that add the files. None if Delta's classes are not as expected: nothing was written.
    """
    if not is_usable("Delta files"):
        return None
    spark: Any = rows.sparkSession
    option = java_class(spark, "scala.Option")
    log = refuse_without_delta(spark).forTable(spark._jsparkSession, path)
    try:
        action = java_class(spark, f"{_DELTA}.actions.Action")
        snapshot = java_class(spark, f"{_DELTA}.DummySnapshot")(
            log.logPath(), log, action.fromJson(metadata), option.empty(), option.apply(action.fromJson(protocol))
        )
        transaction = java_class(spark, f"{_DELTA}.OptimisticTransaction")(log, option.empty(), snapshot)
    except Exception:
        return None
    with session_conf(spark, {_STATISTICS: "true"}):
        try:
            files = transaction.writeFiles(cast("Any", rows)._jdf, option.empty())
        except Py4JError as error:
            if type(error) is not Py4JError:  # which says that there is no such method
                raise
            return None
    return [json.loads(file.json())["add"] for file in elements(files)]
