"""Large batches: executors load a staging table in parallel, and the driver merges it into the target.

A task may run twice, and tasks of a killed driver may still run. So each attempt marks its rows with a name of its own,
and only rows of attempts whose result reached the driver are merged. Each load has a table of its own, so that others
can be dropped while somebody still writes to them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.columns import StoredColumn, check_values, without_deleted
from backlog_spark.sinks.database.connection import Database
from backlog_spark.sinks.database.dialect import IS_DELETE
from backlog_spark.sinks.rejected_rows import described_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.sinks.database.dialect import Run

__all__ = ["Stage", "drop_leftovers", "stage_prefix"]

_log = logging.getLogger(__name__)

_LOADED: Final = "task string, loaded bigint, deletes bigint"


def stage_prefix(app_id: str) -> str:
    """How the names of a query's staging tables begin."""
    return f"_backlog_spark_stage_{hashlib.sha256(app_id.encode()).hexdigest()[:12]}_"


def drop_leftovers(database: Database, schema: str, app_id: str) -> None:
    """Drop staging tables that a killed driver has left. One that is still written to stays until the next start."""
    dialect = database.dialect
    names = database.read(lambda run: dialect.tables(run, schema, stage_prefix(app_id)))
    for name in names:
        try:
            _drop(database, Place(schema, name))
        except BacklogError as error:
            _log.info("The staging table %s stays for now: %s", name, error.problem)


def _drop(database: Database, place: Place) -> None:
    with database.transaction(is_long=True) as session:
        session.run(database.dialect.do_not_wait)
        session.run(f"DROP TABLE IF EXISTS {database.dialect.quoted_table(place)}")


class Stage:
    """A staging table of one load.

    Parameters
    ----------
    database : Database
    schema : str
    app_id : str
    columns : sequence of StoredColumn
    sink : str
        For messages.
    """

    def __init__(
        self, database: Database, schema: str, app_id: str, columns: Sequence[StoredColumn], sink: str
    ) -> None:
        self._database = database
        self._columns = tuple(columns)
        self._sink = sink
        self.place = Place(schema, stage_prefix(app_id) + uuid.uuid4().hex[:8])
        self._tasks: tuple[str, ...] = ()
        self._deletes = 0
        self.rows = 0

    def load(self, rows: DataFrame) -> None:
        """Make the table and load it. ``rows``: the stored columns, then whether a row is a delete."""
        database = self._database
        with database.transaction() as session:
            session.run(database.dialect.create_stage(self.place, self._columns))
        step = _Load(database, self.place, self._columns, self._sink)
        loaded = map_in_arrow(rows, step, _LOADED).collect()
        self._tasks = tuple(row.task for row in loaded)
        self._deletes = sum(row.deletes for row in loaded)
        self.rows = sum(row.loaded for row in loaded)

    def merge(self, run: Run, target: Place) -> None:
        """Delete and upsert what was loaded, in the transaction of ``run``."""
        if not self._tasks:
            return
        dialect = self._database.dialect
        names = [column.name for column in self._columns]
        keys = [column.name for column in self._columns if column.is_key]
        dialect.prepare_merge(run, self.place)
        # A server that had to recover empties unlogged tables, and a replica may lack the newest rows.
        counted = f"SELECT count(*) FROM {dialect.quoted_table(self.place)} WHERE {dialect.of_tasks(len(self._tasks))}"
        found = int(run(counted, self._tasks)[0][0])
        if found != self.rows:
            raise BacklogError(
                f"{self._sink}: the staging table {self.place} has {found:,} of {self.rows:,} rows: the server was "
                "restarted or replaced meanwhile.",
                "Start the query again; it loads the batch anew.",
            )
        if self._deletes:
            run(dialect.delete_staged(target, self.place, keys, len(self._tasks)), self._tasks)
        if self._deletes < self.rows:
            run(dialect.insert_staged(target, self.place, names, keys, len(self._tasks)), self._tasks)

    def rejected(self, target: Place) -> str:
        """A row that a constraint of the target rejects, by its keys; "" if none is found."""
        dialect = self._database.dialect
        keys = [column.name for column in self._columns if column.is_key]
        rows = f"{dialect.quoted_table(self.place)} WHERE {dialect.of_tasks(len(self._tasks))}"
        conditions = [f"{dialect.quoted(each.name)} IS NOT NULL" for each in self._columns if each.column.is_not_null]
        checks: list[str] = []
        with contextlib.suppress(BacklogError):  # servers before MySQL 8.0.16 have no CHECK
            checks = self._database.read(lambda run: dialect.checks(run, target))
        for condition in (*conditions, *(check.replace("%", "%%") for check in checks)):
            sql = f"SELECT {dialect.names(keys)} FROM {rows} AND NOT {dialect.quoted(IS_DELETE)} AND NOT ({condition})"
            with contextlib.suppress(BacklogError):  # it may need a column that is not loaded
                if found := self._database.read(functools.partial(_first, f"{sql} LIMIT 1", self._tasks)):
                    return described_row(dict(zip(keys, found[0], strict=True)), keys)
        return ""

    def drop(self) -> None:
        """Drop the table if nobody uses it; else the next start does."""
        with contextlib.suppress(BacklogError):
            _drop(self._database, self.place)


def _first(sql: str, values: Sequence[str], run: Run) -> list[tuple[Any, ...]]:
    return run(sql, values)


class _Load:
    """The step of a task: it loads the rows of its partition in one transaction, and returns its name and counts."""

    def __init__(self, database: Database, stage: Place, columns: tuple[StoredColumn, ...], sink: str) -> None:
        self._database = database
        self._stage = stage
        self._columns = columns
        self._sink = sink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        task, counts = uuid.uuid4().hex, [0, 0]

        def checked() -> Iterator[pa.RecordBatch]:
            yield self._checked(first, counts)
            for batch in batches:
                if batch.num_rows:
                    yield self._checked(batch, counts)

        database = self._database
        with database.transaction(is_long=True) as session:
            database.dialect.load(session.connection, self._stage, self._columns, checked(), task)
        yield pa.RecordBatch.from_pydict(
            {"task": [task], "loaded": pa.array([counts[0]], pa.int64()), "deletes": pa.array([counts[1]], pa.int64())}
        )

    def _checked(self, batch: pa.RecordBatch, counts: list[int]) -> pa.RecordBatch:
        width = len(self._columns)
        is_delete = batch.column(width)
        stored = pa.RecordBatch.from_arrays(batch.columns[:width], batch.schema.names[:width])
        stored = without_deleted(stored, is_delete, self._columns)
        check_values(stored, self._columns, self._sink)
        counts[0] += batch.num_rows
        counts[1] += pc.sum(is_delete).as_py()
        return pa.RecordBatch.from_arrays(
            [*stored.columns, is_delete], [*stored.schema.names, batch.schema.names[width]]
        )
