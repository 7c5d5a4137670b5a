"""The phase of a Delta table: reads one version, each row once."""

import base64
import json
import os
import struct
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from backlog_spark.connectors.hybrid.delta import DeltaPhase
from backlog_spark.connectors.hybrid.files.options import DeltaOptions
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import BacklogError, SettingError
from tests.connectors.hybrid.files.reading import bag, batches_between, rows_between, rows_of, steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC_US = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("town", pa.string()),
        ("day", pa.date32()),
        ("at", UTC_US),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
    ]
)


def rows(first: int, end: int) -> list[dict[str, Any]]:
    made = [
        {
            "id": i,
            "town": None if i % 5 == 0 else "Köln/50% a=b " + str(i % 3),
            "day": date(2024, 1, 1 + i % 2),
            "at": datetime(2024, 5, 1, 12, 0, i % 60, tzinfo=UTC),
            "local": datetime(2024, 5, 1, 12, microsecond=i),
            "tags": ["ü", None] if i % 2 else None,
        }
        for i in range(first, end)
    ]
    found: list[dict[str, Any]] = pa.Table.from_pylist(made, SCHEMA).to_pylist()
    return found


def write(path: Path, first: int, end: int, **options: Any) -> None:
    write_deltalake(path, pa.Table.from_pylist(rows(first, end), SCHEMA), mode="append", **options)


def phase(path: Path | str, **options: str) -> DeltaPhase:
    return DeltaPhase("old", {"path": str(path)} | options)


@pytest.mark.parametrize("partition_by", [[], ["town", "day"], ["at"]])
@pytest.mark.parametrize("limits", [[None], [7], [1, None]])
def test_every_row_of_a_version_once(tmp_path: Path, partition_by: list[str], limits: list[int | None]) -> None:
    path = tmp_path / "a table"
    write(path, 0, 40, partition_by=partition_by or None)
    write(path, 40, 60)
    source = phase(path)
    found = source.schema()
    assert sorted(found.names) == sorted(SCHEMA.names)
    assert all(found.field(name).type == SCHEMA.field(name).type for name in SCHEMA.names)
    source.open(Columns(SCHEMA, ("_phase", "_file")))
    start = source.begin({})
    assert (start["version"], start["file"], start["offset"]) == (1, 0, 0)
    # What comes later is of another version.
    write(path, 60, 70)
    positions = [start, *(step.position for step in steps(source, limits, start))]
    batches = [batches_between(source, a, b) for a, b in pairwise(positions)]
    table = pa.Table.from_batches([part for batch in batches for part in batch])
    assert set(table["_phase"].to_pylist()) == {"old"}
    assert all(Path(file).is_file() for file in table["_file"].to_pylist())
    assert bag(table.drop_columns(["_phase", "_file"]).to_pylist()) == bag(rows(0, 60))
    again = phase(path)
    again.open(Columns(SCHEMA, ("_phase", "_file")))
    assert [batches_between(again, a, b) for a, b in pairwise(positions)] == batches
    assert again.first(positions[-1]) == start


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, 0, 40, partition_by=["town"])
    chosen = SCHEMA.names[:2]
    found = rows_of(phase(tmp_path), Columns(SCHEMA, (), {name: {} for name in chosen}))
    assert bag({name: row[name] for name in chosen} for row in found) == bag(
        {name: row[name] for name in chosen} for row in rows(0, 40)
    )
    assert {row[name] for row in found for name in SCHEMA.names if name not in (*chosen, "town")} == {None}


def test_rows_and_total_are_those_of_the_log(tmp_path: Path) -> None:
    write(tmp_path, 0, 10)
    write(tmp_path, 10, 25)
    source = phase(tmp_path)
    source.open(Columns(SCHEMA))
    start = source.begin({})
    step = source.next(start, Limit(10), 0)
    assert (step.rows, step.total, step.is_finished) == (10, 25, False)
    step = source.next(step.position, Limit(), 0)
    assert (step.rows, step.is_finished) == (15, True)


