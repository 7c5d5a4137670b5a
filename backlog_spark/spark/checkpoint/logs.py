"""Reads Spark's offset and commit logs of a checkpoint, and the identity that it has for ever.

Reaches for: the names in Spark's logs. `backlog_spark.spark.checkpoint.offset_entries` reads the entries.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from backlog_spark.common.stored_values import CHECKPOINT_VERSION, check_version
from backlog_spark.errors import BacklogError
from backlog_spark.spark.checkpoint.offset_entries import offset_lines
from backlog_spark.spark.checkpoint.store import CheckpointStore
from backlog_spark.spi.offset_flags import parse_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint"]

_IDENTITY = "identity"
_BATCHES_KNOWN = 3


class Checkpoint(CheckpointStore):
    """A streaming query's checkpoint, read from the driver.

    Each call reads the present state. Only the offsets of the newest batches are cached: an entry of that log never
    changes. A read costs a few py4j calls and one small file. Call it once a batch or once a start.

    Parameters
    ----------
    spark : SparkSession
        Any classic (not Connect) session; its Hadoop configuration is used.
    location : str
        The ``checkpointLocation`` of the query. It need not exist yet.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        super().__init__(spark, location)
        self._lines: dict[int, dict[str, str | None]] = {}

    def offsets(self, batch_id: int) -> list[dict[str, Any] | None] | None:
        """The end offsets of a batch, from Spark's offset log: one per source in plan order. Named sources: any order.

        Parameters
        ----------
        batch_id : int
            The micro-batch, from 0. Its entry is written before the batch runs.

        Returns
        -------
        list of (dict or None), or None
            None if the log has no such batch (not planned yet, or purged: Spark keeps the last 100 by
            default). A source's entry is None when it has no offset yet or when its offset is not a JSON
            object; the last ones without an offset may be missing.

        Raises
        ------
        BacklogError
            If the entry is not in one of Spark's text formats, versions 1 and 2.
        """
        lines = self._offset_lines(batch_id)
        if lines is None:
            return None
        if not all(name.isdecimal() for name in lines):
            return [parse_offset(line) for line in lines.values()]
        count = max(map(int, lines), default=-1) + 1
        return [parse_offset(lines.get(str(index))) for index in range(count)]

    def latest_batch(self) -> int | None:
        """Newest planned batch: the last entry of the offset log, perhaps not committed. None before the first."""
        return max(self._ids("offsets"), default=None)

    def latest_committed(self) -> int | None:
        """Newest batch in the commit log; None before the first commit."""
        return max(self._ids("commits"), default=None)

    def identity(self) -> str:
        """A UUID that belongs to this checkpoint for ever. Sinks use it as their transaction id.

        Called before every start. The first call creates ``<checkpoint>/backlog/identity.json``. If several processes
        call it at once, one creates the file and all return its UUID.

        Returns
        -------
        str
            The UUID in its canonical form.

        Raises
        ------
        BacklogError
            If the file is missing although the checkpoint has an offset log. With a new identity sinks would take a
            replayed batch for a new one, and write it twice. Also if the file is not ours.
        """
        found = self.read_metadata(_IDENTITY)
        if found is None:
            newest = self.latest_batch()
            if newest is not None:
                raise BacklogError(
                    f"{self._path_of(_IDENTITY)} is missing, but the checkpoint has batches up to {newest}: "
                    "it was made by a plain Spark query, or the file was deleted.",
                    "Restore the file, or start on a new checkpointLocation. A new identity on an old "
                    "checkpoint would write the replayed batch twice.",
                )
            self.write_metadata(_IDENTITY, {"version": CHECKPOINT_VERSION, "id": str(uuid.uuid4())})
            found = self.read_metadata(_IDENTITY)
        self._check_version(found)
        try:
            if found is None:
                raise ValueError("vanished")
            return str(uuid.UUID(found["id"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BacklogError(
                f"{self._path_of(_IDENTITY)} contains no identity: {found!r}.", "Restore the file from a backup."
            ) from error

    def check_version(self) -> None:
        """Check that this version of backlog_spark reads the checkpoint. Called before anything is written to it.

        Raises
        ------
        BacklogError
            If another version wrote it, in another format.
        """
        self._check_version(self.read_metadata(_IDENTITY))

    def _check_version(self, identity: dict[str, Any] | None) -> None:
        if identity is not None and "version" in identity:
            check_version(f"The checkpoint {self.location}", identity["version"], CHECKPOINT_VERSION)

    def _ids(self, log: str) -> list[int]:
        # Other names are temporary files of a running write, or checksums.
        return [int(name) for name in self.names_in(log) if name.isascii() and name.isdecimal()]

    def _offset_lines(self, batch_id: int) -> dict[str, str | None] | None:
        """A raw line per source, by name or index: None for a source without an offset. None without that batch."""
        known = self._lines.get(batch_id)
        if known is not None:
            return known
        path = self._path("offsets", str(batch_id))
        text = self._read(path)
        if text is None:
            return None
        found = offset_lines(text, path)
        self._lines = {number: lines for number, lines in self._lines.items() if number > batch_id - _BATCHES_KNOWN}
        self._lines[batch_id] = found
        return found
