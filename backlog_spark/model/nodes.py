"""The tree of a declared query, from which both Spark plans of its checkpoint are built.

In stream mode rows flow through the stateful branch of every keyed operator. In backlog they take the raw branch, and
`foreachBatch` folds them as a batch. The stateful branches then get rows from their seed sources only. Spark requires
the same sources and stateful operators in the same order at every start on a checkpoint. So both plans come from one
tree.

Source: Spark's Structured Streaming guide, "Recovery Semantics after Changes in a Streaming Query".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from backlog_spark.common.familiar_names import described
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import CHANGE_TYPE, IMPLIED, lost_change_type
from backlog_spark.model.record_attributes import RecordAttributes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from backlog_spark.spi.source_info import SourceInfo

    Bind = Callable[[StructType, int, bool], "KeyedFold"]

__all__ = [
    "FrameNode",
    "KeyedFold",
    "KeyedNode",
    "Node",
    "PairNode",
    "SourceNode",
    "SourceSpec",
    "TransformNode",
    "UnionNode",
    "WatermarkNode",
]


class KeyedFold(Protocol):
    """The part of a keyed operator's fold that this package needs; see `backlog_spark.operators.fold.Fold`."""

    def _attributes_of_output(self, *inputs: RecordAttributes) -> RecordAttributes: ...


@dataclass(frozen=True)
class SourceSpec:
    """A source that has not been loaded. The runner completes its options at each start.

    A Python source sees only its options, no ``spark.conf`` and no checkpoint. So the runner adds what it must know
    about the query.
    """

    format: str
    name: str
    options: Mapping[str, str] = field(repr=False)

    def completed(self, more: Mapping[str, str | None]) -> dict[str, str]:
        """The user's options, overridden by the runner's. None removes an option that the runner handles itself."""
        lower = {name.lower() for name in more}
        kept = {name: value for name, value in self.options.items() if name.lower() not in lower}
        return {name: value for name, value in {**kept, **more}.items() if value is not None}


class Node(ABC):
    """A step of the chain. Immutable."""

    @property
    @abstractmethod
    def parents(self) -> tuple[Node, ...]:
        """The nodes that its rows come from."""

    def walk(self) -> Iterator[Node]:
        """All nodes, each after its inputs: the order in which Spark finds their sources."""
        for parent in self.parents:
            yield from parent.walk()
        yield self

    @property
    def is_keyed(self) -> bool:
        """Whether this node or one before it is a keyed operator."""
        return any(isinstance(node, KeyedNode) for node in self.walk())


@dataclass(frozen=True)
class SourceNode(Node):
    """A source that the runner loads. ``info`` comes from its connector when the query starts."""

    spec: SourceSpec
    info: SourceInfo | None = None

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class FrameNode(Node):
    """The user's streaming DataFrame. With ``use_processing_time`` its event time follows the clock."""

    frame: DataFrame
    use_processing_time: bool = False

    @property
    def parents(self) -> tuple[Node, ...]:
        return ()


@dataclass(frozen=True)
class TransformNode(Node):
    """Stateless Spark operations; `backlog_spark.explain` shows ``label``."""

    parent: Node
    function: Callable[[DataFrame], DataFrame]
    label: str = ""

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)

    def apply(self, frame: DataFrame) -> DataFrame:
        """Apply the operations to a DataFrame.

        Raises
        ------
        BacklogError
            If they drop the change type that a later operator needs.
        """
        made = self.function(frame)
        if not hasattr(made, "schema"):
            raise BacklogError(f"The function of a transform returned {described(made)}.", "Return a DataFrame.")
        if lost_change_type(frame.schema, made.schema) == IMPLIED:
            raise BacklogError(
                f"A transform between two keyed operators drops {CHANGE_TYPE!r}: the first one's results change, "
                "and the second one needs the column to retract earlier results.",
                "Keep the column, or use map and filter, which keep it by themselves.",
            )
        return made


@dataclass(frozen=True)
class UnionNode(Node):
    """Rows of several streams, by column name."""

    inputs: tuple[Node, ...]

    @property
    def parents(self) -> tuple[Node, ...]:
        return self.inputs


@dataclass(frozen=True)
class PairNode(Node):
    """Rows of two streams side by side, for operators with two inputs; see `backlog_spark.operators.sides`.

    Spark finds the sources of an input that is not keyed first, on either side: in the backlog plan those rows come
    before all stateful branches.
    """

    left: Node
    right: Node

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.right, self.left) if self.left.is_keyed and not self.right.is_keyed else (self.left, self.right)


@dataclass(frozen=True)
class WatermarkNode(Node):
    """Rows with an event-time column.

    Parameters
    ----------
    column : str
    delay_ms : int
        How far behind the greatest time a row may come.
    idle_ms : int, optional
        After this time without rows the input is idle and holds no watermark back.
    is_observed : bool
        Whether something asks for the greatest time of each batch.
    """

    parent: Node
    column: str
    delay_ms: int
    idle_ms: int | None = None
    is_observed: bool = True

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)


@dataclass(frozen=True)
class KeyedNode(Node):
    """A keyed operator.

    Parameters
    ----------
    name : str
        Name of its state; unique in a query and the same at every start.
    bind : callable
        Makes the fold from the schema of its rows, the number of key groups and whether it is the first keyed operator.
    is_timed : bool
        Whether its plan has a control source (`Fold.timed`).
    waits_for_build : bool
        Whether it waits for an input to leave backlog. Then each of its sources must report backlog (FLIP-326).
    with_changes : callable, optional
        For operators whose results change: takes a value of `backlog_spark.model.changes.MARK` and returns the ``bind``
        of a fold that emits changes.
    """

    parent: Node
    name: str
    bind: Bind = field(compare=False)
    is_timed: bool = False
    waits_for_build: bool = False
    with_changes: Callable[[str], Bind] | None = field(default=None, compare=False)

    @property
    def parents(self) -> tuple[Node, ...]:
        return (self.parent,)
