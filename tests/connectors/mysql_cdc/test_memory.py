"""The memory of a worker and the size of an offset do not grow with the table."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.offsets import Offset, SnapshotRange
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column

from .replay import SERVERS_IN_GRID, options, reader

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

MIB = 1 << 20
MOST = 300 * MIB
TOTAL = 300_000
# Reads all chunks of a batch in a process of its own, as a worker does, and prints rows and peak memory.
WORKER = r"""
import json, re, sys
from pathlib import Path
from tests.connectors.mysql_cdc.replay import reader
given, start, end = json.loads(sys.argv[1])
stream = reader(given)
rows = sum(batch.num_rows for p in stream.partitions(start, end) for batch in stream.read(p))
# Not that of getrusage, which begins with what the process that started this one had.
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([rows, int(peak[1]) * 1024]))
"""


def started(mysql: MySQLServer, columns: str, rows: int, values: str, **more: object) -> tuple[Any, ...]:
    """A table of so many rows, given as expressions of a number ``i``, and the batch of its whole snapshot."""
    mysql.execute("DROP DATABASE IF EXISTS memory")
    mysql.execute("CREATE DATABASE memory")
    mysql.execute(f"CREATE TABLE memory.t ({columns})")
    step = 1_000
    numbers = f"WITH RECURSIVE s (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i + 1 < {min(rows, step)})"
    for first in range(0, rows, step):
        mysql.execute(f"INSERT INTO memory.t {numbers} SELECT {values} FROM (SELECT i + {first} AS i FROM s) AS t")
    given = options(mysql, "memory.t", **more)
    stream = reader(given)
    start = stream.initialOffset()
    return given, start, stream.latestOffset(start, ReadMaxRows(10**9))


def worker(batch: tuple[Any, ...]) -> tuple[int, int]:
    """Rows of a batch, and the peak memory of the process that read it."""
    command = [sys.executable, "-c", WORKER, json.dumps(batch)]
    rows, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return rows, peak


@pytest.mark.grid
@pytest.mark.parametrize("changes", [0, 1, 4])
def test_a_worker_stays_within_300_mib(mysql: MySQLServer, changes: int) -> None:
    """Chunks of the default size, of rows of 200 bytes, each of which was changed so many times meanwhile."""
    total, step = 300_000, 50_000
    batch = started(mysql, "id INT PRIMARY KEY, n INT, v VARCHAR(300)", total, "i, i, REPEAT('x', 200)")
    for _ in range(changes):
        for first in range(0, total, step):
            mysql.execute(f"UPDATE memory.t SET n = n + 1 WHERE id >= {first} AND id < {first + step}")
    rows, peak = worker(batch)
    assert rows == total
    assert peak < MOST


@pytest.mark.grid
@pytest.mark.parametrize("chunk", [50_000, 65_000])
def test_keys_that_changed_meanwhile_stay_on_disk(mysql: MySQLServer, chunk: int) -> None:
    """A row may have come from any chunk to any other, as what cuts the table is not what tells rows."""
    columns = "id VARCHAR(400) CHARACTER SET ascii PRIMARY KEY, n INT, KEY (n)"
    batch = started(mysql, columns, TOTAL, "CONCAT(i, REPEAT('x', 390)), i", chunkKeyColumn="n", chunkSize=chunk)
    mysql.execute(f"UPDATE memory.t SET n = {TOTAL} - n")
    rows, peak = worker(batch)
    assert rows == TOTAL
    assert peak < MOST


@pytest.mark.grid
@pytest.mark.parametrize("chunk_key", ["n", ""])
def test_rows_without_a_key_that_changed_meanwhile_stay_on_disk(mysql: MySQLServer, chunk_key: str) -> None:
    columns, values = "n INT, v VARCHAR(400), KEY (n)", "i, CONCAT(i, REPEAT('x', 390))"
    batch = started(mysql, columns, TOTAL, values, chunkKeyColumn=chunk_key, chunkSize=50_000)
    mysql.execute(f"UPDATE memory.t SET n = {TOTAL} - n, v = REPLACE(v, 'x', 'y')")
    rows, peak = worker(batch)
    assert rows == TOTAL
    assert peak < MOST


LARGE = "i, i, REPEAT('x', 400000)"


@pytest.mark.slow
@pytest.mark.parametrize("mysql", SERVERS_IN_GRID, indirect=True)  # one worker reads from both
def test_large_rows_are_held_a_few_at_a_time(mysql: MySQLServer) -> None:
    """400 MB of them."""
    rows, peak = worker(started(mysql, "id INT PRIMARY KEY, n INT, v LONGBLOB", 1_000, LARGE))
    assert rows == 1_000
    assert peak < MOST


@pytest.mark.grid
@pytest.mark.parametrize("key", ["", " PRIMARY KEY"])
def test_large_rows_that_change_are_held_a_few_at_a_time(mysql: MySQLServer, key: str) -> None:
    """400 MB of them, and twice that in the log since, which is rewound and then followed."""
    rows, step = 1_000, 250
    given, _, end = batch = started(mysql, f"id INT{key}, n INT, v LONGBLOB", rows, LARGE)
    for first in range(0, rows, step):
        mysql.execute(f"UPDATE memory.t SET n = n + 1 WHERE id >= {first} AND id < {first + step}")
    found, peak = worker(batch)
    assert found == rows
    assert peak < MOST
    found, peak = worker((given, end, reader(given).latestOffset(end, ReadMaxRows(10**9))))
    assert found == 2 * rows
    assert peak < MOST


def test_the_offset_of_a_hundred_million_rows_is_small() -> None:
    columns = tuple(Column(f"column_{i}", "varchar", "varchar(200)", charset="utf8mb4") for i in range(30))
    offset = Offset(server="3e11fa47-71ca-11e1-9e33-c80aa9429562", tables=(TableSchema("shop", "orders", columns),))
    gtids = ",".join(f"3e11fa47-71ca-11e1-9e33-c80aa94295{i:02d}:1-123456789" for i in range(3))
    rows = 200_000
    for number in range(1, 501):
        low = f"{gtids}:{number}"
        offset = offset.with_snapshot([SnapshotRange((number * rows,), low, 1_795_291_868_543, 0, rows)], 10**8, None)
    assert offset.rows == 10**8
    text = json.dumps(offset.to_json())
    assert len(text) < MIB / 4
    assert Offset.from_json(json.loads(text)) == offset
