"""Builds the two Spark plans of a keyed query from its tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.model.changes import MARK
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
from backlog_spark.model.trees import enters_behind
from backlog_spark.model.watermarks import EVENT_TIME, PROCESSING_TIME, observation_name
from backlog_spark.operators.fold import EmittingFold, Fold
from backlog_spark.operators.sides import quoted, tagged
from backlog_spark.operators.sorted_loop import DATA, TAG
from backlog_spark.operators.waiting_fold import StayEnd, WaitingFold
from backlog_spark.spark.jvm.session import starting
from backlog_spark.spark.plan.batch_frames import empty_frame, is_repeatable
from backlog_spark.spark.plan.bound_folds import bound, with_event_time
from backlog_spark.spark.plan.columns_read import blanked
from backlog_spark.spark.plan.group_processor import GroupProcessor, PandasProcessor
from backlog_spark.state.keys import labelled
from backlog_spark.state.seeds import ALL_OF_THEM, SEED_SCHEMA, ChosenRows, PackFiles, PackHeld, PackState, seed_prefix
from backlog_spark.state.tables import EMIT, GROUP, arrow_schema

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "PACKED",
    "Plans",
    "RawRows",
    "last_keyed",
    "outputs_of",
    "put_after",
    "union_of",
]

_RAW = "__raw"
PACKED = "tag int, data binary"
"""Schema of a stateful operator's output."""

_MARKS = (EVENT_TIME, PROCESSING_TIME, MARK)
# Schema of Spark's source that gives one row per file. The session defines what ``timestamp`` means.
_FILES = "path string, modificationTime timestamp_ltz, length long, content binary"


