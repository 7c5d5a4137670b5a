"""Peculiarities of MariaDB's log: GTIDs of domains, positions ahead of the rows, statements, compressed events."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition, sequence_at
from backlog_spark.connectors.mysql_cdc.binlog.reading import RowsChange, TransactionEnd, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.server.gtid import MariaDbGtids
from backlog_spark.connectors.mysql_cdc.server.mysql import connect, low_watermark, query
from backlog_spark.connectors.mysql_cdc.server.watermark import PositionWatermark, watermark
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError, SettingError
from servers.mariadb import MariaDBServer

from .replay import EVERY_MARIADB, Writers, apply, options, read, reader, table_rows, take

Row = tuple[Any, ...]

both = pytest.mark.parametrize("mariadb", EVERY_MARIADB, indirect=True)


def fresh(server: MariaDBServer, rows: int = 3) -> str:
    """A table maria.t with rows (i, i, 'x')."""
    server.execute("CREATE OR REPLACE DATABASE maria")
    server.execute("CREATE TABLE maria.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    server.execute("INSERT INTO maria.t VALUES " + ",".join(f"({i}, {i}, 'x')" for i in range(rows)))
    return "maria.t"


# -- positions and GTIDs -----------------------------------------------------------------------------------


class Domains:
    """The server as `Writers` see it: each connection writes into the next replication domain."""

    def __init__(self, server: MariaDBServer) -> None:
        self._server, self._numbers = server, itertools.count()

    def connect(self, **settings: object) -> Any:
        connection = self._server.connect(**settings)
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION gtid_domain_id = {next(self._numbers) % 3}")
        return connection


@both
def test_writers_of_several_domains_and_rotating_logs_lose_and_repeat_nothing(mariadb: MariaDBServer) -> None:
    """Each watermark is read at once, while commits that rotate the log are on their way into the engine."""
    table = fresh(mariadb, rows=400)
    stream = reader(options(mariadb, table, chunkSize=20))
    state: dict[int, Row] = {}
    misfits: list[str] = []
    stop = threading.Event()

    def rotate() -> None:
        while not stop.wait(0.01):
            mariadb.execute("FLUSH BINARY LOGS")

    rotating = threading.Thread(target=rotate)
    with Writers(Domains(mariadb), table, 11) as writers:  # type: ignore[arg-type]
        rotating.start()
        try:
            offset = stream.initialOffset()
            while offset["isProcessingBacklog"]:
                end = stream.latestOffset(offset, ReadMaxRows(20))
                for partition in stream.partitions(offset, end):
                    misfits += apply(state, read(stream, partition))
                offset = end
        finally:
            stop.set()
            rotating.join()
    assert writers.commits > 0
    sequences: list[int] = []
    while (end := stream.latestOffset(offset, ReadMaxRows(300))) is not offset:
        for partition in stream.partitions(offset, end):
            rows = read(stream, partition)
            sequences += [row[-1] for row in rows]
            misfits += apply(state, rows)
        offset = end
    assert misfits == []
    assert state == table_rows(mariadb, table)
    assert sequences == sorted(set(sequences))
    # What the offset says of the domains is what the server says, at the end of the log and there only.
    ((told,),) = mariadb.execute("SELECT @@global.gtid_binlog_pos")
    assert MariaDbGtids(offset["gtid"]) == MariaDbGtids(told)
    assert len(offset["gtid"].split(",")) == 3


@pytest.mark.process
@pytest.mark.parametrize("kind", EVERY_MARIADB)
def test_all_before_a_low_watermark_is_visible_also_while_commits_rotate_the_log(kind: type[MariaDBServer]) -> None:
    """The snapshot's own position is not enough: a commit that rotates the log moves it before its rows are visible."""
    seen: list[tuple[BinlogPosition, dict[int, int]]] = []
    with kind(options={"max-binlog-size": "4096", "sync-binlog": "1"}) as server:
        server.execute("CREATE DATABASE maria")
        server.execute("CREATE TABLE maria.t (id INT PRIMARY KEY, n BIGINT)")
        server.execute("INSERT INTO maria.t VALUES (0, 0), (1, 0), (2, 0), (3, 0)")
        stop = threading.Event()

        def write(key: int) -> None:
            with server.connect() as connection, connection.cursor() as cursor:
                while not stop.is_set():
                    cursor.execute(f"UPDATE maria.t SET n = n + 1 WHERE id = {key}")

        threads = [threading.Thread(target=write, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        given = options(server, "maria.t")
        parsed, schema = MySqlOptions.parse(given), check(given)[0]
        with connect(parsed) as one, connect(parsed) as two:
            until = time.monotonic() + 1.5  # some hundred rotations
            while time.monotonic() < until:
                low = watermark(low_watermark(one)[0])
                seen.append((low.position, dict(query(two, "SELECT id, n FROM maria.t"))))
        stop.set()
        for thread in threads:
            thread.join()
        files = server.execute("SHOW BINARY LOGS")
        assert len(files) > 10
        logged: dict[int, int] = {}
        lows = iter(seen)
        position, visible = next(lows)
        for change in read_changes(parsed, (schema,), BinlogPosition(files[0][0], 4)):
            if isinstance(change, TransactionEnd):
                continue
            for sequence, _, (key, n) in change.rows:
                while sequence >= sequence_at(position.file_number, position.pos):
                    assert all(visible[k] >= n for k, n in logged.items()), position
                    position, visible = next(lows, (BinlogPosition("end.999999", 0), {}))
                logged[key] = n
        assert next(lows, None) is None


def test_numbers_of_a_domain_that_go_back_change_nothing(mariadb: MariaDBServer) -> None:
    """Without gtid_strict_mode a session may number its transactions as it likes, also twice the same."""
    table = fresh(mariadb)
    stream = reader(options(mariadb, table))
    with mariadb.connect() as connection, connection.cursor() as cursor:
        for number in (7000, 7000, 5):
            cursor.execute("SET SESSION gtid_domain_id = 9")
            cursor.execute(f"SET SESSION gtid_seq_no = {number}")
            cursor.execute(f"UPDATE {table} SET n = {number} + n")
        live, snapshot = take(stream, stream.initialOffset())
        assert sorted(row[1] for row in snapshot) == [14005, 14006, 14007]
        for number in (3, 3):
            cursor.execute(f"SET SESSION gtid_seq_no = {number}")
            cursor.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 0")
    end, rows = take(stream, live)
    assert [row[1] for row in rows if row[3] == "update_postimage"] == [14006, 14007]
    assert "9-1-3" in end["gtid"].split(",")


@pytest.mark.parametrize("live", [False, True])
def test_a_checkpoint_of_another_log_with_the_same_server_id_is_refused(mariadb: MariaDBServer, live: bool) -> None:
    table = fresh(mariadb)
    offset, _ = take(reader(options(mariadb, table)), reader(options(mariadb, table)).initialOffset())
    if live:
        mariadb.execute(f"DELETE FROM {table} WHERE id = 1")
        offset, rows = take(reader(options(mariadb, table)), offset)
        assert len(rows) == 1
    text = json.dumps(offset)
    gtid = offset["gtid"] if live else offset["start"].partition("@")[0]
    first = gtid.split(",")[0]
    assert first in text
    other = json.loads(text.replace(first, first.replace("-1-", "-2-", 1)))
    with pytest.raises(BacklogError, match=rf"another one.*after transaction .*{first}.*new checkpoint"):
        reader(options(mariadb, table)).latestOffset(other, ReadMaxRows(10**6))
    reader(options(mariadb, table)).latestOffset(json.loads(text), ReadMaxRows(10**6))  # while its own is accepted


# -- the log -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "SET STATEMENT max_statement_time=1 FOR UPDATE t SET n = 7",
        "ANALYZE UPDATE t SET n = 7",
        "BEGIN NOT ATOMIC UPDATE t SET n = 7; END",
        "EXECUTE IMMEDIATE 'UPDATE t SET n = 7'",
    ],
)
def test_a_change_logged_as_a_statement_stops_the_log(mariadb: MariaDBServer, statement: str) -> None:
    table = fresh(mariadb)
    stream = reader(options(mariadb, table))
    live, _ = take(stream, stream.initialOffset())
    with mariadb.connect(database="maria") as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute(statement)
    with pytest.raises(BacklogError, match=r"statement-format.*maria\.t.* in transaction 0-1-\d+"):
        take(stream, live)


