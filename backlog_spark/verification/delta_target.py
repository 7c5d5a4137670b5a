"""A sink's Delta table, for ``bs.verify``: versions with the query's batches, their rows, and repairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.errors import BacklogError
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.verification.merge_target import MergeTarget, OneTable
from backlog_spark.verification.targets import TargetVersion, no_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.delta.sink import DeltaSink

__all__ = ["DeltaTarget"]

_SETTINGS: Final = {
    # MERGE evaluates its source twice unless it materializes it.
    "spark.databricks.delta.merge.materializeSource": "all",
    "spark.databricks.delta.commitInfo.userMetadata": "backlog_spark: repair after a verification",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
# Errors of Spark and Delta if files of a version are gone.
_GONE: Final = (
    "FILE_NOT_EXIST", "FileNotFoundException", "DELTA_FILE_NOT_FOUND", "DELTA_VERSION_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND", "VersionNotFoundException", "DELTA_TRUNCATED_TRANSACTION_LOG",
)  # fmt: skip


class DeltaTarget(MergeTarget):
    """The table of a `DeltaUpsert` or `DeltaAppend`, or one of a `DeltaTables`.

    Parameters
    ----------
    spark : SparkSession
    sink : DeltaSink
        It knows its path.
    app_id, one
        As of `MergeTarget`.
    """

    kind = "Delta table"

    def __init__(self, spark: SparkSession, sink: DeltaSink, app_id: str, one: OneTable | None = None) -> None:
        super().__init__(sink, app_id, sink.path, one)
        self._spark = spark

    def _newest(self, place: str) -> TargetVersion:
        spark = self._spark
        delta_log.refuse_without_delta(spark)
        path = delta_log.qualified_text(spark, place)
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            found = delta_log.newest_version(spark, path, self._app_id)
        if found.version < 0 or found.batch is None:
            raise no_batch(self.kind, path, is_there=found.version >= 0)
        return TargetVersion(path, found.version, found.batch)

    def names(self, spark: SparkSession, version: TargetVersion, keys: Sequence[str]) -> Sequence[str]:
        return self.rows(spark, version, (), keys).columns

    def rows(self, spark: SparkSession, version: TargetVersion, names: Sequence[str], keys: Sequence[str]) -> DataFrame:
        with session_conf(spark, delta_log.snapshot_conf(spark)):
            found = spark.read.format("delta").option("versionAsOf", str(version.version)).load(version.place)
        return self._counted(found, version, keys)

    def repair(self, version: TargetVersion, steps: DataFrame, keys: Sequence[str]) -> None:
        from delta.tables import DeltaTable

        spark = steps.sparkSession
        with session_conf(spark, {**_SETTINGS, **delta_log.snapshot_conf(spark)}):
            table = DeltaTable.forPath(spark, version.place)

            def begin(source: DataFrame, on: str, same: str, keys: object) -> Any:
                return table.alias("t").merge(source.alias("s"), on)

            merge = self._repaired(steps, keys, begin)
            _check_newest(table, version, version.version)
            merge.execute()
            _check_newest(table, version, version.version + 1)

    def gone(self, text: str, version: TargetVersion) -> BacklogError | None:
        if not any(each in text for each in _GONE):
            return None
        return BacklogError(
            f"Files of version {version.version} of the Delta table at {version.place} are gone.",
            "VACUUM has removed them. Verify again: verify then uses the newest version. Set "
            "delta.deletedFileRetentionDuration to more than the time of a verification.",
        )


def _check_newest(table: Any, target: TargetVersion, wanted: int) -> None:
    found = int(table.history(1).collect()[0]["version"])
    if found != wanted:
        before = wanted == target.version
        raise BacklogError(
            f"Another writer has written to the Delta table at {target.place} since its version {target.version} was "
            f"compared: {'nothing was repaired' if before else 'rows that were written meanwhile may now be older'}.",
            "Stop the query and other writers, then verify with repair=True again.",
        )
