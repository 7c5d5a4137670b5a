"""Statements and types of MySQL and MariaDB.

Source: MySQL Reference Manual, "INSERT ... ON DUPLICATE KEY UPDATE Statement", "Server SQL Modes", "Fractional Seconds
in Time Values"; MariaDB Knowledge Base, "Supported Character Sets and Collations".
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark.sql import types as st

from backlog_spark.common.requirements import missing
from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.columns import Index, Limit, StoredColumn, TableColumn
from backlog_spark.sinks.database.dialect import CONNECT_S, EXACT, IS_DELETE, LOCK_S, TASK, Dialect, Run
from backlog_spark.sinks.database.rows import rows_of, sliced
from backlog_spark.spi.registry import connector_module

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from backlog_spark.sinks.database.address import Account, Address, Place

__all__ = ["MySqlDialect"]

# A timestamp is UTC. A value that does not fit is an error: by default MySQL would cut it. READ COMMITTED locks the
# rows that a statement changes, and no gaps beside them.
_SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', foreign_key_checks = 1, "
    f"unique_checks = 1, innodb_lock_wait_timeout = {LOCK_S}, lock_wait_timeout = {LOCK_S}, autocommit = 0",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)
# A peer that is gone is found within 90 s, also while a long statement runs.
_KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))
# Client errors, and those of a server that ends connections: shutdown, KILL, idle for too long.
_LOST: Final = frozenset({0, 1040, 1053, 1077, 1152, 1159, 1161, 1184, 1317, 1927, 2002, 2003, 2006, 2013, 2055, 4031})
_TRANSIENT: Final = frozenset({1205, 1213})
_REJECTIONS: Final = frozenset({1048, 1264, 1364, 1366, 1406, 3819, 4025})
_DENIED: Final = frozenset({1044, 1045, 1049, 1130, 1142, 1143, 1227, 1370, 1698})
# A statement may have 1 MiB: the smallest limit that servers have by default.
_MOST_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 1 << 10
# A longer list of keys makes the optimizer read the whole table: range_optimizer_max_mem_size is 8 MiB by default.
_MOST_KEYS: Final = 1_000
_KEY_SIZE: Final = 255
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_TYPES: Final[Mapping[type[DataType], str]] = {
    st.BooleanType: "BOOLEAN",
    st.ByteType: "TINYINT",
    st.ShortType: "SMALLINT",
    st.IntegerType: "INT",
    st.LongType: "BIGINT",
    st.FloatType: "FLOAT",
    st.DoubleType: "DOUBLE",
    st.DateType: "DATE",
    st.TimestampType: "TIMESTAMP(6)",
    st.TimestampNTZType: "DATETIME(6)",
    st.BinaryType: "LONGBLOB",
}


class MySqlDialect(Dialect):
    """MySQL and MariaDB."""

    name = "MySQL"
    longest_name = 64
    packages = ("pymysql",)
    of_table = " ENGINE=InnoDB"
    begin_snapshot = (
        # The server waits longer than 60 s for a reader whose disk is slow.
        "SET SESSION net_write_timeout = 600",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    )
    do_not_wait = "SET SESSION lock_wait_timeout = 1"
    mark_columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("app_id", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"),
        ("table_name", "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"),
        ("batch_id", "BIGINT NOT NULL"),
        ("written_at", "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"),
    )

    # -- connections ----------------------------------------------------------------------------------------

    def connect(self, address: Address, account: Account, read_s: int) -> Any:
        from pymysql.converters import conversions

        # As of the source mysql_cdc: what an unverified server may get of the password.
        guarded = connector_module("mysql_cdc", "server.connection").ServerConnection
        options: dict[str, Any] = dict(
            login=account.login,
            host=address.host,
            port=address.port,
            user=account.user,
            password=account.password(address).encode(),  # PyMySQL takes a str for latin1
            database=address.database or None,
            charset="utf8mb4",
            connect_timeout=CONNECT_S,
            read_timeout=read_s,
            write_timeout=read_s,
            # str() has exponents, and a number with an exponent is a DOUBLE, which rounds.
            conv={**conversions, Decimal: lambda value, *_: f"{value:f}"},
            **account.login.tls(),
        )
        try:
            connection = guarded(**options)
        except BacklogError:
            raise
        except (struct.error, AssertionError, LookupError, TypeError, ValueError):
            raise BacklogError(f"What answers at {address} is no MySQL or MariaDB server.", "Check the url.") from None
        except RuntimeError as error:
            if "cryptography" not in str(error):
                raise
            raise missing(f"A login of user {account.user!r} without TLS", "cryptography") from None
        try:
            for option, value in _KEEP_ALIVE:
                connection._sock.setsockopt(socket.IPPROTO_TCP, option, value)
            run = self.runner(connection)
            for statement in _SESSION:
                run(statement)
        except BaseException:
            self.close(connection)
            raise
        return connection

    def stream(self, connection: Any, sql: str) -> Iterator[tuple[Any, ...]]:
        from pymysql.cursors import SSCursor

        cursor = connection.cursor(SSCursor)
        try:
            cursor.execute(sql, ())
            yield from cursor.fetchall_unbuffered()
        except BaseException:
            cursor.connection = None  # else it reads all other rows when it is freed
            self.close(connection)
            raise

    def close(self, connection: Any) -> None:
        connection._force_close()

    def is_error(self, error: BaseException) -> bool:
        import pymysql

        return isinstance(error, pymysql.MySQLError | OSError)

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, OSError) or _code(error) in _LOST

    def is_transient(self, error: BaseException) -> bool:
        return _code(error) in _TRANSIENT

    def is_denied(self, error: BaseException) -> bool:
        return _code(error) in _DENIED

    def is_rejection(self, error: BaseException) -> bool:
        return _code(error) in _REJECTIONS

    def checks(self, run: Run, place: Place) -> list[str]:
        # In MariaDB a name is unique in its table, in MySQL in its schema, and only MariaDB's view has the table.
        ((version,),) = run("SELECT VERSION()")
        found = run(_MARIADB_CHECKS if "mariadb" in str(version).lower() else _CHECKS, (place.schema, place.table))
        return [str(condition).replace("\\'", "'") for (condition,) in found]

    def text(self, error: BaseException) -> str:
        return f"{error.args[-1] if error.args else error} ({_code(error)})"

    # -- names and types ------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``").replace("%", "%%") + "`"

    def length(self, name: str) -> int:
        return len(name)

    def same_name(self, one: str, other: str) -> bool:
        return one.lower() == other.lower()

    def definition(self, kind: DataType, *, is_key: bool, collation: str) -> str | None:
        null = "NOT NULL" if is_key else "NULL"
        if isinstance(kind, st.StringType):
            size = f"VARCHAR({_KEY_SIZE})" if is_key else "LONGTEXT"
            return f"{size} CHARACTER SET utf8mb4 COLLATE {collation} {null}"
        if isinstance(kind, st.BinaryType) and is_key:
            return f"VARBINARY({_KEY_SIZE}) NOT NULL"
        if isinstance(kind, st.DecimalType):
            return f"DECIMAL({kind.precision},{kind.scale}) {null}"
        if isinstance(kind, st.TimestampType) and is_key:
            # Without a default, older servers set the first such column to the present time with each update.
            return f"{_TYPES[st.TimestampType]} NOT NULL DEFAULT '1970-01-02 00:00:00'"
        found = _TYPES.get(type(kind))
        return found and f"{found} {null}"

    def unfit(self, kind: DataType, column: TableColumn) -> str:
        base = column.base
        if isinstance(kind, EXACT):
            digits = kind.scale if isinstance(kind, st.DecimalType) else 0
            fits = (base in _INTEGERS and not digits) or (base == "decimal" and (column.scale or 0) >= digits)
            return "" if fits else f"DECIMAL with {digits} digits after the point{'' if digits else ', or an integer'}"
        if isinstance(kind, st.FloatType | st.DoubleType):
            floats = ["double"] if isinstance(kind, st.DoubleType) else ["float", "double"]
            return "" if column.type.removesuffix(" unsigned") in floats else " or ".join(floats)
        wanted = {
            st.BooleanType: ("tinyint",),
            st.StringType: _TEXTS,
            st.BinaryType: _BYTES,
            st.DateType: ("date",),
            st.TimestampType: ("timestamp",),
            st.TimestampNTZType: ("datetime",),
        }.get(type(kind), ())
        return "" if base in wanted else ", ".join(wanted) or "none"

    def limits(self, kind: DataType, column: TableColumn, *, is_key: bool) -> tuple[Limit, ...]:
        found = []
        if column.base in ("char", "varchar") and column.size is not None:
            found.append(Limit("longest", column.size))
        if column.base == "binary" and column.size is not None:
            found.append(Limit("length", column.size))
        if column.base in ("timestamp", "datetime") and column.size != 6:
            found.append(Limit("fraction", column.size or 0))
        if column.base == "char" or (is_key and column.pads and isinstance(kind, st.StringType)):
            found.append(Limit("blank"))
        return tuple(found)

    # -- what is there --------------------------------------------------------------------------------------

    def schema(self, run: Run) -> str:
        ((found,),) = run("SELECT DATABASE()")
        return str(found or "")

    def columns(self, run: Run, place: Place) -> list[TableColumn]:
        rows = run(_COLUMNS, (place.schema, place.table))
        pads = {collation: _pads(run, charset, collation) for *_, charset, collation in rows if charset is not None}
        return [_column(*row, pads=pads.get(row[-1], False)) for row in rows]

    def unique_indexes(self, run: Run, place: Place) -> list[Index]:
        parts: dict[str, list[str | None]] = {}
        for name, column, prefix in run(_INDEXES, (place.schema, place.table)):
            parts.setdefault(str(name), []).append(None if column is None or prefix is not None else str(column))
        return [
            Index(name, () if None in columns else tuple(column for column in columns if column is not None))
            for name, columns in parts.items()
        ]

    def text_collation(self, run: Run) -> str:
        there = {str(name) for (name,) in run("SELECT collation_name FROM information_schema.collations")}
        best = [name for name in ("utf8mb4_0900_bin", "utf8mb4_nopad_bin") if name in there]
        return next((name for name in best if not _pads(run, "utf8mb4", name)), "utf8mb4_bin")

    def check_table(self, run: Run, place: Place, keys: Sequence[str], indexes: Sequence[Index]) -> None:
        super().check_table(run, place, keys, indexes)
        for index in indexes:
            if not self._are_keys(index, keys):
                on = f" on {', '.join(index.columns)}" if index.columns else ""
                raise BacklogError(
                    f"The table {place} also has the unique index {index.name}{on}. {self.name}'s upsert would "
                    "change the row that has the same value there, which may be another one.",
                    f"Make it an index that is not unique: DROP INDEX `{index.name}` ON {place}, then CREATE INDEX.",
                )
        ((engine,),) = run(
            "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (place.schema, place.table),
        )
        if str(engine).lower() not in ("innodb", "rocksdb"):
            raise BacklogError(
                f"The table {place} has the engine {engine}, which has no transactions: so half a batch may stay.",
                f"Run ALTER TABLE {place} ENGINE=InnoDB.",
            )

    # -- statements -----------------------------------------------------------------------------------------

    def keep_or_insert(self, place: Place, columns: Sequence[str], key: str) -> str:
        values = ", ".join(["%s"] * len(columns))
        return (
            f"INSERT INTO {self.quoted_table(place)} ({self.names(columns)}) VALUES ({values}) "
            f"ON DUPLICATE KEY UPDATE {self.quoted(key)} = {self.quoted(key)}"
        )

    def on_conflict(self, columns: Sequence[str], keys: Sequence[str]) -> str:
        changed = [name for name in columns if name not in keys] or list(keys[:1])
        names = [self.quoted(name) for name in changed]
        return " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in names)

    def upsert(self, connection: Any, place: Place, columns: Sequence[StoredColumn], rows: pa.Table) -> None:
        names = [column.name for column in columns]
        keys = [column.name for column in columns if column.is_key]
        self._insert(connection, place, names, rows_of(rows), self.on_conflict(names, keys))

    def delete(self, connection: Any, place: Place, keys: Sequence[StoredColumn], rows: pa.Table) -> None:
        run = self.runner(connection)
        names = [self.quoted(key.name) for key in keys]
        # MariaDB uses no index for (a, b) IN ((1, 2), …).
        of_row = " AND ".join(f"{name} = %s" for name in names)
        for part in sliced(rows_of(rows), _MOST_KEYS):
            values = tuple(value for row in part for value in row)
            which = (
                f"{names[0]} IN ({', '.join(['%s'] * len(part))})"
                if len(names) == 1
                else " OR ".join([f"({of_row})"] * len(part))
            )
            run(f"DELETE FROM {self.quoted_table(place)} WHERE {which}", values)

    def load(
        self,
        connection: Any,
        stage: Place,
        columns: Sequence[StoredColumn],
        batches: Iterator[pa.RecordBatch],
        task: str,
    ) -> None:
        names = [*(column.name for column in columns), IS_DELETE, TASK]
        rows = ((*row, task) for batch in batches for row in rows_of(batch))
        self._insert(connection, stage, names, rows, "")

    def _insert(
        self, connection: Any, place: Place, names: Sequence[str], rows: Iterator[tuple[Any, ...]], end: str
    ) -> None:
        """Insert rows in statements of bounded size. The client library writes the values."""
        run = self.runner(connection)
        ((most,),) = run("SELECT @@max_allowed_packet")
        most = min(int(most), _MOST_BYTES) - _HEAD_BYTES
        begin = f"INSERT INTO {self.quoted_table(place)} ({self.names(names)}) VALUES "
        place_holders = f"({', '.join(['%s'] * len(names))})"
        texts: list[str] = []
        size = 0
        with connection.cursor() as cursor:

            def send() -> None:
                cursor.execute(begin % () + ",".join(texts) + end % ())

            for row in rows:
                text = cursor.mogrify(place_holders, row)
                length = len(text.encode("utf-8", "surrogateescape"))
                if texts and size + length > most:
                    send()
                    texts, size = [], 0
                texts.append(text)
                size += length + 1
            if texts:
                send()

    def delete_staged(self, place: Place, stage: Place, keys: Sequence[str], tasks: int) -> str:
        on = " AND ".join(f"t.{self.quoted(key)} = s.{self.quoted(key)}" for key in keys)
        # STRAIGHT_JOIN: the target is looked up by its keys. The server has no statistics of the new table.
        return (
            f"DELETE t FROM {self.quoted_table(stage)} AS s STRAIGHT_JOIN {self.quoted_table(place)} AS t ON {on} "
            f"WHERE s.{self.quoted(IS_DELETE)} AND {self.of_tasks(tasks, 's.')}"
        )

    def read_exactly(self, column: TableColumn) -> str:
        # The text of a FLOAT has six digits.
        name = super().read_exactly(column)
        return f"{name} * 1E0" if column.base == "float" else name

    def same_text(self, column: str) -> str:
        return f"CONVERT({self.quoted(column)} USING utf8mb4) COLLATE utf8mb4_bin = %s"


_COLUMNS: Final = """
SELECT column_name, column_type, data_type, character_maximum_length, datetime_precision, numeric_scale, is_nullable,
    column_default, extra, character_set_name, collation_name
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_INDEXES: Final = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""


