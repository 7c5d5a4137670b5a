"""Mends Spark's logs where Spark would not start from what it has left there itself.

Reaches for: the text of Spark's offset log, format 2 (seen in Spark 4.2.0, whose
``OfflineStateRepartitionUtils.isRepartitionBatch`` fails with ``None.get`` without an entry that Spark does not always
write), and the names of its temporary files (``.<batch>.<UUID>.tmp``; seen in Spark 4.2.0, whose
``MicroBatchExecution.verifyNewCheckpointDirectory`` refuses them). Entries in other formats and other files are left as
they are. No fallback is needed: without these changes Spark does not start.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint.logs import Checkpoint

__all__ = ["add_shuffle_partitions", "remove_unfinished"]

_PARTITIONS = "spark.sql.shuffle.partitions"
_UNFINISHED = re.compile(r"\.\d+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp")


def remove_unfinished(checkpoint: Checkpoint) -> None:
    """Remove what a stop or a crash in the middle of writing a query's first entry has left. Called before each start.

    Spark starts a checkpoint without entries only if nothing at all is in the directories of its logs. A
    temporary file is no entry: it gets its final name when it is complete.
    """
    if checkpoint.latest_batch() is not None:
        return
    for name in checkpoint.names_in("offsets"):
        if _UNFINISHED.fullmatch(name):
            checkpoint.delete(f"offsets/{name}")


def add_shuffle_partitions(checkpoint: Checkpoint, partitions: str) -> None:
    """Complete the entry of a batch that was planned but not committed. Called before each start.

    Spark compares the shuffle partitions of the two newest batches when it starts. Format 2 of the log does not always
    have them. Then every start fails; if they differ, the error says that state is being repartitioned. This function
    adds the value of the other batch, or else the session's.

    The entry is never missing at a later start: `Checkpoint.replace_file` keeps the new text in a separate file until
    it has replaced the entry, and `Checkpoint.finish_replacing` completes the replacement after a crash.

    Parameters
    ----------
    checkpoint : Checkpoint
    partitions : str
        The session's value.
    """
    checkpoint.finish_replacing()
    newest = checkpoint.latest_batch()
    if newest is None or newest == checkpoint.latest_committed():
        return
    logged: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for batch in range(max(0, newest - 1), newest + 1):
        name = f"offsets/{batch}"
        version, text, *offsets = (checkpoint.read_file(name) or "\n").split("\n")
        if version == "v2":
            logged[name] = json.loads(text), offsets
    known = [metadata["conf"][_PARTITIONS] for metadata, _ in logged.values() if _PARTITIONS in metadata["conf"]]
    for name, (metadata, offsets) in logged.items():
        if _PARTITIONS not in metadata["conf"]:
            metadata["conf"][_PARTITIONS] = known[0] if known else partitions
            checkpoint.replace_file(name, "\n".join(["v2", json.dumps(metadata), *offsets]))
