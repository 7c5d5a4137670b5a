"""A server whose log was reset, or that was restored from a backup, while a query was stopped or running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog import reading as binlog
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.records import TransactionEnd
from backlog_spark.connectors.mysql_cdc.server import continuity
from backlog_spark.connectors.mysql_cdc.server.continuity import _same_32_bits
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, is_mariadb, options, read, reader, take

from .test_unlogged import drained

TABLE = "again.t"
REFUSED = r"(reset or|no transaction's end|cannot read its binary log|more GTIDs).*[Ss]tart with a new checkpoint"


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with request.param(fast=True) as found:
        yield found


@pytest.fixture(autouse=True)
def does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuity, "_EXECUTED_S", 0.2)


def reset(server: MySQLServer) -> None:
    is_new = server.own_executable() is not None and not is_mariadb(server)
    server.execute("RESET BINARY LOGS AND GTIDS" if is_new else "RESET MASTER")


def change(server: MySQLServer, times: int, text: str = "v") -> None:
    for n in range(times):
        server.execute(f"UPDATE {TABLE} SET n = n + 1, v = '{text}{n % 10}' WHERE id = 1")


@pytest.fixture
def live(server: MySQLServer) -> tuple[MySQLServer, Any, Any, Any]:
    """A stream in the binary log phase: its reader, the offset before its last batch of the log, and that after it."""
    discard_rewind_log()
    server.execute("DROP DATABASE IF EXISTS again")
    reset(server)
    server.execute("CREATE DATABASE again")
    server.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(200))")
    server.execute(f"INSERT INTO {TABLE} VALUES (1, 0, ''), (2, 0, '')")
    stream = reader(options(server, TABLE))
    before, _ = take(stream, stream.initialOffset())
    change(server, 1)
    before, _ = take(stream, before)
    change(server, 2)
    after, rows = take(stream, before)
    assert len(rows) == 4
    return server, stream, before, after


def is_passed(server: MySQLServer, offset: Any) -> bool:
    file, pos = server.binlog_end()
    return file == offset["position"][0] and pos > offset["position"][1]


@pytest.mark.parametrize("text", ["v", "x" * 150], ids=["more transactions", "fewer"])
def test_another_log_that_has_passed_the_position_is_refused(live: Any, text: str) -> None:
    server, _, before, after = live
    reset(server)
    while not is_passed(server, after):
        change(server, 1, text)
    again = reader(options(server, TABLE))
    with pytest.raises(BacklogError, match=REFUSED):
        again.latestOffset(after, ReadMaxRows(10))
    # A batch that was planned and not committed is repeated before anything is planned.
    with pytest.raises(BacklogError, match=REFUSED):
        reader(options(server, TABLE)).partitions(before, after)


def test_a_position_in_another_log_with_other_transactions_before_it(live: Any) -> None:
    """The position is between two transactions there as well."""
    server, running, _, after = live
    if is_mariadb(server):
        return  # asked for the GTIDs at the position, whatever comes before: test_mariadb
    wanted = after["position"][1]

    def ends(comment: int) -> list[int]:
        reset(server)
        server.execute(f"ALTER TABLE {TABLE} COMMENT '{'c' * comment}'")
        change(server, 9)
        return [row[1] for row in server.execute("SHOW BINLOG EVENTS") if row[2] == "Gtid"]

    pos = next(pos for pos in reversed(ends(400)) if pos <= wanted)
    assert wanted in ends(400 + wanted - pos)
    with pytest.raises(BacklogError, match=r"reset or is another one: .* but the first one that.*new checkpoint"):
        reader(options(server, TABLE)).latestOffset(after, ReadMaxRows(10))
    with pytest.raises(BacklogError, match=r"it was read already.*reset or is another one.*new checkpoint"):
        running.latestOffset(after, ReadMaxRows(10))


def test_a_log_that_is_reset_under_a_running_query(live: Any) -> None:
    server, stream, _, after = live
    reset(server)
    change(server, 1, "z" * 190)
    while not is_passed(server, after):
        server.execute(f"INSERT INTO {TABLE} SELECT MAX(id) + 1, 0, REPEAT('w', 190) FROM {TABLE}")
    with pytest.raises(BacklogError, match=REFUSED):
        take(stream, after)


def test_a_snapshot_that_includes_what_the_log_never_had(server: MySQLServer) -> None:
    discard_rewind_log()
    server.execute("DROP DATABASE IF EXISTS again")
    server.execute("CREATE DATABASE again")
    server.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(200))")
    server.execute(f"INSERT INTO {TABLE} VALUES (1, 0, ''), (2, 0, ''), (3, 0, '')")
    stream = reader(options(server, TABLE))
    first = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    reset(server)
    change(server, 1)
    with pytest.raises(BacklogError, match=REFUSED):
        reader(options(server, TABLE)).latestOffset(first, ReadMaxRows(1))


@pytest.mark.slow
@pytest.mark.both
def test_the_same_log_is_read_on(live: Any) -> None:
    """At its end, before more, in files that followed, and with transactions that were purged or never in it."""
    server, _, before, after = live
    for n in range(3):
        assert drained(reader(options(server, TABLE)), after)[1] == []
        assert len(take(reader(options(server, TABLE)), before)[1]) == 4
        if n:
            server.execute("FLUSH BINARY LOGS")
        else:
            server.restart()
    change(server, 1)
    _, rows = take(reader(options(server, TABLE)), after)
    assert len(rows) == 2
    if not is_mariadb(server):
        other = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        server.execute(f"SET GLOBAL gtid_purged = '+{other}:1-5'")
        assert len(take(reader(options(server, TABLE)), after)[1]) == 2


def with_one_row(server: MySQLServer) -> None:
    discard_rewind_log()
    server.execute("DROP DATABASE IF EXISTS again")
    server.execute("CREATE DATABASE again")
    server.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(200))")
    server.execute(f"INSERT INTO {TABLE} VALUES (1, 0, '')")


def values(stream: Any, limit: int) -> list[Any]:
    """The second column of all rows, read in batches of so many."""
    offset, found = stream.initialOffset(), []
    while (end := stream.latestOffset(offset, ReadMaxRows(limit))) is not offset:
        found += [row[1] for p in stream.partitions(offset, end) for row in read(stream, p)]
        offset = end
    return found


def test_a_set_with_holes_is_what_is_not_read(server: MySQLServer) -> None:
    if is_mariadb(server):
        return
    with_one_row(server)
    done = str(server.execute("SELECT @@gtid_executed")[0][0])
    change(server, 5)
    uuid = str(server.execute("SELECT @@server_uuid")[0][0])
    number = max(int(part.rpartition("-")[2]) for part in done.split(",") if uuid in part for part in [part.strip()])
    wanted = f"{done},{uuid}:{number + 2}:{number + 4}"
    stream = reader(options(server, TABLE, **{"startup.mode": "specific", "startup.gtidSet": wanted}))
    assert values(stream, 2) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("limit", [2, 100], ids=["a transaction a batch", "one batch"])
def test_a_set_of_which_another_server_has_more_between_is_what_is_not_read(
    server: MySQLServer, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A log of two servers' transactions in turn, of which one's are left out; the connection is lost in each batch."""
    if is_mariadb(server):
        return
    with_one_row(server)
    wanted = str(server.execute("SELECT @@gtid_executed")[0][0])
    mine, other = (f"3e11fa47-71ca-11e1-9e33-{limit:06}aa94{n}" for n in (63, 64))
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        for number in (1, 2, 3):
            for n, uuid in ((10 + number, other), (number, mine)):
                cursor.execute(f"SET gtid_next = '{uuid}:{number}'")
                cursor.execute(f"UPDATE {TABLE} SET n = {n}")
                connection.commit()
        cursor.execute("SET gtid_next = 'AUTOMATIC'")
    read_once = binlog._read_once
    losses = [0]

    def loses(*given: Any) -> Iterator[Any]:
        lost = False
        for each in read_once(*given):
            yield each
            if isinstance(each, TransactionEnd) and isinstance(given[2], str) and not lost:
                losses[0] += 1
                lost = True
                raise pymysql.err.OperationalError(2013, "Lost connection")

    monkeypatch.setattr(binlog, "_read_once", loses)
    given = {"connect.backoff": "0", "startup.mode": "specific", "startup.gtidSet": f"{wanted},{mine}:1-3"}
    stream = reader(options(server, TABLE, **given))
    found = values(stream, limit)
    assert losses[0]
    # Before- and after-images of the other one's: what each update found, and what it left.
    assert found == [0, 11, 1, 12, 2, 13]


