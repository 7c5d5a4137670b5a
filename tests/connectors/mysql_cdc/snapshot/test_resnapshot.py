"""Offsets of a snapshot that is read again (pure)."""

from __future__ import annotations

import json

import pytest

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition, sequence_at
from backlog_spark.connectors.mysql_cdc.offsets import Offset, SnapshotRange
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.snapshot.resnapshot import begun_again, row_sequence
from backlog_spark.errors import BacklogError

A, B = TableSchema("d", "a", ()), TableSchema("d", "b", ())
LIVE = Offset(
    "s", tables=(A, B), complete=True, position=BinlogPosition("log.000007", 400), excess=3, shift=5,
    gone=(("d", "c"),), is_backlog=False,
)  # fmt: skip


def told(offset: Offset) -> Offset:
    """As Spark's log gives it back."""
    found = Offset.from_json(json.loads(json.dumps(offset.to_json())))
    assert found == offset
    return found


def test_it_goes_back_to_the_snapshot_and_names_all_tables_once() -> None:
    again = told(begun_again(LIVE, "other", (A, B)))
    assert (again.server, again.tables, again.ranges, again.position) == ("other", (A, B), (), None)
    assert again.to_empty == (("d", "a"), ("d", "b"), ("d", "c"))
    assert (again.is_processing_backlog, again.is_backlog) == (True, False)
    assert begun_again(again, "s", (A, B)).to_empty == again.to_empty


def test_the_first_batch_with_ranges_empties_them_and_no_other_does() -> None:
    again = begun_again(LIVE, "s", (A, B))
    first = told(again.with_snapshot([SnapshotRange((4,), "uuid:1-9", 1000)], 10, None))
    assert (first.to_empty, first.to_json()["hasTableEvents"], first.is_backlog) == ((), True, True)
    second = told(first.with_snapshot([SnapshotRange(None, "uuid:1-9", 1000)], 10, None))
    assert "hasTableEvents" not in second.to_json()


def test_sequences_lie_above_all_before_and_below_the_log_after() -> None:
    assert row_sequence(Offset("s"), Offset("s", ranges=(SnapshotRange(None, "", 0),))) == 0
    last_before = sequence_at(5 + 7, 400) + 3
    again = begun_again(LIVE, "s", (A, B))
    rows = row_sequence(again, again)
    assert last_before < rows - 1
    assert rows < sequence_at(again.shift + 1, 4) + again.excess, "file 1 is a server's first"
    twice = begun_again(again, "s", (A, B))  # the log was lost again, before a row of it was read
    assert row_sequence(twice, twice) > rows
    assert row_sequence(LIVE, LIVE) == last_before, "a table that joins: after all that was read before"


def test_a_table_that_was_dropped_is_emptied_and_one_that_is_asked_for_no_more_is_not() -> None:
    again = begun_again(LIVE, "s", (A, B))
    assert again.without([("d", "a")], come_back=True).to_empty == again.to_empty
    assert again.without([("d", "a")], come_back=False).to_empty == (("d", "b"), ("d", "c"))


def test_the_error_names_the_option_also_after_it_was_pickled() -> None:
    import pickle

    from backlog_spark.connectors.mysql_cdc.server.log_gone import LogGone

    found = pickle.loads(pickle.dumps(LogGone("It is gone.", "Start anew.")))
    assert str(found).startswith("It is gone. Start anew. With snapshot.mode=when_needed")
    with pytest.raises(BacklogError):
        raise found
