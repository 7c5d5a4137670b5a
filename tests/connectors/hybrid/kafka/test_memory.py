"""A worker's memory for a partition is bounded, however large its records."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .broker import Broker

# Runs have taken up to 317 MB. All records at once would take 500 MB, and their copies in Arrow as much again.
MOST = 400 << 20
# Reads a topic as a worker does, and prints the number of records, their bytes and the process's peak memory.
WORKER = r"""
import json, re, sys
from pathlib import Path
from backlog_spark.connectors.hybrid.kafka.arrow import raw_schema
from backlog_spark.connectors.hybrid.kafka.phase import KafkaPhase
from backlog_spark.connectors.hybrid.phases import Columns, Limit
phase = KafkaPhase("kafka", json.loads(sys.argv[1]), None)
phase.open(Columns(raw_schema(False), ()))
begin = phase.begin({})
end = phase.next(begin, Limit(None), 0).position
batches = [(batch.num_rows, batch.nbytes) for p in phase.partitions(begin, end) for batch in phase.read(p)]
phase.close()
# Not that of getrusage, which begins with what the process that started this one had.
peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([*map(sum, zip(*batches)), int(peak[1]) * 1024]))
"""


@pytest.mark.slow
def test_large_records_are_held_a_few_at_a_time(broker: Broker) -> None:
    """500 MB of them behind as many small ones as are read at a time otherwise."""
    topic = broker.topic(retention_bytes="-1")
    broker.send(topic, ["x"] * 20_000)
    broker.send(topic, [b"x" * 900_000] * 550)
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic}
    command = [sys.executable, "-c", WORKER, json.dumps(options)]
    rows, size, peak = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    broker.delete(topic)
    assert rows == 20_550
    assert size > 495_000_000
    assert peak < MOST
