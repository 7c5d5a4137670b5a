"""Decides which rows of an existing Iceberg table the end of a new query's first snapshot removes.

As of `backlog_spark.sinks.leftovers`. Which queries write into the table is noted in its properties.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.sinks.iceberg.marks import CREATED_BY
from backlog_spark.sinks.leftovers import KEEP, KeyFiles, names_to_remove

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from backlog_spark.sinks.base import BatchInfo, SinkContext

__all__ = ["Leftovers", "has_older_rows", "note_writer"]

_log = logging.getLogger(__name__)

_WRITER: Final = "backlog_spark.writer-"


def has_older_rows(table: Table, txn_app_id: str) -> bool:
    """Whether a table that lacks the query's first batch has rows."""
    if table.metadata.properties.get(CREATED_BY) == txn_app_id:
        return False
    return any(task.file.record_count for task in table.scan().plan_files())


def note_writer(table: Table, context: SinkContext) -> None:
    """Note that this query writes into the table."""
    if not context.writer:
        return
    name = f"{_WRITER}{hashlib.sha256(context.writer.encode()).hexdigest()[:32]}"
    noted = json.dumps({"writer": context.writer, "tables": [list(each) for each in context.snapshot_of]})
    if table.metadata.properties.get(name) != noted:
        with table.transaction() as transaction:
            transaction.set_properties({name: noted})


def _others(table: Table, context: SinkContext, names: Sequence[tuple[str, ...]]) -> list[str]:
    """Other queries that may have written rows of these tables."""
    found = []
    for name, text in table.metadata.properties.items():
        noted: dict[str, Any] = json.loads(text) if name.startswith(_WRITER) else {}
        if noted and noted["writer"] != context.writer:
            tables = {tuple(each) for each in noted["tables"]}
            if () in names or not tables or not tables.isdisjoint(names):
                found.append(noted["writer"])
    return sorted(found)


class Leftovers:
    """The rows from before the query, for one run.

    Parameters
    ----------
    place : str
        The table, for messages.
    choice : str
        The sink's ``on_existing_rows``.
    context : SinkContext
    columns : sequence of str
        The stored columns.
    """

    def __init__(self, place: str, choice: str, context: SinkContext, columns: Sequence[str]) -> None:
        self._place = place
        self._choice = choice
        self._context = context
        self._columns = columns

    def keys(self, spark: SparkSession) -> KeyFiles:
        """The keys of the snapshot's earlier batches."""
        return KeyFiles(spark, self._context.directory)

    def replaced(
        self, spark: SparkSession, table: Table, batch: BatchInfo, *, is_first: bool
    ) -> tuple[tuple[str, ...], ...]:
        """The tables whose older rows the end of the snapshot removes. Called for a batch that the table lacks.

        ``is_first``: the table has no batch of the query.
        """
        context = self._context
        is_ours = table.metadata.properties.get(CREATED_BY) == context.txn_app_id
        if not batch.snapshot or not context.directory or is_ours:
            return ()
        if self._choice == KEEP:
            self.keys(spark).delete()  # of an earlier run: they would lack those of this batch
            return ()
        if not (has_older_rows(table, context.txn_app_id) if is_first else self.keys(spark).exist()):
            return ()
        if not is_first and batch.snapshot == "part":
            return context.snapshot_of  # decided; no batch in between may lack its keys
        names = names_to_remove(context, self._columns)
        why = "" if names else "without the columns _database and _table they cannot be told apart"
        if names and (others := _others(table, context, names)):
            why = f"other queries write there too ({'; '.join(others)})"
        if why:
            _log.warning(
                "The Iceberg table %s has rows that this query did not write. They stay, even if its sources no longer "
                "have them: %s. See on_existing_rows in docs/sinks.md.",
                self._place,
                why,
            )
            return ()
        return names
