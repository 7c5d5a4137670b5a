"""A query's outputs: the main one and the side outputs, each with one or more targets."""

from __future__ import annotations

import functools
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from backlog_spark.common.failure_causes import first_line, next_step, was_interrupted
from backlog_spark.common.fault_points import reached
from backlog_spark.decide.query_record import same_place
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext, Written
from backlog_spark.sinks.rejected_rows import REJECTED_ROWS, accepted_rows, named, rejected_rows, rejected_schema
from backlog_spark.spark.plan.batch_frames import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["DIRECTORY", "Outputs", "app_id_of", "by_name", "directory_of"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
DIRECTORY = "backlog/sink"
"""Of a query's sinks, in its checkpoint."""
_PLACES = ("path", "place", "table", "topic")  # keys of `Sink.described` that say where a sink writes


class Outputs:
    """The sinks of one query.

    Parameters
    ----------
    sinks : mapping of str to sequence of Sink
        The main output's targets under ``""``, the side outputs' targets by name. Each target has its own transactions,
        so a batch that failed between two targets is only written to those that lack it.
    """

    def __init__(self, sinks: Mapping[str, Sequence[Sink]]) -> None:
        every = ((output, Target(sink.for_output(), output)) for output, given in sinks.items() for sink in given)
        self._targets = by_name(every)
        self.main = tuple(target.sink for target in self._targets.values() if not target.output)
        self._only_new = set[str]()  # targets that get each key once in backlog

    @property
    def several(self) -> bool:
        """Whether a batch is read more than once."""
        return sum(target.output != REJECTED_ROWS for target in self._targets.values()) > 1

    def described(self) -> dict[str, dict[str, Any]]:
        """`Sink.described` of each target, by its name; without that of rejected rows, which may come and go."""
        return {
            name: target.sink.described() for name, target in self._targets.items() if target.output != REJECTED_ROWS
        }

    def targets(self) -> list[str]:
        """Where the outputs write, for people: paths, or the sinks' classes."""
        return [_place(target.sink) for target in self._targets.values()]

    def has_rows_of(self, name: str, spark: SparkSession, txn_app_id: str) -> bool:
        """`Sink.has_rows_of` of a target."""
        return self._targets[name].sink.has_rows_of(spark, app_id_of(txn_app_id, name))

    def open(
        self,
        context: SinkContext,
        side_outputs: Mapping[str, StructType],
        is_unique: Callable[[Collection[str]], bool],
    ) -> None:
        """Open each sink, as `Sink.open` says.

        Parameters
        ----------
        context : SinkContext
            The main output's context.
        side_outputs : mapping of str to StructType
            Columns of the existing side outputs.
        is_unique : callable
            `SinkContext.key_is_unique_in_backlog` of the main output for a sink with these keys.

        Raises
        ------
        SettingError
            For a sink of a side output that does not exist, and for a place that two targets have.
        BacklogError
            For a side output without a sink: its rows would be lost.
        """
        outputs = {target.output for target in self._targets.values()}
        if REJECTED_ROWS in outputs and not any(sink.divides_rows for sink in self.main):
            raise SettingError(
                "side_output", REJECTED_ROWS, f"{type(self.main[0]).__name__} gives no rows to it.",
                "Leave this output out. docs/sinks.md#rejected-rows lists the sinks that do.",
            )  # fmt: skip
        if REJECTED_ROWS in side_outputs:
            raise SettingError(
                "side_output", REJECTED_ROWS, "is the output for rows that a target rejects.", "Choose another name."
            )
        if REJECTED_ROWS in outputs:
            side_outputs = {**side_outputs, REJECTED_ROWS: rejected_schema(context.schema)}
        for name in outputs:
            if name and name not in side_outputs:
                raise SettingError(
                    "side_output", name, "the last operator of the stream has no such side output.",
                    f"It has {', '.join(side_outputs) or 'none'}.",
                )  # fmt: skip
        for name in side_outputs:
            if name not in outputs:
                raise BacklogError(
                    f"The side output {name!r} has no sink.", f"Add .to(sink, side_output={name!r}) to the writer."
                )
        every = [target.sink.described() for target in self._targets.values()]
        _refuse_one_place(each.get("path") or each.get("place") for each in every)
        # The main output comes last: what a side output refuses is then known before anything of it is created.
        for name, (sink, output) in sorted(self._targets.items(), key=lambda item: not item[1].output):
            own = replace(
                context,
                txn_app_id=app_id_of(context.txn_app_id, name),
                directory=context.directory and directory_of(context.directory, name),
                key_is_unique_in_backlog=not output and is_unique(getattr(sink, "keys", ())),
            )
            if output:
                own = replace(own, schema=side_outputs[output], rows_are_results=False, snapshot_of=())
            if output == REJECTED_ROWS:  # it gets the few batches with such rows
                own = replace(own, newest_committed=None, has_gaps=True)
            if own.key_is_unique_in_backlog:
                self._only_new.add(name)
            with self._named(sink):
                sink.open(own)

        # Those that a catalog knows by name have a path now.
        _refuse_one_place(getattr(target.sink, "path", None) for target in self._targets.values())

    def write(self, rows: DataFrame, sides: Mapping[str, DataFrame], batch: BatchInfo) -> None:
        """Write a batch to each target. Each one that already has the batch skips it."""
        with self._divided(rows, batch) as accepted:
            for name, (sink, output) in sorted(self._targets.items(), key=lambda item: bool(item[1].output)):
                if output and output not in sides:
                    continue
                given = sides[output] if output else accepted.get(name, rows)
                with self._named(sink), named(sink, _place(sink), given):
                    reached("sink.write")
                    sink.write(given, batch)
                    reached("sink.written")

    @contextmanager
    def _divided(self, rows: DataFrame, batch: BatchInfo) -> Iterator[Mapping[str, DataFrame]]:
        """The rows that a target accepts, by its name, if it rejects some. These are in the side output by then."""
        rejecting = {name: target.sink for name, target in self._targets.items() if not target.output}
        into = [target.sink for target in self._targets.values() if target.output == REJECTED_ROWS]
        with kept(rows) if into else nullcontext(rows) as given:
            found = {name: sink.with_violations(given) for name, sink in rejecting.items()} if into else {}
            marked = {name: each for name, each in found.items() if each is not None}
            rejected = [rejected_rows(each, _place(rejecting[name])) for name, each in marked.items()]
            if all(each.isEmpty() for each in rejected):
                yield dict.fromkeys(rejecting, given)
                return
            for sink in into:
                with self._named(sink):
                    sink.write(functools.reduce(type(rows).unionByName, rejected), batch)
            only_new = batch.is_backlog and not batch.has_changes and not batch.has_table_events
            accepted = dict.fromkeys(rejecting, given)
            for name, each in marked.items():
                changes = None if only_new and name in self._only_new else rejecting[name].change_type
                accepted[name] = accepted_rows(each, changes)
            yield accepted

    def close(self) -> None:
        """Close each sink."""
        for target in self._targets.values():
            try:
                target.sink.close()
            except Exception as error:
                _log.warning("%s could not be closed: %s", _place(target.sink), first_line(error))

    @property
    def written(self) -> Written | None:
        """How the main output's newest batch was written; with several targets, into the one that took longest."""
        found = [sink.written for sink in self.main if sink.written is not None]
        return max(found, key=lambda each: each.seconds, default=None)

    @contextmanager
    def _named(self, sink: Sink) -> Iterator[None]:
        """Say which of several targets has failed, if the error does not."""
        try:
            yield
        except Exception as error:
            place, is_ours = _place(sink), isinstance(error, BacklogError)
            if not self.several or was_interrupted(error) or (is_ours and place in str(error)):
                raise
            if isinstance(error, BacklogError):
                error.problem = f"Target {place}: {error.problem}"
                raise
            raise BacklogError(f"Target {place}: {first_line(error)}", next_step(str(error))) from error


class Target(NamedTuple):
    """A sink, and the side output that it gets; "" for the main output."""

    sink: Sink
    output: str


def _refuse_one_place(places: Iterable[str | None]) -> None:
    for one, other in itertools.combinations(filter(None, places), 2):
        if same_place(one, other):
            raise SettingError("path", one, "is the place of two targets of the query.", "Give each its own.")


def _place(sink: Sink) -> str:
    described = sink.described()
    return str(next((described[key] for key in _PLACES if described.get(key)), type(sink).__name__))


def by_name(targets: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """Targets by the names that the checkpoint has, in their order. Given with their side outputs, or ``""``."""
    found: dict[str, _T] = {}
    counts = Counter[str]()
    for output, target in targets:
        counts[output] += 1
        found[output if counts[output] == 1 else f"{output}#{counts[output]}"] = target
    return found


def app_id_of(txn_app_id: str, name: str) -> str:
    """The id of a target's transactions. ``name``: as `by_name` has it."""
    return f"{txn_app_id}-{name}" if name else txn_app_id


def directory_of(directory: str, name: str) -> str:
    """The directory of a target in the checkpoint. ``directory``: the query's for its sinks. ``name``: as `by_name`."""
    return f"{directory}{name.replace('#', '-')}"
