"""``backlog-spark inspect`` on checkpoints as files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from backlog_spark import tools
from backlog_spark.connectors.mysql_cdc.offsets import Offset, SnapshotRange
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint.driver_claim import _who
from backlog_spark.tools.command import command
from backlog_spark.tools.inspection import inspected
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint

_LIVE = {"version": 3, "isProcessingBacklog": False, "isBacklog": False, "position": ["binlog.000002", 157]}

_QUIET = {"is_processing_backlog": False, "is_finished": False, "tables": []}


def event(kind: str, at: str = "2026-11-26T16:38:55.852+00:00", **fields: Any) -> dict[str, Any]:
    return {"v": 1, "at": at, "kind": kind, "query": "orders", **fields}


START = event(
    "start", interval_ms=1_000, interval_during_backlog_ms=600_000, spark="4.2.0", python="3.11.7",
    sources=[{"name": "orders", "format": "mysql_cdc"}],
)  # fmt: skip
SWITCH = event("switch", batch=4, mode="stream", interval_ms=1_000, why="source orders has left its backlog")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batch 5 is planned, batch 4 committed; the second source has no JSON."""
    root = tmp_path / "a checkpoint"
    for name in ("offsets", "commits", "state/0", "backlog/events"):
        (root / name).mkdir(parents=True)
    for batch in (4, 5):
        (root / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(_LIVE)}\n17")
    (root / "offsets" / ".5.crc").write_text("crc")
    (root / "commits" / "4").write_text("v1\n{}")
    (root / "state" / "0" / "1.delta").write_bytes(b"12345")
    (root / "backlog" / "identity.json").write_text('{"version": 1, "id": "6299a91f-c3a9-4a47-833e-e4dbdb48aaaa"}')
    return root


def write(root: Path, name: str, *events: dict[str, Any]) -> None:
    (root / "backlog" / "events" / name).write_text("".join(f"{json.dumps(e)}\n" for e in events))


def test_all_that_a_checkpoint_says(checkpoint: Path) -> None:
    batch = event("batch", batch=4, rows=17, took_ms=812, backlog_rows=1_000, backlog_total=1_200)
    write(checkpoint, "00000001.jsonl", START, SWITCH)
    write(checkpoint, "00000002.jsonl", SWITCH, batch, event("restart", attempt=1, delay_ms=1_000, error="lost"))
    found = inspected(StoredCheckpoint(str(checkpoint)))
    assert found == {
        "location": str(checkpoint),
        "query": "orders",
        "identity": "6299a91f-c3a9-4a47-833e-e4dbdb48aaaa",
        "status": "running or killed",
        "mode": "stream",
        "planned": 5,
        "committed": 4,
        "backlog_rows": 1_000,
        "backlog_total": 1_200,
        "rows_behind": 200,
        "seconds_left": pytest.approx(200 / (17 / 0.812)),
        "freshness_s": None,
        "last_batch": {"at": batch["at"], "rows": 17, "took_ms": 812},
        "sources": [
            {"number": "0", "name": "orders", **_QUIET, "offset": _LIVE},
            {"number": "1", "name": None, **_QUIET, "offset": None},
        ],
        "started": {"at": START["at"], "spark": "4.2.0", "python": "3.11.7"},
        "intervals_ms": {"normal": 1_000, "during_backlog": 600_000},
        "switches": [
            {
                "at": SWITCH["at"], "batch": 4, "mode": "stream", "interval_ms": 1_000,
                "why": "source orders has left its backlog",
            }
        ],  # the line that a crash left twice counts once
        "restarts": [{"at": START["at"], "attempt": 1, "delay_ms": 1_000, "error": "lost"}],
        "sizes": {
            "offsets": {"bytes": found["sizes"]["offsets"]["bytes"], "files": 3},
            "commits": {"bytes": 5, "files": 1},
            "state": {"bytes": 5, "files": 1},
            "backlog": {"bytes": found["sizes"]["backlog"]["bytes"], "files": 3},
        },
    }  # fmt: skip


def test_a_source_has_the_name_of_its_position(checkpoint: Path) -> None:
    """Spark's plan may have a streaming DataFrame, or the state handed over, before a declared source."""
    write(checkpoint, "00000001.jsonl", START)
    backlog = json.dumps({**_LIVE, "isProcessingBacklog": True})
    (checkpoint / "offsets" / "6").write_text(f"v1\n{{}}\n17\n{backlog}")
    for version, position in enumerate((2, 1)):
        layout = {"version": 1, "names": ["orders"], "positions": [position]}
        (checkpoint / "backlog" / f"sources-{version}.json").write_text(json.dumps(layout))
    found = inspected(StoredCheckpoint(str(checkpoint)))["sources"]
    assert [(each["name"], each["is_processing_backlog"]) for each in found] == [(None, False), ("orders", True)]


