"""A server that has purged the log file of a position: nothing may be missing, and no gap may be passed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.server.gtid import GtidSet
from backlog_spark.connectors.mysql_cdc.server.log_gone import LogGone
from backlog_spark.connectors.mysql_cdc.server.purged import lacks_nothing
from backlog_spark.connectors.mysql_cdc.snapshot import new_tables
from backlog_spark.connectors.mysql_cdc.snapshot.requests import RangeRequest, Requests
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from backlog_spark.connectors.mysql_cdc.stream.tables_at import tables_at
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import apply, forget_log, is_mariadb, options, read, reader, table_rows, take

from .test_unlogged import drained

TABLE, OTHER = "purged.t", "purged.other"
UUIDS = [f"3e11fa47-71ca-11e1-9e33-c80aa94295{n}" for n in (61, 62, 63)]


# -- sets ----------------------------------------------------------------------------------------------------


def test_a_log_has_all_that_was_not_read_exactly_if_no_purged_transaction_is_unread() -> None:
    """Logs of three servers' transactions in files, compared with the plain list of what was purged."""
    seen = set()
    for seed in range(2_000):
        chance = random.Random(seed)
        numbers = dict.fromkeys(UUIDS, 0)
        log: list[tuple[str, int, int]] = []  # source, number, file
        for n in range(chance.randint(0, 12)):
            uuid = chance.choice(UUIDS)
            numbers[uuid] += chance.choice([1, 1, 1, 2])  # a number may be skipped
            log.append((uuid, numbers[uuid], n // chance.randint(2, 4)))
        first_file = chance.randint(0, 6)
        at = chance.randint(0, len(log))
        was_reset = chance.random() < 0.1

        def these(found: list[tuple[str, int, int]]) -> GtidSet:
            return GtidSet(",".join(f"{uuid}:{number}" for uuid, number, _ in found))

        purged = [t for t in log if t[2] < first_file]
        executed = log[: chance.randint(0, len(log))] if was_reset else log
        is_missing = any(t not in log[:at] for t in purged) or any(t not in executed for t in log[:at])
        assert lacks_nothing(these(log[:at]), these(purged), these(executed)) is not is_missing, seed
        seen.add((bool(purged), is_missing))
    assert len(seen) == 4


# -- servers -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def tables(mysql: MySQLServer) -> Iterator[None]:
    discard_rewind_log()
    mysql.execute("DROP DATABASE IF EXISTS purged")
    mysql.execute("CREATE DATABASE purged")
    for name in (TABLE, OTHER):
        mysql.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    mysql.execute(f"INSERT INTO {TABLE} VALUES {','.join(f'({n}, 0, {n})' for n in range(30))}")
    yield
    discard_rewind_log()


def live(mysql: MySQLServer, **more: object) -> tuple[Any, dict[str, Any], dict[int, Any]]:
    """A stream that has read everything: its reader, its offset, and the rows."""
    stream, state = reader(options(mysql, TABLE, **more)), dict[int, Any]()
    end, rows = drained(stream, stream.initialOffset())
    assert not list(apply(state, rows))
    mysql.execute(f"UPDATE {TABLE} SET n = 1 WHERE id = 1")
    end, rows = drained(stream, end)
    assert not list(apply(state, rows))
    return stream, end, state


def between(stream: Any, start: dict[str, Any], end: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    return end, [row for part in stream.partitions(start, end) for row in read(stream, part)]


def follows(stream: Any, offset: dict[str, Any], state: dict[int, Any], mysql: MySQLServer) -> dict[str, Any]:
    end, rows = drained(stream, offset)
    assert not list(apply(state, rows))
    assert not any(row[-3] == "truncate" for row in rows)
    assert state == table_rows(mysql, TABLE)
    return end


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "restarted"])
def test_a_purged_file_of_which_everything_was_read(mysql: MySQLServer, is_running: bool) -> None:
    given = {"snapshot.mode": "when_needed"}
    stream, end, state = live(mysql, **given)
    for change in ("", f"UPDATE {TABLE} SET n = n - 1 WHERE id < 3", f"DELETE FROM {TABLE} WHERE id = 4"):
        forget_log(mysql)
        stream = stream if is_running else reader(options(mysql, TABLE, **given))
        if change:
            mysql.execute(change)
        end = follows(stream, end, state, mysql)  # nothing is read again: its rows would not fit
    mysql.execute(f"DELETE FROM {TABLE} WHERE id = 5")
    forget_log(mysql)
    with pytest.raises(LogGone, match="purged"):
        take(reader(options(mysql, TABLE)), end)
    end, rows = take(stream if is_running else reader(options(mysql, TABLE, **given)), end)
    assert (end["phase"], rows) == ("snapshot", [])


def test_a_batch_that_is_replayed(mysql: MySQLServer) -> None:
    """Nothing of it is in the purged file, then all of it."""
    stream, start, state = live(mysql)
    forget_log(mysql)
    mysql.execute(f"UPDATE {TABLE} SET n = 7 WHERE id = 7")
    end = stream.latestOffset(start, ReadMaxRows(10))
    again = reader(options(mysql, TABLE))
    rows = [row for part in again.partitions(start, end) for row in read(again, part)]
    assert not list(apply(state, rows))
    assert state == table_rows(mysql, TABLE)
    forget_log(mysql)
    with pytest.raises(LogGone, match="purged"):
        reader(options(mysql, TABLE)).partitions(start, end)
    follows(reader(options(mysql, TABLE)), end, state, mysql)


def test_a_snapshot_whose_low_watermark_is_in_a_purged_file(mysql: MySQLServer) -> None:
    """Batches that are planned before and after the purge, and a task that reads on between two chunks."""
    given = options(mysql, TABLE, chunkSize=5)
    stream, state = reader(given), dict[int, Any]()
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadMaxRows(10))
    parts = stream.partitions(start, first)
    rows = read(stream, parts[0])  # the log is read up to here
    forget_log(mysql)
    mysql.execute(f"UPDATE {TABLE} SET n = 5")
    for part in parts[1:]:
        rows += read(stream, part)
    discard_rewind_log()
    again = reader(given)
    assert sorted(row for part in again.partitions(start, first) for row in read(again, part)) == sorted(rows)
    assert not list(apply(state, rows))
    assert {row[1] for row in rows} == {0}
    follows(reader(given), first, state, mysql)
    forget_log(mysql)
    with pytest.raises(LogGone, match="purged"):
        reader(given).latestOffset(first, ReadMaxRows(10))


