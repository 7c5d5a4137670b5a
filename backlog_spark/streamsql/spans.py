"""Translates windows to assigners: Flink's table functions, and Spark's functions in GROUP BY."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlglot import exp

from backlog_spark.common.sql_dialect import TABLE_ARGUMENT
from backlog_spark.model.watermarks import event_time_of
from backlog_spark.operators.windows.assigners import (
    CumulativeEventTimeWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from backlog_spark.operators.windows.columns import WINDOW_COLUMNS
from backlog_spark.streamsql.refusals import Statement
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.span import Span
from backlog_spark.streamsql.times import milliseconds
from backlog_spark.streamsql.translation import Translation

if TYPE_CHECKING:
    from backlog_spark.api.streams import BacklogStream

__all__ = ["SPARK_WINDOWS", "is_window_function", "span_of_call", "window_table"]

SPARK_WINDOWS: Final = ("window", "session_window")


# Arguments of Flink's functions after DATA and TIMECOL, in order: required ones, then optional ones.
_ARGUMENTS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "TUMBLE": (("SIZE",), ("OFFSET",)),
    "HOP": (("SLIDE", "SIZE"), ("OFFSET",)),
    "CUMULATE": (("STEP", "SIZE"), ("OFFSET",)),
    "SESSION": (("GAP",), ()),
}
_FORMS: Final = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(at), size)",
    "HOP": "HOP(TABLE t, DESCRIPTOR(at), slide, size)",
    "CUMULATE": "CUMULATE(TABLE t, DESCRIPTOR(at), step, size)",
    "SESSION": "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(at), gap)",
}


def is_window_function(table: exp.Table) -> exp.Anonymous | None:
    """The window function that a FROM item calls, with or without ``TABLE(…)``; None if there is none."""
    call = table.this
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    return call if isinstance(call, exp.Anonymous) and call.name.upper() in _ARGUMENTS else None


def window_table(tr: Translation, call: exp.Anonymous, table_of: Callable[[exp.Table], Rows]) -> Rows:
    """The rows of a window table function. They must be grouped by ``window_start`` and ``window_end``."""
    name = call.name.upper()
    given = _arguments(tr.statement, call, name)
    table = given["DATA"]
    if not isinstance(table, exp.Table):
        raise tr.statement.refused(call, f"{name}: its first argument is not a table.", f"Write {_FORMS[name]}.")
    rows = table_of(table)
    by_clock = _check_time(tr, rows, given["TIMECOL"], name)
    lengths = {k: timedelta(milliseconds=milliseconds(tr.statement, v)) for k, v in given.items() if k not in _TABLE}
    written = table.meta.get(TABLE_ARGUMENT)
    if written is not None and name != "SESSION":
        raise tr.statement.refused(written[0], f"{name} has no PARTITION BY.", "Put the columns into GROUP BY.")
    partition = tuple(rows.translated(tr.statement, each) for each in written or ()) if name == "SESSION" else None
    taken = [column.name for column in rows.columns if column.name.lower() in WINDOW_COLUMNS]
    if taken:
        raise tr.statement.refused(
            table, f"{name}: the table has a column {taken[0]!r} already.", "Rename it in a subquery."
        )
    with tr.statement.at(call):
        if by_clock and name not in _BY_CLOCK:
            raise tr.statement.refused(call, f"{name} by processing time.", "Use TUMBLE, HOP or SESSION.")
        span = Span(_assigner(name, lengths, by_clock=by_clock), call, partition)
    marked = tuple(Visible("", name, window_column(name)) for name in WINDOW_COLUMNS)
    return Rows(rows.stream, (*rows.columns, *marked), rows.pseudo, span)


_TABLE: Final = ("DATA", "TIMECOL")


def window_column(name: str) -> exp.Column:
    """A column of the window. A mark distinguishes it from the table's columns."""
    made = column_of(name)
    made.meta["window"] = True
    return made


