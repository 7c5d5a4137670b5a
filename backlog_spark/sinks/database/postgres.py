"""Statements and types of PostgreSQL.

Source: PostgreSQL's documentation, "INSERT", "COPY", "Character Types", "pg_attribute" and "pg_index".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import types as st

from backlog_spark.errors import SettingError
from backlog_spark.sinks.database.columns import Index, Limit, StoredColumn, TableColumn
from backlog_spark.sinks.database.dialect import CONNECT_S, EXACT, IS_DELETE, LOCK_S, TASK, Dialect, Run
from backlog_spark.sinks.database.rows import copy_lines, values_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from backlog_spark.sinks.database.address import Account, Address, Place

__all__ = ["PostgresDialect"]

_SSL_MODES: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
# A peer that is gone is found within 90 s, also while a long statement runs.
_KEEP_ALIVE: Final[dict[str, Any]] = {
    "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 6, "tcp_user_timeout": 90_000,
}  # fmt: skip
_LOST: Final = re.compile("08|57P0|53300|25P03")
_TRANSIENT: Final = frozenset({"40001", "40P01", "55P03", "57014"})
_REJECTIONS: Final = frozenset({"22001", "22003", "23502", "23514"})
# libpq gives no code for a refused login.
_DENIED: Final = re.compile(r"authentication failed|no password supplied|does not exist|pg_hba\.conf|permission denied")
# Rows of one statement.
_MOST_ROWS: Final = 10_000
# Types by Spark's, without lengths: a cast to varchar(9) would cut.
_TYPES: Final[Mapping[type[DataType], str]] = {
    st.BooleanType: "boolean",
    st.ByteType: "smallint",
    st.ShortType: "smallint",
    st.IntegerType: "integer",
    st.LongType: "bigint",
    st.FloatType: "real",
    st.DoubleType: "double precision",
    st.DecimalType: "numeric",
    st.StringType: "text",
    st.BinaryType: "bytea",
    st.DateType: "date",
    st.TimestampType: "timestamp with time zone",
    st.TimestampNTZType: "timestamp without time zone",
}
# By Spark's type: names in pg_type, and what to write in a message.
_FITTING: Final[Mapping[type[DataType], tuple[tuple[str, ...], str]]] = {
    st.BooleanType: (("bool",), "boolean"),
    st.FloatType: (("float4", "float8"), "real or double precision"),
    st.DoubleType: (("float8",), "double precision"),
    st.StringType: (("text", "varchar"), "text or varchar"),
    st.BinaryType: (("bytea",), "bytea"),
    st.DateType: (("date",), "date"),
    st.TimestampType: (("timestamptz",), "timestamp with time zone"),
    st.TimestampNTZType: (("timestamp",), "timestamp without time zone"),
}
_INTEGERS: Final = ("int2", "int4", "int8")
_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, a.atttypmod,
    a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attnotnull, a.attgenerated <> '' OR a.attidentity = 'a',
    COALESCE(c.collname, ''), COALESCE(c.collisdeterministic, true)
FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid JOIN pg_namespace n ON n.oid = r.relnamespace
    JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE n.nspname = %s AND r.relname = %s AND r.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_INDEXES: Final = """
SELECT x.relname, i.indpred IS NULL AND i.indexprs IS NULL AND i.indimmediate AND i.indisvalid,
    ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, at)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
        WHERE k.at <= i.indnkeyatts ORDER BY k.at)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class r ON r.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE n.nspname = %s AND r.relname = %s AND i.indisunique ORDER BY x.relname
