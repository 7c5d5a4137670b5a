"""Converts option values to the text that Spark passes to a source."""

from __future__ import annotations

import os
import re
from datetime import timedelta

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import described
from backlog_spark.common.sql_names import quoted
from backlog_spark.errors import SettingError

__all__ = ["option_text"]


def option_text(option: str, value: object) -> str:
    """An option's value as text: a list is joined by commas, a schema is written as in SQL."""
    from pyspark.sql.types import StructType

    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(option_text(option, each) for each in value)
    if isinstance(value, StructType):
        return ", ".join(f"{_name(f.name)} {f.dataType.simpleString()}" for f in value)
    if isinstance(value, timedelta):
        return f"{parse_duration(value, option)} ms"
    if isinstance(value, str | int | float | os.PathLike):
        return str(value)
    raise SettingError(
        option,
        "***",
        f"is {described(value)}, not a text, a number, a list of them or a schema.",
        f"Pass {option} as one of these, for example as a text.",
    )


def _name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else quoted(name)
