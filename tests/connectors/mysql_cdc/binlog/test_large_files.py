"""Log files of 4 GiB and more, written by one transaction: an event gives its end in 32 bits only."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.events import Events
from backlog_spark.connectors.mysql_cdc.binlog.log_position import LargeFile, nearest
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition, byte_at, sequence_at
from backlog_spark.connectors.mysql_cdc.binlog.records import RowsChange, TransactionEnd
from backlog_spark.connectors.mysql_cdc.schema.columns import Column
from backlog_spark.connectors.mysql_cdc.schema.ddl.timeline import Timeline
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.server.gtid import GtidSet
from backlog_spark.errors import BacklogError

GIB = 1 << 30
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
INT = Column("id", "int", "int", nullable=False, precision=0, scale=0, octet_length=0, charset="", collation="")
TABLE = TableSchema("h", "small", (INT,), ("id",), ("id",))
FIRST, SECOND = "binlog.000007", "binlog.000008"

QUERY, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, WRITE_ROWS, GTID, PREVIOUS = 2, 4, 15, 16, 19, 27, 30, 33, 35
MARIADB_GTID, COMPRESSED_ROWS = 162, 166
ARTIFICIAL = 0x20
FILE_HEAD = 200  # where the first transaction begins here


class Log:
    """Makes the packets of a dump. An event's size is that which it tells; most of its bytes are left away."""

    def __init__(self, tells: bool = True) -> None:
        self.packets: list[bytes] = []
        self.at = 0
        self._tells = tells

    def event(self, kind: int, body: bytes = b"", size: int = 0, flags: int = 0, told: int | None = None) -> None:
        size = size or len(body) + 19
        if not flags & ARTIFICIAL:
            self.at += size
        end = self.at % (1 << 32) if told is None else told
        self.packets.append(b"\0" + struct.pack("<IBIIIH", 1_700_000_000, kind, 1, size, end, flags) + body)

    def rotate(self, file: str, at: int = 4, *, artificial: bool = True) -> None:
        self.event(ROTATE, struct.pack("<Q", at) + file.encode(), flags=ARTIFICIAL if artificial else 0)
        self.at = at if artificial else self.at

    def beginning(self, file: str, at: int = 4) -> None:
        """As each file that is sent begins, from whatever position."""
        self.rotate(file, at)
        told = None if at == 4 else 0
        self.event(FORMAT, b"\0" * 5, size=120, told=told, flags=0 if at == 4 else ARTIFICIAL)
        if at == 4:
            self.event(PREVIOUS, b"\0" * 8, size=FILE_HEAD - self.at)

    def begin(self, number: int) -> None:
        self.event(GTID, b"\0" + bytes.fromhex(UUID.replace("-", "")) + struct.pack("<Q", number))
        self.event(QUERY, b"\0" * 13 + b"\0BEGIN")

    def other(self, *sizes: int, kind: int = WRITE_ROWS) -> None:
        """Rows of a table that nobody asks for."""
        self.event(TABLE_MAP, struct.pack("<Q", 9) + b"\1h\0\3big\0\1\3\0\0", told=None if self._tells else 0)
        for size in sizes:
            self.event(kind, struct.pack("<QH", 9, 2), size, told=None if self._tells else 0)

    def row(self, value: int) -> None:
        self.event(TABLE_MAP, struct.pack("<Q", 5) + b"\1h\0\5small\0\1\3\0\0", told=None if self._tells else 0)
        body = struct.pack("<QH", 5, 2) + b"\1\xff\0" + struct.pack("<i", value)
        self.event(WRITE_ROWS, body, told=None if self._tells else 0)

    def commit(self) -> None:
        self.event(XID, b"\0" * 8)

    def large(self, number: int) -> None:
        """One of 4.5 GiB, with a row of the table on either side of each 32 bits' end."""
        self.begin(number)
        self.row(1)
        self.other(GIB, GIB, GIB, GIB - 500)
        self.row(2)
        self.other(GIB // 2)
        self.row(3)
        self.commit()


class Dump:
    """What `Events` reads from: the packets, then the end of the log."""

    def __init__(self, packets: Iterable[bytes]) -> None:
        self._packets: Iterator[bytes] = iter(packets)

    def _read_packet(self) -> Packet:
        return Packet(next(self._packets, None))


class Packet:
    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def is_eof_packet(self) -> bool:
        return self._data is None

    def get_all_data(self) -> bytes:
        assert self._data is not None
        return self._data


def read(log: Log, until: BinlogPosition | None = None, **more: Any) -> tuple[list[tuple[int, int]], list[Any]]:
    """The rows as (sequence, value), and the ends of the transactions."""
    found = list(Events(Dump(log.packets), (TABLE,), until, Timeline(), **more).read())
    rows = [(seq, new[0]) for c in found if isinstance(c, RowsChange) for seq, _, new in c.rows if new]
    return rows, [(c.position.file, c.position.pos, c.number) for c in found if isinstance(c, TransactionEnd)]


def whole() -> Log:
    """A file with a small transaction and a large one, and the next file."""
    log = Log()
    log.beginning(FIRST)
    log.begin(1)
    log.row(0)
    log.commit()
    log.large(2)
    log.rotate(SECOND, artificial=False)
    log.beginning(SECOND)
    log.begin(3)
    log.row(4)
    log.commit()
    return log


def test_positions_behind_4_gib_are_told_from_those_before() -> None:
    rows, ends = read(whole())
    assert [value for _, value in rows] == [0, 1, 2, 3, 4]
    sequences = [sequence for sequence, _ in rows]
    assert sequences == sorted(set(sequences))
    offsets = [byte_at(sequence) for sequence in sequences]
    assert FILE_HEAD < offsets[0] < offsets[1] < 1000
    assert 4 * GIB - 1000 < offsets[2] < 4 * GIB + 1000
    assert 4.5 * GIB < offsets[3] + 1000 < 4.5 * GIB + 2000
    assert FILE_HEAD < offsets[4] < 1000
    # The large one is its file's last; reading goes on with the next file, where any server can begin.
    assert [(file, number) for file, _, number in ends] == [(FIRST, 1), (SECOND, 2), (SECOND, 3)]
    assert ends[1][1] == 4


def test_sequences_of_the_next_file_are_greater() -> None:
    assert sequence_at(8, 4) > sequence_at(7, (1 << 38) - 1) > sequence_at(7, 5 * GIB) > 0
    assert byte_at(sequence_at(8, 5 * GIB)) == 5 * GIB
    assert sequence_at((1 << 25) - 1, (1 << 38) - 1) < 1 << 63
    for file, pos in ((1, 1 << 38), (1 << 25, 4)):
        with pytest.raises(BacklogError, match=r"_commit_seq, which has room for.*smaller transactions"):
            sequence_at(file, pos)


def test_it_ends_where_it_is_to_end() -> None:
    log = Log()
    log.beginning(FIRST)
    log.large(1)
    end = log.at
    log.begin(2)  # another one of the same group of commits
    log.row(5)
    log.commit()
    rows, ends = read(log, BinlogPosition(FIRST, end))
    assert [value for _, value in rows] == [1, 2, 3]
    assert ends == [(FIRST, end, 1)]
    rows, ends = read(log)
    assert [value for _, value in rows] == [1, 2, 3, 5]
    assert ends == [(FIRST, end, 1), (FIRST, log.at, 2)]
    assert byte_at(rows[3][0]) > end > 4.5 * GIB


def test_reading_goes_on_behind_4_gib() -> None:
    """No dump begins there: it is read from the file's beginning on, without what has been read."""
    log = Log()
    log.beginning(FIRST)
    log.large(1)
    first_end = log.at
    log.begin(2)
    log.row(5)
    log.commit()
    second_end = log.at
    log.rotate(SECOND, artificial=False)
    log.beginning(SECOND)
    log.begin(3)
    log.row(6)
    log.commit()
    rows, ends = read(log, after=first_end)
    assert [value for _, value in rows] == [5, 6]
    assert ends == [(SECOND, 4, 2), (SECOND, log.at, 3)]
    rows, ends = read(log, after=second_end)
    assert [value for _, value in rows] == [6]
    position = Events(Dump(log.packets), (), None, Timeline(), after=first_end).first_position()
    assert position == BinlogPosition(FIRST, first_end)
    for wrong in (first_end + 5, second_end + 5):
        with pytest.raises(BacklogError, match=rf"no transaction's end at {FIRST}:{wrong}.*new checkpoint"):
            read(log, after=wrong)


@pytest.mark.parametrize("at", [3 * GIB, 4 * GIB - 70])
def test_a_dump_may_begin_in_the_middle_of_a_file(at: int) -> None:
    log = Log()
    log.beginning(FIRST, at)
    log.event(PREVIOUS, b"\0" * 8, size=31, flags=ARTIFICIAL)
    log.event(HEARTBEAT, FIRST.encode(), flags=ARTIFICIAL, told=at % (1 << 32))
    log.large(1)
    assert log.at > at + 4.5 * GIB - 1000
    rows, ends = read(log)
    assert all(byte_at(sequence) > at for sequence, _ in rows)
    assert [value for _, value in rows] == [1, 2, 3]
    assert ends == [(FIRST, log.at, 1)]


def test_heartbeats_are_not_in_the_file() -> None:
    log = Log()
    log.beginning(FIRST)
    log.begin(1)
    log.other(GIB, GIB, GIB, GIB)
    end = log.at
    for _ in range(50):  # without the flag, as servers send them
        log.packets.append(b"\0" + struct.pack("<IBIIIH", 0, HEARTBEAT, 1, 40, end % (1 << 32), 0) + FIRST.encode())
    log.commit()
    assert read(log)[1] == [(FIRST, end + 27, 1)]


def test_mariadb_tells_no_end_inside_a_transaction_and_keeps_some_events() -> None:
    log = Log(tells=False)
    log.beginning(FIRST)
    start = log.at
    log.event(MARIADB_GTID, struct.pack("<QIB", 17, 0, 0) + b"\0" * 6)
    log.row(1)
    log.other(GIB, GIB, GIB, GIB, kind=COMPRESSED_ROWS)
    log.at += 3000  # annotated rows, which are not sent
    log.row(2)
    log.commit()
    rows, ends = read(log)
    assert [value for _, value in rows] == [1, 2]
    assert start < byte_at(rows[0][0]) < start + 300
    assert 4 * GIB < byte_at(rows[1][0]) < log.at
    assert ends == [(FIRST, log.at, 17)]


def test_a_dump_that_leaves_transactions_out_is_not_trusted_with_a_large_file() -> None:
    log = Log()
    log.beginning(FIRST)
    log.begin(3)
    log.commit()
    for large in (frozenset({FIRST}), frozenset({SECOND, FIRST})):
        with pytest.raises(LargeFile, match=FIRST):
            read(log, large=large)
    # Where files are small what is told is right, whatever was left out before.
    log = Log()
    log.beginning(FIRST)
    log.at += 3 * GIB
    log.begin(3)
    log.commit()
    assert read(log, large=frozenset({SECOND}))[1] == [(FIRST, log.at, 3)]


def test_transactions_are_left_out_here_instead() -> None:
    rows, ends = read(whole(), left_out=GtidSet(f"{UUID}:1-2"))
    assert [value for _, value in rows] == [4]
    assert [number for *_, number in ends] == [3]
    rows, _ = read(whole(), left_out=GtidSet(f"{UUID}:1:3"))
    assert [value for _, value in rows] == [1, 2, 3]


def test_checksums_do_not_matter_to_a_rotation() -> None:
    log = whole()
    first = log.packets[0]
    log.packets[0] = first + struct.pack("<I", zlib.crc32(first[1:]))
    assert len(read(log)[0]) == 5


@pytest.mark.parametrize(
    ("followed", "told", "found"),
    [
        (100, 100, 100),
        (100, 140, 140),
        (140, 100, 100),
        ((1 << 32) - 10, 20, (1 << 32) + 20),
        ((1 << 32) + 20, (1 << 32) - 10, (1 << 32) - 10),
        ((9 << 32) + 5, 7, (9 << 32) + 7),
    ],
)
def test_the_nearest_position(followed: int, told: int, found: int) -> None:
    assert nearest(followed, told) == found
