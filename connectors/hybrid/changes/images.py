"""The columns of before- and after-images (pure)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from .encodings import Reader

__all__ = ["Images"]

# Debezium's placeholder for a value that PostgreSQL's log does not have.
_UNAVAILABLE = "__debezium_unavailable_value"


class Images:
    """Converts images to the declared columns.

    Parameters
    ----------
    schema : pyarrow.Schema
        The declared columns.
    readers : mapping of str to Reader
        By column. A column without one is NULL.
    """

    def __init__(self, schema: pa.Schema, readers: Mapping[str, Reader]) -> None:
        self._schema, self._readers = schema, readers
        self.carrier = pa.struct([pa.field(name, reader.carrier) for name, reader in readers.items()])

    def columns(self, found: pa.StructArray, bad: dict[int, str]) -> list[pa.Array]:
        """The columns. Adds images that do not fit to ``bad``."""
        columns = []
        for field in self._schema:
            reader = self._readers.get(field.name)
            if reader is None:
                columns.append(pa.nulls(len(found), field.type))
                continue
            values = found.field(field.name)
            if found.null_count:
                values = pc.if_else(found.is_valid(), values, None)
            converted, wrong = reader.convert(values)
            if wrong is not None:
                for index in wrong.nonzero()[0].tolist():
                    bad.setdefault(index, f"{field.name}: a value that does not fit into {field.type}")
            self._find_unavailable(field, converted, bad)
            columns.append(converted)
        return columns

    @staticmethod
    def _find_unavailable(field: pa.Field, column: pa.Array, bad: dict[int, str]) -> None:
        if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            return
        same = pc.equal(column, pa.scalar(_UNAVAILABLE if pa.types.is_string(field.type) else _UNAVAILABLE.encode()))
        if pc.any(same).as_py():
            for index in pc.indices_nonzero(pc.fill_null(same, False)).to_pylist():
                bad.setdefault(index, f"{field.name}: the connector had no value; set REPLICA IDENTITY FULL")
