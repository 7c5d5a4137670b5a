"""The two Spark plans of a keyed query, made from its tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError
from backlog_spark.operators.fold import Fold
from backlog_spark.plan import FrameNode, KeyedNode, Node, SourceNode, TransformNode, UnionNode, WatermarkNode
from backlog_spark.state.processor import GroupProcessor
from backlog_spark.state.seeds import SEED_SCHEMA, PackState, seed_prefix
from backlog_spark.state.tables import EMIT, GROUP, arrow_schema
from backlog_spark.watermarks import EVENT_TIME, observation_name

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BatchFolds", "Plans", "last_keyed", "outputs_of"]

_RAW = "__raw"


class Plans:
    """Builds the plans of one start.

    Parameters
    ----------
    spark : SparkSession
    load : callable
        Loads a source, with the options that it needs in this run.
    seed_location, key_groups : callable, int
        For trees with keyed operators: the directory of an operator's seeds, and ``spark.backlog.keyGroups``.
    control : callable, optional
        For trees with operators that need time: an operator's control source.
    reports : Accumulator, optional
        What key groups report of timers and late rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        load: Callable[[SourceNode], DataFrame],
        seed_location: Callable[[str], str] = str,
        key_groups: int = 0,
        control: Callable[[str], DataFrame] | None = None,
        reports: Accumulator[Any] | None = None,
    ) -> None:
        self._spark = spark
        self._load = load
        self._seed_location = seed_location
        self._key_groups = key_groups
        self._control = control
        self._reports = reports
        self._inputs = 0
        self.folds: dict[str, Fold] = {}
        self.output: StructType | None = None
        self.rows: StructType | None = None

    def stream(self, root: Node) -> DataFrame:
        """All rows through the stateful branches.

        If the last keyed operator has side outputs: all of its outputs as they are packed, for `outputs_of`.
        """
        last = last_keyed(root)
        if last is None:
            return self._finished(self._stream(root))
        packed = self._stateful(last, self._stream(last.parent))
        fold = self.folds[last.name]
        frame = _after(root, last, fold.unpack(packed))
        self.output = self._finished(frame).schema
        return packed if fold.side_outputs else self._finished(frame)

    def _finished(self, frame: DataFrame) -> DataFrame:
        """Without our marks on columns: they would end up in the schema of a table."""
        if not any(EVENT_TIME in field.metadata for field in frame.schema):
            return frame
        columns = []
        for field in frame.schema:
            kept = {name: value for name, value in field.metadata.items() if name != EVENT_TIME}
            columns.append(_column(field.name).alias(field.name, metadata=kept))
        return frame.select(*columns)

    def _stream(self, node: Node) -> DataFrame:
        if isinstance(node, SourceNode):
            return self._load(node)
        if isinstance(node, FrameNode):
            return node.frame
        if isinstance(node, TransformNode):
            return node.function(self._stream(node.parent))
        if isinstance(node, UnionNode):
            return _union([self._stream(n) for n in node.inputs])
        if isinstance(node, WatermarkNode):
            return self._observed(node, self._stream(node.parent))
        assert isinstance(node, KeyedNode)
        packed = self._stateful(node, self._stream(node.parent))
        return self.folds[node.name].unpack(packed)

    def _observed(self, node: WatermarkNode, frame: DataFrame) -> DataFrame:
        """Rows with their event time marked, and its greatest value observed batch by batch."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import TimestampType

        if node.column not in frame.columns:
            raise BacklogError(
                f"with_watermark: the stream has no column {node.column!r}; it has {', '.join(frame.columns)}.",
                "Check the name and its case.",
            )
        kind = frame.schema[node.column].dataType
        if not isinstance(kind, TimestampType):
            raise BacklogError(
                f"with_watermark: column {node.column!r} is {kind.simpleString()}; event time is a timestamp.",
                "Make one before, for example with .map('*', 'timestamp_millis(ms) AS ts').",
            )
        marked = frame.withColumn(
            node.column, _column(node.column).alias(node.column, metadata={EVENT_TIME: node.column})
        )
        number, self._inputs = self._inputs, self._inputs + 1
        return marked.observe(observation_name(number), F.max(F.unix_millis(_column(node.column))).alias("greatest"))

    def backlog(self, root: Node) -> DataFrame:
        """The raw rows before the first keyed operator, beside the stateful branches that stand by."""
        from pyspark.sql import functions as F

        last = last_keyed(root)
        assert last is not None, "only for trees with a keyed operator"
        raw, idle = self._split(last)
        self.output = self._finished(_after(root, last, self.folds[last.name].unpack(idle))).schema
        names = [f"r{i}" for i in range(len(raw.schema))]
        nothing = [F.lit(None).cast(f.dataType).alias(n) for f, n in zip(raw.schema, names, strict=True)]
        self.rows = raw.schema
        return _union(
            [
                raw.toDF(*names).select(F.lit(True).alias(_RAW), "*"),
                idle.select(F.lit(False).alias(_RAW), *nothing),
            ]
        )

    def _split(self, node: KeyedNode) -> tuple[DataFrame, DataFrame]:
        """The raw rows before the first keyed operator and a keyed operator's stateful branch."""
        before = last_keyed(node.parent)
        if before is None:
            raw = self._stream(node.parent)
            self._bind(node, raw)
            return raw, self._stateful(node, None)
        raw, idle = self._split(before)
        return raw, self._stateful(node, _after(node.parent, before, self.folds[before.name].unpack(idle)))

    def _bind(self, node: KeyedNode, rows: DataFrame) -> Fold:
        if node.name not in self.folds:
            self.folds[node.name] = node.bind(rows.schema, self._key_groups, not node.parent.is_keyed)
        return self.folds[node.name]

    def _stateful(self, node: KeyedNode, rows: DataFrame | None) -> DataFrame:
        """An operator's stateful branch: packed input, if it has any, seeds and control into the key groups' state."""
        fold = self._bind(node, rows) if rows is not None else self.folds[node.name]
        packed = self._seeds(node.name, fold)
        if rows is not None:
            lifted = fold.lift(rows)
            live = lifted.mapInArrow(fold.packer(arrow_schema(lifted.schema)), SEED_SCHEMA)
            packed = live.unionByName(packed)
        if node.is_timed:
            assert self._control is not None
            packed = packed.unionByName(self._control(node.name))
        processor = GroupProcessor(fold, node.name, self._reports if node.is_timed else None)
        return packed.groupBy(GROUP).transformWithStateInPandas(processor, "tag int, data binary", "update", "None")

    def _seeds(self, name: str, fold: Fold) -> DataFrame:
        """State that is handed over, packed."""
        from pyspark.sql import functions as F

        versions = self._spark.readStream.schema(fold.version_schema()).parquet(self._seed_location(name))
        # The keys of the first stay have been put out, by its batches; those of a later one were only collected.
        is_first = F.col("_metadata.file_name").startswith(seed_prefix(0))
        state = fold.state_of(versions.select("*", (~is_first).alias(EMIT)))
        return state.mapInArrow(PackState(fold.state), SEED_SCHEMA)


