"""Keyed queries: plans of the next run, batches of backlog, and the hand-over between the vehicles.

At the end of a backlog:

1. The last batch puts its results out, and keeps the state that waiting operators hand over. It commits.
2. No run is active. That state, or the state's last version, is published, and the ledger records it.
3. The stream plan starts, and its first batch takes the state in.

A crash at any point resumes from the files in the checkpoint, and doing a step again changes nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backlog_spark.common.settings import MAX_KEY_GROUPS
from backlog_spark.decide.ledger import Ledger, Run, Vehicle
from backlog_spark.decide.next_step import Facts, Step, ends_stay
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import KeyedNode, Node, SourceNode, joins_results, operator_attributes
from backlog_spark.model.plan_checks import check_tree
from backlog_spark.model.record_attributes import as_bits
from backlog_spark.operators.fold import Gathered, StayEnd
from backlog_spark.runner.backlog_ends import StayEnds
from backlog_spark.runner.query_time import Timekeeper
from backlog_spark.runner.sorted_batch import BatchFolds
from backlog_spark.runner.state_reader import StateReader
from backlog_spark.spark.batch_execution import TakenBatch
from backlog_spark.spark.batch_frames import ARROW_BYTES, empty_frame
from backlog_spark.spark.checkpoint import Checkpoint
from backlog_spark.spark.plan_builder import Plans, RawRows, last_keyed, outputs_of
from backlog_spark.spark.versions import BatchState, seeds_of
from backlog_spark.state.keys import even_labels
from backlog_spark.state.seeds import seed_prefix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.operators.fold import Fold

__all__ = ["KeyedPlan"]

_log = logging.getLogger(__name__)

_LEDGER = "plan"
# Spark pins a stream's number of partitions and switches adaptive execution off for it. A batch of backlog, which is
# most of the rows, needs neither.
_BATCH_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")
# A partition costs 0.3 s of processor time a batch, whatever is in it, so there is one for each core; the groups of a
# partition even out what each has to do.
_GROUPS_PER_CORE, _LEAST_GROUPS = 16, 32
# A worker begins with the first key group when a batch of Arrow is full. By default, 64 MB, it would wait for all that
# is handed over, unless the user has set it.
_STREAM_ARROW_BYTES = "4m"


class KeyedPlan:
    """The keyed part of one query.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    root : Node
    key_groups : int or None
        ``spark.backlog.keyGroups``; None takes the checkpoint's or chooses.
    facts : Facts
    max_firing_ms : int, optional
        How long a batch may fire timers, in milliseconds; None: until all that are due have fired.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: Checkpoint,
        root: Node,
        key_groups: int | None,
        facts: Facts,
        *,
        max_firing_ms: int | None = None,
    ) -> None:
        check_tree(root)
        self._facts = facts
        self.stay_ended = False
        self._spark = spark
        self._checkpoint = checkpoint
        self._stays = StayEnds(checkpoint)
        self._root = root
        ledger = self._read()
        self._cores = spark.sparkContext.defaultParallelism
        usual = min(MAX_KEY_GROUPS, max(_LEAST_GROUPS, _GROUPS_PER_CORE * self._cores))
        self._key_groups = key_groups or (usual if ledger is None else ledger.key_groups)
        # What a batch of backlog is executed with: the user's own, not what the stream is pinned to.
        self._of_batch = {name: str(spark.conf.get(name)) for name in _BATCH_SETTINGS}
        self._raw = RawRows()
        self._operators = [node.name for node in root.walk() if isinstance(node, KeyedNode)]
        self._reader = StateReader(spark, checkpoint, root, self._stays, self._read)
        self.folds: dict[str, Fold] = {}
        self._cleaned = False
        self._handed_over: Mapping[str, Callable[[], DataFrame]] = {}
        self.run = Run(0, Vehicle.STREAM)
        self.step = Step(self.run, 0)
        self._collects_now = False
        self._drained = False
        self._output: StructType | None = None
        self._time: Timekeeper | None = None
        if any(isinstance(node, KeyedNode) and node.is_timed for node in root.walk()):
            self._time = Timekeeper(
                spark, checkpoint, root, self._key_groups, mixed=facts.sorts_backlog, max_firing_ms=max_firing_ms
            )

    def start(
        self, step: Step, flags: Sequence[bool], finished: Sequence[bool], load: Callable[[SourceNode], DataFrame]
    ) -> tuple[DataFrame, StructType, dict[str, str]]:
        """Prepare the next run. Called while no run of the query is active.

        Parameters
        ----------
        step : Step
            What the run is, as it was decided.
        flags, finished : sequence of bool
            Whether each declared source is processing backlog, and whether it has come to its end.
        load : callable
            Loads a source.

        Returns
        -------
        (DataFrame, StructType, dict)
            The streaming DataFrame, the schema of the output, and what the session's configuration must be.

        Raises
        ------
        BacklogError
            If the query differs from its checkpoint in what cannot be changed.
        """
        assert step.run is not None, "the query has keyed operators"
        ledger, run = self.ledger(), step.run
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
            self._stays.put_out(),
            even_labels(self._key_groups, partitions),
            self._seeds_emit(book),
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
            ledger = self._publish(ledger)
        self._drained = self._drained or step.takes_state_first
        if planned is None:
            ledger = replace(ledger, puts_out_each=not self._facts.collects_backlog)
        ledger = ledger.begin(run)
        self._write(ledger)
        self.step, self.run = step, ledger.runs[-1]
        # The first stay ends as it was begun, whatever the intervals are now.
        self._collects_now = self.run.epoch == 0 and not ledger.puts_out_each
        self._cleaned = False
        self.stay_ended = False
        if self._time is not None:
            sorted_run = run.vehicle is Vehicle.SORTED
            epoch = self.run.epoch if planned == committed else -1
            self._time.begin(self.folds, flags, finished, sorted_run=sorted_run, tasks=ledger.partitions, epoch=epoch)
        conf = ledger.configuration()
        if run.vehicle is Vehicle.STREAM:
            conf[ARROW_BYTES] = str(self._spark.conf.get(ARROW_BYTES, _STREAM_ARROW_BYTES))
        return frame, plans.output, conf

    def ledger(self) -> Ledger | None:
        """What the checkpoint says of earlier runs. Called before each `start`, while no run is active.

        Raises
        ------
        BacklogError
            If the checkpoint has batches and no such file.
        SettingError
            If Spark's SQL is not ANSI.
        """
        if str(self._spark.conf.get("spark.sql.ansi.enabled")).lower() != "true":
            raise SettingError(
                "spark.sql.ansi.enabled", "false",
                "without it sums overflow silently, and differently in backlog and in stream mode.",
                "Leave it at true, Spark's default, for queries with keyed operators.",
            )  # fmt: skip
        ledger, planned = self._read(), self._checkpoint.latest_batch()
        if ledger is None and planned is not None:
            raise BacklogError(
                f"The checkpoint has batches up to {planned}, but no backlog/plan-….json that says how they were "
                "planned: it was made without keyed operators, or the file was deleted.",
                "Restore the file, or start with a new checkpointLocation.",
            )
        for name in self._operators:
            self._checkpoint.make_directory(seeds_of(name))
        return ledger

    @property
    def merges(self) -> bool:
        """Whether a later stay in backlog may run sorted, and a stream be left for it: the first operator collects."""
        # Rows that enter further down would not be folded by it.
        if joins_results(self._root):
            return False
        if self.folds:
            return self.folds[self._operators[0]].mergeable
        ledger = self._read()
        return ledger is None or bool(ledger.operators[0][1].get("mergeable"))

    @property
    def side_outputs(self) -> Mapping[str, StructType]:
        """Columns of the side outputs of the last operator; those of the others would be lost and are refused."""
        last = last_keyed(self._root)
        assert last is not None
        return self.folds[last.name].side_outputs

    def reads_several_times(self, *, several_outputs: bool) -> bool:
        """Whether the rows of a batch of the present run are read more than once.

        In the sorted vehicle that is by operators which take rows of their own, whatever is then put out.
        """
        return len(self._raw.leaves) > 1 if self.run.vehicle is Vehicle.SORTED else several_outputs

    def take(self, batch: DataFrame, query_name: str) -> TakenBatch:
        """A batch of the present run, for `output` and `written`."""
        return TakenBatch(batch, self._spark, query_name, stands_by=self.run.vehicle is Vehicle.SORTED)

    @property
    def settings_of_batch(self) -> Mapping[str, str]:
        """What the session's configuration must be while a batch of the present run is put out."""
        return self._of_batch if self.run.vehicle is Vehicle.SORTED else {}

    def has_unread_seeds(self) -> bool:
        """Whether there are seeds that a stream run may not have read yet."""
        return not self._drained and any(self._checkpoint.names_in(seeds_of(name)) for name in self._operators)

    def _seeds_emit(self, ledger: Ledger) -> bool | None:
        """Whether the keys of what is handed over are to be put out: those of later stays, and of the first if it has
        not put them out itself.

        None if of some, or if there is nothing.
        """
        put_out = ledger.puts_out_each or self._stays.put_out() is not None
        names = [name for operator in self._operators for name in self._checkpoint.names_in(seeds_of(operator))]
        emit = {not (put_out and name.startswith(seed_prefix(0))) for name in names}
        if ledger.unpublished:
            emit.add(not (put_out and ledger.last_epoch == 0))
        return emit.pop() if len(emit) == 1 else None

    def _publish(self, ledger: Ledger) -> Ledger:
        epoch = ledger.last_epoch
        ledger = ledger.begin_publication(epoch)
        self._write(ledger)
        self._drained = False
        for name in self._operators:
            BatchState(self._checkpoint, name, epoch).publish()
        ledger = ledger.publish(epoch)
        self._write(ledger)
        return ledger

    def _read(self) -> Ledger | None:
        found = self._checkpoint.newest_metadata(_LEDGER)
        return None if found is None else Ledger.from_json(found)

    def _write(self, ledger: Ledger) -> None:
        if not self._checkpoint.replace_metadata(_LEDGER, ledger.to_json()):
            raise BacklogError(
                f"Another driver has just started this query: it wrote backlog/{_LEDGER}-….json at the same moment.",
                "Run a query once at a time on one checkpointLocation.",
            )

    def output(
        self,
        taken: TakenBatch,
        batch_id: int,
        query_name: str,
        flags: Sequence[bool],
        finished: Sequence[bool],
        at_start: tuple[Sequence[bool], Sequence[bool]],
    ) -> tuple[DataFrame, dict[str, DataFrame]]:
        """What a batch of the present run gives to the sinks, the main one and those of side outputs.

        In the sorted vehicle executes it, once. ``flags`` are those of the declared sources at the batch's end, and
        ``finished`` is which of them have come to their end then; ``at_start`` is both at its start.
        """
        last = last_keyed(self._root)
        assert last is not None
        batch = taken.raw
        self._handed_over = {}
        if self.run.vehicle is Vehicle.STREAM:
            if not self._cleaned and batch_id > self.run.first_batch:
                self._clean()
            fold = self.folds[last.name]
            return outputs_of(self._root, fold, batch) if fold.side_outputs else (batch, {})

        def fold_into(name: str, operator: Fold, rows: DataFrame, sample: Callable[[], DataFrame | None]) -> DataFrame:
            state = BatchState(self._checkpoint, name, self.run.epoch)
            # Batch N - 1 has committed, so nothing before its version is needed again.
            state.drop_below(batch_id - 1)
            version = state.write(operator, rows, batch_id, sample, collects=self._collects_now)
            taken.is_read |= state.has_read
            return version

        def gather(name: str, operator: Fold, rows: DataFrame) -> Gathered | None:
            if not self._ends_stay(batch_id, flags):
                return None
            state = BatchState(self._checkpoint, name, self.run.epoch)
            found = state.gather(operator, rows, batch_id)
            taken.is_read |= state.has_read
            return found

        @functools.cache
        def end() -> StayEnd | None:
            return self._end(taken, batch_id, query_name, flags, finished)

        is_last = self._ends_stay(batch_id, flags)
        folds = BatchFolds(
            self._told(*at_start), self._raw, lambda: taken.sample, fold_into, gather, end,
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
            # Later stays collect what is to be added, in the first operator. Its keys come out, to the next operators
            # too, when stream mode has merged it.
            folds.run(next(n for n in self._root.walk() if isinstance(n, KeyedNode)), batch)
        assert self._output is not None, "set at the start of the run"
        spark = batch.sparkSession
        # Every sink has every batch: by what it has it knows that it is the query's.
        sides = {name: empty_frame(spark, schema) for name, schema in self.side_outputs.items()}
        return empty_frame(spark, self._output), sides

    def _told(self, flags: Sequence[bool], finished: Sequence[bool]) -> dict[str, Fold]:
        """The operators for a batch of the sorted vehicle: each knows whether its rows are backlog."""
        # A rule speaks for all streaming DataFrames; none of them would be read sorted if it said no.
        attributes = operator_attributes(self._root, flags, self.folds, finished, frames=self._facts.has_rules)
        return {name: fold.told(as_bits(attributes[name])) for name, fold in self.folds.items()}

    def _ends_stay(self, batch_id: int, flags: Sequence[bool]) -> bool:
        """Whether a batch of the sorted vehicle is known to be the last one of its stay."""
        return ends_stay(self._facts, in_backlog=any(flags), is_known=self._stays.of(batch_id) is not None)

    def _end(
        self, taken: TakenBatch, batch_id: int, query_name: str, flags: Sequence[bool], finished: Sequence[bool]
    ) -> StayEnd | None:
        """The end of the stay, if this is its last batch: kept before anything of it is put out."""
        found = self._stays.of(batch_id)
        if found is None:
            if not self._ends_stay(batch_id, flags):
                return None
            earlier = self._stays.newest()
            if earlier is not None and earlier != batch_id:
                raise BacklogError(
                    f"Batch {batch_id} came after batch {earlier}, at whose end no source reported backlog, and before "
                    "the query had gone over to stream mode.",
                    "Start the query again. If it happens again, a source brings rows behind the end of its backlog.",
                )
            taken.ensure_read()
            found = StayEnd(None if self._time is None else self._time.watermark_after(batch_id, query_name, finished))
            self._stays.keep(batch_id, found)
        self.stay_ended = True
        return found

    def written(
        self, taken: TakenBatch, batch_id: int, query_name: str, flags: Sequence[bool], finished: Sequence[bool]
    ) -> None:
        """A batch has reached its sinks and is about to be committed; ``flags`` and ``finished`` are at its end."""
        for name, state in self._handed_over.items():
            BatchState(self._checkpoint, name, self.run.epoch).write_handed_over(state, batch_id)
        self._handed_over = {}  # and with it the rows that it is made of
        taken.finish()
        if self._time is not None:
            self._time.take(batch_id, query_name, flags, finished, sorted_run=self.run.vehicle is Vehicle.SORTED)

    @property
    def is_firing(self) -> bool:
        """Whether the next batch goes on with what the last one left undone, as its commit was due."""
        return self._time is not None and self.run.vehicle is Vehicle.STREAM and self._time.is_firing

    @property
    def has_ended(self) -> bool:
        """Whether what the end of all sources makes due has been committed; asked in a stream run."""
        return self._time is None or self._time.has_ended

    @property
    def late_rows(self) -> int:
        """Rows that came behind the watermark and went nowhere, in this process."""
        return 0 if self._time is None else self._time.late_rows

    def close(self) -> None:
        """The query has ended."""
        if self._time is not None:
            self._time.close()

    def state(self, name: str) -> DataFrame:
        """An operator's state as rows of its output, as of the last committed batch.

        In a later stay in backlog it is what the stay has collected so far. While state is handed over this waits.

        Raises
        ------
        BacklogError
            No such operator, or the hand-over takes longer than a minute.
        """
        if name not in self.folds:
            raise BacklogError(f"There is no keyed operator {name!r}.", f"There are: {', '.join(self._operators)}.")
        return self._reader.read(name, self.folds[name], lambda: self.run)

    def _clean(self) -> None:
        """Remove what was handed over: the batch that took it in has committed."""
        self._cleaned = True
        found = self._read()
        published = -1 if found is None else found.published
        for name in self._operators:
            for epoch in range(published + 1):
                state = BatchState(self._checkpoint, name, epoch)
                state.drop()
                state.drop_seeds()
