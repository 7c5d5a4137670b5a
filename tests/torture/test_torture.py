"""A short torture of `mysql_cdc`; ``make torture`` is the long one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backlog_spark.embedded.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID

from .lives import torture_lives
from .readers import torture_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kind", SERVERS_IN_GRID)
def test_streams_say_what_the_log_says(kind: type[MySQLServer]) -> None:
    done = torture_readers(kind, seed=11, seconds=3)
    assert done["transactions in the log"] > 0
    assert done["batches"] > 0


@pytest.mark.grid
def test_queries_that_are_killed_leave_what_the_log_says(spark: SparkSession, tmp_path: Path) -> None:
    done = torture_lives(spark, MySQLServer, seed=11, seconds=2, root=tmp_path)
    assert done["drivers killed"] == 1
    assert done["kill"] > 0
