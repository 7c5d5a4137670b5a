"""Changes that a server does not log, session limits, and statements in other character sets than UTF-8."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.schema.ddl.evolution import StartAgain
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.server import unlogged
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError, SettingError
from servers.mariadb import MARIADB_SERVERS
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import EVERY_MARIADB, is_mariadb, is_mysql_8, options, reader, take

SECRET = "correct-horse-battery"


def drained(stream: Any, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """All that there is now."""
    rows: list[tuple[Any, ...]] = []
    while True:
        end, more = take(stream, start)
        if end is start:
            return start, rows
        start, rows = end, rows + more


# -- databases and replicas --------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "option", "value", "is_refused"),
    [
        (MySQLServer, "binlog-ignore-db", "captured", True),
        (MySQLServer, "binlog-do-db", "other", True),
        (MARIADB_SERVERS[0], "binlog-ignore-db", "captured", True),
        (MARIADB_SERVERS[0], "binlog-ignore-db", "other", False),
        (MARIADB_SERVERS[0], "binlog-do-db", "captured", False),
    ],
)
def test_a_database_that_is_not_logged_is_refused(
    kind: type[MySQLServer], option: str, value: str, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with kind(fast=True, options={option: value}) as server:
        server.execute("CREATE DATABASE captured")
        server.execute("CREATE TABLE captured.t (id INT PRIMARY KEY)")
        if is_refused:
            with pytest.raises(SettingError, match=f"{option} = '{value}'.*database 'captured'.*Start the server"):
                check(options(server, "captured.t"))
            return
        assert check(options(server, "captured.t"))[0].key == ("id",)
        assert "is not seen if it is run from a default database that is not logged" in caplog.text


@pytest.mark.parametrize(
    ("status", "runs"), [("ON", True), ("OFF", False), ("1", True), ("2", True), ("0", False), ("", False)]
)
def test_a_mariadb_that_starts_is_no_replica(status: str, runs: bool) -> None:
    assert unlogged.is_on(status) == runs


@pytest.mark.process
@pytest.mark.parametrize("kind", [MySQLServer, MARIADB_SERVERS[0]])
def test_a_replica_that_does_not_log_what_it_replicates_is_refused(kind: type[MySQLServer]) -> None:
    with kind(fast=True, options={"log-slave-updates": "OFF"}) as server:
        server.execute("CREATE DATABASE captured")
        server.execute("CREATE TABLE captured.t (id INT PRIMARY KEY)")
        assert check(options(server, "captured.t"))[0].key == ("id",), "it is nobody's replica"
        source, role = (
            ("MASTER", "MASTER") if is_mariadb(server) or is_mysql_8(server) else ("REPLICATION SOURCE", "SOURCE")
        )
        server.execute(f"CHANGE {source} TO {role}_HOST = '127.0.0.1', {role}_PORT = 9, {role}_USER = 'root'")
        with pytest.raises(SettingError, match=r"log_slave_updates = 'OFF'.*replica.*Set log_slave_updates=ON"):
            check(options(server, "captured.t"))
        if is_mariadb(server):
            # A user who may not be told of replicas sees one that runs.
            server.execute(f"CREATE USER reader IDENTIFIED BY '{SECRET}'")
            server.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader")
            server.execute("START SLAVE")
            with pytest.raises(SettingError, match="log_slave_updates"):
                check(options(server, "captured.t", user="reader", password=SECRET))
            server.execute("STOP SLAVE")


# -- foreign keys ------------------------------------------------------------------------------------------


@pytest.fixture
def table(mysql: MySQLServer) -> Iterator[str]:
    mysql.execute("DROP DATABASE IF EXISTS unlogged")
    mysql.execute("CREATE DATABASE unlogged CHARACTER SET utf8mb4")
    mysql.execute("CREATE TABLE unlogged.t (id INT PRIMARY KEY, v TEXT)")
    mysql.execute("INSERT INTO unlogged.t VALUES " + ",".join(f"({i}, 'v')" for i in range(50)))
    yield "unlogged.t"
    mysql.execute("DROP DATABASE unlogged")


@pytest.mark.parametrize(
    ("rules", "is_refused"),
    [
        ("ON DELETE CASCADE", True),
        ("ON DELETE RESTRICT ON UPDATE SET NULL", True),
        ("ON DELETE RESTRICT", False),
        ("", False),
    ],
)
def test_cascades_are_seen_with_the_least_rights(mysql: MySQLServer, table: str, rules: str, is_refused: bool) -> None:
    mysql.execute(
        "CREATE TABLE unlogged.`of ``t` (id INT PRIMARY KEY, `p)` INT COMMENT 'x\\n CONSTRAINT ON DELETE CASCADE', "
        f"c INT, CONSTRAINT `its ``parent` FOREIGN KEY (`p)`) REFERENCES t (id) {rules})"
    )
    mysql.execute(f"CREATE USER least IDENTIFIED BY '{SECRET}'")
    try:
        mysql.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO least")
        given = options(mysql, "unlogged.of `t", user="least", password=SECRET)
        if not is_refused:
            assert check(given)[0].key == ("id",)
            return
        with pytest.raises(BacklogError, match=r"Foreign key its `parent of unlogged\.of `t to t cascades"):
            check(given)
    finally:
        mysql.execute("DROP USER least")
        mysql.execute("DROP TABLE unlogged.`of ``t`")


def test_a_view_is_refused(mysql: MySQLServer, table: str) -> None:
    mysql.execute("CREATE VIEW unlogged.seen AS SELECT * FROM unlogged.t")
    with pytest.raises(BacklogError, match=r"unlogged\.seen is a view.*Name a table"):
        check(options(mysql, "unlogged.seen"))


# -- limits of sessions ------------------------------------------------------------------------------------


@contextlib.contextmanager
def settings(server: MySQLServer, values: dict[str, object]) -> Iterator[None]:
    before = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in values}
    for name, value in values.items():
        server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for name, value in before.items():
            server.execute(f"SET GLOBAL {name} = {value}")


@pytest.mark.parametrize("columns", ["id INT PRIMARY KEY, v TEXT", "id INT PRIMARY KEY, v INT", "id INT, v INT"])
def test_limits_of_the_server_s_sessions_do_not_hold(mysql: MySQLServer, table: str, columns: str) -> None:
    mysql.execute(f"CREATE TABLE unlogged.limited ({columns})")
    mysql.execute("INSERT INTO unlogged.limited SELECT id, id FROM unlogged.t")
    limits: dict[str, object] = {"sql_select_limit": 10, "max_join_size": 5, "wait_timeout": 1}
    limits |= {"max_statement_time": 0.001} if is_mariadb(mysql) else {"max_execution_time": 1}
    with settings(mysql, limits), worker_connection_closed():
        given = options(mysql, "unlogged.limited")
        stream = reader(given)
        _, rows = drained(stream, stream.initialOffset())
    assert sorted(row[0] for row in rows) == list(range(50))


@contextlib.contextmanager
def worker_connection_closed() -> Iterator[None]:
    """With none that was opened before, nor kept for later."""
    forget()
    yield
    forget()


def forget() -> None:
    from backlog_spark.connectors.mysql_cdc.server import worker_connection as workers

    for connection in workers._idle.values():
        connection.close()
    workers._idle.clear()


def test_a_connection_that_is_lost_says_so(mysql: MySQLServer, table: str) -> None:
    mysql.execute("CREATE TABLE unlogged.large (id INT PRIMARY KEY, v LONGTEXT)")
    mysql.execute("INSERT INTO unlogged.large SELECT id, REPEAT('x', 2000000) FROM unlogged.t")
    stream = reader(options(mysql, "unlogged.large"))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(1000))
    (partition, *_) = stream.partitions(start, end)
    read = stream.read(partition)
    next(read)
    ((number,),) = mysql.execute(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE INFO LIKE '%unlogged%large%' AND ID <> CONNECTION_ID()"
    )
    mysql.execute(f"KILL {number}")
    with pytest.raises(BacklogError, match=rf"127\.0\.0\.1:{mysql.port} was lost while .*unlogged\.large.*reads the"):
        list(read)


# -- statements of other clients ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "follows"),
    [
        ("TRUNCATE TABLE `Bücher`", False),
        ("DROP TABLE `Bücher`", False),
        ("RENAME TABLE `Bücher` TO x, neu TO `Bücher`", True),
        ("ALTER TABLE `Bücher` MODIFY a INT AFTER b", True),
    ],
)
@pytest.mark.parametrize("charset", ["latin1", "gbk"])
def test_statements_in_the_character_set_of_their_client(
    nameless: MySQLServer, statement: str, follows: bool, charset: str
) -> None:
    name = "Bücher" if charset == "latin1" else "書"
    nameless.execute("DROP DATABASE IF EXISTS unlogged")
    nameless.execute("CREATE DATABASE unlogged CHARACTER SET utf8mb4")
    for each in (name, "neu"):
        nameless.execute(f"CREATE TABLE unlogged.`{each}` (id INT PRIMARY KEY, a INT, b INT)")
    nameless.execute(f"INSERT INTO unlogged.`{name}` VALUES (1, 10, 20)")
    stream = reader(options(nameless, f"unlogged.{name}", tableEvents="fail", tableSwap="follow"))
    start, rows = drained(stream, stream.initialOffset())
    assert [row[:3] for row in rows] == [(1, 10, 20)]
    as_client(nameless, charset, [statement.replace("Bücher", name)])
    if not follows:
        with pytest.raises(SchemaChanged, match=f"table unlogged.{name} was changed by"):
            drained(stream, start)
        return
    nameless.execute(f"INSERT INTO unlogged.`{name}` (id, a, b) VALUES (3, 30, 40)")
    assert [row[:3] for row in drained(stream, start)[1]] == [(3, 30, 40)]


def as_client(server: MySQLServer, charset: str, statements: Sequence[str]) -> None:
    connection = server.connect(charset=charset, database="unlogged")
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("nameless", [EVERY_MARIADB[0]], indirect=True)
@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE .t DROP a, ADD c INT", "TRUNCATE .t", "TRUNCATE TABLE . t"],
)
def test_a_name_with_a_leading_dot_is_of_the_sessions_database(nameless: MySQLServer, statement: str) -> None:
    """MariaDB takes it, and logs it as it was written."""
    nameless.execute("DROP DATABASE IF EXISTS unlogged")
    nameless.execute("CREATE DATABASE unlogged")
    nameless.execute("CREATE TABLE unlogged.t (id INT PRIMARY KEY, a INT, b INT)")
    nameless.execute("INSERT INTO unlogged.t VALUES (1, 10, 20)")
    stream = reader(options(nameless, "unlogged.t", tableEvents="fail"))
    start, _ = drained(stream, stream.initialOffset())
    as_client(nameless, "utf8mb4", [statement, "REPLACE INTO t VALUES (1, 30, 40)"])
    if not statement.startswith("ALTER"):
        with pytest.raises(SchemaChanged, match=r"table unlogged\.t was changed by"):
            drained(stream, start)
        return
    with pytest.raises(StartAgain):  # the table has other columns than the stream was declared with
        drained(stream, start)
    again = reader(options(nameless, "unlogged.t"))
    assert [row[:3] for row in drained(again, start)[1]] == [(1, 20, None), (1, 30, 40)]


# -- transactions in two phases ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["initial", "latest"])
def test_a_stream_does_not_begin_between_prepare_and_commit(
    mysql: MySQLServer, table: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlogged, "_PREPARED_S", 0.5)
    as_client(
        mysql,
        "utf8mb4",
        ["XA START 'one'", "INSERT INTO t VALUES (100, 'x')", "XA END 'one'", "XA PREPARE 'one'"],
    )
    stream = reader(options(mysql, table, **{"startup.mode": mode}))
    try:
        with pytest.raises(BacklogError, match=r"XA transactions.*'one'.*XA RECOVER"):
            drained(stream, stream.initialOffset())
    finally:
        as_client(mysql, "utf8mb4", ["XA COMMIT 'one'"])
    start, rows = drained(stream, stream.initialOffset())
    assert len(rows) == (51 if mode == "initial" else 0)
    mysql.execute("DELETE FROM unlogged.t WHERE id = 100")
    assert [row[0] for row in drained(stream, start)[1]] == [100]


def test_of_transactions_in_two_phases_that_come_and_go_it_warns(
    mysql: MySQLServer, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unlogged, "_PREPARED_S", 0.5)
    seen = iter(range(1000))
    monkeypatch.setattr(unlogged, "_prepared", lambda _: {str(next(seen))})
    stream = reader(options(mysql, table))
    assert len(drained(stream, stream.initialOffset())[1]) == 50
    assert "always has XA transactions" in caplog.text


def test_without_the_right_to_be_told_of_them_it_warns(
    mysql: MySQLServer, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    as_client(mysql, "utf8mb4", ["XA START 'two'", "XA END 'two'", "XA PREPARE 'two'", "XA ROLLBACK 'two'"])
    mysql.execute(f"CREATE USER least IDENTIFIED BY '{SECRET}'")
    try:
        mysql.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO least")
        stream = reader(options(mysql, table, user="least", password=SECRET))
        assert len(drained(stream, stream.initialOffset())[1]) == 50
    finally:
        mysql.execute("DROP USER least")
    assert ("XA_RECOVER_ADMIN" in caplog.text) is not is_mariadb(mysql), "MariaDB tells everybody"
