"""Registers the functions that are given to a query."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from backlog_spark.common.familiar_names import described
from backlog_spark.errors import BacklogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register_functions"]

_TYPES: Final[Mapping[Any, str]] = {
    bool: "boolean",
    bytes: "binary",
    dt.date: "date",
    dt.datetime: "timestamp",
    decimal.Decimal: "decimal(38, 18)",
    float: "double",
    int: "bigint",
    str: "string",
}
"""Spark's type for the annotation of a function's result."""


def register_functions(spark: SparkSession, functions: Mapping[str, Callable[..., object]]) -> None:
    """Register functions in the session by their names.

    Raises
    ------
    BacklogError
        For a name that is none, for what is no function, and for a result without a known annotation.
    """
    for name, function in functions.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise BacklogError(f"functions: {name!r} is no name of a function.", "Use letters, digits and _.")
        if not callable(function):
            raise BacklogError(f"functions: {name} is {described(function)}.", "Pass a Python function or udf(…).")
        if hasattr(function, "returnType") and hasattr(function, "evalType"):
            spark.udf.register(name, function)  # type: ignore[arg-type,unused-ignore]
            continue
        kind = _result(function)
        if kind is None:
            raise BacklogError(
                f"functions: the result of {name} has no annotation that is a type of Spark.",
                f"Annotate it, such as -> int; known: {', '.join(each.__name__ for each in _TYPES)}. "
                "Or pass pyspark.sql.functions.udf(function, 'array<string>').",
            )
        spark.udf.register(name, function, kind)


def _result(function: Callable[..., object]) -> str | None:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hint = get_type_hints(target).get("return")
    except (NameError, TypeError):
        return None
    # X | None: a function may always return NULL.
    options = [each for each in getattr(hint, "__args__", (hint,)) if each is not type(None)]
    return _TYPES.get(options[0]) if len(options) == 1 else None
