"""`DeltaTables` that keep versions or marked rows, on a real server, with an ALTER, a TRUNCATE and a DROP."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs

from .test_delta_tables import server, source, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

__all__ = ["server"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["scd2", "soft"])
def test_a_database(spark: SparkSession, server: MySQLServer, tmp_path: Path, form: str) -> None:
    name = f"kept_{form}"
    server.execute(f"DROP DATABASE IF EXISTS {name}")
    server.execute(f"CREATE DATABASE {name}")
    for table in ("a", "b", "c"):
        server.execute(f"CREATE TABLE {name}.{table} (id INT PRIMARY KEY, n INT)")
        server.execute(f"INSERT INTO {name}.{table} VALUES (1, 1), (2, 2)")
    arguments: dict[str, Any] = {"history": "scd2"} if form == "scd2" else {"deletes": "soft"}
    stream, sink = source(server, rf"{name}\..*"), bs.DeltaTables(str(tmp_path / "lake"), **arguments)
    query = started(spark, stream, sink, tmp_path)
    try:
        query.processAllAvailable()
        server.execute(f"UPDATE {name}.a SET n = 7 WHERE id = 1")
        server.execute(f"DELETE FROM {name}.a WHERE id = 2")
        server.execute(f"TRUNCATE TABLE {name}.b")
        server.execute(f"INSERT INTO {name}.b VALUES (2, 2)")
        server.execute(f"DROP TABLE {name}.c")
        query.processAllAvailable()
        server.execute(f"ALTER TABLE {name}.a ADD COLUMN more VARCHAR(9) DEFAULT 'x'")
        server.execute(f"INSERT INTO {name}.a VALUES (2, 2, 'y')")
        query.processAllAvailable()
        query.processAllAvailable()
        results = bs.verify_tables(query)
    finally:
        query.stop()
    assert query.exception() is None
    assert results.keys() == {f"{name}.a", f"{name}.b"}
    assert all(each.is_equal for each in results.values())
    flag = "is_current" if form == "scd2" else "_is_deleted"
    lake = tmp_path / "lake" / name
    found = {
        table: Counter(map(tuple, _read(spark, lake / table).select("id", "n", flag).collect())) for table in "abc"
    }
    if form == "scd2":
        assert found["a"] == Counter([(1, 1, False), (1, 7, True), (2, 2, False), (2, 2, True)])
        assert found["b"] == Counter([(1, 1, False), (2, 2, False), (2, 2, True)])
        assert found["c"] == Counter([(1, 1, False), (2, 2, False)])
    else:
        assert found["a"] == Counter([(1, 7, False), (2, 2, False)])
        assert found["b"] == Counter([(1, 1, True), (2, 2, False)])
        assert found["c"] == Counter([(1, 1, True), (2, 2, True)])
    more = _read(spark, lake / "a").where("is_current" if form == "scd2" else "NOT _is_deleted")
    assert Counter(row["more"] for row in more.collect()) == Counter(["x", "y"])


def _read(spark: SparkSession, path: Path) -> Any:
    return spark.read.format("delta").load(str(path))
