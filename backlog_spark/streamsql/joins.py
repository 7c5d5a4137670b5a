"""Translates joins to `KeyedStream.join` and `KeyedStream.interval_join`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from sqlglot import exp

from backlog_spark.model.changes import CHANGE_TYPE
from backlog_spark.streamsql.join_keys import alike
from backlog_spark.streamsql.rows import PSEUDO, Rows, Visible, column_of, text_of
from backlog_spark.streamsql.spans import event_time
from backlog_spark.streamsql.times import Bounds, difference
from backlog_spark.streamsql.translation import Translation, conjuncts

if TYPE_CHECKING:
    from backlog_spark.api.keyed_streams import KeyedStream
    from backlog_spark.api.streams import BacklogStream, IntervalJoined

__all__ = ["check_processing_time", "equal_columns", "joined", "merged_using", "without_version"]

_PROCESSING_TIME: Final = ("PROCTIME", "NOW", "CURRENT_TIMESTAMP")
_HOW: Final = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}
# The side that is filled with NULL. Its rows may be filtered before the join: rows without a match are not emitted.
_FILLED: Final = {"left": "right", "right": "left"}


@dataclass
class _Conditions:
    """The conditions of a join, sorted by their use.

    Parameters
    ----------
    keys : list of (Expr, Expr)
        Equal expressions of the left and right side.
    bounds : Bounds
    before : dict
        Conditions on one side alone, applied before the join.
    afterwards : list of (Expr, Expr)
        Conditions applied to the joined rows, each with its expression in the statement.
    """

    keys: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    timed: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)
    before: dict[str, list[tuple[exp.Expr, exp.Expr]]] = field(default_factory=lambda: {"left": [], "right": []})
    afterwards: list[tuple[exp.Expr, exp.Expr]] = field(default_factory=list)


def joined(
    tr: Translation,
    left: Rows,
    right: Rows,
    join: exp.Join,
    where: list[exp.Expr],
    ttl: tuple[int | None, int | None] = (None, None),
) -> Rows:
    """The rows of a join.

    Parameters
    ----------
    where : list of Expr
        Conditions of WHERE. Conditions that this inner join can apply are removed from the list.
    ttl : (int or None, int or None)
        How long a regular join keeps each side's rows, in milliseconds. None: for ever.

    Raises
    ------
    SqlError
    """
    tr.statement.only(join, "this", "on", "using", "side", "kind")
    how, kind = _HOW.get(str(join.args.get("side") or "").upper()), str(join.args.get("kind") or "").upper()
    if how is None or kind not in ("", "INNER", "OUTER", "CROSS"):
        shown = " ".join(filter(None, (join.args.get("side"), kind)))
        raise tr.statement.refused(
            join, f"{shown} JOIN is not supported.", "There are inner, LEFT, RIGHT and FULL joins."
        )
    for rows in (left, right):
        if rows.span is not None:
            raise tr.statement.refused(
                rows.span.node, "rows of a window function are joined before they are grouped.", "Group in a subquery."
            )
    version = join.this.args.get("version")
    as_of = None if version is None else _as_of(tr, left, version, join, how)
    left, right = _with_unique_names(tr, left, right, join, commits=as_of is not None)
    both = replace(left, columns=left.columns + right.columns)
    on = [each for condition in [join.args.get("on")] if condition for each in conjuncts(condition)]
    taken = [each for each in where if how == "inner" and _is_known(both, each)]
    where[:] = [each for each in where if not any(each is one for one in taken)]
    found = _conditions_of(tr, left, right, both, [*on, *taken], how)
    using = join.args.get("using") or []
    for name in using:
        found.keys.append(equal_columns(tr, left, right, name))
    if as_of is not None or (version is not None and CHANGE_TYPE not in right.pseudo):
        # A filter must not change which version holds, or which row is the newest.
        found.afterwards += found.before["right"]
        found.before["right"] = []
    is_interval = version is None and found.bounds.lower is not None and found.bounds.upper is not None
    if not is_interval:
        # Without both bounds no row ever gets too old: this is a regular join with a condition on its result.
        found.afterwards += found.timed
    if not found.keys and version is not None:
        raise tr.statement.refused(
            join, "a temporal join without an equality of the two sides.", "Add a.k = b.k, the key of the join."
        )
    # Without an equality all rows have one key.
    found.keys = found.keys or [(exp.Literal.number(0), exp.Literal.number(0))]
    if how != "inner":
        _into_keys(tr, left, right, found, ("left",) if version is not None else ("left", "right"))
    if how != "inner" and found.afterwards:
        raise tr.statement.refused(
            found.afterwards[0][1],
            f"this condition of a {how.upper()} join cannot be applied before the join.",
            f"Put it into WHERE, or on the {_FILLED[how]} side alone."
            if how in _FILLED and as_of is None
            else "Put it into WHERE.",
        )
    for condition, node in found.before["left"]:
        left = tr.filtered(left, condition, node)
    for condition, node in found.before["right"]:
        right = tr.filtered(right, condition, node)
    if ttl != (None, None) and (is_interval or version is not None):
        raise tr.statement.refused(
            join, "STATE_TTL does not apply to this join: it drops rows by time.", "Leave the hint out."
        )
    result = _run(tr, left, right, found, how, join, is_interval=is_interval, as_of=as_of, ttl=ttl)
    result = merged_using(result, left, right, [name.name for name in using], how)
    for condition, node in found.afterwards:
        result = tr.filtered(result, condition, node)
    return result


def _into_keys(tr: Translation, left: Rows, right: Rows, found: _Conditions, sides: Sequence[str]) -> None:
    """Apply conditions on one of these sides: a row that does not fulfil them has the key NULL, and so no match."""
    names = (set(tr.schema(left.stream, None).names), set(tr.schema(right.stream, None).names))
    for number, side in enumerate(sides):
        mine = [c for c, _ in found.afterwards if _sides_of(c, names) <= {side} and (_sides_of(c, names) or not number)]
        found.afterwards = [each for each in found.afterwards if not any(each[0] is c for c in mine)]
        if mine:
            keys = list(found.keys[0])
            condition = exp.and_(*(each.copy() for each in mine))
            keys[number] = exp.Case(ifs=[exp.If(this=condition, true=keys[number].copy())])
            found.keys[0] = (keys[0], keys[1])


def without_version(table: exp.Expr) -> exp.Expr:
    """A table of a join without its FOR SYSTEM_TIME AS OF."""
    if not isinstance(table, exp.Table) or table.args.get("version") is None:
        return table
    plain = table.copy()
    plain.set("version", None)
    return plain


def _as_of(tr: Translation, left: Rows, version: exp.Expr, join: exp.Join, how: str) -> str | None:
    """The left rows' event time if FOR SYSTEM_TIME AS OF names it; None for processing time.

    Raises
    ------
    SqlError
        For another time.
    """
    if str(version.name or version.args.get("this")).upper() != "TIMESTAMP" or version.args.get("kind") != "AS OF":
        raise tr.statement.refused(join, "this version of a table is not supported.", "Write FOR SYSTEM_TIME AS OF.")
    if how not in ("inner", "left"):
        raise tr.statement.refused(join, f"a {how.upper()} temporal join is not possible.", "Use LEFT JOIN or JOIN.")
    time = version.expression
    if isinstance(time, exp.CurrentTimestamp) or (
        isinstance(time, exp.Anonymous) and time.name.upper() in _PROCESSING_TIME and not time.expressions
    ):
        return None
    if isinstance(time, exp.Column) and left.has(time):
        if tr.is_processing_time(left, time):
            return None
        column = left.resolved(tr.statement, time)
        if isinstance(column, exp.Column) and column.name == event_time(tr, left.stream):
            return str(column.name)
    elif isinstance(time, exp.Column) and time.name.lower() == "proctime":
        # Flink's tables declare a column of this name for processing time.
        return None
    raise tr.statement.refused(
        time,
        f"FOR SYSTEM_TIME AS OF {text_of(time)}: this is neither the rows' event time nor the processing time.",
        "Write PROCTIME(), or the column of with_watermark.",
    )


def _is_known(rows: Rows, condition: exp.Expr) -> bool:
    columns = list(condition.find_all(exp.Column))
    return bool(columns) and not condition.find(exp.Query) and all(rows.has(column) for column in columns)


def _with_unique_names(tr: Translation, left: Rows, right: Rows, node: exp.Expr, *, commits: bool) -> tuple[Rows, Rows]:
    """Rename columns of the right side, so that all columns of both sides have different names.

    ``commits``: keep the right side's columns with the commit of a row.
    """
    again = [table for table in right.tables if table.lower() in [each.lower() for each in left.tables]]
    if again:
        raise tr.statement.refused(node, f"two tables are named {again[0]!r}.", "Give one another name with AS.")
    left = _without_commits(tr, left, node)
    taken = {name.lower() for name in tr.schema(left.stream, node).names if name != CHANGE_TYPE}
    names = tr.schema(right.stream, node).names
    renamed: dict[str, str] = {}
    for name in names:
        if name in right.pseudo:
            continue
        new = name
        while new.lower() in taken or (new != name and new in names):
            new = f"{right.tables[0] if right.tables else 'right'}__{new}"
        renamed[name] = new
        taken.add(new.lower())
    kept = [name for name in right.pseudo if commits or name == CHANGE_TYPE]
    if all(old == new for old, new in renamed.items()) and len(kept) == len(right.pseudo):
        return left, right
    return left, _renamed(tr, right, renamed, kept, node)


def _without_commits(tr: Translation, rows: Rows, node: exp.Expr) -> Rows:
    """Drop the columns with the commit of a row: a joined row has no single commit."""
    if len(rows.pseudo) < 2:
        return rows
    names = [name for name in tr.schema(rows.stream, node).names if name not in rows.pseudo]
    return _renamed(tr, rows, {name: name for name in names}, [CHANGE_TYPE], node)


def _renamed(tr: Translation, rows: Rows, names: dict[str, str], kept: Sequence[str], node: exp.Expr) -> Rows:
    def of(column: exp.Expr) -> exp.Expr:
        def each(part: exp.Expr) -> exp.Expr:
            return column_of(names.get(part.name, part.name)) if isinstance(part, exp.Column) else part

        return column.transform(each)

    chosen = [f"{text_of(column_of(old))} AS {text_of(column_of(new))}" for old, new in names.items()]
    stream = rows.stream.map(*chosen, *(text_of(column_of(name)) for name in kept))
    tr.schema(stream, node)
    columns = tuple(
        replace(c, column=of(c.column))
        for c in rows.columns
        if not (c.hidden and c.column.name in set(PSEUDO) - {*kept})
    )
    return replace(rows, stream=stream, columns=columns, pseudo=tuple(kept))


def _sides_of(expression: exp.Expr, names: tuple[set[str], set[str]]) -> set[str]:
    """The sides whose columns a translated expression uses."""
    used = {column.name for column in expression.find_all(exp.Column)}
    return {side for side, own in zip(("left", "right"), names, strict=True) if used & own}


def _pair(equality: exp.EQ, names: tuple[set[str], set[str]]) -> tuple[exp.Expr, exp.Expr] | None:
    """The left and the right expression of an equality, if each uses one side."""
    first, second = equality.this.unnest(), equality.expression.unnest()
    sides = _sides_of(first, names), _sides_of(second, names)
    if sides == ({"left"}, {"right"}):
        return first, second
    return (second, first) if sides == ({"right"}, {"left"}) else None


def _conditions_of(
    tr: Translation, left: Rows, right: Rows, both: Rows, conditions: Sequence[exp.Expr], how: str
) -> _Conditions:
    names = (set(tr.schema(left.stream, None).names), set(tr.schema(right.stream, None).names))
    times = event_time(tr, left.stream), event_time(tr, right.stream)
    found = _Conditions()
    for written in conditions:
        translated = both.translated(tr.statement, written)
        for column in translated.find_all(exp.Column):
            if column.name in PSEUDO:
                raise tr.statement.refused(
                    written, f"{column.name} in a join's condition.", "Filter by it in a subquery."
                )
        sides = _sides_of(translated, names)
        if len(sides) == 2 and times[0] is not None and times[1] is not None:
            by = difference(tr.statement, translated, times[0], times[1])
            if by is not None:
                for each in by:
                    found.bounds.narrow(each)
                if isinstance(translated, exp.EQ) and (pair := _pair(translated, names)) is not None:
                    # A key finds rows faster than bounds.
                    found.keys.append(pair)
                else:
                    found.timed.append((translated, written))
                continue
        if len(sides) == 2 and isinstance(translated, exp.EQ) and (pair := _pair(translated, names)) is not None:
            found.keys.append(pair)
            continue
        if len(sides) == 1 and (how == "inner" or _FILLED.get(how) in sides):
            found.before[next(iter(sides))].append((translated, written))
            continue
        found.afterwards.append((translated, written))
    return found


def _of_using(tr: Translation, rows: Rows, name: exp.Expr) -> exp.Expr:
    """One side's column of USING."""
    node = exp.Column(this=exp.to_identifier(name.name))
    node.this.meta.update(name.meta)
    return rows.resolved(tr.statement, node)


