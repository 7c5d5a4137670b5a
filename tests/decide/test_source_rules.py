"""Rules for declared sources: the lag of their own watermarks, and a rule of the user's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.decide.reports import ProgressReport, SourceReport
from backlog_spark.decide.rules import Rule
from backlog_spark.decide.source_rules import SourceRules, TimedInput
from backlog_spark.errors import BacklogError

NAMES = {0: "a", 1: "b", 3: "c"}  # 2 is a foreign source
INPUTS = [TimedInput(frozenset({"a"}), 10), TimedInput(frozenset({"b", "a"}), 0)]
LAG = Rule("watermarkLag", 100, 40)


def report(rows: dict[int, int], times: dict[int, int], batch: int = 0) -> ProgressReport:
    sources = tuple(SourceReport(n, "", None, None, None, count, False, False, False) for n, count in rows.items())
    return ProgressReport("q", "r", batch, "", {}, sources, event_times=times)


BATCH = st.tuples(
    st.dictionaries(st.sampled_from([0, 1, 2, 3]), st.integers(0, 2), max_size=4),
    st.dictionaries(st.sampled_from([0, 1]), st.integers(0, 400), max_size=2),
    st.integers(0, 500),
)


@given(st.lists(BATCH, max_size=12))
def test_a_source_is_in_backlog_while_its_slowest_watermark_is_behind(
    batches: list[tuple[dict[int, int], dict[int, int], int]],
) -> None:
    """Compared with the sentence: enters above 100, leaves at 40, changes only with timed rows of its own."""
    rules = SourceRules(NAMES.values(), INPUTS, [LAG, Rule("busyRatio", 1, 0.5)])
    assert [rules.rule(name) for name in NAMES.values()] == [True, True, False]
    seen: list[int | None] = [None, None]
    expected = {"a": False, "b": False, "c": False}
    for number, (rows, times, now) in enumerate(batches):
        rules.take(report(rows, times, number), NAMES, now, number)
        for at, time in times.items():
            seen[at] = time if seen[at] is None else max(time, seen[at] or 0)
        first = None if seen[0] is None else seen[0] - 10 - 1
        second = None if seen[1] is None else seen[1] - 1
        for index, of, inputs in ((0, (first, second), {0, 1}), (1, (second,), {1})):
            known = [now - each for each in of if each is not None]
            if rows.get(index) and inputs & times.keys():
                name = NAMES[index]
                expected[name] = max(known) > (40 if expected[name] else 100)
        assert {name: rules.says_backlog(name) for name in NAMES.values()} == expected


def test_a_rule_of_the_users_own_is_asked_once_a_batch_and_counts_for_all() -> None:
    asked = []

    def own(given: ProgressReport) -> bool | None:
        asked.append(given.batch_id)
        return [True, None, True][len(asked) - 1]

    rules = SourceRules(NAMES.values(), INPUTS, [], 10, own)
    assert all(map(rules.rule, NAMES.values()))
    found = []
    for number, at in enumerate((0, 5, 20)):
        rules.take(report({0: 1}, {}, number), NAMES, 0, at)
        found.append({rules.says_backlog(name) for name in NAMES.values()})
    assert (asked, found) == ([0, 1, 2], [{True}, {True}, {True}]), "the least stay holds"
    with pytest.raises(BacklogError, match="backlog_when has failed with IndexError"):
        rules.take(report({0: 1}, {}, 3), NAMES, 0, 40)


def test_without_rules_nothing_is_asked() -> None:
    rules = SourceRules(NAMES.values(), INPUTS, [Rule("busyRatio", 1, 0.5)])
    rules.take(report({0: 1}, {0: 5}), NAMES, 1e9, 0)
    assert not any(rules.rule(name) or rules.says_backlog(name) for name in NAMES.values())
    assert not SourceRules(["a"], [], [LAG]).rule("a"), "it has no watermark"
