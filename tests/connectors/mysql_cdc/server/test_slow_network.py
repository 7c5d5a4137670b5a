"""A slow network that stalls and loses connections: the same rows, only later."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.proxy import Proxy
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, Writers, apply, options, read, reader, table_rows
from tests.connectors.mysql_cdc.test_exactness import create


@pytest.fixture(scope="module", params=SERVERS_IN_GRID)
def mysql(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with request.param(fast=True) as server:
        yield server


class Task:
    """Runs a failed task again like Spark: up to four times."""

    def __init__(self) -> None:
        self.failures = 0

    def read(self, stream: Any, partition: Any) -> list[tuple[Any, ...]]:
        for attempt in range(4):
            try:
                return read(stream, partition)
            except (pymysql.err.MySQLError, BacklogError, OSError):
                self.failures += 1
                discard_rewind_log()
                if attempt == 3:
                    raise
        raise AssertionError("the loop returns or raises")


@pytest.mark.slow
def test_a_slow_network_that_is_cut_loses_and_repeats_no_row(mysql: MySQLServer) -> None:
    table = "exact.slow"
    create(mysql, table)
    mysql.execute(f"ALTER TABLE {table} MODIFY v VARCHAR(2000)")
    mysql.execute(f"UPDATE {table} SET v = REPEAT('x', 1500)")
    chance = random.Random(3)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    task = Task()
    cuts = 0
    with Proxy(mysql.port, bytes_per_second=2_000_000, stall_s=0.2) as proxy, Writers(mysql, table, 3, threads=2):
        stream = reader(options(mysql, table, chunkSize=40, port=proxy.port))
        offset = stream.initialOffset()
        batches = 0
        while batches < 12:
            if chance.random() < 0.4:
                cuts += proxy.cut()
            end = stream.latestOffset(offset, ReadMaxRows(90))
            if end is offset:
                time.sleep(0.05)
                continue
            for partition in stream.partitions(offset, end):
                misfits += apply(state, task.read(stream, partition))
            offset = end
            batches += 1
        assert proxy.connections > 4
    assert cuts > 0
    assert not offset["isProcessingBacklog"]
    # What is left, without the proxy: the position in the log is one that any connection can begin at.
    direct = reader(options(mysql, table))
    while (end := direct.latestOffset(offset, ReadMaxRows(10**6))) is not offset:
        for partition in direct.partitions(offset, end):
            misfits += apply(state, read(direct, partition))
        offset = end
    assert misfits == []
    assert state == table_rows(mysql, table)


def test_a_server_that_is_gone_for_good_ends_the_query_with_its_address(mysql: MySQLServer) -> None:
    table = "exact.silent"
    create(mysql, table)
    with Proxy(mysql.port, bytes_per_second=10_000_000, stall_s=0) as proxy:
        stream = reader(options(mysql, table, port=proxy.port, **{"connect.backoff": "10 ms"}))
        offset = stream.initialOffset()
        port = proxy.port
    with pytest.raises(BacklogError, match=f"127.0.0.1:{port} cannot be reached"):
        stream.latestOffset(offset, ReadMaxRows(10))
