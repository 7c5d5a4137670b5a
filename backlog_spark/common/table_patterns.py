"""Patterns for tables: those of a pipeline's file, and regular expressions for whole names (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backlog_spark.errors import SettingError

__all__ = ["check_whole_names", "table_pattern"]

# An alternative without a dot, where it is surely in no group: at an end of the expression.
_DOTLESS = re.compile(r"([\w$]+)\||.*(?<!\\)\|([\w$]+)\Z", re.DOTALL)


def table_pattern(names: Sequence[str]) -> str:
    r"""A regular expression for the whole ``database.table``.

    Parameters
    ----------
    names : sequence of str
        Each ``database.table``, or several of them separated by commas. ``*`` stands for any characters: ``shop.*``,
        ``shop.order_*``. Everything else is a regular expression in which ``\.`` stands for any character, as in Flink
        CDC: ``shop.\.*``, ``shop.order_[0-9]+``. The first dot separates database and table. Each of the two is an
        expression of its own: ``shop.orders|customers`` are two tables of ``shop``.

    Raises
    ------
    SettingError
        A part is not ``database.table``, or its database or table is no regular expression.
    """
    found = []
    for part in (part.strip() for name in names for part in re.split(r",(?![^{\[]*[}\]])", name)):
        halves = re.fullmatch(r"((?:[^.\\]|\\.)+)\.(.+)", part)
        if halves is None:
            raise SettingError("tables", part, f"{part!r} is not database.table.", "For example shop.* or shop.orders.")
        try:
            found.append(r"\.".join(_half(half) for half in halves.groups()))
            re.compile("|".join(found))
        except (re.error, OverflowError, RecursionError) as error:
            raise SettingError(
                "tables",
                part,
                f"{part!r} is no regular expression for a database, a dot and one for a table: {error}.",
                r"For example shop.* or shop.order_[0-9]+.",
            ) from None
    if not found:
        raise SettingError("tables", list(names), "names no table.", "For example shop.*.")
    return "|".join(found)


def _half(text: str) -> str:
    text = re.sub(r"(?<!\\\.)(?<![\\)\]}])\*", r"\\.*", text)  # a * that repeats nothing stands for any characters
    text = re.sub(r"\\\.", ".", text)
    re.compile(text)
    return f"(?:{text})" if "|" in text else text


def check_whole_names(setting: str, pattern: str, like: str = "database.table") -> None:
    r"""Check a regular expression for whole names with dots.

    Raises
    ------
    SettingError
        It is none, or it has an alternative that no name matches: ``shop\.orders|customers``.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise SettingError(
            setting, pattern, f"is not a regular expression: {error}.", "Write one of Python, such as shop[.].*"
        ) from None
    if dotless := _DOTLESS.match(pattern):
        raise SettingError(
            setting, pattern, f"{dotless[1] or dotless[2]!r} matches no {like}: | separates whole names.",
            r"Write alternatives of a part in parentheses, such as shop\.(orders|customers).",
        )  # fmt: skip