def test_a_version_or_a_time(tmp_path: Path) -> None:
    for first in (0, 10, 20):
        write(tmp_path, first, first + 10)
    assert bag(rows_of(phase(tmp_path, versionAsOf="1"), Columns(SCHEMA))) == bag(rows(0, 20))
    for version in range(3):
        written = datetime(2100, 1, 1 + version, tzinfo=UTC).timestamp()
        os.utime(tmp_path / f"_delta_log/{version:020}.json", (written, written))
    for time in ("2100-01-02", "2100-01-02T23:00:00Z", "2100-01-03T00:30:00+01:00"):
        assert bag(rows_of(phase(tmp_path, timestampAsOf=time), Columns(SCHEMA))) == bag(rows(0, 20))
    with pytest.raises(SettingError, match="is before the first version"):
        phase(tmp_path, timestampAsOf="2001-01-01").schema()
    with pytest.raises(BacklogError, match="cannot be opened at version 7"):
        phase(tmp_path, versionAsOf="7").schema()


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({}, "path"),
        ({"path": "/t", "versionAsOf": "-1"}, "versionAsOf"),
        ({"path": "/t", "versionAsOf": "1", "timestampAsOf": "2024-01-01"}, "timestampAsOf"),
        ({"path": "/t", "timestampAsOf": "yesterday"}, "timestampAsOf"),
        ({"path": "/t", "fileFormat": "parquet"}, "fileFormat"),
        ({"path": "/t", "dedupKey": "a", "timestampColumn": "t", "startingOverlap": "1s"}, "metadataLocation"),
    ],
)
def test_refused(options: dict[str, str], setting: str) -> None:
    with pytest.raises(SettingError) as caught:
        DeltaOptions.parse(options)
    assert caught.value.setting == setting


def test_not_a_table(tmp_path: Path) -> None:
    with pytest.raises(BacklogError, match="cannot be opened"):
        phase(tmp_path / "gone").schema()
    secret = phase("s3://bucket/t", **{"fs.aws_region": "x", "fs.aws_endpoint": "http://hunter2.invalid:1",
                                       "fs.aws_access_key_id": "a", "fs.aws_secret_access_key": "hunter2.invalid",
                                       "fs.max_retries": "0", "fs.aws_allow_http": "true"})  # fmt: skip
    with pytest.raises(BacklogError, match="cannot be opened") as caught:
        secret.schema()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(secret.options)


def test_a_recreated_table(tmp_path: Path) -> None:
    write(tmp_path / "a", 0, 10)
    source = phase(tmp_path / "a")
    source.open(Columns(SCHEMA))
    start = source.begin({})
    write(tmp_path / "b", 0, 10)
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    again = phase(tmp_path / "a")
    again.open(Columns(SCHEMA))
    with pytest.raises(BacklogError, match="is not the table of the query's start"):
        again.next(start, Limit(), 0)


@pytest.mark.parametrize("fails", [True, False])
def test_files_that_vacuum_removed(tmp_path: Path, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 0, 10)
    write(tmp_path, 10, 20)
    source = phase(tmp_path, versionAsOf="1", failOnDataLoss=str(fails).lower())
    source.open(Columns(SCHEMA))
    start = source.begin({})
    table = DeltaTable(tmp_path)
    table.delete("id < 10")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (last,) = steps(source, [None], start)
    if fails:
        with pytest.raises(BacklogError, match="is gone since"):
            rows_between(source, start, last.position)
    else:
        assert bag(rows_between(source, start, last.position)) == bag(rows(10, 20))
        assert "is gone" in caplog.text


def test_an_empty_table_is_finished_at_once(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path, pa.schema([("id", pa.int64())]))
    source = phase(tmp_path)
    source.open(Columns(source.schema()))
    step = source.next(source.begin({}), Limit(), 0)
    assert (step.is_finished, step.rows) == (True, 0)


