"""What records the changes of keys become, against a second implementation and by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.kafka.marks import Mark, Marks, check_marks
from backlog_spark.sinks.kafka.records import Change, Step, envelopes, passed_on, upserts

INSERT, PRE, POST, DELETE = "insert", "update_preimage", "update_postimage", "delete"


def change(key: Any, kind: str | None, value: Any = 0, table: str | None = None) -> Change:
    named = None if key is None else json.dumps({"id": key})
    return Change(named, table and "shop", table, kind, json.dumps({"id": key, "v": value}), '{"db":"shop"}', 7)


def sent(steps: Iterable[Step]) -> list[tuple[Any, Any]]:
    """Key and value of each record."""
    return [
        (parsed(record.change.key if record.has_key else None), parsed(record.value))
        for _, records in steps
        for record in records
    ]


def parsed(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def envelope(op: str, before: Any, after: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "source": {"db": "shop"}, "op": op, "ts_ms": 7, "transaction": None}


def test_the_newest_change_of_a_key_is_a_record() -> None:
    changes = [
        change(1, INSERT, "a"), change(1, PRE, "a"), change(1, POST, "b"),
        change(2, INSERT, "c"), change(2, DELETE, "c"),
        change(3, PRE, "d"),  # the update has another key
        change(4, POST, "d"),
    ]  # fmt: skip
    assert sent(upserts(changes, has_order=True)) == [
        ({"id": 1}, {"id": 1, "v": "b"}), ({"id": 2}, None), ({"id": 3}, None), ({"id": 4}, {"id": 4, "v": "d"})
    ]  # fmt: skip
    assert [taken for taken, _ in upserts(changes, has_order=True)] == [3, 2, 1, 1]


def test_equal_keys_of_two_tables_are_two_records() -> None:
    changes = [change(1, INSERT, "a", "orders"), change(1, DELETE, "b", "users")]
    assert sent(upserts(changes, has_order=True)) == [({"id": 1}, {"id": 1, "v": "a"}), ({"id": 1}, None)]


def test_envelopes_are_those_of_debezium() -> None:
    one, two = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
    changes = [
        change(1, INSERT, "a"), change(1, PRE, "a"), change(1, POST, "b"), change(1, DELETE, "b"),
        change(2, PRE, 0), change(3, POST, 0), change(4, "truncate"),
        change(5, INSERT, 0)._replace(is_snapshot=True), change(6, PRE, 0),
    ]  # fmt: skip
    row = {key: {"id": key, "v": 0} for key in (2, 3, 5, 6)}
    assert sent(envelopes(changes, has_order=True)) == [
        ({"id": 1}, envelope("c", None, one)), ({"id": 1}, envelope("u", one, two)),
        ({"id": 1}, envelope("d", two, None)), ({"id": 1}, None),
        ({"id": 2}, envelope("d", row[2], None)), ({"id": 2}, None), ({"id": 3}, envelope("c", None, row[3])),
        (None, envelope("t", None, None)), ({"id": 5}, envelope("r", None, row[5])),
        ({"id": 6}, envelope("d", row[6], None)), ({"id": 6}, None),
    ]  # fmt: skip


def test_envelopes_of_the_source_pass_and_deletes_get_a_tombstone() -> None:
    changes = [
        change(1, INSERT),
        change(1, DELETE),
        change(None, DELETE),
        change(None, "truncate"),
        change(2, "truncate"),
    ]
    assert sent(passed_on(changes)) == [
        ({"id": 1}, {"id": 1, "v": 0}), ({"id": 1}, {"id": 1, "v": 0}), ({"id": 1}, None),
        (None, {"id": None, "v": 0}), (None, {"id": None, "v": 0}), (None, {"id": 2, "v": 0}),
    ]  # fmt: skip


def history(seed: int) -> Iterator[Change]:
    """Random changes of random keys, each key's in their order, sorted by key."""
    drawn = random.Random(seed)
    for key in range(8):
        value: int | None = None
        for step in range(drawn.randrange(6)):
            if value is None:
                yield change(key, drawn.choice([INSERT, POST]), step)
                value = step
            elif drawn.random() < 0.5:
                yield change(key, PRE, value)
                yield change(key, POST, step)
                value = step
            else:
                yield change(key, drawn.choice([DELETE, PRE]), value)
                value = None


