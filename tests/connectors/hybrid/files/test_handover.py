"""The hand-over from files to the next phase."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import TIME, Columns, Limit
from backlog_spark.errors import BacklogError

from .decoding import JsonLines

LAST = datetime(2024, 5, 1, 12, 0, 0, 999_999, tzinfo=UTC)
LAST_MS = int(datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()) * 1_000 + 999
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("at", pa.timestamp("us", "UTC"))])
# One a second back from the last, keys twice.
ROWS: list[dict[str, Any]] = [
    {"id": i // 2, "kind": None if i % 4 == 0 else "ü", "at": LAST - timedelta(seconds=i)} for i in range(100)
]
ROWS += [{"id": -1, "kind": "no time", "at": None}]
OPTIONS = {"timestampColumn": "at", "dedupKey": "kind,id", "startingOverlap": "10 s"}


def phase(root: Path, schema: pa.Schema = SCHEMA, **options: str) -> FilePhase:
    made = FilePhase(
        "old", {"path": str(root / "data"), "metadataLocation": str(root / "meta")} | options, decoder_of=JsonLines
    )
    made.open(Columns(schema, ("_file",)))
    return made


def told(source: FilePhase) -> dict[str, Any]:
    return dict(source.ended(source.next(source.begin({}), Limit(), 0).position))


def write(root: Path, form: str, **options: Any) -> None:
    """Two files, the later rows in the first."""
    (root / "data").mkdir()
    for number, rows in enumerate((ROWS[:60], ROWS[60:])):
        table = pa.Table.from_pylist(rows, SCHEMA)
        path = root / f"data/{number}.{form}"
        if form == "orc":
            orc.write_table(table, path)
        elif form == "parquet":
            pq.write_table(table, path, row_group_size=7, **options)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("parquet", {}),
        ("parquet", {"write_statistics": False}),
        ("parquet", {"use_deprecated_int96_timestamps": True}),
        ("parquet", {"version": "2.6", "coerce_timestamps": None}),
        ("orc", {}),
    ],
)
def test_the_last_time_and_the_keys_since_the_overlap(tmp_path: Path, form: str, options: dict[str, Any]) -> None:
    write(tmp_path, form, **options)
    source = phase(tmp_path, fileFormat=form, **OPTIONS)
    found = told(source)
    assert found["lastTimestamp"] == LAST_MS
    keys = pq.read_table(found["dedup"])
    assert keys.schema.names == ["kind", "id", "at"]
    assert keys.schema.metadata[TIME] == b"at"
    # Rows of 0 to 10 seconds ago; milliseconds are rounded down, so the tenth counts.
    wanted = {(row["kind"], row["id"], row["at"]) for row in ROWS[:11]}
    assert len(keys) == len(wanted)
    assert {(row["kind"], row["id"], row["at"]) for row in keys.to_pylist()} == wanted
    again = told(phase(tmp_path, fileFormat=form, **OPTIONS))
    assert again == found


def test_times_of_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lines = [
        json.dumps({"id": 1, "kind": "x", "local": None}),
        json.dumps({"id": 2, "kind": "y", "local": "2024-05-01"}),
    ]
    (tmp_path / "data/a.json").write_text("\n".join(lines))
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("local", pa.string())])
    with pytest.raises(BacklogError, match="local is string, not a timestamp"):
        phase(tmp_path, schema, fileFormat="json", timestampColumn="local")
    epoch = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    (tmp_path / "data/a.json").write_text('{"id": 1, "at": null}\n{"id": 2, "at": 5001999}\n{"id": 3, "at": 1}')
    source = phase(tmp_path, epoch, fileFormat="json", timestampColumn="at", dedupKey="id", startingOverlap="0")
    found = told(source)
    assert found["lastTimestamp"] == 5_001
    assert pq.read_table(found["dedup"]).to_pylist() == [{"id": 2, "at": datetime(1970, 1, 1, 0, 0, 5, 1999)}]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_statistics_of_any_unit_and_without_a_zone(tmp_path: Path, unit: str) -> None:
    (tmp_path / "data").mkdir()
    times = pa.array([1_500, -3_000], pa.timestamp("ms")).cast(pa.timestamp(unit))
    pq.write_table(pa.table({"AT": times}), tmp_path / "data/a.parquet")
    assert told(phase(tmp_path, pa.schema([("at", pa.timestamp("us"))]), timestampColumn="at")) == {
        "lastTimestamp": 1_500
    }


def test_a_time_before_1970_is_rounded_down(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"at": pa.array([-1], pa.timestamp("us"))}), tmp_path / "data/a.parquet")
    assert told(phase(tmp_path, pa.schema([("at", pa.timestamp("us"))]), timestampColumn="at")) == {"lastTimestamp": -1}


def test_a_directory_can_give_the_time(tmp_path: Path) -> None:
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / f"data/at={day}").mkdir(parents=True)
        # What the directory says goes before.
        table = pa.table({"id": [1], "at": pa.array([10**18], pa.timestamp("us", "UTC"))})
        pq.write_table(table, tmp_path / f"data/at={day}/a.parquet")
    found = told(phase(tmp_path, timestampColumn="at"))
    assert found == {"lastTimestamp": int(datetime(2024, 1, 2, tzinfo=UTC).timestamp()) * 1_000}


def test_nothing_to_hand_over(tmp_path: Path) -> None:
    write(tmp_path, "parquet")
    assert told(phase(tmp_path)) == {}
    assert told(phase(tmp_path, path=str(tmp_path / "none*"), allowEmpty="true", **OPTIONS)) == {}
    (tmp_path / "nulls").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS[-1:], SCHEMA), tmp_path / "nulls/a.parquet")
    assert told(phase(tmp_path, path=str(tmp_path / "nulls"), **OPTIONS)) == {}


def test_keys_of_every_kind_of_type_are_in_order(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    at = pa.array([0] * 4, pa.timestamp("us", "UTC"))
    columns = {
        "a": pa.array([True, False, None, True]),
        "b": pa.array([b"b", b"a", b"", b"b"]),
        "c": pa.array([Decimal(i) for i in (2, 1, 3, 2)], pa.decimal128(20, 2)),
        "d": pa.array([1, 2, 3, 1], pa.date32()),
        "at": at,
    }
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "data/a.parquet")
    source = phase(tmp_path, table.schema, timestampColumn="at", dedupKey="a,b,c,d,at", startingOverlap="1s")
    found = pq.read_table(told(source)["dedup"])
    assert found.schema.equals(table.schema)
    assert found.to_pylist() == [table.to_pylist()[i] for i in (1, 0, 2)]
