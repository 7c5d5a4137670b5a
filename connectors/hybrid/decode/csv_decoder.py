"""Decodes CSV, one record per value, like Spark's ``from_csv``.

The fast path is pyarrow's CSV reader with all columns as text. It takes records with regular quotes: around whole
fields, without a quote or escape inside. `Texts` then parses the texts.

Differences from Spark that remain:

* Timestamps: the same two differences as for JSON, a time of day alone, and the option ``timeZone``.
* An escape, or a part of a longer separator, right after the quote that ends a field (``"x"\\y``): the field ends at
  the next separator, including the quotes, as with any other character there. univocity mixes this field with the next
  one. It also does so with the character U+0000 if ``quote`` or ``escape`` is off. After a quote that ends no field
  Spark's corrupt record may also keep or lose one character of the line end.
* ``from_csv`` refuses the mode DROPMALFORMED. Here it works as for files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from backlog_spark.errors import BacklogError

from .base import Mode, Parsed, TwoPathDecoder, text_of
from .blocks import content_of, either, joined, not_utf8, spread
from .csv_split import Splitter
from .rescued import json_object, json_text
from .texts import Formats, Texts, is_readable

__all__ = ["UNKNOWN", "CsvDecoder"]

UNKNOWN = "\0"
"""Begins the name of a column of the file that is not in the schema. No column is called so: Spark's parser ends a name
there."""

_FLOAT_WORDS = {"NaN": float("nan"), "Inf": float("inf"), "-Inf": float("-inf")}
_BOM = b"\xef\xbb\xbf"
# RE2's limit for repetitions.
_MOST_COLUMNS = 1000
_LINE_END = re.compile(r"(?:\r?\n|\f)\Z")


class CsvDecoder(TwoPathDecoder):
    """Decodes lines of CSV, without a header.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared data, in the order of the fields of a record.
    mode, corrupt : str
        See `TwoPathDecoder`.
    formats : Formats
        Formats of dates and timestamps.
    sep, quote, escape, null_value : str
        See `DecodeOptions`.
    rescued : str
        The last column of the schema, for an object of JSON with the fields that are not of the schema's types, and
        with those of columns that are named `UNKNOWN` and more. Fields after the last column are ``_c`` and their
        number. Such values, and fields that are missing, do not make a record malformed. Default: there is none.
    """

    def __init__(
        self,
        schema: pa.Schema,
        mode: Mode,
        corrupt: str,
        formats: Formats,
        sep: str,
        quote: str,
        escape: str,
        null_value: str,
        rescued: str = "",
    ) -> None:
        super().__init__(schema, mode, corrupt)
        self._rescued = rescued
        # The columns that a record has.
        self._own = self.schema.remove(len(self.schema) - 1) if rescued else self.schema
        for column in self._own:
            if not is_readable(column.type):
                raise BacklogError(
                    f"CSV is not decoded to {column.type} (column {column.name}).", "Declare the column STRING."
                )
        self._arguments = (schema, mode, corrupt, formats, sep, quote, escape, null_value, rescued)
        self._null_value = null_value
        self._split = Splitter(sep, quote, escape)
        self._texts = [Texts(column.type, formats, _FLOAT_WORDS) for column in self._own]
        self._sep, self._quote = sep.encode(), quote.encode()
        self._has_fast_road = len(self._sep) == 1 and len(self._quote) <= 1 and 0 < len(self._own) <= _MOST_COLUMNS
        within = f"[^{re.escape(quote + escape)}\r\n]*"
        outside = f"[^{re.escape(quote + sep)}\r\n]*"
        field = f"(?:{re.escape(quote)}{within}{re.escape(quote)}|{outside})"
        self._regular = rf"\A{field}(?:{re.escape(sep)}{field}){{{max(0, len(self._own) - 1)}}}\z"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._arguments)

    def shown(self, record: bytes) -> str:
        """See `TwoPathDecoder`; without the end of the line, as in Spark."""
        return _LINE_END.sub("", text_of(record))

    def fast(self, values: pa.Array) -> tuple[list[pa.Array], np.ndarray | None] | None:
        """See `TwoPathDecoder`."""
        if not self._has_fast_road:
            return None
        content = content_of(values)
        has_quotes = bool(self._quote) and self._quote in content
        seen = self._seen(values, content, has_quotes)
        if not seen.all():
            if not seen.any():
                return None
            values = values.take(pa.array(np.flatnonzero(seen)))
        table = self._table(values, has_quotes)
        if table is None:
            return None
        columns = []
        doubted: np.ndarray | None = None
        for texts, column in zip(self._texts, table.columns, strict=True):
            found = pc.if_else(pc.equal(column, self._null_value), None, column).combine_chunks()
            if isinstance(found, pa.ChunkedArray):
                found = pa.concat_arrays(found.chunks)
            parsed, doubts = texts.many(found)
            columns.append(parsed)
            doubted = either(doubted, doubts)
        if self._rescued:
            columns.append(self._unknown(columns, len(values)))
        return (columns, doubted) if seen.all() else spread((columns, doubted), seen)

    def _seen(self, values: pa.Array, content: bytes, has_quotes: bool) -> np.ndarray:
        """Which records the fast path may take."""
        seen = np.ones(len(values), bool)
        wrong = not_utf8(values)
        if wrong is not None:
            seen &= ~wrong
        fits = pc.equal(pc.count_substring(values, self._sep), len(self._own) - 1)
        if has_quotes or b"\n" in content or b"\r" in content:
            # A regular expression never matches text that is not UTF-8.
            fits = pc.if_else(
                pc.match_substring_regex(values, r"[\r\n" + re.escape(self._quote.decode()) + "]"),
                pc.match_substring_regex(values, self._regular),
                fits,
            )
        if len(self._own) == 1:
            fits = pc.and_(fits, pc.greater(pc.binary_length(values), 0))  # pyarrow skips empty lines
        if _BOM in content:
            fits = pc.and_(fits, pc.invert(pc.starts_with(values, _BOM)))
        seen &= fits.to_numpy(zero_copy_only=False)
        return seen

    def _table(self, values: pa.Array, has_quotes: bool) -> pa.Table | None:
        """All columns as text, NULL where a field is empty. None if pyarrow finds another number of records."""
        buffer = joined(values)
        names = [str(i) for i in range(len(self._own))]
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(buffer),
                read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=buffer.size + 1, column_names=names),
                parse_options=pyarrow.csv.ParseOptions(
                    delimiter=self._sep.decode(),
                    quote_char=self._quote.decode() if has_quotes else False,
                    double_quote=False,
                    escape_char=False,
                    newlines_in_values=False,
                    ignore_empty_lines=False,
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(values) else None

    def exact(self, records: Sequence[bytes]) -> Parsed:
        """See `TwoPathDecoder`."""
        columns: list[list[Any]] = [[] for _ in self.schema]
        bad: dict[int, str] = {}
        for index, record in enumerate(records):
            row, reason = self._row(text_of(record))
            if reason:
                bad[index] = reason
            for column, value in zip(columns, row, strict=True):
                column.append(value)
        return Parsed([pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)], bad)

    def _unknown(self, columns: list[pa.Array], count: int) -> pa.Array:
        """The fields of columns that are not in the schema."""
        unknown = [
            (field.name.removeprefix(UNKNOWN), column.to_pylist())
            for field, column in zip(self._own, columns, strict=True)
            if field.name.startswith(UNKNOWN) and column.null_count < len(column)
        ]
        if not unknown:
            return pa.nulls(count, pa.string())
        rows = zip(*(values for _, values in unknown), strict=True)
        names = [name for name, _ in unknown]
        return pa.array([_object(zip(names, row, strict=True)) for row in rows], pa.string())

    def _rescue(self, fields: list[str | None]) -> list[Any]:
        """The values of a record, and at their end what does not fit."""
        row: list[Any] = [None] * len(self._own)
        rest: list[tuple[str, str]] = []
        for i, field in enumerate(fields):
            if field is None or field == self._null_value:
                continue
            if i < len(row):
                row[i] = self._texts[i].one(field)
            name = self._own.field(i).name if i < len(row) else f"_c{i}"
            if i >= len(row) or row[i] is None or name.startswith(UNKNOWN):
                rest.append((name.removeprefix(UNKNOWN), field))
        return [*row, _object(rest)]

    def _row(self, record: str) -> tuple[list[Any], str]:
        row: list[Any] = [None] * len(self._texts)
        if not record:
            return [None] * len(self.schema), ""
        fields = self._split(record)
        if self._rescued:
            return self._rescue(fields), ""
        reason = "" if len(fields) == len(row) else f"it has {len(fields)} fields instead of {len(row)}"
        for i, (field, texts) in enumerate(zip(fields, self._texts, strict=False)):
            if field is None or field == self._null_value:
                continue
            row[i] = texts.one(field)
            if row[i] is None:
                reason = reason or f"{self.schema.field(i).name}: a field that is no {texts.type}"
        return row, reason


def _object(fields: Iterable[tuple[str, str | None]]) -> str | None:
    """An object of JSON from the fields that are not NULL; None if there are none."""
    found = [(name, json_text(text)) for name, text in fields if text is not None]
    return json_object(found) if found else None