def _arguments(statement: Statement, call: exp.Anonymous, name: str) -> dict[str, exp.Expr]:
    needed, optional = _ARGUMENTS[name]
    names = [*_TABLE, *needed, *optional]
    found: dict[str, exp.Expr] = {}
    for position, argument in enumerate(call.expressions):
        key, value = (
            (argument.name.upper(), argument.expression)
            if isinstance(argument, exp.Kwarg)
            else (names[position] if position < len(names) else "", argument)
        )
        if key not in names or key in found:
            raise statement.refused(
                argument, f"{name}: the argument {text_of(argument)} is too many.", f"Write {_FORMS[name]}."
            )
        found[key] = value
    missing = [key for key in (*_TABLE, *needed) if key not in found]
    if missing:
        raise statement.refused(call, f"{name}: {', '.join(missing)} is missing.", f"Write {_FORMS[name]}.")
    return found


_BY_CLOCK: Final = ("TUMBLE", "HOP", "SESSION")


def _assigner(name: str, lengths: Mapping[str, timedelta], *, by_clock: bool) -> WindowAssigner:
    offset = lengths.get("OFFSET", timedelta(0))
    if name == "TUMBLE":
        tumbling = TumblingProcessingTimeWindows if by_clock else TumblingEventTimeWindows
        return tumbling.of(lengths["SIZE"], offset)
    if name == "HOP":
        sliding = SlidingProcessingTimeWindows if by_clock else SlidingEventTimeWindows
        return sliding.of(lengths["SIZE"], lengths["SLIDE"], offset)
    if name == "CUMULATE":
        return CumulativeEventTimeWindows.of(lengths["SIZE"], lengths["STEP"], offset)
    return (ProcessingTimeSessionWindows if by_clock else EventTimeSessionWindows).with_gap(lengths["GAP"])


def _check_time(tr: Translation, rows: Rows, descriptor: exp.Expr, name: str) -> bool:
    """Whether windows go by the clock. Refuses a column that is no time."""
    inner = descriptor.unnest()
    is_one = isinstance(inner, exp.Anonymous) and inner.name.upper() == "DESCRIPTOR" and len(inner.expressions) == 1
    column = inner.expressions[0] if is_one else None
    if not isinstance(column, exp.Column):
        raise tr.statement.refused(
            descriptor, f"{name}: {text_of(descriptor)} is not a DESCRIPTOR of a column.", f"Write {_FORMS[name]}."
        )
    if tr.is_processing_time(rows, column):
        return True
    check_event_time(tr, rows, column, name)
    return False


def check_event_time(tr: Translation, rows: Rows, column: exp.Expr, what: str) -> None:
    """Refuse a column that is not the stream's event time.

    Raises
    ------
    SqlError
    """
    time = event_time(tr, rows.stream)
    problem = f"{what}: {text_of(column)} is not the stream's event time"
    if time is None:
        raise tr.statement.refused(
            column,
            f"{problem}: the stream has none.",
            f"Give bs.sql a stream with .with_watermark({text_of(column)!r}, delay).",
        )
    if text_of(rows.translated(tr.statement, column)) != text_of(column_of(time)):
        known = [each.name for each in rows.columns if each.column.name == time] or [time]
        raise tr.statement.refused(column, f"{problem}. That is {known[0]!r}.", f"Write {known[0]}.")


def event_time(tr: Translation, stream: BacklogStream) -> str | None:
    """The column with a stream's event time."""
    return event_time_of(tr.schema(stream, None))


def span_of_call(tr: Translation, rows: Rows, call: exp.Expr) -> Span | None:
    """The windows of ``window(at, …)`` or ``session_window(at, gap)`` in GROUP BY; None for other expressions."""
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in SPARK_WINDOWS:
        return None
    name, (time, *rest) = call.name.lower(), call.expressions or [None]
    most = 3 if name == "window" else 1
    if time is None or not 1 <= len(rest) <= most:
        form = "window(at, size[, slide[, offset]])" if name == "window" else "session_window(at, gap)"
        raise tr.statement.refused(call, f"{name}: {len(call.expressions)} arguments.", f"Write {form}.")
    by_clock = tr.is_processing_time(rows, time)
    if not by_clock:
        check_event_time(tr, rows, time, name)
    first, *more = [timedelta(milliseconds=milliseconds(tr.statement, each)) for each in rest]
    with tr.statement.at(call):
        if name == "session_window":
            return Span(_assigner("SESSION", {"GAP": first}, by_clock=by_clock), call)
        slide, offset = [*more, *[first, timedelta(0)][len(more) :]]
        lengths = {"SIZE": first, "SLIDE": slide, "OFFSET": offset}
        return Span(_assigner("TUMBLE" if slide == first else "HOP", lengths, by_clock=by_clock), call)
