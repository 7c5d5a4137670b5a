"""Rules: when sources without a flag are in backlog."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.reports import ProgressReport, SourceReport
from backlog_spark.decide.rules import (
    Figures,
    Judge,
    Rule,
    check_user_rule,
    figures,
    flagged,
    offsets_behind,
    parse_rules,
)
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spark.jvm.listener import to_report


def rules(**conf: str) -> tuple[tuple[Rule, ...], int]:
    return parse_rules(parse_settings({f"spark.backlog.rule.{k.replace('_', '.')}": v for k, v in conf.items()}))


def test_a_rule_leaves_at_half_by_default() -> None:
    found, stay = rules(offsetsBehindLatest="1000", watermarkLag="1 h", watermarkLag_leave="10 min", minStay="5 s")
    assert found == (Rule("offsetsBehindLatest", 1000, 500), Rule("watermarkLag", 3_600_000, 600_000))
    assert stay == 5_000
    assert rules() == ((), 60_000)


def test_thresholds_that_contradict() -> None:
    with pytest.raises(SettingError, match=r"watermarkLag.leave = '2 h': is more than .*watermarkLag = '1 h'"):
        rules(watermarkLag="1 h", watermarkLag_leave="2 h")
    with pytest.raises(
        SettingError, match=r"filesOutstanding.leave = 3: needs the threshold to enter.*filesOutstanding"
    ):
        rules(filesOutstanding_leave="3")


TABLE = [
    # in backlog, kafka figure, files figure -> in backlog; enter above 100 and 10, leave at 50 and 5
    (False, 100, None, False),
    (False, 101, None, True),
    (False, None, 11, True),
    (False, 0, 11, True),
    (False, None, None, False),
    (True, 51, 0, True),
    (True, 50, 6, True),
    (True, 50, 5, False),
    (True, 50, None, False),
    (True, None, None, False),
]


@pytest.mark.parametrize(("before", "kafka", "files", "after"), TABLE)
def test_truth_table(before: bool, kafka: float | None, files: float | None, after: bool) -> None:
    judge = Judge([Rule("offsetsBehindLatest", 100, 50), Rule("filesOutstanding", 10, 5)])
    judge.take(Figures({"offsetsBehindLatest": 1_000.0 if before else 0.0}), 0)
    assert judge.is_backlog is before
    told = {"offsetsBehindLatest": kafka, "filesOutstanding": files}
    assert judge.take(Figures({k: v for k, v in told.items() if v is not None}), 1) is after


def test_without_rules_there_is_never_backlog() -> None:
    judge = Judge([])
    assert not judge.take(Figures({"offsetsBehindLatest": 1e12}), 0)
    assert judge.needs == frozenset()


@pytest.mark.parametrize("files", [0.0, 200.0, None])
@pytest.mark.parametrize("answer", [True, False, None])
def test_a_rule_of_the_users_own_counts_beside_the_others(files: float | None, answer: bool | None) -> None:
    given: list[ProgressReport] = []
    judge = Judge([Rule("filesOutstanding", 100, 50)], 0, lambda report: given.append(report) or answer)
    report = progress()
    assert judge.needs == {"filesOutstanding", "report"}
    found = Figures({} if files is None else {"filesOutstanding": files})
    assert judge.take(found, 0, report) is (answer is True or files == 200)
    assert given == [report]
    judge.end(1)
    assert not judge.is_backlog


@pytest.mark.parametrize("answer", [1, "true", [], ValueError("no such table")])
def test_a_rule_of_the_users_own_that_fails(answer: object) -> None:
    def own(report: ProgressReport) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    problem = "failed with ValueError: no such table" if isinstance(answer, Exception) else "returned .*"
    with pytest.raises(BacklogError, match=rf"backlog_when has {problem}\. It is given a batch's report"):
        Judge([], 0, own).take(Figures({}), 0, progress())
    with pytest.raises(SettingError, match=r"backlog_when = 'late': is no function\. Pass a function"):
        check_user_rule("late")


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30_000)), max_size=60), st.integers(0, 60_000))
def test_it_does_not_flap(steps: list[tuple[int, int]], stay: int) -> None:
    judge = Judge([Rule("filesOutstanding", 100, 50)], stay)
    now, changes, before = 0, [], False
    for files, wait in steps:
        now += wait
        after = judge.take(Figures({"filesOutstanding": files}), now)
        if after != before:
            assert files > 100 if after else files <= 50
            changes.append(now)
        elif files > 100 or files <= 50:  # it should be the other way but for the stay
            assert after == (files > 100) or now - changes[-1] < stay
        before = after
    assert all(b - a >= stay for a, b in itertools.pairwise(changes))


def test_one_slow_batch_is_not_busy() -> None:
    judge = Judge([Rule("busyRatio", 1, 0.5)])
    busy = [judge.take(Figures({"busyRatio": r}), 0) for r in (0.1, 2.5, 0.1, 1.0, 1.5, 1.2)]
    # means of three: 0.03, 0.87, 0.9, 1.2
    assert busy == [False, False, False, True, True, True]
    assert judge.take(Figures({}), 0) is False  # a run without an interval cannot be late


def kafka(end: Any, latest: Any, index: int = 0) -> SourceReport:
    return SourceReport(index, "KafkaV2[Subscribe[a]]", None, end, latest, 5, False, False, False)


def test_offsets_behind_are_those_of_all_partitions() -> None:
    assert offsets_behind(kafka({"a": {"0": 5, "1": 7}}, {"a": {"0": 25, "1": 7}})) == 20
    assert offsets_behind(kafka({"a": {"0": 5}}, {"a": {"0": 5, "1": 30}, "b": {"0": 1}})) == 31  # new partitions
    assert offsets_behind(kafka({"a": {"0": 9}}, {"a": {"0": 5}})) == 0  # a topic that was made again
    assert offsets_behind(kafka({"a": {"0": 9}}, None)) is None
    assert offsets_behind(SourceReport(0, "FileStreamSource[/x]", None, {}, {}, 0, False, False, False)) is None


def progress(**more: Any) -> ProgressReport:
    told = {"id": "q", "runId": "r", "batchId": 1, "timestamp": "t", "eventTime": {}, "sources": []}
    return to_report(
        SimpleNamespace(
            **{**told, "durationMs": {"triggerExecution": 1500}, "stateOperators": [], "observedMetrics": {}, **more}
        )
    )  # type: ignore[arg-type]


def test_figures_of_a_report() -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp() * 1000
    source = SimpleNamespace(
        description="KafkaV2[Subscribe[a]]",
        startOffset=None,
        endOffset=json.dumps({"a": {"0": 5}}),
        latestOffset=json.dumps({"a": {"0": 8}}),
        numInputRows=5,
    )
    report = progress(sources=[source, source], eventTime={"watermark": "2026-05-01T11:59:00.000Z"})
    found = figures(report, now, 1_000, {"filesOutstanding": 3.0})
    expected = {"offsetsBehindLatest": 6.0, "watermarkLag": 60_000.0, "busyRatio": 1.5, "filesOutstanding": 3.0}
    assert found.values == expected
    assert figures(report, now, None).values.keys() == {"offsetsBehindLatest", "watermarkLag"}


def test_a_watermark_without_meaning_is_ignored() -> None:
    assert figures(progress(eventTime={"watermark": "1970-01-01T00:00:00.000Z"}), 1e12, None).values == {}
    # The rows of a batch may be those of sources that rules do not judge, or state that was handed over.
    idle = progress(eventTime={"watermark": "2020-01-01T00:00:00.000Z"})
    assert idle.num_input_rows == 0
    assert figures(idle, 1e12, None).values == {}


def test_flags_are_put_into_a_report_of_foreign_sources_only() -> None:
    ours = SourceReport(1, "mysql_cdc", None, {}, None, 5, False, True, False)
    report = ProgressReport("q", "r", 3, "t", {}, (kafka({}, {}), ours))
    told = flagged(report, {0: True}, {0: False})
    assert [(s.is_backlog, s.is_processing_backlog) for s in told.sources] == [(False, True), (True, False)]
