"""The documented options of ``hybrid`` itself (pure). The phases document their own."""

from __future__ import annotations

from .decode.catalogue import OPTIONS as DECODE
from .kafka.catalogue import OPTIONS as KAFKA
from .kafka.security import SECRET_NAMES
from .option import FILE_SYSTEM, Option
from .phases import METADATA

__all__ = ["OPTIONS", "SECRETS"]


OPTIONS = (
    Option(
        "phases",
        "names",
        "files, kafka",
        "The phases in their order, each a kind or `name:kind`. An option holds for all phases that know it, "
        "`phase.<name>.<option>` for one phase.",
        "files, delta, kafka; an unbounded one last",
    ),
    Option(
        "schema",
        "DDL",
        "the first phase's",
        "The columns of the stream, such as `id BIGINT, at TIMESTAMP`. `readStream.schema(…)` does the same. Parquet, "
        "ORC and Delta declare their own.",
        spark="schema",
    ),
    Option(
        "metadataColumns",
        "names",
        "none",
        "Extra columns at the end that show where a row comes from. A column is NULL in phases that do not have it. A "
        "schema set with `readStream.schema(…)` must end with them. Columns with these names that are not listed here "
        "are data.",
        ", ".join(METADATA),
    ),
    Option(
        "maxRowsPerBatch",
        "int",
        "1000000",
        "Rows per batch, approximately: files are cut at row groups. With `intervalDuringBacklog` batches of backlog "
        "are sized by time. This option then also limits them, but only if it is set.",
        ">= 1",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "int",
        "unset",
        "The same under the name of Spark's Kafka source.",
        ">= 1",
        "maxOffsetsPerTrigger",
    ),
    Option(
        "metadataLocation",
        "path",
        "set by a query's runner",
        "Directory for the lists of files and the keys for a hand-over: a local path of the driver, or a URL. A plain "
        "`readStream` must set it if a phase needs it. Keep the directory as long as the checkpoint.",
    ),
    Option(
        "interval",
        "duration",
        "unset",
        "Batches of live data begin at multiples of it. A query's runner sets it. `execution.checkpointing.interval` "
        "works too.",
    ),
    Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "Batches of backlog are sized to take this long. 0: the whole backlog is one batch. A query's runner sets it. "
        "`execution.checkpointing.interval-during-backlog` works too.",
        "0, or at least `interval`",
    ),
    Option(
        "useProcessingTimeAfterBacklog",
        "boolean",
        "false",
        "After the backlog, event time follows the system time (FLIP-326), for the timers of the next operators. "
        "Excludes `with_watermark`. Works in queries of `backlog_spark`; it does not change a plain `readStream`.",
        "true, false",
    ),
    Option(
        "queryToken",
        "string",
        "set by a query's runner",
        "Lets the source ask the query whether other sources are in backlog.",
        secret=True,
    ),
    Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where a run with the trigger `availableNow` ends. latest: after the data present at its start. backlogEnd: at "
        "the end of the backlog. none: at once.",
        ", ".join(("latest", "backlogEnd", "none")),
    ),
)


def _secrets() -> str:
    # Not from the table of files: its package takes 0.2 s to import, and no other option in it is secret.
    names = {o.name for o in (FILE_SYSTEM, *OPTIONS, *KAFKA, *DECODE) if o.secret}
    names |= {f"kafka.{name}" for name in SECRET_NAMES}
    return "|".join(sorted(names)).replace(".", "[.]").replace("*", ".*")


SECRETS = f"(phase[.][^.]+[.])?({_secrets()})"
"""Regular expression for Python and Java. It matches the whole names of options with secret values."""
