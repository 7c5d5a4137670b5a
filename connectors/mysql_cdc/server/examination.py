"""Looks at server, user and tables before anything starts, and reports all that would fail at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection

from backlog_spark.common.durations import format_duration
from backlog_spark.common.table_names import TableName
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.examination import MOST_COUNTED, Examination, Finding, FoundTable, Severity, shown_rows

from ..options import MySqlOptions
from ..output.rows import output_of
from ..schema.table import TableSchema
from ..schema.types import kind_of
from .connection import ACCESS_DENIED, connect, is_mariadb, query, text
from .mysql import check_tables, find_tables, load_schema, server_problems
from .replica import check_snapshot_server
from .retention import kept_ms

__all__ = ["examine"]

# What docs/benchmarks.md measured with two cores, rounded down: for a rough estimate only.
_ROWS_PER_S = 100_000
_BYTES_PER_S = 30 << 20
_WARN_FROM = 0.5  # of the time that the log is kept
_SIZES = """
SELECT TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
# The server's guess of a small table's rows may be old, or far off.
_FEW = f"SELECT 1 FROM {{}} LIMIT {MOST_COUNTED + 1}"


def examine(options: Mapping[str, str]) -> Examination:
    """Look at the server, the user's rights and the tables that the options ask for. Reads no rows.

    Raises
    ------
    BacklogError
        The server cannot be reached, or an option is wrong.
    """
    parsed = MySqlOptions.parse(options)
    with connect(parsed, at_once=True) as connection:
        findings = list(_of_server(connection, parsed))
        has_log = text(query(connection, "SELECT @@global.log_bin")[0][0]) == "1"
        tables, of_tables = _tables(connection, parsed)
        findings += of_tables
        found = tuple(_described(connection, schema) for schema in tables)
        kept = kept_ms(connection) if has_log else None
        first = (
            (_of_time(found, kept, is_staged=parsed.may_stage),) if parsed.has_snapshot and found and has_log else ()
        )
    return Examination(tuple(findings), found, kept, first)


def _of_server(connection: Connection[Any], options: MySqlOptions) -> Iterator[Finding]:
    version = text(query(connection, "SELECT VERSION()")[0][0])
    yield Finding(Severity.OK, "server", f"{options.host}:{options.port} answers: {version}.")
    problems = list(server_problems(connection, options))
    yield from map(_error, problems)
    if not problems:
        yield Finding(Severity.OK, "server settings", "the binary log has whole rows and can be read exactly once.")
    yield from _of_rights(connection, options)


def _of_rights(connection: Connection[Any], options: MySqlOptions) -> Iterator[Finding]:
    """Whether the user may read the binary log. The server itself only tells when it is read."""
    right = "REPLICATION SLAVE"
    try:
        if is_mariadb(connection):
            grants = " ".join(text(row[0]).upper() for row in query(connection, "SHOW GRANTS"))
            may = any(name in grants for name in (right, "REPLICATION REPLICA", "ALL PRIVILEGES ON *.*"))
        else:
            query(connection, "SHOW SLAVE HOSTS")
            may = True
    except pymysql.err.ProgrammingError:  # MySQL 8.4 has only the new form
        may = _may(connection, "SHOW REPLICAS")
    except pymysql.err.OperationalError as error:
        if error.args[0] not in ACCESS_DENIED:
            raise
        may = False
    if may:
        yield Finding(Severity.OK, "rights", f"{options.user} may read the binary log.")
    else:
        yield Finding(
            Severity.ERROR, "rights", f"user {options.user!r} has no {right}: it cannot read the binary log.",
            f"GRANT {right}, REPLICATION CLIENT ON *.* TO {options.user!r}.",
        )  # fmt: skip


def _may(connection: Connection[Any], statement: str) -> bool:
    try:
        query(connection, statement)
    except pymysql.err.OperationalError as error:
        if error.args[0] in ACCESS_DENIED:
            return False
        raise
    return True


