"""Segments of the staged log: what is read from them is what the log has, from any position, however they were cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.captured_tables import CapturedTables
from backlog_spark.connectors.mysql_cdc.binlog.events import Events
from backlog_spark.connectors.mysql_cdc.binlog.log_position import FORMAT, ROTATE, DumpPosition, header_of
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.records import TransactionEnd
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.ddl.timeline import Timeline
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.server.gtid import GtidSet
from backlog_spark.connectors.mysql_cdc.staging import copying, staged_dump, staged_end
from backlog_spark.connectors.mysql_cdc.staging.kept_events import KeptEvents, NotStaged
from backlog_spark.connectors.mysql_cdc.staging.segments import Segments, SegmentWriter, Trailer
from backlog_spark.connectors.mysql_cdc.staging.staged_dump import packets_of
from backlog_spark.errors import BacklogError

from ..binlog.test_large_files import GIB, MARIADB_GTID, QUERY, TABLE, UUID, Dump, Log
from ..binlog.test_recorded import FILE, OF_MARIADB, VECTORS, M, Recorded, T, generated

SERVER = "a-server"


def segments_in(location: object) -> Segments:
    given = {"host": "h", "user": "u", "table": "h.small", "metadataLocation": str(location)}
    return Segments(MySqlOptions.parse(given), SERVER)


def random_log(chance: random.Random) -> Log:
    """Some files with transactions of the table, of others and of both, and statements."""
    of_mariadb = chance.random() < 0.5
    log = Log(tells=not of_mariadb)
    for file in range(7, 7 + chance.randint(1, 4)):
        if log.packets and chance.random() < 0.7:  # otherwise the server was stopped
            log.rotate(f"binlog.{file:06}", artificial=False)
        log.beginning(f"binlog.{file:06}")
        for number in range(chance.randint(0, 12)):
            gtid = file * 100 + number
            if of_mariadb:
                log.event(MARIADB_GTID, b"".join([gtid.to_bytes(8, "little"), bytes(4), b"\0", bytes(6)]))
            else:
                log.begin(gtid)
            for _ in range(chance.randint(0, 4)):
                if chance.random() < 0.5:
                    log.row(chance.randrange(1000))
                elif chance.random() < 0.8:
                    log.other(*(chance.randint(30, 500) for _ in range(chance.randint(1, 3))))
                else:
                    log.other(*[chance.choice([GIB, GIB // 2])] * chance.randint(1, 3))
            if of_mariadb and chance.random() < 0.3:
                log.at += 300  # annotated rows, which are not sent
            log.commit()
    return log


def copied(log: Log, segments: Segments, at: BinlogPosition) -> None:
    """Stage the packets of a dump."""
    kept = KeptEvents(CapturedTables((TABLE,), "", lambda: False), lambda *name: name == ("h", "small"), 1 << 30)
    state: Any = SimpleNamespace(at=at, server=SERVER, check=lambda: None, retrying=lambda put: put())
    recording = copying.Recording(state, segments, kept, 1 << 40)
    recording.source = Dump(log.packets)
    for change in Events(recording, (), None, Timeline()).read():
        if isinstance(change, TransactionEnd):
            recording.passed(change)
    recording.close_at_last_end()
    recording.close()


def staged(segments: Segments, at: BinlogPosition) -> Iterator[bytes]:
    while segment := segments.after(at):
        yield from packets_of(segments.records(segment), segment, at)
        at = segment.end
    log = Log()
    log.rotate(at.file, at.pos)  # as the server's dump begins there
    yield from log.packets


def read(packets: Any) -> list[Any]:
    return list(Events(Dump(packets), (TABLE,), None, Timeline()).read())


def test_the_staged_log_is_the_log_from_any_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for seed in range(60):
        chance = random.Random(seed)
        monkeypatch.setattr(copying, "_SEGMENT_BYTES", chance.choice([1, 300, 1000, 1 << 30]))
        log, segments = random_log(chance), segments_in(tmp_path / str(seed))
        copied(log, segments, BinlogPosition("binlog.000007", 4, gtids=","))
        whole = read(log.packets)
        ends = [BinlogPosition("binlog.000007", 4), *(c.position for c in whole if isinstance(c, TransactionEnd))]
        reached = segments.end(ends[0])
        for end in ends:
            if end.sort_key() > reached.sort_key():
                continue  # beyond 4 GiB a segment ends with its file
            found = read(staged(segments, end))
            assert found == [c for c in whole if _after(c, end) and _before(c, reached)], (seed, end)
        seen.add((len(segments.every()) > 3, reached == ends[-1]))
    assert len(seen) == 4


def sent(log: Log, at: BinlogPosition) -> Iterator[bytes]:
    """What a server sends of a log from a position on."""
    begin = Log()
    begin.rotate(at.file, at.pos)
    yield from begin.packets
    position = DumpPosition()
    for data in log.packets:
        kind, *told = header_of(data)
        end = position.moved(data, kind, *told)
        later = position.number - at.file_number
        if later > 0 or (later == 0 and kind != ROTATE and (kind == FORMAT or end > at.pos)):
            yield data


class Appearing:
    """Segments that are written while they are read: each look may find more of them."""

    name = "a name"

    def __init__(self, segments: Segments, chance: random.Random) -> None:
        self._segments, self._chance, self._seen = segments, chance, chance.randint(1, 2)
        self.records, self.trailer = segments.records, segments.trailer

    def every(self) -> list[Any]:
        self._seen += self._chance.choice([0, 0, 1, 2])
        return self._segments.every()[: self._seen]

    def after(self, *arguments: Any) -> Any:
        return Segments.after(cast(Segments, self), *arguments)

    def end(self, at: BinlogPosition) -> BinlogPosition:
        return Segments.end(cast(Segments, self), at)


def test_a_reader_goes_on_to_the_server_while_the_log_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_dump, "connect", lambda options: nullcontext())
    monkeypatch.setattr(copying, "_SEGMENT_BYTES", 300)
    servers = 0
    for seed in range(120):
        chance = random.Random(seed)
        log, segments = random_log(chance), segments_in(tmp_path / str(seed))
        copied(log, segments, BinlogPosition("binlog.000007", 4, gtids=","))
        whole, every = read(log.packets), segments.every()
        if not every:
            continue

        def present(patience: Any, connection: Any, end: BinlogPosition) -> BinlogPosition | None:
            is_last = end.sort_key() >= every[-1].end.sort_key()  # noqa: B023  called within the round
            return end if is_last or chance.random() < 0.5 else None  # noqa: B023

        def open_dump(options: Any, begin: BinlogPosition) -> Any:
            nonlocal servers
            servers += 1
            dump = Dump(sent(log, begin))  # noqa: B023
            return SimpleNamespace(open=lambda: dump, abandon=lambda: None)

        monkeypatch.setattr(staged_end.Patience, "present", present)
        monkeypatch.setattr(staged_dump, "open_dump", open_dump)
        at = every[0].begin
        given: Any = Appearing(segments, chance)
        dump = staged_dump.StagedDump(MySqlOptions.parse({"host": "h", "user": "u", "table": "h.small"}), given, at)
        assert list(Events(dump, (TABLE,), None, Timeline()).read()) == whole, seed
    assert servers > 50


def _place(change: Any) -> tuple[int, int]:
    """Where a change ends, or begins if it is no end."""
    if isinstance(change, TransactionEnd):
        return change.position.sort_key()
    return change.at >> 38, change.at & (1 << 38) - 1


def _after(change: Any, at: BinlogPosition) -> bool:
    place = _place(change)
    return place > at.sort_key() if isinstance(change, TransactionEnd) else place >= at.sort_key()


def _before(change: Any, at: BinlogPosition) -> bool:
    place = _place(change)
    return place <= at.sort_key() if isinstance(change, TransactionEnd) else place < at.sort_key()


def put(segments: Segments, begin: int, end: int, before: str = "", after: str = "") -> None:
    """A segment with one record, of a log whose files have 100 bytes."""
    writer = SegmentWriter()
    writer.append(f"{begin} to {end}".encode())
    trailer = Trailer(before, after, writer.bytes)
    assert segments.put(writer, _position(begin), _position(end), trailer, 1 << 30)
    writer.close()


def _position(at: int) -> BinlogPosition:
    return BinlogPosition(f"a_log.{at // 100:06}", at % 100 + 4)


@pytest.mark.parametrize("where", ["local", "memory"])
def test_segments_of_two_drivers_are_one_log(where: str, tmp_path: Path) -> None:
    """Compared with sets of numbers."""
    seen = set()
    for seed in range(25):
        chance = random.Random(seed)
        root = tmp_path / str(seed) if where == "local" else f"memory://staging/{seed}"
        segments, covered = segments_in(root), set[int]()
        first = chance.randrange(50)
        for _ in range(chance.randint(1, 2)):
            at = first
            for _ in range(chance.randint(0, 6)):
                end = at + chance.randint(1, 120)
                before, after = f"{UUID}:1-{at + 1}", f"{UUID}:1-{end + 1}"
                put(segments, at, end, before, after)
                covered |= set(range(at, end))
                at = end
        for at in range(0, 400, chance.randint(1, 9)):
            end = next(n for n in range(at, 2000) if n not in covered)
            found = segments.end(_position(at))
            assert (found.file, found.pos) == (_position(end).file, _position(end).pos)
            if end > at:
                assert found.gtids == f"{UUID}:1-{end + 1}"
            assert (segments.after(_position(at)) is not None) is (at in covered)
            place = segments.place(_position(at))
            assert (place is not None) is (bool(covered) and first <= at <= max(covered) + 1)
            by_set = segments.place(f"{UUID}:1-{at + 1}")
            assert (by_set is not None) is (bool(covered) and at >= first)
            if by_set is not None:
                assert by_set.sort_key() <= _position(at).sort_key()
                assert GtidSet(f"{UUID}:1-{at + 1}").issuperset(GtidSet(by_set.gtids))
        until = chance.randrange(300)
        left = {s.path for s in segments.every() if s.end.sort_key() > _position(until).sort_key()}
        assert segments.remove(_position(until)) is bool(left)
        assert {s.path for s in segments.every()} == left
        seen.add((bool(covered), bool(left)))
        segments.remove(None)
        assert not segments.every()
    assert len(seen) == 3


def test_a_damaged_segment_is_named(tmp_path: Path) -> None:
    segments = segments_in(tmp_path)
    put(segments, 0, 10)
    (segment,) = segments.every()
    good = Path(segment.path).read_bytes()
    for damaged in (b"", good[:10], b"\0" * len(good), good[len(good) // 2 :], good[:5] + b"x" * 9 + good[14:]):
        Path(segment.path).write_bytes(damaged)
        with pytest.raises(BacklogError, match=r"staged log .*_4_000000_14.zst cannot be read.*Restore it") as raised:
            list(segments_in(tmp_path).records(segment))
        assert not isinstance(raised.value, OSError)
    Path(segment.path).write_bytes(good)
    assert list(segments.records(segment)) == [b"0 to 10"]


def test_no_more_is_staged_than_allowed(tmp_path: Path) -> None:
    segments = segments_in(tmp_path)
    put(segments, 0, 10)
    writer = SegmentWriter()
    for n in range(100):
        writer.append(random.Random(n).randbytes(1000))
    assert not segments.put(writer, _position(10), _position(20), Trailer("", "", writer.bytes), 100_000)
    writer.close()
    assert len(segments.every()) == 1


# -- events ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "tables"),
    [
        (FILE, (T, M, VECTORS)),
        (FILE, (T,)),
        (FILE, (VECTORS,)),
        (FILE, (TABLE,)),
        (OF_MARIADB, (generated("excluded"),)),
        (OF_MARIADB, (T,)),
    ],
)
def test_the_staged_events_of_recorded_logs_give_the_same_changes(file: str, tables: tuple[TableSchema, ...]) -> None:
    """Compressed transactions of MySQL, and MariaDB's log."""
    names = {(t.database, t.table) for t in tables}
    of = KeptEvents(CapturedTables(tables, "", lambda: False), lambda *name: name in names, 1 << 30)
    packets = Recorded(file).events
    staged_packets = [of.of(packet) for packet in packets]

    def changes(source: Any) -> list[Any]:
        return list(Events(Dump(source), tables, None, Timeline()).read())

    assert changes(filter(None, staged_packets)) == changes(packets)
    whole = b"".join(filter(None, staged_packets))
    value, shown = (b"three", T in tables) if file == FILE else (b"later", T not in tables)
    assert (value in whole) is shown


