"""Reads pieces of files as rows of the stream: in a worker, or for the hand-over to the next phase."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.common.stores import Store
from backlog_spark.errors import BacklogError

from ..evolution import Evolution
from ..needed import Fields
from ..phases import OF_HISTORY, Columns
from .bitmaps import kept_rows
from .casting import Uncastable, find_field
from .entries import DataFile, Piece
from .formats import BATCH_ROWS, Asked, Format, Rows, Unreadable
from .metadata import file_metadata
from .partitioning import constant, repeated
from .schemas.rescue import Rescue, with_path
from .text import RecordFormat

__all__ = ["Reader", "gathered"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
# A batch costs some 50 µs to transfer, so the rows of small files are combined up to this number of rows or bytes.
_LEAST_ROWS = 1_000
_LEAST_BYTES = 1 << 20


class Reader:
    """Reads files in the state in which they were listed.

    Parameters
    ----------
    phase : str
        Name of the phase.
    store : Store
    form : Format
    columns : Columns
    fails_on_loss : bool
        Whether a file that is gone or changed is an error. If not, it is skipped.
    """

    #: Whether a changed file is skipped anyway, because its new content is in another list.
    skips_changed = False
    #: What happens to fields that are not in the schema. None: they are ignored.
    evolution: Evolution | None = None

    def __init__(self, phase: str, store: Store, form: Format, columns: Columns, fails_on_loss: bool) -> None:
        self._phase = phase
        self._store = store
        self._format = form
        self._columns = columns
        self._fails = fails_on_loss
        self._modified_ms = 0  # of the file that was opened last

    def open(self, file: DataFile) -> pa.NativeFile | None:
        """Open a file if it is unchanged since it was listed. None if it changed and may be skipped.

        Raises
        ------
        BacklogError
            If it changed and may not be skipped.
        """
        name = self._store.name(file.path)
        try:
            source = self._store.open(file.path)
        except FileNotFoundError:
            self._lose(name, "is gone")
            return None
        except OSError as error:
            raise BacklogError(f"{name} cannot be read: {error}.", "Check its permissions, and start again.") from None
        # Compare after opening: so the opened file is the compared one, even if it is just being replaced.
        found = self._store.stat(file.path)
        if found is None or found.size != file.size or (file.tag and found.tag != file.tag):
            source.close()
            self._lose(name, "was changed" if found else "is gone", is_fatal=not (found and self.skips_changed))
            return None
        self._modified_ms = round(found.modified * 1_000_000) // 1000
        return source

    def _lose(self, name: str, what: str, *, is_fatal: bool = True) -> None:
        if self._fails and is_fatal:
            raise BacklogError(
                f"{name} {what} since the files of phase {self._phase} were listed.",
                "Restore it, with its time of change. Or set failOnDataLoss=false to skip its rows, or start again "
                "with a new checkpoint.",
            )
        _log.warning("%s %s since the files of phase %s were listed: skipped", name, what, self._phase)

    def use(self, file: DataFile, call: Callable[[pa.NativeFile], _T]) -> _T | None:
        """The result of a function for the open file; None if the file is skipped."""
        source = self.open(file)
        if source is None:
            return None
        with source:
            try:
                return call(source)
            except Unreadable as error:
                raise self._damaged(file, error) from None

    def _damaged(self, file: DataFile, error: Unreadable) -> BacklogError:
        return BacklogError(
            f"{self._store.name(file.path)} cannot be read as {self._format.name}: {error}.",
            "Repair it and keep its time of change, or start again without it.",
        )

    def batches(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of pieces in order, in the schema of the stream."""
        columns = self._columns
        wanted = tuple(columns.data.names)
        schema = columns.arrow
        rescue = self._rescue()
        evolution, needed = self.evolution, columns.needed
        rescued = columns.metadata.index(evolution.rescued) if evolution and evolution.rescued else -1
        if rescued >= 0 and needed is not None and columns.metadata[rescued] in needed:
            needed = None

        def made() -> Iterator[pa.RecordBatch]:
            for piece in pieces:
                metadata: list[Callable[[int], pa.Array]] | None = None
                name = self._store.name(piece.file.path)
                for rows in self.rows(piece, wanted, needed, rescue):
                    if metadata is None:  # the file is open
                        metadata = self._metadata(piece)
                    more = [give(rows.number) for give in metadata]
                    if rescue is not None and rows.rescued is not None:
                        if self._format.is_untyped:
                            rescue.texts(name, rows.rescued)
                        more[rescued] = with_path(rows.rescued, name)
                    yield pa.RecordBatch.from_arrays([*rows.columns, *more], schema=schema)
            if rescue is not None:
                rescue.finish()

        return gathered(made(), schema)

    def _rescue(self) -> Rescue | None:
        if self.evolution is None or not self.evolution.rescued:
            return None
        form, data = self._format, self._columns.data
        never = form.corrupt(data) if isinstance(form, RecordFormat) else ""
        return Rescue(self.evolution, data, form.type_of, never)

    def _metadata(self, piece: Piece) -> list[Callable[[int], pa.Array]]:
        """The metadata columns of the file that was opened last."""
        names = self._columns.metadata
        name = self._store.name(piece.file.path)
        values: dict[str, Any] = {**OF_HISTORY, "_phase": self._phase, "_file": name, **dict(piece.file.metadata)}
        if "_metadata" in names:
            values["_metadata"] = file_metadata(name, piece, self._modified_ms, self._format.has_bytes)
        return [repeated(pa.scalar(values.get(name), self._columns.arrow.field(name).type)) for name in names]

    def rows(
        self, piece: Piece, wanted: tuple[str, ...], needed: Fields | None = None, rescue: Rescue | None = None
    ) -> Iterator[Rows]:
        """Rows with some of the declared columns. Those that are not needed may be NULL.

        With ``rescue`` they have what does not fit too, and it gets the columns that the file declares.
        """
        file, data = piece.file, self._columns.data
        name = self._store.name(file.path)
        constants = _constants(name, data, file.values)
        record = pa.schema([field for field in data if field.name not in constants])
        read = tuple(column for column in wanted if column not in constants)
        source = self.open(file)
        if source is None:
            return
        with source:
            try:
                seen = None if rescue is None else partial(rescue.declared, name)
                asked = Asked(record, read, needed, self._modified_ms, seen, self.evolution is not None)
                found = self._format.read(source, name, piece, asked)
                if file.deleted:
                    found = self._kept(piece, found)
                for count, arrays, rescued in found:
                    by_name = dict(zip(read, arrays, strict=True))
                    by_name |= {column: constants[column](count) for column in wanted if column not in by_name}
                    for own, width in file.chars:
                        index = find_field(wanted, own)
                        if index is not None and pa.types.is_string(by_name[wanted[index]].type):
                            by_name[wanted[index]] = pc.utf8_rpad(by_name[wanted[index]], width)
                    yield Rows(count, [by_name[column] for column in wanted], rescued)
            except Unreadable as error:
                raise self._damaged(file, error) from None

    def _kept(self, piece: Piece, found: Iterator[Rows]) -> Iterator[Rows]:
        """Remove the deleted rows."""
        at = 0
        if piece.first:
            with self._store.open(piece.file.path) as source:
                at = self._format.rows_before(source, piece.first)
        kept = kept_rows(piece.file.deleted)
        for count, arrays, rescued in found:
            mask = kept[at : at + count]
            # A deletion vector ends with the last deleted row.
            indexes = np.flatnonzero(np.pad(mask, (0, count - len(mask)), constant_values=True))
            at += count
            if len(indexes) == count:
                yield Rows(count, arrays, rescued)
            elif len(indexes):
                indices = pa.array(indexes)
                yield Rows(len(indexes), [array.take(indices) for array in arrays])  # of tables, which rescue nothing


def _constants(
    name: str, data: pa.Schema, values: tuple[tuple[str, str | None], ...]
) -> dict[str, Callable[[int], pa.Array]]:
    """Declared columns whose values are in the file's directories."""
    found = {}
    for column, value in values:
        try:
            index = find_field(data.names, column)
        except Uncastable as error:
            raise BacklogError(f"{name}: the directory {column}=: {error}.", "Declare one of them.") from None
        if index is not None:
            found[data.field(index).name] = constant(name, data.field(index), value)
    return found


def gathered(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows, with small batches combined."""
    pending: list[pa.RecordBatch] = []
    count = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        count += batch.num_rows
        size += batch.nbytes
        pending.append(batch)
        if count >= _LEAST_ROWS or size >= _LEAST_BYTES:
            yield from _joined(pending, schema)
            pending, count, size = [], 0, 0
    if pending:
        yield from _joined(pending, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).combine_chunks().to_batches(BATCH_ROWS * 2)
    return joined
