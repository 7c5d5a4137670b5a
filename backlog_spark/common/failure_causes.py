"""Extracts the cause of a failure as one line, and finds the next step for known causes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from backlog_spark.common.familiar_names import nearest
from backlog_spark.common.requirements import package_of
from backlog_spark.errors import BacklogError

__all__ = ["first_line", "nearest_function", "next_step", "one_line", "was_interrupted", "with_next_step"]

_TRACEBACK: Final = "Traceback (most recent call last):"
_JAVA_CALL: Final = re.compile(r"An error occurred while calling \S+\.")

# From Java and Hadoop, and Spark's texts for interruptions and cancelled jobs.
_INTERRUPTIONS: Final = re.compile(
    r"Interrupted(IO)?Exception|ClosedByInterruptException|JOB_CANCELLED|[Cc]ancelled (as )?part of"
)

# Where Spark's report of a lost task says that it ran.
_TASK: Final = re.compile(r"\(TID \d+\) \((\S+) executor (\w+)\)")


def first_line(error: BaseException) -> str:
    """The line of an error that says what happened. For a Python worker's traceback: the line of the exception."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """The same for the text of an error; empty if there is no such line."""
    lines = [line for line in text.splitlines() if line.strip()]
    chosen = [line for line in lines if line.strip().startswith("backlog_spark.")]
    if not chosen:
        chosen = _raised(lines)
    if not chosen and lines and _JAVA_CALL.fullmatch(lines[0].strip()):
        chosen = [line.removeprefix(": ") for line in lines[1:]]
    found = (chosen or lines or [""])[0].strip()
    return found.removesuffix(_TRACEBACK).strip()


def was_interrupted(error: BaseException) -> bool:
    """Whether an error says that its thread was interrupted or its jobs were cancelled, as by a stop."""
    return bool(_INTERRUPTIONS.search(f"{type(error).__name__}: {error}"))


def _raised(lines: Sequence[str]) -> list[str]:
    """The lines after the frames of the last traceback."""
    starts = [at for at, line in enumerate(lines) if line.rstrip().endswith(_TRACEBACK)]
    if not starts:
        return []
    margin = _margin(lines[starts[-1]])
    return [line for line in lines[starts[-1] + 1 :] if _margin(line) <= margin]


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def next_step(text: str) -> str:
    """What to do about an error of Spark, found by its text; empty for unknown causes."""
    python = os.environ.get("PYSPARK_PYTHON")
    interpreter = (
        f"PYSPARK_PYTHON, which is {python}," if python else "python3 on the PATH, as PYSPARK_PYTHON is not set,"
    )
    if missing := re.search(r"ModuleNotFoundError: No module named '(\w+)", text):
        task = _TASK.search(text)
        where = f"executor {task[2]} on {task[1]}" if task and task[2] != "driver" else "the driver's machine"
        return (
            f"On {where} {missing[1]} is missing. Spark runs Python with {interpreter} on the driver and on every "
            f"executor. Install the package there (pip install {package_of(missing[1])}), send it with spark-submit "
            "--py-files or --archives, or set PYSPARK_PYTHON to an interpreter that has it. docs/submit.md has the "
            "commands."
        )
    if re.search(r"Cannot run program \"|failed to connect back", text):
        archive = " Unpack an archive of --archives in the driver's directory too." if "./" in interpreter else ""
        return (
            f"Spark could not start a Python process with {interpreter} on the driver or an executor. Before the "
            "session is created, set PYSPARK_PYTHON to an interpreter that exists on all of them and has the packages. "
            f"Spark's log has the process's own message.{archive}"
        )
    if routine := re.search(r"Cannot resolve routine `(\w+)`", text):
        return nearest_function(routine[1])
    if "a query with that name is already active" in text:
        return "Stop that query first (spark.streams.active lists them), or give this one another name: .write('name')."
    if "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION" in text:
        return "A transform works on single rows. To group, write .key_by('id').aggregate('sum(amount) AS total')."
    return ""


def nearest_function(name: str) -> str:
    """A question with the name of Spark's most similar function; empty if none is similar."""
    from pyspark.sql import functions

    near = nearest(name, functions.__all__)
    return f"Did you mean {near}?" if near and near.lower() != name.lower() else ""


@contextmanager
def with_next_step(what: str) -> Iterator[None]:
    """Turn Spark's errors with a known cause, and Java's stack traces, into a `BacklogError`. Other errors pass.

    Parameters
    ----------
    what : str
        What has failed: the beginning of the error text.
    """
    try:
        yield
    except BacklogError:
        raise
    except Exception as error:
        hint = next_step(str(error))
        if hint or hasattr(error, "java_exception"):  # a Java error, with its stack trace
            raise BacklogError(f"{what}: {first_line(error)}", hint) from error
        raise
