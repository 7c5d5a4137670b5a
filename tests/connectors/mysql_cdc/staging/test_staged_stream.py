"""A server purges its log while a snapshot is read: the stream is that of a server that keeps it."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.log_gone import LogGone
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.staging import copying, staged_end
from backlog_spark.connectors.mysql_cdc.staging.segments import Segments
from servers.mysql import MySQLServer

from ..replay import KEYS, SERVERS, Writers, apply, forget_log, is_mariadb, options, read, reader, table_rows, take
from ..server.test_unlogged import drained

pytestmark = pytest.mark.both


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest) -> Iterator[None]:
    discard_rewind_log()
    yield
    discard_rewind_log()


def create(server: MySQLServer, table: str) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS staged")
    server.execute(f"DROP TABLE IF EXISTS {table}")
    server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    rows = ",".join(f"({i}, {i}, 's{i}')" for i in range(0, KEYS, 2))
    server.execute(f"INSERT INTO {table} VALUES {rows}")


_DUMPS = "FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"


def stop(stream: Any, server: MySQLServer) -> None:
    """Stop a stream. A server notices the end of a dump's connection only when it has more to send.

    Wait for the segments of purged files first: the server has sent such a file, and nobody else has it.
    """
    copying, oldest = stream._planner.staging._copying, server.execute("SHOW BINARY LOGS")[0][0]
    limit = time.monotonic() + 60
    while copying is not None and copying.is_alive() and copying.at.sort_key() < BinlogPosition(oldest, 0).sort_key():
        assert time.monotonic() < limit
        time.sleep(0.01)
    stream.stop()
    while found := server.execute(f"SELECT ID {_DUMPS}"):
        for (dump,) in found:
            with contextlib.suppress(pymysql.err.MySQLError):  # it has ended
                server.execute(f"KILL {dump}")
        time.sleep(0.01)


def await_staging(server: MySQLServer) -> None:
    """Until the log is being copied: the server does not purge a file that it sends."""
    limit = time.monotonic() + 60
    while not server.execute(f"SELECT ID {_DUMPS}"):
        assert time.monotonic() < limit
        time.sleep(0.01)


def purge(server: MySQLServer) -> None:
    await_staging(server)
    forget_log(server)


def files(location: Path) -> list[Path]:
    return [path for path in (location / "binlog").rglob("*") if path.is_file()]


def gives_the_exact_table(server: MySQLServer, seed: int, location: Path) -> None:
    """Random changes, purges, restarts and repeated batches, in the snapshot and after it."""
    table, chance = f"staged.t{seed}", random.Random(seed)
    create(server, table)
    given = options(server, table, chunkSize=20, metadataLocation=location)
    state: dict[int, tuple[Any, ...]] = {}
    misfits: list[str] = []
    snapshot: list[tuple[Any, list[tuple[Any, ...]]]] = []
    log: list[tuple[Any, Any, list[tuple[Any, ...]]]] = []
    stream = reader(given)
    with Writers(server, table, seed) as writers:
        offset = stream.initialOffset()
        while offset["isProcessingBacklog"]:
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([25, 40, 60])))
            for partition in stream.partitions(offset, end):
                if chance.random() < 0.3:
                    purge(server)
                if chance.random() < 0.5:
                    discard_rewind_log()
                rows = read(stream, partition)
                snapshot.append((partition, sorted(rows)))
                misfits += apply(state, rows)
            stream.commit(end)
            offset = end
            if chance.random() < 0.3:
                stop(stream, server)
                stream = reader(given)
        stream.latestOffset(offset, ReadMaxRows(1))  # a stream that was started anew goes on staging
        first_file = files(location)[0].name.rpartition(".")[0]
        purge(server)
        assert first_file not in {name for name, *_ in server.execute("SHOW BINARY LOGS")}
        for partition, first in snapshot:
            discard_rewind_log()
            assert sorted(read(stream, partition)) == first
        for _ in range(8):
            end = stream.latestOffset(offset, ReadMaxRows(chance.choice([1, 10, 200])))
            rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)] if end is not offset else []
            misfits += apply(state, rows)
            log.append((offset, end, rows))
            if chance.random() < 0.4 and stream._planner.staging._copying is not None:
                purge(server)
            if chance.random() < 0.3:
                stop(stream, server)
                stream = reader(given)
            offset = end
    for start, end, rows in log:
        if end is not start:
            again = reader(given)
            assert [row for p in again.partitions(start, end) for row in read(again, p)] == rows
            again.stop()
    end, rows = drained(stream, offset)
    misfits += apply(state, rows)
    assert misfits == []
    assert writers.commits > 0
    assert state == table_rows(server, table)
    for _ in range(2):  # the staging ends, and what was staged is passed
        stream.latestOffset(end, ReadMaxRows(1))
        stream.commit(end)
    assert not files(location)
    stop(stream, server)


@pytest.mark.parametrize(
    ("mysql", "seed"),
    [
        pytest.param(*server.values, seed, id=f"{server.id}-{seed}", marks=[*server.marks, *extra])
        for server in SERVERS
        for seed in range(6)
        for extra in [[pytest.mark.grid] if seed > 1 else [pytest.mark.slow] if seed else []]
    ],
    indirect=["mysql"],
)
def test_a_snapshot_outlives_the_servers_log(
    mysql: MySQLServer, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_SEGMENT_BYTES", random.Random(seed).choice([4_000, 40_000, 1 << 30]))
    gives_the_exact_table(mysql, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.process
def test_so_does_one_of_a_server_without_gtids(tmp_path: Path) -> None:
    with MySQLServer(options={"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}, fast=True) as server:
        gives_the_exact_table(server, 1, tmp_path)


def test_a_snapshot_that_takes_longer_than_the_server_keeps_its_log(mysql: MySQLServer, tmp_path: Path) -> None:
    table = "staged.expired"
    create(mysql, table)
    before = mysql.execute("SELECT @@global.binlog_expire_logs_seconds")[0][0]
    given = options(mysql, table, chunkSize=20, metadataLocation=tmp_path)
    stream, state = reader(given), dict[int, tuple[Any, ...]]()
    offset, first = stream.initialOffset(), mysql.binlog_end()[0]
    mysql.execute("SET GLOBAL binlog_expire_logs_seconds = 1")
    if is_mariadb(mysql) and mysql.execute("SHOW VARIABLES LIKE 'slave_connections_needed_for_purge'"):
        mysql.execute("SET GLOBAL slave_connections_needed_for_purge = 0")
    try:
        with Writers(mysql, table, 9, threads=1):
            while offset["isProcessingBacklog"]:
                end = stream.latestOffset(offset, ReadMaxRows(20))
                await_staging(mysql)
                time.sleep(0.3)
                mysql.execute("FLUSH BINARY LOGS")  # only then a server looks whether a file is too old
                discard_rewind_log()
                for partition in stream.partitions(offset, end):
                    assert not list(apply(state, read(stream, partition)))
                offset = end
            time.sleep(1.5)
            mysql.execute("FLUSH BINARY LOGS")
            time.sleep(1.5)
            mysql.execute("FLUSH BINARY LOGS")
            assert first not in {name for name, *_ in mysql.execute("SHOW BINARY LOGS")}
    finally:
        mysql.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before}")
    _, rows = drained(stream, offset)
    assert not list(apply(state, rows))
    assert state == table_rows(mysql, table)
    stop(stream, mysql)


def test_no_credential_is_staged(mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "staged.t")
    mysql.execute("DROP TABLE IF EXISTS staged.users")
    mysql.execute("CREATE TABLE staged.users (id INT PRIMARY KEY, secret VARCHAR(20))")
    given = options(mysql, "staged.t", chunkSize=20, metadataLocation=tmp_path)
    stream = reader(given)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    await_staging(mysql)
    mysql.execute("CREATE USER 'ann'@'%' IDENTIFIED BY 'hunter2'")
    mysql.execute("GRANT SELECT ON staged.* TO 'ann'@'%'")
    hashes = [mysql.execute("SELECT authentication_string FROM mysql.user WHERE User = 'ann'")[0][0]]
    word = "PASSWORD('hunter2')" if is_mariadb(mysql) else "'hunter2'"
    mysql.execute(f"SET PASSWORD FOR 'ann'@'%' = {word}")
    hashes.append(mysql.execute("SELECT authentication_string FROM mysql.user WHERE User = 'ann'")[0][0])
    mysql.execute("ALTER USER 'ann'@'%' IDENTIFIED BY 'hunter2'")
    mysql.execute("INSERT INTO staged.users VALUES (1, 'hunter2')")
    mysql.execute("INSERT INTO staged.t VALUES (-1, 1, 'staged')")
    mysql.execute("SET @a = 'hunter2'")
    mysql.execute("CREATE OR REPLACE VIEW staged.w AS SELECT 'hunter2' AS x")
    mysql.execute("DROP USER 'ann'@'%'")
    forget_log(mysql)
    server = stream._planner.session.server
    segments = Segments(MySqlOptions.parse(given), server)
    limit = time.monotonic() + 30
    while not any(s.end.file == mysql.binlog_end()[0] for s in segments.every()):
        assert time.monotonic() < limit
        time.sleep(0.05)
    records = b"".join(record for s in segments.every() for record in segments.records(s))
    assert b"staged" in records
    whole = records + b"".join(path.read_bytes() for path in files(tmp_path))
    for secret in [b"hunter2", *(h.encode() if isinstance(h, str) else bytes(h) for h in hashes)]:
        assert len(secret) > 5
        assert secret not in whole
    stop(stream, mysql)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"stagingMaxBytes": 0}, ""),
        ({"stagingMaxBytes": 1}, "than the 1 bytes of stagingMaxBytes"),
        ({"columns.exclude": "staged.t.v"}, ""),
        ({"columns.mask": "staged.t.v", "columns.mask.secretSalt": "a salt of some length"}, ""),
    ],
)
def test_a_log_that_is_not_staged_is_lost_as_ever(
    mysql: MySQLServer, tmp_path: Path, more: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(staged_end, "_WRITING_S", 0.5)
    create(mysql, "staged.t")
    given = options(mysql, "staged.t", chunkSize=20, metadataLocation=tmp_path, **more)
    stream = reader(given)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    if told:
        await_staging(mysql)
    else:
        assert not files(tmp_path)
    mysql.execute("UPDATE staged.t SET n = 1")
    forget_log(mysql)
    later = reader(given)
    with pytest.raises(LogGone, match="purged"):
        take(later, end)
    limit = time.monotonic() + 30
    while told not in caplog.text:
        assert time.monotonic() < limit
        time.sleep(0.05)
    stop(stream, mysql)
    assert all(path.stat().st_size < 1_000 for path in files(tmp_path))


def test_a_query_that_was_stopped_for_too_long_is_told_what_is_missing(
    mysql: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_end, "_WRITING_S", 0.5)
    create(mysql, "staged.t")
    given = options(mysql, "staged.t", chunkSize=20, metadataLocation=tmp_path)
    stream = reader(given)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(20))
    mysql.execute("UPDATE staged.t SET n = 1")
    purge(mysql)
    mysql.execute("UPDATE staged.t SET n = 2")
    stop(stream, mysql)
    file = mysql.binlog_end()[0]
    forget_log(mysql)
    with pytest.raises(LogGone, match=rf"The staged log {tmp_path}.* ends at {file}:4\."):
        take(reader(given), end)
    # With snapshot.mode=when_needed the tables are read again, and the log is staged from there on.
    again = reader({**given, "snapshot.mode": "when_needed"})
    end, _ = take(again, end)
    assert end["phase"] == "snapshot"
    state = dict[int, tuple[Any, ...]]()
    while end["isProcessingBacklog"]:
        end, rows = take(again, end)
        assert not list(apply(state, [row for row in rows if row[-3] != "truncate"]))
        purge(mysql)
        mysql.execute("UPDATE staged.t SET n = n + 1")
    _, rows = drained(again, end)
    assert not list(apply(state, rows))
    assert state == table_rows(mysql, "staged.t")
    stop(again, mysql)


def test_a_location_that_cannot_be_written_is_told(
    mysql: MySQLServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(mysql, "staged.t")
    (tmp_path / "file").write_text("no directory")
    stream = reader(options(mysql, "staged.t", metadataLocation=tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        _, rows = drained(stream, stream.initialOffset())
    assert len(rows) == KEYS // 2
    assert "The binary log is not staged" in caplog.text
