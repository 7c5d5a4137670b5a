"""Translates GROUPING SETS, ROLLUP and CUBE: each row is repeated for each set, without the keys that the set lacks.

Source: Spark's ``Expand``; Flink SQL's "Window Aggregation", section on grouping sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from backlog_spark.streamsql.rows import Rows, Visible, column_of, text_of
from backlog_spark.streamsql.translation import Translation

__all__ = ["GroupingSets", "grouping_sets", "spread_over_sets"]

# Each set repeats all rows.
_MOST_SETS: Final = 64


def grouping_sets(tr: Translation, group: exp.Group | None) -> tuple[list[frozenset[int]], list[exp.Expr]]:
    """The sets of GROUP BY, as indices of its expressions, and these expressions. One set: a plain GROUP BY.

    Raises
    ------
    SqlError
    """
    if group is None:
        return [frozenset()], []
    tr.statement.only(group, "expressions", "rollup", "cube", "grouping_sets")
    flat: list[exp.Expr] = []

    def number(expression: exp.Expr) -> int:
        inner = expression.unnest()
        for index, each in enumerate(flat):
            if each == inner:
                return index
        flat.append(inner)
        return len(flat) - 1

    def together(item: exp.Expr) -> list[int]:
        """The expressions of an item: ``a``, ``(a)`` or ``(a, b)``."""
        inner = item.unnest()
        return [number(each) for each in (inner.expressions if isinstance(inner, exp.Tuple) else [inner])]

    def sets_of(item: exp.Expr) -> list[list[int]]:
        inner = item.unnest()
        if isinstance(inner, exp.GroupingSets):
            return [found for each in inner.expressions for found in sets_of(each)]
        if isinstance(inner, exp.Rollup | exp.Cube):
            parts = [together(each) for each in inner.expressions]
            if isinstance(inner, exp.Rollup):
                return [[n for part in parts[:size] for n in part] for size in range(len(parts), -1, -1)]
            return [
                [n for part, taken in zip(parts, chosen, strict=True) if taken for n in part]
                for chosen in itertools.product((True, False), repeat=len(parts))
            ]
        return [together(item)]

    plain = list(group.expressions)
    for key, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", exp.GroupingSets)):
        for each in group.args.get(key) or []:
            # GROUP BY a, b WITH ROLLUP has its columns in front.
            given = each if each.expressions else kind(expressions=plain)
            plain = [given] if not each.expressions else [*plain, given]
    made = [frozenset(itertools.chain.from_iterable(chosen)) for chosen in itertools.product(*map(sets_of, plain))]
    if len(made) > _MOST_SETS:
        raise tr.statement.refused(
            group,
            f"GROUP BY has {len(made)} grouping sets.",
            f"Each repeats all rows; at most {_MOST_SETS} are possible.",
        )
    return made, flat


@dataclass(frozen=True)
class GroupingSets:
    """The sets of a GROUP BY over repeated rows.

    Parameters
    ----------
    number : Column
        The column with the set of a row.
    size : int
        The number of sets.
    members : mapping of str to frozenset of int
        The sets that have a key, by the text of the key.
    """

    number: exp.Column
    size: int
    members: Mapping[str, frozenset[int]]

    def key(self, text: str, value: exp.Expr) -> exp.Expr:
        """A key's value in the sets that have it, else NULL."""
        sets = self.members[text]
        if len(sets) == self.size:
            return value
        return exp.Case(ifs=[exp.If(this=self._among(sets), true=value)])

    def with_grouping(self, tr: Translation, expression: exp.Expr) -> exp.Expr:
        """A translated expression whose ``grouping(x)`` and ``grouping_id(x, …)`` are replaced.

        Raises
        ------
        SqlError
            For one of something that is no key.
        """

        def bit(node: exp.Expr, key: str) -> exp.Expr:
            if key not in self.members:
                raise tr.statement.refused(node, f"{key} is not in GROUP BY.", "Name one of its keys.")
            others = frozenset(range(self.size)) - self.members[key]
            if not others:
                return exp.Literal.number(0)
            one, zero = exp.Literal.number(1), exp.Literal.number(0)
            return exp.Case(ifs=[exp.If(this=self._among(others), true=one)], default=zero)

        def of(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Grouping):
                return bit(node, text_of(node.expressions[0]))
            if isinstance(node, exp.GroupingId):
                keys = [text_of(each) for each in node.expressions] or list(self.members)
                found: exp.Expr = exp.Literal.number(0)
                for place, key in enumerate(reversed(keys)):
                    power = exp.Literal.number(2**place)
                    found = exp.Add(this=found, expression=exp.Mul(this=exp.paren(bit(node, key)), expression=power))
                return exp.paren(exp.cast(exp.paren(found), "BIGINT"))
            return node

        return expression.transform(of)

    def _among(self, sets: frozenset[int]) -> exp.Expr:
        return exp.In(this=self.number.copy(), expressions=[exp.Literal.number(each) for each in sorted(sets)])


def spread_over_sets(
    tr: Translation, rows: Rows, sets: Sequence[frozenset[int]], texts: Sequence[str], node: exp.Expr
) -> tuple[Rows, GroupingSets]:
    """Rows that are repeated for each set.

    Parameters
    ----------
    sets : sequence of frozenset of int
        As from `grouping_sets`.
    texts : sequence of str
        The translated expressions of GROUP BY.
    """
    name = tr.hidden("set")
    numbers = ", ".join(map(str, range(len(sets))))
    stream = rows.stream.map("*", f"explode(array({numbers})) AS {name}")
    tr.schema(stream, node)
    members = {
        text: frozenset(number for number, each in enumerate(sets) if any(texts[i] == text for i in each))
        for text in texts
    }
    number = column_of(name)
    made = replace(rows, stream=stream, columns=(*rows.columns, Visible("", name, number, hidden=True)))
    return made, GroupingSets(number, len(sets), members)
