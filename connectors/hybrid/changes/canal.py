"""Decodes Canal's flat messages: JSON with the rows of one statement, all values as text.

Source: Canal's FlatMessage, and its JdbcTypeUtil for values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..decode.base import PERMISSIVE, Mode
from ..decode.json_decoder import JsonDecoder
from ..decode.texts import Formats
from .base import OFFSET_SHIFT, ChangeDecoder, parsed_by
from .encodings import reader
from .images import Images
from .options import ChangeOptions
from .rows import DELETE, DROP, INSERT, TRUNCATE, UPDATE, Changes, united
from .texts import before_images, with_whole_old

__all__ = ["CanalDecoder"]

_KINDS = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
_EVENTS = {"TRUNCATE": TRUNCATE, "ERASE": DROP}
# Statements that change no rows.
_OTHERS = {"CREATE", "ALTER", "RENAME", "CINDEX", "DINDEX", "QUERY"}
_NAMES = pa.array([*_KINDS, *_EVENTS, *_OTHERS])
_NUMBERS = np.array([*_KINDS.values(), *_EVENTS.values(), *(-1 for _ in _OTHERS), -2])
_UNKNOWN = -2
_MOST_ROWS = 1 << OFFSET_SHIFT - 1
_INSTANT = pa.timestamp("us", "UTC")


class CanalDecoder(ChangeDecoder):
    """See `ChangeDecoder`. The order is Kafka's offset, because the times of a message do not order changes."""

    def __init__(self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, options: ChangeOptions) -> None:
        super().__init__(schema, mode, corrupt, formats, options)
        readers = {}
        for declared in self.schema:
            how = options.encodings.get(declared.name, "latin1" if pa.types.is_binary(declared.type) else "text")
            readers[declared.name] = reader(declared.name, declared.type, how, None, formats)
        self._images = Images(self.schema, readers)
        rows = pa.list_(self._images.carrier)
        fields = [("data", rows), ("old", rows), ("type", pa.string()), ("es", pa.int64()), ("ts", pa.int64())]
        more = [("database", pa.string()), ("table", pa.string())]
        self._decoder = JsonDecoder(pa.schema([*fields, *more]), PERMISSIVE, "", formats, non_finite=True)

    def changes(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """See `ChangeDecoder`."""
        values, whole = with_whole_old(values)
        (data, old, kind, es, ts, database, table), bad = parsed_by(self._decoder, values)
        kinds = _NUMBERS[pc.index_in(kind, _NAMES).fill_null(len(_NAMES)).to_numpy()]
        wanted = self.drop_others(database, table, bad)
        for index in np.flatnonzero((kinds == _UNKNOWN) & wanted).tolist():
            bad.setdefault(index, f"its type is {kind[index].as_py()!r}, which is none of Canal's")
        lengths = _lengths(data)
        olds = np.where(kinds == UPDATE, _lengths(old), lengths)
        is_row = np.isin(kinds, list(_KINDS.values()))
        for wrong, reason in (
            (is_row & (lengths == 0), "it has no data"), (is_row & (lengths != olds), "old and data differ in length"),
            (lengths >= _MOST_ROWS, f"it has more than {_MOST_ROWS} rows"),
        ):  # fmt: skip
            for index in np.flatnonzero(wrong & wanted).tolist():
                bad.setdefault(index, reason)
        good = wanted
        good[list(bad)] = False
        at = pc.multiply(pc.coalesce(es, ts), 1000).view(_INSTANT)
        rows = self._rows(data, old, np.flatnonzero(good & is_row), kinds, whole, offsets, bad)
        head = (at, database, table)
        events = np.flatnonzero(good & (kinds >= TRUNCATE))
        none = [pa.nulls(len(events), field.type) for field in self.schema]
        no = np.zeros(len(events), bool)
        empty = Changes(
            events, kinds[events], none, none, no, no, offsets[events].astype(np.int64) << OFFSET_SHIFT,
            *_of(head, events),
        )  # fmt: skip
        when, where, which = _of(head, rows.of)
        found = united([replace(rows, at=when, database=where, table=which), empty])
        return found.where(~np.isin(found.of, list(found.bad))) if found.bad else found

    def _rows(
        self, data: pa.Array, old: pa.Array, at: np.ndarray, kinds: np.ndarray, whole: np.ndarray, offsets: np.ndarray,
        bad: dict[int, str],
    ) -> Changes:  # fmt: skip
        """The changes of rows; without times and tables."""
        there = pa.array(at)
        data, old = data.take(there), old.take(there)
        lengths = _lengths(data)
        of = np.repeat(at, lengths)
        number = np.arange(len(of)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        after = self._columns(data.flatten(), of, bad)
        is_update = kinds[of] == UPDATE
        has_old = old.is_valid().to_numpy(zero_copy_only=False) & (kinds[at] == UPDATE)
        some = self._columns(old.filter(pa.array(has_old)).flatten(), of[np.repeat(has_old, lengths)], bad)
        places = pa.array(np.cumsum(is_update) - 1, mask=~is_update)
        before = before_images([column.take(places) for column in some], after, whole[of] & is_update)
        kind = kinds[of]
        nothing = pa.nulls(len(of), pa.string())
        return Changes(
            of, kind, before, after, kind != INSERT, kind != DELETE,
            (offsets[of].astype(np.int64) << OFFSET_SHIFT) + 2 * number, nothing, nothing, nothing, bad,
        )  # fmt: skip

    def _columns(self, images: pa.StructArray, of: np.ndarray, bad: dict[int, str]) -> list[pa.Array]:
        wrong: dict[int, str] = {}
        columns = self._images.columns(images, wrong)
        for index, reason in wrong.items():
            bad.setdefault(int(of[index]), reason)
        return columns


def _lengths(lists: pa.ListArray) -> np.ndarray:
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False), np.int64)


def _of(head: tuple[pa.Array, pa.Array, pa.Array], records: np.ndarray) -> tuple[pa.Array, pa.Array, pa.Array]:
    rows = pa.array(records, pa.int64())
    return head[0].take(rows), head[1].take(rows), head[2].take(rows)
