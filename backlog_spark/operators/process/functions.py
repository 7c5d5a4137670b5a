"""The functions for `KeyedStream.process`: a key's rows, its state, its timers and its outputs.

Names and meaning are PyFlink's (``pyflink.datastream.functions``), with one exception. State and outputs are declared
with types, as attributes of the class: they are columns of Arrow tables and never pickled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from backlog_spark.common.familiar_names import described
from backlog_spark.errors import BacklogError
from backlog_spark.model.record_attributes import OneInputFunction
from backlog_spark.operators.aggregates.user_functions import Accumulators, AggregateFunction
from backlog_spark.operators.lifecycle import TaskFunction, open_function
from backlog_spark.operators.process.state_ttl import StateTtlConfig
from backlog_spark.operators.timers import ProcessContext, TimerService

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


__all__ = [
    "AggregatingState",
    "KeyedProcessFunction",
    "ListState",
    "MapState",
    "OutputTag",
    "ProcessContext",
    "ReducingState",
    "State",
    "TimerService",
    "ValueState",
]


def check_type(what: str, kind: Any) -> Any:
    """Refuse what is no type of Spark and no text of one."""
    from pyspark.sql.types import DataType

    if not isinstance(kind, DataType) and not (isinstance(kind, str) and kind.strip()):
        raise BacklogError(f"{what} was given {described(kind)} as a type.", "Write a type of Spark, such as 'long'.")
    return kind


class State:
    """A declared piece of state; each key has its own. Base of the five kinds."""

    def __init__(self, kind: str | DataType, *, ttl: StateTtlConfig | None = None) -> None:
        if ttl is not None and not isinstance(ttl, StateTtlConfig):
            raise BacklogError(
                f"{type(self).__name__} was given ttl={ttl!r:.100}.",
                'Pass ttl=bs.StateTtlConfig.new_builder("1 hour").build().',
            )
        self.kind = check_type(type(self).__name__, kind)
        self.ttl = ttl
        self.name = ""
        self._values: list[Any] | None = None
        self._cursor: list[int] = [0]

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _bind(self, values: list[Any], cursor: list[int]) -> None:
        """Set the keys' values and the index of the present key. Called by the operator, never by a function."""
        self._values, self._cursor = values, cursor

    def _typed(self, kind: pa.DataType) -> None:
        """Set the Arrow type of the values, before `_bind`. Called by the operator, never by a function."""

    def _get(self) -> Any:
        if self._values is None:
            raise BacklogError(
                f"State {self.name!r} was used outside of process_element, process_batch and on_timer.",
                "Outside there is no key: move the call into one of them.",
            )
        return self._values[self._cursor[0]]

    def _set(self, value: Any) -> None:
        if self._values is None:
            self._get()
        else:
            self._values[self._cursor[0]] = value

    def clear(self) -> None:
        """Remove the key's value. A key without values and timers costs nothing."""
        self._set(None)


class ValueState(State):
    """One value per key.

    Parameters
    ----------
    kind : str or DataType
        Spark type, such as ``"long"``, ``"decimal(10,2)"`` or ``"struct<a: int, b: string>"`` (a tuple or dict).
    default : optional
        Result of `value` for a key without a value. Default None.
    ttl : StateTtlConfig, optional
        How long the value lives. Default: for ever.
    """

    def __init__(self, kind: str | DataType, default: Any = None, *, ttl: StateTtlConfig | None = None) -> None:
        super().__init__(kind, ttl=ttl)
        self.default = default

    def value(self) -> Any:
        """The key's value, else the default."""
        try:
            found = self._values[self._cursor[0]]  # type: ignore[index]  # as _get, which costs a call
        except TypeError:
            found = self._get()
        return self.default if found is None else found

    def update(self, value: Any) -> None:
        """Set the key's value; None clears it."""
        try:
            self._values[self._cursor[0]] = value  # type: ignore[index]
        except TypeError:
            self._get()


