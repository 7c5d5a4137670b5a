"""If something cannot be captured exactly, it is refused before a row is read, with setting, value and next step."""

from __future__ import annotations

import json
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.server import continuity
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.connectors.mysql_cdc.stream.reader import MySqlCdcStreamReader
from backlog_spark.errors import BacklogError, SettingError
from servers.mariadb import MariaDBServer
from servers.mysql import MySQLServer

from .replay import SERVERS, is_mariadb, options, read, reader

SECRET = "correct-horse-battery"
LIMIT = ReadMaxRows(1000)


@pytest.fixture(scope="module", params=SERVERS)
def own(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A server whose global variables these tests set; a table refused.t and users of all kinds of rights."""
    with request.param(fast=True) as server:
        server.execute("CREATE DATABASE refused")
        server.execute("CREATE TABLE refused.t (id INT PRIMARY KEY, v VARCHAR(20))")
        server.execute("INSERT INTO refused.t VALUES (1, 'a'), (2, 'b')")
        grants = {
            "enough": ("SELECT ON refused.t", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"),
            "columns": ("SELECT (id, v) ON refused.t", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"),
            "blind": ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*",),
            "writer": ("INSERT ON refused.t", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"),
            "no_client": ("SELECT ON refused.t", "REPLICATION SLAVE ON *.*"),
            "no_slave": ("SELECT ON refused.t", "REPLICATION CLIENT ON *.*"),
        }
        for user, rights in grants.items():
            server.execute(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")
            for right in rights:
                server.execute(f"GRANT {right} TO {user}")
        yield server


def as_user(server: MySQLServer, user: str, **more: object) -> dict[str, str]:
    return options(server, "refused.t", **{"user": user, "password": SECRET, **more})


def refusal(given: dict[str, str]) -> str:
    """The text of the refusal, which travels between processes and shows no password."""
    with pytest.raises(BacklogError) as caught:
        check(given)
    error = caught.value
    assert error.hint
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if given.get("password"):
        assert given["password"] not in str(error) + repr(error)
        assert error.__cause__ is None  # nor does a cause show what was sent
    return str(error)


@contextmanager
def variable(server: MySQLServer, name: str, *values: str) -> Iterator[None]:
    """Take a global variable through values, one after the other, and back the same way."""
    ((before,),) = server.execute(f"SELECT @@global.{name}")
    for value in values:
        server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        for value in (*reversed(values[:-1]), f"'{before}'" if isinstance(before, str) else str(before)):
            server.execute(f"SET GLOBAL {name} = {value}")


# -- options -----------------------------------------------------------------------------------------------

VALID = {"host": "h", "user": "u", "password": SECRET, "table": "shop.orders"}


@pytest.mark.parametrize(
    ("changed", "setting", "value", "step"),
    [
        ({"host": None}, "host", None, '.option("host"'),
        ({"user": None}, "user", None, '.option("user"'),
        ({"table": None}, "table", None, '.option("table"'),
        ({"host": ""}, "host", "", '.option("host"'),
        ({"table": "orders"}, "table", "orders", "shop.orders"),
        ({"table": ".orders"}, "table", ".orders", "shop.orders"),
        ({"table": "shop."}, "table", "shop.", "shop.orders"),
        ({"chunkSize": "0"}, "chunkSize", "0", ">= 1"),
        ({"chunkSize": "abc"}, "chunkSize", "abc", ">= 1"),
        ({"chunkSize": "1.5"}, "chunkSize", "1.5", ">= 1"),
        ({"distributionFactorLower": "-0.1"}, "distributionFactorLower", "-0.1", "0..1"),
        ({"distributionFactorLower": "1.1"}, "distributionFactorLower", "1.1", "0..1"),
        ({"distributionFactorUpper": "0.9"}, "distributionFactorUpper", "0.9", ">= 1"),
        ({"distributionFactorUpper": "nan"}, "distributionFactorUpper", "nan", ">= 1"),
        ({"distributionFactorUpper": "many"}, "distributionFactorUpper", "many", ">= 1"),
        ({"maxRowsPerBatch": "-1"}, "maxRowsPerBatch", "-1", ">= 1"),
        ({"port": "0"}, "port", "0", "1..65535"),
        ({"port": "65536"}, "port", "65536", "1..65535"),
        ({"startup.mode": "newest"}, "startup.mode", "newest", "latest"),
        ({"startup.mode": "timestamp"}, "startup.timestampMillis", None, "startup.mode=timestamp needs it"),
        ({"startup.timestampMillis": "5"}, "startup.timestampMillis", "5", "Set startup.mode=timestamp"),
        ({"startup.mode": "latest", "startup.file": "b.1"}, "startup.file", "b.1", "Set startup.mode=specific"),
        ({"startup.mode": "specific"}, "startup.mode", "specific", "either startup.file"),
        ({"startup.mode": "specific", "startup.file": "b.1", "startup.position": "3"}, "startup.position", "3", ">= 4"),
        ({"serverId": "5400"}, "serverId", "5400", "5400-5499"),
        ({"serverId": "5400-5410"}, "serverId", "5400-5410", "at least 16"),
        ({"serverId": "0-100"}, "serverId", "0-100", "from 1"),
        ({"serverId": "4294967200-4294967296"}, "serverId", "4294967200-4294967296", "4294967295"),
        ({"metadataColumns": "_op"}, "metadataColumns", "_op", "_change_type"),
        ({"metadataColumns": "_table,_TABLE"}, "metadataColumns", "_table,_TABLE", "Name each once"),
        ({"availableNowTarget": "end"}, "availableNowTarget", "end", "backlogEnd"),
        ({"interval": "5"}, "option interval of source mysql_cdc", "5", "30 seconds"),
        ({"interval": "soon"}, "option interval of source mysql_cdc", "soon", "30 seconds"),
    ],
)
def test_an_option_is_refused_with_its_name_its_value_and_what_to_write(
    changed: dict[str, str | None], setting: str, value: str | None, step: str
) -> None:
    given = {k: v for k, v in {**VALID, **changed}.items() if v is not None}
    with pytest.raises(SettingError) as caught:
        MySqlOptions.parse(given)
    assert (caught.value.setting.lower(), caught.value.value) == (setting.lower(), value)
    assert setting.lower() in str(caught.value).lower()
    assert repr(value) in str(caught.value)
    assert step in str(caught.value)
    assert SECRET not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"), [("chunksize_", "chunkSize"), ("maxRowPerBatch", "maxRowsPerBatch"), ("usr", "user")]
)
def test_an_unknown_option_is_refused_with_the_nearest_names(name: str, nearest: str) -> None:
    with pytest.raises(SettingError, match=f"{name} .*Did you mean .*{nearest}.*Options: host, port, user"):
        MySqlOptions.parse({**VALID, name: "1"})


@pytest.mark.parametrize("name", ["pasword", "passwd", "pwd", "Kennwort", "pw"])
def test_the_value_of_a_misspelt_password_is_not_shown(name: str) -> None:
    with pytest.raises(SettingError, match=name) as caught:
        MySqlOptions.parse({**VALID, name: "hunter2"})
    assert "hunter2" not in str(caught.value) + repr(caught.value) + repr(vars(caught.value))


def test_an_interval_during_backlog_below_the_interval_is_refused() -> None:
    with pytest.raises(SettingError) as caught:
        MySqlOptions.parse({**VALID, "interval": "10 s", "intervalDuringBacklog": "2 s"})
    for part in ("interval", "10 s", "intervalDuringBacklog", "2 s"):
        assert part in str(caught.value)


def test_the_password_is_in_no_text_of_the_options() -> None:
    parsed = MySqlOptions.parse(VALID)
    assert parsed.password == SECRET
    assert SECRET not in f"{parsed} {parsed!r}"


# -- server and user ---------------------------------------------------------------------------------------


def test_a_wrong_password_and_an_unknown_user_are_refused(own: MySQLServer) -> None:
    wrong = refusal(as_user(own, "enough", password="wrong-" + SECRET))
    unknown = refusal(as_user(own, "nobody"))
    for text, user in ((wrong, "enough"), (unknown, "nobody")):
        assert f"127.0.0.1:{own.port} refused user '{user}'" in text
        assert "Check the options user and password" in text


def test_a_port_on_which_nothing_listens_is_refused() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = refusal({**VALID, "host": "127.0.0.1", "port": str(port)})
    assert f"127.0.0.1:{port} cannot be reached" in text
    assert "host and port" in text


@pytest.mark.parametrize("table", ["refused.nothing", "nowhere.t"])
def test_a_table_that_does_not_exist_is_refused(own: MySQLServer, table: str) -> None:
    text = refusal(options(own, table))
    assert f"table = '{table}'" in text
    assert "GRANT SELECT" in text


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("binlog_row_image", ["MINIMAL"], "MINIMAL"),
        ("binlog_row_image", ["NOBLOB"], "NOBLOB"),
        ("binlog_format", ["STATEMENT"], "STATEMENT"),
        ("binlog_format", ["MIXED"], "MIXED"),
    ],
)
def test_a_server_variable_that_loses_changes_is_refused(
    own: MySQLServer, name: str, values: list[str], found: str
) -> None:
    refuses_variable(own, name, values, found)


@pytest.mark.parametrize("own", [MySQLServer], ids=["mysql-8.0"], indirect=True)
@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("binlog_order_commits", ["OFF"], "OFF"),
    ],
)
def test_a_variable_that_only_mysql_has_is_refused(own: MySQLServer, name: str, values: list[str], found: str) -> None:
    refuses_variable(own, name, values, found)


@pytest.mark.parametrize("own", [MySQLServer], ids=["mysql-8.0"], indirect=True)
@pytest.mark.parametrize("values", [["ON_PERMISSIVE"], ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]])
def test_without_gtids_the_user_must_be_allowed_to_flush(own: MySQLServer, values: list[str]) -> None:
    own.execute("CREATE TABLE IF NOT EXISTS refused.keyless (v INT)")
    started = reader(as_user(own, "enough"))
    offset = started.latestOffset(started.initialOffset(), ReadMaxRows(1))
    with variable(own, "gtid_mode", *values):
        text = refusal(as_user(own, "enough"))
        assert f"gtid_mode = '{values[-1]}'" in text
        assert "Set gtid_mode=ON on the server, or GRANT RELOAD ON *.* TO 'enough'" in text
        check(options(own, "refused.t"))  # root may
        assert "has no primary key" in refusal(options(own, "refused.keyless"))
        with pytest.raises(SettingError, match="made with GTIDs"):
            reader(options(own, "refused.t")).latestOffset(offset, ReadMaxRows(1))
        own.execute("GRANT RELOAD ON *.* TO enough")
        try:
            check(as_user(own, "enough"))
        finally:
            own.execute("REVOKE RELOAD ON *.* FROM enough")
    check(as_user(own, "enough"))


@pytest.mark.parametrize("own", [MariaDBServer], ids=[f"mariadb-{MariaDBServer.version}"], indirect=True)
@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("binlog_row_image", ["FULL_NODUP"], "FULL_NODUP"),
    ],
)
def test_a_variable_that_only_mariadb_has_is_refused(
    own: MySQLServer, name: str, values: list[str], found: str
) -> None:
    refuses_variable(own, name, values, found)


@pytest.mark.parametrize("own", [MariaDBServer], ids=[f"mariadb-{MariaDBServer.version}"], indirect=True)
def test_semi_synchronous_commits_that_wait_before_they_are_visible_are_refused(own: MySQLServer) -> None:
    with variable(own, "rpl_semi_sync_master_wait_point", "AFTER_SYNC"):
        check(options(own, "refused.t"))  # as long as it is off
        with variable(own, "rpl_semi_sync_master_enabled", "ON"):
            text = refusal(options(own, "refused.t"))
    assert "rpl_semi_sync_master_wait_point = 'AFTER_SYNC'" in text
    assert "Set rpl_semi_sync_master_wait_point=AFTER_COMMIT" in text


def refuses_variable(own: MySQLServer, name: str, values: list[str], found: str) -> None:
    with variable(own, name, *values):
        text = refusal(options(own, "refused.t"))
        assert f"{name} = '{found}'" in text
        assert f"Set {name}=" in text
    check(options(own, "refused.t"))


@pytest.mark.process
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_without_a_binary_log_is_refused(kind: type[MySQLServer]) -> None:
    with kind(options={"skip-log-bin": None}, fast=True) as server:
        server.execute("CREATE DATABASE plain")
        server.execute("CREATE TABLE plain.t (id INT PRIMARY KEY)")
        text = refusal(options(server, "plain.t"))
    assert "log_bin = 'OFF'" in text
    assert "log_bin" in text.split("Set ")[1]


# -- rights ------------------------------------------------------------------------------------------------


def test_the_least_rights_suffice_for_the_snapshot_and_the_binary_log(own: MySQLServer) -> None:
    for user in ("enough", "columns"):  # a key that may not be seen would make it a table without one
        assert check(as_user(own, user))[0].key == ("id",)
    stream = reader(as_user(own, "enough"))
    start = stream.initialOffset()
    live = stream.latestOffset(start, LIMIT)
    assert sorted(r[:3] for p in stream.partitions(start, live) for r in read(stream, p)) == [
        (1, "a", "insert"),
        (2, "b", "insert"),
    ]
    own.execute("INSERT INTO refused.t VALUES (3, 'c')")
    end = stream.latestOffset(live, LIMIT)
    assert [r[:3] for p in stream.partitions(live, end) for r in read(stream, p)] == [(3, "c", "insert")]
    assert SECRET not in json.dumps([start, live, end])
    own.execute("DELETE FROM refused.t WHERE id = 3")


def test_without_select_the_table_is_refused(own: MySQLServer) -> None:
    blind, writer = refusal(as_user(own, "blind")), refusal(as_user(own, "writer"))
    assert "refused.t" in blind
    assert "'blind'" in blind
    assert "'writer' cannot read refused.t" in writer
    assert "GRANT SELECT" in blind
    assert "GRANT SELECT" in writer


def test_a_lock_or_a_lost_connection_is_no_lack_of_rights(own: MySQLServer) -> None:
    (before,) = own.execute("SELECT @@global.lock_wait_timeout")[0]
    own.execute("SET GLOBAL lock_wait_timeout = 1")
    try:
        with own.connect() as connection, connection.cursor() as cursor:
            cursor.execute("LOCK TABLES refused.t WRITE")
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                check(as_user(own, "enough"))
    finally:
        own.execute(f"SET GLOBAL lock_wait_timeout = {before}")


def test_without_replication_client_the_position_is_refused(own: MySQLServer) -> None:
    text = refusal(as_user(own, "no_client"))
    assert "'no_client' may not read the binary log's position" in text
    assert "GRANT REPLICATION CLIENT" in text


def test_without_replication_slave_the_log_is_refused_when_it_is_read(own: MySQLServer) -> None:
    stream = reader(as_user(own, "no_slave"))
    live = stream.latestOffset(stream.initialOffset(), LIMIT)
    own.execute("UPDATE refused.t SET v = 'x' WHERE id = 1")
    own.execute("UPDATE refused.t SET v = 'a' WHERE id = 1")
    with pytest.raises(BacklogError, match=r"refused to send its binary log.*GRANT REPLICATION SLAVE"):
        stream.latestOffset(live, LIMIT)


# -- tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ("id INT PRIMARY KEY) ENGINE=MyISAM (", ["engine MyISAM", "ENGINE=InnoDB"]),
        ("id INT PRIMARY KEY) ENGINE=MEMORY (", ["engine MEMORY", "ENGINE=InnoDB"]),
        ("id DOUBLE PRIMARY KEY", ["primary key of refused.odd", "'id'", "double"]),
        ("id VARCHAR(9) CHARACTER SET gbk PRIMARY KEY", ["primary key of refused.odd", "'id'", "gbk", "utf8mb4"]),
        (
            "id INT PRIMARY KEY, p INT, CONSTRAINT of_t FOREIGN KEY (p) REFERENCES t (id) ON DELETE CASCADE",
            ["of_t", "ON DELETE CASCADE", "ON DELETE RESTRICT"],
        ),
        (
            "id INT PRIMARY KEY, p INT, CONSTRAINT of_t FOREIGN KEY (p) REFERENCES t (id) ON UPDATE SET NULL",
            ["of_t", "ON UPDATE SET NULL", "ON UPDATE RESTRICT"],
        ),
    ],
)
def test_a_table_that_cannot_be_captured_exactly_is_refused(own: MySQLServer, columns: str, parts: list[str]) -> None:
    own.execute(f"CREATE TABLE refused.odd ({columns.removesuffix(' (')}{'' if columns.endswith(' (') else ')'}")
    try:
        text = refusal(options(own, "refused.odd"))
    finally:
        own.execute("DROP TABLE refused.odd")
    for part in parts:
        assert part in text


def test_a_foreign_key_without_cascade_is_accepted(own: MySQLServer) -> None:
    own.execute("CREATE TABLE refused.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES refused.t (id))")
    assert check(options(own, "refused.child"))[0].key == ("id",)
    own.execute("DROP TABLE refused.child")


# -- checkpoints -------------------------------------------------------------------------------------------


def purge(server: MySQLServer, file: str) -> None:
    """Purge all binary logs before a file. MariaDB puts it off until the engine's own log no longer needs them."""
    deadline = time.monotonic() + 30
    while server.execute("SHOW BINARY LOGS")[0][0] != file:
        assert time.monotonic() < deadline
        server.execute(f"PURGE BINARY LOGS TO '{file}'")
        time.sleep(0.02)


def started(server: MySQLServer, table: str) -> MySqlCdcStreamReader:
    """A reader of a table that was made anew."""
    server.execute("CREATE DATABASE IF NOT EXISTS refused")
    server.execute(f"DROP TABLE IF EXISTS {table}")
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))")
    server.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    return reader(options(server, table))


