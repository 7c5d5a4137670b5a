"""A short torture of `mysql_cdc`; ``make torture`` is the long one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from servers.mysql import MySQLServer
from servers.server import ServerError
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID

from .__main__ import crashed
from .lives import torture_lives
from .readers import torture_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.process


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS_IN_GRID)
def test_streams_say_what_the_log_says(kind: type[MySQLServer]) -> None:
    done = torture_readers(kind, seed=11, seconds=3)
    assert done["transactions in the log"] > 0
    assert done["batches"] > 0


def test_a_crash_of_the_server_itself_is_told_from_a_difference(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text, expected in (("12:00:00 UTC - mysqld got signal 11 ;\n", log), ("[ERROR] Can't start server\n", None)):
        log.write_text(text)
        lost = pymysql.err.OperationalError(2003, "refused")
        lost.__context__ = ServerError("mysql ended with status -11 before it was ready.", log)
        assert crashed(lost) == expected
    assert crashed(AssertionError("a row is missing")) is None


@pytest.mark.grid
def test_queries_that_are_killed_leave_what_the_log_says(spark: SparkSession, tmp_path: Path) -> None:
    done = torture_lives(spark, MySQLServer, seed=11, seconds=2, root=tmp_path)
    assert done["drivers killed"] == 1
    assert done["kill"] > 0
