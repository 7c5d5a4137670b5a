"""Refuses tables and servers with changes that are not written to the binary log: they would be lost.

Sources: MySQL Reference Manual, "Binary Logging Options and Variables", "SHOW CREATE TABLE", "XA Transaction States";
MariaDB Knowledge Base, "Binary Log Filters".
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from backlog_spark.errors import BacklogError, SettingError

from ..schema.table import TableSchema
from .connection import is_mariadb, query, text

__all__ = [
    "UPDATES_OF_REPLICA",
    "check_cascades",
    "check_databases",
    "check_ignored",
    "check_replica",
    "without_prepared",
]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_FOREIGN_KEYS = """
SELECT CONSTRAINT_NAME, REFERENCED_TABLE_NAME, DELETE_RULE, UPDATE_RULE
FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s
"""
_RULE = re.compile(r"ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)")
# A line of SHOW CREATE TABLE; no text in it begins a line this way. MariaDB 11.4 does not double a ` in the name.
_FOREIGN_KEY = re.compile(
    r"^\s*CONSTRAINT `(?P<name>.*?)` FOREIGN KEY \(.*\) REFERENCES (?P<parent>.*) \(.*\)"
    rf"(?P<rules>(?: {_RULE.pattern})*),?$",
    re.MULTILINE,
)
_UNSEEN = {"CASCADE", "SET NULL", "SET DEFAULT"}
UPDATES_OF_REPLICA = ("log_slave_updates", "log_replica_updates")
"""The old and the new name of the variable that makes a replica log what it replicates."""
# XA transactions that are prepared when a stream begins get this long to end.
_PREPARED_S, _LOOK_S = 10.0, 0.2
_NO_RIGHT = {1227, 1401}


def check_databases(status: Sequence[Any], databases: Sequence[str]) -> None:
    """Refuse a server that does not log the changes of a database.

    Parameters
    ----------
    status : sequence
        The row of ``SHOW MASTER STATUS``.
    databases : sequence of str
        The databases of the captured tables.

    Raises
    ------
    SettingError
        Names the server's option and the database.
    """
    only, never = ([name for name in text(value or "").split(",") if name] for value in status[2:4])
    for database in databases:
        for name, found, is_left_out in (
            ("binlog-do-db", only, bool(only) and database.lower() not in {each.lower() for each in only}),
            ("binlog-ignore-db", never, database.lower() in {each.lower() for each in never}),
        ):
            if is_left_out:
                raise SettingError(
                    name, ",".join(found), f"the server does not log changes of database {database!r}.",
                    f"Start the server with options that leave {database} in its binary log.",
                )  # fmt: skip
    if only or never:
        _log.warning(
            "The server logs %s: an ALTER TABLE, DROP or TRUNCATE of a captured table is not seen if it is run from "
            "a default database that is not logged.",
            f"{', '.join(only)} alone" if only else f"all databases but {', '.join(never)}",
        )


def check_ignored(connection: Connection[Any], pattern: str, tables: Sequence[TableSchema]) -> None:
    """Refuse a ``binlog.statement.ignore`` under which a statement may change a captured table unseen.

    Only what the user may see is checked: triggers need the privilege TRIGGER.

    Raises
    ------
    SettingError
        It matches a captured table, a view or a table with a trigger.
    """
    if not pattern:
        return
    captured = [schema.name for schema in tables]
    for what, names in (
        ("the captured table", captured),
        ("the view", _names(connection, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.VIEWS")),
        (
            "a table with triggers,",
            _names(connection, "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS"),
        ),
    ):
        # sys has triggers and views of its own.
        found = [name for name in names if re.fullmatch(pattern, name) and not name.startswith("sys.")]
        if found:
            raise SettingError(
                "binlog.statement.ignore", pattern,
                f"matches {what} {min(found)}: its statement-format changes may change captured rows unseen.",
                "Let it match only tables that are not captured, and have no triggers.",
            )  # fmt: skip


def _names(connection: Connection[Any], statement: str) -> list[str]:
    return [f"{text(database)}.{text(table)}" for database, table in query(connection, statement)]


def check_replica(connection: Connection[Any], setting: str) -> None:
    """Refuse a replica that does not log what it replicates, because its ``setting`` is off.

    Raises
    ------
    SettingError
        Names ``setting``, one of `UPDATES_OF_REPLICA`.
    """
    if is_replica(connection):
        raise SettingError(
            setting, "OFF", "the server is a replica and does not log the changes that it replicates.",
            f"Set {setting}=ON on it, or read from its primary.",
        )  # fmt: skip


def is_replica(connection: Connection[Any]) -> bool:
    """Whether the server replicates from another one, as far as its user may see that."""
    if not is_mariadb(connection):
        try:
            return bool(query(connection, "SHOW REPLICA STATUS"))
        except pymysql.err.ProgrammingError:  # before 8.0.22
            return bool(query(connection, "SHOW SLAVE STATUS"))
    running = query(connection, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slave_running', 'Slaves_running')")
    if any(is_on(text(value)) for _, value in running):
        return True
    try:
        return bool(query(connection, "SHOW ALL SLAVES STATUS"))
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _NO_RIGHT:
            raise
        return False  # only a user with SLAVE MONITOR sees a stopped replication


def is_on(status: str) -> bool:
    """Whether ``Slave_running`` or ``Slaves_running`` says so. Both are empty while MariaDB starts or shuts down."""
    return status.upper() not in ("OFF", "0", "")


def check_cascades(connection: Connection[Any], schema: TableSchema) -> None:
    """Refuse a table whose rows a foreign key changes together with rows of another table.

    Raises
    ------
    BacklogError
        Names the foreign key.
    """
    for constraint, parent, delete, update in _foreign_keys(connection, schema):
        if _UNSEEN & {delete, update}:
            raise BacklogError(
                f"Foreign key {constraint} of {schema.name} to {parent} cascades (ON DELETE {delete} ON UPDATE "
                f"{update}); the server does not write such changes of the child table to the binary log.",
                "Use ON DELETE RESTRICT ON UPDATE RESTRICT and change the rows by statements.",
            )


def _foreign_keys(connection: Connection[Any], schema: TableSchema) -> list[tuple[str, str, str, str]]:
    """Each foreign key: name, parent, and its rules on delete and on update."""
    try:
        created = text(query(connection, f"SHOW CREATE TABLE {schema.qualified}")[0][1])
    except pymysql.err.MySQLError as error:
        if error.args[0] not in (1142, 1143):
            raise
        # This shows the keys to a user with rights on single columns. To one who may read the whole table, some servers
        # show nothing here.
        rows = query(connection, _FOREIGN_KEYS, (schema.database, schema.table))
        return [(text(name), text(parent), text(delete), text(update)) for name, parent, delete, update in rows]
    found = []
    for key in _FOREIGN_KEY.finditer(created):
        rules = dict(_RULE.findall(key["rules"]))
        delete, update = (rules.get(event, "RESTRICT") for event in ("DELETE", "UPDATE"))
        found.append((key["name"].replace("``", "`"), key["parent"].replace("`", ""), delete, update))
    return found


def without_prepared(connection: Connection[Any], take: Callable[[], _T]) -> _T:
    """The result of ``take``, a log position, taken while no XA transaction is prepared.

    The rows of an XA transaction are logged where it is prepared, but take effect where it is committed, which may be
    after the position.

    Raises
    ------
    BacklogError
        An XA transaction has been prepared for 10 s. If there are always others, a warning is logged instead.
    """
    limit = time.monotonic() + _PREPARED_S
    lasting: set[str] | None = None
    while True:
        before = _prepared(connection)
        taken = take()
        if before is None:
            return taken
        found = before | (_prepared(connection) or set())
        if not found:
            return taken
        lasting = found if lasting is None else lasting & found
        if time.monotonic() > limit:
            break
        time.sleep(_LOOK_S)
    if lasting:
        raise BacklogError(
            f"The server has XA transactions that are prepared and not committed, such as {min(lasting)!r}: a stream "
            "that begins now would not have their rows.",
            "Commit them or roll them back (XA RECOVER lists them), then start the query again.",
        )
    _log.warning(
        "The server always has XA transactions. If one was prepared before the stream begins and is committed "
        "afterwards, its rows are not in the stream. Once the stream has begun, XA on a captured table is refused."
    )
    return taken


def _prepared(connection: Connection[Any]) -> set[str] | None:
    """Prepared XA transactions. None, with a warning, if the user may not see them."""
    try:
        return {text(row[3]) for row in query(connection, "XA RECOVER")}
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _NO_RIGHT:
            raise
    ever = query(connection, "SHOW GLOBAL STATUS LIKE 'Com_xa_prepare'")
    if ever and int(ever[0][1]):
        _log.warning(
            "The server has had XA transactions. If one was prepared before the stream begins and is committed "
            "afterwards, its rows are not in the stream. A user with XA_RECOVER_ADMIN can see such transactions."
        )
    return None
