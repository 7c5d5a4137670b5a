"""The two Spark plans of a keyed query, made from its tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backlog_spark.operators.fold import Fold
from backlog_spark.plan import FrameNode, KeyedNode, Node, SourceNode, TransformNode, UnionNode
from backlog_spark.state.processor import GroupProcessor
from backlog_spark.state.seeds import SEED_SCHEMA, PackRows, Unpack
from backlog_spark.state.tables import GROUP, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BatchFolds", "Plans", "unpacked"]

_RAW, _ROWS = "__raw", "__rows"


class Plans:
    """Builds the plans of one start.

    Parameters
    ----------
    spark : SparkSession
    load : callable
        Loads a source, with the options that it needs in this run.
    seed_location, key_groups : callable, int
        For trees with keyed operators: the directory of an operator's seeds, and ``spark.backlog.keyGroups``.
    """

    def __init__(
        self,
        spark: SparkSession,
        load: Callable[[SourceNode], DataFrame],
        seed_location: Callable[[str], str] = str,
        key_groups: int = 0,
    ) -> None:
        self._spark = spark
        self._load = load
        self._seed_location = seed_location
        self._key_groups = key_groups
        self.folds: dict[str, Fold] = {}
        self.output: StructType | None = None

    def stream(self, root: Node) -> DataFrame:
        """All rows through the stateful branches."""
        frame = self._stream(root)
        self.output = frame.schema
        return frame

    def _stream(self, node: Node) -> DataFrame:
        if isinstance(node, SourceNode):
            return self._load(node)
        if isinstance(node, FrameNode):
            return node.frame
        if isinstance(node, TransformNode):
            return node.function(self._stream(node.parent))
        if isinstance(node, UnionNode):
            return _union([self._stream(n) for n in node.inputs])
        assert isinstance(node, KeyedNode)
        return self._stateful(node, self._stream(node.parent))

    def backlog(self, root: Node) -> DataFrame:
        """The raw rows before the first keyed operator, beside the stateful branches that stand by."""
        from pyspark.sql import functions as F

        raw, idle = self._split(root)
        assert idle is not None, "only for trees with a keyed operator"
        self.output = idle.schema
        nothing = F.lit(None).cast(raw.schema)
        return _union(
            [
                raw.select(F.lit(True).alias(_RAW), F.struct("*").alias(_ROWS)),
                idle.select(F.lit(False).alias(_RAW), nothing.alias(_ROWS)),
            ]
        )

    def _split(self, node: Node) -> tuple[DataFrame, DataFrame | None]:
        """The raw rows below a node and its stateful branch."""
        if not node.is_keyed:
            return self._stream(node), None
        if isinstance(node, TransformNode):
            raw, idle = self._split(node.parent)
            assert idle is not None
            return raw, node.function(idle)
        assert isinstance(node, KeyedNode), "unions of keyed streams are refused"
        raw, idle = self._split(node.parent)
        if idle is None:
            self._bind(node, raw)
        return raw, self._stateful(node, idle)

    def _bind(self, node: KeyedNode, rows: DataFrame) -> Fold:
        if node.name not in self.folds:
            self.folds[node.name] = node.bind(rows.schema, self._key_groups)
        return self.folds[node.name]

    def _stateful(self, node: KeyedNode, rows: DataFrame | None) -> DataFrame:
        """An operator's stateful branch: packed input, if it has any, and seeds into the key groups' state."""
        fold = self._bind(node, rows) if rows is not None else self.folds[node.name]
        location = self._seed_location(node.name)
        packed = self._spark.readStream.schema(SEED_SCHEMA).parquet(location)
        if rows is not None:
            lifted = fold.lift(rows)
            live = lifted.mapInArrow(PackRows(fold, arrow_schema(lifted.schema)), SEED_SCHEMA)
            packed = live.unionByName(packed)
        state = packed.groupBy(GROUP).transformWithStateInPandas(GroupProcessor(fold), "data binary", "update", "None")
        return fold.finish(unpacked(state, fold))


def unpacked(packed: DataFrame, fold: Fold) -> DataFrame:
    """Keys and accumulators from a column of packed rows."""
    from pyspark.sql.types import StructType

    schema = StructType(fold.state.spark().fields[1:])
    return packed.mapInArrow(Unpack(fold.state, arrow_schema(schema)), schema)


class BatchFolds:
    """Evaluates the tree over one batch of backlog, inside ``foreachBatch``.

    Parameters
    ----------
    folds : dict
        The operators' folds, from `Plans`.
    fold : callable
        Folds rows into an operator's batch state and gives the state, with ``__changed``.
    """

    def __init__(self, folds: dict[str, Fold], fold: Callable[[str, Fold, DataFrame], DataFrame]) -> None:
        self._folds = folds
        self._fold = fold

    def run(self, root: Node, batch: DataFrame) -> DataFrame:
        """The output of the tree for a batch made by `Plans.backlog`."""
        return self._run(root, batch)

    def _run(self, node: Node, batch: DataFrame) -> DataFrame:
        if not node.is_keyed:
            return batch.where(_RAW).select(f"{_ROWS}.*")
        if isinstance(node, TransformNode):
            return node.function(self._run(node.parent, batch))
        assert isinstance(node, KeyedNode)
        fold = self._folds[node.name]
        state = self._fold(node.name, fold, self._run(node.parent, batch))
        return fold.finish(state.where("__changed"))


def _union(frames: list[DataFrame]) -> DataFrame:
    out = frames[0]
    for frame in frames[1:]:
        out = out.unionByName(frame)
    return out
