"""Decodes Maxwell's JSON.

Source: Maxwell's documentation, "Data Format".
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..decode.base import PERMISSIVE, Mode
from ..decode.json_decoder import JsonDecoder
from ..decode.texts import Formats
from .base import OFFSET_SHIFT, ChangeDecoder, parsed_by
from .encodings import reader
from .images import Images
from .options import ChangeOptions, sequence_at
from .rows import DELETE, INSERT, UPDATE, Changes
from .texts import before_images, with_whole_old

__all__ = ["MaxwellDecoder"]

_KINDS = {"insert": INSERT, "bootstrap-insert": INSERT, "update": UPDATE, "delete": DELETE}
_OTHERS = (
    "bootstrap-start", "bootstrap-complete", "database-create", "database-alter", "database-drop", "table-create",
    "table-alter", "table-drop",
)  # fmt: skip
_NAMES = pa.array([*_KINDS, *_OTHERS])
_NUMBERS = np.array([*_KINDS.values(), *(-1 for _ in _OTHERS), -2])
_SECOND = 1_000_000
_INSTANT = pa.timestamp("us", "UTC")
_POSITION = r"\A.*\.(?P<file>[0-9]{1,10}):(?P<pos>[0-9]{1,12})\z"


class MaxwellDecoder(ChangeDecoder):
    """See `ChangeDecoder`. A record's ``position`` is the end of its event in the log."""

    def __init__(self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, options: ChangeOptions) -> None:
        super().__init__(schema, mode, corrupt, formats, options)
        readers = {}
        for declared in self.schema:
            type = declared.type
            how = "base64" if pa.types.is_binary(type) else "text" if pa.types.is_temporal(type) else "number"
            how = options.encodings.get(declared.name, how)
            readers[declared.name] = reader(declared.name, type, how, None, formats)
        self._images = Images(self.schema, readers)
        row = self._images.carrier
        fields = [("data", row), ("old", row), ("type", pa.string()), ("ts", pa.int64()), ("position", pa.string())]
        more = [("database", pa.string()), ("table", pa.string())]
        self._decoder = JsonDecoder(pa.schema([*fields, *more]), PERMISSIVE, "", formats, non_finite=True)

    def changes(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """See `ChangeDecoder`."""
        values, whole = with_whole_old(values)
        (data, old, kind, ts, position, database, table), bad = parsed_by(self._decoder, values)
        kinds = _NUMBERS[pc.index_in(kind, _NAMES).fill_null(len(_NAMES)).to_numpy()]
        after = self._images.columns(data, bad)
        before = self._images.columns(old, bad)
        keep = self.drop_others(database, table, bad)
        for index in np.flatnonzero((kinds == -2) & keep).tolist():
            bad.setdefault(index, f"its type is {kind[index].as_py()!r}, which is none of Maxwell's")
        is_update = kinds == UPDATE
        before = before_images(before, after, whole & is_update)
        has_data = data.is_valid().to_numpy(zero_copy_only=False)
        has_old = old.is_valid().to_numpy(zero_copy_only=False)
        changes = Changes(
            np.arange(len(values)), kinds, before, after,
            np.where(is_update, has_data & has_old, has_data), has_data,
            offsets.astype(np.int64) << OFFSET_SHIFT if self.options.by_offset else _positions(position),
            pc.multiply(ts, _SECOND).view(_INSTANT), database, table, bad,
        )  # fmt: skip
        keep &= kinds >= 0
        if bad:
            keep[list(bad)] = False
        return changes.where(keep)


def _positions(texts: pa.Array) -> np.ndarray:
    """The place of each change in the binary log, less one: an event that ends at a place is before it."""
    parts = pc.extract_regex(texts, _POSITION)
    texts_of = (pc.if_else(parts.is_valid(), parts.field(name), "0") for name in ("file", "pos"))
    file, pos = (pc.cast(part, pa.int64()).to_numpy() for part in texts_of)
    found = [sequence_at(f, p - 1) for f, p in zip(file.tolist(), pos.tolist(), strict=True)]
    return np.array(found, np.int64)
