"""How the freshness benchmark finds commit times in a table's log, and the live and backlog benchmarks in small."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import freshness, freshness_page, proof_page, sink
from benchmarks.common import result
from benchmarks.freshness import Measured
from benchmarks.processes import Usage, spent, usage
from examples.freshness import Commit, gaps, greatest, percentile, read_log, waits
from examples.freshness import freshness as sentence
from servers.mysql import MySQLServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_change_waits_for_the_first_commit_that_reaches_it() -> None:
    commits = [(10.0, 2), (11.0, 4), (13.0, 7)]
    changes = [(1, 8.0), (2, 9.5), (3, 9.75), (4, 10.5), (5, 10.5), (7, 12.0)]
    assert waits(commits, changes) == [2.0, 0.5, 1.25, 0.5, 2.5, 1.0]


def test_rows_that_are_written_again_are_not_new() -> None:
    # The second commit rewrites old rows alone, the third has none, the fourth has old ones and new ones.
    commits: list[tuple[float, int | None]] = [(10.0, 5), (11.0, 3), (12.0, None), (13.0, 6)]
    assert waits(commits, [(3, 9.0), (5, 9.5), (6, 9.75)]) == [1.0, 0.5, 3.25]


def test_a_change_that_no_commit_has_is_left_out() -> None:
    assert waits([(10.0, 5)], [(5, 9.0), (6, 9.0)]) == [1.0]
    assert waits([], [(1, 9.0)]) == []


@pytest.mark.parametrize(("percent", "expected"), [(50, 5.0), (95, 10.0), (90, 9.0), (99, 10.0), (0, 1.0)])
def test_percentiles_are_by_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([float(n) for n in (10, 3, 2, 1, 4, 5, 7, 6, 9, 8)], percent) == expected


def test_gaps() -> None:
    assert gaps([1.0, 2.5, 3.0]) == [1.5, 0.5]
    assert gaps([1.0]) == gaps([]) == []


def _write_log(table: Path, actions: list[list[dict[str, Any]]]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    for version, lines in enumerate(actions):
        file = log / f"{version:020}.json"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(file, (100 + version, 100 + version))


def test_commits_come_from_the_log_without_files_that_only_rewrite(tmp_path: Path) -> None:
    def add(path: str, newest: int | None, *, new: bool = True) -> dict[str, Any]:
        stats = {} if newest is None else {"stats": json.dumps({"maxValues": {"at": newest}})}
        return {"add": {"path": path, "dataChange": new, **stats}}

    _write_log(
        tmp_path,
        [
            [{"metaData": {}}],
            [add("a", 4), add("b", 7), {"commitInfo": {}}],
            [add("c", 7, new=False), {"remove": {"path": "a"}}],
            [add("d", None)],
        ],
    )
    commits = read_log(tmp_path)
    assert [commit.at for commit in commits] == [100, 101, 102, 103]
    assert [[file["path"] for file in commit.files] for commit in commits] == [[], ["a", "b"], [], ["d"]]
    assert [greatest(commit, "at") for commit in commits] == [None, 7, None, None]
    assert greatest(Commit(0.0, []), "at") is None


def test_the_demos_sentence_counts_rows_and_commits_since_the_switch() -> None:
    def commit(at: float, newest: str | None) -> Commit:
        stats = {} if newest is None else {"stats": json.dumps({"maxValues": {"at": newest}})}
        return Commit(at, [{"path": "a", **stats}])

    zero = datetime(2026, 1, 1)
    since = zero.replace(tzinfo=UTC).timestamp()
    # Statistics are of milliseconds, or of microseconds.
    commits = [
        commit(since - 5, "2025-12-31T23:59:50.000Z"),
        commit(since + 1, "2026-01-01T00:00:00.250Z"),
        commit(since + 2.5, "2026-01-01T00:00:02.250400Z"),
        commit(since + 3, None),
        commit(since + 5, "2026-01-01T00:00:04.000Z"),
    ]
    seconds = [-10.0, 0.0, 0.2504, 2.0, 2.25, 4.0]
    changed = [zero + timedelta(seconds=s) for s in seconds]
    assert sentence(commits, "at", changed, since) == (
        "Freshness after the switch: 0.7 s from a change in MySQL to the commit in Delta in the median, "
        "1.0 s for 95 %; a commit every 2.0 s"
    )
    assert sentence(commits[:1], "at", changed, since) == "Freshness after the switch: too few commits to tell"


def test_a_cost_is_the_peers_divided_by_ours(capsys: pytest.CaptureFixture[str]) -> None:
    result("freshness", "upsert rate=500 p50", 1.2345, {"handwritten": 6.1725}, less_is_better=True)
    expected = '{"case": "freshness", "variant": "upsert rate=500 p50", "ours": 1.234, "ratios": {"handwritten": 5.0}}'
    assert capsys.readouterr().out == f"RESULT {expected}\n"


def test_the_page_has_a_line_for_each_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof_page, "_FOLDER", tmp_path)
    ours = Measured(waits=[0.1, 0.2, 0.3, 4.0], seconds=10, cpu=5.0, idle=[1.0, 2.5, 3.0], rate=500.0)
    theirs = Measured(waits=[2.0], seconds=10, cpu=50.0, idle=[9.0], rate=490.4)
    given = freshness.parser().parse_args(["--rows", "2000", "--seconds", "10"])
    freshness_page.write({("sum", 500): {"ours": ours, "handwritten": theirs}}, given, "8.0.15")
    lines = (tmp_path / "freshness.md").read_text().splitlines()
    assert "| 500 | backlog_spark | 500 | 0.20 | 4.00 | 4.00 | 1.00 | 2.5 % |" in lines
    assert "| 500 | by hand | 490 | 2.00 | 2.00 | 2.00 | 10.20 | 9.0 % |" in lines
    assert "KIND=sum RATE=500 SECONDS=10 ROWS=2000 KEYS=200000 RUNS=1 WRITE=1" in "\n".join(lines)


def _results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")]


def _freshness(spark: SparkSession, kinds: str) -> None:
    arguments = ["--rows", "2000", "--keys", "20", "--rate", "60", "--seconds", "2", "--kind", kinds]
    with MySQLServer(fast=True) as server:
        freshness.measure(spark, server, freshness.parser().parse_args(arguments))


@pytest.mark.grid
def test_freshness_of_all_kinds(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    _freshness(spark, ",".join([*freshness.KINDS, "switch", "backpressure"]))
    found = _results(capsys.readouterr().out)
    assert {line["variant"].split()[0] for line in found} == {*freshness.KINDS, "switch", "backpressure"}
    what = ["p50", "p95", "p99", "commits a minute", "cpu a commit", "idle"]
    assert [line["variant"] for line in found[:6]] == [f"append rate=60 {each}" for each in what]
    assert all(line["ours"] > 0 and line["ratios"]["handwritten"] > 0 for line in found[:5])


@pytest.mark.grid
def test_sink(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    sink.measure(spark, 3_000, runs=1)
    found = _results(capsys.readouterr().out)
    assert [(line["case"], line["variant"]) for line in found] == [("sink", "rows=3000")]
    assert found[0]["ratios"]["spark_merge"] > 0


def test_processor_time_of_processes_that_begin_end_and_are_not_waited_for() -> None:
    jvm, daemon, worker, other, new = range(1, 6)
    before = {
        jvm: Usage(0, 10.0, 1.0),
        daemon: Usage(jvm, 1.0, 0.0),
        worker: Usage(daemon, 5.0, 2.0),
        other: Usage(jvm, 50.0, 0.0),
    }
    # The worker ended with half a second more and its daemon waited for it; nobody waited for the other one.
    after = {jvm: Usage(0, 11.0, 1.0), daemon: Usage(jvm, 1.25, 7.5), new: Usage(daemon, 0.25, 0.0)}
    assert spent(before, after) == 1.0 + 0.25 + 0.5 + 0.25
    # The daemon has ended too, and the JVM has its time with the worker's.
    assert spent(before, {jvm: Usage(0, 10.0, 10.0)}) == 0.0
    assert spent({jvm: before[jvm], daemon: before[daemon]}, {jvm: Usage(0, 10.0, 3.0)}) == 1.0
    assert spent(before, before) == 0.0


def test_processor_time_of_this_process() -> None:
    before = usage(os.getppid())
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert before.keys() >= {os.getpid(), os.getppid()}
    assert spent(before, usage(os.getpid())) > 0


def test_transactions_missing_in_the_table_fail_the_measurement() -> None:
    from benchmarks.changes import Application
    from benchmarks.common import Unequal

    application = Application(5, [(1, 10.0), (2, 11.0), (3, 12.0)])
    measured = Measured()
    measured.add([(10.5, 1), (12.5, 3)], application, 9.0, 13.0)
    assert measured.waits == [0.5, 1.5, 0.5]
    assert (measured.commits, measured.rate, measured.between) == (2, 15 / 4, [2.0])
    with pytest.raises(Unequal, match="transactions 3; found in the table 1"):
        measured.add([(10.5, 1)], application, 9.0, 13.0)