def equal_columns(tr: Translation, left: Rows, right: Rows, name: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    """Both sides' columns of a name in USING."""
    return _of_using(tr, left, name), _of_using(tr, right, name)


def check_processing_time(tr: Translation, left: Rows, join: exp.Join) -> None:
    """Refuse FOR SYSTEM_TIME AS OF a time that is not the processing time.

    Raises
    ------
    SqlError
    """
    version = join.this.args.get("version")
    if version is not None and _as_of(tr, left, version, join, "inner") is not None:
        raise tr.statement.refused(
            version.expression, "a bounded table has no versions.", "Write FOR SYSTEM_TIME AS OF PROCTIME()."
        )


def _run(
    tr: Translation,
    left: Rows,
    right: Rows,
    found: _Conditions,
    how: str,
    join: exp.Join,
    *,
    is_interval: bool,
    as_of: str | None,
    ttl: tuple[int | None, int | None],
) -> Rows:
    keys = alike(tr, left, right, found.keys, join)
    sides: list[KeyedStream[BacklogStream, IntervalJoined]] = []
    chosen: list[list[str]] = []
    for number, rows in enumerate((left, right)):
        made: dict[str, exp.Expr] = {}
        own: list[str] = []
        for pair in keys:
            key = pair[number]
            if isinstance(key, exp.Column) and key.name not in own:
                own.append(key.name)
            else:
                own.append(tr.hidden("key"))
                made[own[-1]] = key
        sides.append(tr.with_columns(rows, made, join).stream.key_by(*own))
        chosen.append(own)
    one, other = sides
    bounds = found.bounds
    stream: BacklogStream
    with tr.statement.at(join):
        if is_interval:
            assert bounds.lower is not None
            assert bounds.upper is not None
            pairs = one.interval_join(other, how=how)
            stream = pairs.between(
                timedelta(milliseconds=bounds.lower),
                timedelta(milliseconds=bounds.upper),
                lower_exclusive=bounds.lower_exclusive,
                upper_exclusive=bounds.upper_exclusive,
                name=tr.operator(*chosen[0], "interval_join"),
            )
        elif join.this.args.get("version") is not None:
            newest = event_time(tr, right.stream) if as_of is None else None
            name = tr.operator(*chosen[0], "temporal_join")
            stream = cast("BacklogStream", one._stream).temporal_join(
                cast("BacklogStream", other._stream),
                on=chosen[0],
                build_on=chosen[1],
                how=how,
                order=newest,
                as_of=as_of,
                name=name,
            )
        else:
            kept = [None if each is None else timedelta(milliseconds=each) for each in ttl]
            stream = one.join(other, how=how, ttl=(kept[0], kept[1]), name=tr.operator(*chosen[0], "join"))
    names = tr.schema(stream, join, "JOIN").names
    pseudo = (CHANGE_TYPE,) if CHANGE_TYPE in names else ()
    columns = [c for c in (*left.columns, *right.columns) if not (c.hidden and c.column.name in PSEUDO)]
    columns += [Visible("", name, column_of(name), hidden=True) for name in pseudo]
    return Rows(stream, tuple(columns), pseudo)


def merged_using(rows: Rows, left: Rows, right: Rows, using: Sequence[str], how: str) -> Rows:
    """The joined rows with each column of USING once, in front."""
    if not using:
        return rows
    lower = [name.lower() for name in using]
    merged = []
    for name in using:
        pair = [
            next(c for c in side.columns if c.name.lower() == name.lower() and c.bare).column for side in (left, right)
        ]
        value = pair[1] if how == "right" else pair[0]
        if how == "full":
            value = exp.Coalesce(this=pair[0].copy(), expressions=[pair[1].copy()])
        merged.append(Visible("", name, value))
    others = [replace(c, bare=c.bare and c.name.lower() not in lower) for c in rows.columns]
    return replace(rows, columns=(*merged, *others))
