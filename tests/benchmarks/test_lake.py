"""The lake benchmark: its changes, its hashes, its page, what a program's processes take, and the whole in small."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import subprocess
import sys
import time
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from benchmarks import lake_page as page
from benchmarks.lake_table import Changes, Fingerprint
from benchmarks.lake_target import DeltaTarget, first_equal, micros
from benchmarks.lake_topic import TopicTarget
from benchmarks.measured import Ended, Measured
from tests.integration.topics import Topic

if TYPE_CHECKING:
    from servers.kafka import KafkaServer

ROOT = Path(__file__).parents[2]
AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)


def test_changes_are_a_tenth_and_meet_each_row_once() -> None:
    changes = Changes(100_000, AT)
    updated, deleted = list(changes.updated()), list(changes.deleted())
    assert (len(changes), len(updated), len(deleted)) == (10_000, 5_000, 2_500)
    assert len({*updated, *deleted}) == 7_500
    assert all(1 <= row <= 100_000 for row in chain(updated, deleted))
    transactions = list(changes.transactions())
    assert len(transactions) == 10
    assert all(f"'{changes.last}'" in statement for statement in transactions[-1][:2])
    assert transactions[-1][1].endswith(f"'{changes.last}')")
    assert sum(insert.count("'new order ") for _, insert, _ in transactions) == 2_500


def test_few_changes_are_one_transaction() -> None:
    changes = Changes(40, AT)
    ((update, insert, delete),) = changes.transactions()
    assert update.endswith(f"WHERE id IN ({','.join(map(str, changes.updated()))})")
    assert insert.count("(41,") == 1
    assert delete == f"DELETE FROM shop.orders WHERE id IN ({changes.deleted()[0]})"
    assert changes.last == AT + dt.timedelta(seconds=1)


def _orders(ids: list[int], note: str | None = None) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "customer_id": pa.array([7] * len(ids), pa.int32()),
            "status": ["paid"] * len(ids),
            "amount": pa.array([Decimal("12.30")] * len(ids), pa.decimal128(12, 2)),
            "discount": [1 / 7] * len(ids),
            "quantity": [3] * len(ids),
            "note": pa.array([note] * len(ids), pa.string()),
            "ordered_on": [dt.date(1970, 1, 3)] * len(ids),
            "created_at": pa.array([AT] * len(ids), pa.timestamp("us")),
            "updated_at": pa.array([AT + dt.timedelta(seconds=i) for i in ids], pa.timestamp("us", "UTC")),
        }
    )


def _hashed(row: int, note: str, updated: int | None = None) -> int:
    updated = micros(AT + dt.timedelta(seconds=row if updated is None else updated))
    text = f"{row}|7|paid|1230|142857143|3|{note}|2|{micros(AT)}|{updated}"
    return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)


def test_the_fingerprint_of_a_delta_table(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    assert target.newest() is None
    deltalake.write_deltalake(tmp_path, _orders([1, 2]))
    deltalake.write_deltalake(tmp_path, _orders([3], "a|b"), mode="append")
    version = target.newest()
    assert version is not None
    assert target.quick(version) == (3, micros(AT) + 3_000_000)
    expected = [_hashed(1, "~"), _hashed(2, "~"), _hashed(3, "a|b")]
    assert target.fingerprint(version) == Fingerprint(3, sum(expected))
    assert target.fingerprint(version, [2]) == Fingerprint(2, expected[0] + expected[2])


def test_the_first_version_that_is_equal(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    deltalake.write_deltalake(tmp_path, _orders([1, 2]))
    deltalake.write_deltalake(tmp_path, _orders([3]), mode="append")
    for _ in range(2):  # it does not change a row
        deltalake.DeltaTable(str(tmp_path)).optimize.compact()
        deltalake.write_deltalake(tmp_path, _orders([]), mode="append")
    version = target.newest()
    assert version is not None
    assert version.number > 2
    assert first_equal(target, version).number == 1


def test_the_newest_record_of_each_key_is_its_row(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, "lake-newest").name

    def send(key: int, row: dict[str, object] | None) -> None:
        value = None if row is None else json.dumps({"id": key, **row})
        producer.produce(topic, value, json.dumps({"id": key}), partition=key % 2)

    row = {
        "customer_id": 7, "status": "paid", "amount": 12.30, "discount": 1 / 7, "quantity": 3, "note": "new",
        "ordered_on": "1970-01-03", "created_at": str(AT), "updated_at": str(AT + dt.timedelta(seconds=2)),
    }  # fmt: skip
    producer = Producer({"bootstrap.servers": kafka.address(), "log_level": "0"})
    for key, sent in ((1, row), (2, {**row, "note": "old"}), (3, row), (2, row), (1, None)):
        send(key, sent)
        producer.flush()
    target = TopicTarget(kafka.address(), topic, 2, 10, tmp_path)
    try:
        version = target.newest()
        assert version is not None
        assert version.number == 5
        assert target.quick(version) == (2, micros(AT) + 2_000_000)
        only = target.fingerprint(version)
        assert (only.rows, only.hashes - _hashed(2, "new")) == (2, _hashed(3, "new", updated=2))
        send(3, None)
        producer.flush()
        version = target.newest()
        assert version is not None
        assert target.fingerprint(version) == Fingerprint(1, _hashed(2, "new"))
        assert first_equal(target, version) == version
    finally:
        target.close()


BURNS = """
import os, subprocess, sys, time
held = bytearray(os.urandom(1 << 20) * 64)
child = "import time\\nwhile time.process_time() < 0.4: pass"
# Its parent ends before it, and does not wait.
subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"])
while time.process_time() < 0.3: pass
print("READY", flush=True)
sys.stdin.read()
print("SNAPSHOT", flush=True)
"""


@pytest.mark.process
def test_what_the_processes_of_a_program_take(tmp_path: Path) -> None:
    with Measured([sys.executable, "-c", BURNS], tmp_path / "log") as program:
        ready = program.said("READY", 60)
        while program.sampler.cpu(time.time()) < 0.7 or program.sampler.peak() < 64 << 20:
            time.sleep(0.1)  # the test ends by its own limit if a process is not counted
    assert program.sampler.cpu(ready) >= 0.3
    assert program.sampler.cpu(time.time()) >= 0.7
    assert 64 << 20 <= program.sampler.peak() < 1 << 30
    assert program.said("SNAPSHOT", 0) > ready


@pytest.mark.process
def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such table')"]
    with Measured(command, tmp_path / "log") as program, pytest.raises(Ended, match="status 1: no such table"):
        program.said("SNAPSHOT", 60)
    command = [sys.executable, "-c", "input()"]
    with Measured(command, tmp_path / "log") as program, pytest.raises(Ended, match="not done within 0 s"):
        program.said("SNAPSHOT", 0)


def _row(name: str, rows: int, snapshot_s: float, why: str = "") -> page.Row:
    row = page.Row(name, rows, rows // 10, "1.0", "2026-01-02", why=why)
    if not why:
        row.runs = [
            page.Run(
                snapshot_s=seconds, start_s=2.0, snapshot_cpu=30.0, start_cpu=10.0, snapshot_memory=2**30,
                servers_cpu=[4.0, 5.0], changing_s=3.0, changes_s=1.5, changes_cpu=9.0, memory=2**31,
                servers_changes_cpu=[1.0],
            )
            for seconds in (snapshot_s, snapshot_s + 100, snapshot_s - 1)
        ]  # fmt: skip
    return row


FACTS = page.Facts(2, 23, "8.0.15", "Linux x86_64")


def test_the_page() -> None:
    rows = [_row("dlt", 10**7, 0, why="differs: a | b"), _row("ours", 10**7, 50), _row("spark_jdbc", 10**6, 10)]
    lines = page.text(rows, FACTS).splitlines()
    assert (
        "| `mysql_cdc`, `DeltaUpsert` | 200,000 | 50.0 | 2.0 | **3.00** | 2.00 | 1,024 | MySQL 4.0, Kafka 5.0 "
        "| 2026-01-02 |" in lines
    )
    assert "| `mysql_cdc`, `DeltaUpsert` | 1.5 | 3.0 | **9.0** | 2,048 | MySQL 1.0 |" in lines
    assert lines.index("## 10,000,000 rows") < lines.index("## 1,000,000 rows")
    assert "| 10,000,000 | dlt | differs: a \\| b | 2026-01-02 |" in lines
    assert "| command | `make bench CASE=lake ROWS=1000000,10000000 WRITE=1` |" in lines


def test_figures_are_kept_from_run_to_run(tmp_path: Path) -> None:
    page.write([_row("ours", 10**6, 50), _row("dlt", 10**6, 70)], FACTS, tmp_path)
    page.write([_row("ours", 10**6, 40)], FACTS, tmp_path)
    stored = {row["name"]: page.Row.of(row) for row in json.loads((tmp_path / "lake.json").read_text())}
    assert {name: row.median("snapshot_s") for name, row in stored.items()} == {"ours": 40, "dlt": 70}
    text = (tmp_path / "lake.md").read_text()
    assert "| 25,000 | 40.0 |" in text
    assert "| 14,286 | 70.0 |" in text


@pytest.mark.grid  # three JVMs
def test_the_whole_in_small() -> None:
    command = [sys.executable, "-m", "benchmarks.lake", "--rows", "20000", "--peers", "ours,spark_jdbc"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [line["variant"] for line in found] == [
        "rows=20000 snapshot", *(f"rows=20000 {label}" for label in page.COSTS.values())
    ]  # fmt: skip
    assert all(line["ratios"]["spark_jdbc"] > 0 for line in found)
