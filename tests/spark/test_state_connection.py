"""Tasks with state leave no file descriptor behind in Spark's JVM."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.spark.jvm.internals import SWITCH
from backlog_spark.spark.plan import state_connection
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append
from tests.operators.test_vehicles import AGGREGATES, KEYS, expected, rows, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCHES = 10


def sockets(pid: int) -> int:
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # it has just been closed
            count += str(entry.readlink()).startswith("socket:")
    return count


@pytest.mark.slow
def test_batches_with_state_leave_no_socket_open(spark: SparkSession, tmp_path: Path) -> None:
    """Each task of each batch left one before (SPARK-58932)."""
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    tables, counts = [], []
    sink = Collect()
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    tables.append(rows(random.Random(0), 200, 0))
    append(tmp_path / "s", tables[0], backlog=False)
    query = start(spark, source.key_by(*KEYS).aggregate(AGGREGATES), sink, tmp_path)
    try:
        for number in range(1, _BATCHES + 2):
            wait(lambda: len(sink.batches) == len(tables), query)
            counts.append(sockets(jvm))
            tables.append(rows(random.Random(number), 200, number * 1_000))
            append(tmp_path / "s", tables[-1], backlog=False)
        wait(lambda: len(sink.batches) == len(tables), query)
    finally:
        query.stop()
    # Workers, the planner and py4j open and close some. A leak is of two tasks or more for each batch.
    assert counts[-1] - counts[1] < _BATCHES, counts
    assert sink.newest(len(KEYS)) == expected(spark, tables)


def test_only_the_last_state_of_a_task_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.delenv(SWITCH, raising=False)

    def client(state: str) -> SimpleNamespace:
        return SimpleNamespace(
            handle_state=SimpleNamespace(name=state), set_handle_state=lambda state: told.append(state.name)
        )

    done, before = client("TIMER_PROCESSED"), client("PRE_INIT")
    for one in (done, before):
        state_connection.leave_waiting(SimpleNamespace(_statefulProcessorApiClient=one))
        one.set_handle_state(SimpleNamespace(name="DATA_PROCESSED"))
        one.set_handle_state(SimpleNamespace(name="CLOSED"))
    assert told == ["DATA_PROCESSED", "DATA_PROCESSED", "CLOSED"]
    assert state_connection._held == [done]
    state_connection.leave_waiting(SimpleNamespace())
    assert state_connection._held == [done]
    monkeypatch.setenv(SWITCH, "off")
    plain = client("TIMER_PROCESSED")
    state_connection.leave_waiting(SimpleNamespace(_statefulProcessorApiClient=plain))
    plain.set_handle_state(SimpleNamespace(name="CLOSED"))
    assert told[-2:] == ["CLOSED", "CLOSED"]