# -- statements ----------------------------------------------------------------------------------------------

SECRETS = [
    "CREATE USER 'ann'@'%' IDENTIFIED BY 'hunter2'",
    "CREATE USER 'ann'@'%' IDENTIFIED WITH 'caching_sha2_password' AS '$A$hunter2'",
    "ALTER USER ann IDENTIFIED BY 'hunter2'",
    "/* note */ ALTER USER ann IDENTIFIED BY 'hunter2'",
    "SET PASSWORD FOR 'ann'@'%' = 'hunter2'",
    "SET PASSWORD FOR 'ann'@'%'='*hunter2'",
    "GRANT ALL ON *.* TO 'ann'@'%' IDENTIFIED BY PASSWORD '*hunter2'",
    "CREATE ROLE hunter2",
    "DROP USER hunter2",
    "RENAME USER hunter2 TO ann",
    "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD 'hunter2')",
    "CREATE OR REPLACE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (USER 'u', PASSWORD 'hunter2')",
    "ALTER SERVER s OPTIONS (PASSWORD 'hunter2')",
    "CREATE TABLE h.far (id INT) ENGINE=FEDERATED CONNECTION='mysql://u:hunter2@host/h/t'",
    'CREATE TABLE h.far (id INT) ENGINE=SPIDER COMMENT=\'host "a", user "u", password "hunter2"\'',
    "CREATE PROCEDURE h.p() SELECT 'hunter2'",
    "CREATE DEFINER=`root`@`localhost` TRIGGER h.g BEFORE INSERT ON h.o FOR EACH ROW SET NEW.v = 'hunter2'",
    "CREATE EVENT h.e ON SCHEDULE EVERY 1 DAY DO SET PASSWORD = 'hunter2'",
    "CREATE VIEW h.w AS SELECT 'hunter2'",
    "INSERT INTO mysql.notes VALUES ('hunter2')",
    "FLUSH PRIVILEGES",
]
KEPT = [
    "ALTER TABLE h.small ADD COLUMN password VARCHAR(60) NOT NULL DEFAULT ''",
    "ALTER TABLE small COMMENT 'hello'",
    "TRUNCATE TABLE small",
    "RENAME TABLE small TO old, fresh TO small",
    "DROP TABLE h.small",
    "CREATE TABLE h._small_gho LIKE h.small",
    "ALTER TABLE `h`.`_small_gho` ADD COLUMN x INT",
    "SAVEPOINT a",
    "XA START 'x'",
]
REFUSED = [
    "ALTER TABLE h.small ENGINE=FEDERATED CONNECTION='mysql://u:hunter2@host/h/t'",
    "INSERT INTO h.users SELECT 'hunter2'",
    "UPDATE small SET id = 2",
]


