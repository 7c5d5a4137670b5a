"""OVER, as `KeyedStream.over`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlglot import exp

from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import CHANGE_TYPE
from backlog_spark.operators.over.select_list import parse_over
from backlog_spark.streamsql.items import Item
from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.spans import event_time
from backlog_spark.streamsql.times import milliseconds
from backlog_spark.streamsql.translation import Translation

__all__ = ["has_over", "with_over"]

_ALL: Final = "__all"
# Functions that see all rows before the current one, with any frame.
_FRAMELESS: Final = (exp.RowNumber, exp.Lag)
_FORM: Final = "OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)"


def has_over(items: Sequence[Item]) -> bool:
    """Whether a SELECT list has an OVER."""
    return any(item.expression.find(exp.Window) for item in items)


@dataclass(frozen=True)
class _Spec:
    """A translated window: texts of its partition and of the column that orders ties, and the frame for `over`."""

    partition: tuple[str, ...]
    tie: str | None
    rows: int | str | None
    span: timedelta | str | None


def with_over(tr: Translation, select: exp.Select, rows: Rows, items: Sequence[Item]) -> Rows:
    """The rows of a SELECT whose list has functions with OVER.

    Raises
    ------
    SqlError
    """
    rows = tr.as_data(rows, [item.expression for item in items], select)
    named = {each.name.lower(): each for each in select.args.get("windows") or []}
    calls = [(call, item) for item in items for call in item.expression.find_all(exp.Window)]
    specs: list[_Spec] = []
    for call, _ in calls:
        specs.append(_spec(tr, rows, call, named))
    framed = [s for s, (c, _) in zip(specs, calls, strict=True) if not isinstance(c.this, _FRAMELESS)] or specs[:1]
    spec = framed[0]
    for each, (call, _) in zip(specs, calls, strict=True):
        frame_matters = not isinstance(call.this, _FRAMELESS)
        same_frame = (each.rows, each.span) == (spec.rows, spec.span)
        if (each.partition, each.tie) != (spec.partition, spec.tie) or (frame_matters and not same_frame):
            raise tr.statement.refused(
                call,
                "the windows of one SELECT differ.",
                "Use one window for all, or put the others into an outer query.",
            )
    made: dict[str, exp.Expr] = {}
    keys = [_column(tr, made, rows.translated(tr.statement, each), "key") for each in _partition(calls[0][0], named)]
    if not keys:
        keys = [tr.unseen(_ALL)]
        made[keys[0]] = exp.Literal.number(0)
    functions: dict[str, str] = {}
    results: dict[str, str] = {}
    taken = {name.lower() for name in tr.schema(rows.stream, None).names}
    parts = [(item.translated(tr, rows), item) for item in items]
    for expression, item in parts:
        for call in expression.find_all(exp.Window):
            text = text_of(call)
            if text in results:
                continue
            own = item.named(tr) if call is expression.unnest() else ""
            name = own if own and own.lower() not in taken else tr.hidden("over")
            taken.add(name.lower())
            results[text] = name
            function = _function(tr, made, call.this)
            with tr.statement.at(call):
                parse_over(f"{function} AS {quoted(name)}")
            functions[name] = function
    prepared = tr.with_columns(rows, made, calls[0][0])
    texts = [f"{function} AS {quoted(name)}" for name, function in functions.items()]
    with tr.statement.at(calls[0][0]):
        keyed = prepared.stream.key_by(*keys, order=spec.tie)
        operator = tr.operator(*keys, "over")
        stream = keyed.over(*texts, rows=spec.rows, range=spec.span, name=operator)
    names = tr.schema(stream, calls[0][0], "OVER").names
    pseudo = tuple(name for name in rows.pseudo if name in names) if CHANGE_TYPE in names else ()
    result = Rows(stream, tuple(Visible("", n, column_of(n), hidden=n in pseudo) for n in names), pseudo)
    replaced = [(item.named(tr), _replaced(each, results), item.expression) for each, item in parts]
    return tr.projected(result, replaced)


def _replaced(expression: exp.Expr, results: dict[str, str]) -> exp.Expr:
    def of(node: exp.Expr) -> exp.Expr:
        return column_of(results[text_of(node)]) if isinstance(node, exp.Window) else node

    return expression.transform(of)


def _column(tr: Translation, made: dict[str, exp.Expr], translated: exp.Expr, what: str) -> str:
    """The column of an expression. Adds a column if the expression is not one."""
    inner = translated.unnest()
    if isinstance(inner, exp.Column):
        return str(inner.name)
    for name, expression in made.items():
        if text_of(expression) == text_of(inner):
            return name
    name = tr.hidden(what)
    made[name] = inner
    return name


def _function(tr: Translation, made: dict[str, exp.Expr], call: exp.Expr) -> str:
    """A translated call whose argument is a column, as `over` needs it. `over` refuses unsupported functions."""
    if isinstance(call, exp.RowNumber) or isinstance(call.this, exp.Star | exp.Distinct):
        return text_of(call)
    if isinstance(call, exp.AggFunc) and isinstance(call.this, exp.Expr):
        changed = call.copy()
        changed.set("this", column_of(_column(tr, made, call.this, "argument")))
        return text_of(changed)
    return text_of(call)


def _base(tr: Translation, call: exp.Window, named: dict[str, exp.Window]) -> exp.Window | None:
    """The named window that a window refers to."""
    reference = call.args.get("alias")
    if reference is None:
        return None
    if reference.name.lower() not in named:
        raise tr.statement.refused(
            reference, f"there is no window {reference.name!r}.", f"Define it: WINDOW {reference.name} AS (…)."
        )
    return named[reference.name.lower()]


def _partition(call: exp.Window, named: dict[str, exp.Window]) -> list[exp.Expr]:
    reference = call.args.get("alias")
    base = named[reference.name.lower()] if reference is not None else None
    found: list[exp.Expr] = call.args.get("partition_by") or (base.args.get("partition_by") if base else None) or []
    return found


def _spec(tr: Translation, rows: Rows, call: exp.Window, named: dict[str, exp.Window]) -> _Spec:
    tr.statement.only(call, "this", "partition_by", "order", "spec", "alias", "over")
    base = _base(tr, call, named)
    if base is not None:
        tr.statement.only(base, "this", "partition_by", "order", "spec")
    order = call.args.get("order") or (base.args.get("order") if base else None)
    spec = call.args.get("spec") or (base.args.get("spec") if base else None)
    partition = tuple(text_of(rows.translated(tr.statement, each)) for each in _partition(call, named))
    tie = _tie(tr, rows, call, order)
    if isinstance(call.this, _FRAMELESS):
        if spec is not None:
            raise tr.statement.refused(
                spec if spec.find(exp.Literal) else call,
                f"{text_of(call.this)} always sees all rows before, so it takes no frame.",
                "Leave out ROWS or RANGE.",
            )
        return _Spec(partition, tie, None, None)
    if spec is None:
        return _ranged(tr, call, _Spec(partition, tie, None, "unbounded"))
    tr.statement.only(spec, "kind", "start", "start_side", "end", "end_side")
    end, start = spec.args.get("end"), spec.args.get("start")
    if end not in (None, "CURRENT ROW") or spec.args.get("end_side"):
        raise tr.statement.refused(call, "a frame must end with the current row.", f"Write {_FORM}.")
    if spec.args.get("start_side") not in (None, "PRECEDING"):
        raise tr.statement.refused(call, "a frame must begin before the current row.", f"Write {_FORM}.")
    kind = str(spec.args.get("kind")).upper()
    if kind == "ROWS":
        return _Spec(partition, tie, _rows(tr, call, start), None)
    if kind == "RANGE":
        length: timedelta | str = "unbounded"
        if start == "CURRENT ROW":
            length = timedelta(0)
        elif start != "UNBOUNDED":
            length = timedelta(milliseconds=milliseconds(tr.statement, start))
        return _ranged(tr, call, _Spec(partition, tie, None, length))
    raise tr.statement.refused(call, f"a frame of {kind} is not supported.", "Write ROWS or RANGE.")


def _rows(tr: Translation, call: exp.Window, start: exp.Expr | str | None) -> int | str:
    if start == "CURRENT ROW":
        return 0
    if start == "UNBOUNDED":
        return "unbounded"
    if isinstance(start, exp.Literal) and not start.is_string and str(start.this).isdigit():
        return int(start.this)
    raise tr.statement.refused(call, "the frame does not begin at a number of rows.", f"Write {_FORM}.")


def _ranged(tr: Translation, call: exp.Window, spec: _Spec) -> _Spec:
    if spec.tie is not None:
        raise tr.statement.refused(
            call,
            "a RANGE frame must be ordered by the event time alone.",
            "Leave out the second column, or write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW.",
        )
    return spec


def _tie(tr: Translation, rows: Rows, call: exp.Window, order: exp.Order | None) -> str | None:
    """The column that orders rows with equal times. Checks that the first column is the event time."""
    time = event_time(tr, rows.stream)
    shown = next((c.name for c in rows.columns if c.column.name == time), time)
    if time is None:
        raise tr.statement.refused(
            call, "OVER needs the event time, and the stream has none.", "Give bs.sql a stream with .with_watermark(…)."
        )
    if order is None:
        raise tr.statement.refused(call, "OVER without ORDER BY.", f"Write ORDER BY {shown}.")
    found = []
    for each in order.expressions:
        if each.args.get("desc"):
            raise tr.statement.refused(
                each, "ORDER BY … DESC would need rows that have not come yet.", "Leave out DESC."
            )
        if not each.args.get("nulls_first"):
            raise tr.statement.refused(
                each,
                "ORDER BY … NULLS LAST is not possible: in OVER rows with NULL come first.",
                "Leave out NULLS LAST.",
            )
        tr.statement.only(each, "this", "nulls_first")
        found.append(rows.translated(tr.statement, each.this))
    if text_of(found[0]) != text_of(column_of(time)):
        raise tr.statement.refused(
            order, f"OVER must be ordered by the event time, not by {text_of(order.expressions[0].this)}.",
            f"Write ORDER BY {shown}.",
        )  # fmt: skip
    if len(found) > 2 or (len(found) == 2 and not isinstance(found[1], exp.Column)):
        raise tr.statement.refused(
            order.expressions[-1], "OVER can be ordered by the event time and one more column.", "Leave out the others."
        )
    return found[1].name if len(found) == 2 else None