@pytest.mark.parametrize("seed", range(40))
def test_both_forms_give_one_table_wherever_they_are_cut(seed: int) -> None:
    changes = list(history(seed))
    expected: dict[str, str] = {}
    for each in changes:
        assert each.key is not None
        if each.kind in (INSERT, POST):
            expected[each.key] = each.image
        else:
            expected.pop(each.key, None)
    for form in (lambda rows: upserts(rows, has_order=True), envelopes):
        steps = list(form(changes))
        assert sum(taken for taken, _ in steps) == len(changes)
        cut = random.Random(seed).randrange(len(steps) + 1)
        done = sum(taken for taken, _ in steps[:cut])
        # A replay begins with the first change that no committed step has taken.
        records = [record for _, found in [*steps[:cut], *form(changes[done:])] for record in found]
        table: dict[str, str] = {}
        for record in records:
            assert record.change.key is not None
            if record.value is None:
                table.pop(record.change.key, None)
            else:
                image = json.loads(record.value)
                table[record.change.key] = json.dumps(image.get("after", image))
        table = {key: value for key, value in table.items() if value != "null"}
        assert table == expected


@pytest.mark.parametrize("form", [lambda rows: upserts(rows, has_order=True), envelopes])
@pytest.mark.parametrize(
    ("kind", "said"),
    [("drop", "shop.orders has a drop.*tableEvents=skip"), ("merge", "unknown change type merge. Known: insert"),
     (None, "unknown change type NULL")],
)  # fmt: skip
def test_what_is_no_record(form: Any, kind: str | None, said: str) -> None:
    with pytest.raises(BacklogError, match=said):
        list(form([change(1, kind, table="orders")]))


def test_rows_without_an_order_or_a_key() -> None:
    with pytest.raises(BacklogError, match=r"two rows of one key.*Name a sequence"):
        list(upserts([change(1, INSERT), change(1, INSERT)], has_order=False))
    assert len(list(upserts([change(1, DELETE), change(1, INSERT)], has_order=False))) == 1
    with pytest.raises(BacklogError, match=r"shop.log has no primary key.*messageKeyColumns"):
        list(upserts([change(None, INSERT, table="log")], has_order=True))
    with pytest.raises(BacklogError, match=r"envelope of shop.log with the key .* cannot be read.*format='debezium'"):
        list(upserts([change(1, INSERT, table="log")._replace(image=None)], has_order=True))
    with pytest.raises(BacklogError, match=r"shop.orders has a truncate.*format='debezium'"):
        list(upserts([change(1, "truncate", table="orders")], has_order=True))


@pytest.mark.parametrize("seed", range(40))
def test_any_tasks_may_be_a_batch_ahead(seed: int) -> None:
    """A driver that is killed in a batch leaves some of its tasks done, and it starts again. A lost mark is refused."""
    chance = random.Random(seed)
    committed, tasks = chance.randrange(1, 9), chance.randrange(1, 6)
    is_live = chance.random() < 0.3  # a live batch has one task
    mark = Mark(committed, 1 if is_live else tasks)
    found = dict.fromkeys(range(mark.tasks), mark)
    after = Mark(committed + 1, chance.choice([1, tasks]))
    for task in range(after.tasks):
        if chance.random() < 0.5:
            found[task] = chance.choice([after, Mark(after.batch, after.tasks, 100)])
    check_marks(Marks("marks", "app", tasks, found), committed, committed + 1)
    left = [task for task in range(mark.tasks) if found[task] == mark]
    if 0 in left:
        lost = chance.choice(left)
        older = {**found, lost: Mark(committed - 1, tasks)} if chance.random() < 0.5 else dict(found)
        if older == found:
            del older[lost]
        with pytest.raises(BacklogError, match=f"has committed batch {committed}, and the topic 'marks' does not"):
            check_marks(Marks("marks", "app", tasks, older), committed, committed + 1)


def test_envelopes_need_an_order() -> None:
    def change(key: str, kind: str) -> Change:
        return Change(key, None, None, kind, "{}", "{}")

    update = [change("1", "update_preimage"), change("1", "update_postimage"), change("2", "insert")]
    assert len(list(envelopes(update, has_order=False))) == 2
    with pytest.raises(BacklogError, match="two changes of one key in a batch"):
        list(envelopes([change("1", "insert"), *update], has_order=False))
    assert len(list(envelopes([change("1", "insert"), *update], has_order=True))) == 3
