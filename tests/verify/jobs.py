"""Jobs that copy a table into a Delta table, and another writer that corrupts it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

import backlog_spark as bs
from tests.connectors.mysql_cdc.replay import Writers, options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

LIMIT_S = 300
EVERY = 3  # one key in so many is left alone by the writers


class Beside(Writers):
    """Writers of a table (id, n, v) that leave every third id alone."""

    def _statement(self, cursor: Any, chance: random.Random) -> None:
        key = chance.randrange(self._keys)
        key += not key % EVERY
        what = chance.random()
        if what < 0.4:
            cursor.execute(
                f"INSERT INTO {self._table} VALUES (%s, %s, %s) ON DUPLICATE KEY UPDATE n = n + 1",
                (key, chance.randrange(10**6), f"i{chance.randrange(10**6)}"),
            )
        elif what < 0.7:
            cursor.execute(f"UPDATE {self._table} SET v = %s WHERE id = %s", (f"u{chance.randrange(10**6)}", key))
        elif what < 0.85:
            cursor.execute(f"DELETE FROM {self._table} WHERE id = %s", (key,))
        else:
            cursor.execute(f"UPDATE IGNORE {self._table} SET id = id + %s WHERE id = %s", (EVERY, key))


def create(server: MySQLServer, table: str, rows: int) -> None:
    """A table (id, n, v) of the database ``verify``."""
    server.execute("CREATE DATABASE IF NOT EXISTS verify")
    server.execute(f"DROP TABLE IF EXISTS verify.{table}")
    server.execute(f"CREATE TABLE verify.{table} (id INT PRIMARY KEY, n DOUBLE, v VARCHAR(20))")
    if rows:
        server.execute(f"INSERT INTO verify.{table} VALUES " + ",".join(f"({i}, {i}, 's{i}')" for i in range(rows)))


def source(server: MySQLServer, table: str, **more: object) -> Any:
    """The source of a table, or of several."""
    given = {"schemaChange": "evolve", **more}
    return bs.source("mysql_cdc", name="t", options=options(server, table, **given))


def run_to_the_end(of: Any, root: Path, sink: Any, spark: SparkSession) -> bs.BacklogQuery:
    """Copy what is there, then end."""
    made = of.write("t").trigger(available_now=True).option("checkpointLocation", str(root / "checkpoint")).to(sink)
    query = made.start(spark)
    assert query.awaitTermination(LIMIT_S)
    return query


def wait(condition: Any, query: bs.BacklogQuery) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < limit
        time.sleep(0.05)


def commit(path: str, act: Any) -> None:
    """Run a change of delta-rs on the newest version, again and again while another writer is faster."""
    for _ in range(50):
        try:
            act(DeltaTable(path))
            return
        except Exception as error:
            if "Commit" not in type(error).__name__ and "onflict" not in str(error):
                raise
    raise AssertionError("another writer is always faster")


def corrupt(path: str, chance: random.Random, ids: list[int], new: list[int]) -> dict[tuple[str, int], tuple[str, ...]]:
    """Delete, add, change and double rows of a target (id, n, v), by another writer.

    Returns
    -------
    dict
        What a verification must find: columns by kind and id.
    """
    chosen = chance.sample(ids, 9)
    gone, changed, doubled = chosen[:3], chosen[3:7], chosen[7:]
    expected: dict[tuple[str, int], tuple[str, ...]] = {("missing", key): () for key in gone}
    commit(path, lambda t: t.delete(f"id IN ({', '.join(map(str, gone))})"))
    for key, (column, value) in zip(
        changed, [("n", "-0.0 * n - 1"), ("v", "''"), ("v", "NULL"), ("n", "n + 1e-9 * (n + 1)")], strict=True
    ):
        commit(path, lambda t, k=key, c=column, x=value: t.update(predicate=f"id = {k}", updates={c: x}))  # type: ignore[misc]
        expected["different", key] = (column,)
    there = DeltaTable(path).to_pyarrow_table(filters=[("id", "in", doubled)]).select(["id", "n", "v"])
    added = pa.table({"id": pa.array(new, pa.int32()), "n": [0.5] * len(new), "v": ["x"] * len(new)})
    for rows in (there, added):
        commit(path, lambda t, r=rows: write_deltalake(t, r, mode="append", commit_properties=CommitProperties()))  # type: ignore[misc]
    expected |= {("doubled", key): () for key in doubled} | {("extra", key): () for key in new}
    return expected


def found(result: bs.Verification) -> dict[tuple[str, int], tuple[str, ...]]:
    """The differences as `corrupt` tells them."""
    return {(d.kind, _one(d.key)): d.columns for d in result.differences}


def _one(key: Mapping[str, Any]) -> int:
    (value,) = key.values()
    return int(value)