def test_a_checkpoint_of_another_server_is_refused(own: MySQLServer) -> None:
    """The server does not replicate from that server, so it does not have its transactions."""
    stream = started(own, "refused.same")
    offset = stream.latestOffset(stream.initialOffset(), LIMIT)
    if is_mariadb(own):
        gtids, _, position = offset["start"].partition("@")
        theirs = gtids.replace(f"-{own.execute('SELECT @@server_id')[0][0]}-", "-99-")
        assert gtids != theirs
        offset = {
            **offset,
            "server": "mariadb-99",
            "start": f"{theirs}@{position}",
            "lows": [[f"{theirs}@{position}", 0]],
        }
        refused = f"about the server mariadb-99.*127.0.0.1:{own.port} lacks transactions.*new checkpoint"
    else:
        other = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        offset = {**offset, "server": other, "start": f"{other}:1-5", "lows": [[f"{other}:1-5", 0]]}
        refused = f"{other}.*127.0.0.1:{own.port}.*new checkpoint"
    with pytest.raises(BacklogError, match=refused):
        reader(options(own, "refused.same")).latestOffset(offset, LIMIT)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("Near.orders", r"There is near\.orders: .*by case.*Set it to near\.orders"),
        ("near.Orders", r"There is near\.orders: .*by case.*Set it to near\.orders"),
        ("near.order", r"no such table.*Is near\.orders meant"),
        ("near.invoices", r"no such table, or user 'root' may not see it\. Check the name"),
    ],
)
def test_a_name_that_is_nearly_right_is_told(own: MySQLServer, table: str, told: str) -> None:
    assert own.execute("SELECT @@lower_case_table_names")[0][0] == 0
    own.execute("CREATE DATABASE IF NOT EXISTS near")
    own.execute("CREATE TABLE IF NOT EXISTS near.orders (id INT PRIMARY KEY)")
    with pytest.raises(SettingError, match=told):
        check(options(own, table))
    given = options(own, "near.orders", tablePattern="Near[.].*")
    del given["table"]
    with pytest.raises(SettingError, match=r"matches none.*By upper and lower case apart it matches near\.orders"):
        check(given)


