"""Decodes Debezium's envelopes in Avro, with the id of their schema in a registry."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from backlog_spark.errors import BacklogError
from backlog_spark.spi.schema_registry import NoSchema, Registry

from ..decode.avro_decoder import HEADER, AvroDecoder, schema_ids
from ..decode.base import PERMISSIVE, Mode
from ..decode.texts import Formats
from .debezium import EnvelopeDecoder, Layout
from .options import ChangeOptions
from .record_schemas import of_avro
from .rows import Changes, united

__all__ = ["DebeziumAvroDecoder"]

_END = 2**31 - 1
_SKIPPED = ("Heartbeat", "SchemaChangeValue", "TransactionMetadataValue")


class DebeziumAvroDecoder(EnvelopeDecoder):
    """See `ChangeDecoder`.

    Parameters
    ----------
    registry : Registry
    """

    def __init__(
        self, schema: pa.Schema, mode: Mode, corrupt: str, formats: Formats, options: ChangeOptions, registry: Registry
    ) -> None:
        super().__init__(schema, mode, corrupt, formats, options)
        self._arguments = (*self._arguments, registry)  # type: ignore[assignment]
        self._registry = registry
        # A text: why records of this schema are malformed; "" if they are skipped.
        self._layouts: dict[int, Layout | str] = {}

    def shown(self, record: bytes) -> str:
        """See `ChangeDecoder`."""
        return base64.b64encode(record).decode()

    def changes(self, values: pa.Array, keys: pa.Array, offsets: np.ndarray) -> Changes:
        """See `ChangeDecoder`."""
        framed, ids = schema_ids(values)
        bad = {int(row): "it does not begin with a 0 byte and a schema id" for row in np.flatnonzero(~framed)}
        parts: list[Changes] = []
        for id in np.unique(ids[framed]).tolist():
            rows = np.flatnonzero(framed & (ids == id))
            layout = self._layout(id)
            if isinstance(layout, str):
                bad.update((row, layout) for row in rows.tolist() if layout)
                continue
            # Without an end pyarrow computes a negative size.
            some = pc.binary_slice(values.take(pa.array(rows)), HEADER, _END)
            parts.append(self.read(layout, some, offsets[rows]).at_records(rows))
        return united([*parts, Changes.none(self.schema, bad)])

    def _layout(self, id: int) -> Layout | str:
        if id not in self._layouts:
            self._layouts[id] = self._made(id)
        return self._layouts[id]

    def _made(self, id: int) -> Layout | str:
        try:
            schema = self._registry.schema(id)
        except NoSchema as missing:
            return missing.problem.rstrip(".")
        name = str(schema.get("name", "")) if isinstance(schema, dict) else ""
        if name.rpartition(".")[2] in _SKIPPED:
            return ""
        try:
            fields = of_avro(schema)
            if fields is None:
                return f"schema {id} of the registry, {name}, is not that of an envelope"
            images = self.readers_of(fields)
            return Layout(images, AvroDecoder(Layout.schema_of(images), PERMISSIVE, "", schema))
        except BacklogError as error:
            raise BacklogError(f"schema {id} of the registry: {error.problem}", error.hint) from None

    def without_op(self, record: bytes) -> str:
        """See `EnvelopeDecoder`."""
        return "it has no op"
