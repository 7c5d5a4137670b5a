"""Decodes Debezium's envelopes: JSON without and with schemas, and Avro with a registry.

The records of a block are put into groups with the same schema. The format's own decoder reads a group as a struct of
images whose types are those that the connector writes (`encodings`), so all values of a column are converted together.

Source: Debezium documentation, "Debezium connector for MySQL", "Data change events".
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError

from ..decode.base import PERMISSIVE, Mode, TwoPathDecoder, text_of
from ..decode.json_decoder import JsonDecoder
from ..decode.json_scan import Malformed, Object, scan
from ..decode.texts import Formats, merged
from .base import OFFSET_SHIFT, ChangeDecoder, parsed_by
from .encodings import Field, by_default, named, reader
from .images import Images
from .options import ChangeOptions, sequence_at
from .record_schemas import of_connect
from .rows import DELETE, INSERT, TRUNCATE, UPDATE, Changes, united

__all__ = ["DebeziumDecoder", "EnvelopeDecoder", "Layout"]

_SOURCE = pa.struct(
    [(name, pa.int64()) for name in ("pos", "row", "lsn", "ts_ms")]
    + [(name, pa.string()) for name in ("file", "db", "table")]
)
_OPS = pa.array(["r", "c", "u", "d", "t"])
_KIND_OF_OP = np.array([INSERT, INSERT, UPDATE, DELETE, TRUNCATE])
_WRAPPED, _PAYLOAD = b'{"schema":', b',"payload":'
_IS_WRAPPED = r'\A\s*\{\s*"(?:schema|payload)"\s*:'
_MOST_SCHEMAS = 64
"""Schemas of one block that are looked for by their bytes. Records of others are parsed one by one."""
_INSTANT = pa.timestamp("us", "UTC")


class Layout:
    """How records of one schema are read.

    Parameters
    ----------
    images : Images
    decoder : TwoPathDecoder
        Reads `schema_of` of the images.
    """

    def __init__(self, images: Images, decoder: TwoPathDecoder) -> None:
        self.images, self.decoder = images, decoder

    @staticmethod
    def schema_of(images: Images) -> pa.Schema:
        """The fields of an envelope that are read."""
        return pa.schema(
            [("before", images.carrier), ("after", images.carrier), ("op", pa.string()), ("source", _SOURCE),
             ("ts_ms", pa.int64())]
        )  # fmt: skip


class EnvelopeDecoder(ChangeDecoder):
    """What JSON and Avro share; see `ChangeDecoder`."""

    @abstractmethod
    def without_op(self, record: bytes) -> str:
        """Why a record without an operation is malformed; "" if it is to be skipped."""

    def readers_of(self, fields: Mapping[str, Field] | None) -> Images:
        """The images of records with a schema, or without one.

        Raises
        ------
        BacklogError
            A column does not fit its declared type, has another case, or is not declared where that is refused.
        """
        o, found = self.options, {}
        if fields is not None:
            self.check_names(fields)
        for declared in self.schema:
            field = fields.get(declared.name) if fields is not None else None
            if fields is not None and field is None:
                continue  # the table did not have this column yet
            encoding = o.encodings.get(declared.name)
            if encoding is None:
                encoding = named(field, declared.type, o) if field is not None else by_default(declared.type, o)
            found[declared.name] = reader(declared.name, declared.type, encoding, field, self.formats)
        return Images(self.schema, found)

    def check_names(self, names: Mapping[str, Any]) -> None:
        """Refuse columns that differ by case, and unknown ones as the option says."""
        declared = set(self.schema.names)
        lower = {name.lower(): name for name in declared}
        for name in names:
            if name in declared:
                continue
            if name.lower() in lower:
                raise BacklogError(
                    f"the column {lower[name.lower()]} is {name} in the records.", "Declare it with the same case."
                )
            if self.options.refuses_unknown:
                raise BacklogError(
                    f"the records have a column {name}, which the schema lacks.",
                    "Declare it and start with a new checkpoint, or set unknownColumns=ignore.",
                )

    def read(self, layout: Layout, values: pa.Array, offsets: np.ndarray) -> Changes:
        """The changes of records of one layout."""
        (before, after, ops, source, sent), bad = parsed_by(layout.decoder, values)
        images: list[list[pa.Array]] = []
        for image in (before, after):
            images.append(layout.images.columns(image, bad))
        keep = self.drop_others(source.field("db"), source.field("table"), bad)
        numbers = pc.index_in(ops, _OPS).fill_null(-1).to_numpy()
        for index in np.flatnonzero((numbers < 0) & keep).tolist():
            if index in bad:
                continue
            op = ops[index].as_py()
            reason = f"its op is {op!r}" if op is not None else self.without_op(values[index].as_py())
            if reason and op != "m":  # a message of PostgreSQL's log is no change
                bad[index] = reason
        keep &= numbers >= 0
        if bad:
            keep[list(bad)] = False
        at = pc.coalesce(source.field("ts_ms"), sent)
        changes = Changes(
            np.arange(len(values)), np.where(keep, _KIND_OF_OP[numbers], 0), images[0], images[1],
            before.is_valid().to_numpy(zero_copy_only=False), after.is_valid().to_numpy(zero_copy_only=False),
            offsets.astype(np.int64) << OFFSET_SHIFT if self.options.by_offset else _positions(source),
            pc.multiply(at, 1000).view(_INSTANT), source.field("db"), source.field("table"), bad,
        )  # fmt: skip
        return changes if keep.all() else changes.where(keep)


def _positions(source: pa.StructArray) -> np.ndarray:
    """The place of each change in the database's log; -1 without one."""
    files = source.field("file").dictionary_encode()
    known = [_number_of(name) for name in files.dictionary.to_pylist()]
    pos, row, lsn = (source.field(name).fill_null(-1).to_numpy() for name in ("pos", "row", "lsn"))
    # A row of an event takes at least two bytes, so the places of two events do not meet.
    base = np.array([*(sequence_at(file, 0) for file in known), -1])
    base = base[files.indices.fill_null(len(known)).to_numpy()]
    logged = (base >= 0) & (pos >= 0) & (pos < 1 << 38)
    found = np.where(logged, base + pos + 2 * np.maximum(row, 0), -1)
    return np.where(~logged & (lsn >= 0) & (lsn < 1 << 61), lsn * 2, found)


