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

__all__ = [
    "UNKNOWN",
    "first_line",
    "is_of_spark",
    "nearest_function",
    "next_step",
    "one_line",
    "was_interrupted",
    "with_next_step",
]

_TRACEBACK: Final = "Traceback (most recent call last):"
_JAVA_CALL: Final = re.compile(r"An error occurred while calling \S+\.")

_CLASS: Final = re.compile(r"(?:[a-z_]\w*\.)+[A-Z][\w$]*: ")
# Such a line says only which step has failed.
_GENERAL: Final = re.compile(r"TASK_WRITE_FAILED|^Job aborted|^Task failed")
_CAUSE: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)

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
    found = _without_class((chosen or lines or [""])[0]).removesuffix(_TRACEBACK).strip()
    causes = _CAUSE.findall(text) if _GENERAL.search(found) else []
    return f"{found} Cause: {_without_class(causes[-1])}" if causes else found


def _without_class(line: str) -> str:
    """The text of an error, without the classes of Java or Python that it begins with; the line, if it has no text."""
    found = line.strip()
    while (name := _CLASS.match(found)) and found[name.end() :].strip():
        found = found[name.end() :].strip()
    return found


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
    if sql := re.search(r"\[PARSE_SYNTAX_ERROR\].*?== SQL ==\n(.{1,200})", text, re.DOTALL):
        return f"Correct the SQL expression: {sql[1].splitlines()[0]}"
    return next((step for pattern, step in _STEPS if pattern.search(text)), "")


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark or its JVM has raised an error. Its class says nothing to a user, and its text has many lines."""
    return (
        hasattr(error, "java_exception")
        or type(error).__module__.startswith("pyspark.")
        or type(error).__name__.startswith("Py4J")
    )


_PLACE: Final = (
    "Name a directory that the driver and the executors can create and write: nothing above it may be a plain file, "
    "and the file system must take files."
)
_NO_RIGHT: Final = "Give the user of the driver and of the executors the right to read and write there."
_NO_FILES: Final = (
    "Spark has no file system of this kind. Correct the address, or add its package to spark.jars.packages, such as "
    "org.apache.hadoop:hadoop-aws for s3a:// (docs/cluster.md)."
)
_NO_KAFKA: Final = "Add org.apache.spark:spark-sql-kafka-0-10_2.13 of Spark's version to spark.jars.packages."
_FULL: Final = "The disk is full. Free some space and start again: the query continues from its checkpoint."
_STEPS: Final = tuple(
    (re.compile(pattern), step)
    for pattern, step in (
        ("No space left on device|Disk quota exceeded", _FULL),
        ("Permission denied|AccessControlException|AccessDenied|403 Forbidden", _NO_RIGHT),
        ("DELTA_CANNOT_CREATE_LOG_PATH|Mkdirs failed|Read-only file system", _PLACE),
        ("ParentNotDirectory|Not a directory|NotDirectory", _PLACE),
        (r"No FileSystem for scheme|ClassNotFoundException: Class \S*FileSystem", _NO_FILES),
        ("PATH_NOT_FOUND", "Correct the path. It must be there when the query starts."),
        ("Schema must be specified", "Name the columns: schema='id BIGINT, at TIMESTAMP'."),
        ("Failed to find data source: kafka", _NO_KAFKA),
        ("DELTA_SCHEMA_NOT_SET|DELTA_TABLE_NOT_FOUND", "There is no Delta table: correct the path, or write it first."),
        ("DELTA_UNKNOWN_CONFIGURATION", "Correct the name in the sink's properties."),
        ("UNRESOLVED_COLUMN|ATTRIBUTE_NOT_SUPPORTED", "Check the name of the column and its case."),
        ("NumberFormatException|For input string", "An option of the source must be a number."),
    )
)
"""Texts of Spark, Hadoop and Delta, and what to do. The first that is found counts."""


def nearest_function(name: str) -> str:
    """A question with the name of Spark's most similar function; empty if none is similar."""
    from pyspark.sql import functions

    near = nearest(name, functions.__all__)
    return f"Did you mean {near}?" if near and near.lower() != name.lower() else ""


def _whole(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


UNKNOWN: Final = "Its cause is in the traceback, and docs/troubleshooting.md has more."
"""The next step after an error of Spark that nobody knows."""


@contextmanager
def with_next_step(what: str) -> Iterator[None]:
    """Turn errors of Spark into a `BacklogError` with one line and a next step. Errors of the user's functions pass.

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
        hint = next_step(_whole(error))
        if hint or is_of_spark(error):
            raise BacklogError(f"{what}: {first_line(error)}", hint or UNKNOWN) from error
        raise
