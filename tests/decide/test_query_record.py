"""What a checkpoint was made with is compared with each later start."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backlog_spark.decide.query_record import QueryRecord, SourceRecord, check_table_keys, same_place
from backlog_spark.errors import SettingError

UPSERT: dict[str, Any] = {
    "kind": "DeltaUpsert", "path": "file:/lake/orders", "keys": ["id", "Day"], "change_type": "_change_type",
    "sequence": "_commit_seq", "metadata_columns": ["_change_type", "_commit_seq"],
}  # fmt: skip
RECORD = QueryRecord(
    (SourceRecord("orders", "mysql_cdc"), SourceRecord("clicks", "json", {"path": "/in/clicks"})),
    {"": UPSERT, "late": {"kind": "DeltaAppend", "path": "file:/lake/late"}},
)


def main(**changed: Any) -> QueryRecord:
    return replace(RECORD, sinks={**RECORD.sinks, "": {**UPSERT, **changed}})


def moved(output: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("now", "setting", "value", "was"),
    [
        (main(keys=["customer"]), "DeltaUpsert keys", ["customer"], "['id', 'Day']"),
        (main(keys=["id"]), "DeltaUpsert keys", ["id"], "['id', 'Day']"),
        (main(kind="DeltaAppend"), "sink", "DeltaAppend", "'DeltaUpsert'"),
        (main(path="file:/lake/other"), "DeltaUpsert path", "file:/lake/other", "'file:/lake/orders'"),
        (main(path="s3://lake/lake/orders"), "DeltaUpsert path", "s3://lake/lake/orders", "'file:/lake/orders'"),
        (main(sequence=None), "DeltaUpsert sequence", None, "'_commit_seq'"),
        (main(change_type="op"), "DeltaUpsert change_type", "op", "'_change_type'"),
        (main(metadata_columns=[]), "DeltaUpsert metadata_columns", [], "['_change_type', '_commit_seq']"),
        (
            replace(RECORD, sinks={**RECORD.sinks, "late": {"kind": "Sink"}}),
            "sink of side output 'late'", "Sink", "'DeltaAppend'",
        ),
        (
            replace(RECORD, sources=(SourceRecord("o", "hybrid"), RECORD.sources[1])),
            "the format of source 'o'", "hybrid", "mysql_cdc ('orders')",
        ),
        (
            replace(RECORD, sources=(RECORD.sources[0], SourceRecord("clicks", "json", {"path": "/in/views"}))),
            "path of source 'clicks'", "/in/views", "'/in/clicks'",
        ),
        (replace(RECORD, operators=("totals",)), "keyed operators", "totals", "none"),
    ],
)  # fmt: skip
def test_differences(now: QueryRecord, setting: str, value: object, was: str) -> None:
    with pytest.raises(SettingError) as refused:
        QueryRecord.from_json(RECORD.to_json()).check(now, moved)
    assert (refused.value.setting, refused.value.value) == (setting, value)
    assert f"the checkpoint was made with {was}" in refused.value.problem
    assert "new checkpointLocation" in refused.value.hint
    with pytest.raises(SettingError):
        now.check(RECORD, moved)


@pytest.mark.parametrize(
    "now",
    [
        RECORD,
        main(keys=["DAY", "ID"]),
        main(path="file:///lake//orders/"),
        main(path="/lake/orders"),
        replace(RECORD, sources=(SourceRecord("renamed", "mysql_cdc"), RECORD.sources[1])),
        replace(RECORD, sinks={"": {"kind": "DeltaUpsert", "keys": UPSERT["keys"], "of a later version": 1}}),
        replace(RECORD, sinks={"more": {"kind": "Sink"}}),
    ],
)
def test_what_may_change(now: QueryRecord) -> None:
    assert QueryRecord.from_json(now.to_json()) == now
    RECORD.check(now, moved)
    now.check(RECORD, moved)


def test_a_target_that_was_moved_with_its_rows() -> None:
    asked = list[str]()
    RECORD.check(main(path="file:/elsewhere"), lambda output: asked.append(output) is None)
    assert asked == [""]


def test_places() -> None:
    assert same_place("s3://b/p", "s3a://b/p/")
    assert not same_place("s3://b/p", "s3://c/p")
    assert same_place("file:/a b#c", "/a b#c/")
    assert same_place("file:///a", "file:/a")
    assert not same_place("file:/a#b", "file:/a#c")
    assert not same_place("/a", "/b")


def test_tables_of_other_checkpoints() -> None:
    check_table_keys("/t", ["ID"], ["id"])
    with pytest.raises(SettingError, match=r"keys = \['customer'\]: the Delta table at /t .*with the keys id, day"):
        check_table_keys("/t", ["customer"], ["id", "day"])


@pytest.mark.parametrize(("setting", "value"), [("history", "scd2"), ("deletes", "soft")])
def test_a_record_without_a_form_is_of_a_plain_table(setting: str, value: str) -> None:
    """Records of earlier versions do not name it. Marks may be added to such a table, versions may not."""
    now = main(history=None, deletes="remove")
    RECORD.check(now, moved)
    changed = main(**{"history": None, "deletes": "remove", setting: value})
    if setting == "deletes":
        RECORD.check(changed, moved)
        return
    with pytest.raises(SettingError, match="history = 'scd2': the checkpoint was made with None"):
        RECORD.check(changed, moved)
