"""What a phase that follows a Delta table refuses, by name, and when it is in backlog."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from backlog_spark.connectors.hybrid.delta import DeltaPhase
from backlog_spark.connectors.hybrid.files.options import DeltaOptions
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit, Position
from backlog_spark.connectors.hybrid.source import make_phases
from backlog_spark.connectors.hybrid.table.phase import FollowingDeltaPhase
from backlog_spark.errors import BacklogError, SettingError
from tests.connectors.hybrid.files.reading import rows_between

SCHEMA = pa.schema([("n", pa.int64())])


def write(path: Path, *numbers: int, **more: Any) -> None:
    write_deltalake(path, pa.table({"n": pa.array(numbers, pa.int64())}), mode="append", **more)


def phase(path: Path, columns: pa.Schema = SCHEMA, **options: str) -> FollowingDeltaPhase:
    given = {"path": str(path), "discovery": "continuous", "discoveryInterval": "0 s"}
    found = FollowingDeltaPhase("live", given | options)
    found.open(Columns(columns))
    return found


def read_all(live: FollowingDeltaPhase, start: Position) -> Position:
    """The position after all that is there."""
    while True:
        step = live.next(start, Limit(), 0)
        if step.position == start:
            return start
        rows_between(live, start, step.position)
        start = step.position


def begun(path: Path, **options: str) -> tuple[FollowingDeltaPhase, Position]:
    """A phase that has read the first version."""
    write(path, 1, 2)
    live = phase(path, **options)
    return live, read_all(live, live.begin({}))


def commit(path: Path, *actions: dict[str, Any]) -> int:
    """Write a commit by hand."""
    version = DeltaTable(path).version() + 1
    (path / f"_delta_log/{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return version


def metadata(path: Path, fields: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    about = DeltaTable(path).metadata()
    plain = {
        "id": str(about.id), "format": {"provider": "parquet", "options": {}}, "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "configuration": about.configuration,
    }  # fmt: skip
    return {"metaData": plain | changed}


def field(name: str, kind: str = "long") -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"readChangeFeed": "true"}, "readChangeFeed"),
        ({"skipChangeCommits": "true"}, "skipChangeCommits"),
        ({"discoveryInterval": "1 s"}, "discoveryInterval"),
        ({"discovery": "continuous", "readChangeFeed": "true", "skipChangeCommits": "true"}, "skipChangeCommits"),
        ({"discovery": "continuous", "addedColumns": "read"}, "addedColumns"),
        ({"discovery": "continuous", "backlogVersionsLeaveThreshold": "3"}, "backlogVersionsLeaveThreshold"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, str], setting: str) -> None:
    with pytest.raises(SettingError) as caught:
        DeltaOptions.parse({"path": "/t"} | options)
    assert caught.value.setting == setting


def test_it_is_the_last_phase(tmp_path: Path) -> None:
    given = {"phases": "a:delta, b:delta", "path": str(tmp_path), "phase.a.discovery": "continuous"}
    with pytest.raises(SettingError, match="discovery=once"):
        make_phases(HybridOptions.parse(given))


def test_a_feed_has_the_columns_of_changes() -> None:
    given = {"phases": "live:delta", "path": "/t", "discovery": "continuous"}
    assert HybridOptions.parse(given).metadata == ()
    for option in ("readChangeFeed", "phase.live.readChangeFeed"):
        found = HybridOptions.parse(given | {option: "true"})
        assert found.metadata == ("_change_type", "_commit_timestamp", "_commit_seq")
    with pytest.raises(SettingError, match="lacks _change_type"):
        HybridOptions.parse(given | {"readChangeFeed": "true", "metadataColumns": "_file"})


def test_commits_without_rows(tmp_path: Path) -> None:
    live, at = begun(tmp_path)
    write(tmp_path, 3)
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).alter.set_table_properties({"delta.appendOnly": "true"})
    end = read_all(live, at)
    assert end["version"] == 4
    assert [row["n"] for row in rows_between(live, at, end)] == [3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([field("m")], "drops or renames the column n"),
        ([field("n", "double")], "changes the type of the column n from long to double"),
        ([field("n"), field("new")], "adds the column new, which the stream does not have"),
    ],
)
def test_changes_of_columns(tmp_path: Path, fields: list[dict[str, Any]], message: str) -> None:
    live, at = begun(tmp_path)
    write(tmp_path, 3)
    commit(tmp_path, metadata(tmp_path, fields))
    step = live.next(at, Limit(), 0)
    assert [row["n"] for row in rows_between(live, at, step.position)] == [3], "the rows before it are read"
    with pytest.raises(BacklogError, match=f"^Version 2 of .*{message}"):
        live.next(step.position, Limit(), 0)


def test_an_added_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live, at = begun(tmp_path, addedColumns="ignore")
    DeltaTable(tmp_path).alter.add_columns([Field("new", PrimitiveType("string"))])
    both = pa.table({"n": pa.array([3], pa.int64()), "new": ["x"]})
    write_deltalake(tmp_path, both, mode="append")
    end = read_all(live, at)
    assert rows_between(live, at, end) == [{"n": 3}]
    assert "adds the column new" in caplog.text
    # A restart declares it.
    source = FollowingDeltaPhase("live", {"path": str(tmp_path), "discovery": "continuous"})
    assert source.schema().names == ["n", "new"]
    assert source.schema_at(at) == source.schema()
    again = phase(tmp_path, source.schema())
    assert rows_between(again, again.first(end), at) == [{"n": 1, "new": None}, {"n": 2, "new": None}]
    assert rows_between(again, at, read_all(again, at)) == [{"n": 3, "new": "x"}]
    commit(tmp_path, metadata(tmp_path, [field("new", "string")]))
    assert source.schema_at(at) == SCHEMA, "so the restart is refused"


def test_features_and_deletion_vectors(tmp_path: Path) -> None:
    live, at = begun(tmp_path / "a")
    features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    commit(tmp_path / "a", {"protocol": features})
    with pytest.raises(BacklogError, match=r"Version 1 of .*not supported here: x"):
        live.next(at, Limit(), 0)
    live, at = begun(tmp_path / "b")
    vector = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    add = {"path": "f", "size": 1, "partitionValues": {}, "modificationTime": 0, "dataChange": True}
    commit(tmp_path / "b", {"add": add | {"deletionVector": vector}})
    with pytest.raises(BacklogError, match=r"Version 1 of .*is no append: it adds a deletion vector"):
        live.next(at, Limit(), 0)


def test_a_restored_version_is_no_append(tmp_path: Path) -> None:
    live, at = begun(tmp_path, skipChangeCommits="true")
    DeltaTable(tmp_path).delete()
    DeltaTable(tmp_path).restore(0)  # adds a file, and removes none
    assert rows_between(live, at, read_all(live, at)) == []
    again = phase(tmp_path)
    start = read_all(live, at) | {"version": 2}
    with pytest.raises(BacklogError, match=r"Version 2 of .*\(RESTORE\) is no append"):
        again.next(start, Limit(), 0)


@pytest.mark.parametrize("running", [True, False])
def test_a_cleaned_log(tmp_path: Path, running: bool) -> None:
    live, at = begun(tmp_path)
    for n in range(3, 8):
        write(tmp_path, n)
    DeltaTable(tmp_path).create_checkpoint()
    log = tmp_path / "_delta_log"
    for version in range(4):
        (log / f"{version:020}.json").unlink()
    again = live if running else phase(tmp_path)
    with pytest.raises(BacklogError, match=rf"{1:020}\.json of version 1 is gone.*") as caught:
        again.next(at, Limit(), 0)
    assert "delta.logRetentionDuration" in caught.value.hint
    # At the checkpoint itself, and after it, all is well.
    late = phase(tmp_path)
    assert [row["n"] for row in rows_between(late, at | {"version": 5}, read_all(late, at | {"version": 5}))] == [7]


def test_a_removed_data_file(tmp_path: Path) -> None:
    live, at = begun(tmp_path)
    write(tmp_path, 3)
    step = live.next(at, Limit(), 0)
    added = set(DeltaTable(tmp_path).file_uris()) - set(DeltaTable(tmp_path, version=0).file_uris())
    for path in added:
        Path(path.removeprefix("file://")).unlink()
    with pytest.raises(BacklogError, match=r"of version 1 of .* is gone.*VACUUM has removed it") as caught:
        live.partitions(at, step.position)
    assert "delta.deletedFileRetentionDuration" in caught.value.hint
    assert rows_between(phase(tmp_path, failOnDataLoss="false"), at, step.position) == []


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("versions", [1, 3])
def test_a_table_created_anew(tmp_path: Path, running: bool, versions: int) -> None:
    live, at = begun(tmp_path / "t")
    write(tmp_path / "t", 3)
    at = read_all(live, at)
    shutil.rmtree(tmp_path / "t")
    for n in range(versions):
        write(tmp_path / "t", 100 + n)
    again = live if running else phase(tmp_path / "t")
    with pytest.raises(BacklogError, match="is not the table of the query's start"):
        again.next(at, Limit(), 0)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(BacklogError, match="cannot be opened"):
        (live if running else phase(tmp_path / "t")).next(at, Limit(), 0)


def test_an_earlier_state_of_the_directory(tmp_path: Path) -> None:
    live, at = begun(tmp_path / "t")
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    write(tmp_path / "t", 3)
    write(tmp_path / "t", 4)
    at = read_all(live, at)
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    with pytest.raises(BacklogError, match="is at version 0, but the query has read version 2"):
        live.next(at, Limit(), 0)


def test_a_feed_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(BacklogError, match="has no change data feed at version 0"):
        phase(tmp_path, readChangeFeed="true").check()
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    live = phase(tmp_path, readChangeFeed="true")
    live.check()
    at = read_all(live, live.begin({}))
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    with pytest.raises(BacklogError, match="has no change data feed at version 2"):
        live.next(at, Limit(), 0)


def test_a_removed_file_without_its_size(tmp_path: Path) -> None:
    write(tmp_path, 1, configuration={"delta.enableChangeDataFeed": "true"})
    live = phase(tmp_path, readChangeFeed="true")
    at = read_all(live, live.begin({}))
    (path,) = (action["path"] for action in pa.table(DeltaTable(tmp_path).get_add_actions()).to_pylist())
    commit(tmp_path, {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 0}})
    with pytest.raises(BacklogError, match=r"Version 1 of .*does not say the size"):
        live.next(at, Limit(), 0)


def test_thresholds(tmp_path: Path) -> None:
    live, at = begun(tmp_path, backlogVersionsThreshold="2", maxFilesPerBatch="1")
    assert not live.is_backlog(at)
    for n in range(3, 9):
        write(tmp_path, n)
    flags = []
    while True:
        step = live.next(at, Limit(), 0)
        if step.position == at:
            break
        flags.append((step.position["version"], step.is_backlog))
        at = step.position
    assert flags == [(2, True), (3, True), (4, True), (5, True), (6, False), (7, False)]


def test_another_kind_of_position(tmp_path: Path) -> None:
    live, at = begun(tmp_path)
    bounded = DeltaPhase("live", {"path": str(tmp_path)})
    bounded.open(Columns(SCHEMA))
    with pytest.raises(BacklogError, match="discovery=continuous"):
        bounded.next(at, Limit(), 0)
    with pytest.raises(BacklogError, match=r"no position in commits of a table: .*another value of discovery"):
        live.next(bounded.begin({}), Limit(), 0)


def test_the_present_end(tmp_path: Path) -> None:
    live, at = begun(tmp_path, maxFilesPerBatch="1")
    for n in (3, 4):
        write(tmp_path, n)
    goal = live.target(at)
    write(tmp_path, 5)
    found, start = [], at
    for _ in range(2):
        step = live.next_until(start, goal, Limit(), 0)
        found += rows_between(live, start, step.position)
        start = step.position
    assert step.is_finished
    assert [row["n"] for row in found] == [3, 4]
    assert Schema.from_arrow(SCHEMA) == DeltaTable(tmp_path).schema()
