"""Tables that were altered since the compared position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError

from .jobs import create, found, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer


@pytest.mark.grid
def test_columns_that_were_altered_meanwhile(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "wide", 12)
    wide, path = source(mysql, "verify.wide", chunkSize=5), str(tmp_path / "t")
    sink = bs.DeltaUpsert(path, keys=["id"], merge_schema=True)
    query = run_to_the_end(wide, tmp_path, sink, spark)
    mysql.execute("UPDATE verify.wide SET v = 'a' WHERE id = 1")
    mysql.execute("ALTER TABLE verify.wide ADD COLUMN w INT DEFAULT 5 FIRST")
    mysql.execute("UPDATE verify.wide SET v = 'b' WHERE id IN (1, 2)")
    mysql.execute("DELETE FROM verify.wide WHERE id = 3")
    result = bs.verify(query).raise_for_differences()
    assert (result.source_rows, sorted(result.columns), result.left_out) == (12, ["id", "n", "v"], ())
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    assert found(bs.verify(query)) == {("missing", 2): ()}
    # Earlier rows lack the default that the server gave them.
    query = run_to_the_end(wide, tmp_path, sink, spark)
    result = bs.verify(query)
    assert found(result) == {("different", key): ("w",) for key in (0, *range(4, 12))}
    mysql.execute("UPDATE verify.wide SET w = 6")
    query = run_to_the_end(wide, tmp_path, sink, spark)
    assert bs.verify(query).raise_for_differences().source_rows == 11
    # A column that is gone is not compared.
    mysql.execute("ALTER TABLE verify.wide DROP COLUMN n")
    result = bs.verify(query).raise_for_differences()
    assert (sorted(result.columns), result.left_out) == (["id", "v", "w"], ("n",))
    assert "not compared: n" in repr(result)
    # A column is the same one under its new name, and another one that has its old name is not.
    mysql.execute("ALTER TABLE verify.wide RENAME COLUMN v TO x, RENAME COLUMN w TO v")
    mysql.execute("ALTER TABLE verify.wide DROP COLUMN v, ADD COLUMN v INT DEFAULT 9")
    mysql.execute("UPDATE verify.wide SET x = 'later' WHERE id = 5")
    result = bs.verify(query).raise_for_differences()
    assert (sorted(result.columns), result.left_out) == (["id", "v"], ("n", "w"))
    spark.sql(f"UPDATE delta.`{path}` SET v = 'other' WHERE id = 5")
    assert found(bs.verify(query)) == {("different", 5): ("v",)}
    mysql.execute("ALTER TABLE verify.wide MODIFY x VARBINARY(20)")
    with pytest.raises(BacklogError, match=r"verify\.wide was altered|is binary in the source, and string"):
        bs.verify(query)
