"""A sink's access to its Delta table: with delta-rs while that may write to it, otherwise with Spark."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.delta.deltars.limits import refusal_of_creation
from backlog_spark.sinks.delta.history import TableState
from backlog_spark.spark.jvm import delta_log
from backlog_spark.spark.plan.batch_frames import empty_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.sinks.delta.deltars.commits import DirectTable

__all__ = ["TableAccess"]

_log = logging.getLogger(__name__)

_NO_TABLE: Final = "there is no table"


class TableAccess:
    """The table of one output of a query, across all starts of the query.

    Parameters
    ----------
    path : str
        Qualified path of the table.
    storage_options : mapping of str to str
        delta-rs's options for the table's storage.
    compact : bool
        Whether delta-rs merges small files.

    Attributes
    ----------
    direct : DirectTable or str
        The table as delta-rs reads it, or the reason why Spark has to write to it.
    adds_no_files : str
        Why delta-rs must not commit files that Spark has written; empty if it may.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str], *, compact: bool) -> None:
        self.path = path
        self._storage_options = storage_options
        self._compact = compact
        self._refusal: str | None = None
        self.direct: DirectTable | str = "it is not open"
        self.adds_no_files = ""

    def open(self, refusal: str | None) -> None:
        """Open the table when the query starts. `refusal`: why delta-rs must not write any table, or None."""
        self._refusal = refusal
        self.direct = refusal or self._opened()

    def _opened(self) -> DirectTable | str:
        from deltalake.exceptions import DeltaError, TableNotFoundError

        from backlog_spark.sinks.delta.deltars.commits import DirectTable

        try:
            return DirectTable(self.path, self._storage_options, compact=self._compact)
        except TableNotFoundError:
            return _NO_TABLE
        except (DeltaError, OSError, ValueError) as error:
            # The error's text may contain storage options.
            return f"delta-rs cannot open the table ({type(error).__name__})"

    def state(self, spark: SparkSession, txn_app_id: str) -> TableState:
        """The table's newest version. delta-rs needs a few milliseconds for it, Spark needs a job."""
        if isinstance(self.direct, str):
            return TableState(*delta_log.newest_version(spark, self.path, txn_app_id))
        try:
            return self.direct.state(txn_app_id)
        except Exception as error:
            self.give_up(error)
            return self.state(spark, txn_app_id)

    def give_up(self, error: Exception) -> str:
        """Let Spark write until the query starts again. Only the error's class is logged: texts may be secret."""
        self.direct = f"delta-rs failed with {type(error).__name__}"
        _log.warning("The table at %s is written by Spark from now on: %s", self.path, self.direct)
        return self.direct

    def add_no_files(self, reason: str) -> None:
        """Let Spark commit the files that it writes, from now on."""
        self.adds_no_files = reason
        _log.warning("Spark commits to the table at %s: %s", self.path, reason)

    def create(
        self,
        spark: SparkSession,
        stored: Sequence[StructField],
        layout: delta_log.Layout,
        properties: Mapping[str, str],
    ) -> None:
        """Create the table. If another query creates it first, that table is used.

        Raises
        ------
        BacklogError
            The directory holds files that are not a Delta table.
        """
        foreign = delta_log.foreign_file(spark, self.path)
        if foreign is not None:
            raise BacklogError(
                f"{self.path} is not a Delta table but holds {foreign!r}.",
                "Use an empty path, or convert the files first (CONVERT TO DELTA).",
            )
        # All columns are nullable: whether a stream's column is nullable depends on its plan and may change with it.
        # Field metadata is left out: Spark keeps an event-time column's watermark there.
        columns = StructType([StructField(field.name, field.dataType) for field in stored])
        defaults = delta_log.default_properties(spark)
        partition_by = layout.partition_by
        is_direct = self.direct == _NO_TABLE and not layout.cluster_by
        is_direct = is_direct and not refusal_of_creation(columns, partition_by, properties, defaults)
        if not (is_direct and self._created(columns, partition_by, properties)):
            delta_log.create(spark, self.path, columns, layout, properties)
        self.open(self._refusal)

    def _created(self, columns: StructType, partition_by: Sequence[str], properties: Mapping[str, str]) -> bool:
        from deltalake.exceptions import DeltaError

        from backlog_spark.sinks.delta.deltars.commits import create_table

        with contextlib.suppress(DeltaError, OSError, ValueError):
            create_table(self.path, self._storage_options, columns.json(), partition_by, properties)
            return True
        return False

    def add_columns(self, spark: SparkSession, wanted: StructType, new: Sequence[StructField]) -> None:
        """Add columns to the table, or widen those that it has, so that it has the wanted ones."""
        if any("timestamp_ntz" in field.dataType.simpleString() for field in new):
            from delta.tables import DeltaTable

            # Delta adds it to new tables by itself, but not to existing ones.
            DeltaTable.forPath(spark, self.path).addFeatureSupport("timestampNtz")
        # ALTER TABLE would need Delta's catalog in the session.
        empty = empty_frame(spark, wanted).write.format("delta").mode("append")
        empty.option("mergeSchema", "true").save(self.path)
