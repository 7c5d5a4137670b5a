"""The binary log as a server sends it: recorded files and events made here, to a reader and to the staging."""

from __future__ import annotations

import random
import zlib
from typing import Any

from backlog_spark.connectors.mysql_cdc.binlog.captured_tables import CapturedTables
from backlog_spark.connectors.mysql_cdc.binlog.damaged import UNREADABLE
from backlog_spark.connectors.mysql_cdc.binlog.events import Events, NotYetSent
from backlog_spark.connectors.mysql_cdc.binlog.log_position import LargeFile
from backlog_spark.connectors.mysql_cdc.binlog.records import RowsChange
from backlog_spark.connectors.mysql_cdc.schema.ddl.timeline import Timeline
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.server.gtid import previous_gtids
from backlog_spark.connectors.mysql_cdc.staging.kept_events import KeptEvents, NotStaged
from tests.connectors.mysql_cdc.binlog import test_recorded as recorded
from tests.fuzz import row_images
from tests.fuzz.kinds import ANY, Kind, Refusal, Wrong, mutated_bytes, refused

__all__ = ["KINDS"]

_FILES = (recorded.FILE, recorded.NEXT, recorded.OF_MARIADB)
_OF_ALL = TableSchema("d", "t", tuple(c for c, *_ in row_images.TYPES), ())
_TABLES = (recorded.T, recorded.M, recorded.VECTORS, recorded.generated("excluded"), _OF_ALL)
_STATEMENTS = (
    b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT a", b"ROLLBACK TO `a`", b"XA START 'x'", b"DROP TABLE d.t",
    b"ALTER TABLE d.t ADD COLUMN x INT DEFAULT 3", b"TRUNCATE d.t", b"CREATE TABLE d.t LIKE d.u",
    b"RENAME TABLE d.t TO d.u",
    b"INSERT INTO d.t VALUES (1)", b"CREATE USER a IDENTIFIED BY 'x'", b"/* c */ UPDATE `d`.`t` SET a = 'b'",
    b"FLUSH TABLES",
    b"CREATE TABLE x AS SELECT f()", b"ANALYZE TABLE d.t", b"DROP DATABASE d", b"ALTER DATABASE d CHARACTER SET latin1",
)  # fmt: skip
_MOST = 1 << 24


class _Sent:
    """A connection that sends these packets."""

    def __init__(self, packets: list[bytes]) -> None:
        self._left = iter(packets)

    def _read_packet(self) -> recorded.Packet:
        return recorded.Packet(next(self._left, b""))


def _event(kind: int, body: bytes, end: int = 0, *, checksum: bool) -> bytes:
    size = 19 + len(body) + 4 * checksum
    data = (1).to_bytes(4, "little") + bytes([kind]) + (1).to_bytes(4, "little") + size.to_bytes(4, "little")
    data += end.to_bytes(4, "little") + b"\0\0" + body
    return b"\0" + data + (zlib.crc32(data).to_bytes(4, "little") if checksum else b"")


