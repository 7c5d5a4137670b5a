"""Keeps a table of MySQL, MariaDB or PostgreSQL equal to the newest change of every key, one transaction per batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, METADATA
from backlog_spark.sinks.change_columns import SEQUENCE, ChangeColumns, check_stored, checked_columns, checked_keys
from backlog_spark.sinks.counted_batches import CountedBatches
from backlog_spark.sinks.database.address import Account, Address, Place, parse_table
from backlog_spark.sinks.database.connection import Again, Database
from backlog_spark.sinks.database.marks import Mark, Marks
from backlog_spark.sinks.database.staging import drop_leftovers, stage_prefix
from backlog_spark.sinks.database.target import (
    check_keys,
    check_rights,
    check_types,
    create_table,
    located,
    stored_columns,
)
from backlog_spark.sinks.database.writers import LiveWriter, StagedWriter, Upsert
from backlog_spark.sinks.replays import Replays
from backlog_spark.sinks.small_batches import RowBudget, is_comparable
from backlog_spark.sinks.table_sink import PendingBatch, TableSink, TableWriter
from backlog_spark.spi.examination import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.sinks.base import BatchInfo, SinkContext
    from backlog_spark.sinks.database.dialect import Run

__all__ = ["JdbcUpsert"]

_SMALL_BATCH_ROWS: Final = 100_000
_SMALL_BATCH_BYTES: Final = 64 << 20
_LOST: Final = "The table or its row in _backlog_spark_marks was removed, or the database was restored from a backup."


class JdbcUpsert(TableSink[Mark]):
    """Upserts change rows into a table of MySQL, MariaDB or PostgreSQL by key, exactly once.

    A batch is one transaction. It also sets the query's row in the table ``_backlog_spark_marks`` of the same schema,
    which has the number of the newest batch. A batch that the database already has is skipped before any row is read.
    A batch is written by

    * the driver, if it is live and small: deletes by key, then one ``INSERT`` for many rows with ``ON DUPLICATE KEY
      UPDATE`` or ``ON CONFLICT``;
    * executors otherwise: they load a staging table in parallel, and the driver merges it into the table.

    The first start creates the table if there is none. A value that the table cannot store as it is fails the query.

    A row of type ``truncate`` or ``drop`` removes all older rows of its table, as in `DeltaUpsert`. Rows that were in
    the table before the query's first batch stay until a change of their key comes.

    Parameters
    ----------
    url : str
        ``mysql://host:3306/database``, ``mariadb://…`` or ``postgresql://…``, without user and password.
    table : str
        ``table`` or ``schema.table``. In MySQL and MariaDB the schema is a database.
    keys : sequence of str
        Columns that identify a row: the table's primary key, or a unique index. No key may be NULL, and none a float.
    user : str
    password, password_file, password_env, password_command, password_function : str, default ""
        At most one of them: the password, a file with it, an environment variable, a program that prints it, or
        ``module:function`` as of the source ``mysql_cdc``. They are used on the driver and on the executors.
    ssl_mode : str, default "preferred"
        ``disabled``, ``preferred``, ``required``, ``verify_ca`` or ``verify_identity``, as of the source ``mysql_cdc``.
    ssl_ca, ssl_cert, ssl_key : str, default ""
        PEM files: the known authorities, and the client's certificate and key.
    allow_public_key_retrieval : bool, default False
        As of the source ``mysql_cdc``; for MySQL without TLS.
    change_type : str or None, default "_change_type"
        As of `DeltaUpsert`.
    sequence : str or None, default "_commit_seq"
        As of `DeltaUpsert`.
    metadata_columns : sequence of str, default ("_change_type", "_commit_timestamp", "_commit_seq")
        As of `DeltaUpsert`.
    small_batch_rows : int, default 100,000
        The driver writes live batches of up to this many rows, and of at most 64 MiB in Arrow. 0: executors write all.

    Raises
    ------
    SettingError
        The URL, the table or the keys are wrong, or the password is given twice.

    Examples
    --------
    >>> sink = JdbcUpsert("postgresql://db/shop", "orders", ["id"], user="writer", password_file="/etc/backlog/pg")
    """

    keeps_newest = True

    @checked_arguments
    def __init__(
        self,
        url: str,
        table: str,
        keys: Sequence[str],
        *,
        user: str,
        password: str = "",
        password_file: str = "",
        password_env: str = "",
        password_command: str = "",
        password_function: str = "",
        ssl_mode: str = "preferred",
        ssl_ca: str = "",
        ssl_cert: str = "",
        ssl_key: str = "",
        allow_public_key_retrieval: bool = False,
        change_type: str | None = CHANGE_TYPE,
        sequence: str | None = SEQUENCE,
        metadata_columns: Sequence[str] = METADATA,
        small_batch_rows: int = _SMALL_BATCH_ROWS,
    ) -> None:
        address = Address.parse(url)
        account = Account.parse(
            user,
            password,
            {
                "passwordFile": password_file,
                "passwordEnv": password_env,
                "passwordCommand": password_command,
                "passwordFunction": password_function,
                "ssl.mode": ssl_mode,
                "ssl.ca": ssl_ca,
                "ssl.cert": ssl_cert,
                "ssl.key": ssl_key,
                "allowPublicKeyRetrieval": str(allow_public_key_retrieval).lower(),
            },
        )
        if not user:
            raise SettingError("user", user, "is empty.", "Name a user of the database.")
        if not 0 <= small_batch_rows < 2**63:
            raise SettingError("small_batch_rows", small_batch_rows, "is out of bounds.", "Give 0 or more.")
        self.table = parse_table(table, address)
        self.keys = checked_keys(keys, metadata_columns)
        self.small_batch_rows = small_batch_rows
        self._given = ChangeColumns(change_type, sequence, checked_columns("metadata_columns", metadata_columns))
        self._database = Database(address, account)
        self._upsert: Upsert | None = None
        self._known: CountedBatches | None = None
        self._budget = RowBudget(0, 0, ())
        self._never_live = ""  # why the driver writes no batch
        self._replays: Replays | None = None

    def for_output(self) -> JdbcUpsert:
        found = copy.copy(self)
        found._database = self._database.copy()
        return found

    def described(self) -> dict[str, Any]:
        path = f"{self._database.address}/{self.table}"
        return {"kind": "JdbcUpsert", "place": path, "keys": list(self.keys), **self._given.described()}

    def has_rows_of(self, spark: SparkSession, txn_app_id: str) -> bool:
        def look(run: Run) -> bool:
            place = located(self._database.dialect, run, self.table)
            marks = Marks(self._database.dialect, place, txn_app_id)
            found = marks.read(run) if marks.exist(run) else Mark()
            return found.batch is not None and found.table == place.table

        return self._database.read(look)

    def open(self, context: SinkContext) -> None:
        """Create the table if there is none; otherwise check that it fits. See :meth:`Sink.open`.

        Raises
        ------
        SettingError
            A setting names a column that is not in the schema.
        BacklogError
            The server cannot be reached or refuses the user; the table does not fit, or lacks batches that the
            checkpoint has, or the reverse.
        """
        change_type, sequence, metadata = self._given.of(
            context,
            "JdbcUpsert",
            "For rows that are not changes, upsert each row with "
            "JdbcUpsert(…, change_type=None, sequence=None, metadata_columns=()).",
        )
        fields = [field for field in context.schema.fields if field.name not in metadata]
        check_stored("JdbcUpsert", "keys", self.keys, fields)
        database, dialect, app_id = self._database, self._database.dialect, context.txn_app_id
        check_types(dialect, fields, self.keys)
        newest = None if self._known is None else self._known.newest
        with database.transaction(at_once=True) as session:
            run = session.run
            place = located(dialect, run, self.table)
            marks = Marks(dialect, place, app_id)
            mark = marks.read(run) if marks.exist(run) else Mark()
            known = CountedBatches(f"The table {place}", _LOST, "the sink", context, newest)
            known.check_at_start(mark.batch)
            if mark.table not in ("", place.table):
                raise SettingError(
                    "table", str(place), f"the checkpoint's rows are in {mark.table}.",
                    "Name that table, or start with a new checkpointLocation.",
                )  # fmt: skip
            table = dialect.columns(run, place)
            if not table and mark.batch is not None:
                raise known.lacks(mark.batch, None)
            if not table:
                create_table(dialect, run, place, fields, self.keys)
                table = dialect.columns(run, place)
            stored = stored_columns(dialect, place, table, fields, self.keys)
            check_keys(dialect, run, place, [column.name for column in stored if column.is_key])
            marks.create(run)
            marks.check(run)
            probe = Place(place.schema, f"{stage_prefix(app_id)}probe")
            check_rights(dialect, run, place, [column.name for column in stored], probe)
        drop_leftovers(database, place.schema, app_id)
        self._known, self._replays = known, Replays(context)
        types = {field.name: field.dataType for field in context.schema.fields}
        if not self.small_batch_rows:
            self._never_live = "small_batch_rows is 0"
        elif sequence is not None and not is_comparable(types[sequence]):
            self._never_live = f"a sequence of type {types[sequence].simpleString()} is compared by Spark alone"
        if self._upsert is None:
            self._budget = RowBudget.of_driver(context, self.small_batch_rows, _SMALL_BATCH_BYTES)
        self._upsert = Upsert(
            database, place, marks, app_id, tuple(field.name for field in fields), stored, self.keys, change_type,
            sequence, context.of_one_table, context.key_is_unique_in_backlog, repr(self),
        )  # fmt: skip

    def close(self) -> None:
        self._database.close()

    def examine(self) -> Iterator[Finding]:
        """Reach the server, and find out whether the user may write. For ``backlog-spark check``; changes no row."""
        database, dialect = self._database, self._database.dialect
        try:
            with database.transaction(at_once=True) as session:
                run = session.run
                place = located(dialect, run, self.table)
                table = [column.name for column in dialect.columns(run, place) if not column.is_generated]
                keys = [name for name in table if any(dialect.same_name(name, key) for key in self.keys)]
                if table and len(keys) < len(self.keys):
                    raise BacklogError(
                        f"The table {place} lacks a column of keys; it has {', '.join(table)}.", "Correct keys."
                    )
                if table:
                    check_keys(dialect, run, place, keys)
                check_rights(dialect, run, place, table, Place(place.schema, f"{stage_prefix('')}check"))
        except BacklogError as error:
            yield Finding(Severity.ERROR, "", error.problem, error.hint)
            return
        told = "can be written" if table else "is not there: the first start creates it, which the user may do"
        yield Finding(Severity.OK, "", f"the table {place} at {database.address} {told}.")

    # -- TableSink ------------------------------------------------------------------------------------------

    def _pending(self, batch_df: DataFrame, batch: BatchInfo, until_written: contextlib.ExitStack) -> PendingBatch:
        if self._upsert is None or self._replays is None:
            raise BacklogError(f"{self!r} is not open.", "Call open() before write().")
        return PendingBatch(batch_df, batch, self._upsert.app_id, self._replays, until_written)

    def _writers(self, batch: PendingBatch) -> Sequence[TableWriter]:
        upsert = self._opened
        return LiveWriter(batch, upsert, self._budget, self._never_live), StagedWriter(batch, upsert)

    def _state(self, spark: SparkSession) -> Mark:
        upsert = self._opened

        def look(run: Run) -> Mark:
            # Another unique index would let an upsert change other rows.
            check_keys(self._database.dialect, run, upsert.place, [column.name for column in upsert.key_columns])
            return upsert.marks.read(run)

        upsert.mark = self._database.read(look)
        return upsert.mark

    def _has(self, state: Mark, batch_id: int) -> bool:
        assert self._known is not None
        return self._known.has(state.batch, batch_id)

    def _check(self, state: Mark) -> None:
        pass  # `_state` has done so

    def _conflicts(self) -> tuple[type[Exception], ...]:
        return (Again,)

    def _wrote(self, spark: SparkSession, before: Mark, writer: TableWriter, batch: PendingBatch) -> None:
        assert self._known is not None
        self._known.note(batch.info.batch_id)

    @property
    def _opened(self) -> Upsert:
        assert self._upsert is not None, "_pending comes first"
        return self._upsert

    def __repr__(self) -> str:
        return f"JdbcUpsert({str(self._database.address)!r}, {str(self.table)!r})"
