"""The table that says which batch of each query a database has: one row a query, in the transaction of the batch."""

from __future__ import annotations

from typing import Final, NamedTuple

from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.connection import Again
from backlog_spark.sinks.database.dialect import Dialect, Run

__all__ = ["MARKS", "Mark", "Marks"]

MARKS: Final = "_backlog_spark_marks"
_NONE: Final = -1


class Mark(NamedTuple):
    """A query's row.

    Parameters
    ----------
    batch : int or None
        The newest batch; None if there is none yet.
    table : str
        The table that it is in; "" if there is no row.
    """

    batch: int | None = None
    table: str = ""

    @property
    def version(self) -> int:
        return _NONE if self.batch is None else self.batch


class Marks:
    """The marks beside a table.

    Parameters
    ----------
    dialect : Dialect
    target : Place
        The table, with its schema.
    app_id : str
        `SinkContext.txn_app_id`.
    """

    def __init__(self, dialect: Dialect, target: Place, app_id: str) -> None:
        self._dialect = dialect
        self._place = Place(target.schema, MARKS)
        self._table = target.table
        self._app_id = app_id
        self._name = dialect.quoted_table(self._place)

    def exist(self, run: Run) -> bool:
        """Whether the table of marks is there."""
        return bool(self._dialect.columns(run, self._place))

    def create(self, run: Run) -> None:
        """Make the table of marks if it is not there."""
        if not self.exist(run):
            made = self._dialect.create_table(self._place, self._dialect.mark_columns, ["app_id"])
            run(made.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1))  # another query may be faster

    def read(self, run: Run) -> Mark:
        """The query's mark."""
        return self._found(run, "")

    def check(self, run: Run) -> None:
        """Fail if the user may not write marks."""
        for statement in self._dialect.probes(self._place, ["app_id", "table_name", "batch_id"])[:2]:
            run(statement)

    def lock(self, run: Run, expected: Mark) -> None:
        """Lock the query's mark until the end of the transaction, so that no other driver writes a batch meanwhile.

        Raises
        ------
        Again
            Another driver has written a batch since the mark was read.
        """
        if not expected.table:
            columns = ["app_id", "table_name", "batch_id"]
            run(
                self._dialect.keep_or_insert(self._place, columns, "app_id"),
                (self._app_id, self._table, _NONE),
            )
        found = self._found(run, " FOR UPDATE")
        if not found.table or found.batch != expected.batch:
            raise Again(
                f"Another driver has changed the mark of this query of {self._table} meanwhile: batch {found.batch}.",
                "Run one query on a checkpoint.",
            )

    def set(self, run: Run, batch_id: int) -> None:
        """Note a batch."""
        run(
            f"UPDATE {self._name} SET batch_id = %s, table_name = %s, written_at = CURRENT_TIMESTAMP(6) "
            "WHERE app_id = %s",
            (batch_id, self._table, self._app_id),
        )

    def _found(self, run: Run, end: str) -> Mark:
        rows = run(f"SELECT batch_id, table_name FROM {self._name} WHERE app_id = %s{end}", (self._app_id,))
        if not rows:
            return Mark()
        ((batch, table),) = rows
        return Mark(None if batch == _NONE else int(batch), str(table))
