"""Keys of every kind, in the server's own order and equality: exactly the corrupted ones are found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from tests.connectors.mysql_cdc.kinds import KINDS, KindWriters, create, plain

from .jobs import source, wait

if TYPE_CHECKING:
    from pyspark.sql import Column, Row, SparkSession

    from servers.mysql import MySQLServer

UNIQUE = [name for name, kind in KINDS.items() if kind.unique]


@pytest.mark.grid
@pytest.mark.parametrize("name", UNIQUE)
def test_keys_of_each_kind(spark: SparkSession, server: MySQLServer, tmp_path: Path, name: str) -> None:
    kind, chance = KINDS[name], random.Random(name)
    create(server, "kinds.k", kind)
    rows = source(server, "kinds.k", chunkSize=40, **kind.options)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW COLUMNS FROM kinds.k")
        columns = [str(row[0]) for row in cursor.fetchall()]
    keys = columns[:-2]
    path = str(tmp_path / "t")
    made = rows.write("k").trigger(processing_time="300 ms", interval_during_backlog="1 second")
    made = made.option("checkpointLocation", str(tmp_path / "checkpoint")).to(bs.DeltaUpsert(path, keys=keys))
    query = made.start(spark)
    try:
        with KindWriters(server, "kinds.k", kind, keys, 5):
            wait(lambda: query.mode is Mode.STREAM and query.backlogProgress.commits_after > 1, query)
            bs.verify(query).raise_for_differences()
        query.processAllAvailable()
    finally:
        query.stop()
    target = DeltaTable.forPath(spark, path)
    hashed = target.toDF().select(*keys, F.xxhash64(*keys).alias("h")).orderBy(*keys).collect()
    chosen = chance.sample(hashed, min(8, len(hashed)))  # an ENUM has few keys
    third = len(chosen) // 3
    gone, changed, doubled = chosen[:third], chosen[third : 2 * third], chosen[2 * third :]

    def of(found: list[Row]) -> Column:
        return F.xxhash64(*keys).isin([row["h"] for row in found])

    target.delete(of(gone))
    target.update(of(changed), {"v": F.lit("another writer's")})
    target.toDF().where(of(doubled)).write.format("delta").mode("append").save(path)
    expected = {("missing", plain(tuple(row[:-1])), ()) for row in gone}
    expected |= {("different", plain(tuple(row[:-1])), ("v",)) for row in changed}
    expected |= {("doubled", plain(tuple(row[:-1])), ()) for row in doubled}
    result = bs.verify(query)
    assert {(d.kind, plain(tuple(d.key[k] for k in keys)), d.columns) for d in result.differences} == expected
    assert bs.verify(query, repair=True).repaired == len(expected)
    bs.verify(query).raise_for_differences()