def test_hand_over_to_the_next_phase(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, 30)
    source = phase(tmp_path / "t", timestampColumn="at", dedupKey="id", startingOverlap="2 s",
                   metadataLocation=str(tmp_path / "meta"))  # fmt: skip
    source.open(Columns(SCHEMA))
    told = source.ended(source.begin({}))
    assert told["lastTimestamp"] == int(datetime(2024, 5, 1, 12, 0, 29, tzinfo=UTC).timestamp()) * 1_000
    assert pq.read_table(told["dedup"])["id"].to_pylist() == [27, 28, 29]
    assert phase(tmp_path / "t").ended(source.begin({})) == {}


# Tables with what the package reads and does not write, by the protocol's text.


def bitmap(deleted: list[int]) -> dict[str, Any]:
    """A deletion vector in the log itself ("Deletion Vector Format"): one 32-bit Roaring bitmap, in Z85."""
    roaring = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, 16) + struct.pack(f"<{len(deleted)}H", *deleted)
    data = struct.pack("<IQI", 1681511377, 1, 0) + roaring
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    b85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    text = base64.b85encode(data + b"\0" * (-len(data) % 4)).decode().translate(str.maketrans(b85, z85))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(deleted)}


def field(name: str, kind: Any, number: int = 0, own: str = "") -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": own} if own else {}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def log(
    path: Path,
    files: dict[str, dict[str, Any]],
    fields: list[dict[str, Any]],
    features: list[str],
    partitions: tuple[str, ...] = (),
    **configuration: str,
) -> None:
    metadata = {
        "id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}, "createdTime": 0,
        "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": partitions,
        "configuration": {f"delta.{name.replace('_', '.')}": value for name, value in configuration.items()},
    }  # fmt: skip
    actions: list[dict[str, Any]] = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
        },
        {"metaData": metadata},
    ]
    for name, more in files.items():
        size = (path / name).stat().st_size if (path / name).exists() else 0
        stats = json.dumps({"numRecords": pq.read_metadata(path / name).num_rows}) if size else None
        add = {
            "path": name,
            "partitionValues": {},
            "size": size,
            "modificationTime": 0,
            "dataChange": True,
            "stats": stats,
        }
        actions.append({"add": add | more})
    (path / "_delta_log").mkdir()
    (path / "_delta_log/00000000000000000000.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("limit", [None, 1, 5])
def test_rows_that_deletion_vectors_delete(tmp_path: Path, limit: int | None) -> None:
    for name, first in (("a", 0), ("b", 10), ("c", 20)):
        ids = pa.table({"id": pa.array(range(first, first + 10), pa.int64())})
        pq.write_table(ids, tmp_path / f"{name}.parquet", row_group_size=4)
    vectors = {"deletionVector": bitmap([0, 3, 4, 5, 6, 7])}, {"deletionVector": bitmap([8, 9])}
    files = {"a.parquet": vectors[0], "b.parquet": {}, "c.parquet": vectors[1]}
    log(tmp_path, files, [field("id", "long")], ["deletionVectors"])
    source = phase(tmp_path, filePartitionBytes="1k", timestampColumn="")
    wanted = [1, 2, 8, 9, *range(10, 28)]
    assert [row["id"] for row in rows_of(source, Columns(source.schema()), [limit])] == wanted
    start = source.begin({})
    assert source.next(start, Limit(), 0).total == len(wanted)
    position = start
    for step in steps(source, [3], start):
        assert step.rows == len(rows_between(source, position, step.position))
        assert step.rows >= 3 or step.is_finished
        position = step.position


def test_columns_with_other_names_in_the_files(tmp_path: Path) -> None:
    inner = pa.struct([("col-5", pa.int64())])
    own = pa.schema(
        [
            ("col-1", pa.int64()),
            ("col-2", inner),
            ("col-3", pa.list_(inner)),
            ("col-4", pa.map_(pa.string(), inner)),
            ("id", pa.string()),
            ("col-8", UTC_US),
        ]
    )
    at = datetime(2024, 5, 1, tzinfo=UTC)
    row = [1, {"col-5": 2}, [{"col-5": 3}, None], [("k", {"col-5": 4})], "not the id", at]
    table = pa.Table.from_pylist([dict(zip(own.names, row, strict=True))], own)
    pq.write_table(table, tmp_path / "f.parquet")
    within = [{"type": "struct", "fields": [field("x", "long", number, "col-5")]} for number in (5, 7, 9)]
    fields = [
        field("id", "long", 1, "col-1"),
        field("s", within[0], 2, "col-2"),
        field("l", {"type": "array", "elementType": within[1], "containsNull": True}, 3, "col-3"),
        field("m", {"type": "map", "keyType": "string", "valueType": within[2], "valueContainsNull": True}, 4, "col-4"),
        field("p", "integer", 6, "col-6"),
        field("at", "timestamp", 8, "col-8"),
    ]
    files = {"f.parquet": {"partitionValues": {"col-6": "7"}}}
    log(tmp_path, files, fields, ["columnMapping"], ("p",), columnMapping_mode="name", columnMapping_maxColumnId="9")
    source = phase(tmp_path, timestampColumn="at")
    found = rows_of(source, Columns(source.schema()))
    assert bag(found) == bag(
        pa.Table.from_pylist(
            [{"id": 1, "s": {"x": 2}, "l": [{"x": 3}, None], "m": [("k", {"x": 4})], "p": 7, "at": at}], source.schema()
        ).to_pylist()
    )
    assert source.ended(source.begin({})) == {"lastTimestamp": int(at.timestamp()) * 1_000}


def test_features_and_files_that_are_not_read_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / name / "f.parquet")
    mapped = [field("id", "long", 1, "id")]
    log(tmp_path / "a", {"f.parquet": {}}, mapped, ["columnMapping"], columnMapping_mode="id")
    with pytest.raises(BacklogError, match="columnMapping by id"):
        phase(tmp_path / "a").schema()
    log(tmp_path / "b", {"f.parquet": {}}, [field("id", "long")], ["variantType"])
    with pytest.raises(BacklogError, match="variantType"):
        phase(tmp_path / "b").schema()
    log(tmp_path / "c", {f"file://{tmp_path}/b/f.parquet": {}}, [field("id", "long")], [])
    source = phase(tmp_path / "c")
    with pytest.raises(BacklogError, match="shallow clone"):
        source.begin({})