def test_without_flags_in_the_offsets_the_mode_is_that_of_the_newest_switch(checkpoint: Path) -> None:
    """Rules decide for Spark's own sources."""
    (checkpoint / "offsets" / "6").write_text('v1\n{}\n{"logOffset": 7}')
    switches = [event("switch", batch=n, mode=mode, why="a rule") for n, mode in ((-1, "stream"), (3, "backlog"))]
    write(checkpoint, "00000001.jsonl", START, *switches)
    assert inspected(StoredCheckpoint(str(checkpoint)))["mode"] == "backlog"
    write(checkpoint, "00000002.jsonl", {**SWITCH, "at": "2026-11-26T16:39:00.000+00:00"})
    assert inspected(StoredCheckpoint(str(checkpoint)))["mode"] == "stream"


def test_while_the_interval_during_backlog_is_unset_the_mode_is_always_stream(checkpoint: Path) -> None:
    """As the query's own `mode` and the report say, although a source is in backlog."""
    (checkpoint / "offsets" / "6").write_text(f"v1\n{{}}\n{json.dumps({**_LIVE, 'isProcessingBacklog': True})}")
    unset = {name: value for name, value in START.items() if name != "interval_during_backlog_ms"}
    write(checkpoint, "00000001.jsonl", unset, event("switch", batch=-1, mode="stream", why="the mode at the start"))
    found = inspected(StoredCheckpoint(str(checkpoint)))
    assert (found["mode"], found["sources"][0]["is_processing_backlog"]) == ("stream", True)
    write(checkpoint, "00000001.jsonl", START)
    assert inspected(StoredCheckpoint(str(checkpoint)))["mode"] == "backlog"


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (START, "running or killed"),
        (event("end", status="stopped"), "stopped at 2026-11-26T16:38:55"),
        (event("end", status="failed", error="disk full"), "failed at 2026-11-26T16:38:55: disk full"),
        (event("refused", error="no such table"), "start refused at 2026-11-26T16:38:55: no such table"),
    ],
)
def test_how_it_ended(checkpoint: Path, last: dict[str, Any], status: str) -> None:
    write(checkpoint, "00000001.jsonl", START, last)
    assert inspected(StoredCheckpoint(str(checkpoint)))["status"] == status


def test_a_plain_spark_query_has_no_events(checkpoint: Path) -> None:
    (checkpoint / "backlog" / "events").rmdir()
    (checkpoint / "backlog" / "identity.json").unlink()
    found = inspected(StoredCheckpoint(str(checkpoint)))
    assert (found["query"], found["identity"], found["status"], found["planned"]) == (None, None, None, 5)
    done = CliRunner().invoke(command, ["inspect", str(checkpoint)])
    assert done.exit_code == 0
    assert "unknown: it writes no event log" in done.output


