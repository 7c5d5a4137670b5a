"""``bs.verify`` of Iceberg tables and of databases: it finds exactly what was damaged, and the query goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.iceberg.marks import CREATED_BY, IcebergState, Mark
from backlog_spark.verification.verify import both_sides, compare
from tests.connectors.mysql_cdc.replay import table_rows
from tests.sinks.database.targets import Target
from tests.sinks.iceberg.places import TABLE, catalog_at

from .copies import COLUMNS, Copy, DatabaseCopy, IcebergCopy, Row, damage, fill, found
from .jobs import EVERY, Beside, create, run_to_the_end, source, wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

PASSWORD = "not-to-be-shown"


@pytest.fixture(params=["iceberg", "postgres-17", "mysql-8.0", "mariadb-11.4.5"])
def copy(request: pytest.FixtureRequest, pool: Callable[..., Any], tmp_path: Path) -> Iterator[Copy]:
    """A copy of its own in each kind of target."""
    from servers.mariadb import MariaDBServer
    from servers.mysql import MySQLServer

    if request.param == "iceberg":
        yield IcebergCopy(tmp_path)
        return
    if request.param.startswith("postgres"):
        target = Target(request.getfixturevalue("postgres"), "postgresql")
    elif request.param.startswith("mariadb"):
        target = Target(pool(MariaDBServer), "mariadb")
    else:
        target = Target(pool(MySQLServer), "mysql")
    yield DatabaseCopy(target)
    target.drop()


@pytest.fixture
def postgres_target(postgres: Any) -> Iterator[Target]:
    found = Target(postgres, "postgresql")
    yield found
    found.drop()


def test_damage_of_each_type_is_found_and_repaired(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, copy: Copy
) -> None:
    chance = random.Random(11)
    mysql.execute("CREATE DATABASE IF NOT EXISTS verify")
    mysql.execute("DROP TABLE IF EXISTS verify.typed")
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    mysql.execute(f"CREATE TABLE verify.typed ({columns}, PRIMARY KEY (code, id)) CHARACTER SET utf8mb4")
    fill(mysql, "verify.typed", chance, 0, 120, copy.blank)
    typed, sink = source(mysql, "verify.typed", chunkSize=50, tinyInt1isBit="true"), copy.sink()
    run_to_the_end(typed, tmp_path, sink, spark)
    fill(mysql, "verify.typed", chance, 120, 80, copy.blank)  # the same through the binary log
    query = run_to_the_end(typed, tmp_path, sink, spark)
    whole = bs.verify(query).raise_for_differences()
    assert (whole.source_rows, set(whole.columns), whole.left_out) == (200, set(COLUMNS), ())
    before = {repr(sorted(row.items())) for row in copy.rows()}
    expected = damage(copy, chance)
    mysql.execute("UPDATE verify.typed SET tx = 'later', ii = 5 WHERE id % 3 = 0")  # not in the target yet
    mysql.execute("DELETE FROM verify.typed WHERE id % 7 = 0")
    result = bs.verify(query, max_differences=1000, repair=True)
    assert found(result) == expected
    assert result.repaired == len(expected) == result.count
    assert bs.verify(query).raise_for_differences().target_rows == 200
    assert {repr(sorted(row.items())) for row in copy.rows()} == before
    fill(mysql, "verify.typed", chance, 200, 20, copy.blank)
    again = run_to_the_end(typed, tmp_path, copy.sink(), spark)
    last = bs.verify(again).raise_for_differences()
    assert last.target_rows == last.source_rows == mysql.execute("SELECT count(*) FROM verify.typed")[0][0]
    assert last.batch_id > result.batch_id


@pytest.mark.slow
@pytest.mark.parametrize("copy", ["iceberg", "postgres-17"], indirect=True)
def test_it_is_exact_while_query_and_writers_go_on(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, copy: Copy
) -> None:
    create(mysql, "busy2", rows := 600)
    spoilt = list(range(0, rows, 2 * EVERY))  # writers leave these keys alone
    with Beside(mysql, "verify.busy2", 5, threads=2, keys=rows, pause=0.02) as writers:
        made = source(mysql, "verify.busy2", chunkSize=50).write("t")
        made = made.trigger(processing_time="200 ms", interval_during_backlog="1 second")
        query = made.option("checkpointLocation", f"{tmp_path}/checkpoint").to(copy.sink(["id"])).start(spark)
        try:
            wait(lambda: not query.isProcessingBacklog and query.backlogProgress.commits_after > 0, query)
            assert bs.verify(query).raise_for_differences().target_rows > 0
            _spoil(copy, spoilt)
            result = bs.verify(query, repair=True, max_differences=1000)
            assert {("different", key) for key in spoilt} <= {(d.kind, d.key["id"]) for d in result.differences}
            assert result.repaired == result.count
            assert bs.verify(query).raise_for_differences()
            writers.__exit__()
            query.processAllAvailable()
        finally:
            query.stop()
    assert bs.verify(query).raise_for_differences()
    there = {row["id"]: (row["id"], row["n"], row["v"]) for row in _plain(copy)}
    assert there == table_rows(mysql, "verify.busy2")


def _spoil(copy: Copy, ids: list[int]) -> None:
    """Damage rows of (id, n, v), those of ids that writers leave alone and others."""
    if isinstance(copy, DatabaseCopy):
        copy.target.run(f"UPDATE t SET v = 'wrong' WHERE id IN ({', '.join(map(str, ids))})")
        copy.target.run("DELETE FROM t WHERE id % 20 = 1 AND id % 3 <> 0")
        return
    assert isinstance(copy, IcebergCopy)

    def spoilt(row: Row) -> Row | None:
        if row["id"] % 20 == 1 and row["id"] % 3:
            return None
        return {**row, "v": "wrong"} if row["id"] in ids else row

    copy.rewrite(spoilt)


def _plain(copy: Copy) -> list[Row]:
    """The rows of (id, n, v)."""
    if isinstance(copy, DatabaseCopy):
        return [dict(zip(("id", "n", "v"), row, strict=True)) for row in copy.target.run("SELECT id, n, v FROM t")]
    return copy.rows()


def test_a_repair_is_refused_if_the_target_has_changed(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, postgres_target: Target
) -> None:
    create(mysql, "changed", 20)
    lake, database = IcebergCopy(tmp_path), DatabaseCopy(postgres_target)
    changed = source(mysql, "verify.changed")
    sinks: list[bs.Sink] = [lake.sink(["id"]), database.sink(["id"])]
    log = bs.IcebergAppend("shop.log", catalog_at(lake.root))
    made = changed.write("t").trigger(available_now=True).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = made.to(sinks[0]).to(sinks[1]).to(log).start(spark)
    assert query.awaitTermination(300)
    with pytest.raises(SettingError, match="is needed for a query with several targets"):
        bs.verify(query)
    for sink in sinks:
        assert bs.verify(query, sink).raise_for_differences().target_rows == 20
        with pytest.raises(SettingError, match="are not the source's key"):
            bs.verify(query, (lake if sink is sinks[0] else database).sink(["v"]))
    assert _owned(lake), "all rows came from the query"
    postgres_target.run("DELETE FROM t WHERE id = 1")
    lake.table.delete("id = 1")
    at = both_sides(query, sinks[0])
    lake.table.delete("id = 2")
    with pytest.raises(BacklogError, match="another writer was faster"):
        compare(at, repair=True)
    at = both_sides(query, sinks[1])
    postgres_target.run("UPDATE _backlog_spark_marks SET batch_id = batch_id + 1")
    with pytest.raises(BacklogError, match="Another driver has changed the mark"):
        compare(at, repair=True)
    postgres_target.run("UPDATE _backlog_spark_marks SET batch_id = batch_id - 1")
    assert [bs.verify(query, sink, repair=True).repaired for sink in sinks] == [2, 1]
    assert not _owned(lake)
    mysql.execute("UPDATE verify.changed SET v = 'new'")
    mysql.execute("DELETE FROM verify.changed WHERE id = 7")
    query = made.start(spark)
    assert query.awaitTermination(300)
    for sink in (*sinks, log):
        assert bs.verify(query, sink).raise_for_differences().target_rows == 19
    with pytest.raises(SettingError, match="a table of IcebergAppend keeps all changes"):
        bs.verify(query, log, repair=True)
    for file in lake.root.rglob("log/data/*.parquet"):
        file.unlink()
    with pytest.raises(BacklogError, match=r"Files of the snapshot \d+ of the Iceberg table \S+ are gone"):
        bs.verify(query, log)


def test_marks_of_deleted_rows_are_repaired(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql, "marked", 20)
    lake, marked = IcebergCopy(tmp_path), source(mysql, "verify.marked")
    sink = bs.IcebergUpsert(TABLE, ["id"], catalog_at(lake.root), deletes="soft")
    run_to_the_end(marked, tmp_path, sink, spark)
    mysql.execute("DELETE FROM verify.marked WHERE id = 3")
    query = run_to_the_end(marked, tmp_path, sink, spark)
    assert bs.verify(query).raise_for_differences().target_rows == 19
    lake.rewrite(lambda row: {**row, "_is_deleted": row["id"] == 5})
    result = bs.verify(query, repair=True)
    assert {(d.kind, d.key["id"]) for d in result.differences} == {("missing", 5), ("extra", 3)}
    assert bs.verify(query).raise_for_differences().target_rows == 19
    assert {row["id"]: row["_is_deleted"] for row in lake.rows()} == {key: key == 3 for key in range(20)}
    kept = bs.IcebergUpsert("shop.kept", ["id"], catalog_at(lake.root), history="scd2")
    query = run_to_the_end(marked, tmp_path / "2", kept, spark)
    assert bs.verify(query).raise_for_differences().target_rows == 19
    with pytest.raises(SettingError, match="a table with history keeps all versions"):
        bs.verify(query, repair=True)


def _owned(lake: IcebergCopy) -> bool:
    """Whether all rows of the table count as the query's own."""
    table = lake.table
    app_id = table.properties[CREATED_BY]
    return IcebergState(table, Mark.of(table.properties, app_id)).is_alone(app_id)


