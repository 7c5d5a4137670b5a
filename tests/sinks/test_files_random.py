"""The sink `FilesSink` in random lives: batches fail, come again or come late, and queries are opened anew."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.sinks import BatchInfo, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Columns and values that the format can hold.
FORMATS = {
    "parquet": "id BIGINT, day DATE, part STRING, price DECIMAL(20,4), seen TIMESTAMP, tags ARRAY<STRING>, raw BINARY",
    "orc": "id BIGINT, day DATE, part STRING, price DECIMAL(20,4), seen TIMESTAMP, tags ARRAY<STRING>, raw BINARY",
    "json": "id BIGINT, day DATE, part STRING, price DECIMAL(20,4), seen TIMESTAMP, tags ARRAY<STRING>",
    "csv": "id BIGINT, day DATE, part STRING, price DECIMAL(20,4), seen TIMESTAMP",
}
# Without a `nullValue` CSV does not tell an empty string from NULL.
OPTIONS = {"csv": {"header": "true", "escape": '"', "nullValue": "NULL"}}
PARTS = ["a", "01", "1", "x=y", "a/b", "%2F", "b c", "ü", "null", "2024-01-01", ".", "q\"'", "", None]
DAYS = [date(2024, 2, 29), date(1969, 12, 31), None]


@dataclass
class Life:
    """A path, the rows that it has to have, and the query that writes to it."""

    spark: SparkSession
    path: Path
    kind: str
    partition_by: list[str]
    dice: random.Random
    committed: int = -1
    written: int = -1
    rows: Counter[Any] = field(default_factory=Counter)
    batches: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schema = StructType.fromDDL(FORMATS[self.kind])
        self.sink = self.opened()

    def opened(self) -> bs.FilesSink:
        """As at a start. The batch that was written, but not committed, has been planned."""
        sink = bs.FilesSink(self.path, self.kind, partition_by=self.partition_by, options=OPTIONS.get(self.kind, {}))
        sink = sink.for_output()
        planned = max(self.written, self.committed + self.dice.randint(0, 1))
        known = [None if each < 0 else each for each in (planned, self.committed)]
        sink.open(SinkContext(self.spark, "app", self.schema, False, *known))
        return sink

    def batch(self, number: int) -> DataFrame:
        if number not in self.batches:
            self.batches[number] = [self._row(number, each) for each in range(self.dice.choice([0, 1, 5]))]
        return self.spark.createDataFrame(self.batches[number], self.schema)

    def _row(self, number: int, each: int) -> tuple[Any, ...]:
        dice = self.dice
        row = {
            "id": 100 * number + each,
            "day": dice.choice(DAYS),
            "part": dice.choice(PARTS),
            "price": dice.choice([Decimal("-1234567890123456.7891"), Decimal("0.0000"), None]),
            "seen": dice.choice([datetime(2024, 3, 1, 1, 2, 3, 456000, tzinfo=UTC), None]),
            "tags": dice.choice([[], ["a", "b,c"], None]),
            "raw": dice.choice([b"", b"\x00\xff", None]),
        }
        return tuple(row[name] for name in self.schema.names)

    def write(self, number: int, sink: bs.FilesSink) -> None:
        sink.write(self.batch(number), BatchInfo(number, self.dice.random() < 0.5))
        assert sink.written is not None
        assert sink.written.writer == ("none" if number <= self.written else "spark")
        if number > self.written:
            self.written = number
            self.rows += Counter(map(repr, map(self._as_read, self.batches[number])))

    def _as_read(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Spark's names of directories do not tell an empty string from NULL."""
        emptied = [name == "part" and name in self.partition_by for name in self.schema.names]
        return tuple(
            None if is_emptied and value == "" else value for value, is_emptied in zip(row, emptied, strict=True)
        )

    def fail(self, number: int) -> None:
        """Some tasks have written their files."""
        if not self.batches.get(number):
            return
        last = max(row[0] for row in self.batches[number])
        rows = self.batch(number).repartition(2).withColumn("id", F.expr(f"IF(id = {last}, raise_error('full'), id)"))
        with pytest.raises(Exception, match="full"):
            self.sink.write(rows, BatchInfo(number, True))

    def step(self) -> None:
        what = self.dice.choice(["write", "write", "again", "late", "fail", "open", "commit"])
        following = self.written + 1
        if what == "write":
            self.committed = self.written
            self.write(following, self.sink)
        elif what == "again" and self.written >= 0:
            self.write(self.written, self.sink)
        elif what == "late":
            late = self.opened()
            self.committed = self.written
            self.write(following, self.sink)
            self.write(following, late)
        elif what == "fail" and self.written == self.committed:
            self.batch(following)
            self.fail(following)
        elif what == "open":
            self.sink = self.opened()
        elif what == "commit":
            self.committed = self.written

    def check(self) -> None:
        if self.written < 0:
            return
        # CSV is read by position: the partition's columns are behind those of the files.
        names = sorted(self.schema.names, key=lambda name: name in self.partition_by)
        reader = self.spark.read.schema(StructType([self.schema[name] for name in names])).format(self.kind)
        found = reader.options(**OPTIONS.get(self.kind, {})).load(str(self.path)).select(*self.schema.names)
        assert Counter(map(repr, rows_of(found))) == self.rows


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """With times in UTC and `bytes`, as they were written."""
    return [
        tuple(
            value.astimezone(UTC)
            if isinstance(value, datetime)
            else bytes(value)
            if isinstance(value, bytearray)
            else value
            for value in row
        )
        for row in frame.collect()
    ]


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.grid) for seed in range(3, 60))])
def test_a_random_life(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    kind = list(FORMATS)[seed % len(FORMATS)]
    partition_by = dice.choice([[], ["part"], ["day"], ["day", "part"]])
    life = Life(spark, tmp_path / "a b", kind, partition_by, dice)
    for _ in range(25):
        life.step()
    life.check()
    with pytest.raises(BacklogError, match="another query"):
        bs.FilesSink(life.path).open(SinkContext(spark, "other", life.schema, False, None, None))