"""

_CHECKS: Final = """
SELECT pg_get_expr(c.conbin, c.conrelid)
FROM pg_constraint c JOIN pg_class r ON r.oid = c.conrelid JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE c.contype = 'c' AND n.nspname = %s AND r.relname = %s ORDER BY c.conname
"""


class PostgresDialect(Dialect):
    """PostgreSQL."""

    name = "PostgreSQL"
    longest_name = 63
    packages = ("psycopg",)
    of_stage = "UNLOGGED TABLE"
    begin_snapshot = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",)
    do_not_wait = "SET LOCAL lock_timeout = '1s'"
    mark_columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("app_id", "text NOT NULL"),
        ("table_name", "text NOT NULL"),
        ("batch_id", "bigint NOT NULL"),
        ("written_at", "timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    )

    # -- connections ----------------------------------------------------------------------------------------

    def connect(self, address: Address, account: Account, read_s: int) -> Any:
        import psycopg

        login = account.login
        verifies = login.ssl_mode in ("verify_ca", "verify_identity")
        if login.ssl_mode == "verify_ca" and not login.ssl_ca:
            raise SettingError(
                "ssl_ca", "", "verify_ca needs it for PostgreSQL.", "Set it, or ssl_mode=verify_identity."
            )
        connection = psycopg.connect(
            host=address.host,
            port=address.port,
            dbname=address.database,
            user=account.user,
            password=account.password(address) or None,
            connect_timeout=CONNECT_S,
            client_encoding="utf8",
            application_name="backlog_spark",
            sslmode=_SSL_MODES[login.ssl_mode],
            sslrootcert=(login.ssl_ca or "system") if verifies else None,
            sslcert=login.ssl_cert or None,
            sslkey=login.ssl_key or None,
            # A server that is not verified does not get the password in clear text.
            require_auth=None if verifies else "!password",
            # A pool between here and the server would lose prepared statements.
            prepare_threshold=None,
            **_KEEP_ALIVE,
        )
        try:
            run = self.runner(connection)
            for name, value in (
                ("timezone", "UTC"),
                ("lock_timeout", 1000 * LOCK_S),
                ("statement_timeout", 1000 * read_s),
                ("default_transaction_isolation", "read committed"),
                ("default_transaction_read_only", "off"),
                ("standard_conforming_strings", "on"),
                ("datestyle", "ISO"),
            ):
                run(f"SET {name} = '{value}'")
            connection.commit()  # else the settings end with the first transaction that is rolled back
        except BaseException:
            self.close(connection)
            raise
        return connection

    def stream(self, connection: Any, sql: str) -> Iterator[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            yield from cursor.stream(sql, ())

    def close(self, connection: Any) -> None:
        connection.close()

    def is_error(self, error: BaseException) -> bool:
        import psycopg

        return isinstance(error, psycopg.Error | OSError)

    def is_lost(self, error: BaseException) -> bool:
        import psycopg

        state = getattr(error, "sqlstate", None)
        if state:
            return bool(_LOST.match(state))
        return isinstance(error, OSError | psycopg.OperationalError | psycopg.InterfaceError)

    def is_transient(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in _TRANSIENT

    def is_denied(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None)
        return state == "42501" or str(state).startswith("28") or (state is None and bool(_DENIED.search(str(error))))

    def is_rejection(self, error: BaseException) -> bool:
        return getattr(error, "sqlstate", None) in _REJECTIONS

    def checks(self, run: Run, place: Place) -> list[str]:
        return [str(condition) for (condition,) in run(_CHECKS, (place.schema, place.table))]

    def text(self, error: BaseException) -> str:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        code = getattr(error, "sqlstate", None)
        return f"{lines[0] if lines else type(error).__name__}{f' ({code})' if code else ''}"

    # -- names and types ------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    def length(self, name: str) -> int:
        return len(name.encode())

    def same_name(self, one: str, other: str) -> bool:
        return one == other

    def definition(self, kind: DataType, *, is_key: bool, collation: str) -> str | None:
        found = _TYPES.get(type(kind))
        if isinstance(kind, st.DecimalType):
            found = f"numeric({kind.precision},{kind.scale})"
        return found and f"{found} {'NOT NULL' if is_key else 'NULL'}"

    def unfit(self, kind: DataType, column: TableColumn) -> str:
        if isinstance(kind, EXACT):
            digits = kind.scale if isinstance(kind, st.DecimalType) else 0
            is_numeric = column.base == "numeric" and (column.scale is None or column.scale >= digits)
            fits = is_numeric or (column.base in _INTEGERS and not digits)
            return "" if fits else f"numeric with {digits} digits after the point{'' if digits else ', or an integer'}"
        bases, text = _FITTING.get(type(kind), ((), "none"))
        return "" if column.base in bases else text

    def limits(self, kind: DataType, column: TableColumn, *, is_key: bool) -> tuple[Limit, ...]:
        if column.size is None:
            return ()
        return (Limit("longest" if column.base == "varchar" else "fraction", column.size),)

    # -- what is there --------------------------------------------------------------------------------------

    def schema(self, run: Run) -> str:
        ((found,),) = run("SELECT current_schema()")
        return str(found or "")

    def columns(self, run: Run, place: Place) -> list[TableColumn]:
        return [_column(*row) for row in run(_COLUMNS, (place.schema, place.table))]

    def unique_indexes(self, run: Run, place: Place) -> list[Index]:
        found = run(_INDEXES, (place.schema, place.table))
        return [Index(name, tuple(columns) if is_whole else ()) for name, is_whole, columns in found]

    def text_collation(self, run: Run) -> str:
        return ""

    # -- statements -----------------------------------------------------------------------------------------

    def keep_or_insert(self, place: Place, columns: Sequence[str], key: str) -> str:
        values = ", ".join(["%s"] * len(columns))
        return (
            f"INSERT INTO {self.quoted_table(place)} ({self.names(columns)}) VALUES ({values}) ON CONFLICT DO NOTHING"
        )

    def on_conflict(self, columns: Sequence[str], keys: Sequence[str]) -> str:
        names = [self.quoted(name) for name in columns if name not in keys]
        does = f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in names)}" if names else "NOTHING"
        return f" ON CONFLICT ({self.names(keys)}) DO {does}"

    def upsert(self, connection: Any, place: Place, columns: Sequence[StoredColumn], rows: pa.Table) -> None:
        names = [column.name for column in columns]
        keys = [column.name for column in columns if column.is_key]
        sql = (
            f"INSERT INTO {self.quoted_table(place)} ({self.names(names)}) SELECT * FROM {_arrays(columns)}"
            f"{self.on_conflict(names, keys)}"
        )
        self._run_sliced(connection, sql, rows)

    def delete(self, connection: Any, place: Place, keys: Sequence[StoredColumn], rows: pa.Table) -> None:
        given = ", ".join(f"k{number}" for number in range(len(keys)))
        on = " AND ".join(f"t.{self.quoted(key.name)} = d.k{number}" for number, key in enumerate(keys))
        sql = f"DELETE FROM {self.quoted_table(place)} AS t USING {_arrays(keys)} AS d({given}) WHERE {on}"
        self._run_sliced(connection, sql, rows)

    def _run_sliced(self, connection: Any, sql: str, rows: pa.Table) -> None:
        run = self.runner(connection)
        for start in range(0, rows.num_rows, _MOST_ROWS):
            run(sql, [values_of(column) for column in rows.slice(start, _MOST_ROWS).columns])

    def load(
        self,
        connection: Any,
        stage: Place,
        columns: Sequence[StoredColumn],
        batches: Iterator[pa.RecordBatch],
        task: str,
    ) -> None:
        names = self.names([*(column.name for column in columns), IS_DELETE, TASK])
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {self.quoted_table(stage)} ({names}) FROM STDIN" % ()) as copy,
        ):
            for batch in batches:
                copy.write(copy_lines(batch, task))

    def delete_staged(self, place: Place, stage: Place, keys: Sequence[str], tasks: int) -> str:
        on = " AND ".join(f"t.{self.quoted(key)} = s.{self.quoted(key)}" for key in keys)
        return (
            f"DELETE FROM {self.quoted_table(place)} AS t USING {self.quoted_table(stage)} AS s WHERE {on} "
            f"AND s.{self.quoted(IS_DELETE)} AND {self.of_tasks(tasks, 's.')}"
        )

    def prepare_merge(self, run: Run, stage: Place) -> None:
        run(f"ANALYZE {self.quoted_table(stage)}")  # else the planner expects few rows

    def same_text(self, column: str) -> str:
        return f"{self.quoted(column)} = %s"


def _arrays(columns: Sequence[StoredColumn]) -> str:
    return f"unnest({', '.join(f'%s::{_TYPES[type(column.kind)]}[]' for column in columns)})"


def _column(
    name: str, type: str, base: str, modifier: int, needs: bool, not_null: bool, generated: bool, collation: str,
    exact: bool,
) -> TableColumn:  # fmt: skip
    size = scale = None
    if modifier >= 0 and base == "varchar":
        size = modifier - 4
    elif modifier >= 0 and base in ("timestamp", "timestamptz") and modifier < 6:
        size = modifier
    elif modifier >= 0 and base == "numeric":
        scale = (((modifier - 4) & 0x7FF) ^ 0x400) - 0x400  # 11 bits with a sign
    return TableColumn(name, type, base, size, scale, needs, not_null, generated, collation, exact, False, type)
