"""MariaDB's log may have rows that were never committed: of a transaction that was killed or rolled back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from backlog_spark.connectors.mysql_cdc.binlog import transactions as whole
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.records import RowsChange, Savepoint, TransactionBroken, TransactionEnd
from backlog_spark.errors import BacklogError
from tests.connectors.mysql_cdc.replay import EVERY_MARIADB, options, reader, table_rows, take

if TYPE_CHECKING:
    from servers.mysql import MySQLServer

TABLE = "broken.t"
ROWS = 3_000


def rows(number: int, uuid: str = "0-1") -> RowsChange:
    schema: Any = None
    return RowsChange(schema, "insert", uuid, number, 0, [(number, None, [number])] * 3, "b.000001")


def end(number: int) -> TransactionEnd:
    return TransactionEnd(BinlogPosition("b.000001", number), "0-1", number)


def test_rows_come_out_with_the_end_of_their_transaction() -> None:
    asked: list[object] = []

    def ends(start: object, change: RowsChange) -> bool:
        asked.append((start, change.number))
        return change.number != 5

    whole_rows = [rows(1), rows(1), end(1)]
    broken = [rows(2), TransactionBroken()]
    large, never = [rows(4)] * 4_000, [rows(5)] * 4_000
    given = [
        *whole_rows,
        *broken,
        rows(3),
        end(3),
        *large,
        end(4),
        *never,
        TransactionBroken(),
        rows(6),
        end(6),
        rows(7),
    ]
    found = list(whole.whole_transactions(iter(given), "", ends))
    assert found == [*whole_rows, rows(3), end(3), *large, end(4), rows(6), end(6)]
    assert asked == [(end(3).position, 4), (end(4).position, 5)]


def test_what_mysql_logs_comes_as_it_is() -> None:
    of_mysql = rows(1, "3e11fa47-71ca-11e1-9e33-c80aa9429562")
    given = iter([of_mysql])
    assert next(whole.whole_transactions(given, "", lambda *_: False)) == of_mysql


def test_rows_that_were_rolled_back_do_not_come_out() -> None:
    back = TransactionEnd(BinlogPosition("b.000001", 1), "0-1", 1, is_rolled_back=True)
    given = [
        *(rows(1), back),
        *(rows(2), Savepoint("a", False), rows(3), Savepoint("b", False), rows(4), Savepoint("b", True), rows(5)),
        *(Savepoint("a", True), rows(6), end(2)),
        *(rows(7), Savepoint("`a``b`", False), rows(8), Savepoint('"Á`B"', True), Savepoint("other", True), end(3)),
        *([rows(9)] * 4_000), back,
    ]  # fmt: skip
    found = list(whole.whole_transactions(iter(given), "", lambda start, change: change.number != 9))
    assert found == [back, rows(2), rows(6), end(2), rows(7), end(3), back]

    large = [Savepoint("a", False), *([rows(1)] * 4_000), Savepoint("a", True), end(1)]
    with pytest.raises(BacklogError, match=r"more than 10,000 rows, a part of which.*the savepoint a\. Start"):
        list(whole.whole_transactions(iter(large), "", lambda *_: True))
    behind = [*([rows(1)] * 4_000), Savepoint("a", False), Savepoint("a", True), rows(2), end(1)]
    found = list(whole.whole_transactions(iter(behind), "", lambda *_: True))
    assert found == [*([rows(1)] * 4_000), rows(2), end(1)], "nothing of the table was rolled back"


@pytest.mark.parametrize(
    ("told", "back"), [([], "a"), (["b", "c"], "a"), (["a", "A"], "a"), (["a", "á"], "À"), (["a", "b", "A"], "`a`")]
)
def test_a_savepoint_that_cannot_be_told_is_refused(told: list[str], back: str) -> None:
    given = [rows(1), *(Savepoint(name, False) for name in told), rows(2), Savepoint(back, True), end(1)]
    with pytest.raises(BacklogError, match=r"to the savepoint [aÀ]\. It does not tell which savepoint that is; it has"):
        list(whole.whole_transactions(iter(given), "", lambda *_: True))


@pytest.mark.parametrize(
    ("told", "back", "left"),
    [
        (["a", "b", "A"], "A", [1, 2, 3, 4]),  # one or two, it is the last one
        (["a", "b", "a"], "a", [1, 2, 3, 4]),
        (["x"], "ß", [1, 2]),  # the only one that there is
        (["a", "b", "c"], '"B"', [1, 2, 3]),
    ],
)
def test_which_savepoint_is_meant(told: list[str], back: str, left: list[int]) -> None:
    given: list[RowsChange | Savepoint | TransactionEnd] = [rows(1)]
    for number, name in enumerate(told, 2):
        given += [rows(number), Savepoint(name, False)]
    given += [rows(9), Savepoint(back, True), end(1)]
    assert list(whole.whole_transactions(iter(given), "", lambda *_: True)) == [*(rows(n) for n in left), end(1)]


def test_savepoints_behind_the_one_that_was_gone_back_to_are_gone() -> None:
    told = [Savepoint("a", False), rows(2), Savepoint("A b", False), rows(3), Savepoint("a", True)]
    given = [rows(1), *told, rows(4), Savepoint("á b", False), rows(5), Savepoint("á B", True), end(1)]
    found = list(whole.whole_transactions(iter(given), "", lambda *_: True))
    assert found == [rows(1), rows(4), end(1)]


@pytest.fixture(params=EVERY_MARIADB)
def crashed(request: pytest.FixtureRequest) -> Iterator[tuple[MySQLServer, Any]]:
    """A server, and an offset after which its log has a whole transaction, then one to be broken off."""
    with request.param(options={"max-binlog-size": "1G"}) as server:
        server.execute("CREATE DATABASE broken")
        server.execute(f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
        values = ",".join(f"({i}, 0, 'first')" for i in range(ROWS))
        server.execute(f"INSERT INTO {TABLE} VALUES {values}")
        stream = reader(options(server, TABLE))
        offset, _ = take(stream, stream.initialOffset())
        server.execute(f"UPDATE {TABLE} SET n = 1 WHERE id = 7")
        yield server, offset


@pytest.mark.parametrize("held", [10_000, 100], ids=["held back", "looked for"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside an event", "between two"])
def test_what_is_left_of_a_transaction_is_never_read(
    crashed: tuple[MySQLServer, Any], monkeypatch: pytest.MonkeyPatch, held: int, inside: bool
) -> None:
    monkeypatch.setattr(whole, "_MOST_HELD", held)
    server, offset = crashed
    file, start = server.binlog_end()
    server.execute(f"UPDATE {TABLE} SET n = 2")
    events = server.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {start}")
    positions = [int(row[1]) for row in events if row[2] == "Update_rows_v1"]
    assert len(positions) > 5
    server.kill()
    os.truncate(server.datadir / file, positions[-2] + (30 if inside else 0))
    server.start()
    if not inside:
        # What follows is in a file of its own, as the server found the last one not closed.
        assert server.binlog_end()[0] != file
    server.execute(f"UPDATE {TABLE} SET n = 3 WHERE id = 8")
    stream = reader(options(server, TABLE))
    found: list[Any] = []
    while True:
        following, batch = take(stream, offset)
        if following is offset:
            break
        offset, found = following, found + [row[:2] + row[3:4] for row in batch]
    changed = [(7, 0, "update_preimage"), (7, 1, "update_postimage")]
    assert found[:2] == changed
    assert [row[0] for row in found] == [7, 7, 8, 8], "a row of the transaction that was never committed"
    assert table_rows(server, TABLE)[8][1] == 3


@pytest.mark.parametrize("held", [10_000, 2], ids=["held back", "looked for"])
def test_what_was_rolled_back_beside_temporary_tables(
    crashed: tuple[MySQLServer, Any], monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    server, offset = crashed
    monkeypatch.setattr(whole, "_MOST_HELD", held)
    drops = "DROP TEMPORARY TABLE x"
    insert = f"INSERT INTO {TABLE} VALUES "
    with server.connect(database="broken") as connection, connection.cursor() as cursor:
        for statement in (
            "CREATE TEMPORARY TABLE x (a INT)",
            *("BEGIN", f"{insert} (10001, 0, ''), (10002, 0, ''), (10003, 0, '')", drops, f"{insert} (10004, 0, '')"),
            *("ROLLBACK", "CREATE TEMPORARY TABLE x (a INT)"),
            *("BEGIN", f"{insert} (10005, 0, '')", "SAVEPOINT `a b`", f"{insert} (10006, 0, '')", drops),
            *("SET sql_mode = 'ANSI_QUOTES'", "ROLLBACK TO `Á b`", f"{insert} (10007, 0, '')", "COMMIT"),
            f"{insert} (10008, 0, '')",
        ):
            cursor.execute(statement)
    assert {10005, 10007, 10008} == {key for key in table_rows(server, TABLE) if key > 10_000}
    logged = [row[5] for row in server.execute(f"SHOW BINLOG EVENTS IN '{server.binlog_end()[0]}'")]
    assert "ROLLBACK" in logged, "it is logged"
    assert 'ROLLBACK TO "Á b"' in logged
    keys = []
    while (following := (taken := take(reader(options(server, TABLE)), offset))[0]) is not offset:
        offset, keys = following, keys + [row[0] for row in taken[1]]
    assert keys == [7, 7, 10005, 10007, 10008]
