"""Offsets: their JSON keeps everything, and a batch's end offset is correct."""

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition, file_number, sequence_at
from backlog_spark.connectors.mysql_cdc.offsets import Offset, SnapshotRange
from backlog_spark.connectors.mysql_cdc.schema.keys import Key
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.schema.types import Column
from backlog_spark.connectors.mysql_cdc.server.watermark import PositionWatermark, origin, resume_after, watermark
from backlog_spark.connectors.mysql_cdc.snapshot.planner import kept_watermark
from backlog_spark.errors import BacklogError
from backlog_spark.spi.offset_flags import committed_ms

ID = Column("id", "int", "int")
FIRST = Offset(server="s", tables=(TableSchema("d", "t", (ID,), ("id",), ("id",)),))
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
UP_TO_5, UP_TO_9 = f"{UUID}:1-5", f"{UUID}:1-9"
ONE = SnapshotRange((100,), UP_TO_5, 1000, rows=90)
TWO = SnapshotRange(None, UP_TO_9, 2000, rows=55)
END = BinlogPosition("binlog.000007", 400)


def snapshot_done() -> Offset:
    return FIRST.with_snapshot([ONE], 150, None).with_snapshot([TWO], 145, END)


def test_every_offset_survives_json() -> None:
    middle = FIRST.with_snapshot([ONE], 150, None)
    done = snapshot_done()
    for offset in (FIRST, middle, done, done.at(BinlogPosition("binlog.000007", 300)), done.at(END)):
        assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_times_of_commits_are_those_of_one_batch() -> None:
    first = replace(snapshot_done().at(BinlogPosition("binlog.000007", 300)), committed_ms=(1_000, 2_000))
    assert Offset.from_json(json.loads(json.dumps(first.to_json()))) == first
    assert committed_ms(first.to_json()) == (1_000, 2_000)
    for later in (first.at(END), first.quiet(), first.without([("d", "t")], come_back=False)):
        assert committed_ms(later.to_json()) is None


def test_the_last_snapshot_batch_already_says_that_the_backlog_is_over() -> None:
    middle = FIRST.with_snapshot([ONE], 150, None).to_json()
    done = snapshot_done().to_json()
    assert (middle["isProcessingBacklog"], middle["isBacklog"]) == (True, True)
    assert (done["isProcessingBacklog"], done["isBacklog"]) == (False, True)
    live = snapshot_done().at(END).to_json()
    assert (live["isProcessingBacklog"], live["isBacklog"]) == (False, False)


def test_the_binary_log_starts_at_the_first_watermark_and_the_filter_goes_when_it_is_passed() -> None:
    done = snapshot_done()
    assert (done.start, done.position, len(done.ranges)) == (UP_TO_5, None, 2)
    before = done.at(BinlogPosition("binlog.000007", 399))
    assert (before.start, len(before.ranges), before.filter_until) == ("", 2, END)
    passed = before.at(END)
    assert (passed.ranges, passed.filter_until) == ((), None)


def test_tables_are_read_one_after_the_other_and_share_a_watermark() -> None:
    tables = tuple(TableSchema("d", name, (ID,), ("id",)) for name in "abc")
    first = Offset(server="s", tables=tables)
    assert first.unread() == [(0, None), (1, None), (2, None)]
    ranges = [SnapshotRange(None, UP_TO_5, 1, 0, 10), SnapshotRange((7,), UP_TO_5, 1, 1, 7)]
    one = first.with_snapshot(ranges, 100, None)
    assert one.unread() == [(1, (7,)), (2, None)]
    assert (one.to_json()["lows"], one.rows) == ([[UP_TO_5, 1]], 17)
    two = one.with_snapshot([SnapshotRange(None, "u:1-8", 2, 1), SnapshotRange(None, "u:1-8", 2, 2)], 100, END)
    assert (two.unread(), two.start, len(two.to_json()["lows"])) == ([], UP_TO_5, 2)
    assert two.ranges_of(1) == (ranges[1], SnapshotRange(None, "u:1-8", 2, 1))
    for offset in (first, one, two):
        assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_tables_as_they_were_are_kept_and_packed_when_there_are_many() -> None:
    wider = tuple(
        Column(f"c{i}", "varchar", f"varchar({i})", charset="utf8mb4", collation="utf8mb4_bin") for i in range(9)
    )
    altered = TableSchema("d", "t", (ID, *wider), ("id",), ("id",))
    later = replace(TWO, form=1)
    middle = replace(FIRST.with_snapshot([ONE], 150, None).with_snapshot([later], 150, END), forms=(altered,))
    assert (middle.form_of(ONE), middle.form_of(later)) == (FIRST.tables[0], altered)
    live = middle.at(END, tables=(altered,))
    assert (live.tables, live.forms) == ((altered,), ())
    many = replace(live, tables=tuple(replace(altered, table=f"t{i}") for i in range(100)))
    for offset in (middle, live, many):
        assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    assert len(json.dumps(many.to_json())) < 5_000


def test_positions_order_by_file_number_not_by_name() -> None:
    assert BinlogPosition("b.999999", 9).sort_key() < BinlogPosition("b.1000000", 4).sort_key()
    with pytest.raises(BacklogError):
        file_number("binlog")


def test_the_gtids_of_mariadb_are_kept_beside_the_position() -> None:
    live = snapshot_done().at(END, "0-1-7")
    assert Offset.from_json(json.loads(json.dumps(live.to_json()))) == live
    assert live.to_json()["gtid"] == "0-1-7"
    assert "gtid" not in snapshot_done().at(END).to_json(), "without GTIDs"