@pytest.mark.parametrize(
    "statement",
    [
        "SET STATEMENT max_statement_time=1 FOR ALTER TABLE t MODIFY n INT AFTER v",
        "/*M!100000 ALTER */ TABLE t MODIFY n INT AFTER v",
        "ALTER TABLE t ADD SYSTEM VERSIONING",
    ],
)
def test_a_statement_that_changes_the_table_stops_the_log(mariadb: MariaDBServer, statement: str) -> None:
    table = fresh(mariadb)
    stream = reader(options(mariadb, table, schemaChange="fail"))
    live, _ = take(stream, stream.initialOffset())
    with mariadb.connect(database="maria") as connection, connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(SchemaChanged, match=r"maria\.t.*new checkpoint"):
        take(stream, live)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(20))",
        "CREATE OR REPLACE TABLE t (PRIMARY KEY (id)) SELECT 1 AS id, 2 AS n, 'x' AS v",
    ],
)
def test_a_replaced_table_is_a_dropped_one(mariadb: MariaDBServer, statement: str) -> None:
    table = fresh(mariadb)
    streams = {events: reader(options(mariadb, table, tableEvents=events)) for events in ("fail", "emit")}
    live, _ = take(streams["fail"], streams["fail"].initialOffset())
    with mariadb.connect(database="maria") as connection, connection.cursor() as cursor:
        cursor.execute(statement)
    with pytest.raises(SchemaChanged, match=r"maria\.t"):
        take(streams["fail"], live)
    _, rows = take(streams["emit"], live)
    assert [row[-3] for row in rows] == ["drop"]


