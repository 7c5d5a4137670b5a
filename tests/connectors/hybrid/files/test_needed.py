"""Of Parquet and ORC only the needed columns are read. Their values are those of a whole reading; others are NULL."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.files.columnar import Selection
from backlog_spark.connectors.hybrid.files.formats import Asked
from backlog_spark.connectors.hybrid.needed import Fields, fields_of, narrowed
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.hybrid.phases import Columns
from backlog_spark.errors import SettingError

from .reading import rows_of

DEEP = pa.struct([("x", pa.int64()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32()), ("deep", DEEP)])),
        ("tags", pa.list_(pa.string())),
    ]
)
PATHS = [("id",), ("name",), ("place",), ("tags",), ("place", "city"), ("place", "zip"), ("place", "deep"),
         ("place", "deep", "x"), ("place", "deep", "y")]  # fmt: skip


def value(chance: random.Random) -> dict[str, Any]:
    deep = chance.choice([None, {"x": chance.randrange(9), "y": chance.choice([None, "y"])}])
    place = {"city": chance.choice([None, "c"]), "zip": chance.randrange(99), "deep": deep}
    return {"id": chance.randrange(99), "name": "n", "place": chance.choice([None, place, place]), "tags": ["t"]}


def needed(paths: list[tuple[str, ...]]) -> Fields:
    found: dict[str, Any] = {}
    for path in paths:
        inner = found
        for name in path:
            inner = inner.setdefault(name, {})
    return found


def at(row: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = row
    for name in path:
        found = None if found is None else found[name]
    return found


@pytest.mark.parametrize("form", ["parquet", "orc"])
@pytest.mark.parametrize("seed", range(8))
def test_needed_values_are_those_of_a_whole_reading(tmp_path: Path, form: str, seed: int) -> None:
    chance = random.Random(seed)
    rows = [value(chance) for _ in range(50)]
    (tmp_path / "data").mkdir()
    # Fields in another order, in another case, and one that is not declared.
    names = ("place", "tags", "id", "name")
    own = pa.schema([("more", pa.int32()), *(SCHEMA.field(n).with_name(n.replace("id", "ID")) for n in names)])
    table = pa.table([[1] * 50, *([row[n] for row in rows] for n in names)], schema=own)
    (pq if form == "parquet" else orc).write_table(table, tmp_path / "data" / f"a.{form}")
    options = {"path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta"), "fileFormat": form}
    chosen = chance.sample(PATHS, chance.randint(1, 4))
    paths = [path for path in chosen if not any(path[:n] in chosen for n in range(1, len(path)))]
    found = rows_of(FilePhase("old", options), Columns(SCHEMA, ("_file",), needed(paths)))
    assert len(found) == 50
    assert all(row["_file"].endswith(f"a.{form}") for row in found)
    for path in paths:
        assert [at(row, path) for row in found] == [at(row, path) for row in rows]
    for name in {*SCHEMA.names} - {path[0] for path in paths}:
        assert {row[name] if name != "place" else str(row[name]) for row in found} <= {None, "None"}


def test_only_needed_fields_are_read() -> None:
    made = Selection("f", SCHEMA, Asked(SCHEMA, tuple(SCHEMA.names), needed([("id",), ("place", "deep", "x")])))
    assert made.paths == ["id", "place.deep.x"]
    assert made.columns == ["id", "place"]


def test_columns_that_a_file_lacks_may_be_needed_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "data" / "a.parquet")
    options = {"path": str(tmp_path / "data"), "metadataLocation": str(tmp_path / "meta")}
    found = rows_of(FilePhase("old", options), Columns(SCHEMA, (), needed([("name",)])))
    assert [row["name"] for row in found] == [None, None]


def only(kind: pa.DataType | pa.Schema, fields: Fields) -> list[pa.Field]:
    """The fields of a type or schema, as the option has them."""
    found = [kind.field(name) for name in fields]
    return [
        f.with_type(pa.struct(only(f.type, fields[f.name]))) if fields[f.name] else f
        for f in sorted(found, key=lambda field: list(fields).index(field.name))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_batches_with_only_the_needed_columns(seed: int) -> None:
    chance = random.Random(seed)
    rows = [value(chance) for _ in range(50)]
    chosen = chance.sample(PATHS, chance.randint(1, 4))
    paths = [path for path in chosen if not any(path[:n] in chosen for n in range(1, len(path)))]
    schema = pa.schema(only(SCHEMA, needed(paths)))
    assert fields_of(SCHEMA, schema) == needed(paths)
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).slice(7)  # Arrow keeps the whole arrays of a slice
    found = narrowed(batch, schema)
    assert found.schema == schema
    for path in paths:
        assert [at(row, path) for row in found.to_pylist()] == [at(row, path) for row in rows[7:]]


def test_a_malformed_option_is_refused() -> None:
    for text in ("x", "3", "{}", '{"declared": 1, "read": 2}'):
        with pytest.raises(SettingError, match=r"neededColumns .*is malformed"):
            HybridOptions.parse({"phases": "files", "path": "/x", "neededColumns": text})
