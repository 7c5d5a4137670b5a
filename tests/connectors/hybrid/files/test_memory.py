"""A worker's memory for a file is bounded, however large its rows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.process

MOST = 300 << 20
# Reads files as a worker does, and prints the number of rows, their bytes and the process's peak memory.
WORKER = r"""
import json, re, sys
from pathlib import Path
import pyarrow as pa
from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns, Limit
phase = FilePhase("files", {"path": f"{sys.argv[1]}/data", "metadataLocation": f"{sys.argv[1]}/meta"})
phase.open(Columns(pa.schema([("id", pa.int64()), ("v", pa.binary())]), ()))
begin = phase.begin({})
end = phase.next(begin, Limit(None), 0).position
batches = [(batch.num_rows, batch.nbytes) for p in phase.partitions(begin, end) for batch in phase.read(p)]
phase.close()
# Not that of getrusage, which begins with what the process that started this one had.
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([*map(sum, zip(*batches)), int(peak[1]) * 1024]))
"""


def test_large_rows_are_held_a_few_at_a_time(tmp_path: Path) -> None:
    """500 MB of them in one row group."""
    (tmp_path / "data").mkdir()
    chance = random.Random(1)
    values = [chance.randbytes(500_000) for _ in range(1_000)]
    pq.write_table(pa.table({"id": list(range(1_000)), "v": values}), tmp_path / "data/a.parquet", write_batch_size=10)
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    rows, size, peak = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert rows == 1_000
    assert size > 500_000_000
    assert peak < MOST
