"""The keyed part of a query: plans the next run and executes backlog batches.

At the end of a backlog:

1. The last batch writes its results, and saves the state that waiting operators hand over. Spark commits the batch.
2. While no run is active, that state (or the last version of the state) is published. The ledger records it.
3. The stream plan starts. Its first batch reads the state.

After a crash the query resumes from the files in the checkpoint. Each step can be repeated without effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from backlog_spark.common.settings import MAX_KEY_GROUPS
from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.handover.state_handover import StateHandover
from backlog_spark.handover.state_reader import StateReader
from backlog_spark.handover.stay_ends import StayEnds
from backlog_spark.handover.versions import BatchState
from backlog_spark.model.nodes import KeyedNode, Node, SourceNode
from backlog_spark.model.plan_checks import check_tree
from backlog_spark.model.record_attributes import as_bits
from backlog_spark.model.trees import is_timed, operator_attributes
from backlog_spark.operators.waiting_fold import Gathered, StayEnd, WaitingFold
from backlog_spark.runner.query_time import Timekeeper
from backlog_spark.runner.sorted_batch import BatchFolds
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.batch_execution import TakenBatch
from backlog_spark.spark.plan.batch_frames import ARROW_BYTES, empty_frame
from backlog_spark.spark.plan.plan_builder import Plans, RawRows, last_keyed, outputs_of
from backlog_spark.state.keys import even_labels
from backlog_spark.state.seeds import seeds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.decide.coordinator import Coordinator
    from backlog_spark.decide.steps import Step
    from backlog_spark.operators.fold import Fold
    from backlog_spark.spi.offset_flags import BatchFlags

__all__ = ["KeyedPlan"]

# Spark fixes a stream's number of partitions and switches adaptive execution off. A backlog batch needs neither, and
# most rows are in backlog batches.
_BATCH_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")
# A partition costs 0.3 s of processor time a batch, even without rows. So there is one partition per core, and several
# key groups in each partition balance the load.
_GROUPS_PER_CORE, _LEAST_GROUPS = 16, 32
# A worker starts on the first key group when an Arrow batch is full. With Spark's default of 64 MB it would first wait
# for all state that is handed over. A value set by the user wins.
_STREAM_ARROW_BYTES = "4m"


class KeyedPlan:
    """The keyed part of one query.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    root : Node
    key_groups : int or None
        ``spark.backlog.keyGroups``. None: the checkpoint's number, or a number that fits the cores.
    coordinator : Coordinator
        It has the ledger, and learns of each change of it.
    max_firing_ms : int, optional
        How long a batch may fire timers, in milliseconds. None: until all due timers have fired.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        root: Node,
        key_groups: int | None,
        coordinator: Coordinator,
        *,
        max_firing_ms: int | None = None,
    ) -> None:
        check_tree(root)
        self._coordinator = coordinator
        self.stay_ended = False
        self._spark = spark
        self._checkpoint = checkpoint
        self._stays = StayEnds(checkpoint)
        self._root = root
        self._operators = [node.name for node in root.walk() if isinstance(node, KeyedNode)]
        self._state_handover = StateHandover(checkpoint, self._stays, self._operators)
        ledger = self._state_handover.ledger()
        self._cores = spark.sparkContext.defaultParallelism
        usual = min(MAX_KEY_GROUPS, max(_LEAST_GROUPS, _GROUPS_PER_CORE * self._cores))
        self._key_groups = key_groups or (usual if ledger is None else ledger.key_groups)
        # A backlog batch runs with the user's settings, not with those that the stream is fixed to.
        self._batch_settings = {name: str(spark.conf.get(name)) for name in _BATCH_SETTINGS}
        self._raw = RawRows()
        self._reader = StateReader(spark, checkpoint, root, self._stays, self._state_handover.ledger)
        self.folds: dict[str, Fold] = {}
        self._cleaned = False
        self._handed_over: Mapping[str, Callable[[], DataFrame]] = {}
        self.run = Run(0, Vehicle.STREAM)
        self._collects_now = False
        self._output: StructType | None = None
        self._time: Timekeeper | None = None
        if is_timed(root):
            self._time = Timekeeper(
                spark,
                checkpoint,
                root,
                self._key_groups,
                mixed=coordinator.facts.sorts_backlog,
                max_firing_ms=max_firing_ms,
                judges_frames=bool(coordinator.rules.needs),
            )

    def start(
        self, step: Step, flags: BatchFlags, load: Callable[[SourceNode], DataFrame]
    ) -> tuple[DataFrame, StructType, dict[str, str]]:
        """Prepare the next run. Called while no run of the query is active.

        Parameters
        ----------
        step : Step
            The decision about this run.
        flags : BatchFlags
            Of the newest planned batch.
        load : callable
            Loads a source.

        Returns
        -------
        (DataFrame, StructType, dict)
            The streaming DataFrame, the schema of the output, and the session configuration that the run needs.

        Raises
        ------
        BacklogError
            If the query differs from its checkpoint in something that cannot change.
        """
        assert step.run is not None, "the query has keyed operators"
        ledger, run = self._coordinator.ledger, step.run
        planned, committed = self._checkpoint.latest_batch(), self._checkpoint.latest_committed()
        book = ledger or Ledger(0, 0, ())
        partitions = min(self._key_groups, self._cores) if ledger is None else ledger.partitions
        whole_file = int(str(self._spark.conf.get("spark.sql.sources.binaryFile.maxLength")))
        plans = Plans(
            self._spark,
            load,
            lambda name: self._checkpoint.location_of(seeds_of(name)),
            self._key_groups,
            None if self._time is None else self._time.control,
            None if self._time is None else self._time.reports,
            self._stays.newest_committed(),
            even_labels(self._key_groups, partitions),
            self._state_handover.seeds_emit(book),
            lambda name: BatchState(self._checkpoint, name, book.last_epoch).whole_files(whole_file),
            in_pandas=book.in_pandas,
        )
        frame = plans.backlog(self._root) if run.vehicle is Vehicle.SORTED else plans.stream(self._root)
        assert plans.output is not None
        self.folds = plans.folds
        operators = tuple(
            (name, {**self.folds[name].describe(), "mergeable": self.folds[name].mergeable}) for name in self._operators
        )
        if ledger is None:
            ledger = Ledger(self._key_groups, partitions, operators)
        ledger = ledger.check(self._key_groups, operators)
        self._output, self._raw = plans.output, plans.raw
        if run.vehicle is Vehicle.STREAM and ledger.unpublished:
            ledger = self._state_handover.publish(ledger)
        if step.takes_state_first:
            self._state_handover.read_by_stream()
        if planned is None or ledger.last_epoch < 0:
            ledger = replace(ledger, puts_out_each=not self._coordinator.facts.collects_backlog)
        ledger = ledger.begin(run)
        self._state_handover.write(ledger)
        self._coordinator.ledger = ledger
        self.run = ledger.runs[-1]
        # The first stay ends in the way it began, even if the intervals have changed since.
        self._collects_now = self.run.epoch == 0 and not ledger.puts_out_each
        self._cleaned = False
        self.stay_ended = False
        if self._time is not None:
            sorted_run = run.vehicle is Vehicle.SORTED
            epoch = self.run.epoch if planned == committed else -1
            self._time.begin(
                self.folds,
                flags.in_backlog,
                flags.finished,
                sorted_run=sorted_run,
                tasks=ledger.partitions,
                epoch=epoch,
            )
        conf = ledger.configuration()
        if run.vehicle is Vehicle.STREAM:
            conf[ARROW_BYTES] = str(self._spark.conf.get(ARROW_BYTES, _STREAM_ARROW_BYTES))
        return frame, plans.output, conf

    def ledger(self) -> Ledger | None:
        """The checkpoint's record of earlier runs. Called before each `start`, while no run is active.

        Raises
        ------
        BacklogError
            If the checkpoint has batches but no ledger file.
        SettingError
            If Spark's SQL is not ANSI.
        """
        if str(self._spark.conf.get("spark.sql.ansi.enabled")).lower() != "true":
            raise SettingError(
                "spark.sql.ansi.enabled", "false",
                "without it sums overflow silently, and differently in backlog and in stream mode.",
                "Leave it at true, Spark's default, for queries with keyed operators.",
            )  # fmt: skip
        ledger, planned = self._state_handover.ledger(), self._checkpoint.latest_batch()
        if ledger is None and planned is not None:
            raise BacklogError(
                f"The checkpoint has batches up to {planned}, but no backlog/plan-….json: it was made without keyed "
                "operators, or the file was deleted.",
                "Restore the file, or start with a new checkpointLocation.",
            )
        for name in self._operators:
            self._checkpoint.make_directory(seeds_of(name))
        return ledger

    @property
    def replays_first(self) -> bool:
        """Whether there is backlog, but a batch of the stream vehicle comes first."""
        return self._coordinator.step.replays_only

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        """Columns of the last operator's side outputs. Side outputs of other operators are refused."""
        last = last_keyed(self._root)
        assert last is not None
        return self.folds[last.name].side_outputs

    def reads_several_times(self, *, several_outputs: bool) -> bool:
        """Whether a batch of the present run is read more than once.

        The sorted vehicle reads it once for each operator that takes input rows. The number of outputs does not count.
        """
        return len(self._raw.leaves) > 1 if self.run.vehicle is Vehicle.SORTED else several_outputs

    def take(self, batch: DataFrame, query_name: str) -> TakenBatch:
        """Wrap a batch of the present run, for `output` and `written`."""
        return TakenBatch(batch, self._spark, query_name, stands_by=self.run.vehicle is Vehicle.SORTED)

    @property
    def batch_settings(self) -> Mapping[str, str]:
        """The session configuration that writing a batch of the present run needs."""
        return self._batch_settings if self.run.vehicle is Vehicle.SORTED else {}

    def has_unread_seeds(self) -> bool:
        """Whether seeds exist that no stream run is known to have read."""
        return self._state_handover.has_unread_seeds()

    def output(
        self, taken: TakenBatch, batch_id: int, query_name: str, flags: BatchFlags
    ) -> tuple[DataFrame, dict[str, DataFrame]]:
        """The main output and the side outputs of a batch. The sorted vehicle executes the batch here, once.

        Parameters
        ----------
        taken : TakenBatch
        batch_id : int
        query_name : str
        flags : BatchFlags
            Of this batch.
        """
        last = last_keyed(self._root)
        assert last is not None
        batch = taken.raw
        self._handed_over = {}
        if self.run.vehicle is Vehicle.STREAM:
            if not self._cleaned and batch_id > self.run.first_batch:
                self._cleaned = True
                self._state_handover.clean()
            fold = self.folds[last.name]
            return outputs_of(self._root, fold, batch) if fold.side_outputs else (batch, {})

        def fold_into(name: str, operator: Fold, rows: DataFrame, sample: Callable[[], DataFrame | None]) -> DataFrame:
            state = BatchState(self._checkpoint, name, self.run.epoch)
            # Batch N - 1 has committed, so no version before its own is needed again.
            state.drop_below(batch_id - 1)
            version = state.write(operator, rows, batch_id, sample, collects=self._collects_now)
            taken.is_read |= state.has_read
            return version

        def gather(name: str, operator: WaitingFold, rows: DataFrame) -> Gathered | None:
            if not self._ends_stay(batch_id, flags):
                return None
            state = BatchState(self._checkpoint, name, self.run.epoch)
            found = state.gather(operator, rows, batch_id)
            taken.is_read |= state.has_read
            return found

        @functools.cache
        def end() -> StayEnd | None:
            return self._end(taken, batch_id, query_name, flags)

        is_last = self._ends_stay(batch_id, flags)
        folds = BatchFolds(
            self._folds_for(flags), self._raw, lambda: taken.sample, fold_into, gather, end,
            collects=self._collects_now, is_last=is_last,
        )  # fmt: skip
        self._handed_over = folds.handed_over
        if self.run.epoch == 0:
            found = folds.run(self._root, batch)
            if not self._collects_now:
                return found
            if is_last:
                end()
                return found
        else:
            # The first operator collects the changes of a later stay. Its results reach the sinks and the next
            # operators only after stream mode has merged them.
            folds.run(next(n for n in self._root.walk() if isinstance(n, KeyedNode)), batch)
        assert self._output is not None, "set at the start of the run"
        spark = batch.sparkSession
        # Every sink gets every batch: a sink checks by its last batch that it belongs to this query.
        sides = {name: empty_frame(spark, schema) for name, schema in self.side_outputs.items()}
        return empty_frame(spark, self._output), sides

    def _folds_for(self, flags: BatchFlags) -> dict[str, Fold]:
        """The folds for a sorted batch, with the record attributes of their rows."""
        # A rule speaks for all streaming DataFrames. They are read sorted only while it reports backlog.
        attributes = operator_attributes(
            self._root, flags.rows_in_backlog, self.folds, flags.had_finished,
            frames=True if self._coordinator.rules.needs else None,
        )  # fmt: skip
        return {name: fold.with_attributes(as_bits(attributes[name])) for name, fold in self.folds.items()}

    def _ends_stay(self, batch_id: int, flags: BatchFlags) -> bool:
        """Whether a sorted batch is known to be the last one of its stay."""
        return self._coordinator.ends_stay(flags.in_backlog, is_known=self._stays.of(batch_id) is not None)

    def _end(self, taken: TakenBatch, batch_id: int, query_name: str, flags: BatchFlags) -> StayEnd | None:
        """The end of the stay, if this is its last batch. Saved before any result is written."""
        found = self._stays.of(batch_id)
        if found is None:
            if not self._ends_stay(batch_id, flags):
                return None
            earlier = self._stays.newest()
            if earlier is not None and earlier != batch_id:
                raise BacklogError(
                    f"The backlog had ended with batch {earlier}, but batch {batch_id} brought more rows before the "
                    "query was in stream mode.",
                    "Start the query again. If it happens again, a source gives rows after the end of its backlog.",
                )
            taken.ensure_read()
            found = StayEnd(
                None if self._time is None else self._time.watermark_after(batch_id, query_name, flags.finished)
            )
            self._stays.keep(batch_id, found)
        self.stay_ended = True
        return found

    def written(self, taken: TakenBatch, batch_id: int, query_name: str, flags: BatchFlags) -> None:
        """Called when a batch has reached its sinks, before it commits."""
        for name, state in self._handed_over.items():
            BatchState(self._checkpoint, name, self.run.epoch).write_handed_over(state, batch_id)
        self._handed_over = {}  # frees the rows that it refers to
        taken.finish()
        if self._time is not None:
            in_backlog, finished = flags.in_backlog, flags.finished
            self._time.take(batch_id, query_name, in_backlog, finished, sorted_run=self.run.vehicle is Vehicle.SORTED)

    @property
    def is_firing(self) -> bool:
        """Whether the next batch continues firing timers. The last batch stopped because its commit was due."""
        return self._time is not None and self.run.vehicle is Vehicle.STREAM and self._time.is_firing

    @property
    def has_ended(self) -> bool:
        """Whether everything that the end of all sources makes due is committed. Asked in a stream run."""
        return self._time is None or self._time.has_ended

    @property
    def late_rows(self) -> int:
        """Late rows that were dropped, in this process."""
        return 0 if self._time is None else self._time.late_rows

    def close(self) -> None:
        """Called when the query has ended."""
        if self._time is not None:
            self._time.close()

    def state(self, name: str) -> DataFrame:
        """An operator's state as rows of its output, as of the last committed batch.

        In a later stay in backlog it is the state that the stay has collected so far. Waits during a hand-over.

        Raises
        ------
        BacklogError
            If there is no such operator, or the hand-over takes longer than a minute.
        """
        if name not in self.folds:
            raise BacklogError(f"There is no keyed operator {name!r}.", f"There are: {', '.join(self._operators)}.")
        return self._reader.read(name, self.folds[name], lambda: self.run)
