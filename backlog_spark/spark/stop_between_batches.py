"""Stops a Spark query between two batches, or changes how long it waits for the next.

Spark's own ``stop`` interrupts the batch under way, whose work is then done again. Here the state that ``stop`` sets
first is set and the interruption left out: Spark looks at that state between batches. It also looks once within a
batch, when the plan is made and before it runs (Spark 4.2, ``MicroBatchExecution.runBatch``), and interrupts itself
then. So the state is set only where the next look is the one between two batches.

Spark fixes a query's interval when it starts. One that has more to do than a batch may take has it set to 0 for a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from py4j.clientserver import JavaClient  # type: ignore[import-untyped,unused-ignore]
from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

__all__ = [
    "end_after_batch",
    "end_at_boundary",
    "ends_by_itself",
    "found_the_end",
    "is_running",
    "set_interval_after_batch",
]

_log = logging.getLogger(__name__)

# How long a trigger takes at most from its look at the state to telling that it is active.
_TO_BE_ACTIVE_S = 0.01


def end_after_batch(query: StreamingQuery) -> None:
    """Let a query end once the batch under way is committed. For callers within the batch, such as ``foreachBatch``."""
    try:
        _state(query).set(_terminated(query))
    except (Py4JError, AttributeError) as error:
        _stop_within(query, error)


def end_at_boundary(query: StreamingQuery) -> bool:
    """Let a query end between two batches; returns at once.

    Parameters
    ----------
    query : StreamingQuery
        Running.

    Returns
    -------
    bool
        Whether it was told so. False where a batch is just being planned or committed: to be tried again soon.
        Where Spark's state cannot be reached the query is stopped, within a batch if need be.
    """
    try:
        if not isinstance(query._jsq._gateway_client, JavaClient):
            # Without pinned threads a lock cannot be held from here.
            _state(query).set(_terminated(query))
            return True
        with _no_batch_begins_or_commits(query) as held:
            if not held or _told_in_batch(query):
                return held
            if not _told_between(query):
                return False
        query.stop()  # it sleeps until its next trigger; and takes the lock when it ends
        return True
    except (Py4JError, AttributeError) as error:
        _stop_within(query, error)
        return True


def is_running(query: StreamingQuery) -> bool:
    """Whether a query that was told to end has not done so yet; Spark itself calls it inactive at once."""
    try:
        return bool(_execution(query).queryExecutionThread().isAlive())
    except (Py4JError, AttributeError):
        return not _has_terminated(query)


def _has_terminated(query: StreamingQuery) -> bool:
    """The same by Spark's public API: what awaits it returns when its thread is at its end."""
    try:
        return bool(query.awaitTermination(1))
    except StreamingQueryException:
        return True


def ends_by_itself(query: StreamingQuery) -> bool | None:
    """Whether a query's trigger lets it end without being stopped; None where Spark does not tell."""
    try:
        return str(_execution(query).trigger().toString()).startswith(("AvailableNowTrigger", "OneTimeTrigger"))
    except (Py4JError, AttributeError):
        return None


def found_the_end(query: StreamingQuery) -> bool | None:
    """Whether a query that has ended, whose trigger lets it, looked for another batch and found none to do.

    None where Spark does not tell. A query with a single batch, which is what sources get that cannot say what is
    available, looks once.
    """
    try:
        execution = _execution(query)
        executor = execution.triggerExecutor()
        # There is none before its first look.
        several = executor is None or executor.getClass().getSimpleName() == "MultiBatchExecutor"
        # Of its last look; of one that it has not begun where somebody stopped it between two batches.
        look = execution.getLatestExecutionContext()
        if look is None or (several and look.isCurrentBatchConstructed()):
            return False
        return bool(look.getDuration("triggerExecution").isDefined())
    except (Py4JError, AttributeError):
        return None


def set_interval_after_batch(query: StreamingQuery, interval_ms: int) -> None:
    """Set what a query's trigger waits for after the batch under way; for callers within it.

    Parameters
    ----------
    query : StreamingQuery
        With a processing-time trigger.
    interval_ms : int
        0 lets the next batch begin at once. Where Spark's interval cannot be reached it stays as it is.
    """
    try:
        executor = _execution(query).triggerExecutor()
        field = executor.getClass().getDeclaredField("intervalMs")
        field.setAccessible(True)
        field.setLong(executor, interval_ms)
    except (Py4JError, AttributeError) as error:
        _log.warning("Query %s waits for its next trigger, though it has more to do: %s", query.name, error)


@contextmanager
def _no_batch_begins_or_commits(query: StreamingQuery) -> Iterator[bool]:
    """Hold the lock under which Spark plans what a batch reads, and commits it; whether it was free."""
    lock = _execution(query).awaitProgressLock()
    held = bool(lock.tryLock())
    try:
        yield held
    finally:
        if held:
            lock.unlock()


def _told_in_batch(query: StreamingQuery) -> bool:
    """Tell a query whose batch is being written: it cannot commit now, and looks after the commit."""
    execution = _execution(query)
    context = execution.getLatestExecutionContext()
    if context.getDuration("queryPlanning").isEmpty() or context.getDuration("commitOffsets").isDefined():
        return False
    names = [frame.getMethodName() for frame in execution.queryExecutionThread().getStackTrace()]
    # Of what runBatch does after planning only the sink's addBatch is timed.
    if ("reportTimeTaken", "runBatch") not in pairwise(names):
        return False
    execution.state().set(_terminated(query))
    return True


def _told_between(query: StreamingQuery) -> bool:
    """Tell a query that sleeps until its next trigger."""
    if query.status["isTriggerActive"]:
        return False
    state = _state(query)
    before, terminated = state.get(), _terminated(query)
    state.set(terminated)
    time.sleep(_TO_BE_ACTIVE_S)
    if query.status["isTriggerActive"]:
        state.compareAndSet(terminated, before)  # it began just then
        return False
    return True


def _execution(query: StreamingQuery) -> Any:
    return query._jsq.streamingQuery()


def _state(query: StreamingQuery) -> Any:
    return _execution(query).state()


def _terminated(query: StreamingQuery) -> Any:
    execution = _execution(query)
    name = execution.state().get().getClass().getPackageName() + ".TERMINATED$"
    return execution.getClass().getClassLoader().loadClass(name).getField("MODULE$").get(None)


def _stop_within(query: StreamingQuery, error: Exception) -> None:
    _log.warning("Query %s is stopped within a batch, as it cannot be told to end after it: %s", query.name, error)
    query.stop()
