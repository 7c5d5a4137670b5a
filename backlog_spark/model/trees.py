"""What is asked of the tree of a declared query, and trees that are made of others (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import (
    FrameNode,
    KeyedFold,
    KeyedNode,
    Node,
    PairNode,
    SourceNode,
    SourceSpec,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.record_attributes import RecordAttributes, propagate_map, propagate_union
from backlog_spark.spi.source_info import WatermarkCharacteristic

if TYPE_CHECKING:
    from backlog_spark.spi.source_info import SourceInfo

__all__ = [
    "apart_from",
    "enters_behind",
    "has_frames",
    "informed",
    "is_timed",
    "joins_results",
    "keyed_from_output",
    "operator_attributes",
    "pair_of",
    "readers_of_same_rows",
    "sources_of",
    "state_name",
    "unobserved",
    "uses_processing_time",
    "watermark_characteristics",
    "watermark_nodes",
    "with_changes",
]


def with_changes(node: Node, mark: str) -> Node:
    """The same nodes. The last keyed operator emits changes if its results change."""
    if isinstance(node, TransformNode):
        return replace(node, parent=with_changes(node.parent, mark))
    if isinstance(node, KeyedNode) and node.with_changes is not None:
        return replace(node, bind=node.with_changes(mark), with_changes=None)
    return node


def state_name(text: str) -> str:
    """A name that is safe for a directory."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)[:100]


def pair_of(left: Node, right: Node) -> PairNode:
    """Two inputs side by side. A source in both is read twice; the right one gets another name."""
    return PairNode(left, apart_from(left, right))


def apart_from(left: Node, right: Node, formats: Container[str] | None = None) -> Node:
    """The right node; a source that the left one has too gets another name.

    Parameters
    ----------
    formats : container of str, optional
        Of the sources that are renamed. Default: all.
    """
    # A copy that an earlier pair has made of a source has its options too.
    there = {
        (node.spec.name, id(node.spec.options))
        for node in left.walk()
        if isinstance(node, SourceNode) and (formats is None or node.spec.format in formats)
    }
    names = [node.spec.name for node in (*left.walk(), *right.walk()) if isinstance(node, SourceNode)]

    def apart(node: SourceNode) -> SourceNode:
        if (node.spec.name, id(node.spec.options)) not in there:
            return node
        number = 2
        while f"{node.spec.name}_{number}" in names:
            number += 1
        names.append(f"{node.spec.name}_{number}")
        return SourceNode(replace(node.spec, name=names[-1]))

    return _with_sources(right, apart) if there else right


def informed(root: Node, infos: Sequence[SourceInfo | None]) -> Node:
    """The same nodes, with the connectors' infos about the declared sources, in plan order.

    Raises
    ------
    BacklogError
        The query has keyed operators, and a source may begin again with a snapshot.
    """
    if root.is_keyed and any(info is not None and info.renews for info in infos):
        raise BacklogError(
            "A source of this query may read its tables again (snapshot.mode=when_needed), and keyed operators cannot "
            "retract what they have from before.",
            "Leave out snapshot.mode, or write the rows to a Delta table and aggregate that.",
        )
    remaining = iter(infos)
    made: dict[int, SourceNode] = {}

    def of(node: SourceNode) -> SourceNode:
        info = next(remaining)
        # A node that is read twice stays a single node.
        return made.setdefault(id(node), replace(node, info=info))

    return _with_sources(root, of)


def unobserved(node: Node) -> Node:
    """The same nodes, for a query in which nothing asks for event times."""
    if isinstance(node, UnionNode):
        return UnionNode(tuple(unobserved(each) for each in node.inputs))
    if isinstance(node, PairNode):
        return PairNode(unobserved(node.left), unobserved(node.right))
    if isinstance(node, WatermarkNode):
        return replace(node, parent=unobserved(node.parent), is_observed=False)
    if isinstance(node, TransformNode | KeyedNode):
        return replace(node, parent=unobserved(node.parent))
    return node


def _with_sources(node: Node, made: Callable[[SourceNode], SourceNode]) -> Node:
    """The same nodes with other sources. ``made`` is called in plan order."""
    if isinstance(node, SourceNode):
        return made(node)
    parents = [_with_sources(parent, made) for parent in node.parents]
    if isinstance(node, UnionNode):
        return UnionNode(tuple(parents))
    if isinstance(node, PairNode):
        return PairNode(*(parents if node.parents[0] is node.left else parents[::-1]))
    if isinstance(node, TransformNode | WatermarkNode | KeyedNode):
        return replace(node, parent=parents[0])
    return node


def sources_of(root: Node) -> list[SourceSpec]:
    """The declared sources, in plan order."""
    return [node.spec for node in root.walk() if isinstance(node, SourceNode)]


def enters_behind(root: Node) -> bool:
    """Whether rows of a source enter after a keyed operator. Then the plans must name all sources before it."""
    inner = False
    for node in root.walk():
        if inner and isinstance(node, SourceNode | FrameNode):
            return True
        inner = inner or isinstance(node, KeyedNode)
    return False


def joins_results(root: Node) -> bool:
    """Whether a two-input operator reads another one's results. Then the first operator does not fold all rows."""
    return any(isinstance(node, PairNode) and node.is_keyed for node in root.walk())


