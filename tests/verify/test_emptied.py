"""``bs.verify`` around TRUNCATE and DROP: before and after the compared position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.verification.verify import both_sides, compare
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID

from .jobs import create, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.mark.grid
@pytest.mark.parametrize("server", SERVERS_IN_GRID, indirect=True)
def test_a_truncate_after_the_compared_position_is_refused_until_the_query_has_read_it(
    spark: SparkSession, server: MySQLServer, tmp_path: Path
) -> None:
    create(server, "cut", 100)
    cut, sink = source(server, "verify.cut", chunkSize=30), bs.DeltaUpsert(str(tmp_path / "t"), keys=["id"])
    query = run_to_the_end(cut, tmp_path, sink, spark)
    at = both_sides(query)
    server.execute("DELETE FROM verify.cut WHERE id < 10")
    server.execute("TRUNCATE verify.cut")
    server.execute("INSERT INTO verify.cut VALUES (5, 5, 'new')")
    # Truncated after the verification was planned, and before.
    refused = r"verify\.cut was changed by .TRUNCATE verify\.cut.*Verify again after"
    with pytest.raises(BacklogError, match=refused) as told:
        compare(at)
    assert "tableEvents" not in str(told.value)
    with pytest.raises(BacklogError, match=refused):
        bs.verify(query, repair=True)
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 100
    query = run_to_the_end(cut, tmp_path, sink, spark)
    assert bs.verify(query).raise_for_differences().target_rows == 1


@pytest.mark.grid
@pytest.mark.parametrize("drops", [False, pytest.param(True, marks=pytest.mark.grid)])
def test_an_append_target_has_no_rows_from_before(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, drops: bool
) -> None:
    create(mysql, "one", 50)
    create(mysql, "two", 50)
    both, sink = source(mysql, "verify.one,verify.two"), bs.DeltaAppend(str(tmp_path / "t"))
    run_to_the_end(both, tmp_path, sink, spark)
    mysql.execute("UPDATE verify.two SET v = 'x' WHERE id < 5")
    if drops:
        run_to_the_end(both, tmp_path, sink, spark)
        create(mysql, "two", 20)
    else:
        mysql.execute("TRUNCATE verify.two")
        mysql.execute("INSERT INTO verify.two VALUES (7, 7, 'again')")
    for _ in range(3 if drops else 1):  # without the table, its snapshot, and the log
        query = run_to_the_end(both, tmp_path, sink, spark)
        mysql.execute("UPDATE verify.one SET n = n + 1")
    result = bs.verify(query)
    assert result.raise_for_differences().source_rows == 50 + (20 if drops else 1)
