"""What a worker holds in memory, and what an offset holds, however large the table."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from connectors.mysql_cdc.offsets import Offset, SnapshotRange
from connectors.mysql_cdc.schema import TableSchema
from connectors.mysql_cdc.types import Column

from .replay import options, reader

if TYPE_CHECKING:
    from backlog_spark.embedded.mysql import MySQLServer

MIB = 1 << 20
MOST = 300 * MIB
# Reads all chunks of a batch in a process of its own, as a worker does, and prints rows and peak memory.
WORKER = """
import json, resource, sys
from tests.connectors.mysql_cdc.replay import reader
given, start, end = json.loads(sys.argv[1])
stream = reader(given)
rows = sum(batch.num_rows for p in stream.partitions(start, end) for batch in stream.read(p))
print(json.dumps([rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


@pytest.mark.grid
@pytest.mark.parametrize("changes", [0, 1, 4])
def test_a_worker_stays_within_300_mib(mysql: MySQLServer, changes: int) -> None:
    """Chunks of the default size, of rows of 200 bytes, each of which was changed so many times meanwhile."""
    total, step = 300_000, 5_000
    mysql.execute("DROP DATABASE IF EXISTS memory")
    mysql.execute("CREATE DATABASE memory")
    mysql.execute("CREATE TABLE memory.t (id INT PRIMARY KEY, n INT, v VARCHAR(300))")
    for first in range(0, total, step):
        values = ",".join(f"({i}, {i}, REPEAT('x', 200))" for i in range(first, first + step))
        mysql.execute(f"INSERT INTO memory.t VALUES {values}")
    given = options(mysql, "memory.t")
    stream = reader(given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10**9))
    for _ in range(changes):
        for first in range(0, total, 10 * step):
            mysql.execute(f"UPDATE memory.t SET n = n + 1 WHERE id >= {first} AND id < {first + 10 * step}")
    command = [sys.executable, "-c", WORKER, json.dumps([given, start, end])]
    rows, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert rows == total
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
