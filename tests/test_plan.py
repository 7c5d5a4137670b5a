"""What the tree of a query says without Spark: where sources stand, and which rows are backlog where."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from backlog_spark.attributes import OneInputFunction, RecordAttributes, TwoInputFunction
from backlog_spark.plan import (
    KeyedNode,
    Node,
    SourceNode,
    SourceSpec,
    TransformNode,
    UnionNode,
    WatermarkNode,
    operator_attributes,
    source_positions,
)


class Passes:
    """A fold of which only this is asked."""

    def attributes_of_output(self, attributes: RecordAttributes) -> RecordAttributes:
        return attributes


def source(name: str) -> SourceNode:
    return SourceNode(SourceSpec("f", name, {}))


def keyed(parent: Node, name: str, *, timed: bool = False) -> KeyedNode:
    return KeyedNode(parent, name, lambda *_: None, is_timed=timed)  # type: ignore[arg-type, return-value]


def test_positions_of_sources() -> None:
    a, b = source("a"), WatermarkNode(source("b"), "ts", 0)
    first = keyed(UnionNode((a, b)), "first", timed=True)
    tree = keyed(TransformNode(first, lambda f: f), "second")
    # a, b, seeds and control of the first, seeds of the second
    assert source_positions(tree) == ([0, 1], frozenset({2, 3, 4}))


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False), repeat=2)))
def test_attributes_along_a_chain(a: bool, b: bool) -> None:
    """A union is backlog if all its inputs are; maps and operators pass on what they are told (FLIP-309)."""
    union = UnionNode((source("a"), TransformNode(source("b"), lambda f: f)))
    tree = keyed(keyed(union, "first"), "second")
    folds: Any = {"first": Passes(), "second": Passes()}
    expected = RecordAttributes(a and b)
    assert operator_attributes(tree, [a, b], folds) == {"first": expected, "second": expected}


def test_a_function_may_say_otherwise() -> None:
    class Fresh(OneInputFunction):
        def process_record_attributes(self, attributes: RecordAttributes) -> None:
            if attributes.is_backlog:
                self.emit_record_attributes(RecordAttributes(False))

    tree = keyed(keyed(source("a"), "first"), "second")
    folds: Any = {"first": Fresh(), "second": Passes()}
    assert operator_attributes(tree, [True], folds) == {
        "first": RecordAttributes(True),
        "second": RecordAttributes(False),
    }
    assert Fresh().attributes_of_output(RecordAttributes(False)) == RecordAttributes(False), "nothing emitted: the same"


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False), repeat=2)))
def test_two_inputs(a: bool, b: bool) -> None:
    told: list[tuple[int, bool]] = []

    class Both(TwoInputFunction):
        def process_record_attributes1(self, attributes: RecordAttributes) -> None:
            told.append((1, attributes.is_backlog))

        def process_record_attributes2(self, attributes: RecordAttributes) -> None:
            told.append((2, attributes.is_backlog))

    # The builder's default: backlog if any input is (FLIP-327, Public Interfaces 1).
    assert Both().attributes_of_output(RecordAttributes(a), RecordAttributes(b)) == RecordAttributes(a or b)
    assert told == [(1, a), (2, b)]

    class Left(TwoInputFunction):
        def process_record_attributes1(self, attributes: RecordAttributes) -> None:
            self.emit_record_attributes(attributes)

    assert Left().attributes_of_output(RecordAttributes(a), RecordAttributes(b)) == RecordAttributes(a)
