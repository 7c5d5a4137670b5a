"""Patterns for tables, as in a pipeline's file (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from backlog_spark.errors import SettingError

__all__ = ["table_pattern"]


def table_pattern(names: Sequence[str]) -> str:
    r"""A regular expression for the whole ``database.table``.

    Parameters
    ----------
    names : sequence of str
        Each ``database.table``, or several of them separated by commas. ``*`` stands for any characters: ``shop.*``,
        ``shop.order_*``. Everything else is a regular expression in which ``\.`` stands for any character, as in Flink
        CDC: ``shop.\.*``, ``shop.order_[0-9]+``. The first dot separates database and table.

    Raises
    ------
    SettingError
        A part is not ``database.table``, or no regular expression.
    """
    found = []
    for part in (part.strip() for name in names for part in re.split(r",(?![^{\[]*[}\]])", name)):
        halves = re.fullmatch(r"((?:[^.\\]|\\.)+)\.(.+)", part)
        if halves is None:
            raise SettingError("tables", part, f"{part!r} is not database.table.", "For example shop.* or shop.orders.")
        database, table = (_half(half) for half in halves.groups())
        try:
            re.compile(f"{database}{table}")
        except re.error as error:
            raise SettingError(
                "tables",
                part,
                f"{part!r} is no regular expression: {error}.",
                r"For example shop.* or shop.order_[0-9]+.",
            ) from None
        found.append(rf"{database}\.{table}")
    if not found:
        raise SettingError("tables", list(names), "names no table.", "For example shop.*.")
    return "|".join(found)


def _half(text: str) -> str:
    text = re.sub(r"(?<!\\\.)(?<![\\)\]}])\*", r"\\.*", text)  # a * that repeats nothing stands for any characters
    return re.sub(r"\\\.", ".", text)