class BatchFolds:
    """Evaluates the tree over one batch of backlog, inside ``foreachBatch``.

    Parameters
    ----------
    folds : dict
        The operators' folds, from `Plans`.
    rows : StructType
        Columns of the rows before the first keyed operator, from `Plans`.
    fold : callable
        Folds rows into an operator's batch state and gives the new version.
    """

    def __init__(
        self, folds: dict[str, Fold], rows: StructType, fold: Callable[[str, Fold, DataFrame], DataFrame]
    ) -> None:
        self._folds = folds
        self._rows = rows
        self._fold = fold

    def run(self, root: Node, batch: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
        """The output of the tree for a batch made by `Plans.backlog`, and the last keyed operator's side outputs."""
        last = last_keyed(root)
        assert last is not None
        fold, version = self._folds[last.name], self._version(last, batch)
        sides = {name: fold.side_output_of(version, name) for name in fold.side_outputs}
        return _after(root, last, fold.output_of(version)), sides

    def _version(self, node: KeyedNode, batch: DataFrame) -> DataFrame:
        before = last_keyed(node.parent)
        # By name and by metadata: a column that carries event time is known by it.
        rows = batch.where(_RAW).select(
            *(_column(f"r{i}").alias(f.name, metadata=f.metadata) for i, f in enumerate(self._rows))
        )
        if before is not None:
            rows = _after(node.parent, before, self._folds[before.name].output_of(self._version(before, batch)))
        return self._fold(node.name, self._folds[node.name], rows)


def outputs_of(root: Node, fold: Fold, packed: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
    """The output and the side outputs in a batch of what `Plans.stream` gave for an operator with side outputs."""
    last = last_keyed(root)
    assert last is not None
    sides = {name: fold.unpack_side_output(packed, name) for name in fold.side_outputs}
    return _after(root, last, fold.unpack(packed)), sides


def last_keyed(node: Node) -> KeyedNode | None:
    """The keyed operator nearest to the output. A stream that is keyed is never united with another."""
    while not isinstance(node, KeyedNode):
        if not node.is_keyed:
            return None
        (node,) = node.parents
    return node


def _after(node: Node, last: KeyedNode, frame: DataFrame) -> DataFrame:
    """What the steps behind the last keyed operator make of its output."""
    if node is last:
        return frame
    assert isinstance(node, TransformNode), "unions and watermarks behind a keyed operator are refused"
    return node.function(_after(node.parent, last, frame))


def _column(name: str) -> Column:
    from pyspark.sql import functions as F

    return F.col("`" + name.replace("`", "``") + "`")


def _union(frames: list[DataFrame]) -> DataFrame:
    out = frames[0]
    for frame in frames[1:]:
        out = out.unionByName(frame)
    return out