def test_after_a_move_reading_starts_by_gtids_until_the_log_is_past_what_was_read() -> None:
    moved = replace(snapshot_done(), gtid_until=END, shift=3)
    assert origin(moved) == UP_TO_5
    before = moved.at(BinlogPosition("binlog.000007", 300), "u:1-12")
    assert (origin(before), before.shift) == ("u:1-12", 3)
    after = before.at(END, "u:1-20")
    assert (origin(after), after.gtid_until) == (END, None)
    for offset in (moved, before, after):
        assert Offset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_a_low_watermark_is_a_set_or_a_position() -> None:
    low = watermark("0-1-17,7-2-3@my:bin.log.000003:4511")
    assert isinstance(low, PositionWatermark)
    assert low.position == BinlogPosition("my:bin.log.000003", 4511)
    assert str(low) == "0-1-17,7-2-3@my:bin.log.000003:4511"
    assert resume_after(str(low)) == low.position
    at = sequence_at(3, 4511)
    # The byte before it belongs to the transaction that ends there, whatever its number.
    assert [low.includes("0-1", n, s) for n in (1, 99) for s in (at - 1, at)] == [True, False, True, False]
    gtids = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
    assert resume_after(gtids) == gtids
    assert resume_after("") == ""
    for n, included in ((5, True), (6, False)):
        assert watermark(gtids).includes(gtids[:36], n, 0) is included
    for text in ("@", "0-1-1@binlog.000001", "0-1-1@binlog.000001:x"):
        with pytest.raises(BacklogError, match="low watermark"):
            watermark(text)


BATCH = 200_000


def planned(batches: int, key: Callable[[int], Key], servers: int = 1, *, quiet: bool = False) -> list[Offset]:
    """The ends of a table's snapshot batches, as the planner makes them; every 500th and the last."""
    chance = random.Random(1)
    offset, found, number = FIRST, [], 10**6
    others = [f"{uuid.UUID(int=n)}:1-{10**6 + n}" for n in range(1, servers)]
    for n in range(1, batches + 1):
        number += 0 if quiet else chance.randrange(100, 5_000)
        fresh = ",".join([*others, f"{UUID}:1-{number}"]), 1_700_000_000_000 + n * 1_234
        low, at_ms = kept_watermark(offset, offset.tables) or fresh
        offset = offset.with_snapshot([SnapshotRange(key(n), low, at_ms, 0, BATCH)], 10**9, None)
        if n % 500 == 0 or n == batches:
            found.append(offset)
    return found


def size(offset: Offset) -> int:
    return len(json.dumps(offset.to_json(), separators=(",", ":")))


@pytest.mark.parametrize(
    ("key", "servers"),
    [(lambda n: (n * BATCH,), 1), (lambda n: (n * BATCH,), 5), (lambda n: (7, f"{n:012}"), 1)],
    ids=["one number", "transactions of five servers", "number and text"],
)
def test_the_offset_of_a_billion_rows_stays_small(key: Callable[[int], Key], servers: int) -> None:
    *_, last = planned(10**9 // BATCH, key, servers)
    assert last.rows == 10**9
    assert size(last) < 100_000
    assert Offset.from_json(json.loads(json.dumps(last.to_json()))) == last


@pytest.mark.parametrize("quiet", [False, True])
def test_offsets_grow_with_the_logarithm_of_their_batches(quiet: bool) -> None:
    ranges = [len(offset.ranges) for offset in planned(5_000, lambda n: (n,), quiet=quiet)]
    assert ranges[0] == 500  # each has a watermark of its own at first
    assert ranges[-1] < 1_800
    assert ranges[9] - ranges[4] < 400  # from 2,500 to 5,000 batches: 512 * ln 2


def test_batches_at_one_watermark_are_one_range_and_each_knows_its_own() -> None:
    one = FIRST.with_snapshot([replace(ONE, rows=1)], 1, None)
    two = one.with_snapshot([replace(ONE, end=(200,), rows=2)], 3, None)
    three = two.with_snapshot([replace(ONE, end=(300,), low=UP_TO_9)], 3, None)
    assert [(r.end, r.low, r.rows) for r in three.ranges] == [((200,), UP_TO_5, 3), ((300,), UP_TO_9, 90)]
    assert (one.added_since(FIRST), two.added_since(one), three.added_since(two)) == (
        one.ranges,
        (replace(ONE, end=(200,), rows=3),),
        three.ranges[1:],
    )
    assert three.added_since(three) == ()
    assert snapshot_done().at(END).added_since(snapshot_done()) == ()
    last = two.with_snapshot([replace(ONE, end=None)], 3, END)
    assert (last.added_since(two)[0].end, len(last.ranges), last.unread()) == (None, 1, [])


def test_an_offset_that_was_written_before_is_read() -> None:
    """With a watermark and a range for each batch, however many there are, and not compressed."""
    written = snapshot_done().to_json()
    lows = [[f"{UUID}:1-{n}", n] for n in range(1, 301)]
    written |= {"lows": lows, "ranges": [[0, n, n - 1, 10] for n in range(1, 301)]}
    found = Offset.from_json(json.loads(json.dumps(written)))
    assert len(found.ranges) == 300
    assert found.ranges[299] == SnapshotRange((300,), f"{UUID}:1-300", 300, rows=10)
    assert isinstance(found.to_json()["ranges"], dict)
    assert Offset.from_json(found.to_json()) == found
