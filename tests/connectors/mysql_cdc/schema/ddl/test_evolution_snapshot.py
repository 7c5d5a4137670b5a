"""ALTER TABLE between the watermark of a chunk and its SELECT: what the chunk is to a stream that is declared anew."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.schema.ddl import evolution
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged
from backlog_spark.connectors.mysql_cdc.snapshot.rewind import discard_rewind_log
from tests.connectors.mysql_cdc.replay import options, read, reader

from .test_evolution import AGAIN, ALL, TABLE, new, rows, started
from .test_evolution import table as table

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

Batch = tuple[dict[str, Any], dict[str, Any]]


def planned(server: MySQLServer) -> Batch:
    """The whole snapshot, planned and not yet read."""
    stream = new(server)
    start = stream.initialOffset()
    return start, stream.latestOffset(start, ALL)


def declared_anew(server: MySQLServer, batch: Batch, of: str = TABLE) -> list[tuple[Any, ...]]:
    """The batch as a stream reads it that is started now."""
    discard_rewind_log()
    stream = reader(options(server, of))
    return sorted([row[:-3] for p in stream.partitions(*batch) for row in read(stream, p)], key=str)


def test_a_column_that_is_not_yet_there_at_the_first_of_two_statements(mysql: MySQLServer) -> None:
    batch = planned(mysql)
    mysql.execute(f"UPDATE {TABLE} SET a = 10 WHERE id = 1")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY b VARCHAR(20) AFTER id")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT NOT NULL DEFAULT 9")
    mysql.execute(f"UPDATE {TABLE} SET c = 5 WHERE id = 2")
    assert declared_anew(mysql, batch) == [(1, "one", 1, None), (2, "two", 2, None)]


def test_a_type_that_is_not_yet_wider_at_the_first_of_two_statements(mysql: MySQLServer) -> None:
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN d DECIMAL(4,1) DEFAULT 1.5")
    batch = planned(mysql)
    mysql.execute(f"UPDATE {TABLE} SET d = 2.5 WHERE id = 1")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY b VARCHAR(20) AFTER id")
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY d DECIMAL(8,3)")
    mysql.execute(f"UPDATE {TABLE} SET d = 2.125 WHERE id = 2")
    assert declared_anew(mysql, batch) == [(1, "one", 1, Decimal("1.500")), (2, "two", 2, Decimal("1.500"))]


def test_a_wider_type_stops_the_old_stream_and_not_a_new_one(mysql: MySQLServer) -> None:
    stream = new(mysql)
    start = stream.initialOffset()
    batch = start, stream.latestOffset(start, ALL)
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a BIGINT")
    mysql.execute(f"UPDATE {TABLE} SET a = 4000000000 WHERE id = 1")
    with pytest.raises(SchemaChanged, match=AGAIN):
        [read(stream, p) for p in stream.partitions(*batch)]
    assert declared_anew(mysql, batch) == [(1, 1, "one"), (2, 2, "two")]


@pytest.mark.parametrize(
    "statements", [["DROP COLUMN a", "ADD COLUMN a INT"], ["DROP COLUMN a, ADD COLUMN a INT FIRST"]]
)
@pytest.mark.parametrize("touched", [False, True])
def test_a_column_that_was_dropped_and_added_again_has_no_values(
    mysql: MySQLServer, statements: list[str], touched: bool
) -> None:
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a INT AFTER b")
    batch = planned(mysql)
    if touched:
        mysql.execute(f"UPDATE {TABLE} SET a = 5")
    for statement in statements:
        mysql.execute(f"ALTER TABLE {TABLE} {statement}")
    found = declared_anew(mysql, batch)
    assert sorted(str(sorted(map(str, row))) for row in found) == ["['1', 'None', 'one']", "['2', 'None', 'two']"]


def test_without_a_primary_key_a_column_added_meanwhile_is_refused(mysql: MySQLServer) -> None:
    mysql.execute("CREATE TABLE evolving.keyless (a INT, b VARCHAR(20))")
    mysql.execute("INSERT INTO evolving.keyless VALUES (1, 'one')")
    stream = reader(options(mysql, "evolving.keyless"))
    start = stream.initialOffset()
    batch = start, stream.latestOffset(start, ALL)
    mysql.execute("ALTER TABLE evolving.keyless ADD INDEX (a)")
    assert declared_anew(mysql, batch, "evolving.keyless") == [(1, "one")]
    mysql.execute("ALTER TABLE evolving.keyless ADD COLUMN c INT")
    with pytest.raises(SchemaChanged, match=r"has no primary key and got a column.*new checkpoint"):
        declared_anew(mysql, batch, "evolving.keyless")


def test_a_statement_that_is_seen_before_it_is_in_the_log(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MariaDB for a moment. The end of the log stands for it: the first look ends before the statement."""
    stream, offset = started(mysql)
    mysql.execute(f"ALTER TABLE {TABLE} MODIFY a INT FIRST")
    ends = [stream._planner.session.run(lambda c: evolution.end_position(c, stream._options))]
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three')")
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN b")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4)")
    real = evolution.end_position
    monkeypatch.setattr(evolution, "end_position", lambda c, o: ends.pop() if ends else real(c, o))
    assert rows(stream, offset)[1] == [(3, 3, "three"), (4, 4, None)]
    assert not ends


def test_added_and_dropped_and_added_while_stopped_is_null_before(mysql: MySQLServer) -> None:
    _, offset = started(mysql)
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c INT")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (3, 3, 'three', 30)")
    mysql.execute(f"ALTER TABLE {TABLE} DROP COLUMN c")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (4, 4, 'four')")
    mysql.execute(f"ALTER TABLE {TABLE} ADD COLUMN c VARCHAR(9)")
    mysql.execute(f"INSERT INTO {TABLE} VALUES (5, 5, 'five', '50')")
    assert rows(new(mysql), offset)[1] == [(3, 3, "three", None), (4, 4, "four", None), (5, 5, "five", "50")]