@both
def test_groups_of_several_statements_end_where_they_end(mariadb: MariaDBServer) -> None:
    """A statement inside a group of events is no position to resume at: its rows would follow without their GTID."""
    table = fresh(mariadb)
    stream = reader(options(mariadb, table))
    offset, _ = take(stream, stream.initialOffset())
    with mariadb.connect(database="maria") as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE TABLE made (id INT PRIMARY KEY) SELECT 1 AS id",  # a statement and rows in one group
            "CREATE TABLE mixed (id INT) ENGINE=MyISAM",
            "INSERT INTO t VALUES (10, 1, 'a')",
            "BEGIN",
            "INSERT INTO mixed VALUES (1)",  # a group of its own, ended by a COMMIT that is no XID
            "INSERT INTO t VALUES (11, 1, 'b')",
            "COMMIT",
            "BEGIN",
            "INSERT INTO t VALUES (12, 1, 'c')",
            "SAVEPOINT s",
            "INSERT INTO t VALUES (99, 1, 'c')",
            "ROLLBACK TO s",
            "COMMIT",
            "TRUNCATE TABLE mixed",
            "INSERT INTO t VALUES (13, 1, 'd')",
        ):
            cursor.execute(statement)
    keys = []
    while (end := stream.latestOffset(offset, ReadMaxRows(1))) is not offset:
        stream = reader(options(mariadb, table))  # each batch by a reader that begins at the last one's end
        keys += [row[0] for p in stream.partitions(offset, end) for row in read(stream, p)]
        offset = end
    assert keys == [10, 11, 12, 13]


SEVEN, EIGHT = "seven" * 4, "eight" * 4


@contextmanager
def compressing(mariadb: MariaDBServer) -> Iterator[None]:
    mariadb.execute("SET GLOBAL log_bin_compress_min_len = 10")
    mariadb.execute("SET GLOBAL log_bin_compress = ON")
    try:
        yield
    finally:
        mariadb.execute("SET GLOBAL log_bin_compress = OFF")
        mariadb.execute("SET GLOBAL log_bin_compress_min_len = DEFAULT")


