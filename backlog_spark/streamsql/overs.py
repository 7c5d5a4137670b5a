"""OVER, as `KeyedStream.over`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from sqlglot import exp

from backlog_spark.common.sql_names import quoted
from backlog_spark.operators.over.functions import OverFunction
from backlog_spark.operators.over.ranked import Frame, Order
from backlog_spark.operators.over.select_list import parse_over
from backlog_spark.streamsql.items import Item
from backlog_spark.streamsql.ranked_rows import LIMITED, RANK_CALLS, after_ranked, ranked
from backlog_spark.streamsql.rows import Rows, column_of, text_of
from backlog_spark.streamsql.spans import event_time
from backlog_spark.streamsql.times import milliseconds
from backlog_spark.streamsql.translation import Translation, results_change

__all__ = ["has_over", "over_changes", "with_over"]

_ALL: Final = "__all"
# Functions that see all rows before the current one, with any frame.
_FRAMELESS: Final = (exp.RowNumber, exp.Rank, exp.DenseRank, exp.Lag)
_NUMBER: Final = "backlog_spark.number"  # in a window's metadata
# Functions whose results do not depend on the order of the rows.
_OF_ALL_ROWS: Final = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
_FORM: Final = "OVER (PARTITION BY k ORDER BY at ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)"


def has_over(items: Sequence[Item]) -> bool:
    """Whether a SELECT list has an OVER."""
    return any(item.expression.find(exp.Window) for item in items)


def over_changes(select: exp.Select, items: Sequence[Item], rows: Rows) -> bool:
    """Whether results of OVER change: the rows do, or a window without an order has all rows of its key."""
    named = {each.name.lower(): each for each in select.args.get("windows") or []}
    calls = [call for item in items for call in item.expression.find_all(exp.Window)]
    return _changes(rows) or any(_is_unordered(call, named) for call in calls)


def _is_unordered(call: exp.Window, named: dict[str, exp.Window]) -> bool:
    reference = call.args.get("alias")
    is_known = reference is None or reference.name.lower() in named
    return is_known and _order(call, named) is None and not isinstance(call.this, _FRAMELESS)


@dataclass(frozen=True)
class _Spec:
    """A translated window.

    Parameters
    ----------
    partition : tuple of str
        Texts of PARTITION BY.
    order : tuple of (str, bool, bool)
        Texts of ORDER BY over rows that change: see `backlog_spark.operators.over.ranked.Order`. Else empty.
    tie : str or None
        The column that orders rows of the same event time.
    rows, span
        The frame for `over`. Both None: the function has no frame.
    """

    partition: tuple[str, ...]
    order: tuple[Order, ...]
    tie: str | None
    rows: int | str | None
    span: timedelta | str | None

    @property
    def window(self) -> tuple[object, ...]:
        """The window without its frame."""
        return self.partition, self.order, self.tie


@dataclass
class _Step:
    """The functions of one window, by the names of their results. ``on_changes``: whether the query's rows change."""

    spec: _Spec
    call: exp.Window
    on_changes: bool
    functions: dict[str, exp.Expr] = field(default_factory=dict)


def with_over(tr: Translation, select: exp.Select, rows: Rows, items: Sequence[Item]) -> Rows:
    """The rows of a SELECT whose list has functions with OVER. Each window is an operator.

    Raises
    ------
    SqlError
    """
    rows = tr.as_data(rows, [item.expression for item in items], select)
    named = {each.name.lower(): each for each in select.args.get("windows") or []}
    calls = [call for item in items for call in item.expression.find_all(exp.Window)]
    for number, call in enumerate(calls):
        call.meta[_NUMBER] = number
    parts = [(item.translated(tr, rows), item) for item in items]
    on_changes, changes = _changes(rows), over_changes(select, items, rows)
    results: dict[str, str] = {}
    taken = {name.lower() for name in tr.schema(rows.stream, None).names}
    steps: list[_Step] = []
    for expression, item in parts:
        # A dialect may have replaced a function by several with the same window.
        for call in expression.find_all(exp.Window):
            text, as_written = text_of(call), calls[call.meta[_NUMBER]]
            spec = _spec(tr, rows, as_written, named, changes=changes)
            if text in results:
                continue
            own = item.named(tr) if call is expression.unnest() else ""
            name = own if own and own.lower() not in taken else tr.hidden("over")
            taken.add(name.lower())
            results[text] = name
            _step_of(steps, spec, as_written, on_changes=on_changes).functions[name] = call.this
    for step in steps:
        rows = (_ranked if changes else _over)(tr, rows, step, named)
    shown = [(item.named(tr), _replaced(each, results), item.expression) for each, item in parts]
    return tr.projected(rows, shown)