def _tables(connection: Connection[Any], options: MySqlOptions) -> tuple[list[TableSchema], list[Finding]]:
    findings: list[Finding] = []
    tables: list[TableSchema] = []
    try:
        names = find_tables(connection, options)
    except BacklogError as problem:
        return [], [_error(problem)]
    for name in names:
        try:
            schema = load_schema(connection, options, *name)
            query(connection, f"SELECT * FROM {schema.qualified} LIMIT 0")
        except pymysql.err.OperationalError as error:
            if error.args[0] not in ACCESS_DENIED:
                raise
            findings.append(
                Finding(
                    Severity.ERROR,
                    ".".join(name),
                    f"user {options.user!r} cannot read it: {error.args[1]}.",
                    "GRANT SELECT on the whole table: rows of the binary log have all its columns.",
                )
            )
            continue
        except BacklogError as problem:
            findings.append(_error(problem, ".".join(name)))
            continue
        tables.append(schema)
        if not schema.key:
            findings.append(
                Finding(
                    Severity.NOTE,
                    schema.name,
                    "it has no primary key: its snapshot is one batch, read by one task.",
                    "Name a unique key with messageKeyColumns, or a chunkKeyColumn.",
                )
            )
    if tables:
        try:
            check_tables(connection, options, tables)
            check_snapshot_server(options, connection, tables)
            output_of(options.format, options.metadata).check(tables)
        except BacklogError as problem:
            findings.append(_error(problem))
        except pymysql.err.OperationalError as error:
            if error.args[0] not in ACCESS_DENIED:  # the binary log's status, which is reported already
                raise
    return tables, findings


def _described(connection: Connection[Any], schema: TableSchema) -> FoundTable:
    guess, size = query(connection, _SIZES, (schema.database, schema.table))[0]
    counted = int(query(connection, f"SELECT COUNT(*) FROM ({_FEW.format(schema.qualified)}) AS few")[0][0])
    rows = counted if counted <= MOST_COUNTED else max(counted, int(guess or 0))
    columns = tuple((column.name, kind_of(column).spark(column).simpleString()) for column in schema.read)
    name = str(TableName(schema.database, schema.table))
    return FoundTable(name, schema.key, rows, None if size is None else int(size), columns)


def _of_time(tables: Sequence[FoundTable], kept: int | None, *, is_staged: bool) -> Finding:
    """The estimated time of the snapshot, compared with the time that the server keeps its binary log."""
    rows, size = sum(table.rows or 0 for table in tables), sum(table.size or 0 for table in tables)
    seconds = max(1, rows // _ROWS_PER_S, size // _BYTES_PER_S)
    about = f"{shown_rows(rows)}, {size >> 20:,} MiB: roughly {format_duration(seconds * 1000)} with two cores"
    if kept is None:
        return Finding(Severity.OK, "snapshot", f"{about}; the server keeps its binary log for ever.")
    told = f"{about}; the server keeps its binary log for {format_duration(kept)}"
    if is_staged and seconds * 1000 > _WARN_FROM * kept:
        return Finding(Severity.OK, "snapshot", f"{told}, and what it logs meanwhile is staged with the checkpoint.")
    hint = "Set binlog_expire_logs_seconds on the server to more than twice the snapshot's duration, or to 0."
    if seconds * 1000 > kept:
        return Finding(Severity.ERROR, "snapshot", f"{told}, which is shorter.", hint)
    if seconds * 1000 > _WARN_FROM * kept:
        return Finding(Severity.WARNING, "snapshot", f"{told}, which may be too short.", hint)
    return Finding(Severity.OK, "snapshot", f"{told}.")


def _error(problem: BacklogError, subject: str = "") -> Finding:
    if isinstance(problem, SettingError):
        subject = subject or problem.setting
    return Finding(Severity.ERROR, subject or "server", problem.problem, problem.hint)
