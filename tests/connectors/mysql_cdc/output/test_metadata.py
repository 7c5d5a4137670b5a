"""The values of the metadata columns, on real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.dump import open_dump
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.output.metadata import METADATA
from backlog_spark.connectors.mysql_cdc.source import MySqlCdcDataSource
from backlog_spark.errors import SettingError
from tests.connectors.mysql_cdc.replay import is_mariadb, options, reader, take

if TYPE_CHECKING:
    from servers.mysql import MySQLServer


@pytest.fixture
def table(mysql: MySQLServer) -> str:
    mysql.execute("CREATE DATABASE IF NOT EXISTS meta")
    mysql.execute("DROP TABLE IF EXISTS meta.t")
    mysql.execute("CREATE TABLE meta.t (id INT PRIMARY KEY, v INT)")
    mysql.execute("INSERT INTO meta.t VALUES (1, 1), (2, 2)")
    return "meta.t"


def last_gtid(server: MySQLServer) -> str:
    if is_mariadb(server):
        return str(server.execute("SELECT @@gtid_binlog_pos")[0][0])
    uuid = server.execute("SELECT @@server_uuid")[0][0]
    ranges = str(server.execute("SELECT @@gtid_executed")[0][0])
    return f"{uuid}:{ranges.rpartition('-')[2]}"


def test_all_of_them(mysql: MySQLServer, table: str) -> None:
    given = options(mysql, table, metadataColumns=" , ".join(reversed(METADATA)).upper())
    stream = reader(given)
    names = MySqlCdcDataSource(given).schema().names
    assert names == ["id", "v", *reversed(METADATA)]
    offset, rows = take(stream, stream.initialOffset())
    found: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in rows]
    same = {"_database": "meta", "_table": "t"}
    for row in found:
        assert row.items() >= {**same, "_change_type": "insert", "_is_snapshot": True, "_gtid": None}.items()
        assert row["_commit_seq"] == 0
    mysql.execute(f"UPDATE {table} SET v = 5 WHERE id = 1")
    gtids = [last_gtid(mysql)]
    mysql.execute(f"DELETE FROM {table} WHERE id = 2")
    gtids.append(last_gtid(mysql))
    _, rows = take(stream, offset)
    found = [dict(zip(names, row, strict=True)) for row in rows]
    assert [row["_change_type"] for row in found] == ["update_preimage", "update_postimage", "delete"]
    assert [row["_gtid"] for row in found] == [gtids[0], gtids[0], gtids[1]]
    assert all(row.items() >= {**same, "_is_snapshot": False}.items() for row in found)
    assert 0 < found[0]["_commit_seq"] < found[1]["_commit_seq"] < found[2]["_commit_seq"]


def test_one_or_none(mysql: MySQLServer, table: str) -> None:
    for text, names in (("_gtid", ["id", "v", "_gtid"]), ("", ["id", "v"])):
        given = options(mysql, table, metadataColumns=text)
        stream = reader(given)
        assert MySqlCdcDataSource(given).schema().names == names
        offset, rows = take(stream, stream.initialOffset())
        assert sorted(row[:2] for row in rows) == [(1, 1), (2, 2)]
        assert {len(row) for row in rows} == {len(names)}
        mysql.execute(f"UPDATE {table} SET v = 1 - v WHERE id = 1")
        assert [row[0] for row in take(stream, offset)[1]] == [1, 1]
        mysql.execute(f"UPDATE {table} SET v = 1 WHERE id = 1")


def test_a_column_of_the_same_name_is_refused(mysql: MySQLServer, table: str) -> None:
    mysql.execute(f"ALTER TABLE {table} ADD COLUMN _Table INT")
    assert reader(options(mysql, table))
    with pytest.raises(SettingError, match="the table has a column '_table' itself"):
        reader(options(mysql, table, metadataColumns="_table"))


def test_the_log_is_read_under_ids_of_the_range() -> None:
    parsed = MySqlOptions.parse(
        {"host": "127.0.0.1", "user": "u", "table": "a.b", "serverId": "5400 - 5415"},
    )
    dumps = [open_dump(parsed, BinlogPosition("b.000001", 4)) for _ in range(200)]
    assert {dump._BinLogStreamReader__server_id for dump in dumps} == set(range(5400, 5416))