@pytest.mark.parametrize("alter", ["ADD COLUMN x INT", "DROP COLUMN v", "MODIFY v VARCHAR(21)", "RENAME COLUMN v TO w"])
@pytest.mark.parametrize("live", [False, True])
def test_columns_altered_while_the_query_was_stopped_are_refused(own: MySQLServer, alter: str, live: bool) -> None:
    stream = started(own, "refused.altered")
    offset = stream.initialOffset()
    if live:
        offset = stream.latestOffset(offset, LIMIT)
    own.execute(f"ALTER TABLE refused.altered {alter}")
    with pytest.raises(SchemaChanged, match=r"refused.*altered since the checkpoint.*new checkpoint"):
        reader(options(own, "refused.altered", schemaChange="fail")).latestOffset(offset, LIMIT)


@pytest.mark.parametrize("statement", ["PURGE", "RESET"])
@pytest.mark.parametrize("batches", [0, 1])
def test_a_log_that_is_gone_is_refused(
    own: MySQLServer, monkeypatch: pytest.MonkeyPatch, statement: str, batches: int
) -> None:
    """Resumed at a GTID set (no binary log batch yet) and at a position."""
    monkeypatch.setattr(continuity, "_EXECUTED_S", 0.2)
    stream = started(own, "refused.purged")
    offset = stream.latestOffset(stream.initialOffset(), LIMIT)
    own.execute("FLUSH BINARY LOGS")
    for _ in range(batches):
        own.execute("INSERT INTO refused.purged VALUES (2, 'b')")
        offset = stream.latestOffset(offset, LIMIT)
    own.execute("INSERT INTO refused.purged VALUES (3, 'c')")
    own.execute("FLUSH BINARY LOGS")
    if statement == "PURGE":
        file = own.binlog_end()[0]
        purge(own, file)
    else:
        is_new = own.own_executable() is not None and not is_mariadb(own)
        own.execute("RESET BINARY LOGS AND GTIDS" if is_new else "RESET MASTER")
    again = reader(options(own, "refused.purged"))
    with pytest.raises(BacklogError, match=r"(purged|reset|more GTIDs than the (master|source)).*new checkpoint"):
        again.latestOffset(offset, LIMIT)
