"""Sinks for tries: `Print` shows the rows, `BlackHole` drops them.

Source: Flink's "Print SQL Connector" and "BlackHole SQL Connector".
"""

from __future__ import annotations

import copy
import shutil
import sys
import tempfile
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from backlog_spark.common.familiar_names import checked_arguments
from backlog_spark.common.sql_names import quoted
from backlog_spark.model.changes import DELETE, METADATA, POSTIMAGE, PREIMAGE, TABLE_EVENTS, is_change_stream
from backlog_spark.sinks.base import BatchInfo, Sink, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BlackHole", "Print"]

# As Flink's RowKind writes them. Rows of type truncate and drop keep their word.
_KINDS: Final = {PREIMAGE: "-U", POSTIMAGE: "+U", DELETE: "-D", **{word: word for word in TABLE_EVENTS}}


@checked_arguments
class Print(Sink):
    """Prints each row in the driver, as Flink does: ``+I[1, a]``, and ``-U``, ``+U`` and ``-D`` for changes.

    A batch is printed when all of its rows are there. A restart within the driver's process does not print it again.
    After a crash of the driver the last batch may be printed again: paper has no transactions.

    Parameters
    ----------
    identifier : str, default ""
        Text before each row: ``orders> +I[1, a]``.
    standard_error : bool, default False
        Print to stderr.
    """

    def __init__(self, identifier: str = "", *, standard_error: bool = False) -> None:
        self._before = f"{identifier}> " if identifier else ""
        self._standard_error = standard_error
        self._printed = -1
        self._shown: list[str] = []
        self._has_kind = False

    def for_output(self) -> Print:
        return copy.copy(self)

    def open(self, context: SinkContext) -> None:
        self._has_kind = is_change_stream(context.schema)
        hidden = METADATA if self._has_kind else ()
        self._shown = [name for name in context.schema.names if name not in hidden]

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        from pyspark.sql import functions as F

        if batch.batch_id <= self._printed:
            return
        columns = [F.col(quoted(name)) for name in self._shown]
        kind = F.col(METADATA[0]) if self._has_kind else F.lit("")
        # A file, because a batch may be larger than memory, and nothing is printed of a batch that fails.
        with tempfile.TemporaryFile("w+", encoding="utf-8") as lines:
            for change, *values in batch_df.select(kind, *columns).toLocalIterator():
                lines.write(f"{self._before}{_KINDS.get(change, '+I')}{_row(values)}\n")
            lines.seek(0)
            out = sys.stderr if self._standard_error else sys.stdout
            shutil.copyfileobj(lines, out)
            out.flush()
        self._printed = batch.batch_id


@checked_arguments
class BlackHole(Sink):
    """Computes all rows and drops them, to measure a query without its target."""

    def open(self, context: SinkContext) -> None:
        pass

    def write(self, batch_df: DataFrame, batch: BatchInfo) -> None:
        batch_df.write.format("noop").mode("overwrite").save()


def _row(values: Any) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: Any) -> str:
    """A value as Java prints it."""
    from pyspark.sql import Row

    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes | bytearray):
        return _row(value)
    if isinstance(value, Row):
        return f"+I{_row(value)}"
    if isinstance(value, list | tuple):
        return _row(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}={_text(each)}' for key, each in value.items())}}}"
    return str(value)
