"""Python functions of the pairs of an interval join. Their output has the pair's time.

Source: Flink's ``ProcessJoinFunction`` and ``IntervalJoinOperator``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.common.gc_tuning import keep_imports
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.watermarks import EVENT_TIME
from backlog_spark.operators.joins.interval import IntervalJoinFold
from backlog_spark.operators.joins.pairs import Output
from backlog_spark.operators.key_loop import as_batch, epoch_millis, python_values
from backlog_spark.operators.lifecycle import TaskFunction, open_function
from backlog_spark.operators.row_types import row_type
from backlog_spark.operators.sides import LEFT, RIGHT
from backlog_spark.operators.user_types import struct_of
from backlog_spark.operators.waiting_fold import Gathered, StayEnd
from backlog_spark.state.tables import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["JOIN_TIME", "JoinContext", "ProcessJoinFunction", "ProcessedIntervalJoinFold"]

JOIN_TIME: Final = "join_time"
"""Column of the output: the later of a pair's two times. It is the event time for the next operators."""


class JoinContext:
    """The times of a pair, in milliseconds since 1970. A `ProcessJoinFunction` gets the same object at every call."""

    def __init__(self) -> None:
        self.times = (0, 0)

    def get_left_timestamp(self) -> int:
        """Event time of the left row."""
        return self.times[0]

    def get_right_timestamp(self) -> int:
        """Event time of the right row."""
        return self.times[1]

    def get_timestamp(self) -> int:
        """Event time of the output: the later of both."""
        return max(self.times)


class ProcessJoinFunction(TaskFunction):
    """A function of the pairs of an interval join; subclass it.

    Attributes
    ----------
    output : str or StructType
        Columns of the output. A column ``join_time`` follows them: the later of the two rows' times.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Paid(bs.ProcessJoinFunction):
    ...     output = "order_id long, waited long"
    ...
    ...     def process_element(self, order, payment, ctx):
    ...         yield order.order_id, ctx.get_right_timestamp() - ctx.get_left_timestamp()
    """

    output: ClassVar[str | StructType] = ""

    def process_element(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any] | None:
        """Called for each pair, in any order.

        Parameters
        ----------
        left, right : named tuple
            All columns of each side's row; both may have columns of the same name.
        ctx : JoinContext

        Returns
        -------
        iterable of tuple, optional
            Rows of `output`, in its order, usually yielded.
        """
        raise BacklogError(f"{type(self).__name__} has no process_element.", "Define it.")


class ProcessedIntervalJoinFold(IntervalJoinFold):
    """An `IntervalJoinFold` that gives its pairs to a function. The state is the same, so either can replace the other.

    Parameters
    ----------
    function : ProcessJoinFunction
    schema, left_keys, right_keys, lower_ms, upper_ms, key_groups, more
        As for `IntervalJoinFold`.
    """

    def __init__(
        self,
        function: ProcessJoinFunction,
        schema: StructType,
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        lower_ms: int,
        upper_ms: int,
        key_groups: int,
        **more: Any,
    ) -> None:
        from pyspark.sql.types import StructType, TimestampType

        what = type(function).__name__
        if more.get("how", "inner") != "inner":
            raise SettingError(
                "how", more["how"], "emits rows without a match after their time is over. The operators after "
                f"{what} would treat them as late.", "Use how='inner', or leave out process.",
            )  # fmt: skip
        super().__init__(schema, left_keys, right_keys, lower_ms, upper_ms, key_groups, **more)
        declared = struct_of(function.output, f"{what}.output")
        if JOIN_TIME in [name.lower() for name in declared.names]:
            raise BacklogError(
                f"{what}.output has a column {JOIN_TIME!r}, which is added automatically.", "Remove it from the output."
            )
        self._function = function
        self._output = StructType(list(declared.fields)).add(
            JOIN_TIME, TimestampType(), metadata={EVENT_TIME: JOIN_TIME}
        )
        names = [side.schema.names for side in self.sides]
        times = [n.index(time) for n, time in zip(names, self._times, strict=True)]
        self._step = _ProcessPairs(function, (names[0], names[1]), (times[0], times[1]), arrow_schema(self._output))

    def pair_columns(self) -> list[Output]:
        # Columns with the same name on both sides are allowed here.
        from pyspark.sql.types import StructField

        found = []
        for number in (LEFT, RIGHT):
            for i, field in enumerate(self.sides[number].schema):
                value = self.value(number, field.name)
                of = (value, None) if number == LEFT else (None, value)
                found.append(Output(StructField(f"side{number}_{i}", field.dataType, True), *of))
        return found

    def unpack(self, packed: DataFrame) -> DataFrame:
        return self._processed(super().unpack(packed))

    def output_at_end(self, version: DataFrame, end: StayEnd) -> DataFrame:
        return self._processed(super().output_at_end(version, end))

    def gathered(self, rows: DataFrame, base: DataFrame | None) -> Gathered | None:
        found = super().gathered(rows, base)
        if found is None:
            return None
        pairs = found.output
        return replace(found, output=lambda given, end: self._processed(pairs(given, end)))

    def _processed(self, pairs: DataFrame) -> DataFrame:
        return map_in_arrow(pairs, self._step, self._output)


class _ProcessPairs:
    """For ``mapInArrow``: a function turns pairs into rows.

    Parameters
    ----------
    function : ProcessJoinFunction
    names : (list of str, list of str)
        The columns of each side. The sides follow each other.
    times : (int, int)
        Index of each side's event time.
    schema : pyarrow.Schema
        Schema of the output.
    """

    def __init__(
        self,
        function: ProcessJoinFunction,
        names: tuple[list[str], list[str]],
        times: tuple[int, int],
        schema: pa.Schema,
    ) -> None:
        self._function = function
        self._names = names
        self._times = times
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_imports()
        function = copy.copy(self._function)
        open_function(function)
        try:
            for batch in batches:
                if batch.num_rows:
                    yield from self._processed(function, batch)
        finally:
            function.close()

    def _processed(self, function: ProcessJoinFunction, pairs: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        width, context = len(self._names[0]), JoinContext()
        sides = pairs.columns[:width], pairs.columns[width:]
        rows = []
        for columns, names in zip(sides, self._names, strict=True):
            make = partial(tuple.__new__, row_type(tuple(names)))
            rows.append(map(make, zip(*map(python_values, columns), strict=True)))
        times = [epoch_millis(columns[at]) for columns, at in zip(sides, self._times, strict=True)]
        made: list[Any] = []
        counts = []
        for left, right, context.times in zip(*rows, zip(*map(python_values, times), strict=True), strict=True):
            before = len(made)
            result = function.process_element(left, right, context)
            if result is not None:
                made.extend(result)
            counts.append(len(made) - before)
        if not made:
            return
        declared = pa.schema(list(self._schema)[:-1])
        out = as_batch(made, declared, type(function).__name__)
        of = np.repeat(np.arange(pairs.num_rows), counts)
        exact = (columns[at].cast(pa.int64()).to_numpy() for columns, at in zip(sides, self._times, strict=True))
        when = pa.array(np.maximum(*exact)[of]).cast(self._schema.field(JOIN_TIME).type)
        yield pa.RecordBatch.from_arrays([*out.columns, when], schema=self._schema)
