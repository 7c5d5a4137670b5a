"""Runs the source over files without a declared schema, start by start, without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.source import HybridDataSource, make_phases

from .reading import rows_of
from .test_avro_files import write

__all__ = ["Landing"]


class Landing:
    """A directory of files, and starts of a source over all of it.

    Parameters
    ----------
    root : Path
    form : str
    **options : str
    """

    def __init__(self, root: Path, form: str, **options: str) -> None:
        self.root, self.form = root, form
        self.options = {
            "phases": "files", "path": str(root / "data"), "metadataLocation": str(root / "meta"), "fileFormat": form,
            **options,
        }  # fmt: skip
        (root / "data").mkdir(exist_ok=True)
        self._count = 0

    def add(self, content: str | pa.Table, directory: str = "") -> str:
        """Write a file after those before. Returns its name."""
        self._count += 1
        path = self.root / "data" / directory / f"{self._count:03d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        elif self.form == "avro":
            fields = [{"name": f.name, "type": ["null", _avro(f.type, f.name)]} for f in content.schema]
            write(path, {"type": "record", "name": "R", "fields": fields}, content.to_pylist())
        elif self.form == "orc":
            orc.write_table(content, str(path))
        else:
            pq.write_table(content, path)
        os.utime(path, (self._count, self._count))
        return str(path)

    def source(self, **options: str) -> HybridDataSource:
        return HybridDataSource({**self.options, **options})

    def schema(self, **options: str) -> str:
        found = self.source(**options).schema()
        assert isinstance(found, StructType)
        return found.simpleString().removeprefix("struct<").removesuffix(">")

    def rows(self, needs: Sequence[str] | None = None, **options: str) -> list[dict[str, Any]]:
        """One start that reads everything. What is rescued is parsed, without the name of its file.

        ``needs``: the columns that the query reads. Default: all.
        """
        source = self.source(**options)
        schema = source.schema()
        assert isinstance(schema, StructType)
        parsed = HybridOptions.parse({**self.options, **options})
        phases = make_phases(parsed)
        columns = source.columns_of(schema, parsed, phases)
        found = rows_of(phases[0], replace(columns, needed=None if needs is None else {name: {} for name in needs}))
        return list(_parsed(found))

    def versions(self) -> list[str]:
        return sorted(path.name for path in (self.root / "meta" / "_schemas").iterdir())


def _avro(kind: pa.DataType, name: str) -> Any:
    if pa.types.is_struct(kind):
        fields = [{"name": f.name, "type": ["null", _avro(f.type, f"{name}_{f.name}")]} for f in kind]
        return {"type": "record", "name": name, "fields": fields}
    return {pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}[kind]


def _parsed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row.get("_rescued_data"):
            rescued = json.loads(row["_rescued_data"])
            assert Path(rescued.pop("_file_path")).exists()
            row["_rescued_data"] = rescued
        yield row