def _changes(rows: Rows) -> bool:
    return bool(rows.pseudo) or results_change(rows.stream._node)


def _step_of(steps: list[_Step], spec: _Spec, call: exp.Window, *, on_changes: bool) -> _Step:
    """The step that a function belongs to. A function without a frame goes with any function of its window."""
    for step in steps:
        if step.spec.window == spec.window:
            frames = [(each.rows, each.span) for each in (step.spec, spec)]
            if frames[0] == frames[1] or (None, None) in frames:
                if frames[0] == (None, None):
                    step.spec = spec
                return step
    steps.append(_Step(spec, call, on_changes))
    return steps[-1]


def _prepared(
    tr: Translation, rows: Rows, step: _Step, named: dict[str, exp.Window], order: Sequence[exp.Expr] = ()
) -> tuple[Rows, list[str], list[str], dict[str, str]]:
    """The rows with columns for the keys, the order and the arguments; these columns, and the functions."""
    made: dict[str, exp.Expr] = {}
    keys = [_column(tr, made, rows.translated(tr.statement, each), "key") for each in _partition(step.call, named)]
    if not keys:
        keys = [tr.unseen(_ALL)]
        made[keys[0]] = exp.Literal.number(0)
    ordered = [_column(tr, made, rows.translated(tr.statement, each), "order") for each in order]
    functions = {name: _function(tr, made, call) for name, call in step.functions.items()}
    there = {name.lower() for name in tr.schema(rows.stream, None).names}
    return (
        tr.with_columns(rows, {n: e for n, e in made.items() if n.lower() not in there}, step.call),
        keys,
        ordered,
        functions,
    )


def _over(tr: Translation, rows: Rows, step: _Step, named: dict[str, exp.Window]) -> Rows:
    """Functions of rows by their event time. Each row comes once."""
    prepared, keys, _, functions = _prepared(tr, rows, step, named)
    texts = [f"{function} AS {quoted(name)}" for name, function in functions.items()]
    with tr.statement.at(step.call):
        parse_over(*texts)
        keyed = prepared.stream.key_by(*keys, order=step.spec.tie)
        stream = keyed.over(*texts, rows=step.spec.rows, range=step.spec.span, name=tr.operator(*keys, "over"))
    tr.schema(stream, step.call, "OVER")
    return replace(rows, stream=stream)


def _ranked(tr: Translation, rows: Rows, step: _Step, named: dict[str, exp.Window]) -> Rows:
    """Functions of rows that change. A change of a result is emitted too."""
    written = _order(step.call, named)
    by = written.expressions if written else []
    prepared, keys, ordered, functions = _prepared(tr, rows, step, named, [each.this for each in by])
    order = [(name, *rest) for name, (_, *rest) in zip(ordered, step.spec.order, strict=True)]
    found: list[OverFunction] = []
    with tr.statement.at(step.call):
        for name, function in functions.items():
            kind = RANK_CALLS.get(type(step.functions[name]))
            found += [OverFunction(kind, None, name)] if kind else parse_over(f"{function} AS {quoted(name)}")
        frame = Frame()
        if step.spec.rows is not None:
            frame = Frame(None if step.spec.rows == "unbounded" else int(step.spec.rows), peers=False)
        elif step.spec.span == timedelta(0):
            frame = Frame(0)
        elif step.spec.span not in (None, "unbounded"):
            what, hint = "over rows that change", f"Write {_FORM}."
            if not step.on_changes:
                what, hint = "beside OVER without ORDER BY", "Put that OVER into a query around this one."
            raise tr.statement.refused(step.call, f"a RANGE frame of a length of time {what}.", hint)
        operator = tr.operator(*keys, "over")
        window = f"{', '.join(map(text_of, _partition(step.call, named)))}" + (
            f" ORDER BY {text_of(written)}" if written else ""
        )
        stream = ranked(tr, prepared.stream, keys, found, order, operator, frame=frame, written=window)  # type: ignore[arg-type]
    return after_ranked(tr, stream, rows, step.call)


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
    if isinstance(call, tuple(RANK_CALLS)) or isinstance(call.this, exp.Star | exp.Distinct):
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
    base = _base_of(call, named)
    found: list[exp.Expr] = call.args.get("partition_by") or (base.args.get("partition_by") if base else None) or []
    return found


