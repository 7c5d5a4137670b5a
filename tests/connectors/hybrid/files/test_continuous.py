"""A phase that finds new files: its options, its flag, its lists, and what it cleans."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.common.stores import FileFound, LocalStore
from backlog_spark.connectors.hybrid.files import cleaning
from backlog_spark.connectors.hybrid.files.continuous import ContinuousFilePhase
from backlog_spark.connectors.hybrid.files.discovery_options import FileThresholds
from backlog_spark.connectors.hybrid.files.found import FOUND, compared
from backlog_spark.connectors.hybrid.files.ledger import Ledger
from backlog_spark.connectors.hybrid.files.options import FileOptions
from backlog_spark.connectors.hybrid.hysteresis import Flag
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit, Position
from backlog_spark.connectors.hybrid.planner import HybridPlanner
from backlog_spark.connectors.hybrid.source import inspect, make_phases
from backlog_spark.errors import BacklogError, SettingError

from .reading import rows_between

SCHEMA = pa.schema([("n", pa.int64())])
NEEDED = {"path": "/data", "metadataLocation": "/meta"}
ON = {**NEEDED, "discovery": "continuous"}


def phase(root: Path, **options: str) -> ContinuousFilePhase:
    given = {
        "path": str(root / "data"), "metadataLocation": str(root / "meta"), "discovery": "continuous",
        "discoveryInterval": "0 s", **options,
    }  # fmt: skip
    made = ContinuousFilePhase("live", given)
    made.open(Columns(SCHEMA))
    return made


def write(root: Path, name: str, *rows: int, at: float | None = None) -> Path:
    path = root / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": rows}, schema=SCHEMA), path)
    if at is not None:
        os.utime(path, (at, at))
    return path


def read(live: ContinuousFilePhase, start: Position, now_ms: float = 0, rows: int | None = None) -> tuple[Any, ...]:
    """The rows of the next batch, its flag and its end."""
    step = live.next(start, Limit(rows), now_ms)
    return [row["n"] for row in rows_between(live, start, step.position)], step.is_backlog, step.position


@pytest.mark.parametrize(
    ("options", "setting", "words"),
    [
        (NEEDED | {"discovery": "always"}, "discovery", "is none of once, continuous"),
        (NEEDED | {"cleanSource": "delete"}, "cleanSource", "has no meaning with discovery=once.*phase.<name>"),
        (NEEDED | {"backlogFilesThreshold": "3"}, "backlogFilesThreshold", "has no meaning with discovery=once"),
        (ON | {"lateFiles": "read"}, "lateFiles", "without discoveryOrder=name"),
        (ON | {"rewrittenFiles": "twice"}, "rewrittenFiles", "is none of refuse, ignore, read"),
        (ON | {"cleanSource": "archive"}, "sourceArchiveDir", "is needed with cleanSource=archive"),
        (ON | {"sourceArchiveDir": "/old"}, "sourceArchiveDir", "without cleanSource=archive"),
        (ON | {"cleanSource": "archive", "sourceArchiveDir": "/data/x"}, "sourceArchiveDir", "is below /data"),
        (ON | {"cleanSource": "archive", "sourceArchiveDir": "file:/data"}, "sourceArchiveDir", "is below /data"),
        (ON | {"cleanSource": "archive", "sourceArchiveDir": "s3://b/x"}, "path", "of several file systems.*Archive"),
        (ON | {"discoveryOrder": "name", "path": "/a, /b"}, "discoveryOrder", "needs one path, but there are 2"),
        (ON | {"backlogFilesLeaveThreshold": "3"}, "backlogFilesLeaveThreshold", "without backlogFilesThreshold"),
        (ON | {"backlogBytesThreshold": "1k", "backlogBytesLeaveThreshold": "2k"}, "backlogBytesLeaveThreshold",
         "is above backlogBytesThreshold"),
        (ON | {"backlogBytesThreshold": "0"}, "backlogBytesThreshold", "is not a number of bytes >= 1"),
        (NEEDED | {"modifiedAfter": "yesterday"}, "modifiedAfter", "is no time"),
        (NEEDED | {"maxBytesPerBatch": "much"}, "maxBytesPerBatch", "is not a number of bytes >= 1"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, str], setting: str, words: str) -> None:
    with pytest.raises(SettingError, match=rf"^{setting} = .*{words}"):
        FileOptions.parse(options)


def test_options_and_their_defaults() -> None:
    found = FileOptions.parse(ON).discovery
    assert (found.interval_ms, found.order, found.late, found.rewritten, found.clean) == (
        10_000, "modified", "refuse", "refuse", "off",
    )  # fmt: skip
    assert not found.thresholds.is_set
    both = {"phases": "files, kafka", "kafka.bootstrap.servers": "b:1", "subscribe": "t", **NEEDED}
    # A threshold of the Kafka phase is also known here.
    assert make_phases(HybridOptions.parse({**both, "backlogLagThreshold": "1 min"}))[0].is_bounded
    with pytest.raises(SettingError, match=r"files is unbounded, so no phase can follow it.*discovery=once"):
        make_phases(HybridOptions.parse({**both, "discovery": "continuous"}))
    assert inspect({**ON, "phases": "files", "schema": "n BIGINT"}).starts_in_backlog


IN, OUT = Flag(True, 7), Flag(False, 7)
RULE = FileThresholds(lag_ms=1_000, lag_leave_ms=400, files=10, files_leave=5, bytes=100, bytes_leave=50)


@pytest.mark.parametrize(
    ("flag", "files", "size", "age_ms", "expected"),
    [
        (None, 11, 0, 0, True), (None, 10, 100, 1_000, False), (OUT, 10, 100, 1_000, False),
        (OUT, 1, 101, 0, True), (OUT, 1, 1, 1_001, True), (OUT, 0, 0, 9_999, False),
        (IN, 6, 0, 0, True), (IN, 5, 50, 400, False), (IN, 1, 51, 0, True), (IN, 1, 1, 401, True), (IN, 0, 0, 0, False),
    ],
)  # fmt: skip
def test_thresholds(flag: Flag | None, files: int, size: int, age_ms: float, expected: bool) -> None:
    found = RULE.next(flag, files, size, (50_000 - age_ms) / 1_000, 50_000)
    assert found.is_backlog == expected


def test_unknown_times_are_not_old() -> None:
    assert not FileThresholds(lag_ms=1).next(None, 1, 1, float("inf"), 50_000).is_backlog


def test_the_first_listing_is_backlog_and_later_what_exceeds_a_threshold(tmp_path: Path) -> None:
    live = phase(tmp_path, backlogFilesThreshold="2", backlogMinStay="1 s", maxFilesPerBatch="2")
    for n in range(4):
        write(tmp_path, f"{n}", n, at=n + 1)
    start = live.begin({})
    assert live.is_backlog(start)
    write(tmp_path, "late", 9, at=0.5)
    found, flag, at = read(live, start)
    assert (found, flag) == ([0, 1], True)
    found, flag, at = read(live, at)
    assert (found, flag) == ([2, 3], False), "with its last file, although another one has come"
    found, flag, at = read(live, at, 1)
    assert (found, flag) == ([9], False)
    for n in range(10, 15):
        write(tmp_path, f"{n}", n, at=n)
    found, flag, at = read(live, at, 500)
    assert (found, flag) == ([10, 11], False), "not before the least stay"
    found, flag, at = read(live, at, 1_000)
    assert (found, flag) == ([12, 13], False), "one is left"
    for n in range(20, 24):
        write(tmp_path, f"{n}", n, at=n)
    found, flag, at = read(live, at, 1_001)
    assert (found, flag) == ([14, 20], True), "three are left"
    found, flag, at = read(live, at, 2_500)
    assert (found, flag) == ([21, 22], False), "one is left: half of the threshold"
    assert live.first(at) == start


def test_files_that_came_during_the_first_listing_keep_it_in_backlog(tmp_path: Path) -> None:
    live = phase(tmp_path, backlogFilesThreshold="2")
    write(tmp_path, "a", 0)
    start = live.begin({})
    for n in range(1, 4):
        write(tmp_path, f"b{n}", n)
    found, flag, at = read(live, start)
    assert (found, flag) == ([0], True), "the backlog is not left for a moment"
    found, flag, at = read(live, at)
    assert (found, flag) == ([1, 2, 3], False)
    assert read(live, at)[2] is at


def test_limits_of_bytes(tmp_path: Path) -> None:
    size = write(tmp_path, "0", 0, at=1).stat().st_size
    for n in range(1, 6):
        write(tmp_path, f"{n}", n, at=n + 1)
    write(tmp_path, "6", *range(100, 1_100), at=9)
    live = phase(tmp_path, maxBytesPerBatch=str(2 * size + 1))
    at, found = live.begin({}), []
    for _ in range(4):
        rows, _, at = read(live, at)
        found.append(len(rows))
    assert found == [2, 2, 2, 1_000], "a larger file is a batch of its own"


@pytest.mark.parametrize("discovery", ["once", "continuous"])
def test_only_files_of_some_time(tmp_path: Path, discovery: str) -> None:
    for n in range(5):
        write(tmp_path, f"{n}", n, at=1_700_000_000 + n)
    options = {
        "phases": "files", "path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta"),
        "discovery": discovery, "modifiedAfter": "2023-11-14T22:13:20", "modifiedBefore": "2023-11-14T23:13:24+01:00",
    }  # fmt: skip
    (made,) = make_phases(HybridOptions.parse(options))
    made.open(Columns(SCHEMA))
    start = made.begin({})
    end = made.next(start, Limit(), 0).position
    assert [row["n"] for row in rows_between(made, start, end)] == [1, 2, 3], (
        "Spark leaves out the times themselves too"
    )


def test_ignored_files_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = phase(tmp_path, discoveryOrder="name", lateFiles="ignore", rewrittenFiles="ignore")
    write(tmp_path, "b", 1)
    _, _, at = read(live, live.begin({}))
    write(tmp_path, "a", 2)
    write(tmp_path, "b", 3, 4)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert read(live, at)[2] is at
    (record,) = caplog.records
    assert "2 late or rewritten files are ignored by the phase live" in record.getMessage()
    assert f"{tmp_path}/data/a" in record.getMessage()
    assert live.begin({})["files"] == 2


def test_a_position_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a", 1)
    live = phase(tmp_path)
    (once,) = make_phases(HybridOptions.parse({
        "phases": "files", "path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta"),
    }))  # fmt: skip
    once.open(Columns(SCHEMA))
    with pytest.raises(BacklogError, match="was made with discovery=continuous"):
        once.next(live.begin({}), Limit(), 0)
    with pytest.raises(BacklogError, match="another value of discovery"):
        live.next(once.begin({}), Limit(), 0)


def test_what_is_not_cleaned_at_once_is_cleaned_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_AT_ONCE", 1)
    for n in range(6):
        write(tmp_path, f"{n}", n)
    live = phase(tmp_path, cleanSource="delete")
    _, _, at = read(live, live.begin({}))
    for n in range(6, 10):
        live.committed(at)
        write(tmp_path, f"{n}", n)
        live = phase(tmp_path, cleanSource="delete")  # another process
        _, _, at = read(live, at)
    for _ in range(10):
        live.committed(at)
    assert list((tmp_path / "data").iterdir()) == []


def test_the_archive_keeps_paths_and_earlier_contents(tmp_path: Path) -> None:
    options = {"cleanSource": "archive", "sourceArchiveDir": str(tmp_path / "old"), "rewrittenFiles": "read"}
    live = phase(tmp_path, **options)
    write(tmp_path, "day=1/a", 1)
    found, _, at = read(live, live.begin({}))
    assert (found, (tmp_path / "data/day=1/a").exists()) == ([1], True)
    live.committed(at)
    live.committed(at)
    archived = tmp_path / f"old/{tmp_path}/data/day=1"
    assert [path.name for path in archived.iterdir()] == ["a"]
    write(tmp_path, "day=1/a", 2, 3)
    found, _, at = read(live, at)
    assert found == [2, 3]
    live.committed(at)
    assert [pq.read_table(path).num_rows for path in sorted(archived.iterdir())] == [1, 2]
    assert not (tmp_path / "data/day=1/a").exists()


def test_a_file_written_again_before_it_is_cleaned_stays(tmp_path: Path) -> None:
    live = phase(tmp_path, cleanSource="delete", rewrittenFiles="read")
    write(tmp_path, "a", 1)
    _, _, at = read(live, live.begin({}))
    write(tmp_path, "a", 2, 3)
    live.committed(at)
    found, _, at = read(live, at)
    assert found == [2, 3]
    live.committed(at)
    assert not (tmp_path / "data/a").exists()


def test_a_file_that_cannot_be_cleaned_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = phase(tmp_path, cleanSource="delete")
    write(tmp_path, "a", 1)
    _, _, at = read(live, live.begin({}))

    def fails(self: LocalStore, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(LocalStore, "delete", fails)
        live.committed(at)
        live.committed(at)
    (record,) = caplog.records
    assert "will be tried again" in record.getMessage()
    monkeypatch.setattr(cleaning, "_RETRY_S", 0)
    live.committed(at)
    assert not (tmp_path / "data/a").exists()


def listing(*paths: str, size: int = 1) -> pa.Table:
    rows = [{"path": path, "size": size, "tag": "t", "below": 1, "modified": 1.0} for path in paths]
    return pa.Table.from_pylist(rows, FOUND)


def test_lists_stay_few_and_small_and_old_ones_are_deleted(tmp_path: Path) -> None:
    """700 listings with one new file each, in another ledger each time: as after restarts."""
    store = LocalStore()
    name = Ledger(store, str(tmp_path)).begin(listing(*(f"/d/a{n:07d}" for n in range(10_000))))
    ledger = Ledger(store, str(tmp_path))
    for n in range(700):
        if n % 100 == 0:
            ledger = Ledger(store, str(tmp_path))
            ledger.sweep(name)
        name = ledger.add(name, listing(f"/d/b{n:07d}"), needed=10_000 + n)
        assert len(ledger.head(name).runs) <= 12
        assert len(ledger.head(name).lists) <= 1
    ledger.sweep(name)
    files = list(tmp_path.iterdir())
    assert len(files) < 500, "those of the last hundred heads"
    assert sum(path.stat().st_size for path in files) < 40 * 10_700
    found = Ledger(store, str(tmp_path))
    assert sum(map(len, found.seen(name))) == found.head(name).files == 10_700
    again = compared([listing("/d/a0000007"), listing("/d/b0000699", "/d/c")], found.seen(name))
    assert (again.new.column("path").to_pylist(), len(again.rewritten)) == (["/d/c"], 0)
    assert compared([listing("/d/b0000001", size=2)], found.seen(name)).rewritten.num_rows == 1
    assert found.window(name).files[0].path == "/d/b0000699"


def test_a_damaged_list_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a", 1)
    live = phase(tmp_path)
    start = live.begin({})
    (path,) = (tmp_path / "meta").rglob("list-*")
    path.write_bytes(path.read_bytes()[:-1])
    again = phase(tmp_path)
    with pytest.raises(BacklogError, match=f"{path} is damaged"):
        again.next(start, Limit(), 0)
    path.unlink()
    with pytest.raises(BacklogError, match=f"{path} is gone"):
        again.next(start, Limit(), 0)
    assert len(json.dumps(start)) < 400


def test_all_of_the_first_listing_is_one_batch_if_all_of_the_backlog_is_asked_for(tmp_path: Path) -> None:
    for n in range(50):
        write(tmp_path, f"{n}", n)
    live = phase(tmp_path)
    planner = HybridPlanner([live], ["live:files"])
    start = planner.first()
    assert start.is_processing_backlog
    end = planner.next(start, Limit(1), 0, whole_backlog=True)
    (span,) = planner.spans(start, end)
    assert len(rows_between(live, span.start, span.end)) == 50
    assert (end.is_backlog, end.is_processing_backlog) == (True, False)
    write(tmp_path, "x", 1)
    after = planner.next(end, Limit(1), 0, whole_backlog=True)
    assert (after.is_backlog, after.position["file"]) == (False, 51)  # type: ignore[index]


def test_a_source_without_files_leaves_backlog_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    live = phase(tmp_path, allowEmpty="true", backlogLagThreshold="1 s")
    planner = HybridPlanner([live], ["live:files"])
    end = planner.next(planner.first(), Limit(), 5_000)
    assert (end.is_processing_backlog, planner.spans(planner.first(), end)) == (False, [])
    write(tmp_path, "a", 1, at=1)
    later = planner.next(end, Limit(0), 5_000)
    assert later.is_processing_backlog, "the file is older than a second"
    last = planner.next(later, Limit(), 5_000)
    assert (last.is_backlog, last.is_processing_backlog) == (True, False)


def test_a_file_that_is_read_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 50_000
    paths = [f"{tmp_path}/data/2026/{n:08d}.parquet" for n in range(count)]
    monkeypatch.setattr(
        LocalStore,
        "tree",
        lambda *_: (FileFound(path, False, 1000, str(10**18 + n), n) for n, path in enumerate(paths)),
    )
    (tmp_path / "data").mkdir()
    live = phase(tmp_path, failOnDataLoss="false")
    before = pa.total_allocated_bytes()
    start = live.begin({})
    step = live.next(start, Limit(None), 0)
    assert live.next(step.position, Limit(None), 0).position == step.position
    # The path, and 50 bytes for size, tag and times: once, for the list of unread files and for that of all.
    assert pa.total_allocated_bytes() - before < count * (len(paths[0]) + 60)
