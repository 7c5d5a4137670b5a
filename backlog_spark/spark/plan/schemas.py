"""Finds the columns of a stream before it runs, by evaluating its tree over empty frames.

Reaches for: the text of an analysed plan, printed by ``DataFrame.explain`` (seen in Spark 4.2). There is no fallback:
without it a SQL statement fails before it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

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
from backlog_spark.operators.sides import tagged
from backlog_spark.spark.jvm.session import load, register
from backlog_spark.spark.plan.batch_frames import empty_frame
from backlog_spark.spark.plan.bound_folds import with_event_time
from backlog_spark.spark.plan.plan_builder import PACKED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.operators.fold import Fold

__all__ = ["Schemas"]

# Schemas do not depend on the number of key groups.
_KEY_GROUPS = 1


class Schemas:
    """The schemas of nodes. Each node is evaluated once.

    The schema of a source is loaded as Spark loads it, so its server or its files must be available.

    Parameters
    ----------
    spark : SparkSession
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # Keeps the node alive, because its identity is the key.
        self._frames: dict[int, tuple[Node, DataFrame]] = {}
        self._folds: dict[int, Fold] = {}
        self._packed: DataFrame | None = None

    def of(self, node: Node) -> StructType:
        """The output columns of a node, with the mark of event time.

        Raises
        ------
        BacklogError
            If the node's operator refuses its input.
        """
        return self.frame(node).schema

    def fold(self, node: KeyedNode) -> Fold:
        """A keyed operator bound to its input."""
        self.frame(node)
        return self._folds[id(node)]

    def empty(self, schema: StructType) -> DataFrame:
        """A batch frame without rows."""
        return empty_frame(self._spark, schema)

    def frame(self, node: Node) -> DataFrame:
        """A node's output for no rows: a plan with only this node in it."""
        if id(node) not in self._frames:
            self._frames[id(node)] = node, self._evaluated(node)
        return self._frames[id(node)][1]

    def plan(self, node: Node) -> str:
        """The analysed plan of a node for no rows, as ``DataFrame.explain`` prints it."""
        return str(cast("Any", self.frame(node))._jdf.queryExecution().analyzed().toString())

    def _evaluated(self, node: Node) -> DataFrame:
        if isinstance(node, SourceNode):
            register(self._spark)
            return self.empty(load(self._spark, node.spec, {}).schema)
        if isinstance(node, FrameNode):
            return self.empty(node.frame.schema)
        inputs = {id(parent): self.empty(self.of(parent)) for parent in node.parents}
        if isinstance(node, TransformNode):
            return node.apply(inputs[id(node.parent)])
        if isinstance(node, WatermarkNode):
            return with_event_time(node, inputs[id(node.parent)])
        if isinstance(node, UnionNode):
            frame = inputs[id(node.inputs[0])]
            for other in node.inputs[1:]:
                frame = frame.unionByName(inputs[id(other)])
            return frame
        if isinstance(node, PairNode):
            left, right = inputs[id(node.left)], inputs[id(node.right)]
            one, two = tagged(left, right, (left.schema, right.schema))
            return one.unionByName(two)
        assert isinstance(node, KeyedNode)
        fold = cast("Fold", node.bind(self.of(node.parent), _KEY_GROUPS, not node.parent.is_keyed))
        self._folds[id(node)] = fold
        if self._packed is None:
            self._packed = self._spark.createDataFrame([], PACKED)
        return fold.unpack(self._packed)
