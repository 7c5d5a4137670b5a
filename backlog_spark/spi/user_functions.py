"""Calls a user's Python function by its name, without showing what it was given or says."""

from __future__ import annotations

import importlib
from typing import Any

from backlog_spark.errors import SettingError

__all__ = ["call_function"]


def call_function(option: str, name: str, by_hand: str, **arguments: Any) -> Any:
    """The result of ``module:function``, which is called with the arguments by name.

    Parameters
    ----------
    option : str
        The option that names it, for errors.
    name : str
    by_hand : str
        How a user calls it to see the error.

    Raises
    ------
    SettingError
        It cannot be imported, or fails. What it raises is named, but its text is never shown.
    """
    module, _, function = name.partition(":")
    try:
        call = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise SettingError(
            option, name, "cannot be imported.",
            "Write module:function. Driver and executors need the module: spark-submit --py-files.",
        ) from None  # fmt: skip
    try:
        return call(**arguments)
    except Exception as error:
        raise SettingError(option, name, f"raised {type(error).__name__}.", by_hand) from None
