"""The FLIPs' rules for RecordAttributes as truth tables worked out by hand, and properties of them."""

from __future__ import annotations

import doctest
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model import record_attributes as module
from backlog_spark.model.record_attributes import (
    RecordAttributes,
    RecordAttributesBuilder,
    propagate_join,
    propagate_map,
    propagate_union,
)

T, F, U = True, False, None
BACKLOG, FRESH = RecordAttributes(True), RecordAttributes(False)
LOGGER = "backlog_spark.model.record_attributes"


def inputs(flags: Iterable[bool | None]) -> list[RecordAttributes]:
    return [RecordAttributes(flag) for flag in flags]


# --- propagation -----------------------------------------------------------------------------------------------------

# Union: "if and only if … from all of its inputs". Join: "from any of its inputs". Default of the builder: "if any
# element in lastRecordAttributesOfInputs has backlog=true, use true. Otherwise, use false."
# Inputs, then: union, join, builder's default.
TABLE: list[tuple[tuple[bool | None, ...], bool | None, bool | None, bool]] = [
    ((), F, F, F),  # nothing reported: FLIP-309's default
    ((F,), F, F, F),
    ((T,), T, T, T),
    ((F, F), F, F, F),
    ((F, T), F, T, T),
    ((T, F), F, T, T),
    ((T, T), T, T, T),
    ((F, F, F), F, F, F),
    ((F, F, T), F, T, T),
    ((F, T, F), F, T, T),
    ((F, T, T), F, T, T),
    ((T, F, F), F, T, T),
    ((T, F, T), F, T, T),
    ((T, T, F), F, T, T),
    ((T, T, T), T, T, T),
    # unknown inputs
    ((U,), U, U, F),
    ((U, F), F, U, F),
    ((U, T), U, T, T),
    ((U, U), U, U, F),
    ((U, F, T), F, T, T),
    ((U, T, T), U, T, T),
]


@pytest.mark.parametrize(("flags", "union", "join", "default"), TABLE)
def test_inputs_combine(flags: tuple[bool | None, ...], union: bool | None, join: bool | None, default: bool) -> None:
    assert propagate_union(inputs(flags)).is_backlog is union
    assert propagate_join(inputs(flags)).is_backlog is join
    assert RecordAttributesBuilder(inputs(flags)).build().is_backlog is default


def test_a_map_passes_its_input_on() -> None:
    assert propagate_map(RecordAttributes(True)) == BACKLOG
    assert propagate_map(RecordAttributes(False)) == FRESH
    assert BACKLOG != FRESH


def test_along_a_plan() -> None:
    # FLIP-309's figure, two inputs of which one is in backlog, and a union behind the join:
    # orders (snapshot) -> map -> join <- users (live); joined union clicks.
    orders, users = BACKLOG, FRESH
    joined = propagate_join([propagate_map(orders), users])
    assert joined == BACKLOG
    assert propagate_union([joined, FRESH]) == FRESH  # fresh clicks must not be held back
    assert propagate_union([joined, BACKLOG]) == BACKLOG


@given(st.lists(st.booleans(), max_size=8).flatmap(lambda flags: st.tuples(st.just(flags), st.permutations(flags))))
def test_order_of_inputs_does_not_matter(case: tuple[list[bool], list[bool]]) -> None:
    flags, shuffled = case
    assert propagate_union(inputs(flags)) == propagate_union(inputs(shuffled))
    assert propagate_join(inputs(flags)) == propagate_join(inputs(shuffled))
    assert RecordAttributesBuilder(inputs(flags)).build() == RecordAttributesBuilder(inputs(shuffled)).build()


GROUPS = st.lists(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=4), min_size=1, max_size=4)


@given(GROUPS)
def test_shape_of_the_plan_does_not_matter(groups: list[list[bool | None]]) -> None:
    """a ∪ (b ∪ c) is a ∪ b ∪ c; likewise for joins."""
    flat = [flag for group in groups for flag in group]
    for combine in (propagate_union, propagate_join):
        assert combine(combine(inputs(group)) for group in groups) == combine(inputs(flat))


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_counted(flags: list[bool]) -> None:
    """Against a count of the inputs in backlog."""
    in_backlog = flags.count(True)
    assert propagate_union(inputs(flags)).is_backlog is (in_backlog == len(flags))
    assert propagate_join(inputs(flags)).is_backlog is (in_backlog >= 1)


