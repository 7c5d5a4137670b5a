"""A replica that gives the rows of a snapshot, while its primary gives the binary log.

Rows that have not changed since the low watermark are the same on every server that has all transactions up to there.
Rows that have changed are replaced by images of the primary's log anyway. So a task only waits until the replica has
those transactions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.converters import escape_string
from pymysql.cursors import DictCursor

from backlog_spark.errors import BacklogError, SettingError

from ..options import MySqlOptions
from ..schema.table import TableSchema
from .connection import is_mariadb, query, text
from .mysql import connect, has_gtids, load_schema
from .watermark import NO_GTIDS, watermark
from .worker_connection import worker_connection

__all__ = ["check_snapshot_server", "rows_connection"]

_LIMIT_S: Final = 600
_SLICE_S: Final = 30
"""Of one statement that waits: connections give up after minutes without an answer."""

_OPTION: Final = "snapshot.host"
_FILTERS: Final = ("Do_DB", "Ignore_DB", "Do_Table", "Ignore_Table", "Wild_Do_Table", "Wild_Ignore_Table", "Rewrite_DB")


@contextlib.contextmanager
def rows_connection(options: MySqlOptions, low: str) -> Iterator[Connection[Any]]:
    """A worker's connection to the server that gives a snapshot's rows, once it has all transactions up to ``low``.

    Raises
    ------
    BacklogError
        The replica does not get there within ten minutes.
    """
    replica = options.of_snapshot
    with worker_connection(replica) as connection:
        if replica is not options:
            _wait(connection, replica, low)
        yield connection


def _wait(connection: Connection[Any], replica: MySqlOptions, low: str) -> None:
    if low == NO_GTIDS:
        return
    mark = watermark(low)
    gtids = str(mark.gtids)
    function = "MASTER_GTID_WAIT" if is_mariadb(connection) else "WAIT_FOR_EXECUTED_GTID_SET"
    # A worker's connection has no converters for arguments.
    statement = f"SELECT {function}('{escape_string(gtids)}', {_SLICE_S})"
    end = time.monotonic() + _LIMIT_S
    while gtids:
        if int(query(connection, statement)[0][0]) == 0:
            return
        if time.monotonic() > end:
            raise BacklogError(
                f"The replica {replica.host}:{replica.port} has not applied all transactions up to the snapshot's low "
                f"watermark within {_LIMIT_S // 60} minutes.",
                "Look at SHOW REPLICA STATUS there, or leave out snapshot.host.",
            )


def check_snapshot_server(options: MySqlOptions, primary: Connection[Any], tables: Sequence[TableSchema]) -> None:
    """Refuse a replica from which the snapshot cannot be read.

    Raises
    ------
    SettingError
        Names ``snapshot.host`` or the replica's filter.
    """
    if not options.snapshot_host:
        return

    def refused(problem: str, hint: str) -> SettingError:
        return SettingError(_OPTION, options.snapshot_host, problem, hint)

    if not is_mariadb(primary) and not has_gtids(primary):
        raise refused("needs GTIDs, which the primary does not write.", "Set gtid_mode=ON there, or leave it out.")
    for table in tables:
        if not table.key:
            raise refused(
                f"{table.name} has no primary key, so only the server of the log can give its rows.",
                "Leave it out, or name a unique key with messageKeyColumns.",
            )
    replica = options.of_snapshot
    with connect(replica, at_once=True) as connection:
        states = _states(connection)
        if not states:
            raise refused("is no replica.", "Name a server that replicates from the primary, or leave it out.")
        for state in states:
            threads = {name: value for name, value in state.items() if name.endswith(("_IO_Running", "_SQL_Running"))}
            if stopped := ", ".join(name for name, value in threads.items() if value == "No"):
                raise refused(f"does not replicate: {stopped} = No.", "START REPLICA there, or leave it out.")
            for name in _FILTERS:
                if value := text(state.get(f"Replicate_{name}") or ""):
                    raise refused(
                        f"leaves out changes: Replicate_{name} = {value}.", "Name a replica that has all of them."
                    )
        for table in tables:
            found = load_schema(connection, replica, table.database, table.table)
            if found.fingerprint() != table.fingerprint():
                raise refused(
                    f"{table.name} has other columns there than on the primary.",
                    "Wait until the replica has applied the primary's ALTER TABLE, or make the tables equal.",
                )


def _states(connection: Connection[Any]) -> list[Mapping[str, Any]]:
    """The rows of SHOW REPLICA STATUS, one for each primary."""
    with connection.cursor(DictCursor) as cursor:
        try:
            cursor.execute("SHOW ALL SLAVES STATUS" if is_mariadb(connection) else "SHOW REPLICA STATUS")
        except pymysql.err.ProgrammingError:  # MySQL before 8.0.22
            cursor.execute("SHOW SLAVE STATUS")
        return list(cursor.fetchall())