class Plans:
    """Builds the plans of one start.

    Parameters
    ----------
    spark : SparkSession
    load : callable
        Loads a source, with the options of this run.
    seed_location, key_groups : callable, int
        For trees with keyed operators: the directory of an operator's seeds, and ``spark.backlog.keyGroups``.
    control : callable, optional
        For trees with operators that need time: an operator's control source.
    reports : Accumulator, optional
        Takes the key groups' reports of timers and late rows.
    stay_end : StayEnd, optional
        The end of the stay whose state is handed over, if the stay emitted its results.
    labels : sequence of int
        For trees with keyed operators: a number per key group, which decides the key group's partition.
    seeds_emit : bool, optional
        Whether the keys of merged state that is handed over are emitted. None: it differs between the files.
    whole_files : callable, optional
        Bytes of each file of an operator's seeds; None if a file is too large for one Spark row.
    in_pandas : bool, optional
        Whether rows go to the state in pandas, as in queries that started so.
    """

    def __init__(
        self,
        spark: SparkSession,
        load: Callable[[SourceNode], DataFrame],
        seed_location: Callable[[str], str] = str,
        key_groups: int = 0,
        control: Callable[[str], DataFrame] | None = None,
        reports: Accumulator[Any] | None = None,
        stay_end: StayEnd | None = None,
        labels: Sequence[int] = (),
        seeds_emit: bool | None = None,
        whole_files: Callable[[str], list[int] | None] = lambda _: [],
        *,
        in_pandas: bool = False,
    ) -> None:
        self._spark = spark
        self._load = load
        self._seed_location = seed_location
        self._key_groups = key_groups
        self._control = control
        self._reports = reports
        self._stay_end = stay_end
        self._labels = labels
        self._seeds_emit = seeds_emit
        self._whole_files = whole_files
        self._in_pandas = in_pandas
        self._inputs = 0
        self._in_front = False
        self._loaded: dict[int, DataFrame] = {}
        # The nodes whose rows are raw, each as often as it is read, and the operators that read them directly.
        self._leaves: list[Node] = []
        self._readers: dict[int, list[Fold]] = defaultdict(list)
        self.folds: dict[str, Fold] = {}
        self.output: StructType | None = None
        self.raw = RawRows()

    def stream(self, root: Node) -> DataFrame:
        """The stream plan: all rows go through the stateful branches.

        If the last keyed operator has side outputs, the result has all its outputs, packed for `outputs_of`.
        """
        last = last_keyed(root)
        if last is None:
            return self._finished(self._stream(root))
        self._in_front = enters_behind(root)
        packed = self._stateful(last, self._stream(last.parent))
        fold = self.folds[last.name]
        frame = self._finished(put_after(root, last, fold.unpack(packed)))
        self.output = frame.schema
        emitted = packed if fold.side_outputs else frame
        return union_of([*self._no_rows_of(root, emitted.schema), emitted])

    def _finished(self, frame: DataFrame) -> DataFrame:
        """Without our column metadata, which would end up in the schema of a table."""
        if not any(mark in column.metadata for column in frame.schema for mark in _MARKS):
            return frame
        columns = []
        for column in frame.schema:
            kept = {name: value for name, value in column.metadata.items() if name not in _MARKS}
            columns.append(quoted(column.name).alias(column.name, metadata=kept))
        return frame.select(*columns)

    def _stream(self, node: Node) -> DataFrame:
        if isinstance(node, SourceNode):
            if not self._in_front:
                return self._load(node)
            if id(node) not in self._loaded:
                self._loaded[id(node)] = self._load(node)
            # The same DataFrame object, or Spark would take it for another source.
            return self._loaded[id(node)]
        if isinstance(node, FrameNode):
            return node.frame
        if isinstance(node, TransformNode):
            return node.apply(self._stream(node.parent))
        if isinstance(node, UnionNode):
            return union_of([self._stream(n) for n in node.inputs])
        if isinstance(node, WatermarkNode):
            return self._observed(node, self._stream(node.parent))
        if isinstance(node, PairNode):
            return self._paired(node, {id(each): self._stream(each) for each in node.parents})
        assert isinstance(node, KeyedNode)
        packed = self._stateful(node, self._stream(node.parent))
        return self.folds[node.name].unpack(packed)

    def _no_rows_of(self, node: Node, schema: StructType) -> list[DataFrame]:
        """Empty DataFrames that read a node's sources. Both plans name them before all stateful branches.

        Spark numbers sources by their first position in the plan. An input that enters after a keyed operator would
        come before that operator's seeds in the backlog plan, and after them in the stream plan. So both plans begin
        with all inputs, and repeat each one where its rows are used. Spark removes empty parts before it runs the plan.
        """
        from pyspark.sql import functions as F

        if not self._in_front:
            return []
        nothing = [F.lit(None).cast(field.dataType).alias(field.name, metadata=field.metadata) for field in schema]
        leaves = [leaf for leaf in node.walk() if isinstance(leaf, SourceNode | FrameNode)]
        return [self._stream(leaf).where("false").select(*nothing) for leaf in leaves]

    def _observed(self, node: WatermarkNode, frame: DataFrame) -> DataFrame:
        """Marks the event time of rows, and observes its greatest value per batch if it is asked for."""
        from pyspark.sql import functions as F

        marked = with_event_time(node, frame)
        if not node.is_observed:
            return marked
        number, self._inputs = self._inputs, self._inputs + 1
        return marked.observe(observation_name(number), F.max(F.unix_millis(quoted(node.column))).alias("greatest"))

    def _paired(self, node: PairNode, frames: dict[int, DataFrame]) -> DataFrame:
        """Both sides in one table. ``frames``: by the identity of the node."""
        left, right = frames[id(node.left)], frames[id(node.right)]
        self.raw.pairs[id(node)] = schemas = left.schema, right.schema
        sides = tagged(left, right, schemas)
        return union_of(sides if node.parents[0] is node.left else sides[::-1])

    def backlog(self, root: Node) -> DataFrame:
        """The backlog plan: the raw rows before the first keyed operators, and the idle stateful branches."""
        from pyspark.sql import functions as F

        last = last_keyed(root)
        assert last is not None, "only for trees with a keyed operator"
        self._in_front = enters_behind(root)
        raws: list[DataFrame] = []
        idle = self._split(last, raws)
        self.output = self._finished(put_after(root, last, self.folds[last.name].unpack(idle))).schema
        every = [(number, i, f.dataType) for number, raw in enumerate(raws) for i, f in enumerate(raw.schema)]

        def padded(frame: DataFrame, mine: int) -> DataFrame:
            columns = [
                (F.col(f"r{i}") if number == mine else F.lit(None).cast(kind)).alias(f"r{number}_{i}")
                for number, i, kind in every
            ]
            return frame.select(F.lit(mine).alias(_RAW), *columns)

        named = [
            self._with_read_columns(node, raw).toDF(*(f"r{i}" for i in range(len(raw.schema))))
            for node, raw in zip(self._leaves, raws, strict=True)
        ]
        return union_of([*(padded(raw, number) for number, raw in enumerate(named)), padded(idle, -1)])

    def _with_read_columns(self, node: Node, raw: DataFrame) -> DataFrame:
        """Raw rows, with NULL in what no keyed operator reads. A join takes all columns of rows that enter it."""
        readers = self._readers[id(node)]
        return blanked(raw, readers) if len(readers) == sum(leaf is node for leaf in self._leaves) else raw

    def _split(self, node: KeyedNode, raws: list[DataFrame]) -> DataFrame:
        """A keyed operator's idle stateful branch. Adds the raw rows that enter it, or enter before it, to ``raws``."""
        rows, stands_by = self._before(node.parent, raws)
        fold = self._bind(node, rows)
        if not stands_by:
            self._readers[id(node.parent)].append(fold)
        return self._stateful(node, rows if stands_by else None, [] if stands_by else [node.parent])

    def _before(self, node: Node, raws: list[DataFrame]) -> tuple[DataFrame, bool]:
        """A node's rows: raw rows, or the output of idle stateful branches. The flag is true for the latter."""
        if not node.is_keyed:
            rows = self._stream(node)
            self.raw.leaves[id(node)] = len(raws), rows.schema
            self.raw.are_repeatable &= is_repeatable(rows, of_batch=False)
            raws.append(rows)
            self._leaves.append(node)
            return rows, False
        if isinstance(node, KeyedNode):
            stands_by = self._split(node, raws)
            return self.folds[node.name].unpack(stands_by), True
        if isinstance(node, TransformNode):
            rows = self._before(node.parent, raws)[0]
            step = node.apply(empty_frame(self._spark, rows.schema))
            self.raw.are_repeatable &= is_repeatable(step, of_batch=True)
            return node.apply(rows), True
        assert isinstance(node, PairNode), "unions and watermarks after a keyed operator are refused"
        found = {id(each): self._before(each, raws) for each in node.parents}
        (left, keyed_left), (right, keyed_right) = found[id(node.left)], found[id(node.right)]
        self.raw.pairs[id(node)] = schemas = left.schema, right.schema
        sides = tagged(left if keyed_left else None, right if keyed_right else None, schemas)
        raw = [] if keyed_left and keyed_right else self._no_rows_of(node.parents[0], sides[0].schema)
        return union_of([*raw, *sides]), True

    def _bind(self, node: KeyedNode, rows: DataFrame) -> Fold:
        if node.name not in self.folds:
            self.folds[node.name] = bound(node, rows.schema, self._key_groups)
        return self.folds[node.name]

    def _stateful(self, node: KeyedNode, rows: DataFrame | None, raw: Sequence[Node] = ()) -> DataFrame:
        """An operator's stateful branch: packed input, seeds and control messages update the key groups' state.

        ``raw``: nodes whose rows do not enter the branch.
        """
        fold = self._bind(node, rows) if rows is not None else self.folds[node.name]
        packed = self._seeds(node.name, fold)
        for each in raw:
            packed = union_of([*self._no_rows_of(each, packed.schema), packed])
        if rows is not None:
            lifted = fold.lift(rows)
            packed = map_in_arrow(lifted, fold.packer(arrow_schema(lifted.schema)), SEED_SCHEMA).unionByName(packed)
        if node.is_timed:
            assert self._control is not None
            packed = packed.unionByName(self._control(node.name))
        packed = packed.withColumn(GROUP, labelled(GROUP, self._labels))
        # Everything up to this watermark was emitted by the stay, even before the operator in front sends a watermark.
        begins_at = self._stay_end.watermark if isinstance(fold, WaitingFold) and self._stay_end is not None else None
        arguments = fold, node.name, self._reports if node.is_timed else None, begins_at
        groups = packed.groupBy(GROUP)
        if self._in_pandas:
            return groups.transformWithStateInPandas(PandasProcessor(*arguments), PACKED, "update", "None")
        return groups.transformWithState(GroupProcessor(*arguments), PACKED, "update", "None")

    def _seeds(self, name: str, fold: Fold) -> DataFrame:
        """State that is handed over, packed."""
        from pyspark.sql import functions as F

        emit: bool | None
        if isinstance(fold, EmittingFold):
            # The batches of the first stay have emitted their keys. Keys of a later stay were only collected.
            schema, chosen, emit = fold.version_schema(), fold.chosen_rows(), self._seeds_emit
        elif self._stay_end is not None and not cast("WaitingFold", fold).hands_over_version:
            schema, chosen, emit = fold.state.spark(), ChosenRows(), False
        else:
            # Rows that nothing was emitted for are given to the fold as new input. A row that was already chosen from a
            # large version may be chosen once more.
            schema, chosen, emit = fold.version_schema(), None, self._stay_end is None
        held = emit and isinstance(fold, EmittingFold) and fold.held_rows(empty_frame(self._spark, schema)) is not None
        if held:
            rows = self._read_seeds(name, schema, "parquet").select(*fold.state.spark().names, TAG, DATA)
            return map_in_arrow(rows, PackHeld(fold.state, self._key_groups, TAG, DATA), SEED_SCHEMA)
        sizes = self._whole_files(name) if chosen is not None and fold.state.is_read_from_files else None
        if chosen is not None and sizes is not None:
            files = self._read_seeds(name, _FILES, "binaryFile").select("path", "content")
            return map_in_arrow(files, PackFiles(fold.state, self._key_groups, emit, chosen), SEED_SCHEMA)
        rows = self._read_seeds(name, schema, "parquet")
        if emit is None:
            is_first = F.col("_metadata.file_name").startswith(seed_prefix(0))
            rows = rows.select("*", (~is_first).alias(EMIT))
        if isinstance(fold, EmittingFold):
            rows = fold.state_of(rows)
        elif chosen is None:
            rows = cast("WaitingFold", fold).handed_over(rows, self._stay_end)
        return map_in_arrow(rows, PackState(fold.state, self._key_groups, emit), SEED_SCHEMA)

    def _read_seeds(self, name: str, schema: StructType | str, source: str) -> DataFrame:
        with starting:
            reader = self._spark.readStream.schema(schema).format(source).options(**ALL_OF_THEM)
            return reader.load(self._seed_location(name))