def test_the_table_names_what_matters(checkpoint: Path) -> None:
    write(checkpoint, "00000001.jsonl", START, SWITCH)
    done = CliRunner().invoke(command, ["inspect", str(checkpoint)], env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    for text in (
        "committed up to batch 4; batch 5 is under way, and a restart replays it",
        "1 s, during backlog 10 min",
        "source orders has left its backlog",
        "running or killed",
    ):
        assert text in done.output


def printed(checkpoint: Path) -> str:
    done = CliRunner().invoke(command, ["inspect", str(checkpoint)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_mode_at_the_start_has_no_batch(checkpoint: Path) -> None:
    write(checkpoint, "00000001.jsonl", START, {**SWITCH, "batch": -1, "why": "source orders reads its snapshot"})
    assert inspected(StoredCheckpoint(str(checkpoint)))["switches"][0]["batch"] is None
    assert "│ start │" in printed(checkpoint)
    assert "│ -1" not in printed(checkpoint)


@pytest.mark.parametrize(("runs", "status"), [(True, "running"), (False, "killed"), (None, "running or killed")])
def test_a_process_of_this_machine_is_looked_up(checkpoint: Path, runs: bool | None, status: str) -> None:
    who = dict(_who())
    if runs is None:
        who["machine"] = "another one"
    elif not runs:
        who["pid"] = 2**22 + 7  # more than Linux ever gives
    (checkpoint / "backlog" / "drivers").mkdir()
    for number, name in enumerate(("0" * 32, "1" * 32)):  # the newer claim counts
        claim = who if number else {**who, "pid": 2**22 + 1}
        (checkpoint / "backlog" / "drivers" / f"{number}-{name}.json").write_text(json.dumps(claim))
    write(checkpoint, "00000001.jsonl", START)
    assert inspected(StoredCheckpoint(str(checkpoint)))["status"] == status
    write(checkpoint, "00000002.jsonl", event("end", at="2026-11-26T17:00:00.000+00:00", status="stopped"))
    assert inspected(StoredCheckpoint(str(checkpoint)))["status"] == "stopped at 2026-11-26T17:00:00"


def test_how_fresh_the_target_is(checkpoint: Path) -> None:
    began = 1_795_711_135_000
    waits = [*([900] * 19), 4_000]
    batches = [
        event(
            "batch", at=f"2026-11-26T16:39:{number:02d}.000+00:00", batch=number, rows=1, backlog=False, took_ms=500,
            sources=[{"name": "orders", "rows": 1, "committed_ms": [began, began]}], written_ms=began + wait,
        )
        for number, wait in enumerate(waits)
    ]  # fmt: skip
    write(checkpoint, "00000001.jsonl", START, SWITCH, *batches)
    found = inspected(StoredCheckpoint(str(checkpoint)))
    assert found["freshness_s"] == {"median": 0.9, "p95": 0.9, "batches": 20}
    assert "0.9 s, 95 % within 0.9 s, in the newest 20 live batches" in printed(checkpoint)


def test_how_far_each_table_is(checkpoint: Path) -> None:
    """Offsets of a real planner: one table is read, one is being read, one waits."""
    names = ("orders", "customers", "log")
    tables = tuple(TableSchema("shop", name, (), ()) for name in names)
    ranges = (
        SnapshotRange((10,), "a:1-3", 1, table=0, rows=10),
        SnapshotRange(None, "a:1-3", 1, table=0, rows=7),
        SnapshotRange((5,), "a:1-4", 2, table=1, rows=5),
    )
    offset = Offset(server="a", tables=tables, ranges=ranges, rows=22, total=100).to_json()
    (checkpoint / "offsets" / "6").write_text(f"v1\n{{}}\n{json.dumps(offset)}\n17")
    batch = event("batch", batch=6, rows=5, backlog=True, took_ms=1_000, backlog_rows=22, backlog_total=100)
    write(checkpoint, "00000001.jsonl", START, {**SWITCH, "mode": "backlog", "batch": -1}, batch)
    (source, _) = inspected(StoredCheckpoint(str(checkpoint)))["sources"]
    assert source["tables"] == [
        {"name": "shop.orders", "phase": "complete", "rows": 17},
        {"name": "shop.customers", "phase": "being read", "rows": 5},
        {"name": "shop.log", "phase": "waits", "rows": 0},
    ]
    text = printed(checkpoint)
    assert "22 of about 100 rows committed (22 %)" in text
    assert "about 78 of the backlog" in text
    assert "being read" in text


def test_a_newer_event_log_is_refused(checkpoint: Path) -> None:
    write(checkpoint, "00000001.jsonl", {**START, "v": 2})
    with pytest.raises(BacklogError, match=r"has version 2 of its format; this version of .* reads version 1"):
        inspected(StoredCheckpoint(str(checkpoint)))


@pytest.mark.process
def test_the_command_as_a_process(checkpoint: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "backlog_spark.tools", *arguments]
        return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"})

    write(checkpoint, "00000001.jsonl", START)
    done = run("inspect", "--json", str(checkpoint))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["query"] == "orders"
    failed = run("inspect", str(tmp_path / "nothing"))
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: CHECKPOINT")
    assert "Give the query's checkpointLocation" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert run("inspect").returncode == 2


@pytest.mark.process
@pytest.mark.parametrize(("package", "extra"), [("click", "cli"), ("rich", "cli"), ("fsspec", "files")])
def test_a_missing_package_is_one_line(package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from backlog_spark.tools import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: The command backlog-spark needs the Python package {package}, ")
    assert f"'backlog-spark[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_it_needs_no_spark(checkpoint: Path) -> None:
    write(checkpoint, "00000001.jsonl", START)
    code = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; from backlog_spark.tools import main; main()"
    )
    line = [sys.executable, "-c", code, "inspect", "--json", str(checkpoint)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["query"] == "orders"


@pytest.mark.process
def test_the_module_runs_as_a_file_as_spark_submit_runs_it() -> None:
    """Python then looks for modules in that folder first. None may have a name of the standard library."""
    file = Path(tools.__file__).parent / "__main__.py"
    done = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "inspect" in done.stdout