class ListState(State):
    """A list of values per key.

    Parameters
    ----------
    kind : str or DataType
        Spark type of an element.
    ttl : StateTtlConfig, optional
        How long an element lives. Default: for ever.
    """

    def get(self) -> list[Any]:
        """A copy of the key's list; empty if there is none."""
        return list(self._get() or ())

    def add(self, value: Any) -> None:
        """Append a value."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append values."""
        found = self._get()
        if found is None:
            self._set(list(values))
        else:
            found.extend(values)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list."""
        self._set(list(values))


class MapState(State):
    """A map per key.

    Parameters
    ----------
    key, kind : str or DataType
        Spark types of the map's keys and values. Keys must be hashable in Python.
    ttl : StateTtlConfig, optional
        How long an entry lives. Default: for ever.
    """

    def __init__(self, key: str | DataType, kind: str | DataType, *, ttl: StateTtlConfig | None = None) -> None:
        super().__init__(kind, ttl=ttl)
        self.key = check_type("MapState", key)

    def _map(self) -> dict[Any, Any]:
        found = self._get()
        if type(found) is dict:
            return found
        # Arrow gives pairs; a dict is made when a key is first asked about it.
        made = dict(found or ())
        self._set(made)
        return made

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a map key, else the default."""
        return self._map().get(key, default)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        self._map()[key] = value

    def put_all(self, pairs: dict[Any, Any]) -> None:
        """Set several."""
        self._map().update(pairs)

    def contains(self, key: Any) -> bool:
        """Whether the map key is there."""
        return key in self._map()

    def remove(self, key: Any) -> None:
        """Remove a map key, if it is there."""
        self._map().pop(key, None)

    def keys(self) -> list[Any]:
        """The map's keys, in insertion order."""
        return list(self._map())

    def values(self) -> list[Any]:
        """The map's values."""
        return list(self._map().values())

    def items(self) -> list[tuple[Any, Any]]:
        """Keys and values."""
        return list(self._map().items())

    def is_empty(self) -> bool:
        """Whether the map is empty."""
        return not self._map()


class ReducingState(State):
    """One value per key, reduced from all added values.

    Parameters
    ----------
    kind : str or DataType
    function : callable
        Takes two values and returns one.
    ttl : StateTtlConfig, optional
        How long the value lives. Default: for ever.
    """

    def __init__(
        self, kind: str | DataType, function: Callable[[Any, Any], Any], *, ttl: StateTtlConfig | None = None
    ) -> None:
        super().__init__(kind, ttl=ttl)
        if not callable(function):
            raise BacklogError(
                f"ReducingState was given {described(function)}.", "Pass a function of two values that returns one."
            )
        self._function = function

    def get(self) -> Any:
        """The key's value; None if there is none."""
        return self._get()

    def add(self, value: Any) -> None:
        """Reduce a value into it."""
        found = self._get()
        self._set(value if found is None else self._function(found, value))


class AggregatingState(State):
    """One value per key, aggregated from all added values. Its type may differ from theirs.

    Parameters
    ----------
    function : AggregateFunction
        Its ``accumulator`` is the type of the state; ``merge`` and ``output`` are not needed.
    ttl : StateTtlConfig, optional
        How long the value lives. Default: for ever.
    """

    def __init__(self, function: AggregateFunction, *, ttl: StateTtlConfig | None = None) -> None:
        if not isinstance(function, AggregateFunction):
            raise BacklogError(
                f"AggregatingState was given {function!r:.100}.", "Pass an instance of a subclass of AggregateFunction."
            )
        super().__init__(function.accumulator, ttl=ttl)
        self._function = function
        self._accumulators: Accumulators | None = None

    def _typed(self, kind: pa.DataType) -> None:
        # The state is the task's own, so its function is too.
        function = copy.copy(self._function)
        open_function(function)
        self._accumulators = Accumulators(function, kind)

    def get(self) -> Any:
        """The function's result; None if nothing has been added."""
        found = self._get()
        if found is None or self._accumulators is None:
            return None
        return self._accumulators.result(self._accumulators.read(found))

    def add(self, value: Any) -> None:
        """Add a value to it."""
        found = self._get()
        assert self._accumulators is not None
        self._set(self._accumulators.add(value, self._accumulators.read(found)))


class OutputTag:
    """A side output: ``yield self.tag, row`` sends a row there.

    Parameters
    ----------
    schema : str or StructType
        Its columns.
    """

    def __init__(self, schema: str | StructType) -> None:
        self.schema = check_type("OutputTag", schema)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name