@dataclass
class RawRows:
    """Finds the raw rows of a tree in the batches of `Plans.backlog`.

    Parameters
    ----------
    leaves : dict
        The number and schema of each node's raw rows, by the identity of the node.
    pairs : dict
        The schemas of the two sides, by the identity of the `PairNode`.
    are_repeatable : bool
        Whether a replay of a batch gives the same rows. The steps between keyed operators count too.
    """

    leaves: dict[int, tuple[int, StructType]] = field(default_factory=dict)
    pairs: dict[int, tuple[StructType, StructType]] = field(default_factory=dict)
    are_repeatable: bool = True

    def of(self, node: Node, batch: DataFrame) -> DataFrame:
        """A node's raw rows in a batch."""
        number, schema = self.leaves[id(node)]
        # Keep names and metadata: the metadata marks the column of the event time.
        columns = [quoted(f"r{number}_{i}").alias(f.name, metadata=f.metadata) for i, f in enumerate(schema)]
        return batch.where(f"{_RAW} = {number}").select(*columns)


def outputs_of(root: Node, fold: Fold, packed: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
    """The output and the side outputs of a batch, from the packed output of `Plans.stream`."""
    last = last_keyed(root)
    assert last is not None
    sides = {name: fold.unpack_side_output(packed, name) for name in fold.side_outputs}
    return put_after(root, last, fold.unpack(packed)), sides


def last_keyed(node: Node) -> KeyedNode | None:
    """The keyed operator nearest to the output. A keyed stream is never united with another."""
    while not isinstance(node, KeyedNode):
        if not node.is_keyed:
            return None
        (node,) = node.parents
    return node


def put_after(node: Node, last: KeyedNode, frame: DataFrame) -> DataFrame:
    """Apply the steps after the last keyed operator to its output."""
    if node is last:
        return frame
    assert isinstance(node, TransformNode), "unions and watermarks after a keyed operator are refused"
    return node.apply(put_after(node.parent, last, frame))


def union_of(frames: list[DataFrame]) -> DataFrame:
    out = frames[0]
    for frame in frames[1:]:
        out = out.unionByName(frame)
    return out