_CHECKS: Final = """
SELECT c.check_clause FROM information_schema.check_constraints c
JOIN information_schema.table_constraints t USING (constraint_schema, constraint_name)
WHERE t.table_schema = %s AND t.table_name = %s AND t.constraint_type = 'CHECK' AND t.enforced = 'YES'
"""
_MARIADB_CHECKS: Final = """
SELECT check_clause FROM information_schema.check_constraints
WHERE constraint_schema = %s AND table_name = %s
"""


def _pads(run: Run, charset: str, collation: str) -> bool:
    """Whether 'a' and 'a ' are one key. The name does not tell: MariaDB's utf8mb4_0900_bin pads, MySQL's does not."""
    ((found,),) = run(f"SELECT CONVERT('a' USING {charset}) COLLATE {collation} = CONVERT('a ' USING {charset})")
    return bool(found)


def _code(error: BaseException) -> Any:
    return error.args[0] if error.args else None


def _column(
    name: str, type: Any, base: str, size: int | None, fraction: int | None, scale: int | None, nullable: str,
    default: Any, extra: str, charset: str | None, collation: str | None, *, pads: bool,
) -> TableColumn:  # fmt: skip
    text = type.decode() if isinstance(type, bytes) else str(type)
    kind, order = str(base).lower(), collation or ""
    fills_itself = "auto_increment" in extra.lower()
    is_text = charset is not None
    return TableColumn(
        name=str(name),
        type=text.lower(),
        base=kind,
        size=fraction if kind in ("timestamp", "datetime") else None if size is None else int(size),
        scale=None if scale is None else int(scale),
        needs_value=nullable == "NO" and default is None and not fills_itself and "GENERATED" not in extra.upper(),
        is_not_null=nullable == "NO",
        is_generated=bool(re.search(r"(VIRTUAL|STORED|PERSISTENT) GENERATED|GENERATED ALWAYS", extra.upper())),
        collation=order,
        compares_bytes=not is_text or order.endswith("_bin") or order == "binary",
        pads=pads,
        definition=f"{text} CHARACTER SET {charset} COLLATE {order}" if is_text else text,
    )