def has_frames(root: Node) -> bool:
    """Whether streaming DataFrames are among the inputs. Their sources carry no flag."""
    return any(isinstance(node, FrameNode) for node in root.walk())


def is_timed(root: Node) -> bool:
    """Whether a keyed operator among the nodes has timers or watermarks."""
    return any(isinstance(node, KeyedNode) and node.is_timed for node in root.walk())


def keyed_from_output(root: Node) -> list[str]:
    """The names of the keyed operators, each before its inputs: Spark numbers their state stores in this order."""
    below = [name for parent in root.parents for name in keyed_from_output(parent)]
    return [root.name, *below] if isinstance(root, KeyedNode) else below


def uses_processing_time(node: Node) -> bool:
    """Whether a source's event time follows the system time after its backlog (FLIP-326)."""
    if isinstance(node, FrameNode):
        return node.use_processing_time
    return isinstance(node, SourceNode) and node.info is not None and node.info.use_processing_time


def watermark_characteristics(roots: Iterable[Node]) -> dict[str, WatermarkCharacteristic]:
    """The sources' watermark characteristics, by a name for messages, as far as they are known before the start.

    A streaming DataFrame can send any watermark if it was declared live.
    """
    from backlog_spark.spi.registry import CONNECTORS

    leaves = [node for root in roots for node in root.walk() if isinstance(node, SourceNode | FrameNode)]
    found: dict[str, WatermarkCharacteristic] = {}
    for number, node in enumerate(leaves, 1):
        if isinstance(node, FrameNode):
            characteristic = "ANY_WATERMARK" if node.use_processing_time else "UNDEFINED"
            found[f"DataFrame {number}"] = WatermarkCharacteristic(characteristic)
        elif node.info is not None:
            found[node.spec.name] = node.info.watermark_characteristic
        elif node.spec.format not in CONNECTORS:
            found[node.spec.name] = WatermarkCharacteristic.UNDEFINED
    return found


def watermark_nodes(root: Node) -> list[WatermarkNode]:
    """The inputs with an event time, in plan order. Their index is their number."""
    return [node for node in root.walk() if isinstance(node, WatermarkNode)]


def readers_of_same_rows(root: Node) -> list[list[str]]:
    """The keyed operators by name, those together that read the same rows: of one stream, or of `TransformNode`s that
    only map its rows. A source that `pair_of` reads twice is one stream.
    """

    def rows_of(node: Node) -> tuple[Hashable, ...]:
        if isinstance(node, TransformNode):
            below = rows_of(node.parent)
            return below if node.label.startswith("map ") else (*below, node.label or id(node.function))
        if isinstance(node, SourceNode):
            return (id(node.spec.options),)  # of `pair_of`'s copy too
        if isinstance(node, FrameNode):
            return (id(node.frame),)
        if isinstance(node, WatermarkNode):
            return (*rows_of(node.parent), node.column, node.delay_ms, node.idle_ms)
        if isinstance(node, KeyedNode):
            return (KeyedNode, node.name)
        return (type(node), *map(rows_of, node.parents))

    found: dict[Hashable, list[str]] = {}
    for node in root.walk():
        if isinstance(node, KeyedNode):
            same = found.setdefault(rows_of(node.parent), [])
            if node.name not in same:
                same.append(node.name)
    return list(found.values())


def operator_attributes(
    root: Node,
    sources: Sequence[bool],
    folds: Mapping[str, KeyedFold],
    finished: Sequence[bool] = (),
    *,
    frames: bool | None = None,
) -> dict[str, tuple[RecordAttributes, ...]]:
    """RecordAttributes of each keyed operator's inputs, the left one first (FLIP-309, section "Propagation").

    Parameters
    ----------
    sources : sequence of bool
        Whether each declared source's rows are backlog, in plan order.
    folds : mapping of str to KeyedFold
        The keyed operators.
    finished : sequence of bool, optional
        Whether each declared source has finished. A union then has the attributes of its other inputs. Default: none.
    frames : bool or None
        Whether the rows of streaming DataFrames are backlog; None: unknown.
    """
    flags = iter(sources)
    ends = iter([*finished, *[False] * (len(sources) - len(finished))])
    found: dict[str, tuple[RecordAttributes, ...]] = {}
    none = RecordAttributes(False)

    def of(node: Node) -> tuple[RecordAttributes | None, ...]:
        """The attributes of a node's rows, by input; None if no more rows will come."""
        if isinstance(node, SourceNode):
            attributes = RecordAttributes(next(flags))
            return (None if next(ends) else attributes,)
        if isinstance(node, FrameNode):
            return (RecordAttributes(frames),)
        inputs = [of(parent) for parent in node.parents]
        if isinstance(node, UnionNode):
            running = [each for (each,) in inputs if each is not None]
            return (propagate_union(running) if running else None,)
        if isinstance(node, PairNode):
            of_left, of_right = inputs if node.parents[0] is node.left else inputs[::-1]
            return (*of_left, *of_right)
        (rows,) = inputs
        if isinstance(node, KeyedNode):
            found[node.name] = told_of = tuple(none if each is None else each for each in rows)
            # Asked after finished inputs too: the end of input may make more results due.
            return (folds[node.name]._attributes_of_output(*told_of),)
        # A step over two inputs treats the rows of each input alike.
        return tuple(None if each is None else propagate_map(each) for each in rows)

    of(root)
    return found
