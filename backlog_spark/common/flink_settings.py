"""Flink's settings in a Spark configuration: each is applied, holds here anyway, or is refused (pure).

spark-submit drops names that do not begin with ``spark.``, so each is read with that prefix too.
"""

from __future__ import annotations

from typing import Final

from backlog_spark.common.familiar_names import nearest
from backlog_spark.errors import SettingError

__all__ = ["FLINK_DURING_BACKLOG", "FLINK_INTERVAL", "check_flink", "flink_name", "ours"]

FLINK_INTERVAL: Final = "execution.checkpointing.interval"
FLINK_DURING_BACKLOG: Final = "execution.checkpointing.interval-during-backlog"

_AREAS: Final = ("execution.", "pipeline.", "restart-strategy", "state.", "table.exec.", "parallelism.")

_OURS: Final = {
    # FLIP-443's name, and that of Flink's releases
    "execution.checkpointing.unaligned.splittable-timers.enabled": "spark.backlog.timers.interruptible.enabled",
    "execution.checkpointing.unaligned.interruptible-timers.enabled": "spark.backlog.timers.interruptible.enabled",
    "pipeline.backlog.watermark-lag-threshold": "spark.backlog.rule.watermarkLag",  # FLIP-328
    "pipeline.max-parallelism": "spark.backlog.keyGroups",
}

# Values that hold here anyway, in lower case.
_SO_ANYWAY: Final = {
    "execution.checkpointing.mode": "exactly_once",
    "execution.checkpointing.max-concurrent-checkpoints": "1",
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "true",
    "execution.checkpointing.unaligned.enabled": "false",
    "execution.runtime-mode": "streaming",
}

_PLACE: Final = "Pass the directory as the query's option checkpointLocation."
_STORE: Final = "Spark's state store is set by spark.sql.streaming.stateStore.*; keyed queries use RocksDB."
_NO_BARRIERS: Final = "Spark has no barriers that could wait in a buffer: a commit is the end of a batch. Remove it."
_BATCHES: Final = "Remove it: batches follow one another, and each is one commit."
_STAYS: Final = "A checkpoint stays until you remove its directory. Remove the setting."
_SAVEPOINT: Final = "For a savepoint copy the checkpoint's directory while the query is stopped."
_RESUME: Final = "To continue from a savepoint pass a copy of the checkpoint's directory as checkpointLocation."
_ROWS: Final = "Write trigger(processing_time='…'): rows are passed on once an interval."
# By the beginning of a name; the longest counts.
_INSTEAD: Final = {
    "execution.": "See docs/coming_from.md for what there is. Else remove it.",
    "execution.attached": "A query runs in the program that starts it: call query.awaitTermination(). Remove it.",
    "execution.batch": "Spark's own batch engine reads the backlog: see spark.sql.adaptive.*.",
    "execution.buffer-timeout": _ROWS,
    "execution.checkpointing.": "A checkpoint is Spark's own here, one a batch. Remove it.",
    "execution.checkpointing.aligned-checkpoint-timeout": _NO_BARRIERS,
    "execution.checkpointing.alignment-timeout": _NO_BARRIERS,
    "execution.checkpointing.checkpoints-after-tasks-finish": "It is always so (FLIP-147). Remove it.",
    "execution.checkpointing.dir": _PLACE,
    "execution.checkpointing.externalized-checkpoint-retention": _STAYS,
    "execution.checkpointing.incremental": _STORE,
    "execution.checkpointing.max-concurrent-checkpoints": _BATCHES,
    "execution.checkpointing.min-pause": (
        "Set the interval (spark.backlog.interval): a batch begins when the one before has committed, and not before"
        " the interval is over."
    ),
    "execution.checkpointing.mode": "Each row counts exactly once; there is no weaker mode. Remove it.",
    "execution.checkpointing.num-retained": "Set spark.sql.streaming.minBatchesToRetain.",
    "execution.checkpointing.savepoint-dir": _SAVEPOINT,
    "execution.checkpointing.storage": _PLACE,
    "execution.checkpointing.timeout": "A batch takes as long as it takes; see spark.task.maxFailures.",
    "execution.checkpointing.tolerable-failed-checkpoints": "Set spark.backlog.restart.maxAttempts.",
    "execution.checkpointing.unaligned": _NO_BARRIERS,
    "execution.runtime-mode": (
        "Set the interval during backlog to 0: keyed operators run as batch while a source is in backlog, then as"
        " stream. For a job that ends write trigger(available_now=True)."
    ),
    "execution.savepoint": _RESUME,
    "execution.sorted-inputs": "Keyed operators take sorted input in backlog if the interval during backlog is 0.",
    "execution.state-recovery": _RESUME,
    "execution.target": "Set spark.master.",
    "parallelism.": "Set spark.default.parallelism and spark.sql.shuffle.partitions.",
    "pipeline.": "See docs/coming_from.md for what there is. Else remove it.",
    "pipeline.auto-watermark-interval": "Watermarks go forward once a batch: set spark.backlog.interval.",
    "pipeline.classpaths": "Set spark.jars.",
    "pipeline.jars": "Set spark.jars.",
    "pipeline.name": "Write .write('name').",
    "restart-strategy": "Set spark.backlog.restart.maxAttempts and spark.backlog.restart.delay.",
    "state.": _STORE,
    "state.checkpoints.dir": _PLACE,
    "state.checkpoints.num-retained": "Set spark.sql.streaming.minBatchesToRetain.",
    "state.savepoints.dir": _SAVEPOINT,
    "table.exec.": "bs.sql takes no settings; see docs/sql.md. Remove it.",
    "table.exec.mini-batch": _ROWS,
    "table.exec.source.idle-timeout": "Write .with_watermark(…, idle_timeout='…').",
    "table.exec.state.ttl": "Write the hint STATE_TTL in SQL joins, or StateTtlConfig in a function.",
}


def flink_name(name: str) -> str:
    """The name in Flink's spelling, of a key of a Spark configuration; "" for any other key."""
    plain = name.removeprefix("spark.")
    return plain if plain.startswith(_AREAS) else ""


def ours(name: str) -> str:
    """Our setting that one of Flink's names stands for; "" if there is none."""
    return _OURS.get(flink_name(name), "")


def check_flink(name: str, text: str) -> None:
    """Refuse a setting of Flink's that would have no effect. ``name``: a key for which `flink_name` is not empty.

    Raises
    ------
    SettingError
        Says what takes its place.
    """
    plain = flink_name(name)
    if plain in (FLINK_INTERVAL, FLINK_DURING_BACKLOG) or plain in _OURS:
        return
    if _SO_ANYWAY.get(plain) == text.strip().lower():
        return
    found = max((start for start in _INSTEAD if plain.startswith(start)), key=len)
    near = nearest(plain, [FLINK_INTERVAL, FLINK_DURING_BACKLOG, *_OURS]) if found.endswith(".") else ""
    hint = f"Did you mean {near}? " if near else ""
    raise SettingError(name, text, "is a setting of Flink that has no effect here.", hint + _INSTEAD[found])
