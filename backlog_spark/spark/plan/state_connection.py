"""Lets Spark close its end of the connection between a task's Python worker and its state.

The state server of a task ends when the worker says that it is done, or hangs up. In both cases Spark 4.2.0 and older
leave their end of the connection open until the JVM ends (SPARK-58932): one file descriptor for each task of each
batch, some thousands an hour. But a server that still waits for a request when its task ends is interrupted, and an
interrupt closes the connection. So the worker neither says that it is done nor hangs up before its next task.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming import StatefulProcessorHandle

from backlog_spark.spark.jvm.internals import is_off

__all__ = ["leave_waiting"]

# That of this worker's newest task.
_held: list[Any] = []


def leave_waiting(handle: StatefulProcessorHandle | None) -> None:
    """Called at the end of a task, when no more state is read or written. Does nothing in a Spark with other names.

    ``handle`` is None if the task has failed before it had one.
    """
    client = getattr(handle, "_statefulProcessorApiClient", None)
    state = getattr(client, "handle_state", None)
    # Spark also calls processors once on the driver, which ends that server in another way.
    if client is None or getattr(state, "name", "") != "TIMER_PROCESSED" or is_off():
        return
    tell = client.set_handle_state

    def all_but_the_last(state: Any) -> None:
        if state.name != "CLOSED":
            tell(state)

    client.set_handle_state = all_but_the_last
    _held[:] = [client]
