"""The error texts of failed queries."""

from __future__ import annotations

import pytest

from backlog_spark.common.failure_causes import first_line, next_step, was_interrupted
from backlog_spark.errors import BacklogError

WORKER = """
  An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "job.py", line 3, in process_element
    raise ValueError(
        "the amount 13 is forbidden")
ValueError: the amount 13 is forbidden
it was given by bob

JVM stacktrace:
\tat org.apache.spark.api.python.BasePythonRunner
"""


# As Spark 4.2 has it: the traceback begins in the middle of a line.
SOURCE = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when it was read: Traceback (most recent call last):
  File "python_streaming_source_runner.py", line 281, in main
    latest_offset_admission_control_func(reader, infile, outfile)
  File "source.py", line 27, in latestOffset
    raise ValueError("the log is gone")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: the log is gone
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKER, "ValueError: the amount 13 is forbidden"),
        ("[UNRESOLVED_COLUMN] no such column\n'Project ['a]", "[UNRESOLVED_COLUMN] no such column"),
        (
            "Traceback (most recent call last):\n  File x\nbacklog_spark.errors.BacklogError: No table. Name one.\n",
            "No table. Name one.",
        ),
        ("Traceback (most recent call last):\n  File x", "RuntimeError"),
        (SOURCE, "ValueError: the log is gone"),
        (
            "An error occurred while calling o9.load.\n: java.io.IOException: Cannot run program\n\tat java.base",
            "Cannot run program",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_what_happened(text: str, line: str) -> None:
    assert first_line(RuntimeError(text)) == line


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("ModuleNotFoundError: No module named 'backlog_spark.errors'", "(pip install backlog-spark)"),
        ("ModuleNotFoundError: No module named 'pymysql'", "(pip install 'backlog-spark[mysql]')"),
        ("ModuleNotFoundError: No module named 'their.own'", "(pip install their)"),
        ("org.apache.spark.SparkException: Python worker failed to connect back.", "could not start a Python process"),
        (': java.io.IOException: Cannot run program "/x/python": error=2', "could not start a Python process"),
        ("[UNRESOLVED_ROUTINE] Cannot resolve routine `SUMM` on search path", "Did you mean sum?"),
        ("as a query with that name is already active in", "Stop that query first"),
        ("[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid", ".key_by('id')"),
    ],
)
def test_the_next_step(text: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert step in next_step(text)
    assert ("/opt/python" in next_step(text)) == ("Python" in step or "pip" in step)
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert ("PYSPARK_PYTHON is not set" in next_step(text)) == ("Python" in step or "pip" in step)


LOST = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times. Lost task 0.3 in stage
1.0 (TID 7) ({} executor {}): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
ModuleNotFoundError: No module named 'pymysql'"""
PLANNED = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source: Traceback (most recent call last):
ModuleNotFoundError: No module named 'backlog_spark'"""


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (LOST.format("10.0.0.5", "3"), "On executor 3 on 10.0.0.5 pymysql is missing."),
        (LOST.format("laptop", "driver"), "On the driver's machine pymysql is missing."),
        (PLANNED, "On the driver's machine backlog_spark is missing."),
    ],
)
def test_a_missing_package_is_located(text: str, where: str) -> None:
    assert next_step(text).startswith(where)


def test_a_relative_interpreter_is_that_of_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'java.io.IOException: Cannot run program "./environment/bin/python": error=2'
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    assert next_step(text).endswith("Unpack an archive of --archives in the driver's directory too.")
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert "--archives" not in next_step(text)


@pytest.mark.parametrize(
    ("problem", "hint", "text"),
    [
        ("No space left on device", "Free some space.", "No space left on device. Free some space."),
        ("It is full.", "Free some space.", "It is full. Free some space."),
        ("No space left on device", "", "No space left on device"),
    ],
)
def test_the_next_step_is_a_sentence_of_its_own(problem: str, hint: str, text: str) -> None:
    assert str(BacklogError(problem, hint)) == text


def test_an_error_of_a_query_has_no_next_step_of_its_own() -> None:
    assert next_step("ValueError: no module is named so") == ""


@pytest.mark.parametrize(
    ("text", "interrupted"),
    [
        ("An error occurred while calling o9.save.\n: java.lang.InterruptedException\n\tat java.base", True),
        ("java.io.InterruptedIOException: The call was interrupted", True),
        ("java.nio.channels.ClosedByInterruptException", True),
        ("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group 1f", True),
        ("ValueError: the disk is full", False),
        ("java.io.IOException: No space left on device", False),
    ],
)
def test_errors_caused_by_a_stop(text: str, interrupted: bool) -> None:
    assert was_interrupted(RuntimeError(text)) is interrupted
