"""``bs.verify(query, repair=True)`` while the query and writers go on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.verification.verify import both_sides, compare
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID, table_rows

from .jobs import EVERY, Beside, commit, corrupt, create, found, source, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

ROWS = 600


def has_committed(query: bs.BacklogQuery) -> bool:
    return query.backlogProgress.commits_in_backlog + query.backlogProgress.commits_after > 0


def started(of: Any, root: Path, spark: SparkSession) -> bs.BacklogQuery:
    made = of.write("t").trigger(processing_time="200 ms", interval_during_backlog="1 second")
    made = made.option("checkpointLocation", str(root / "checkpoint"))
    query: bs.BacklogQuery = made.to(bs.DeltaUpsert(str(root / "target"), keys=["id"])).start(spark)
    wait(lambda: not query.isProcessingBacklog and has_committed(query), query)
    return query


@pytest.mark.grid
@pytest.mark.parametrize("server", SERVERS_IN_GRID, indirect=True)
def test_it_mends_exactly_what_differs_while_query_and_writers_go_on(
    spark: SparkSession, server: MySQLServer, tmp_path: Path
) -> None:
    create(server, "mended", ROWS)
    path, chance = str(tmp_path / "target"), random.Random(9)
    writers = Beside(server, "verify.mended", 5, threads=2, keys=ROWS, pause=0.02)
    with writers:
        server.execute("UPDATE verify.mended SET n = n + 1 WHERE id = 0")
        query = started(source(server, "verify.mended", chunkSize=50), tmp_path, spark)
        try:
            expected = corrupt(path, chance, list(range(0, ROWS, EVERY)), [-5, 10**6])
            # And keys that the writers change meanwhile.
            commit(path, lambda t: t.delete("id % 20 = 1 AND id % 3 <> 0"))
            commit(path, lambda t: t.update(predicate="id % 20 = 2 AND id % 3 <> 0", updates={"v": "'wrong'"}))
            result = bs.verify(query, repair=True, max_differences=1000)
            assert expected.items() <= found(result).items()
            assert result.repaired == result.count
            assert 0 < result.differing_chunks <= result.chunks
            assert bs.verify(query).raise_for_differences()
            expected = corrupt(path, chance, list(range(0, 50, EVERY)), [-7])
            result = bs.verify(query, repair=True)
            assert found(result) == expected
            assert 0 < result.differing_chunks < result.chunks, "only these were read again"
            assert bs.verify(query).raise_for_differences()
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    rows = {row["id"]: tuple(row) for row in spark.read.format("delta").load(path).collect()}
    assert rows == table_rows(server, "verify.mended")


@pytest.mark.slow
def test_keys_that_the_query_wrote_since_keep_their_newer_rows(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    create(mysql, "since", 100)
    path = str(tmp_path / "target")
    mysql.execute("INSERT INTO verify.since VALUES (100, 0, 'first')")
    query = started(source(mysql, "verify.since", chunkSize=20), tmp_path, spark)
    try:
        query.processAllAvailable()
        commit(path, lambda t: t.delete("id IN (1, 2, 3)"))
        commit(path, lambda t: t.update(predicate="id IN (11, 12, 13)", updates={"v": "'wrong'"}))
        twice = DeltaTable(path).to_pyarrow_table(filters=[("id", "in", [21, 22, 23])])
        extra = pa.table({"id": pa.array([201, 202, 203], pa.int32()), "n": [0.5] * 3, "v": ["x"] * 3})
        for rows in (twice, extra):
            commit(path, lambda t, r=rows: write_deltalake(t, r, mode="append"))  # type: ignore[misc]
        at = both_sides(query)
        mysql.execute("DELETE FROM verify.since WHERE id IN (2, 12, 22)")
        mysql.execute("UPDATE verify.since SET v = 'new' WHERE id IN (3, 23)")
        mysql.execute("UPDATE verify.since SET v = 'wrong' WHERE id = 13")  # as the target has it already
        mysql.execute("INSERT INTO verify.since VALUES (201, 1, 'now there')")
        mysql.execute("UPDATE verify.since SET id = 202 WHERE id = 50")
        query.processAllAvailable()
        result = compare(at, repair=True, running=query)
        assert (result.missing, result.different, result.doubled, result.extra) == (3, 3, 3, 3)
        assert bs.verify(query).raise_for_differences()
        rows = {row["id"]: tuple(row) for row in spark.read.format("delta").load(path).collect()}
        assert rows == table_rows(mysql, "verify.since")
        # Nothing is repaired if the table was emptied since.
        commit(path, lambda t: t.delete("id = 4"))
        at = both_sides(query)
        mysql.execute("TRUNCATE verify.since")
        mysql.execute("INSERT INTO verify.since VALUES (4, 4, 'again')")
        query.processAllAvailable()
        with pytest.raises(BacklogError, match=r"Verify again"):
            compare(at, repair=True, running=query)
        assert bs.verify(query, repair=True).raise_for_differences().target_rows == 1
    finally:
        query.stop()