def test_a_dump_by_gtid_of_a_mariadb_tells_32_bits_of_a_position() -> None:
    by_position, by_gtid = BinlogPosition("binlog.000003", 2**32 + 1_000), BinlogPosition("binlog.000003", 1_000)
    assert _same_32_bits(by_gtid, by_position)
    assert not _same_32_bits(BinlogPosition("binlog.000004", 1_000), by_position)
    assert not _same_32_bits(BinlogPosition("binlog.000003", 1_001), by_position)
    assert not _same_32_bits(None, by_position)


def test_a_snapshot_of_a_server_without_any_transaction(live: Any) -> None:
    server, *_ = live
    reset(server)
    stream = reader(options(server, TABLE, chunkSize=1, maxRowsPerBatch=1))
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(1))
    # Above the low watermark, the empty set: the chunks are as of before.
    server.execute(f"UPDATE {TABLE} SET v = 'later'")
    rows = [row for partition in stream.partitions(start, first) for row in read(stream, partition)]
    end, more = drained(reader(options(server, TABLE)), first)
    server.execute(f"DELETE FROM {TABLE} WHERE id = 1")
    _, last = drained(reader(options(server, TABLE)), end)
    assert [(row[0], row[2], row[3]) for row in (*rows, *more, *last)] == [
        (1, "v1", "insert"),
        (2, "later", "insert"),
        (1, "v1", "update_preimage"),
        (1, "later", "update_postimage"),
        (1, "later", "delete"),
    ]
