"""Access to a Delta table through Spark's Delta classes: read its state, create it, write files without a commit.

`write_files` and a commit by delta-rs replace Delta's own append. That one first reads the whole state of the table to
check the transaction's number. In a new JVM the first commit of a query, with 10^6 rows, comes after 11.3 s instead of
16.3 s (docs/benchmarks.md).

Reaches for: ``DeltaLog``, ``Snapshot`` and ``OptimisticTransaction`` (seen in Delta 4.4 on Spark 4.2; entries "Delta
log" and "Delta files" of `backlog_spark.spark.jvm.internals`). Without the transaction class Spark commits as well. The
state has no fallback: the batch number in the table decides whether a batch is written, and Delta's public API does not
give it. delta-rs does; sinks use it first where it can read the table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped,unused-ignore]
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]

from backlog_spark.common.requirements import require as require_package
from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm.internals import is_usable, require
from backlog_spark.spark.jvm.py4j_helpers import elements, file_system, java_class, qualified
from backlog_spark.spark.jvm.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "DeltaVersion", "Layout", "conflicts", "create", "default_properties", "foreign_file", "log_path", "newest_version",
    "qualified_text", "read_text", "refuse_without_delta", "snapshot_conf", "write_files",
]  # fmt: skip

_DELTA: Final = "org.apache.spark.sql.delta"
_SNAPSHOT_PARTITIONS: Final = "spark.databricks.delta.snapshotPartitions"
# Delta's own default for _SNAPSHOT_PARTITIONS.
_DELTA_SNAPSHOT_PARTITIONS: Final = 50
_DEFAULT_PROPERTIES: Final = "spark.databricks.delta.properties.defaults."
# Includes the number of rows of each file.
_STATISTICS: Final = "spark.databricks.delta.stats.collect"


def refuse_without_delta(spark: SparkSession, what: str = "Delta") -> Any:
    """Delta's class ``DeltaLog``.

    Parameters
    ----------
    spark : SparkSession
    what : str
        What needs it, for the error.

    Raises
    ------
    BacklogError
        If there is no Delta for this Spark, its Python package or jar is missing, or it has an unknown version.
    """
    log_class = java_class(spark, f"{_DELTA}.DeltaLog")
    lacks_jar = isinstance(log_class, JavaPackage)
    if lacks_jar and not spark.version.startswith("4.2."):  # the package would bring PySpark 4.2
        raise BacklogError(
            f"Delta has no jar for Spark {spark.version}.",
            "Use Spark 4.2, or another target, such as bs.IcebergUpsert, bs.FilesSink or bs.JdbcUpsert.",
        )
    require_package(what, "delta")
    if lacks_jar:
        raise BacklogError(
            "Delta is not on Spark's class path.",
            "Start with --packages io.delta:delta-spark_4.2_2.13:4.4.0, "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog.",
        )
    require("Delta log")
    return log_class


class DeltaVersion(NamedTuple):
    """A version of a table: number (-1: no table), newest batch of a query, properties, JSON of the columns, and which
    of them it is partitioned by."""

    version: int
    batch: int | None
    configuration: Mapping[str, str]
    schema: str
    partition_columns: tuple[str, ...] = ()


def newest_version(spark: SparkSession, path: str, txn_app_id: str) -> DeltaVersion:
    """The table's newest version. Runs Spark jobs, except if there is no table."""
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
    partitions = tuple(map(str, elements(metadata.partitionColumns())))
    return DeltaVersion(version, batch, properties, str(metadata.schemaString()), partitions)


def snapshot_conf(spark: SparkSession) -> dict[str, str]:
    """Configuration: the number of partitions for rebuilding the table's state, unless the user has set it.

    A transaction with an id needs the state. By default Delta uses 50 tasks to build it on any machine: 2.5 s a batch
    on two cores, 0.3 s with two tasks.
    """
    if spark.conf.get(_SNAPSHOT_PARTITIONS, None) is not None:
        return {}
    return {_SNAPSHOT_PARTITIONS: str(min(_DELTA_SNAPSHOT_PARTITIONS, spark.sparkContext.defaultParallelism))}


def default_properties(spark: SparkSession) -> list[str]:
    """Session settings that give properties to each new table."""
    return [name for name in spark.conf.getAll if name.startswith(_DEFAULT_PROPERTIES)]


class Layout(NamedTuple):
    """The columns by which a new table is partitioned or clustered."""

    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()


def create(
    spark: SparkSession, path: str, columns: StructType, layout: Layout, properties: Mapping[str, str], name: str = ""
) -> None:
    """Create a table, unless it exists or another query creates it first.

    Parameters
    ----------
    path : str
        "": a catalog chooses it.
    name : str
        The table's name in a catalog; "" if it has none.
    """
    from delta.exceptions import base
    from delta.tables import DeltaTable

    table = DeltaTable.createIfNotExists(spark).addColumns(columns)
    table = table.tableName(name) if name else table
    table = table.location(path) if path else table
    if layout.partition_by:
        table = table.partitionedBy(*layout.partition_by)
    if layout.cluster_by:
        table = table.clusterBy(*layout.cluster_by)
    for key, value in properties.items():
        table = table.property(key, value)
    with contextlib.suppress(base.ProtocolChangedException, base.MetadataChangedException, *conflicts()):
        table.execute()


def foreign_file(spark: SparkSession, path: str) -> str | None:
    """A file or directory at `path` that does not belong to a new table; None if there is none."""
    location = qualified(spark, path)
    files = file_system(spark, location)
    names = [str(status.getPath().getName()) for status in files.listStatus(location)] if files.exists(location) else []
    # A crash within the first commit leaves an empty log directory.
    return next((name for name in names if name != "_delta_log"), None)


def qualified_text(spark: SparkSession, location: str) -> str:
    """A location with its file system: absolute, in one canonical form."""
    return str(qualified(spark, location).toString())


def log_path(spark: SparkSession, path: str) -> Any:
    """Hadoop's path of a table's log, for `read_text`."""
    return java_class(spark, "org.apache.hadoop.fs.Path")(path, "_delta_log")


def read_text(spark: SparkSession, log: Any, name: str) -> str | None:
    """The text of a small file of a log; None if it does not exist. Safe to call from several threads."""
    files, path = file_system(spark, log), log.suffix(f"/{name}")
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def conflicts() -> tuple[type[Exception], ...]:
    """Exceptions that say: another writer was faster, nothing was written."""
    from delta.exceptions import base

    # Changes of schema or protocol are not here: they are checked when the query starts again.
    return (
        base.ConcurrentAppendException,
        base.ConcurrentDeleteDeleteException,
        base.ConcurrentDeleteReadException,
        base.ConcurrentTransactionException,
        base.ConcurrentWriteException,
        base.DeltaConcurrentModificationException,
    )


def write_files(rows: DataFrame, path: str, metadata: str, protocol: str) -> list[dict[str, Any]] | None:
    """Write rows as files in a table's directory, with Delta's own writer. Commits nothing.

    Readers see no change. Files of failed or repeated tasks are not in the result. No version refers to them, and
    VACUUM removes them.

    Parameters
    ----------
    rows : DataFrame
        Some or all of the table's columns.
    path : str
        Location of the table, qualified.
    metadata, protocol : str
        The table's metadata and protocol, as actions of its log. They define the files, not what Spark knows of the
        table.

    Returns
    -------
    list of dict, or None
        Delta's actions that add the files. None if Delta's classes differ: nothing was written.
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
            if type(error) is not Py4JError:  # a plain Py4JError means: no such method
                raise
            return None
    return [json.loads(file.json())["add"] for file in elements(files)]
