"""Refuses trees that no plan can be built from, before any plan is built."""

from __future__ import annotations

from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import (
    FrameNode,
    KeyedNode,
    Node,
    SourceNode,
    SourceSpec,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.temporal_joins import choose_temporal_join
from backlog_spark.model.trees import (
    enters_behind,
    state_name,
    uses_processing_time,
    watermark_characteristics,
    watermark_nodes,
)

__all__ = ["check_no_clock", "check_source_names", "check_tree", "what_it_reads"]

# Options that say what a source reads. None is a secret.
_READS = ("table", "tablepattern", "path", "subscribe", "subscribepattern", "assign", "topic")

# Options that name a directory for one source alone.
_PLACES = {"metadatalocation": "metadataLocation", "schemalocation": "schemaLocation"}


def check_source_names(root: Node) -> None:
    """Refuse two sources with the same name, or whose names give the same directory name.

    Raises
    ------
    BacklogError
        With what each of them reads.
    """
    seen: dict[str, SourceSpec] = {}
    places: dict[tuple[str, str], SourceSpec] = {}
    for node in root.walk():
        if not isinstance(node, SourceNode):
            continue
        for name, given in node.spec.options.items():
            place = (name.lower(), given)
            if place[0] in _PLACES and places.setdefault(place, node.spec) is not node.spec:
                raise BacklogError(
                    f"Two sources have the {_PLACES[place[0]]} {given!r}: {_reads(places[place])}, and "
                    f"{_reads(node.spec)}.",
                    f"Leave {_PLACES[place[0]]} out: a query gives each source a directory of its own.",
                )
        other = seen.setdefault(state_name(node.spec.name), node.spec)
        if other is not node.spec:
            raise BacklogError(
                f"Two sources have the name {node.spec.name!r}: {_reads(other)}, and {_reads(node.spec)}.",
                f"Give each a name of its own: bs.source({node.spec.format!r}, name='{node.spec.name}_2', …).",
            )


def _reads(spec: SourceSpec) -> str:
    chosen = [f"{key}={value!r}" for key, value in what_it_reads(spec).items()]
    return f"{spec.name!r} of {' '.join([spec.format, *chosen])}"


def what_it_reads(spec: SourceSpec) -> dict[str, str]:
    """The options that say what a source reads. None is a secret."""
    return {name: text for name, text in spec.options.items() if name.lower() in _READS}


def check_tree(root: Node) -> None:
    """Refuse trees from which the two plans cannot both be built.

    Raises
    ------
    BacklogError
        For two operators with the same name, for a union with a keyed input, and others.
    """
    keyed = [node for node in root.walk() if isinstance(node, KeyedNode)]
    names = [node.name for node in keyed]
    for name in names:
        if names.count(name) > 1:
            raise BacklogError(f"Two keyed operators are named {name!r}.", "Give one another name: .sum(…, name='…').")
    for node in root.walk():
        if isinstance(node, UnionNode) and node.is_keyed:
            raise BacklogError(
                "An input of a union is keyed already.",
                "Unite the streams before the first key_by, or write them with two queries.",
            )
    leaves = [node for node in root.walk() if isinstance(node, SourceNode | FrameNode)]
    if enters_behind(root) and len({id(node) for node in leaves}) < len(leaves):
        raise BacklogError(
            "A stream is read twice by operators one after the other.",
            "Declare its source twice, under two names.",
        )
    for node in root.walk():
        if isinstance(node, KeyedNode) and node.waits_for_build:
            choose_temporal_join(watermark_characteristics([node]), event_time=False, wait=True)
    marks = watermark_nodes(root)
    for mark in marks:
        check_no_clock(mark)
        if sum(isinstance(node, WatermarkNode) for node in mark.walk()) > 1:
            raise BacklogError("with_watermark was called twice on one stream.", "Call it once, next to the source.")
    if marks and _has_unmarked_input(root):
        raise BacklogError(
            "A union or a join has inputs with a watermark and inputs without.",
            "Call with_watermark on each input, next to its source.",
        )
    for node in root.walk():
        if isinstance(node, WatermarkNode) and node.is_keyed:
            raise BacklogError(
                f"with_watermark({node.column!r}) comes after a key_by.",
                "Put it before the first key_by; rows keep their event time if an operator's output has the column.",
            )


def check_no_clock(mark: WatermarkNode) -> None:
    """Refuse an event-time column for a source whose event time follows the system time.

    Some sources report that only at the start.

    Raises
    ------
    BacklogError
    """
    if any(map(uses_processing_time, mark.walk())):
        raise BacklogError(
            f"with_watermark({mark.column!r}): a source of the stream uses processing time. Its event time follows "
            "the system time, not the rows.",
            "Leave out with_watermark, or the source's option useProcessingTimeDuringBinlog, "
            "useProcessingTimeAfterBacklog or use_processing_time.",
        )


def _has_unmarked_input(node: Node) -> bool:
    if isinstance(node, WatermarkNode) or uses_processing_time(node):
        return False
    return not node.parents or any(map(_has_unmarked_input, node.parents))
