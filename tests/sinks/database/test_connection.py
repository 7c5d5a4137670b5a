"""Connections that end, and two drivers on one table: nothing twice, nothing lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.database.address import Place
from backlog_spark.sinks.database.connection import Again
from backlog_spark.sinks.database.staging import Stage, stage_prefix
from tests.connectors.mysql_cdc.proxy import Proxy

from .targets import LIVE, STAGED, Target, batch, changes, writer_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_S = 120
roads = pytest.mark.parametrize("road", [STAGED, LIVE], ids=["staged", "live"])


def connections(target: Target) -> list[tuple[int, bool]]:
    """Process ids of the sink's connections to this database, and whether each waits for a lock."""
    if target.is_postgres:
        return target.run(
            "SELECT pid, wait_event_type = 'Lock' IS TRUE FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'backlog_spark'"
        )
    found = target.run(
        "SELECT p.id, EXISTS (SELECT 1 FROM information_schema.innodb_trx x WHERE x.trx_mysql_thread_id = p.id "
        "AND x.trx_state = 'LOCK WAIT') FROM information_schema.processlist p "
        "WHERE p.db = %s AND p.id <> CONNECTION_ID() AND p.command <> 'Killed'",
        (target.database,),
    )
    return [(number, bool(waits)) for number, waits in found]


def kill(target: Target, number: int) -> None:
    if target.is_postgres:
        target.run("SELECT pg_terminate_backend(%s)", (number,))
    else:
        target.run(f"KILL {number}")


@contextlib.contextmanager
def locked_row(target: Target, key: int) -> Iterator[Callable[[], None]]:
    """Another transaction has a row of the table; call the result to let it go."""
    settings = {"dbname": target.database} if target.is_postgres else {"database": target.database}
    with target.server.connect(autocommit=False, **settings) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM t WHERE id = {key} FOR UPDATE")
        yield connection.rollback
        connection.rollback()


def wait_for(seen: Callable[[], Any]) -> Any:
    limit = time.monotonic() + LIMIT_S
    while not (found := seen()):
        assert time.monotonic() < limit
        time.sleep(0.2)  # InnoDB shows its transactions anew only if nobody has asked for 0.1 s
    return found


def waiting(target: Target) -> list[int]:
    return [number for number, waits in connections(target) if waits]


@roads
def test_a_connection_that_ended_between_batches(spark: SparkSession, target: Target, road: bool) -> None:
    sink = target.opened(spark)
    for number in range(3):
        sink.write(changes(spark, (number, f"{number}", "insert", 0)), batch(number, road))
        for connection, _ in connections(target):
            kill(target, connection)
    assert target.rows() == Counter((n, f"{n}") for n in range(3))
    assert target.marks() == [("app", "t", 2)]


@roads
def test_a_connection_that_ends_within_a_transaction(spark: SparkSession, target: Target, road: bool) -> None:
    sink = target.opened(spark)
    sink.write(changes(spark, (1, "a", "insert", 0), (2, "b", "insert", 0)), batch(0, road))
    failed: list[BaseException] = []

    def write() -> None:
        try:
            rows = ((1, "a", "delete", 1), (2, "b2", "update_postimage", 2), (3, "c", "insert", 3))
            sink.write(changes(spark, *rows), batch(1, road))
        except BaseException as error:
            failed.append(error)

    with locked_row(target, 2) as release:
        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(2):
            (number,) = wait_for(lambda: waiting(target))
            kill(target, number)
            wait_for(lambda gone=number: gone not in waiting(target))
        assert target.rows() == Counter([(1, "a"), (2, "b")])
        release()
        thread.join(LIMIT_S)
    assert not failed
    assert sink.written is not None
    assert sink.written.attempts == 3
    assert target.rows() == Counter([(2, "b2"), (3, "c")])
    assert target.marks() == [("app", "t", 1)]


@roads
def test_a_commit_whose_answer_is_lost(spark: SparkSession, target: Target, road: bool) -> None:
    """The network ends when the server has committed: the sink must find the batch there."""
    with Proxy(target.server.port, bytes_per_second=1 << 30, stall_s=0) as proxy:
        sink = target.opened(spark, url=target.url.replace(f":{target.server.port}/", f":{proxy.port}/"))
        sink.write(changes(spark, (1, "a", "insert", 0)), batch(0, road))
        database = sink._database
        connect, cut = database.dialect.connect, []

        def deaf(*args: Any) -> Any:
            connection = connect(*args)
            commit = connection.commit

            def commit_and_lose() -> None:
                commit()
                if target.marks() == [("app", "t", 1)] and not cut:
                    cut.append(proxy.cut())
                    database.dialect.runner(connection)("SELECT 1")  # fails, as reading the answer would

            connection.commit = commit_and_lose
            return connection

        database.dialect.connect = deaf  # type: ignore[method-assign]
        database._live = None
        sink.write(changes(spark, (1, "a", "update_preimage", 1), (2, "a", "update_postimage", 1)), batch(1, road))
    assert cut
    assert writer_of(sink) == "none"
    assert target.rows() == Counter([(2, "a")])
    assert target.marks() == [("app", "t", 1)]


