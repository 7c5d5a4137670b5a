"""The tree of a query without Spark: the positions of sources, and which rows are backlog."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import (
    FrameNode,
    KeyedNode,
    Node,
    SourceNode,
    SourceSpec,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.plan_checks import check_source_names
from backlog_spark.model.record_attributes import (
    STANDS_STILL,
    OneInputFunction,
    RecordAttributes,
    TwoInputFunction,
    as_bits,
    propagate_join,
)
from backlog_spark.model.trees import (
    enters_behind,
    informed,
    keyed_from_output,
    operator_attributes,
    pair_of,
    readers_of_same_rows,
    unobserved,
)
from backlog_spark.spi.source_info import SourceInfo


class Passes:
    """A fold with only this method."""

    def _attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes:
        return propagate_join(inputs)


def source(name: str) -> SourceNode:
    return SourceNode(SourceSpec("f", name, {}))


def keyed(parent: Node, name: str, *, timed: bool = False) -> KeyedNode:
    return KeyedNode(parent, name, lambda *_: None, is_timed=timed)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False), repeat=2)))
def test_attributes_along_a_chain(a: bool, b: bool) -> None:
    """A union is backlog if all its inputs are; maps and operators pass on what they are told (FLIP-309)."""
    union = UnionNode((source("a"), TransformNode(source("b"), lambda f: f)))
    tree = keyed(keyed(union, "first"), "second")
    folds: Any = {"first": Passes(), "second": Passes()}
    expected = RecordAttributes(a and b)
    assert operator_attributes(tree, [a, b], folds) == {"first": (expected,), "second": (expected,)}


@pytest.mark.parametrize(
    ("backlog", "finished", "expected"),
    [
        ([False, True], [True, False], True),  # the rows that still come are all backlog
        ([False, False], [True, False], False),
        ([True, False], [False, True], True),
        ([True, False], [False, False], False),
        ([False, False], [True, True], False),
    ],
)
def test_a_finished_source_does_not_count(backlog: list[bool], finished: list[bool], expected: bool) -> None:
    """In a union: it is backlog if all its other inputs are (FLIP-309, FLIP-147)."""
    tree = keyed(UnionNode((source("a"), TransformNode(source("b"), lambda f: f))), "first")
    found = operator_attributes(tree, backlog, {"first": Passes()}, finished)  # type: ignore[dict-item]
    assert found == {"first": (RecordAttributes(expected),)}


def test_a_union_of_finished_sources_does_not_count_in_a_union() -> None:
    ended = UnionNode((source("a"), source("b")))
    folds: Any = {"first": Passes(), "l": Passes(), "joined": Passes()}
    tree = keyed(UnionNode((ended, source("c"))), "first")
    assert operator_attributes(tree, [False, False, True], folds, [True, True, False])["first"][0].is_backlog
    # A join is backlog if any of its inputs is, so one that has ended changes nothing.
    joined = keyed(pair_of(keyed(ended, "l"), source("c")), "joined")
    met = [node.spec.name for node in joined.walk() if isinstance(node, SourceNode)]
    for flag in (True, False):
        found = operator_attributes(joined, [flag and n == "c" for n in met], folds, [n != "c" for n in met])
        assert found["joined"] == (RecordAttributes(False), RecordAttributes(flag))


def test_frames_have_their_declared_attributes() -> None:
    frame: Any = FrameNode(None)  # type: ignore[arg-type]
    folds: Any = {"first": Passes()}
    for frames in (True, False, None):
        found = operator_attributes(keyed(UnionNode((frame, source("a"))), "first"), [True], folds, frames=frames)
        assert found == {"first": (RecordAttributes(frames),)}


def test_workers_are_told_what_is_unknown_too() -> None:
    told: list[RecordAttributes] = []

    class Both(TwoInputFunction):
        def process_record_attributes1(self, attributes: RecordAttributes) -> None:
            told.append(attributes)

        process_record_attributes2 = process_record_attributes1

    class One(OneInputFunction):
        def process_record_attributes(self, attributes: RecordAttributes) -> None:
            told.append(attributes)

    for a, b in itertools.product((True, False, None), repeat=2):
        given = [RecordAttributes(a), RecordAttributes(b)]
        for bits in (as_bits(given), as_bits(given) | STANDS_STILL):
            told.clear()
            Both()._take_attributes(bits)
            assert told == given
            told.clear()
            One()._take_attributes(bits)
            assert told == [propagate_join(given)], "rows of any input"
        told.clear()
        One()._take_attributes(as_bits(given[:1]))
        assert told == given[:1]


def test_attributes_are_emitted_before_the_rows() -> None:
    """They apply to a whole batch, so a function may only emit them when it gets attributes."""

    class Late(OneInputFunction):
        def process_record_attributes(self, attributes: RecordAttributes) -> None:
            self.emit_record_attributes(RecordAttributes(False))

        def process_element(self) -> None:
            self.emit_record_attributes(RecordAttributes(True))

    late = Late()
    assert late._attributes_of_output(RecordAttributes(True)) == RecordAttributes(False)
    late._take_attributes(1)
    with pytest.raises(BacklogError, match=r"Late called emit_record_attributes outside of process_record_attributes"):
        late.process_element()


def test_a_function_may_set_other_attributes() -> None:
    class Fresh(OneInputFunction):
        def process_record_attributes(self, attributes: RecordAttributes) -> None:
            if attributes.is_backlog:
                self.emit_record_attributes(RecordAttributes(False))

    tree = keyed(keyed(source("a"), "first"), "second")
    folds: Any = {"first": Fresh(), "second": Passes()}
    assert operator_attributes(tree, [True], folds) == {
        "first": (RecordAttributes(True),),
        "second": (RecordAttributes(False),),
    }
    assert Fresh()._attributes_of_output(RecordAttributes(False)) == RecordAttributes(False), (
        "nothing emitted: the same"
    )


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False), repeat=2)))
def test_two_inputs(a: bool, b: bool) -> None:
    told: list[tuple[int, bool]] = []

    class Both(TwoInputFunction):
        def process_record_attributes1(self, attributes: RecordAttributes) -> None:
            told.append((1, attributes.is_backlog))

        def process_record_attributes2(self, attributes: RecordAttributes) -> None:
            told.append((2, attributes.is_backlog))

    # The builder's default: backlog if any input is (FLIP-327, Public Interfaces 1).
    assert Both()._attributes_of_output(RecordAttributes(a), RecordAttributes(b)) == RecordAttributes(a or b)
    assert told == [(1, a), (2, b)]
    told.clear()
    Both()._take_attributes(a + 2 * b)
    assert told == [(1, a), (2, b)]

    class Left(TwoInputFunction):
        def process_record_attributes1(self, attributes: RecordAttributes) -> None:
            self.emit_record_attributes(attributes)

    assert Left()._attributes_of_output(RecordAttributes(a), RecordAttributes(b)) == RecordAttributes(a)


@pytest.mark.parametrize(("a", "b"), list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("keyed_side", ["left", "right", "both", "none"])
def test_each_input_of_a_pair_has_its_own(a: bool, b: bool, keyed_side: str) -> None:
    """In any order of sources. After the operator rows are backlog if either input is (FLIP-309)."""
    left = keyed(source("a"), "l") if keyed_side in ("left", "both") else source("a")
    right = keyed(source("b"), "r") if keyed_side in ("right", "both") else source("b")
    pair = TransformNode(pair_of(left, right), lambda f: f)
    tree = keyed(keyed(pair, "joined"), "behind")
    # Flags come in the order in which the sources are met.
    met = [node.spec.name for node in tree.walk() if isinstance(node, SourceNode)]
    flags = [{"a": a, "b": b}[name] for name in met]
    folds: Any = {name: Passes() for name in ("l", "r", "joined", "behind")}
    found = operator_attributes(tree, flags, folds)
    assert found["joined"] == (RecordAttributes(a), RecordAttributes(b))
    assert found["behind"] == (RecordAttributes(a or b),)


def test_a_source_on_both_sides_is_read_twice() -> None:
    shared = source("a")
    pair = pair_of(keyed(shared, "l"), UnionNode((shared, source("a_2"))))
    names = [node.spec.name for node in pair.walk() if isinstance(node, SourceNode)]
    assert sorted(names) == ["a", "a_2", "a_3"]
    assert pair_of(shared, source("b")).left is shared


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8))
def test_pairs_of_pairs_read_each_source_under_names_of_their_own(sides: list[tuple[int, int]]) -> None:
    made: list[Node] = [source("a"), source("b")]
    for left, right in sides:
        made.append(keyed(pair_of(made[left % len(made)], made[right % len(made)]), f"k{len(made)}"))
        check_source_names(made[-1])
        names = [node.spec.name for node in made[-1].walk() if isinstance(node, SourceNode)]
        assert len(names) == len(set(names))


def test_operators_that_read_the_same_rows() -> None:
    """Through maps, and on both sides of a join; a filter may leave other rows."""
    orders = source("a")
    mapped = TransformNode(orders, lambda f: f, "map *")
    some = TransformNode(orders, lambda f: f, "filter id > 1")
    tree = UnionNode((keyed(orders, "one"), keyed(mapped, "two"), keyed(some, "three"), keyed(source("b"), "four")))
    assert readers_of_same_rows(keyed(tree, "last")) == [["one", "two"], ["three"], ["four"], ["last"]]
    pair = pair_of(keyed(orders, "l"), keyed(mapped, "r"))
    assert sorted(sorted(each) for each in readers_of_same_rows(keyed(pair, "both"))) == [["both"], ["l", "r"]]


def test_sources_that_enter_after_an_operator_come_first() -> None:
    tree = keyed(pair_of(keyed(source("a"), "l"), keyed(source("b"), "r", timed=True)), "joined")
    assert enters_behind(tree)
    assert keyed_from_output(tree) == ["joined", "l", "r"]
    assert not enters_behind(keyed(pair_of(keyed(source("a"), "l"), source("b")), "joined"))


@pytest.mark.parametrize("name", ["orders", "or/ders"])
def test_two_sources_of_one_name_are_refused(name: str) -> None:
    told = {"table": "shop.orders", "password": "geheim"}
    one = SourceNode(SourceSpec("mysql_cdc", name.replace("/", " "), told))
    other = SourceNode(SourceSpec("hybrid", name, {"path": "/lake/orders"}))
    with pytest.raises(BacklogError) as error:
        check_source_names(UnionNode((one, other)))
    text = str(error.value)
    assert "mysql_cdc table='shop.orders'" in text
    assert "hybrid path='/lake/orders'" in text
    assert "geheim" not in text


@pytest.mark.parametrize("option", ["metadataLocation", "schemaLocation"])
def test_two_sources_with_one_directory_are_refused(option: str) -> None:
    one, other = (SourceNode(SourceSpec("hybrid", name, {option.lower(): "/m", "path": name})) for name in "ab")
    with pytest.raises(
        BacklogError, match=rf"have the {option} '/m': 'a' of hybrid path='a', and 'b' .*Leave {option}"
    ):
        check_source_names(UnionNode((one, other)))
    check_source_names(UnionNode((one, one)))


def test_a_source_that_is_read_twice_is_one() -> None:
    one = source("a")
    check_source_names(UnionNode((TransformNode(one, lambda f: f), TransformNode(one, lambda f: f))))
    check_source_names(pair_of(keyed(one, "x"), keyed(one, "y")))


def test_keyed_operators_refuse_a_source_that_may_begin_again() -> None:
    root = keyed(source("a"), "sum")
    assert informed(root, [SourceInfo()]).is_keyed
    with pytest.raises(BacklogError, match=r"snapshot\.mode=when_needed.*keyed operators"):
        informed(root, [SourceInfo(renews=True)])
    assert not informed(source("a"), [SourceInfo(renews=True)]).is_keyed


def test_a_query_without_timers_observes_no_event_times() -> None:
    shared = WatermarkNode(source("a"), "at", 5)
    tree = keyed(pair_of(UnionNode((shared, source("b"))), TransformNode(shared, lambda f: f, "map *")), "k")
    found = unobserved(tree)
    marks = [node for node in found.walk() if isinstance(node, WatermarkNode)]
    assert [(mark.column, mark.delay_ms, mark.is_observed) for mark in marks] == [("at", 5, False)] * 2
    shapes = [
        [(type(n), getattr(n, "name", ""), getattr(n, "spec", None)) for n in each.walk()] for each in (tree, found)
    ]
    assert shapes[0] == shapes[1]