# --- builders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [flags for flags, *_ in TABLE])
@pytest.mark.parametrize("backlog", [True, False])
def test_what_is_set_wins_over_the_inputs(
    flags: tuple[bool, ...], backlog: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        assert RecordAttributesBuilder(inputs(flags)).set_backlog(backlog).build().is_backlog is backlog
    assert caplog.record_tuples == []


def test_last_call_of_a_setter_wins() -> None:
    records = RecordAttributesBuilder([])
    assert records.set_backlog(True).set_backlog(False).build() == FRESH
    assert records.set_backlog(True).build() == BACKLOG


def test_the_default_of_one_build_is_not_set_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    builder = RecordAttributesBuilder([BACKLOG])
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        assert [builder.build(), builder.build()] == [BACKLOG, BACKLOG]
    assert len([record for record in caplog.records if record.name == LOGGER]) == 2


def test_inputs_are_read_once() -> None:
    received = [BACKLOG]
    from_list, from_iterator = RecordAttributesBuilder(received), RecordAttributesBuilder(iter([FRESH, BACKLOG]))
    received[0] = FRESH
    assert from_list.build() == BACKLOG
    assert [from_iterator.build(), from_iterator.build()] == [BACKLOG, BACKLOG]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            RecordAttributesBuilder([FRESH, BACKLOG]).build,
            "backlog is not set: True by default, from inputs [False, True]",
        ),
        (RecordAttributesBuilder([FRESH]).build, "backlog is not set: False by default, from inputs [False]"),
        (RecordAttributesBuilder([]).build, "backlog is not set: False by default, from inputs []"),
    ],
)
def test_a_default_is_logged(build: Callable[[], object], text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        build()
    assert caplog.record_tuples == [(LOGGER, logging.DEBUG, text)]


def test_propagation_is_not_a_default_and_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=LOGGER):
        propagate_union([BACKLOG, propagate_join([FRESH, propagate_map(BACKLOG)])])
    assert caplog.record_tuples == []


# --- refusals --------------------------------------------------------------------------------------------------------


NO_FLAGS: list[object] = ["false", "true", "", 0, 1, 1.0, [True], BACKLOG]


@pytest.mark.parametrize(
    ("name", "call", "value"),
    [
        *(("is_backlog", RecordAttributes, value) for value in NO_FLAGS),
        *(("backlog", RecordAttributesBuilder([]).set_backlog, value) for value in [*NO_FLAGS, None]),
    ],
)
def test_only_a_bool_is_a_flag(name: str, call: Callable[[Any], object], value: object) -> None:
    with pytest.raises(SettingError) as caught:
        call(value)
    assert (caught.value.setting, caught.value.value) == (name, value)
    allowed = "True or False or None" if name == "is_backlog" else "True or False"  # None: unknown
    assert str(caught.value) == (
        f"{name} = {value!r}: must be {allowed}. Convert it explicitly: bool('false') is True."
    )


def test_a_refused_value_leaves_the_builder_as_it_was() -> None:
    builder = RecordAttributesBuilder([]).set_backlog(True)
    with pytest.raises(SettingError):
        builder.set_backlog("false")  # type: ignore[arg-type]
    assert builder.build() == BACKLOG


@pytest.mark.parametrize(
    "call",
    [
        propagate_union,
        propagate_join,
        RecordAttributesBuilder,
        lambda received: propagate_map(received[1]),
    ],
)
def test_inputs_are_record_attributes(call: Callable[[Any], object]) -> None:
    # A flag in place of its attributes; the first input alone would decide a join.
    with pytest.raises(BacklogError, match=r"^Input [01] is of type bool\. Pass RecordAttributes\.$"):
        call([BACKLOG, True])


# --- as values -------------------------------------------------------------------------------------------------------


def test_attributes_are_values() -> None:
    with pytest.raises(FrozenInstanceError):
        BACKLOG.is_backlog = False  # type: ignore[misc]
    assert BACKLOG.is_backlog
    copy = pickle.loads(pickle.dumps(BACKLOG))  # they travel to the workers
    assert (copy, hash(copy)) == (BACKLOG, hash(BACKLOG))


def test_examples_run() -> None:
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted > 0) == (0, True)


@pytest.mark.process
def test_needs_no_spark() -> None:
    code = "import sys, backlog_spark.model.record_attributes; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
