"""The cluster of these tests: one for the whole run, as each test submits applications of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.spark_cluster import SparkCluster

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A master and two workers of one core each. Executors find the tests' modules."""
    with SparkCluster(environment={"PYTHONPATH": str(REPOSITORY)}) as running:
        yield running
