"""Decodes JSON records like Spark's ``from_json``.

The fast path is pyarrow's JSON reader over all records at once. In a few cases it silently differs from Spark. Such
records are either kept from it (`_regular`) or detected in its result (`_Leaf`): a byte order mark, ``Inf`` and ``NaN``
in fields that are not read, the sign of an integer 0, decimals beyond their precision, several objects in one record
and nested records. Schemas with a map have no fast path, because pyarrow cannot read maps.

Differences from Spark that remain:

* A string column takes a value that is not a string as its text, as Spark's JSON files do by default. ``from_json``
  formats it again and changes numbers (1.50 becomes 1.5).
* Spark takes a time of day for a timestamp of the present day. Here it is malformed, because a replay after a failure
  would give another row. Seconds since the epoch that do not fit into a timestamp are malformed too; Spark wraps
  around.
* A record that is not JSON is NULL in all columns. In a few cases Spark has a value in one more column, when its parser
  recovers in the text after a broken array.
* Numbers and names may have any length, and 1e-999999999 is 0. Spark's limit is 1,000 digits.
* A number of days for a date before the year 1583 is malformed; Spark shifts it between calendars.
* Timestamps without a zone are in the option ``timeZone``, by default UTC: workers do not know the session's zone.
* ``from_json`` refuses the mode DROPMALFORMED. Here it works as for files. A record that is an array of
  objects is malformed as in ``from_json``; files of Spark give a row for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from .base import Mode, Parsed, TwoPathDecoder, text_of
from .blocks import content_of, either, joined, not_utf8, offsets_of, spread
from .json_scan import Malformed, scan
from .json_texts import TextRecords
from .json_values import base64_bytes, fields_reader
from .rescued import fields_rescuer, json_object, json_text
from .texts import Formats, Texts

__all__ = ["JsonDecoder"]

_WIDE = pa.decimal256(76, 38)
_LARGEST_SECONDS = (2**63 - 1) // 1_000_000
# Texts that pyarrow takes for numbers and Spark does not, or only with an option. They may also occur in strings.
_NON_FINITE = r"[:,\[]\s*[-+]?(?:NaN|Inf(?:inity)?)\s*[,}\]]"
_ODD = (b"\0", b"NaN", b"Inf")
# Numbers, also in quotes, that pyarrow must not see where a decimal is declared. Digits around an e in other texts,
# such as UUIDs, do not count. If an exponent makes a number with a fraction too large for `_WIDE`, pyarrow silently
# returns another number. With more than 114 digits after the point it reads beyond its table of powers: 1e-999999999
# ends the process.
_MAY_OVERFLOW = (
    r'[:,\[]\s*"?[-+]?(?:[0-9.]+[eE]\+?[0-9][0-9]+|[0-9.]{28,}[eE]\+?[0-9]|[0-9.]+[eE]-0*[1-9][0-9][0-9]+'
    r'|[0-9]*\.[0-9]{16,}[eE]-0*[6-9][0-9]|[0-9]*\.[0-9]{56,}(?:[eE]-?[0-9]+)?)"?\s*[,}\]]'
    r"|\\u00(?:3[0-9]|[46]5|2[bBdDeE])"  # the characters of a number, escaped
)
# The record number in pyarrow's error.
_ROW = re.compile(r" in row (\d+)")
# With fewer good records the exact path is as fast as a failed attempt of the fast one.
_WORTH = 32
# Deeper records are malformed. They need this many bytes.
_DEEP_BYTES, _DEEP = 2000, 999


class JsonDecoder(TwoPathDecoder):
    """Decodes JSON objects.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data. Names are compared with case, as in Spark.
    mode, corrupt : str
        See `TwoPathDecoder`.
    formats : Formats
        Formats of dates and timestamps.
    non_finite : bool
        The option ``allowNonNumericNumbers``.
    rescued : str
        The last column of the schema, for an object of JSON with the fields that are not in the schema, or not of its
        types. Such values are NULL in their columns, and do not make a record malformed. Default: there is none.
    """

    def __init__(
        self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, non_finite: bool, rescued: str = ""
    ) -> None:
        super().__init__(schema, mode, corrupt)
        self._formats, self._non_finite = formats, non_finite
        self._rescued = rescued
        # The columns that a record has.
        self._own = self.schema.remove(len(self.schema) - 1) if rescued else self.schema
        if rescued:
            self._rescue = fields_rescuer(self._own, formats, non_finite=non_finite)
        self._read = fields_reader(self._own, formats, non_finite=non_finite)
        # The ways of reading timestamps: as text or as seconds. The last one that worked is tried first.
        self._kinds: list[pa.DataType] = [pa.string()]
        self._has_decimals = any(_has(pa.types.is_decimal, f.type) for f in self._own)
        if any(_has(_is_instant, f.type) for f in self._own):
            self._kinds.append(pa.int64())
        # For columns of text alone, once a block had values that are no strings.
        self._texts: TextRecords | None = None
        self._has_others = False
        if len(self._own) and all(pa.types.is_string(f.type) for f in self._own):
            self._texts = TextRecords(self._own.names, rescues=bool(rescued))
        self._leaves: dict[pa.DataType, _Leaf] = {}
        self._has_fast_road = len(self._own) > 0 and not any(_has(pa.types.is_map, f.type) for f in self._own)

    def __reduce__(self) -> tuple[object, ...]:
        schema = self.schema
        if self.corrupt_at >= 0:
            schema = schema.insert(self.corrupt_at, pa.field(self.corrupt, pa.string()))
        return (type(self), (schema, self.mode, self.corrupt, self._formats, self._non_finite, self._rescued))

    def fast(self, values: pa.Array) -> tuple[list[pa.Array], np.ndarray | None] | None:
        """See `TwoPathDecoder`."""
        if self._texts is not None and self._has_others:
            return self._texts(values)
        if not self._has_fast_road:
            return None
        seen = _regular(values)
        if self._has_decimals:
            seen &= ~pc.match_substring_regex(values, _MAY_OVERFLOW).to_numpy(zero_copy_only=False)
        table, start, skipped = None, 0, 0
        while table is None:
            table, row = self._table(values, seen, start)
            if table is None:
                if self._texts is not None:
                    self._has_others = True
                    return self._texts(values)
                if row is None:
                    return None
                bad = start + int(np.flatnonzero(seen[start:])[row])
                # If nearly all records are bad, attempts cost more than they save: skip ever longer runs.
                skipped = 2 * skipped + 1 if row < _WORTH else 0
                start = bad + 1 + skipped
                seen[bad:start] = False
        if start:
            table, _ = self._table(values, seen, 0)
        found = self._columns(table) if table is not None else None
        return found if found is None or seen.all() else spread(found, seen)

    def _table(self, values: pa.Array, seen: np.ndarray, start: int) -> tuple[pa.Table | None, int | None]:
        """pyarrow's result for the records that it may see, or else the index of the record that it could not read."""
        values, seen = values.slice(start), seen[start:]
        if not seen.all():
            values = values.take(pa.array(np.flatnonzero(seen)))
        if not len(values):
            return self._schema(pa.string()).empty_table(), None
        buffer = joined(values)
        failed: list[int] = []
        others = "infer" if self._rescued else "ignore"
        for kind in self._kinds:
            options = pj.ParseOptions(explicit_schema=self._schema(kind), unexpected_field_behavior=others)
            whole = pj.ReadOptions(use_threads=False, block_size=buffer.size + 1)
            try:
                table = pj.read_json(pa.BufferReader(buffer), read_options=whole, parse_options=options)
            except pa.ArrowInvalid as error:
                at = _ROW.search(str(error))
                failed.append(int(at[1]) if at else len(values))
                if failed[-1]:  # the records before fit, so the kind is right
                    break
            else:
                self._kinds.sort(key=kind.__ne__)
                return (table, None) if table.num_rows == len(values) else (None, None)
        row = max(failed)
        return None, row if row < len(values) else None

    def _schema(self, kind: pa.DataType) -> pa.Schema:
        return pa.schema([pa.field(f.name, _read_as(f.type, kind)) for f in self._own])

    def _columns(self, table: pa.Table) -> tuple[list[pa.Array], np.ndarray | None] | None:
        columns = []
        doubted: np.ndarray | None = None
        for declared, column in zip(self._own, table.columns, strict=False):
            try:
                values, doubts = self._value(column.combine_chunks(), declared.type)
            except pa.ArrowException:  # decimals at the end of their range; a field of NULLs that was cut short
                return None
            columns.append(values)
            doubted = either(doubted, doubts)
        if self._rescued:
            for column in table.columns[len(self._own) :]:
                doubted = either(doubted, _there(column))
            columns.append(pa.nulls(len(table), pa.string()))
        return columns, doubted

    def _value(self, found: pa.Array, type: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
        """The column as the declared type, and which values are in doubt."""
        if isinstance(found, pa.ChunkedArray):
            found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.nulls(0, found.type)
        if pa.types.is_struct(type):
            doubted: np.ndarray | None = None
            children = []
            for i, field in enumerate(type):
                child, doubts = self._value(found.field(i), field.type)
                children.append(child)
                doubted = either(doubted, doubts)
            for i in range(type.num_fields, found.type.num_fields):
                doubted = either(doubted, _there(found.field(i)))
            mask = found.is_null() if found.null_count else None
            return pa.StructArray.from_arrays(children, fields=list(type), mask=mask), doubted
        if pa.types.is_list(type):
            items, doubts = self._value(found.flatten(), type.value_type)
            lengths = pc.fill_null(pc.list_value_length(found), 0).to_numpy(zero_copy_only=False)
            ends = np.concatenate([[0], np.cumsum(lengths)])
            mask = found.is_null() if found.null_count else None
            whole = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=type, mask=mask)
            if doubts is not None:
                rows = np.zeros(len(found), bool)
                rows[np.repeat(np.arange(len(found)), lengths)[doubts]] = True
                doubts = rows
            return whole, doubts
        leaf = self._leaves.get(type)
        if leaf is None:
            leaf = self._leaves.setdefault(type, _Leaf(type, self._formats))
        return leaf(found)

    def exact(self, records: Sequence[bytes]) -> Parsed:
        """See `TwoPathDecoder`."""
        columns: list[list[object]] = [[] for _ in self.schema]
        bad: dict[int, str] = {}
        nothing: list[object] = [None] * len(columns)
        for index, record in enumerate(records):
            row, reason = nothing, ""
            try:
                value = scan(text_of(record), non_finite=self._non_finite)
                if value is not None and self._rescued:
                    found, rest = self._rescue(value)
                    row = [*found, rest]
                elif value is not None:
                    row, reason = self._read(value)
            except Malformed as malformed:
                reason = str(malformed)
                if self._rescued:
                    row = [*nothing[1:], json_object([(self.corrupt, json_text(text_of(record)))])]
            if reason:
                bad[index] = reason
            for column, item in zip(columns, row, strict=True):
                column.append(item)
        return Parsed([pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)], bad)


