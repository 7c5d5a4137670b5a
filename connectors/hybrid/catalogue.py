"""The options of ``hybrid`` itself as the documentation lists them (pure). Those of its phases are with the phases."""

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
        "The phases in their order, each a kind, or `name:kind`. Options are for all phases that know them; "
        "`phase.<name>.<option>` is for one alone.",
        "files, delta, kafka; an unbounded one last",
    ),
    Option(
        "schema",
        "DDL",
        "the first phase's",
        "The columns of the stream, such as `id BIGINT, at TIMESTAMP`; where `readStream.schema(…)` is at hand it does "
        "the same. Parquet, ORC and Delta declare their own.",
        spark="schema",
    ),
    Option(
        "metadataColumns",
        "names",
        "none",
        "Columns that follow: where a row comes from. NULL in phases that have no such thing. A schema that is set "
        "with `readStream.schema(…)` ends with them. Columns of these names that are not asked for here are data like "
        "any other.",
        ", ".join(METADATA),
    ),
    Option(
        "maxRowsPerBatch",
        "int",
        "1000000",
        "Rows that a batch has, about: files are cut at row groups. With `intervalDuringBacklog` backlog is cut by "
        "time, and by this only if it is set.",
        ">= 1",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "int",
        "unset",
        "The same, as Spark's Kafka source calls it.",
        ">= 1",
        "maxOffsetsPerTrigger",
    ),
    Option(
        "metadataLocation",
        "path",
        "set by a query's runner",
        "Directory, local to the driver or with a URL, for the lists of files and the keys for a hand-over. A plain "
        "`readStream` must set it where a phase needs it, to a place that stays as long as the checkpoint.",
    ),
    Option(
        "interval",
        "duration",
        "unset",
        "Batches of live data begin at multiples of it; set by a query's runner. `execution.checkpointing.interval` is "
        "read too.",
    ),
    Option(
        "intervalDuringBacklog",
        "duration",
        "unset",
        "Batches of backlog are made so large that they take this long; 0: all of it is one batch. Set by a query's "
        "runner. `execution.checkpointing.interval-during-backlog` is read too.",
        "0, or at least `interval`",
    ),
    Option(
        "useProcessingTimeAfterBacklog",
        "boolean",
        "false",
        "When the backlog has ended event time goes on with the system time (FLIP-326), for the timers of the "
        "operators behind it. Excludes `with_watermark`. Works in queries of `backlog_spark`; a plain `readStream` is "
        "not changed by it.",
        "true, false",
    ),
    Option(
        "queryToken",
        "string",
        "set by a query's runner",
        "How the source asks the query whether other sources are in backlog.",
        secret=True,
    ),
    Option(
        "availableNowTarget",
        "string",
        "latest",
        "Where a run with the trigger `availableNow` ends: at what is there when it starts, at the end of the backlog, "
        "or at once.",
        ", ".join(("latest", "backlogEnd", "none")),
    ),
)


def _secrets() -> str:
    # Not from the table of files, whose package takes 0.2 s to import; nothing else in it is a secret.
    names = {o.name for o in (FILE_SYSTEM, *OPTIONS, *KAFKA, *DECODE) if o.secret}
    names |= {f"kafka.{name}" for name in SECRET_NAMES}
    return "|".join(sorted(names)).replace(".", "[.]").replace("*", ".*")


SECRETS = f"(phase[.][^.]+[.])?({_secrets()})"
"""Regular expression, of Python and Java, for the whole names of options whose values are for nobody to see."""
