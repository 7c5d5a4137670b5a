"""The base classes of user functions over the rows of a window, for one stream and for two.

Source: PyFlink's ``pyflink.datastream.functions`` and Flink's ``CoGroupFunction``. Here their output is declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from backlog_spark.errors import BacklogError
from backlog_spark.operators.lifecycle import TaskFunction
from backlog_spark.operators.row_types import row_type

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "CoGroupFunction",
    "Groups",
    "LazyRows",
    "ProcessWindowFunction",
    "Rows",
    "TimeWindow",
    "WindowContext",
    "WindowFunction",
]


@dataclass(frozen=True)
class TimeWindow:
    """A window: milliseconds since 1970, from ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond of the window."""
        return self.end - 1


@dataclass(frozen=True)
class Groups:
    """The rows of many keys and windows, for vectorised functions.

    Parameters
    ----------
    keys : pyarrow.RecordBatch
        The key columns, one row per group.
    starts, ends : numpy.ndarray of int64
        The window of each group.
    sides : tuple of (pyarrow.RecordBatch, numpy.ndarray)
        For each input its rows, and the index at which each group begins, with one more index for the end. Rows of a
        group are together, in the order given to ``key_by``.
    """

    keys: pa.RecordBatch
    starts: np.ndarray
    ends: np.ndarray
    sides: tuple[tuple[pa.RecordBatch, np.ndarray], ...]

    @property
    def rows(self) -> tuple[pa.RecordBatch, np.ndarray]:
        """Rows and bounds of the only input, or of the left one."""
        return self.sides[0]


class LazyRows:
    """The rows of a batch as named tuples, made at the first access. Of a large batch a part is made at a time."""

    PART = 1 << 16
    """Rows in a part."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._made: list[Any] | None = None
        self._parts: list[tuple[int, list[Any]]] = []
        self.is_large = batch.num_rows > 2 * self.PART

    def rows(self) -> list[Any]:
        """All of them."""
        if self._made is None:
            self._made = self._named(self._batch)
        return self._made

    def part(self, number: int) -> list[Any]:
        """Rows from ``number * PART`` on. The last two parts are kept: short windows that cross a bound need both."""
        for known, rows in self._parts:
            if known == number:
                return rows
        made = self._named(self._batch.slice(number * self.PART, self.PART))
        self._parts = [*self._parts[-1:], (number, made)]
        return made

    @staticmethod
    def _named(batch: pa.RecordBatch) -> list[Any]:
        from backlog_spark.operators.key_loop import python_values

        make = partial(tuple.__new__, row_type(tuple(batch.schema.names)))
        return list(map(make, zip(*(python_values(c) for c in batch.columns), strict=True)))


class Rows(Sequence[Any]):
    """Rows of one window: named tuples of all columns with Python values; timestamps have the zone UTC.

    The first access makes them, so ``len`` alone costs almost nothing. Of many rows only a part is in memory as Python
    objects, so iterate over them instead of copying them into a list.
    """

    __slots__ = ("_end", "_made", "_start")

    def __init__(self, made: LazyRows, start: int, end: int) -> None:
        self._made, self._start, self._end = made, start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, index: Any) -> Any:
        places = range(self._start, self._end)[index]
        if isinstance(places, int):
            if not self._made.is_large:
                return self._made.rows()[places]
            part, place = divmod(places, self._made.PART)
            return self._made.part(part)[place]
        if self._made.is_large:
            return [self[place - self._start] for place in places]
        rows = self._made.rows()
        return [rows[place] for place in places]

    def __iter__(self) -> Iterator[Any]:
        if self._made.is_large:
            return self._parts()
        return iter(self._made.rows()[self._start : self._end])

    def _parts(self) -> Iterator[Any]:
        size = self._made.PART
        for number in range(self._start // size, -(-self._end // size)):
            yield from self._made.part(number)[max(0, self._start - number * size) : self._end - number * size]

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Rows) else other)

    def __repr__(self) -> str:
        return repr(list(self))

    __hash__ = None  # type: ignore[assignment]


class _Function(TaskFunction):
    """Base of the functions of windows.

    Attributes
    ----------
    output : str or StructType
        Columns of the output; set it in the subclass. A timestamp column ``window_time`` is the event time of the
        output.
    """

    output: ClassVar[str | StructType] = ""

    def process_groups(self, groups: Groups) -> pa.RecordBatch:
        """The vectorised form. If defined, it is called for many windows at once.

        Returns
        -------
        pyarrow.RecordBatch
            Rows of `output`.
        """
        raise BacklogError(f"{type(self).__name__} has no process_groups.", "Define it.")

    @property
    def _is_vectorised(self) -> bool:
        """Whether it takes many windows at once."""
        return type(self).process_groups is not _Function.process_groups


class WindowFunction(_Function):
    """A function of the rows of one window; subclass it. Called once for each window that is emitted."""

    def apply(self, key: Any, window: TimeWindow, rows: Rows) -> Iterable[Any]:
        """Called for each window.

        Parameters
        ----------
        key : Any
            The key's value, or a tuple of them if the stream is keyed by several columns.
        window : TimeWindow
        rows : Rows
            A sequence of named tuples.

        Returns
        -------
        iterable of tuple
            Rows of `output`, in its order, usually yielded.
        """
        raise BacklogError(f"{type(self).__name__} has neither apply nor process_groups.", "Define one of them.")


@dataclass(frozen=True)
class WindowContext:
    """The window and the watermark of a `ProcessWindowFunction`'s call."""

    _window: TimeWindow
    _watermark: int

    def window(self) -> TimeWindow:
        """The window."""
        return self._window

    def current_watermark(self) -> int:
        """The watermark, in milliseconds since 1970."""
        return self._watermark


class ProcessWindowFunction(_Function):
    """Like `WindowFunction`, with a context."""

    def process(self, key: Any, context: WindowContext, rows: Rows) -> Iterable[Any]:
        """Called for each window; see `WindowFunction.apply`."""
        raise BacklogError(f"{type(self).__name__} has neither process nor process_groups.", "Define one of them.")


class CoGroupFunction(_Function):
    """A function of the rows of two streams in one window of one key; subclass it.

    Examples
    --------
    >>> import backlog_spark as bs
    >>> class Differences(bs.CoGroupFunction):
    ...     output = "orders long, payments long"
    ...
    ...     def co_group(self, left, right):
    ...         if len(left) != len(right):
    ...             yield len(left), len(right)
    """

    def co_group(self, left: Rows, right: Rows) -> Iterable[Any]:
        """Called for each window and key in which either stream has a row.

        Parameters
        ----------
        left, right : Rows
            Sequences of named tuples. One of them may be empty.

        Returns
        -------
        iterable of tuple
            Rows of `output`, in its order, usually yielded.
        """
        raise BacklogError(f"{type(self).__name__} has neither co_group nor process_groups.", "Define one of them.")
