"""The life of a function in a task: opened before its first row, closed after its last one.

Source: PyFlink's ``pyflink.datastream.functions`` (``Function``, ``RuntimeContext``).
"""

from __future__ import annotations

import inspect
from typing import Any, Final, NoReturn

from backlog_spark.errors import BacklogError

__all__ = ["RuntimeContext", "TaskFunction", "open_function"]

# Methods of PyFlink's context for state that is named in ``open``.
_STATES: Final = {
    "get_state": 'ValueState("long")',
    "get_list_state": 'ListState("long")',
    "get_map_state": 'MapState("string", "long")',
    "get_reducing_state": 'ReducingState("long", max)',
    "get_aggregating_state": "AggregatingState(Mean())",
}


class RuntimeContext:
    """The task that a function runs in.

    Parameters
    ----------
    name : str
        The function's class.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def get_task_name(self) -> str:
        """The name of the function's class."""
        return self._name

    def get_index_of_this_subtask(self) -> int:
        """The number of the task among those of the same batch, from 0."""
        task = _task()
        return 0 if task is None else task.partitionId()

    def get_attempt_number(self) -> int:
        """How often the task has failed before."""
        task = _task()
        return 0 if task is None else task.attemptNumber()

    def __getattr__(self, name: str) -> NoReturn:
        if name in _STATES:
            raise BacklogError(
                f"{self._name} called {name} in open. State is declared in the class, because its columns must be "
                "known before a task starts.",
                f"Write it as an attribute of the class, such as total = bs.{_STATES[name]}.",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class TaskFunction:
    """Base of all user functions."""

    def open(self, ctx: RuntimeContext) -> None:
        """Called once in each task, on the task's own copy, before anything else. For objects that cannot be pickled.

        A batch has several tasks, and a repeated task opens its function again.

        Parameters
        ----------
        ctx : RuntimeContext
        """

    def close(self) -> None:
        """Called once when the task ends. A task that fails or is killed may end without it."""


def open_function(function: Any) -> None:
    """Open a task's own copy of a function; ``open`` may have no parameter."""
    if inspect.signature(function.open).parameters:
        function.open(RuntimeContext(type(function).__name__))
    else:
        function.open()


def _task() -> Any:
    from pyspark import TaskContext

    return TaskContext.get()
