"""The text of an entry of Spark's offset log (pure: no JVM, no PySpark).

Reaches for: formats 1 and 2 of the log (seen in Spark 4.2). Another format is refused.
"""

from __future__ import annotations

from backlog_spark.errors import BacklogError

__all__ = ["offset_lines"]

# Spark's OffsetSeqLog: a source without an offset in this batch.
_NO_OFFSET = "-"


def offset_lines(text: str, path: object) -> dict[str, str | None]:
    """The lines of an entry of Spark's offset log, by the source's name or number; None for a source without an offset.

    Parameters
    ----------
    text : str
    path : object
        For the error.

    Raises
    ------
    BacklogError
        If the entry is not in format v1 or v2.
    """
    lines = text.split("\n")
    # Line 1 is Spark's own metadata (watermark and fixed confs).
    offsets = [line for line in lines[2:] if line]
    if lines[0] == "v1":
        return {str(index): None if line == _NO_OFFSET else line for index, line in enumerate(offsets)}
    if lines[0] == "v2":
        # Format 2: each line starts with the source's name, or its index if it has no name. The order is arbitrary, and
        # sources without an offset are missing.
        named = (line.partition(":") for line in offsets)
        return {name: None if offset == _NO_OFFSET else offset for name, _, offset in named}
    raise BacklogError(
        f"{path} is in format {lines[0][:20]!r}; only Spark's offset log formats v1 and v2 can be read.",
        "Set spark.sql.streaming.offsetLog.formatVersion=1 and start on a new checkpointLocation.",
    )
