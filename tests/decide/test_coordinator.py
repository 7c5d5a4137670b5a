"""FLIP-309's rules as truth tables, and random histories against an independent model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.steps import Decision, Facts, Mode
from backlog_spark.errors import SettingError

B, S = Mode.BACKLOG, Mode.STREAM
T, F = True, False

# Interval 30 s, during backlog 30 min: the FLIP's own example.
# Each row: a step, then what holds after it: (is_processing_backlog, mode, commit_interval_ms, switched).
Step = tuple[str, str, bool | None]
Row = tuple[Step, tuple[bool, Mode, int | None, bool]]

HYBRID: list[Row] = [
    (("register", "hybrid", None), (F, S, 30_000, F)),  # "isProcessingBacklog=false by default"
    (("report", "hybrid", T), (T, B, 1_800_000, T)),  # "true when it starts to run the first source"
    (("report", "hybrid", T), (T, B, 1_800_000, F)),
    (("report", "hybrid", F), (F, S, 30_000, T)),  # "false when it starts to run the last source"
]
ANY_SOURCE: list[Row] = [
    (("register", "a", None), (F, S, 30_000, F)),
    (("register", "b", None), (F, S, 30_000, F)),
    (("report", "a", T), (T, B, 1_800_000, T)),  # "if and only if any source … reports true"
    (("report", "b", T), (T, B, 1_800_000, F)),
    (("report", "a", F), (T, B, 1_800_000, F)),
    (("report", "b", F), (F, S, 30_000, T)),
]
LAST_REPORT_WINS: list[Row] = [
    (("report", "a", T), (T, B, 1_800_000, T)),
    (("report", "a", F), (F, S, 30_000, T)),
    (("report", "a", T), (T, B, 1_800_000, T)),
    (("report", "a", F), (F, S, 30_000, T)),
]
LATE: list[Row] = [
    (("report", "a", T), (T, B, 1_800_000, T)),
    (("register", "late", None), (T, B, 1_800_000, F)),  # gets the present status
    (("register", "a", None), (T, B, 1_800_000, F)),  # a known source keeps its flag
    (("report", "late", F), (T, B, 1_800_000, F)),
    (("report", "a", F), (F, S, 30_000, T)),
]
FINISHED: list[Row] = [
    (("report", "a", T), (T, B, 1_800_000, T)),
    (("report", "b", T), (T, B, 1_800_000, F)),
    (("finish", "a", None), (T, B, 1_800_000, F)),  # "any source *running* in the job"
    (("finish", "b", None), (F, S, 30_000, T)),
    (("report", "b", T), (F, S, 30_000, F)),  # a late report of a finished source
    (("register", "b", None), (F, S, 30_000, F)),
    (("finish", "b", None), (F, S, 30_000, F)),
    (("finish", "never seen", None), (F, S, 30_000, F)),
    (("report", "never seen", T), (F, S, 30_000, F)),
]


def apply(coordinator: Coordinator, step: Step) -> Decision:
    """Carry out one step of a table."""
    what, source, flag = step
    if what == "register":
        return coordinator.register(source)
    if what == "finish":
        return coordinator.finish(source)
    assert flag is not None
    return coordinator.report(source, flag)


@pytest.mark.parametrize("table", [HYBRID, ANY_SOURCE, LAST_REPORT_WINS, LATE, FINISHED])
def test_table(table: list[Row]) -> None:
    coordinator = Coordinator(Facts(30_000, 1_800_000))
    for number, (step, expected) in enumerate(table):
        assert apply(coordinator, step) == Decision(*expected), f"row {number}: {step}"
        assert coordinator.is_processing_backlog is expected[0]
        assert coordinator.mode is expected[1]
        assert coordinator.decision == Decision(*expected[:3], switched=False)


@pytest.mark.parametrize(
    ("interval_ms", "during_ms", "in_backlog", "mode", "commit_ms"),
    [
        (30_000, None, True, S, 30_000),  # feature off
        (30_000, None, False, S, 30_000),
        (30_000, 0, True, B, None),  # "0, which means the checkpoint is disabled during backlog"
        (30_000, 0, False, S, 30_000),
        (30_000, 30_000, True, B, 30_000),  # equal is allowed
        (30_000, 30_000, False, S, 30_000),
        (0, 0, True, B, None),
        (0, 0, False, S, 0),
        (0, 5_000, True, B, 5_000),
        (0, None, True, S, 0),
    ],
)
def test_interval(interval_ms: int, during_ms: int | None, in_backlog: bool, mode: Mode, commit_ms: int | None) -> None:
    coordinator = Coordinator(Facts(interval_ms, during_ms))
    coordinator.report("a", in_backlog)
    assert coordinator.decision == Decision(in_backlog, mode, commit_ms, False)


def test_feature_off_never_switches_but_reports_the_flag() -> None:
    coordinator = Coordinator(Facts(30_000, None))
    assert coordinator.report("a", True) == Decision(True, S, 30_000, False)
    assert coordinator.report("a", False) == Decision(False, S, 30_000, False)


def test_no_source_is_no_backlog() -> None:
    assert Coordinator(Facts(1_000, 0)).decision == Decision(False, S, 1_000, False)


def test_mode_is_a_plain_word() -> None:
    assert (B, str(S), f"{B}") == ("backlog", "stream", "backlog")


@pytest.mark.parametrize(
    ("interval_ms", "during_ms", "parts"),
    [
        (30_000, 29_999, ["interval_during_backlog = '29999 ms'", "interval = '30 s'"]),
        (2, 1, ["interval_during_backlog = '1 ms'", "interval = '2 ms'"]),
        (-1, None, ["interval = '-1 ms'", "negative"]),
        (0, -1, ["interval_during_backlog = '-1 ms'", "negative"]),
    ],
)
def test_refused_intervals(interval_ms: int, during_ms: int | None, parts: list[str]) -> None:
    with pytest.raises(SettingError) as caught:
        Coordinator(Facts(interval_ms, during_ms))
    for part in parts:
        assert part in str(caught.value)


STEPS = st.one_of(
    st.tuples(st.just("register"), st.sampled_from("abc"), st.none()),
    st.tuples(st.just("report"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("finish"), st.sampled_from("abc"), st.none()),
)


def model(history: list[Step]) -> bool:
    """Whether the job is in backlog: each source's newest report, found by reading the history backwards."""
    for source in "abc":
        mine = [(what, flag) for what, name, flag in history if name == source]
        if ("finish", None) in mine:
            continue
        reports = [flag for what, flag in mine if what == "report"]
        if reports and reports[-1]:
            return True
    return False


@given(st.lists(STEPS, max_size=30), st.sampled_from([None, 0, 5_000, 60_000]))
def test_any_history(history: list[Step], during_ms: int | None) -> None:
    coordinator = Coordinator(Facts(5_000, during_ms))
    for done, step in enumerate(history):
        before = during_ms is not None and model(history[:done])
        in_backlog = model(history[: done + 1])
        after = during_ms is not None and in_backlog
        decision = apply(coordinator, step)
        assert decision.is_processing_backlog is in_backlog
        assert decision.mode == ("backlog" if after else "stream")
        assert decision.commit_interval_ms == ((during_ms if during_ms else None) if after else 5_000)
        assert decision.switched is (before != after)
