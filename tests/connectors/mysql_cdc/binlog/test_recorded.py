"""Log files of servers that the tests do not run.

MySQL 9.7.4: compressed transactions, tagged GTIDs, a partial JSON update, a VECTOR column.

The statements: ``INSERT INTO t VALUES (1, 'plain', '{"a": [1, 2]}')``; compressed in one transaction two rows of t, one
of o with a VECTOR, an UPDATE and a DELETE of t; with the tag ``backup``, compressed, ``JSON_SET(j, '$.a[0]', 'one')``;
compressed 3,000 equal rows of m; compressed ``UPDATE o SET id = 2``; ``INSERT INTO m VALUES (8)``; with the tag
``x_1`` ``INSERT INTO o VALUES (9, NULL)``.

MariaDB 11.8.9: updates and deletes without generated columns and without the hash of a UNIQUE key. The table is ``g (id
INT PRIMARY KEY, v VARCHAR(60), g INT AS (id + 1) VIRTUAL, s INT AS (id * 2) STORED, b BLOB, UNIQUE (b))``. The
statements: two rows are inserted; ``UPDATE g SET v = 'later'``; ``UPDATE g SET id = 3, b = 'y' WHERE id = 2``; ``DELETE
FROM g WHERE id = 1``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.batches import rows_of
from backlog_spark.connectors.mysql_cdc.binlog.events import Events
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.records import RowsChange, TransactionEnd
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl.timeline import Timeline
from backlog_spark.connectors.mysql_cdc.schema.table import Hidden, TableSchema
from backlog_spark.connectors.mysql_cdc.server.gtid import GtidSet, previous_gtids
from backlog_spark.errors import BacklogError, SettingError

HERE = Path(__file__).parent
FILE, NEXT = "recorded-mysql-9.7.4.binlog", "recorded-mysql-9.7.4-next.binlog"
NAME = "binlog.000002"
INT = Column("id", "int", "int", nullable=False)
T = TableSchema(
    "c",
    "t",
    (INT, Column("v", "varchar", "varchar(60)", charset="utf8mb4"), Column("j", "json", "json")),
    ("id",),
    ("id",),
)
M = TableSchema("c", "m", (Column("v", "int", "int"),))
VECTORS = TableSchema("c", "o", (INT, Column("v", "vector", "vector(3)", use="excluded")), ("id",), ("id",))

OF_MARIADB = "recorded-mariadb-11.8.9.binlog"


def generated(use: str) -> TableSchema:
    g, s = (Column(name, "int", "int", use=use) for name in "gs")
    columns = (INT, Column("v", "varchar", "varchar(60)", charset="utf8mb4"), g, s, Column("b", "blob", "blob"))
    return TableSchema("c", "g", columns, ("id",), ("id",), hidden=(Hidden(5, is_logged=True),))


class Packet:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def is_eof_packet(self) -> bool:
        return not self._data

    def get_all_data(self) -> bytes:
        return self._data


class Recorded:
    """A connection that sends a log file, as a server does for a dump from its beginning."""

    def __init__(self, file: str) -> None:
        self.events = [b"\0" * 5 + b"\x04" + b"\0" * 14 + (4).to_bytes(8, "little") + NAME.encode()]
        data, at = (HERE / file).read_bytes(), 4
        while at + 19 <= len(data):
            size = int.from_bytes(data[at + 9 : at + 13], "little")
            self.events.append(b"\0" + data[at : at + size])
            at += size
        self._left = iter(self.events)

    def _read_packet(self) -> Packet:
        return Packet(next(self._left, b""))


def read(*tables: TableSchema, until: BinlogPosition | None = None, file: str = FILE, **more: Any) -> list[Any]:
    return list(Events(Recorded(file), tables, until, Timeline(), **more).read())


def changes(found: list[Any]) -> list[tuple[str, str, list[Any]]]:
    rows = [c for c in found if isinstance(c, RowsChange)]
    return [(c.schema.table, c.kind, [(b, a) for _, b, a in c.rows]) for c in rows]


def test_the_rows_are_those_of_the_statements() -> None:
    two, three = [2, "y" * 50, None], [3, "three", "{}"]
    found = changes(read(T, M, VECTORS))
    assert found[:6] == [
        ("t", "insert", [(None, [1, "plain", '{"a": [1, 2]}'])]),
        ("t", "insert", [(None, two), (None, three)]),
        ("o", "insert", [(None, [1, None])]),
        ("t", "update", [(two, [2, "two", None])]),
        ("t", "delete", [(three, None)]),
        ("t", "update", [([1, "plain", '{"a": [1, 2]}'], [1, "plain", '{"a": ["one", 2]}'])]),
    ]
    assert [row for table, _, rows in found[6:-3] for row in rows if table == "m"] == [(None, [7])] * 3000
    assert found[-3:] == [
        ("o", "update", [([1, None], [2, None])]),
        ("m", "insert", [(None, [8])]),
        ("o", "insert", [(None, [9, None])]),
    ]


def test_the_ends_are_the_same_whatever_tables_are_read() -> None:
    ends = [end for end in read(T, M, VECTORS) if isinstance(end, TransactionEnd)]
    assert [replace(end, excess=0) for end in ends] == read()
    assert [end.uuid.partition(":")[2] for end in ends] == ["", "", "backup", "", "", "", "x_1"]
    assert ends[2].number == ends[6].number == 1
    assert len({end.uuid[:36] for end in ends}) == 1
    # Only the equal rows need more numbers than they have bytes.
    assert [bool(end.excess) for end in ends] == [False, False, False, True, False, False, False]
    # A read ends with a compressed transaction, not inside of it.
    assert read(T, until=ends[1].position) == read(T)[:6]
    gtid = f"{ends[2].uuid}:1"
    left = [end for end in read(left_out=GtidSet(gtid)) if isinstance(end, TransactionEnd)]
    assert left == [end for end in read() if end.uuid != ends[2].uuid]


def test_every_row_has_a_number_of_its_own_that_grows_also_from_batch_to_batch() -> None:
    options = MySqlOptions.parse({"host": "h", "user": "u", "table": "c.t,c.m,c.o", "format": "debezium"})
    found = read(T, M, VECTORS)
    start = Offset("s", tables=(T, M, VECTORS), complete=True, position=BinlogPosition(NAME, 4))

    def sequences(start: Offset, part: list[Any]) -> list[int]:
        batches = list(rows_of(options, (T, M, VECTORS), start, part))
        return sorted(n for batch in batches for n in batch.column(batch.schema.names.index("_commit_seq")).to_pylist())

    whole = sequences(start, found)
    assert len(whole) == 2 + 1 + 1 + 1 + 1 + 1 + 3000 + 2 + 1 + 1, "an update that changes the key is two rows"
    assert all(a < b for a, b in itertools.pairwise(whole))
    cut = next(i for i, each in enumerate(found) if isinstance(each, TransactionEnd) and each.excess) + 1
    later = start.at(found[cut - 1].position, excess=found[cut - 1].excess)
    assert sequences(start, found[:cut]) + sequences(Offset.from_json(later.to_json()), found[cut:]) == whole


def test_a_transaction_that_inflates_too_far_stops_the_read_if_it_may_have_rows_of_the_tables() -> None:
    with pytest.raises(SettingError, match=r"maxInflatedBytes = .*inflates to [\d,]+ bytes or more"):
        read(T, most_inflated=2_000)
    assert len(read(most_inflated=2_000)) == 7


def test_previous_gtids_have_their_tags() -> None:
    ends = [end for end in read() if isinstance(end, TransactionEnd)]
    (event,) = [event for event in Recorded(NEXT).events if event[5] == 35]
    found = GtidSet()
    for source, first, last in previous_gtids(event):
        found.add_range(source, first, last)
    assert all(found.contains(end.uuid, end.number) for end in ends)
    own, backup, other = str(found).split(",")
    assert (own.count(":"), backup.split(":")[1:], other.split(":")[1:]) == (1, ["backup", "1"], ["x_1", "1"])
    assert f"{own}:backup:1:x_1:1" == f"{own}:{backup[37:]}:{other[37:]}"
    assert GtidSet(f"{own}:backup:1:x_1:1") == found, "the server's own form"


def test_images_may_leave_out_columns_that_are_not_read() -> None:
    one, two = [1, "one", None, None, b"x"], [2, "two", None, None, None]
    one_later, two_later = [1, "later", None, None, b"x"], [2, "later", None, None, None]
    assert changes(read(generated("excluded"), file=OF_MARIADB)) == [
        ("g", "insert", [(None, one), (None, two)]),
        ("g", "update", [(one, one_later), (two, two_later)]),
        ("g", "update", [(two_later, [3, "later", None, None, b"y"])]),
        ("g", "delete", [(one_later, None)]),
    ]


def test_images_may_not_leave_out_columns_that_are_read() -> None:
    with pytest.raises(BacklogError, match=r"change of c.g was logged without g, s: .*generated columns.*MariaDB 11.8"):
        read(generated(""), file=OF_MARIADB)