def _made(chance: random.Random) -> tuple[list[bytes], Any]:
    """A log of a few transactions with tables of all types, statements and events of every kind; and its rows."""
    rows: Any = []
    checksum = chance.random() < 0.5
    columns = row_images.TYPES
    described = row_images.table_map([(c, code, meta) for c, code, meta, _ in columns])
    name = b"binlog.000001"
    packets = [_event(4, (4).to_bytes(8, "little") + name, checksum=False)]
    packets.append(_event(15, b"\4\0" + bytes(50 + 4 + 1 + 40) + bytes([checksum]), checksum=True))
    packets.append(_event(35, (0).to_bytes(8, "little"), checksum=checksum))

    def statement(text: bytes) -> bytes:
        return bytes(8) + b"\1" + bytes(2) + bytes(2) + b"d\0" + text

    for number in range(chance.randint(1, 3)):
        sid = bytes(range(16))
        gtid = b"\1" + sid + (number + 1).to_bytes(8, "little") + bytes(40)
        own: list[tuple[int, bytes]] = [(33, gtid), (2, statement(b"BEGIN"))]
        if chance.random() < 0.3:
            own, rows = [(33, gtid), (2, statement(chance.choice(_STATEMENTS)))], ANY
        else:
            for _ in range(chance.randint(0, 2)):
                kind = chance.choice((row_images.WRITE, row_images.UPDATE, row_images.DELETE))
                values, row = row_images.image(chance, columns)
                if rows is not ANY:
                    rows.append(
                        (None if kind == row_images.WRITE else values, None if kind == row_images.DELETE else values)
                    )
                images = row * (2 if kind == row_images.UPDATE else 1)
                own += [(19, described), (kind, row_images.rows_event(kind, len(columns), images)[row_images.HEADER :])]
            if chance.random() < 0.3:
                own.append((chance.choice((3, 5, 13, 14, 28, 29, 36, 160)), chance.randbytes(12)))
            own.append((16, bytes(8)))
        packets += [_event(kind, body, 1, checksum=checksum) for kind, body in own]
    at = 4
    for index, packet in enumerate(packets[1:], 1):
        at += len(packet) - 1
        packets[index] = packet[:14] + at.to_bytes(4, "little") + packet[18:]
        if checksum or packet[5] == 15:
            packets[index] = packets[index][:-4] + zlib.crc32(packets[index][1:-4]).to_bytes(4, "little")
    return packets, rows


def _valid(chance: random.Random) -> tuple[Any, Any]:
    if chance.random() < 0.5:
        file = chance.choice(_FILES)
        return recorded.Recorded(file).events, None
    return _made(chance)  # with statements it may be refused


def _mutate(chance: random.Random, packets: list[bytes], other: list[bytes]) -> list[bytes]:
    packets = list(packets)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(packets))
        match chance.randrange(8):
            case 0:
                del packets[at]
            case 1:
                packets.insert(at, chance.choice(other))
            case 2:
                packets[at] = (
                    packets[at][:5]
                    + bytes([chance.choice((2, 19, 30, 31, 39, 40, 42, 162, 165, 166, chance.randrange(256)))])
                    + packets[at][6:]
                )
            case 3:
                packets = packets[:at] + other[chance.randrange(len(other)) :]
            case _:
                packets[at] = b"\0" + mutated_bytes(chance, packets[at][1:], chance.choice(other)[1:])
                if chance.random() < 0.7:  # as if the server had written it
                    packets[at] = packets[at][:-4] + zlib.crc32(packets[at][1:-4]).to_bytes(4, "little")
        if not packets:
            return [b"\0"]
    return packets


def _judge(packets: list[bytes], told: Any) -> None:
    rows = []
    try:
        for found in Events(_Sent(packets), _TABLES, None, Timeline(), most_inflated=_MOST).read():
            if isinstance(found, RowsChange):
                rows += [tuple(both) for _, *both in found.rows]
                if any(
                    row is not None and len(row) != len(found.schema.columns) for both in found.rows for row in both[1:]
                ):
                    raise Wrong("a row has another number of columns")
    except (NotYetSent, LargeFile) as error:
        raise Refusal(str(error)) from error
    if told is not ANY and told is not None and repr(rows) != repr(told):
        raise Wrong(f"{rows} for {told}")


def _judge_kept(packets: list[bytes], told: Any) -> None:
    kept = KeptEvents(CapturedTables(_TABLES, "", lambda: False), lambda d, t: d == "d" and t == "t", _MOST)
    # `Copying` ends with any error: the rest is read from the server.
    with refused(*UNREADABLE, NotStaged):
        staged = [found for packet in packets if (found := kept.of(packet)) is not None]
        for packet in packets:
            if packet[5:6] == b"\x23":
                for _ in zip(range(1000), previous_gtids(packet), strict=False):
                    pass
    if any(len(s) > len(p) + _MOST for s, p in zip(staged, packets, strict=False)):
        raise Wrong("it grew")


KINDS = [
    Kind("binary log", _valid, _judge, _mutate),
    Kind("staged log", lambda chance: (_valid(chance)[0], ANY), _judge_kept, _mutate),
]
