"""Leaves out what Spark's Python processes print in a good run, and nothing else.

A worker, and a process that serves a query, print a traceback if Spark closes their connection, which is how Spark ends
them. The process that prepares a keyed query prints five paragraphs.
"""

from __future__ import annotations

import builtins
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

__all__ = ["be_quiet"]


def be_quiet(program: Sequence[str]) -> None:
    """Change what this process prints, given its command line."""
    if any(word.startswith("pyspark.sql.streaming.") for word in program):
        _end_quietly()
    if "pyspark.daemon" in program:
        print_exc = traceback.print_exc

        def print_failures(*values: Any, **options: Any) -> None:
            if not _is_closed_connection(sys.exc_info()[1]):
                print_exc(*values, **options)

        traceback.print_exc = print_failures
    if "pyspark.sql.streaming.transform_with_state_driver_worker" in program:
        print_all = builtins.print

        def print_others(*values: Any, **options: Any) -> None:
            text = str(values[0]) if values else ""
            if not text.removeprefix("Starting ").startswith("Streaming TransformWithStateInPandas Python worker"):
                print_all(*values, **options)

        builtins.print = print_others


def _is_closed_connection(error: BaseException | None) -> bool:
    """Whether a worker of the daemon could not answer, because Spark has closed its connection.

    An error of the worker's own code is raised in other functions.
    """
    if not isinstance(error, (BrokenPipeError, ConnectionResetError)) or error.__traceback__ is None:
        return False
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [(code.co_filename.replace("\\", "/").endswith("/pyspark/daemon.py"), code.co_name) for code in frames]
    return names[-2:] == [(True, "manager"), (True, "worker")]


def _end_quietly() -> None:
    """Print no traceback when Spark closes the connection. Its stop does that."""
    print_failure = sys.excepthook

    def print_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # EOFError while it waits, a broken pipe while it answers, a failure to connect before that.
        if not issubclass(kind, (EOFError, BrokenPipeError, ConnectionError)) and "CANNOT_OPEN_SOCKET" not in str(
            error
        ):
            print_failure(kind, error, trace)

    sys.excepthook = print_others
