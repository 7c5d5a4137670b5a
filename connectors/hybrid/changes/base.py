"""The base of decoders of change topics: NULL and malformed records, and what all formats check."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ..decode.base import DROPMALFORMED, FAILFAST, Decoded, Decoder, MalformedRecord, Mode, TwoPathDecoder, text_of
from ..decode.texts import Formats
from .options import ChangeOptions
from .rows import DELETE, INSERT, TRUNCATE, UPDATE, Changes, rows_of

__all__ = ["OFFSET_SHIFT", "ChangeDecoder"]

OFFSET_SHIFT = 20
"""Bits of ``_commit_seq`` for the changes of one record."""


class ChangeDecoder(Decoder):
    """Makes rows with change columns of the envelopes of a topic. Pickled to the workers.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data, with or without the column for corrupt records.
    mode, corrupt : str
        See `TwoPathDecoder`.
    formats : Formats
    options : ChangeOptions
    """

    def __init__(self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, options: ChangeOptions) -> None:
        self._arguments = (schema, mode, corrupt, formats, options)
        self.mode, self.formats, self.options = mode, formats, options
        self.corrupt_at: int = schema.get_field_index(corrupt)
        if self.corrupt_at >= 0:
            if not pa.types.is_string(schema.field(corrupt).type):
                raise BacklogError(f"the column {corrupt}, for corrupt records, is not text.", "Declare it STRING.")
            schema = schema.remove(self.corrupt_at)
        if not len(schema):
            raise BacklogError("the schema has no column to decode.", "Declare the table's columns.")
        for name in options.encodings:
            if name not in schema.names:
                raise BacklogError(
                    f"columnEncodings names {name}, which is not a column.", f"Columns: {', '.join(schema.names)}."
                )
        self.schema = schema

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._arguments)

    @abstractmethod
    def changes(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """The changes of records. No value is NULL. Checks neither images nor `ChangeOptions.since`."""

    def shown(self, record: bytes) -> str:
        """The value of a malformed record in the column for corrupt records."""
        return text_of(record)

    def decode(self, values: pa.Array) -> Decoded:
        """See `Decoder`. Without keys and offsets."""
        return self.decode_records(values, pa.nulls(len(values), pa.binary()), np.arange(len(values)))

    def decode_records(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Decoded:
        """The rows of records, with the change columns as ``metadata``. A tombstone gives no row.

        Parameters
        ----------
        values, keys : pyarrow.Array
            Binary.
        offsets : numpy.ndarray
            Kafka's offsets.

        Raises
        ------
        MalformedRecord, BacklogError
            As of `Decoder.decode`.
        """
        at = np.arange(len(values))
        if values.null_count:
            at = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            there = pa.array(at, pa.int64())
            values, keys, offsets = values.take(there), keys.take(there), offsets[at]
        changes = self._checked(self.changes(values, keys, offsets))
        if changes.bad and self.mode == FAILFAST:
            first = min(changes.bad)
            raise MalformedRecord(int(at[first]), changes.bad[first])
        rows = rows_of(changes, with_bad=self.mode != DROPMALFORMED)
        columns = rows.columns
        if self.corrupt_at >= 0:
            columns = [*columns]
            columns.insert(self.corrupt_at, self._corrupt(values, rows.of, changes))
        return Decoded(columns, pa.array(at[rows.of], pa.int64()), rows.metadata)

    def drop_others(self, database: pa.Array, table: pa.Array, bad: dict[int, str]) -> np.ndarray:
        """Which records are of the tables to read. Removes the others from ``bad``."""
        if not self.options.tables:
            return np.ones(len(table), bool)
        names = pc.binary_join_element_wise(database, table, ".")
        others = pc.and_(names.is_valid(), pc.invert(pc.is_in(names, pa.array(self.options.tables))))
        mask = others.to_numpy(zero_copy_only=False)
        for index in np.flatnonzero(mask).tolist():
            bad.pop(index, None)
        return np.asarray(~mask)

    def _checked(self, changes: Changes) -> Changes:
        """Without changes that are skipped, and those with a missing image are malformed."""
        o, kinds, bad = self.options, changes.kinds, dict(changes.bad)
        no_after = ((kinds == INSERT) | (kinds == UPDATE)) & ~changes.has_after
        no_before = ((kinds == DELETE) | ((kinds == UPDATE) & o.needs_before)) & ~changes.has_before
        old = (changes.sequence < o.since) if o.since else np.zeros(len(kinds), bool)
        keep = ~old
        if o.table_events != "emit":
            is_event = kinds >= TRUNCATE
            if o.table_events == "fail" and (is_event & keep).any():
                raise BacklogError(
                    "the table was truncated or dropped, which no row says to a sink.",
                    "Empty the target and set tableEvents=skip; the query then continues after it.",
                )
            keep &= ~is_event
        for wrong, reason in ((no_after, "it has no after-image"), (no_before, "it has no before-image")):
            for record in changes.of[wrong & keep].tolist():
                bad.setdefault(record, reason)
        if o.since or not o.by_offset:
            for record in changes.of[(changes.sequence < 0)].tolist():
                bad.setdefault(record, "it has no position in a log; set changeOrder=offset")
        if bad:
            keep &= ~np.isin(changes.of, list(bad))
        return replace(changes, bad=bad) if keep.all() else changes.where(keep, bad)

    def _corrupt(self, values: pa.Array, of: np.ndarray, changes: Changes) -> pa.Array:
        texts: list[str | None] = [None] * len(of)
        for row, record in enumerate(of.tolist()) if changes.bad else ():
            if record in changes.bad:
                texts[row] = self.shown(values[record].as_py())
        return pa.array(texts, pa.string())


def parsed_by(decoder: TwoPathDecoder, values: pa.Array) -> tuple[list[pa.Array], dict[int, str]]:
    """A decoder's columns, and a fresh mapping of malformed records."""
    found = decoder.parsed(values)
    return found.columns, dict(found.bad)