def test_a_signal_and_a_comparison_after_a_purge(mysql: MySQLServer) -> None:
    given = options(mysql, TABLE, chunkSize=5)
    stream, end, state = live(mysql, chunkSize=5)
    forget_log(mysql)
    mysql.execute(f"UPDATE {TABLE} SET n = 9 WHERE id = 9")
    found = tables_at(given, end)
    batches = [batch for n in range(found.chunks) for batch in found.read(n)]
    then = {row[0]: row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)}
    assert then == {**table_rows(mysql, TABLE), 9: (9, 0, "9")}
    discard_rewind_log()
    end = follows(stream, end, state, mysql)
    asked = replace(Offset.from_json(end), requests=Requests(queue=(RangeRequest("s", ("purged", "t")),)))
    end, found = asked.to_json(), []
    for _ in range(20):
        stream = reader(given)
        later = stream.latestOffset(end, ReadMaxRows(10))
        if later == end:
            break
        parts = stream.partitions(end, later)
        forget_log(mysql)  # before a task reads the range as of the offset
        rows = [row for part in parts for row in read(stream, part)]
        discard_rewind_log()
        found += rows
        end = later
    assert {row[:3] for row in found} == set(table_rows(mysql, TABLE).values())


def test_a_table_that_joins_after_a_purge(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tables, "LOOK_MS", 0)
    given = {**options(mysql, ""), "tablePattern": r"purged\.(t|other|more)", "scanNewlyAddedTables": "true"}
    del given["table"]
    stream = reader(given)
    end, rows = drained(stream, stream.initialOffset())
    mysql.execute(f"INSERT INTO {TABLE} VALUES (100, 1, 'a')")
    end, _ = drained(stream, end)
    forget_log(mysql)
    mysql.execute("CREATE TABLE purged.more LIKE purged.t")
    mysql.execute("INSERT INTO purged.more VALUES (1, 1, 'joins')")
    _, rows = drained(reader(given), end)
    assert [(row[0], row[2], row[-1]) for row in rows] == [(1, "joins", "more")]


def test_without_gtids_nothing_is_known(mysql: MySQLServer) -> None:
    _, end, _ = live(mysql)
    del end["gtid"]
    forget_log(mysql)
    with pytest.raises(LogGone, match="purged"):
        take(reader(options(mysql, TABLE)), end)


def test_a_domain_that_a_mariadb_has_forgotten(mysql: MySQLServer) -> None:
    """Its last transactions may be among those that were purged."""
    if not is_mariadb(mysql):
        return

    def in_domain(statement: str) -> None:
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION gtid_domain_id = 77")
            cursor.execute(statement)

    in_domain(f"UPDATE {TABLE} SET n = 1 WHERE id = 2")
    _, end, _ = live(mysql)
    in_domain(f"UPDATE {TABLE} SET n = 2 WHERE id = 2")
    mysql.execute("FLUSH BINARY LOGS")
    forget_log(mysql)
    mysql.execute("FLUSH BINARY LOGS DELETE_DOMAIN_ID = (77)")
    forget_log(mysql)
    assert "77-" not in str(mysql.execute("SELECT @@gtid_binlog_pos"))
    with pytest.raises(LogGone, match="purged"):
        take(reader(options(mysql, TABLE)), end)


