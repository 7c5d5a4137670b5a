"""Reads the files of a change data feed: the type of a change is a column of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from ..files.entries import DataFile, Piece
from ..files.reading import Reader
from ..phases import Columns
from .rules import sequence

__all__ = ["ChangeReader"]

_TYPE, _SEQUENCE = "_change_type", "_commit_seq"


class ChangeReader:
    """Reads inserts and deletes from whole files of the table, and other changes from files of the feed.

    Parameters
    ----------
    columns : Columns
        Of the stream.
    reader_of : callable
        Makes a reader of some columns.
    """

    def __init__(self, columns: Columns, reader_of: Callable[[Columns], Reader]) -> None:
        self._columns = columns
        self._reader_of = reader_of

    def batches(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of pieces in order, in the schema of the stream."""
        for is_of_feed, group in groupby(pieces, lambda piece: _is_of_feed(piece.file)):
            of_group = list(group)
            yield from self._of_feed(of_group) if is_of_feed else self._reader_of(self._columns).batches(of_group)

    def _of_feed(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        asked = self._columns
        columns = replace(
            asked,
            data=pa.schema([*asked.data, (_TYPE, pa.string())]),
            metadata=tuple(name for name in asked.metadata if name not in (_TYPE, _SEQUENCE)),
            needed=None if asked.needed is None else {**asked.needed, _TYPE: {}},
        )
        reader = self._reader_of(columns)
        for piece in pieces:
            version = dict(piece.file.metadata)["version"]
            for batch in reader.batches([piece]):
                found = dict(zip(batch.schema.names, batch.columns, strict=True))
                adds = pc.is_in(found[_TYPE], pa.array(["insert", "update_postimage"]))
                low, high = (pa.scalar(sequence(version, kind), pa.int64()) for kind in ("delete", "insert"))
                found[_SEQUENCE] = pc.if_else(adds, high, low)
                schema = asked.arrow
                yield pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def _is_of_feed(file: DataFile) -> bool:
    """Whether the rows have their type. Files of the first version have no metadata."""
    return bool(file.metadata) and _TYPE not in dict(file.metadata)
