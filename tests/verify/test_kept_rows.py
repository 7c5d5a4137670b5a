"""``bs.verify`` of tables with marks, archives and versions, written from a real server's snapshot and log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import SettingError

from .jobs import create, found, run_to_the_end, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

FORMS: dict[str, dict[str, Any]] = {
    "soft": {"deletes": "soft", "deleted_at_column": "gone_at"},
    "ignore": {"deletes": "ignore"},
    "scd2": {"history": "scd2"},
}
THERE = {"soft": "NOT _is_deleted", "ignore": "id <> 2 AND id <> 4", "scd2": "is_current"}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_only_the_rows_of_now_count(spark: SparkSession, mysql: MySQLServer, tmp_path: Path, form: str) -> None:
    table = f"kept_{form}"
    create(mysql, table, 6)
    of, path = source(mysql, f"verify.{table}"), str(tmp_path / "t")
    sink = bs.DeltaUpsert(path, keys=["id"], **FORMS[form])
    run_to_the_end(of, tmp_path, sink, spark)
    mysql.execute(f"DELETE FROM verify.{table} WHERE id = 1")
    mysql.execute(f"UPDATE verify.{table} SET v = 'new', id = IF(id = 2, 7, id) WHERE id IN (2, 3)")
    mysql.execute(f"INSERT INTO verify.{table} VALUES (1, 1, 'back'), (8, 8, 'gone')")
    mysql.execute(f"DELETE FROM verify.{table} WHERE id IN (4, 8)")
    query = run_to_the_end(of, tmp_path, sink, spark)
    result = bs.verify(query).raise_for_differences()
    assert result.source_rows == 5
    assert result.left_out == ()
    rows = spark.read.format("delta").load(path)
    there = {(row["id"], row["v"]) for row in rows.where(THERE[form]).collect()}
    now = {(0, "s0"), (1, "back"), (3, "new"), (5, "s5"), (7, "new")}
    assert there == (now | {(8, "gone")} if form == "ignore" else now)
    assert rows.count() == {"soft": 8, "ignore": 8, "scd2": 10}[form]

    spark.sql(f"UPDATE delta.`{path}` SET v = 'wrong' WHERE id = 5 AND {THERE[form]}")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 0")
    wrong = {("different", 5): ("v",), ("missing", 0): ()}
    if form == "soft":
        spark.sql(f"UPDATE delta.`{path}` SET _is_deleted = (id <> 4), gone_at = NULL WHERE id IN (1, 4)")
        wrong |= {("missing", 1): (), ("extra", 4): ()}
    assert found(bs.verify(query)) == wrong
    if form == "scd2":
        with pytest.raises(SettingError, match=r"repair = True: a table with history keeps all versions"):
            bs.verify(query, repair=True)
        return
    assert bs.verify(query, repair=True).repaired == len(wrong)
    bs.verify(query).raise_for_differences()
    assert spark.read.format("delta").load(path).count() == 8
    if form == "soft":
        rows = spark.read.format("delta").load(path).where("_is_deleted")
        marked = {row["id"]: row["gone_at"] for row in rows.collect()}
        assert marked.keys() == {2, 4, 8}
        assert all(marked.values())
