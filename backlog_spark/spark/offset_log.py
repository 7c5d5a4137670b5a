"""Puts into Spark's offset log what Spark needs to start and does not always write.

Reaches for: the text of Spark's offset log, format 2 (seen in Spark 4.2.0, whose
``OfflineStateRepartitionUtils.isRepartitionBatch`` fails with ``None.get`` without it). Entries in other formats are
left as they are. There is no fallback and no need of one: without the entry Spark does not start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backlog_spark.spark.checkpoint import Checkpoint

__all__ = ["add_shuffle_partitions"]

_PARTITIONS = "spark.sql.shuffle.partitions"


def add_shuffle_partitions(checkpoint: Checkpoint, partitions: str) -> None:
    """Make a batch that was planned and not committed one that Spark can go on with. Called before each start.

    Spark compares the shuffle partitions of the two newest batches when it starts, but the log's second format does not
    always keep them: it fails at every start, and for a difference says that state is being repartitioned. They are
    added here: as the other batch has them, else as the session does.

    The entry is never missing for a later start: `Checkpoint.replace_file` keeps the new text in a file of its own
    until the entry is in its place, and `Checkpoint.finish_replacing` ends what a crash has left.

    Parameters
    ----------
    checkpoint : Checkpoint
    partitions : str
        What the session has.
    """
    checkpoint.finish_replacing()
    newest = checkpoint.latest_batch()
    if newest is None or newest == checkpoint.latest_committed():
        return
    logged: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for batch in range(max(0, newest - 1), newest + 1):
        name = f"offsets/{batch}"
        version, told, *offsets = (checkpoint.read_file(name) or "\n").split("\n")
        if version == "v2":
            logged[name] = json.loads(told), offsets
    known = [metadata["conf"][_PARTITIONS] for metadata, _ in logged.values() if _PARTITIONS in metadata["conf"]]
    for name, (metadata, offsets) in logged.items():
        if _PARTITIONS not in metadata["conf"]:
            metadata["conf"][_PARTITIONS] = known[0] if known else partitions
            checkpoint.replace_file(name, "\n".join(["v2", json.dumps(metadata), *offsets]))