def test_a_server_that_is_away_for_a_while(spark: SparkSession, target: Target) -> None:
    """The server of its own restarts between two batches; a longer absence is an error, and the batch comes again."""
    own: Any = type(target.server)
    with own() as server:
        mine = Target(server, target.scheme)
        sink = mine.opened(spark)
        sink.write(changes(spark, (1, "a", "insert", 0)), batch(0))
        server.restart()
        sink.write(changes(spark, (2, "b", "insert", 0)), batch(1))
        server.stop()
        with pytest.raises(Again, match="cannot be reached"):
            sink.write(changes(spark, (3, "c", "insert", 0)), batch(2))
        server.start()
        sink.write(changes(spark, (3, "c", "insert", 0)), batch(2))
        assert mine.rows() == Counter([(1, "a"), (2, "b"), (3, "c")])


@roads
def test_two_drivers_write_a_batch_once(spark: SparkSession, target: Target, road: bool) -> None:
    """Both have read the mark; the row that one of them locks stops the other."""
    first = target.opened(spark)
    first.write(changes(spark, (1, "a", "insert", 0)), batch(0, road))
    known = {"newest_planned": 0, "newest_committed": 0}
    second = target.opened(spark, context=known)
    results: dict[str, str] = {}

    def write(name: str, sink: Any, rows: DataFrame) -> None:
        try:
            sink.write(rows, batch(1, road))
            results[name] = writer_of(sink)
        except BacklogError as error:
            results[name] = error.problem

    rows = [changes(spark, (1, f"of {n}", "update_postimage", 1)) for n in range(2)]
    threads = [
        threading.Thread(target=write, args=(name, sink, rows[n]))
        for n, (name, sink) in enumerate((("first", first), ("second", second)))
    ]
    with locked_row(target, 1) as release:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(waiting(target)) == 2)
        release()
        for thread in threads:
            thread.join(LIMIT_S)
    assert sorted(results.values()) == sorted(["none", "spark" if road else "direct"])
    winner = next(n for n, name in enumerate(("first", "second")) if results[name] != "none")
    assert target.rows() == Counter([(1, f"of {winner}")])
    assert target.marks() == [("app", "t", 1)]


def test_the_driver_of_a_copied_checkpoint_is_refused(spark: SparkSession, target: Target) -> None:
    first, second = target.opened(spark), target.opened(spark)
    for number in range(3):
        first.write(changes(spark, (1, f"{number}", "insert", number)), batch(number))
    with pytest.raises(BacklogError, match="already has batch 2 of this query, which it has not run"):
        second.write(changes(spark, (1, "other", "insert", 9)), batch(0))
    assert target.rows() == Counter([(1, "2")])


def test_staged_rows_that_the_server_has_lost_are_not_counted_as_written(spark: SparkSession, target: Target) -> None:
    """PostgreSQL empties unlogged tables after a crash, and a replica may lack the newest rows."""
    sink, load = target.opened(spark), Stage.load
    rows = [(n, f"{n}", "insert", n) for n in range(20)]

    def lost(stage: Stage, frame: Any) -> None:
        load(stage, frame)
        with stage._database.transaction() as session:
            session.run(f"DELETE FROM {stage._database.dialect.quoted_table(stage.place)}")

    with mock.patch.object(Stage, "load", lost), pytest.raises(BacklogError, match=r"has 0 of 20 rows"):
        sink.write(changes(spark, *rows), batch(0, STAGED))
    assert target.marks() == []
    sink.write(changes(spark, *rows), batch(0, STAGED))
    assert target.rows() == Counter((n, text) for n, text, *_ in rows)
    assert target.marks() == [("app", "t", 0)]


def test_a_start_after_a_driver_that_died_in_its_own(spark: SparkSession, target: Target) -> None:
    """It may have left the table with which the start tries the user's rights."""
    dialect = target.opened(spark)._database.dialect
    place = Place("public" if target.is_postgres else target.database, f"{stage_prefix('app')}probe")
    target.run(dialect.create_table(place, dialect.mark_columns, ["app_id"]))
    target.opened(spark)