def decimals(precision: int, scale: int, *texts: str) -> pa.Array:
    return pa.array([Decimal(text) for text in texts], pa.decimal128(precision, scale))


def widened(path: Path, old: pa.Array, delta_type: str, new: pa.Array, partitioned: bool) -> None:
    """A table whose column ``v`` was widened between its two files, as Delta's protocol has it."""
    columns = {"id": range(len(old)), "v": old}
    write_deltalake(path, pa.table(columns), partition_by=["v"] if partitioned else None)
    table = DeltaTable(path)
    schema = json.loads(table.schema().to_json())
    metadata = table.metadata()
    schema["fields"][1]["type"] = delta_type
    schema["fields"][1]["metadata"] = {"delta.typeChanges": [{"fromType": "x", "toType": delta_type}]}
    features = ["typeWidening", "timestampNtz"]
    actions = [
        {"protocol": {
            "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features,
        }},
        {"metaData": {
            "id": metadata.id, "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
            "partitionColumns": ["v"] if partitioned else [], "configuration": {"delta.enableTypeWidening": "true"},
        }},
    ]  # fmt: skip
    for at in range(len(new)):
        one = pa.table({"id": [100 + at], "v": new.slice(at, 1)})
        name = f"new{at}.parquet"
        pq.write_table(one.drop(["v"]) if partitioned else one, path / name)
        text = new[at].as_py().isoformat(" ") if pa.types.is_timestamp(new.type) else str(new[at].as_py())
        actions.append({"add": {
            "path": name, "partitionValues": {"v": text} if partitioned else {},
            "size": (path / name).stat().st_size, "modificationTime": 2**41, "dataChange": True,
            "stats": json.dumps({"numRecords": 1}),
        }})  # fmt: skip
    log = path / "_delta_log" / f"{1:020}.json"
    log.write_text("\n".join(json.dumps(action) for action in actions))


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    ("old", "delta_type", "new"),
    [
        (pa.array([-7, 127], pa.int8()), "short", pa.array([2**15 - 1], pa.int16())),
        (pa.array([-7, 127], pa.int8()), "integer", pa.array([2**31 - 1], pa.int32())),
        (pa.array([-7, 127], pa.int8()), "long", pa.array([2**63 - 1], pa.int64())),
        (pa.array([-7, 127], pa.int8()), "double", pa.array([0.5])),
        (pa.array([-7, 2**15 - 1], pa.int16()), "decimal(12,2)", decimals(12, 2, "0.25")),
        (pa.array([-7, 2**31 - 1], pa.int32()), "long", pa.array([2**63 - 1], pa.int64())),
        (pa.array([-7, 2**31 - 1], pa.int32()), "double", pa.array([0.5])),
        (pa.array([-7, 2**31 - 1], pa.int32()), "decimal(11,1)", decimals(11, 1, "4.5")),
        (pa.array([-7, 2**63 - 1], pa.int64()), "decimal(21,1)", decimals(21, 1, "0.5")),
        (pa.array([-0.5, 1.25], pa.float32()), "double", pa.array([1 / 3])),
        (decimals(5, 2, "7.25", "999.99"), "decimal(38,10)", decimals(38, 10, "0.0000000001")),
        (
            pa.array([-1, 0, 19_000], pa.date32()), "timestamp_ntz",
            pa.array([1_700_000_000_123_456], pa.timestamp("us")),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.type),
)  # fmt: skip
def test_each_widening_of_a_type(
    tmp_path: Path, old: pa.Array, delta_type: str, new: pa.Array, partitioned: bool
) -> None:
    widened(tmp_path, old, delta_type, new, partitioned)
    source = phase(tmp_path)
    if partitioned and delta_type.startswith(("decimal", "timestamp")):
        with pytest.raises(BacklogError, match=r"cannot be opened: .*Failed to parse value .*bs\.hybrid"):
            source.schema()
        return
    found = source.schema()
    assert found.field("v").type == new.type
    if pa.types.is_date(old.type):
        midnights = [datetime(1970, 1, 1) + timedelta(days=days) for days in old.cast(pa.int32()).to_pylist()]
        expected = [*midnights, *new.to_pylist()]
    else:
        expected = [*old.to_pylist(), *new.to_pylist()]
    ids = [*range(len(old)), *range(100, 100 + len(new))]
    read = rows_of(source, Columns(found))
    values = pa.array([Decimal(v) if pa.types.is_decimal(new.type) else v for v in expected], new.type).to_pylist()
    assert bag(read) == bag({"id": i, "v": value} for i, value in zip(ids, values, strict=True))


@pytest.mark.slow
def test_values_of_char_are_padded_as_spark_pads_them(spark: "SparkSession", tmp_path: Path) -> None:
    """Also those in files of another writer, which knows nothing of CHAR."""
    path = str(tmp_path / "t")
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id INT, c CHAR(5), v VARCHAR(5), p CHAR(3)) USING delta PARTITIONED BY (p)"
    )
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 'ab', 'ab', 'x'), (2, NULL, NULL, NULL)")
    more = {"id": pa.array([3, 4], pa.int32()), "c": ["ü", "12345"], "v": ["e", "f"], "p": ["y", "xyz"]}
    write_deltalake(path, pa.table(more), mode="append")
    source = phase(path)
    found = rows_of(source, Columns(source.schema(), ()))
    expected = [row.asDict() for row in spark.read.format("delta").load(path).collect()]
    assert {row["c"] for row in expected} == {"ab   ", None, "ü    ", "12345"}
    assert bag(found) == bag(expected)
