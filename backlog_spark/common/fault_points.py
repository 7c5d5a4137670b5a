"""Points at which the tests let a query fail. Outside the tests a point does nothing.

The environment variable `VARIABLE` names a module of the tests with a function ``reached(point)``. All processes of a
query read it when they start: the driver, and those that plan for a source. The function may end the process, raise an
error or wait.

A point is passed once per batch, run or file of the checkpoint, never once per row. These are the points:

======================= ==============================================================================================
``plan``, ``planned``   before and after a source looks for the next batch
``backlog``             a batch begins whose rows are backlog, and more backlog follows
``switch``              a batch begins that ends the backlog
``live``                a batch begins whose rows are not backlog
``sink.write``          before a sink gets the batch
``sink.commit``         the batch's files are prepared, and its commit follows
``sink.written``        the sink has the batch, and Spark has not committed it
``state.write``         before a version of batch state is written
``state.written``       its files are there, and it is not valid yet
``handover.publish``    before state is handed over
``handover.operator``   the state of one operator has been handed over
``handover.published``  the state of all operators has been handed over, and the stream run has not begun
``checkpoint.write``    before a small file of ours is written into the checkpoint
``run``                 before a run of the query starts
``restart``             a run has failed, and another one follows
``ended``               the query has ended by itself, or is about to stop with its error
======================= ==============================================================================================
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Final

__all__ = ["VARIABLE", "reached"]

VARIABLE: Final = "BACKLOG_SPARK_FAULT_POINTS"


def _loaded() -> Callable[[str], None] | None:
    module = os.environ.get(VARIABLE)
    return importlib.import_module(module).reached if module else None


_acts: Final = _loaded()


def reached(point: str) -> None:
    """The query has come to a point."""
    if _acts is not None:
        _acts(point)
