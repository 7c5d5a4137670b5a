"""The base of all decoders, and the handling of malformed records in each mode.

A decoder has two paths. The fast path takes whole blocks through vectorised code. It may refuse a block, or doubt some
of its records. The exact path takes one record at a time and decides. A refused block is split, so that a bad record
sends only a few others to the exact path.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from backlog_spark.errors import BacklogError

from .texts import merged

__all__ = ["Decoded", "Decoder", "MalformedRecord", "Mode", "Parsed", "TwoPathDecoder", "row_by_row", "text_of"]

Mode = str
PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
MODES: tuple[Mode, ...] = (PERMISSIVE, DROPMALFORMED, FAILFAST)

# A refused block is split into this many parts: two levels lead from 10,000 records to 160.
_PARTS = 8
# With fewer records the exact path costs no more than another attempt.
_FEW = 200
# Larger blocks are cut, so that Arrow's 32-bit offsets suffice and buffers of the same size stay small.
_MOST_BYTES = 64 << 20
# Java's decoder counts the three bytes of a surrogate as one malformed character, Python's as three.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


@dataclass(frozen=True)
class Decoded:
    """Rows of some records.

    Parameters
    ----------
    columns : list of pyarrow.Array
        In the order and types of the declared data schema, all of the same length.
    kept : pyarrow.Array or None
        For each row the index of its record (int64, sorted). None: each record gave one row.
    metadata : mapping of str to pyarrow.Array
        Metadata columns of the rows that only the records have.
    """

    columns: list[pa.Array]
    kept: pa.Array | None = None
    metadata: Mapping[str, pa.Array] = field(default_factory=dict)


class Decoder(ABC):
    """Turns records into rows. Pickled to the workers. It makes its helpers at the first call."""

    @abstractmethod
    def decode(self, values: pa.Array) -> Decoded:
        """Decode records.

        Parameters
        ----------
        values : pyarrow.Array
            Binary. A NULL record gives a row of NULLs in each mode.

        Raises
        ------
        MalformedRecord
            In the mode FAILFAST, for the first malformed record.
        BacklogError
            If no record can be decoded, whatever its content: the registry is away, or a schema does not fit.
        """


class MalformedRecord(BacklogError):
    """A malformed record, in the mode FAILFAST. The message does not contain the record.

    Parameters
    ----------
    index : int
        Index in the values of the call.
    reason : str
        The fault.
    """

    def __init__(self, index: int, reason: str) -> None:
        self.index, self.reason = index, reason
        super().__init__(
            f"record {index} of its block is malformed: {reason}.",
            "Set mode to PERMISSIVE to read it as NULL, or to DROPMALFORMED to skip it.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.index, self.reason))


@dataclass(frozen=True)
class Parsed:
    """Rows of records, one row each.

    Parameters
    ----------
    columns : list of pyarrow.Array
        The data without the column for corrupt records. For a malformed record the values that could be read.
    bad : dict of int to str
        Malformed records, and why.
    """

    columns: list[pa.Array]
    bad: dict[int, str] = field(default_factory=dict)


def row_by_row(
    schema: pa.Schema,
    records: Sequence[bytes],
    read: Callable[[bytes], list[Any]],
    reasons: Mapping[type[Exception], str],
) -> Parsed:
    """Read each record by itself.

    Parameters
    ----------
    read : callable
        The row of a record.
    reasons : mapping of exception type to str
        Its errors, and why such a record is malformed; "" for the error's own text.
    """
    columns: list[list[Any]] = [[] for _ in schema]
    bad: dict[int, str] = {}
    nothing: list[Any] = [None] * len(columns)
    errors = tuple(reasons)
    for index, record in enumerate(records):
        row = nothing
        try:
            row = read(record)
        except errors as error:
            bad[index] = next(why for kind, why in reasons.items() if isinstance(error, kind)) or str(error)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return Parsed([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], bad)


class TwoPathDecoder(Decoder):
    """The parts that all formats share.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data, with or without the column for corrupt records.
    mode : str
        One of `MODES`.
    corrupt : str
        Name of the column for the text of malformed records, if the schema has it.
    """

    def __init__(self, schema: pa.Schema, mode: Mode, corrupt: str) -> None:
        self.mode, self.corrupt = mode, corrupt
        self.corrupt_at: int = schema.get_field_index(corrupt)
        if self.corrupt_at >= 0:
            if not pa.types.is_string(schema.field(corrupt).type):
                raise BacklogError(
                    f"the column {corrupt}, for corrupt records, is declared as {schema.field(corrupt).type}.",
                    "Declare it STRING, or set columnNameOfCorruptRecord to another column.",
                )
            schema = schema.remove(self.corrupt_at)
        if not len(schema):
            raise BacklogError("the schema has no column to decode.", "Declare the records' columns.")
        self.schema = schema

    @abstractmethod
    def fast(self, values: pa.Array) -> tuple[list[pa.Array], np.ndarray | None] | None:
        """Rows of a block without NULLs, and which records need the exact path, if any. None: all do."""

    @abstractmethod
    def exact(self, records: Sequence[bytes]) -> Parsed:
        """Rows of some records."""

    def shown(self, record: bytes) -> str:
        """The value of a malformed record in the column for corrupt records."""
        return text_of(record)

    def skipped(self, values: pa.Array) -> np.ndarray | None:
        """Which records of a block without NULLs give no row in any mode. None: no record."""
        return None

    def parsed(self, values: pa.Array) -> Parsed:
        """Rows of records without NULLs, before the mode is applied."""
        pieces: list[Parsed] = []
        self._parse(values, pieces)
        columns = [
            pa.concat_arrays([piece.columns[i] for piece in pieces]) if pieces else pa.nulls(0, declared.type)
            for i, declared in enumerate(self.schema)
        ]
        bad: dict[int, str] = {}
        before = 0
        for piece in pieces:
            bad.update((before + index, reason) for index, reason in piece.bad.items())
            before += len(piece.columns[0]) if piece.columns else 0
        return Parsed(columns, bad)

    def decode(self, values: pa.Array) -> Decoded:
        """See `Decoder`."""
        if not pa.types.is_binary(values.type):
            values = values.cast(pa.binary())  # text works too
        known, at = values, np.arange(len(values))
        if values.null_count:
            at = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            known = values.drop_null()
        keep = np.ones(len(values), bool)
        skipped = self.skipped(known)
        if skipped is not None and skipped.any():
            keep[at[skipped]] = False
            known, at = known.filter(pa.array(~skipped)), at[~skipped]
        parsed = self.parsed(known)
        return self._by_mode(known, at, keep, parsed.columns, parsed.bad)

    def _by_mode(
        self, known: pa.Array, at: np.ndarray, keep: np.ndarray, columns: list[pa.Array], bad: dict[int, str]
    ) -> Decoded:
        """Rows of parsed records. Adds rows of NULL records, and drops rows as the mode demands.

        ``at``: the index of each parsed record. ``keep``: which of all records may have a row.
        """
        if bad and self.mode == FAILFAST:
            first = min(bad)
            raise MalformedRecord(int(at[first]), bad[first])
        if self.corrupt_at >= 0:
            columns.insert(self.corrupt_at, self._corrupt(known, bad))
        # For each record the index of its parsed row; -1: none.
        row = np.full(len(keep), -1)
        row[at] = np.arange(len(known))
        if bad and self.mode == DROPMALFORMED:
            keep[at[list(bad)]] = False
        kept = None
        if not keep.all():
            kept, row = np.flatnonzero(keep), row[keep]
        if len(known) < len(keep) or kept is not None:
            rows = pa.array(row, pa.int64(), mask=row < 0)
            columns = [column.take(rows) for column in columns]
        return Decoded(columns, None if kept is None else pa.array(kept, pa.int64()))

    def _corrupt(self, known: pa.Array, bad: dict[int, str]) -> pa.Array:
        column = pa.nulls(len(known), pa.string())
        if bad and self.mode == PERMISSIVE:
            at = np.array(sorted(bad))
            texts = [self.shown(record) for record in known.take(pa.array(at)).to_pylist()]
            column = merged(column, at, pa.array(texts, pa.string()))
        return column

    def _parse(self, values: pa.Array, pieces: list[Parsed]) -> None:
        if not len(values):
            return
        if values.nbytes > _MOST_BYTES and len(values) > 1:
            self._cut(values, 2, pieces)
            return
        fast = self.fast(values)
        if fast is not None:
            pieces.append(self._completed(values, *fast))
        elif len(values) <= _FEW:
            pieces.append(self.exact(values.to_pylist()))
        else:
            self._cut(values, _PARTS, pieces)

    def _cut(self, values: pa.Array, parts: int, pieces: list[Parsed]) -> None:
        size = -(-len(values) // parts)
        for start in range(0, len(values), size):
            self._parse(values.slice(start, size), pieces)

    def _completed(self, values: pa.Array, columns: list[pa.Array], doubted: np.ndarray | None) -> Parsed:
        """The rows of the fast path. Rows in doubt come from the exact path."""
        if doubted is None or not doubted.any():
            return Parsed(columns)
        at = np.flatnonzero(doubted)
        again = self.exact(values.take(pa.array(at)).to_pylist())
        columns = [merged(column, at, exact) for column, exact in zip(columns, again.columns, strict=True)]
        return Parsed(columns, {int(at[index]): reason for index, reason in again.bad.items()})


def text_of(record: bytes) -> str:
    """A record as text. Bytes that are not UTF-8 become U+FFFD, as in Java."""
    try:
        return record.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xef\xbf\xbd", record).decode(errors="replace")
