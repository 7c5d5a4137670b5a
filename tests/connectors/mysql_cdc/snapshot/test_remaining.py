"""The estimate of a snapshot's rows, where the server's statistics are wrong."""

from __future__ import annotations

import random

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.mysql import connect
from backlog_spark.connectors.mysql_cdc.snapshot import remaining
from backlog_spark.connectors.mysql_cdc.snapshot.chunks import count_rows
from backlog_spark.connectors.mysql_cdc.snapshot.remaining import corrected
from backlog_spark.connectors.mysql_cdc.source import check
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, reader

ROWS, SAID = 1_000, 1_400


@pytest.mark.parametrize(
    ("reached", "done", "is_unique", "total"),
    [
        (0, 0, False, SAID),
        (0, 0, True, 1_000),  # there are no more keys
        (500, 500, False, 1_100),
        (900, 900, False, 1_004),
        (1_000, 1_000, False, 1_000),
        (1_200, 1_000, True, 1_000),  # rows were deleted meanwhile
        (500, 20, True, 380),  # few at first: the statistics still count
    ],
)
def test_statistics_count_as_much_as_there_are_keys_to_come(
    reached: int, done: int, is_unique: bool, total: int
) -> None:
    assert corrected(1, 1_000, reached, done, SAID, is_unique=is_unique) == total


@pytest.fixture
def table(mysql: MySQLServer) -> str:
    """Its statistics say 40 % more rows than it has; keys are ten apart."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS remaining")
    mysql.execute("DROP TABLE IF EXISTS remaining.t")
    mysql.execute("CREATE TABLE remaining.t (id INT PRIMARY KEY) STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0")
    mysql.execute("INSERT INTO remaining.t VALUES " + ",".join(f"({10 * n})" for n in range(1, ROWS + 1)))
    mysql.execute("ANALYZE TABLE remaining.t")
    mysql.execute(
        f"UPDATE mysql.innodb_table_stats SET n_rows = {SAID} WHERE database_name = 'remaining' AND table_name = 't'"
    )
    mysql.execute("FLUSH TABLE remaining.t")
    return "remaining.t"


def totals(mysql: MySQLServer, table: str) -> list[int]:
    stream = reader(options(mysql, table))
    offset, found = stream.initialOffset(), []
    while offset["isProcessingBacklog"]:
        offset = stream.latestOffset(offset, ReadMaxRows(250))
        found.append(offset["total"])
    return found


def test_a_table_that_is_counted_quickly_has_its_total_from_the_beginning(mysql: MySQLServer, table: str) -> None:
    assert totals(mysql, table) == [ROWS] * 4


def test_of_a_large_table_the_statistics_are_corrected(
    mysql: MySQLServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remaining, "_COUNT_S", 0.0)
    found = totals(mysql, table)
    assert found[-1] == ROWS
    assert found == sorted(found, reverse=True)
    assert ROWS < found[2] < ROWS * 1.05 < found[0] < SAID


def test_a_count_that_takes_too_long_is_ended_by_the_server(mysql: MySQLServer) -> None:
    mysql.execute("CREATE DATABASE IF NOT EXISTS remaining")
    mysql.execute("CREATE TABLE remaining.l (id INT AUTO_INCREMENT PRIMARY KEY)")
    mysql.execute("INSERT INTO remaining.l VALUES " + ",".join(["(NULL)"] * 1_000))
    for _ in range(9):
        mysql.execute("INSERT INTO remaining.l SELECT NULL FROM remaining.l")
    given = options(mysql, "remaining.l")
    with connect(MySqlOptions.parse(given)) as connection:
        schema = check(given)[0]
        assert count_rows(connection, schema, "", 60) == 512_000
        with pytest.raises(pymysql.err.OperationalError) as caught:
            count_rows(connection, schema, "", 0.02)
    assert caught.value.args[0] in (3024, 1969)  # MySQL's, MariaDB's


def gaps(mysql: MySQLServer, rng: random.Random) -> int:
    """A table ``remaining.g`` with gaps between its ids, and wide or narrow rows. Returns how many rows it has."""
    mysql.execute("CREATE DATABASE IF NOT EXISTS remaining")
    mysql.execute("DROP TABLE IF EXISTS remaining.g")
    mysql.execute("CREATE TABLE remaining.g (id BIGINT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200))")
    mysql.execute(
        "INSERT INTO remaining.g (v) VALUES " + ",".join(f"('{'x' * rng.choice((1, 150))}')" for _ in range(1_000))
    )
    for _ in range(5):  # each leaves a gap: the server takes ids in powers of two
        mysql.execute("INSERT INTO remaining.g (v) SELECT v FROM remaining.g")
    kind = rng.choice(("as they are", "strides", "groups", "one far away", "thinned"))
    if kind == "strides":
        mysql.execute(f"UPDATE remaining.g SET id = id * {rng.randint(2, 500)} ORDER BY id DESC")
    elif kind == "groups":
        mysql.execute(f"UPDATE remaining.g SET id = id + (id DIV {rng.randint(50, 9_000)}) * 100000 ORDER BY id DESC")
    elif kind == "one far away":
        mysql.execute(f"INSERT INTO remaining.g VALUES ({10 ** rng.randint(6, 15)}, 'last')")
    elif kind == "thinned":
        mysql.execute(f"DELETE FROM remaining.g WHERE CRC32(id) % 100 < {rng.randint(10, 90)} AND id > 9000")
    if rng.random() < 0.5:
        mysql.execute("ANALYZE TABLE remaining.g")
    return int(mysql.execute("SELECT COUNT(*) FROM remaining.g")[0][0])


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(4, 60))])
def test_rows_of_a_table_with_gaps_between_its_ids_are_counted(mysql: MySQLServer, seed: int) -> None:
    """At every batch, however the batches are cut: what is read, and what is left. Also in another process."""
    rng = random.Random(seed)
    rows = gaps(mysql, rng)
    given = {"intervalDuringBacklog": f"{rng.choice((20, 50, 100))} ms", "interval": "10 ms", "chunkSize": 2_000}
    stream = reader(options(mysql, "remaining.g", **given))
    offset, batches = stream.initialOffset(), 0
    while offset["isProcessingBacklog"]:
        offset, batches = stream.latestOffset(offset, ReadAllAvailable()), batches + 1
        read = Offset.from_json(offset)
        end = read.ranges[-1].end
        where = "" if end is None else f" WHERE id <= {end[0]}"
        done = int(mysql.execute(f"SELECT COUNT(*) FROM remaining.g{where}")[0][0])
        assert (read.rows, read.total) == (done, rows)
        if rng.random() < 0.2:
            stream = reader(options(mysql, "remaining.g", **given))