@both
def test_a_log_that_is_compressed_now_and_then_gives_the_exact_table(mariadb: MariaDBServer) -> None:
    table = fresh(mariadb, rows=400)
    stream = reader(options(mariadb, table, chunkSize=40))
    state: dict[int, Row] = {}
    misfits: list[str] = []
    with compressing(mariadb), Writers(mariadb, table, seed=5):
        offset = stream.initialOffset()
        for batch in range(12):
            mariadb.execute(f"SET GLOBAL log_bin_compress = {'OFF' if batch % 3 == 2 else 'ON'}")
            time.sleep(0.1)
            offset, rows = take(stream, offset)
            misfits += apply(state, rows)
    misfits += apply(state, take(stream, offset)[1])
    assert misfits == []
    assert state == table_rows(mariadb, table)


@both
def test_rows_that_compress_to_less_than_a_byte_are_numbered_uniquely(mariadb: MariaDBServer) -> None:
    mariadb.execute("CREATE OR REPLACE DATABASE maria")
    mariadb.execute("CREATE TABLE maria.m (v VARCHAR(20))")
    given = options(mariadb, "maria.m")
    stream = reader(given)
    start, _ = take(stream, stream.initialOffset())
    # Only rows of ten bytes and more are compressed.
    fill = f"INSERT INTO maria.m SELECT '{SEVEN}' FROM maria.seq_1_to_5000"
    with compressing(mariadb):
        with mariadb.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute(fill)
            cursor.execute(f"UPDATE maria.m SET v = '{EIGHT}'")
            mariadb.execute("SET GLOBAL log_bin_compress = OFF")
            cursor.execute("INSERT INTO maria.m VALUES ('nine')")
            connection.commit()
        mariadb.execute("SET GLOBAL log_bin_compress = ON")
        mariadb.execute(f"DELETE FROM maria.m WHERE v = '{EIGHT}'")
    mariadb.execute("INSERT INTO maria.m VALUES ('ten')")
    values = [SEVEN] * 5000 + [SEVEN, EIGHT] * 5000 + ["nine"] + [EIGHT] * 5000 + ["ten"]
    one, rows = take(reader(given), start)
    assert [row[0] for row in rows] == values
    assert one["excess"] > 0
    low = watermark(start["start"])
    assert isinstance(low, PositionWatermark)
    found = read_changes(MySqlOptions.parse(given), check(given), low.position)
    size = sum(change.size for change in found if isinstance(change, RowsChange))
    assert size > len(rows) * len(SEVEN), "memory is bounded by what the rows take when they are inflated"
    assert take(reader(given), start) == (one, rows), "a repeated batch is the same"
    # Batches of a transaction each.
    several, offset = [], start
    while (end := stream.latestOffset(offset, ReadMaxRows(1))) is not offset:
        several += [row for p in stream.partitions(offset, end) for row in read(stream, p)]
        offset = end
    assert several == rows
    assert offset["excess"] == one["excess"]
    sequences = [row[-1] for row in rows]
    assert all(a < b for a, b in itertools.pairwise(sequences))


@both
def test_a_compressed_event_that_inflates_too_far_stops_the_log_and_other_tables_do_not(mariadb: MariaDBServer) -> None:
    table = fresh(mariadb)
    mariadb.execute("CREATE TABLE maria.other (id INT PRIMARY KEY, v TEXT)")
    given = options(mariadb, table, maxInflatedBytes=3_000)
    stream = reader(given)
    offset, _ = take(stream, stream.initialOffset())
    with compressing(mariadb):
        mariadb.execute("INSERT INTO maria.other VALUES (1, REPEAT('x', 9999))")
        mariadb.execute(f"DELETE FROM {table} WHERE id = 1")
        offset, rows = take(stream, offset)
        assert [row[0] for row in rows] == [1]
        mariadb.execute(f"INSERT INTO {table} SELECT seq, 7, 'y' FROM maria.seq_10_to_500")
    with pytest.raises(SettingError, match=r"maxInflatedBytes = .*inflates to [\d,]+ bytes or more"):
        take(stream, offset)
    rows = take(reader({**given, "maxInflatedBytes": "9000"}), offset)[1]
    assert len(rows) == 491