class KeyedProcessFunction(OneInputFunction, TaskFunction):
    """A function of the rows of one key. Subclass it; the same class serves backlog and stream.

    Within a batch, rows of a key come in the order given to `BacklogStream.key_by`; without one in any order. Keys do
    not see each other. Every task gets a copy of the instance, and its own attributes are lost when the batch ends. So
    keep lasting values in state, and let the result depend only on rows, state and timers.

    Attributes
    ----------
    output : str or StructType
        Columns of the output; set it in the subclass.
    interruptible_timers : bool
        Whether firing may stop between two timers and go on in the next batch, with
        ``spark.backlog.timers.interruptible.enabled`` (FLIP-443). Default false: all timers that a watermark makes due
        fire in one batch. If a key gets rows in between, all its due timers fire before them.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Sessions(bs.KeyedProcessFunction):
    ...     output = "user string, clicks long"
    ...     clicks = bs.ValueState("long", default=0)
    ...
    ...     def process_element(self, row, ctx):
    ...         self.clicks.update(self.clicks.value() + 1)
    ...         ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), self.clicks.value()
    ...         self.clicks.clear()
    """

    output: ClassVar[str | StructType] = ""
    interruptible_timers: ClassVar[bool] = False
    _takes_late_rows: ClassVar[bool] = False

    def process_element(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called for each row.

        Parameters
        ----------
        row : named tuple
            All columns, as Python values; timestamps have the zone UTC.
        ctx : ProcessContext

        Returns
        -------
        iterable of tuple, optional
            Rows of `output`, in its order, usually yielded; ``tag, row`` for a side output.
        """
        raise BacklogError(
            f"{type(self).__name__} has neither process_element nor process_batch.", "Define one of them."
        )

    def process_batch(self, rows: pa.RecordBatch, ctx: ProcessContext) -> Iterable[Any] | pa.RecordBatch | None:
        """The vectorised form. If defined, it is called for the rows of one key instead of `process_element`.

        Parameters
        ----------
        rows : pyarrow.RecordBatch
            Rows of one key, all columns. Many rows of a key come in several calls, in order.
        ctx : ProcessContext

        Returns
        -------
        pyarrow.RecordBatch or iterable of tuple, optional
            Rows of `output`.
        """
        raise BacklogError(f"{type(self).__name__} has no process_batch.", "Define it.")

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called when a timer fires. The timers of a key fire in the order of their times.

        At the end of input every event-time timer fires. So a timer that always registers the next one would never end.
        Check ``ctx.timer_service().current_watermark()``: it is then `backlog_spark.model.watermarks.END_OF_TIME`.

        Returns
        -------
        iterable of tuple, optional
            As from `process_element`.
        """
        raise BacklogError(
            f"A timer of {type(self).__name__} fires at {timestamp}, but it has no on_timer.", "Define on_timer."
        )

    def on_end(self, ctx: ProcessContext) -> Iterable[Any] | None:
        """Called once for each key with state, when all inputs have ended (FLIP-147).

        All event-time timers of the key have fired by then. Processing-time timers that are not due yet never fire. The
        key's state is removed afterwards. By default nothing is emitted, and the state stays.

        Returns
        -------
        iterable of tuple, optional
            As from `process_element`.
        """
        return None

    # -- what the operator reads ----------------------------------------------------------------------------

    def _declared_states(self) -> dict[str, State]:
        """The declared state by name, in the order of declaration."""
        return declared_in(self, State)

    def _declared_tags(self) -> dict[str, OutputTag]:
        """The declared side outputs by name."""
        return declared_in(self, OutputTag)

    @property
    def _is_vectorised(self) -> bool:
        """Whether it takes a key's rows as Arrow."""
        return type(self).process_batch is not KeyedProcessFunction.process_batch

    @property
    def _ends(self) -> bool:
        """Whether it defines `on_end`."""
        return type(self).on_end is not KeyedProcessFunction.on_end


def declared_in(function: object, kind: type[Any]) -> dict[str, Any]:
    """The attributes of this kind, in the order of declaration, with their names set."""
    found: dict[str, Any] = {}
    for owner in reversed(type(function).__mro__):
        found.update({name: value for name, value in vars(owner).items() if isinstance(value, kind)})
    found.update({name: value for name, value in vars(function).items() if isinstance(value, kind)})
    for name, value in found.items():
        value.name = name  # an attribute set in __init__ has no name yet
    return found