class _Leaf:
    """The last step of the fast path for columns of one type."""

    def __init__(self, type: pa.DataType, formats: Formats) -> None:
        self.type = type
        self._texts = Texts(type, formats)

    def __call__(self, found: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
        """The column as the type, and which values are in doubt."""
        if pa.types.is_floating(self.type):
            return found, _odd_floats(found)
        if pa.types.is_decimal(self.type):
            return self._decimals(found)
        if pa.types.is_binary(self.type):
            return _decoded(found)
        if found.type == self.type:
            return found, None
        if pa.types.is_integer(found.type):
            too_large = np.abs(found.fill_null(0).to_numpy()) > _LARGEST_SECONDS
            seconds = pc.if_else(pa.array(~too_large), found, None) if too_large.any() else found
            return pc.multiply(seconds, 1_000_000).view(self.type), too_large if too_large.any() else None
        return self._texts.many(found)

    def _decimals(self, found: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
        type = self.type
        rounded = found if type.scale == _WIDE.scale else pc.round(found, type.scale, "half_towards_infinity")
        doubted: np.ndarray | None = None
        if type.precision - type.scale < _WIDE.precision - _WIDE.scale:
            limit = pa.scalar(10 ** (type.precision - type.scale), pa.decimal256(76, 0)).cast(_WIDE)
            fits = pc.less(pc.abs(rounded), limit)
            if not pc.all(fits).as_py():
                doubted = pc.fill_null(pc.invert(fits), False).to_numpy(zero_copy_only=False)
                rounded = pc.if_else(fits, rounded, None)
        result = pc.cast(rounded, type)
        # Arrow's division of 256 bits is wrong for a few numbers, such as 2**64 - 1; its multiplication is not.
        same = pc.equal(result.cast(_WIDE), found)
        if not pc.all(same).as_py():
            doubted = either(doubted, pc.fill_null(pc.invert(same), False).to_numpy(zero_copy_only=False))
        return result, doubted


def _there(found: pa.Array | pa.ChunkedArray) -> np.ndarray | None:
    """Which values are not NULL."""
    if found.null_count == len(found):
        return None
    there: np.ndarray = np.asarray(pc.is_valid(found))
    return there


def _odd_floats(found: pa.Array) -> np.ndarray | None:
    """Zeros with a sign, which an integer 0 does not have, and values that are not finite."""
    numbers = found.fill_null(1).to_numpy(zero_copy_only=False)
    odd: np.ndarray = ~np.isfinite(numbers) | ((numbers == 0) & np.signbit(numbers))
    return odd if odd.any() else None


def _decoded(found: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    values = [None if text is None else base64_bytes(text) for text in found.to_pylist()]
    result = pa.array(values, pa.binary())
    if result.null_count == found.null_count:
        return result, None
    return result, pc.and_(result.is_null(), found.is_valid()).to_numpy(zero_copy_only=False)


def _regular(values: pa.Array) -> np.ndarray:
    """Which records the fast path may take.

    Each begins and ends with a brace. So none can continue in the next one: outside of strings there would be no comma
    between the braces, and within a string the line feed between records is not allowed.
    """
    braces = pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))
    regular = np.array(braces.to_numpy(zero_copy_only=False))
    wrong = not_utf8(values)
    if wrong is not None:
        regular &= ~wrong
    content = content_of(values)
    if any(odd in content for odd in _ODD):
        odd = pc.or_(pc.match_substring(values, b"\0"), pc.match_substring_regex(values, _NON_FINITE))
        regular &= ~odd.to_numpy(zero_copy_only=False)
    if (np.diff(offsets_of(values)) > _DEEP_BYTES).any():
        opened = pc.add(pc.count_substring(values, b"["), pc.count_substring(values, b"{"))
        regular &= opened.to_numpy() <= _DEEP
    return regular


def _read_as(type: pa.DataType, timestamp: pa.DataType) -> pa.DataType:
    """The type for pyarrow's reader, given the declared one."""
    if pa.types.is_struct(type):
        return pa.struct([pa.field(f.name, _read_as(f.type, timestamp)) for f in type])
    if pa.types.is_list(type):
        return pa.list_(_read_as(type.value_type, timestamp))
    if pa.types.is_decimal(type):
        return _WIDE
    if pa.types.is_timestamp(type) and type.tz is not None:
        return timestamp
    return pa.string() if pa.types.is_temporal(type) or pa.types.is_binary(type) else type


def _has(asked: Callable[[pa.DataType], bool], type: pa.DataType) -> bool:
    """Whether a type, or a type nested in it, satisfies a predicate."""
    if asked(type):
        return True
    return pa.types.is_nested(type) and any(_has(asked, type.field(i).type) for i in range(type.num_fields))


def _is_instant(type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type) and type.tz is not None)