def _number_of(file: str | None) -> int:
    suffix = (file or "").rpartition(".")[2]
    return int(suffix) if suffix.isdecimal() else -1


class DebeziumDecoder(EnvelopeDecoder):
    """Decodes JSON, with or without schemas, also mixed in one topic; see `ChangeDecoder`."""

    def __init__(self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, options: ChangeOptions) -> None:
        super().__init__(schema, mode, corrupt, formats, options)
        self._plain = self._layout(None)
        self._layouts: dict[bytes, Layout] = {}
        self._checked_names = False

    def changes(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """See `ChangeDecoder`."""
        wrapped = pc.match_substring_regex(values, _IS_WRAPPED).to_numpy(zero_copy_only=False)
        parts: list[Changes] = []
        rows = np.flatnonzero(~wrapped)
        if len(rows) or not len(values):
            parts.append(self._of_group(self._plain, values, rows, keys, offsets, None))
        rest = np.flatnonzero(wrapped)
        for _ in range(_MOST_SCHEMAS):
            if not len(rest):
                break
            first = values[int(rest[0])].as_py()
            cut = first.find(_PAYLOAD)
            head = first[: cut + len(_PAYLOAD)]
            is_regular = cut > 0 and head.startswith(_WRAPPED)
            layout = self._layout_of(head[len(_WRAPPED) : cut]) if is_regular else None
            if layout is None:
                break
            some = values.take(pa.array(rest))
            same = pc.and_(pc.starts_with(some, head), pc.ends_with(some, b"}")).to_numpy(zero_copy_only=False)
            if not same[0]:
                break
            rows, rest = rest[same], rest[~same]
            payload = pc.binary_slice(some.filter(pa.array(same)), len(head), -1)
            parts.append(self._of_group(layout, values, rows, keys, offsets, payload))
        for row in rest.tolist():
            parts.append(self._of_one(values, row, keys, offsets))
        return united(parts)

    def _of_one(self, values: pa.Array, row: int, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """A record with a schema, whatever its form."""
        schema, payload = _opened(values[row].as_py())
        layout = self._layout_of(schema.encode()) if schema is not None else None
        text = None if schema is None else pa.array([payload.encode()])
        return self._of_group(layout or self._plain, values, np.array([row]), keys, offsets, text)

    def _of_group(
        self, layout: Layout, values: pa.Array, rows: np.ndarray, keys: pa.Array, offsets: np.ndarray,
        payload: pa.Array | None,
    ) -> Changes:  # fmt: skip
        if payload is None:
            payload = values if len(rows) == len(values) else values.take(pa.array(rows))
            self._look_at_names(payload)
        changes = self.read(layout, payload, offsets[rows])
        lacking = np.flatnonzero((changes.kinds == DELETE) & ~changes.has_before)
        if len(lacking) and not self.options.needs_before:
            changes = self._with_keys(layout, changes, lacking, keys.take(pa.array(rows)))
        return changes.at_records(rows)

    def _with_keys(self, layout: Layout, changes: Changes, lacking: np.ndarray, keys: pa.Array) -> Changes:
        """Gives deletes without a before-image the columns of their keys."""
        texts = [_opened(keys[int(changes.of[at])].as_py() or b"")[1] for at in lacking.tolist()]
        found = pa.array([f'{{"before":{text or "null"}}}'.encode() for text in texts])
        columns, bad = parsed_by(layout.decoder, found)
        images = layout.images.columns(columns[0], bad)
        there = columns[0].is_valid().to_numpy(zero_copy_only=False)
        there[list(bad)] = False
        changes.has_before[lacking] = there
        before = [merged(old, lacking, new) for old, new in zip(changes.before, images, strict=True)]
        changes.before[:] = before
        return changes

    def _layout_of(self, schema: bytes) -> Layout | None:
        """The layout of a schema; None if it is not JSON."""
        if schema not in self._layouts:
            try:
                parsed = json.loads(schema)
            except (ValueError, RecursionError):
                return None
            self._layouts[schema] = self._layout(of_connect(parsed))
        return self._layouts[schema]

    def _layout(self, fields: Mapping[str, Field] | None) -> Layout:
        images = self.readers_of(fields)
        schema = Layout.schema_of(images)
        return Layout(images, JsonDecoder(schema, PERMISSIVE, "", self.formats, non_finite=True))

    def _look_at_names(self, values: pa.Array) -> None:
        """Check the columns' names in a record without a schema: the first one, or all if unknown ones are refused."""
        if self._checked_names and not self.options.refuses_unknown:
            return
        for value in values if self.options.refuses_unknown else values[:1]:
            try:
                found = json.loads(value.as_py())
            except (ValueError, RecursionError):
                continue
            for name in ("after", "before") if isinstance(found, dict) else ():
                if isinstance(found.get(name), dict):
                    self.check_names(found[name])
                    self._checked_names = True

    def without_op(self, record: bytes) -> str:
        """See `EnvelopeDecoder`. Heartbeats, schema changes and the bounds of transactions have no operation."""
        try:
            root = scan(text_of(record))
        except Malformed as malformed:
            return str(malformed)
        names = {name for name, _ in root.items} if isinstance(root, Object) else set()
        if names == {"ts_ms"} or "ddl" in names or {"status", "id"} <= names:
            return ""
        return "it has no op, so it is no envelope; for records without one set valueFormat=json"


def _opened(record: bytes) -> tuple[str | None, str]:
    """The texts of the schema and the payload of a JSON record; of one without a schema None and itself."""
    text = text_of(record)
    try:
        root = scan(text)
    except Malformed:
        return None, ""
    if not isinstance(root, Object):
        return None, ""
    items = dict(root.items)
    if set(items) == {"schema", "payload"} and isinstance(items["payload"], Object):
        schema = items["schema"]
        return (schema.text if isinstance(schema, Object) else "null"), items["payload"].text
    return None, text