def test_a_log_that_was_reset_and_has_passed_the_file(mysql: MySQLServer) -> None:
    """Its files have greater numbers, and its first transactions, with the numbers of read ones, are purged."""
    _, end, _ = live(mysql)
    is_new = mysql.own_executable() is not None and not is_mariadb(mysql)
    mysql.execute("RESET BINARY LOGS AND GTIDS" if is_new else "RESET MASTER")
    mysql.execute(f"UPDATE {TABLE} SET n = 100 WHERE id = 1")
    while mysql.binlog_end()[0] <= end["position"][0]:
        mysql.execute("FLUSH BINARY LOGS")
    forget_log(mysql)
    with pytest.raises(LogGone, match="reset"):
        take(reader(options(mysql, TABLE)), end)


# -- at random -----------------------------------------------------------------------------------------------


def last_number(server: MySQLServer, gtids: str) -> int:
    """The number of the server's own last transaction among these."""
    if is_mariadb(server):
        return int(gtids.partition("@")[0].partition(",")[0].rpartition("-")[2])
    own = str(server.execute("SELECT @@server_uuid")[0][0])
    return max(last for source, _, last in GtidSet(gtids) if source == own)


class Log:
    """The transactions that the server wrote: number and file of each."""

    def __init__(self, server: MySQLServer, chance: random.Random) -> None:
        self._server, self._chance = server, chance
        self.written: list[tuple[int, str]] = []
        self._begins = ""

    def write(self) -> None:
        if self._chance.random() < 0.6:
            key = self._chance.randrange(40)
            self._server.execute(f"INSERT INTO {TABLE} VALUES ({key}, 1, 'w') ON DUPLICATE KEY UPDATE n = n + 1")
        else:
            self._server.execute(f"REPLACE INTO {OTHER} VALUES ({len(self.written)}, {self._chance.random()}, 'o')")
        self.written.append((self.now(), self._server.binlog_end()[0]))

    def now(self) -> int:
        variable = "gtid_binlog_pos" if is_mariadb(self._server) else "gtid_executed"
        return last_number(self._server, str(self._server.execute(f"SELECT @@global.{variable}")[0][0]))

    def flush(self) -> None:
        self._server.execute("FLUSH BINARY LOGS")

    def purge(self) -> None:
        self._begins = self._chance.choice(self._server.execute("SHOW BINARY LOGS"))[0]
        limit = time.monotonic() + 30
        while self._server.execute("SHOW BINARY LOGS")[0][0] != self._begins:
            # MariaDB keeps a file until the storage engine is done with it.
            self._server.execute(f"PURGE BINARY LOGS TO '{self._begins}'")
            assert time.monotonic() < limit
            time.sleep(0.02)

    def is_missing(self, read: int) -> bool:
        """Whether a transaction with a greater number is purged."""
        return any(number > read and file < self._begins for number, file in self.written)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(n, marks=pytest.mark.grid) for n in range(3, 13))])
def test_no_gap_is_passed_and_nothing_else_is_refused(mysql: MySQLServer, seed: int) -> None:
    chance = random.Random(seed)
    given = options(mysql, TABLE, chunkSize=10)
    found: set[bool] = set()
    for _ in range(8):
        discard_rewind_log()
        forget_log(mysql)
        log, state, stream = Log(mysql, chance), dict[int, Any](), reader(given)
        end = stream.initialOffset()
        looked = 0  # what the reader has seen of the log, also beyond its offset
        if chance.random() < 0.4:  # a part of the snapshot
            end, rows = between(stream, end, stream.latestOffset(end, ReadMaxRows(10)))
        else:
            end, rows = drained(stream, end)
            mysql.execute(f"UPDATE {TABLE} SET n = n + 1 WHERE id = 0")
            end, more = drained(stream, end)
            rows += more
        assert not list(apply(state, rows))
        for _ in range(chance.randint(1, 5)):
            for act in chance.choices([log.write, log.flush], k=3):
                act()
            if chance.random() < 0.7:
                log.purge()
            if chance.random() < 0.6:
                stream, looked = reader(given), 0
            offset = Offset.from_json(end)
            read_up_to = offset.gtid or offset.start or offset.ranges[0].low
            known = last_number(mysql, read_up_to)
            found.add(log.is_missing(known))
            try:
                end, rows = drained(stream, end)
            except LogGone:
                assert log.is_missing(known)
                break
            # A reader that runs on may know that the purged transactions had no rows of the table.
            assert not log.is_missing(max(looked, known))
            assert not list(apply(state, rows))
            assert state == table_rows(mysql, TABLE)
            looked = log.now()
    assert found == {True, False}
