"""SIGKILL of a driver that commits by delta-rs: before, within and after its commits and its merges of small files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.faults.direct_job import APP, after, changes, empty, log
from tests.sinks.keeping_rows import plain_rows, versions

pytestmark = pytest.mark.process

LIMIT_S = 120


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.grid)])
@pytest.mark.parametrize("kind", ["append", "merge", "versions"])
def test_killed_at_any_moment(tmp_path: Path, kind: str, kills: int) -> None:
    table, noted, output = tmp_path / "t", tmp_path / "noted", tmp_path / "log"
    rows_of_batches = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())})
    write_deltalake(table, empty() if kind == "versions" else rows_of_batches)
    moments = random.Random(kind)
    for _ in range(kills):
        before = _batches(table)
        with output.open("wb") as out:
            command = [sys.executable, "-m", "tests.faults.direct_job", kind, str(table), str(noted)]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            limit = time.monotonic() + LIMIT_S
            while _batches(table) < before + moments.randrange(1, 12):
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < limit
            time.sleep(moments.random() * 0.03)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    batches = _batches(table)
    if kind == "versions":
        read = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t").read_all()
        kept = [[_naive(each) for each in row.values()] for row in pa.table(read).to_pylist()]
        assert plain_rows(kept) == versions(change for batch in range(batches) for change in log(batch))
        return
    found = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT id, v FROM t").read_all()
    rows = Counter(zip(*(pa.table(found)[name].to_pylist() for name in ("id", "v")), strict=True))
    if kind == "append":
        assert rows == Counter((key, value) for batch in range(batches) for key, value, _ in changes(batch))
    else:
        assert rows == Counter(after(batches).items())


def _naive(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _batches(table: Path) -> int:
    newest = DeltaTable(table).transaction_version(APP)
    return 0 if newest is None else newest + 1