def kept(statement: str) -> bytes | None:
    log = Log()
    log.event(QUERY, b"\0" * 8 + b"\1" + b"\0" * 4 + b"h\0" + statement.encode())
    of = KeptEvents(CapturedTables((TABLE,), "", lambda: False), lambda *name: name == ("h", "small"), 1 << 30)
    return of.of(log.packets[0])


@pytest.mark.parametrize("statement", SECRETS)
def test_a_statement_with_a_credential_leaves_only_its_place(statement: str) -> None:
    data = kept(statement)
    assert data is not None
    assert b"hunter2" not in data
    assert len(data) < 40
    # Its transaction ends where it did.
    log = Log()
    log.beginning("binlog.000007")
    log.begin(1)
    log.packets.pop()
    log.event(QUERY, b"\0" * 8 + b"\1" + b"\0" * 4 + b"h\0" + statement.encode())
    ends = list(Events(Dump(log.packets), (), None, Timeline()).read())
    assert len(ends) == 1
    assert read([*log.packets[:-1], data[:10] + log.packets[-1][10:20] + data[20:]]) == ends


@pytest.mark.parametrize("statement", KEPT)
def test_a_statement_about_tables_is_kept(statement: str) -> None:
    data = kept(statement)
    assert data is not None
    assert statement.encode() in data


@pytest.mark.parametrize("statement", REFUSED)
def test_staging_ends_where_a_reader_needs_what_must_not_be_stored(statement: str) -> None:
    with pytest.raises(NotStaged) as raised:
        kept(statement)
    assert "hunter2" not in str(raised.value)
