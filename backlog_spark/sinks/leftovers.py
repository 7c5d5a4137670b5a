"""Removes the rows of an existing table that a new query's first snapshot does not have.

They were deleted at the source while no query followed it, so no change says so. A row is removed if it is of one of
the source's tables and no batch up to the end of the snapshot has its key. The batch that ends the snapshot removes
them, in its own commit.

All batches before write their keys into the checkpoint first. These files also are the decision, made in the first
batch: a later batch removes rows only if there are keys of earlier ones. A replay writes the same keys again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from backlog_spark.errors import SettingError
from backlog_spark.spark.checkpoint.store import CheckpointStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.base import SinkContext

__all__ = ["KEEP", "REFUSE", "REPLACE", "SEEN", "KeyFiles", "Writers", "check_choice", "names_to_remove", "with_seen"]

REPLACE: Final = "replace"
KEEP: Final = "keep"
REFUSE: Final = "refuse"
SEEN: Final = "__backlog_spark_is_seen"
"""Column of a MERGE's source: the row only says that its key was seen."""

_TABLE: Final = ("_database", "_table")
_WRITERS: Final = "_backlog_writers"


def check_choice(value: str) -> str:
    """Check the sinks' argument ``on_existing_rows``.

    Raises
    ------
    SettingError
        It is none of the three.
    """
    if value not in (REPLACE, KEEP, REFUSE):
        raise SettingError(
            "on_existing_rows", value, f"must be {REPLACE!r}, {KEEP!r} or {REFUSE!r}.", "See docs/sinks.md."
        )
    return value


def names_to_remove(context: SinkContext, columns: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The tables whose rows a snapshot replaces: database and name of each, or ``((),)`` for all rows of the target.

    Parameters
    ----------
    columns : sequence of str
        The stored columns.

    Returns
    -------
    tuple
        Empty if there is no snapshot, or if the rows cannot be told from those of other tables.
    """
    if set(_TABLE) <= set(columns) or () in context.snapshot_of:
        return context.snapshot_of
    return ((),) if context.snapshot_of and context.of_one_table else ()


def with_seen(newest: DataFrame, seen: DataFrame, keys: Sequence[str], is_delete: str) -> DataFrame:
    """The source of a MERGE with a row for each key that earlier batches had; those of the batch itself come first.

    Parameters
    ----------
    newest : DataFrame
        Its rows all stay.
    seen : DataFrame
        Of the key columns, with any number of rows for a key.
    keys : sequence of str
        The key columns, in both.
    is_delete : str
        The column of `newest` that is never NULL.
    """
    seen = seen.withColumn(is_delete, F.lit(False)).withColumn(SEEN, F.lit(True))
    rows = newest.withColumn(SEEN, F.lit(False)).unionByName(seen, allowMissingColumns=True)
    first = Window.partitionBy(*keys).orderBy(SEEN)
    rank = f"{SEEN}_rank"
    return rows.withColumn(rank, F.row_number().over(first)).where((F.col(rank) == 1) | ~F.col(SEEN)).drop(rank)


class KeyFiles:
    """The keys of the batches of a query's first snapshot, for one table.

    Parameters
    ----------
    directory : str
        Where the files are: in the checkpoint.
    """

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._files = CheckpointStore(spark, directory)

    def exist(self) -> bool:
        """Whether a batch has written its keys, or begun to."""
        return bool(self._files.names_in("keys"))

    def write(self, keys: DataFrame, batch_id: int) -> None:
        """Write a batch's keys, over those that an earlier attempt has written."""
        plain = keys.toDF(*(f"k{number}" for number in range(len(keys.columns))))
        plain.write.mode("overwrite").parquet(self._files.location_of(f"keys/batch-{batch_id}"))

    def read(self, keys: DataFrame) -> DataFrame:
        """The keys of all batches, as a DataFrame like `keys`. Some batch has written its keys."""
        # Spark's reader widens types: a key column may have become a BIGINT meanwhile.
        schema = StructType([StructField(f"k{n}", field.dataType) for n, field in enumerate(keys.schema)])
        names = [name for name in self._files.names_in("keys") if name.startswith("batch-")]
        paths = [_literal(self._files.location_of(f"keys/{name}")) for name in names]
        return keys.sparkSession.read.schema(schema).parquet(*paths).toDF(*keys.columns)

    def delete(self) -> None:
        """Remove all files."""
        self._files.delete("keys")


class Writers:
    """Which queries write into a table: a file for each, beside the table. VACUUM leaves such files alone.

    Without it the rows of two queries with one target could not be told apart, and a new checkpoint of one query would
    remove those of the other.
    """

    def __init__(self, spark: SparkSession, path: str, context: SinkContext) -> None:
        self._files = CheckpointStore(spark, path)
        self._context = context

    def note(self) -> None:
        """Note that this query writes into the table."""
        name = f"{hashlib.sha256(self._context.writer.encode()).hexdigest()[:32]}.json"
        tables = [list(each) for each in self._context.snapshot_of]
        noted = {"writer": self._context.writer, "tables": tables}
        if self._read(name) != noted:
            self._files.make_directory(_WRITERS)
            self._files.write_file(f"{_WRITERS}/{name}", json.dumps(noted))

    def others(self, names: Sequence[tuple[str, ...]]) -> list[str]:
        """Other queries that may have written rows of these tables."""
        found = []
        for file in self._files.names_in(_WRITERS):
            noted = self._read(file) if file.endswith(".json") and not file.startswith(".") else None
            if noted is None or noted["writer"] == self._context.writer:
                continue
            tables = {tuple(each) for each in noted["tables"]}
            if () in names or not tables or not tables.isdisjoint(names):
                found.append(noted["writer"])
        return sorted(found)

    def _read(self, name: str) -> dict[str, Any] | None:
        return self._files.read_object(f"{_WRITERS}/{name}")


def _literal(path: str) -> str:
    """A path that Spark's readers do not match as a pattern."""
    return re.sub(r"([*?{}\[\]\\])", r"\\\1", path)
