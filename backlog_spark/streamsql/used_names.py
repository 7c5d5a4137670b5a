"""Finds the names that parts of a SELECT use, and the conditions that a join may apply early (pure)."""

from __future__ import annotations

from sqlglot import exp

from backlog_spark.streamsql.generators import is_generator
from backlog_spark.streamsql.rows import Rows

__all__ = ["as_of", "pushed_down", "used_names"]


def as_of(join: exp.Join) -> exp.Column | None:
    """The column that FOR SYSTEM_TIME AS OF names."""
    version = join.this.args.get("version")
    return version.expression if version is not None and isinstance(version.expression, exp.Column) else None


def used_names(select: exp.Select, *parts: str) -> set[str] | None:
    """The names used in parts of a SELECT; default: in all parts but FROM. None: a star uses all names."""
    wanted = parts or tuple(key for key in select.args if key not in ("from_", "with_"))
    found: set[str] = set()
    for part in wanted:
        given = select.args.get(part)
        for each in given if isinstance(given, list) else [given] if given is not None else []:
            is_join = isinstance(each, exp.Join)
            own = each.this if is_join and is_generator(each) else None
            for inner in [each.args.get("on"), *each.args.get("using", []), as_of(each), own] if is_join else [each]:
                if inner is None:
                    continue
                if any(not isinstance(star.parent, exp.Count) for star in inner.find_all(exp.Star)):
                    return None
                found |= {name.name.lower() for name in inner.find_all(exp.Identifier)}
    return found


def pushed_down(where: list[exp.Expr], inputs: list[Rows], later: list[exp.Join]) -> list[exp.Expr]:
    """The conditions of WHERE that a join may apply, as far as the joins after it allow."""
    if any(str(join.args.get("side") or "").upper() in ("RIGHT", "FULL") for join in later):
        # These joins fill rows with NULL, and WHERE must see those rows.
        return []

    def is_plain(column: exp.Column) -> bool:
        # A name of several tables is ambiguous in the end, even if the first join knows only one of them.
        return len(column.parts) > 1 or sum(rows.has(column) for rows in inputs) == 1

    return [each for each in where if all(is_plain(column) for column in each.find_all(exp.Column))]
