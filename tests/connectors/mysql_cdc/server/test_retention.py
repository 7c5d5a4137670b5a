"""The source warns if the server may purge the binary log before the end of the snapshot."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.connection import connect
from backlog_spark.connectors.mysql_cdc.server.retention import Retention, kept_ms
from backlog_spark.errors import BacklogError
from tests.connectors.mysql_cdc.replay import forget_log, options, reader

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

HOUR = 3_600_000


@pytest.fixture
def table(mysql: MySQLServer) -> str:
    mysql.execute("CREATE DATABASE IF NOT EXISTS kept")
    mysql.execute("DROP TABLE IF EXISTS kept.t")
    mysql.execute("CREATE TABLE kept.t (id INT PRIMARY KEY)")
    mysql.execute(f"INSERT INTO kept.t VALUES {', '.join(f'({n})' for n in range(100))}")
    return "kept.t"


def test_a_warning_comes_in_time(mysql: MySQLServer, table: str, caplog: pytest.LogCaptureFixture) -> None:
    given = options(mysql, table)
    stream = reader(given)
    first = replace(Offset.from_json(stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))), total=100)
    began = first.ranges[0].at_ms
    before = mysql.execute("SELECT @@global.binlog_expire_logs_seconds")[0][0]
    caplog.set_level(logging.WARNING)

    def warnings() -> list[str]:
        # Threads of other libraries may have something to say, too.
        return [record.getMessage() for record in caplog.records if ".connectors.mysql_cdc" in record.name]

    try:
        with connect(MySqlOptions.parse(given)) as connection:
            for seconds, milliseconds in ((0, None), (7200, 2 * HOUR)):
                mysql.execute(f"SET GLOBAL binlog_expire_logs_seconds = {seconds}")
                assert kept_ms(connection) == milliseconds
            retention = Retention(MySqlOptions.parse(given))
            retention.look(connection, first, began + HOUR / 10)  # a fifth is done: half an hour in all
            assert not warnings()
            retention.look(connection, first, began + HOUR / 10 + 59_000)
            assert not warnings()
            retention.look(connection, first, began + HOUR / 4)  # an hour and a quarter in all
            assert len(warnings()) == 1
            for part in ("15 min", "about 75 min", "2 h", "binlog_expire_logs_seconds"):
                assert part in warnings()[0]
            retention.look(connection, first, began + HOUR)
            assert len(warnings()) == 1, "once"
            mysql.execute("SET GLOBAL binlog_expire_logs_seconds = 0")
            Retention(MySqlOptions.parse(given)).look(connection, first, began + 1000 * HOUR)
            assert len(warnings()) == 1, "a log that is kept for ever"
    finally:
        mysql.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")


def test_a_purged_log_ends_the_snapshot_early(mysql: MySQLServer, table: str) -> None:
    stream = reader(options(mysql, table))
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    mysql.execute(f"INSERT INTO {table} VALUES (1000)")
    forget_log(mysql)
    later = reader(options(mysql, table))
    later._checked_start = True  # as a query that runs on
    with pytest.raises(BacklogError, match="purged"):
        later.latestOffset(offset, ReadMaxRows(20))
