"""A simple reference decoder of JSON and CSV."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["CsvLines", "Found", "JsonLines"]


@dataclass(frozen=True)
class Found:
    columns: list[pa.Array]
    kept: pa.Array | None = None


@dataclass(frozen=True)
class JsonLines:
    """Drops values that are not objects, like DROPMALFORMED."""

    schema: pa.Schema

    def decode(self, values: pa.Array) -> Found:
        rows: list[dict[str, Any]] = []
        kept = []
        for i, value in enumerate(values.to_pylist()):
            try:
                found = json.loads(value)
            except ValueError:
                continue
            rows.append(found)
            kept.append(i)
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in self.schema]
        return Found(columns, None if len(kept) == len(values) else pa.array(kept, pa.int64()))


@dataclass(frozen=True)
class CsvLines:
    schema: pa.Schema

    def decode(self, values: pa.Array) -> Found:
        rows = [next(csv.reader([value.decode()], doublequote=True, escapechar="\\")) for value in values.to_pylist()]
        columns = [
            pa.array([row[i] or None for row in rows], pa.string()).cast(field.type)
            for i, field in enumerate(self.schema)
        ]
        return Found(columns)
