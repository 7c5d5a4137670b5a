"""``bs.verify`` at a replica: the checkpoint is of the server before."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID
from tests.connectors.mysql_cdc.server.test_failover import caught_up, replicating, word

from .jobs import create, found, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.grid
@pytest.mark.parametrize("kind", SERVERS_IN_GRID)
def test_a_target_is_compared_with_the_replica_at_the_place_of_the_checkpoint(
    spark: SparkSession, kind: type[MySQLServer], tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    with contextlib.ExitStack() as stack:
        first, second = replicating(stack, kind)
        create(first, "moved", 200)
        sink = bs.DeltaUpsert(path, keys=["id"])
        run_to_the_end(source(first, "verify.moved", chunkSize=60), tmp_path, sink, spark)
        first.execute("UPDATE verify.moved SET v = 'log' WHERE id % 3 = 0")
        run_to_the_end(source(first, "verify.moved", chunkSize=60), tmp_path, sink, spark)
        caught_up(first, second)
        # The target has none of these, at either server.
        first.execute("DELETE FROM verify.moved WHERE id % 5 = 0")
        first.execute("UPDATE verify.moved SET id = id + 1000, v = 'later' WHERE id % 5 = 1")
        caught_up(first, second)
        there, checkpoint = source(second, "verify.moved", chunkSize=60), str(tmp_path / "checkpoint")
        result = bs.verify(there, sink, checkpoint=checkpoint, spark=spark)
        assert result.raise_for_differences().source_rows == 200
        DeltaTable(path).delete("id = 7")
        DeltaTable(path).update(predicate="id = 8", updates={"v": "'wrong'"})
        result = bs.verify(there, sink, checkpoint=checkpoint, spark=spark, repair=True)
        assert found(result) == {("missing", 7): (), ("different", 8): ("v",)}
        assert bs.verify(there, sink, checkpoint=checkpoint, spark=spark).is_equal
        # A replica that lacks transactions of the checkpoint cannot tell what the rows were.
        second.execute(f"STOP {word(second)}")
        first.execute("INSERT INTO verify.moved VALUES (9999, 0, 'not there')")
        run_to_the_end(source(first, "verify.moved", chunkSize=60), tmp_path, sink, spark)
        with pytest.raises(BacklogError, match=r"lacks transactions.*when it has caught up"):
            bs.verify(there, sink, checkpoint=checkpoint, spark=spark)
        second.execute(f"START {word(second)}")
        caught_up(first, second)
        query = run_to_the_end(there, tmp_path, sink, spark)
        assert bs.verify(query).raise_for_differences().target_rows == 161
