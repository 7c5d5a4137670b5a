"""What MySQL and PostgreSQL do in different ways: types, names, statements and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import types as st

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.columns import Index, Limit, StoredColumn, TableColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from backlog_spark.sinks.database.address import Account, Address, Place

__all__ = ["CONNECT_S", "EXACT", "IS_DELETE", "LOCK_S", "TASK", "Dialect", "Run"]

CONNECT_S: Final = 10
"""Longest time for a connection, in seconds."""
LOCK_S: Final = 60
"""Longest time to wait for another transaction's lock. PostgreSQL has no limit by default, and MySQL one of a year."""

TASK: Final = "_backlog_spark_task"
IS_DELETE: Final = "_backlog_spark_is_delete"
"""The two columns of a staging table beside those of the target."""

EXACT: Final = (st.ByteType, st.ShortType, st.IntegerType, st.LongType, st.DecimalType)
"""Spark's exact numbers."""

Run = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its values, and returns the rows. Names in it have doubled ``%``: see `Dialect.quoted`."""


class Dialect(ABC):
    """One kind of server. It holds no connection and no secret, so tasks get it too.

    Values are always bound. Statements are texts for the client library's ``%s``.
    """

    name: ClassVar[str]
    """The product, for messages."""
    longest_name: ClassVar[int]
    """Longest name of a column: in bytes in PostgreSQL, which cuts longer ones silently, in characters in MySQL."""
    packages: ClassVar[tuple[str, ...]]
    """Modules that it needs."""

    # -- connections ----------------------------------------------------------------------------------------

    @abstractmethod
    def connect(self, address: Address, account: Account, read_s: int) -> Any:
        """A connection whose session has times in UTC and refuses values that do not fit. Not in autocommit mode.

        Parameters
        ----------
        read_s : int
            Longest time for an answer, in seconds.

        Raises
        ------
        Exception
            One that `is_error` knows, or a `BacklogError`.
        """

    def runner(self, connection: Any) -> Run:
        """Runs statements on a connection."""

        def run(sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(sql, tuple(values))
                return list(cursor.fetchall()) if cursor.description else []

        return run

    begin_snapshot: ClassVar[tuple[str, ...]]
    """Statements of a new connection. Until its transaction ends, all it reads is as of one moment."""

    @abstractmethod
    def stream(self, connection: Any, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a SELECT, which never are in the process all at once."""

    @abstractmethod
    def close(self, connection: Any) -> None:
        """Close a connection without a word to the server, which rolls back what has not committed."""

    @abstractmethod
    def is_error(self, error: BaseException) -> bool:
        """Whether the client library has raised an error."""

    @abstractmethod
    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection is of no use after an error."""

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Whether the same transaction may go well later: a deadlock, or a lock that another one holds."""

    @abstractmethod
    def is_denied(self, error: BaseException) -> bool:
        """Whether the server refuses the user or lacks a grant."""

    @abstractmethod
    def is_rejection(self, error: BaseException) -> bool:
        """Whether a row has a value that the table never takes: NULL, out of bounds, or one that a CHECK forbids."""

    @abstractmethod
    def checks(self, run: Run, place: Place) -> list[str]:
        """The conditions of a table's CHECK constraints."""

    @abstractmethod
    def text(self, error: BaseException) -> str:
        """The server's message, in one line."""

    # -- names and types ------------------------------------------------------------------------------------

    @abstractmethod
    def quoted(self, name: str) -> str:
        """A name for a statement, with ``%`` doubled for the client library."""

    def quoted_table(self, place: Place) -> str:
        return f"{self.quoted(place.schema)}.{self.quoted(place.table)}"

    def names(self, columns: Sequence[str], of: str = "") -> str:
        """Quoted names with commas."""
        return ", ".join(f"{of}{self.quoted(name)}" for name in columns)

    @abstractmethod
    def length(self, name: str) -> int:
        """The length that `longest_name` limits."""

    @abstractmethod
    def same_name(self, one: str, other: str) -> bool:
        """Whether two names are the same column."""

    @abstractmethod
    def definition(self, kind: DataType, *, is_key: bool, collation: str) -> str | None:
        """The type of a new column, with NULL or NOT NULL; None if there is none for Spark's type.

        ``collation``: as of `text_collation`.
        """

    @abstractmethod
    def unfit(self, kind: DataType, column: TableColumn) -> str:
        """Which types a column may have for Spark's type, if it has none of these; else empty."""

    @abstractmethod
    def limits(self, kind: DataType, column: TableColumn, *, is_key: bool) -> tuple[Limit, ...]:
        """The values that a column which fits would change silently."""

    # -- what is there --------------------------------------------------------------------------------------

    @abstractmethod
    def schema(self, run: Run) -> str:
        """The connection's own schema; "" if there is none."""

    def tables(self, run: Run, schema: str, prefix: str) -> list[str]:
        """Names of tables that begin with a text."""
        found = run(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND LEFT(table_name, %s) = %s",
            (schema, len(prefix), prefix),
        )
        return [str(name) for (name,) in found if str(name).startswith(prefix)]

    @abstractmethod
    def columns(self, run: Run, place: Place) -> list[TableColumn]:
        """The columns of a table; empty if there is no such table, or the user has no right on it."""

    @abstractmethod
    def unique_indexes(self, run: Run, place: Place) -> list[Index]:
        """All unique indexes of a table, with the primary key."""

    @abstractmethod
    def text_collation(self, run: Run) -> str:
        """The collation for texts of new tables that compares bytes; "" if the server does that anyway."""

    def check_table(self, run: Run, place: Place, keys: Sequence[str], indexes: Sequence[Index]) -> None:
        """Refuse a table in which an upsert could change other rows, or whose changes cannot be rolled back.

        Raises
        ------
        BacklogError
        """
        if not any(self._are_keys(index, keys) for index in indexes):
            raise BacklogError(
                f"The table {place} has no primary key and no unique index on exactly {', '.join(keys)}. With another "
                "one an upsert would change other rows.",
                f"Name the columns of its primary key in keys, or add one: {self.adding_key(place, keys)}.",
            )

    def adding_key(self, place: Place, keys: Sequence[str]) -> str:
        """The statement that makes the keys unique."""
        return f"ALTER TABLE {self.quoted_table(place)} ADD UNIQUE ({self.names(keys)})".replace("%%", "%")

    def _are_keys(self, index: Index, keys: Sequence[str]) -> bool:
        return len(index.columns) == len(keys) and all(
            any(self.same_name(key, column) for column in index.columns) for key in keys
        )

    # -- statements -----------------------------------------------------------------------------------------

    def create_table(self, place: Place, columns: Sequence[tuple[str, str]], keys: Sequence[str]) -> str:
        """The statement for a new table. ``columns``: names and definitions."""
        defined = ", ".join(f"{self.quoted(name)} {definition}" for name, definition in columns)
        return f"CREATE TABLE {self.quoted_table(place)} ({defined}, PRIMARY KEY ({self.names(keys)})){self.of_table}"

    of_table: ClassVar[str] = ""
    """Options of a new table."""
    of_stage: ClassVar[str] = "TABLE"
    """What a staging table is, after ``CREATE``."""
    do_not_wait: ClassVar[str]
    """The statement after which the session waits a second for the lock of a table, and not longer."""
    mark_columns: ClassVar[tuple[tuple[str, str], ...]]
    """Names and definitions of the table of marks: app id, table, batch and time."""

    def create_stage(self, stage: Place, columns: Sequence[StoredColumn]) -> str:
        """The statement for a staging table, whose columns store what those of the target do."""
        defined = ", ".join(f"{self.quoted(each.name)} {each.column.definition} NULL" for each in columns)
        own = f"{self.quoted(TASK)} VARCHAR(64) NOT NULL, {self.quoted(IS_DELETE)} BOOLEAN NOT NULL"
        return f"CREATE {self.of_stage} {self.quoted_table(stage)} ({defined}, {own}){self.of_table}"

    @abstractmethod
    def keep_or_insert(self, place: Place, columns: Sequence[str], key: str) -> str:
        """The statement that inserts a row if its key is not there. It locks the row."""

    @abstractmethod
    def on_conflict(self, columns: Sequence[str], keys: Sequence[str]) -> str:
        """The end of an ``INSERT`` that updates a row whose keys are there."""

    @abstractmethod
    def upsert(self, connection: Any, place: Place, columns: Sequence[StoredColumn], rows: pa.Table) -> None:
        """Insert or update rows that are in the driver. ``rows``: the columns in order."""

    @abstractmethod
    def delete(self, connection: Any, place: Place, keys: Sequence[StoredColumn], rows: pa.Table) -> None:
        """Delete rows by their keys that are in the driver. ``rows``: the keys in order."""

    @abstractmethod
    def load(
        self,
        connection: Any,
        stage: Place,
        columns: Sequence[StoredColumn],
        batches: Iterator[pa.RecordBatch],
        task: str,
    ) -> None:
        """Load rows into a staging table, in one transaction. ``batches``: the columns, then whether it is a delete."""

    @abstractmethod
    def delete_staged(self, place: Place, stage: Place, keys: Sequence[str], tasks: int) -> str:
        """The statement that deletes the target's rows whose deletes are staged. It takes the tasks' names."""

    def insert_staged(self, place: Place, stage: Place, columns: Sequence[str], keys: Sequence[str], tasks: int) -> str:
        """The statement that upserts the staged rows. It takes the tasks' names."""
        return (
            f"INSERT INTO {self.quoted_table(place)} ({self.names(columns)}) SELECT {self.names(columns)} "
            f"FROM {self.quoted_table(stage)} WHERE NOT {self.quoted(IS_DELETE)} AND {self.of_tasks(tasks)}"
            f"{self.on_conflict(columns, keys)}"
        )

    def of_tasks(self, tasks: int, of: str = "") -> str:
        """The condition on staged rows that a task which counts has loaded them."""
        return f"{of}{self.quoted(TASK)} IN ({', '.join(['%s'] * tasks)})"

    def prepare_merge(self, run: Run, stage: Place) -> None:  # noqa: B027 -- nothing, unless the planner needs it
        """Called when the staging table is full."""

    def read_exactly(self, column: TableColumn) -> str:
        """The expression that gives a column's values as they are stored."""
        return self.quoted(column.name)

    @abstractmethod
    def same_text(self, column: str) -> str:
        """The condition that a column has a bound text, byte by byte."""

    def probes(self, place: Place, columns: Sequence[str]) -> list[str]:
        """Statements that change nothing and need the rights of a batch: INSERT, UPDATE and DELETE."""
        table, first = self.quoted_table(place), self.quoted(columns[0])
        names = self.names(columns)
        return [
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE 1 = 0",
            f"UPDATE {table} SET {first} = {first} WHERE 1 = 0",
            f"DELETE FROM {table} WHERE 1 = 0",
        ]
