"""Hidden partitions of tables that the sink creates: each file has the value that a person works out for its rows."""

from __future__ import annotations

import datetime
import random
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import UnknownTransform
from pyiceberg.types import StringType as IcebergString
from pyspark.sql.types import BinaryType, DateType, LongType, StringType, StructType, TimestampType

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks import BatchInfo, IcebergUpsert, SinkContext
from backlog_spark.sinks.iceberg.columns import new_schema
from backlog_spark.sinks.iceberg.files import TableFiles
from backlog_spark.sinks.iceberg.partitions import Partition, check_transform, parsed, spec_of
from tests.sinks.iceberg.places import TABLE, access_to, catalog_at, table_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("at", TimestampType())
    .add("day", DateType())
    .add("name", StringType())
    .add("raw", BinaryType())
)
STORED = SCHEMA.fields
# What a value becomes, apart from pyiceberg: as Iceberg's specification says.
EXPECTED: dict[str, Any] = {
    "years(at)": lambda row: row["at"].year - 1970,
    "months(at)": lambda row: (row["at"].year - 1970) * 12 + row["at"].month - 1,
    "days(at)": lambda row: (row["at"] - EPOCH) // datetime.timedelta(days=1),
    "hours(at)": lambda row: (row["at"] - EPOCH) // datetime.timedelta(hours=1),
    "months(day)": lambda row: (row["day"].year - 1970) * 12 + row["day"].month - 1,
    "truncate(2, name)": lambda row: row["name"][:2],
    "truncate(10, id)": lambda row: row["id"] - row["id"] % 10,
}


def row(chance: random.Random, key: int, last: int = 2 * 10**14) -> dict[str, Any]:
    at = EPOCH + datetime.timedelta(microseconds=chance.randrange(-last // 2, last))
    name = chance.choice(["", "é", "éa", "éab", "x\U0001f600y"])
    return {"id": key, "at": at, "day": at.date(), "name": name, "raw": b"x"}


def test_files_of_the_driver_have_the_values_of_their_rows(tmp_path: Path) -> None:
    chance = random.Random(3)
    rows = [row(chance, key) for key in range(-20, 20)]
    schema, nothing = new_schema(STORED), {"id": 1, "at": None, "day": None, "name": None, "raw": None}
    for number, (text, expected) in enumerate(EXPECTED.items()):
        access = access_to(tmp_path, f"shop.t{number}")
        access.catalog.create_namespace_if_not_exists("shop")
        spec = spec_of(schema, parsed([text]))
        table = access.catalog.create_table(f"shop.t{number}", schema, partition_spec=spec)
        files = TableFiles.of(table)
        made = files.write(pa.Table.from_pylist([*rows, nothing], schema=files.schema))
        found = Counter({file.partition[0]: file.record_count for file in made})
        of_nothing = expected(nothing) if "id" in text else None
        assert found == Counter([*map(expected, rows), of_nothing]), text


# The specification's examples of 32-bit hashes, "Appendix B".
HASHES = {"bucket(100, id)": (34, 2017239379), "bucket(100, name)": ("iceberg", 1210000089)}


@pytest.mark.parametrize("text", HASHES)
def test_buckets(text: str) -> None:
    value, hashed = HASHES[text]
    (partition,) = parsed([text])
    spec = spec_of(new_schema(STORED), [partition])
    kind = new_schema(STORED).find_field(partition.column).field_type
    found = spec.fields[0].transform.pyarrow_transform(kind)(pa.array([value, None]))
    assert found.to_pylist() == [hashed % 100, None]
    assert spec.fields[0].name == f"{partition.column}_bucket"


def test_settings() -> None:
    assert parsed(["name", "days(at)", "bucket( 16 , `id`)"]) == (
        Partition("name", "name"),
        Partition("days(at)", "at", "days"),
        Partition("bucket( 16 , `id`)", "id", "bucket", 16),
    )
    for wrong in ("weeks(at)", "days()", "bucket(id)", "bucket(0, id)", "truncate(x, name)", "bucket(id, 16)"):
        with pytest.raises(SettingError, match=rf"{re.escape(repr(wrong))}: is no partition of Iceberg\. There are"):
            parsed([wrong])
    schema = new_schema([*STORED, *StructType().add("at_day", StringType()).fields])
    for text, problem in (
        ("days(name)", "the column name is string"),
        ("days(at)", "its partitions are named at_day, and so is a column"),
        ("truncate(3, raw)", r"cannot compute the partition truncate\[3\] of a column of type binary"),
    ):
        with pytest.raises(SettingError, match=problem):
            spec_of(schema, parsed([text]))
    with pytest.raises(BacklogError, match=r"of a column of type string .*Choose other partitions"):
        check_transform(UnknownTransform("zorder"), IcebergString())


def test_rows_move_between_partitions_by_both_roads(spark: SparkSession, tmp_path: Path) -> None:
    """With a computed column that is a partition, too."""
    plain: dict[str, Any] = {"change_type": None, "sequence": None, "metadata_columns": ()}
    chance = random.Random(5)
    most = 2 * 86_400_000_000  # days, so that there are not too many files
    rows = {key: row(chance, key, most) for key in range(12)}
    for road, small in (("direct", 1000), ("files", 0)):
        lake = tmp_path / road
        sink = IcebergUpsert(
            TABLE, ["id"], catalog_at(lake), partition_by=["days(at)", "kind", "truncate(10, id)"],
            computed={"kind": "id % 2"}, small_batch_rows=small, **plain,
        )  # fmt: skip
        sink.open(SinkContext(spark, "app", SCHEMA, False))
        expected = dict(rows)
        for number in range(2):
            changed = {key: row(chance, key, most) for key in chance.sample(range(20), 5)}
            batch = {**rows, **changed} if number == 0 else changed
            expected |= batch
            sink.write(spark.createDataFrame(list(batch.values()), SCHEMA), BatchInfo(number, False))
            assert sink.written is not None
            assert sink.written.writer == road
        found = []
        table = table_at(lake)
        assert [field.name for field in table.spec().fields] == ["at_day", "kind", "id_trunc"]
        files = TableFiles.of(table)
        for task in table.scan().plan_files():
            of_file = files.read(task).to_pylist()
            for each in of_file:
                values = EXPECTED["days(at)"](each), each["id"] % 2, EXPECTED["truncate(10, id)"](each)
                assert tuple(task.file.partition[n] for n in range(3)) == values, road
            found += of_file
        assert sorted(found, key=lambda each: each["id"]) == [
            {**expected[key], "kind": key % 2} for key in sorted(expected)
        ]