def test_rows_that_an_upsert_cannot_find_are_named(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path, postgres_target: Target
) -> None:
    create(mysql, "unfound", 5)
    postgres_target.run("CREATE TABLE t (id INT UNIQUE, n DOUBLE PRECISION, v TEXT, more INT)")
    unfound, sink = source(mysql, "verify.unfound"), DatabaseCopy(postgres_target).sink(["id"])
    query = run_to_the_end(unfound, tmp_path, sink, spark)
    postgres_target.run("INSERT INTO t VALUES (NULL, 1, 'x', 1), (NULL, 2, 'x', 1)")
    result = bs.verify(query)
    assert [(d.kind, d.key["id"]) for d in result.differences] == [("doubled", None)]
    assert result.left_out == ("more",)
    with pytest.raises(BacklogError, match="has rows with NULL in its key id"):
        bs.verify(query, repair=True)
    postgres_target.run("DELETE FROM t WHERE id IS NULL")
    postgres_target.run("ALTER TABLE t ALTER id TYPE numeric")
    postgres_target.run("INSERT INTO t VALUES (0.5, 1, 'x', 1)")
    with pytest.raises(BacklogError, match=r"The column id of public\.t has a value that is no bigint"):
        bs.verify(query)
    postgres_target.run("DROP TABLE t")
    with pytest.raises(BacklogError, match="There is no table at postgresql://"):
        bs.verify(query)
    wrong = postgres_target.sink("t", ["id"], user="nobody", password=PASSWORD)
    with pytest.raises(BacklogError, match="refuses user 'nobody'") as raised:
        bs.verify(query, wrong)
    assert PASSWORD not in f"{raised.value!r} {raised.value} {raised.value.__cause__!r}"


@pytest.mark.parametrize("sink", ["KafkaSink", "ParquetSink", "ForeachSink", "Print", "BlackHole"])
def test_sinks_without_a_table_are_refused_by_their_names(sink: str) -> None:
    given: dict[str, bs.Sink] = {
        "KafkaSink": bs.KafkaSink("t", options={"kafka.bootstrap.servers": "127.0.0.1:1"}),
        "ParquetSink": bs.ParquetSink("/nowhere"),
        "ForeachSink": bs.ForeachSink(lambda batch_df, batch: None),
        "Print": bs.Print(),
        "BlackHole": bs.BlackHole(),
    }
    of = bs.source("mysql_cdc", name="t", host="127.0.0.1", port="1", user="u", password=PASSWORD, table="a.b")
    with pytest.raises(SettingError, match=rf"sink = '{sink}': keeps no table that verify can compare") as raised:
        bs.verify(of, given[sink], checkpoint="/nowhere")
    assert PASSWORD not in str(raised.value)
