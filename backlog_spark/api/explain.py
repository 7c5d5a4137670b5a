"""Prints what a stream or a running query reads, and its operators with the vehicle that carries each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.durations import format_duration
from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.decide.ledger import Vehicle
from backlog_spark.decide.steps import Mode
from backlog_spark.model.nodes import (
    FrameNode,
    KeyedNode,
    Node,
    PairNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.trees import joins_results, uses_processing_time
from backlog_spark.spark.jvm.session import check_session
from backlog_spark.spark.plan.schemas import Schemas
from backlog_spark.spi.registry import advice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.api.streams import BacklogStream
    from backlog_spark.operators.fold import Fold
    from backlog_spark.runner.keyed_query import KeyedPlan
    from backlog_spark.runner.query import BacklogQuery
    from backlog_spark.runner.runs import QueryRuns

__all__ = ["explain", "explained"]

# A projection of a hundred columns would hide the tree, so it is cut to this many characters.
_LONGEST: Final = 160
_SORTED_BATCH: Final = "spark.backlog.sortedBatch.enabled"


@checked_arguments
def explain(thing: BacklogStream | QueryRuns, *, spark: SparkSession | None = None) -> None:
    """Print the operators of a stream or of a query, as ``DataFrame.explain`` does; see `explained`."""
    print(explained(thing, spark=spark))


@checked_arguments
def explained(thing: BacklogStream | QueryRuns, *, spark: SparkSession | None = None) -> str:
    """The operators as a tree, each above its inputs.

    For each keyed operator it shows its vehicle, and why. For a started query that is the present vehicle, otherwise
    the one that follows from the settings. Below a source ``hybrid``, and for a query of `hybrid`, it says which of the
    two this is, and when to take the other one.

    Parameters
    ----------
    thing : BacklogStream, BacklogQuery or NativeQuery
        The schemas of a stream's sources are loaded.
    spark : SparkSession, optional
        For a stream. Default: the active session.

    Raises
    ------
    BacklogError
        If an operator refuses its input, and without a session.
    """
    from backlog_spark.runner.query import BacklogQuery
    from backlog_spark.runner.runs import QueryRuns

    if isinstance(thing, BacklogQuery):
        return _of_query(thing)
    if isinstance(thing, QueryRuns):
        return "\n".join([_state(thing), *(f"  {line}" for line in thing._explained())])
    from pyspark.sql import SparkSession

    session: Any = spark or SparkSession.getActiveSession()
    check_session(session)
    schemas = Schemas(session)
    schemas.of(thing._node)
    whys = _whys_of_stream(thing._node, schemas.fold)
    return "\n".join(_lines(thing._node, schemas.fold, lambda node: whys[node.name]))


def _of_query(query: BacklogQuery) -> str:
    keyed, root = query._keyed, query._parts.node
    state = _state(query)
    if keyed is None:
        return "\n".join([state, *_lines(root, None, lambda node: "", 1)])
    why = _why(query, keyed)
    return "\n".join([state, *_lines(root, lambda node: keyed.folds[node.name], lambda node: why, 1)])


def _state(query: QueryRuns) -> str:
    return f"query {query.name}: {query.mode} mode, {query.backlogProgress.rows} rows committed"


def _lines(
    node: Node,
    fold: Callable[[KeyedNode], Fold] | None,
    why: Callable[[KeyedNode], str],
    depth: int = 0,
    label: str = "",
) -> Iterator[str]:
    if isinstance(node, PairNode):
        yield from _lines(node.left, fold, why, depth, "left: ")
        yield from _lines(node.right, fold, why, depth, "right: ")
        return
    text = _described(node) if fold is None or not isinstance(node, KeyedNode) else _operator(node, fold(node))
    yield "  " * depth + label + (text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
    if isinstance(node, KeyedNode):
        yield "  " * depth + "  * " + why(node)
    if isinstance(node, SourceNode) and (told := advice(node.spec.format, node.spec.options)):
        yield "  " * depth + "  * " + told
    for parent in node.inputs if isinstance(node, UnionNode) else node.parents:
        yield from _lines(parent, fold, why, depth + 1)


def _described(node: Node) -> str:
    if isinstance(node, SourceNode):
        return f"source {node.spec.name}: {node.spec.format}{_by_clock(node)}"
    if isinstance(node, FrameNode):
        return f"streaming DataFrame: {', '.join(node.frame.columns)}{_by_clock(node)}"
    if isinstance(node, TransformNode):
        return node.label or f"transform {getattr(node.function, '__qualname__', type(node.function).__name__)}"
    if isinstance(node, UnionNode):
        return "union"
    if isinstance(node, WatermarkNode):
        idle = "" if node.idle_ms is None else f", idle after {format_duration(node.idle_ms)}"
        return f"watermark {node.column}, delay {format_duration(node.delay_ms)}{idle}"
    return type(node).__name__


def _by_clock(node: Node) -> str:
    return ", event time by the clock after its backlog" if uses_processing_time(node) else ""


def _operator(node: KeyedNode, fold: Fold) -> str:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(fold).__name__.removesuffix("Fold")).lower()
    _, _, more = str(fold.describe()["meaning"]).partition(": ")
    return f"{kind} {node.name} by {', '.join(fold.keys)}" + (f": {more}" if more else "")


def _cannot_return(root: Node, first: Fold) -> str:
    """Why a later stay in backlog does not run sorted; empty if it does."""
    if joins_results(root):
        return "rows of a second input enter after the first operator"
    if not first.mergeable:
        name = next(node.name for node in root.walk() if isinstance(node, KeyedNode))
        return f"state of {name} from two stays cannot be merged"
    return ""


def _whys_of_stream(root: Node, fold: Callable[[KeyedNode], Fold]) -> dict[str, str]:
    nodes = [node for node in root.walk() if isinstance(node, KeyedNode)]
    if not nodes:
        return {}
    cannot = _cannot_return(root, fold(nodes[0]))
    later = f", but not in a later stay, as {cannot}" if cannot else ""
    mode = f"at an interval during backlog of 0 sorted while a source reports backlog{later}; stream otherwise"
    return {node.name: mode for node in nodes}


def _why(query: BacklogQuery, keyed: KeyedPlan) -> str:
    """The vehicle of a query's operators, and its reason. All operators have the same one."""
    during = query._intervals.during_backlog_ms
    first = next(iter(keyed.folds.values()))
    cannot = _cannot_return(query._parts.node, first)
    if not query._coordinator.facts.sorts_backlog:
        if during is None:
            return "stream: no interval during backlog is set"
        return f"stream: the interval during backlog is {format_duration(during)}, and {_SORTED_BATCH} is false"
    shown = f"the interval during backlog is {format_duration(during or 0)}"
    if during:
        shown += f" with {_SORTED_BATCH}"
    if keyed.run.vehicle is Vehicle.SORTED:
        names = ", ".join(query.sourcesInBacklog)
        reports = f"{names} reported backlog" if names else "backlog was reported when this run began"
        again = "" if keyed.run.epoch == 0 else "; results of this later stay come when it ends"
        return f"sorted: {reports}, and {shown}{again}"
    later = f"; a later backlog runs as stream, as {cannot}" if cannot else ""
    if keyed.replays_first:
        return "stream: a batch that the stream vehicle had begun, or state that was handed over to it, comes first"
    if query.mode is Mode.BACKLOG and cannot:
        return f"stream: there is backlog again, but {cannot}"
    if keyed.run.first_batch == 0:
        return f"stream: no source reported backlog at the start{later}"
    return f"stream: the query has left backlog at batch {keyed.run.first_batch}{later}"