def _order(call: exp.Window, named: dict[str, exp.Window]) -> exp.Order | None:
    base = _base_of(call, named)
    return call.args.get("order") or (base.args.get("order") if base else None)


def _base_of(call: exp.Window, named: dict[str, exp.Window]) -> exp.Window | None:
    reference = call.args.get("alias")
    return None if reference is None else named[reference.name.lower()]


def _spec(tr: Translation, rows: Rows, call: exp.Window, named: dict[str, exp.Window], *, changes: bool) -> _Spec:
    tr.statement.only(call, "this", "partition_by", "order", "spec", "alias", "over")
    base = _base(tr, call, named)
    if base is not None:
        tr.statement.only(base, "this", "partition_by", "order", "spec")
    order = _order(call, named)
    spec = call.args.get("spec") or (base.args.get("spec") if base else None)
    partition = tuple(text_of(rows.translated(tr.statement, each)) for each in _partition(call, named))
    made = _Spec(partition, (), None, None, None)
    if changes:
        if call.meta.get(LIMITED):
            raise tr.statement.refused(call, "this number of rows that change.", "Write ROW_NUMBER() OVER (…) AS n.")
        if order is None:
            return _of_all_rows(tr, call, made, spec)
        items = [
            (text_of(rows.translated(tr.statement, e.this)), bool(e.args.get("desc")), bool(e.args.get("nulls_first")))
            for e in order.expressions
        ]
        made = replace(made, order=tuple(items))
    else:
        made = replace(made, tie=_tie(tr, rows, call, order))
    if isinstance(call.this, _FRAMELESS):
        if spec is not None:
            raise tr.statement.refused(
                spec if spec.find(exp.Literal) else call,
                f"{text_of(call.this)} always sees all rows before, so it takes no frame.",
                "Leave out ROWS or RANGE.",
            )
        return made
    if spec is None:
        return _ranged(tr, call, replace(made, span="unbounded"))
    tr.statement.only(spec, "kind", "start", "start_side", "end", "end_side")
    end, start = spec.args.get("end"), spec.args.get("start")
    if end not in (None, "CURRENT ROW") or spec.args.get("end_side"):
        raise tr.statement.refused(call, "a frame must end with the current row.", f"Write {_FORM}.")
    if spec.args.get("start_side") not in (None, "PRECEDING"):
        raise tr.statement.refused(call, "a frame must begin before the current row.", f"Write {_FORM}.")
    kind = str(spec.args.get("kind")).upper()
    if kind == "ROWS":
        return replace(made, rows=_rows(tr, call, start))
    if kind == "RANGE":
        length: timedelta | str = "unbounded"
        if start == "CURRENT ROW":
            length = timedelta(0)
        elif start != "UNBOUNDED":
            length = timedelta(milliseconds=milliseconds(tr.statement, start))
        return _ranged(tr, call, replace(made, span=length))
    raise tr.statement.refused(call, f"a frame of {kind} is not supported.", "Write ROWS or RANGE.")


def _of_all_rows(tr: Translation, call: exp.Window, made: _Spec, spec: exp.Expr | None) -> _Spec:
    """A window without ORDER BY: all rows of the key are equal in it."""
    if not isinstance(call.this, _OF_ALL_ROWS):
        raise tr.statement.refused(call, f"{text_of(call.this)} OVER without ORDER BY.", "Write ORDER BY.")
    if spec is not None and {spec.args.get("start"), spec.args.get("end")} != {"UNBOUNDED"}:
        raise tr.statement.refused(
            call, "a frame of OVER without ORDER BY.", "Write ORDER BY, or leave out ROWS or RANGE for all rows."
        )
    return replace(made, span="unbounded")


def _rows(tr: Translation, call: exp.Window, start: exp.Expr | str | None) -> int | str:
    if start == "CURRENT ROW":
        return 0
    if start == "UNBOUNDED":
        return "unbounded"
    if isinstance(start, exp.Literal) and not start.is_string and str(start.this).isdecimal():
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
        raise tr.statement.refused(call, f"{text_of(call.this)} OVER without ORDER BY.", f"Write ORDER BY {shown}.")
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
