"""What a failed query says of its error."""

from __future__ import annotations

import pytest

from backlog_spark.runs import first_line

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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (WORKER, "ValueError: the amount 13 is forbidden"),
        ("[UNRESOLVED_COLUMN] no such column\n'Project ['a]", "[UNRESOLVED_COLUMN] no such column"),
        (
            "Traceback (most recent call last):\n  File x\nbacklog_spark.errors.BacklogError: No table. Name one.\n",
            "backlog_spark.errors.BacklogError: No table. Name one.",
        ),
        ("Traceback (most recent call last):\n  File x", "Traceback (most recent call last):"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_what_happened(text: str, line: str) -> None:
    assert first_line(RuntimeError(text)) == line
