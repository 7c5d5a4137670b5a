"""State that is handed over, packed for the stream vehicle."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructType

from backlog_spark.common.arrow_steps import map_in_arrow
from backlog_spark.handover.versions import BatchState
from backlog_spark.operators.aggregates import Sum
from backlog_spark.operators.merge import AggregateFold
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.session import session_conf
from backlog_spark.spark.plan import plan_builder as vehicles
from backlog_spark.spark.plan.plan_builder import Plans
from backlog_spark.state.keys import groups_of
from backlog_spark.state.seeds import SEED_EMIT, SEED_SCHEMA, SEED_SILENT, ChosenRows, PackFiles, PackState, seeds_of
from backlog_spark.state.tables import EMIT, StateSchema, from_bytes
from tests.handover.test_versions import FOLDS
from tests.handover.test_versions import SCHEMA as ROWS_OF_FOLDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from backlog_spark.operators.fold import Fold


STATE = StateSchema((LongType(),), (LongType(),))
GROUPS, ROWS = 8, 1_000


@pytest.mark.parametrize("emit", [False, True, None])
def test_rows_come_by_key_group_and_by_whether_they_are_results(emit: bool | None) -> None:
    chance = np.random.default_rng(5)
    columns = [pa.array(chance.integers(-(2**63), 2**63 - 1, ROWS)), pa.array(range(ROWS)), pa.array(range(ROWS))]
    said = chance.random(ROWS) < 0.3
    given = pa.RecordBatch.from_arrays(columns, schema=STATE.arrow())
    batch = given if emit is not None else given.append_column(EMIT, pa.array(said))
    found = {}
    for packed in PackState(STATE, GROUPS, emit)(iter([batch.slice(0, 600), batch.slice(600)])):
        for group, origin, slots, data in zip(*packed.columns, strict=True):
            rows = from_bytes(data.as_py(), STATE.arrow())
            assert slots.as_py() == 1
            assert (groups_of(rows.column(0).to_numpy(), GROUPS) == group.as_py()).all()
            for key in rows.column(1).to_pylist():
                assert key not in found
                assert rows.slice(rows.column(1).to_pylist().index(key), 1).to_pylist()[0]["s0"] == key
                found[key] = origin.as_py() == SEED_EMIT
                assert origin.as_py() in (SEED_EMIT, SEED_SILENT)
    assert found == dict(enumerate(said.tolist() if emit is None else [emit] * ROWS))


SCHEMA = """
    flag boolean, tiny byte, small short, whole int, wide long, half float, full double,
    d9 decimal(9,2), d18 decimal(18,4), d38 decimal(38,10), name string, raw binary, day date, at timestamp,
    wall timestamp_ntz, several array<decimal(20,3)>, named map<string, timestamp>,
    row struct<a: int, b: array<struct<c: string, d: date>>>
"""
# In what users may have set for files of their own.
HOSTILE = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.compression.codec": "lz4",
}


def _values() -> list[tuple[Any, ...]]:
    utc = dt.UTC
    first = (
        True, -128, 2**15 - 1, -(2**31), 2**63 - 1, 1.5, float("nan"), Decimal("1234567.89"), Decimal("-1.0001"),
        Decimal("1234567890123456789012345678.0123456789"), "ÄÖ\0x", bytes(range(256)), dt.date(1, 1, 3),
        dt.datetime(1500, 2, 28, 23, 59, 59, 999_999, utc), dt.datetime(1582, 10, 10, 1, 2, 3, 4),
        [Decimal("1.234"), None], {"a": dt.datetime(1890, 1, 1, tzinfo=utc), "b": None},
        (1, [("x", dt.date(1500, 1, 1)), None, (None, None)]),
    )  # fmt: skip
    second = (
        False, 127, -(2**15), 2**31 - 1, -(2**63), float("-inf"), -0.0, Decimal("-9999999.99"), Decimal("0"),
        Decimal("-1"), "", b"", dt.date(9999, 12, 31), dt.datetime(2024, 1, 1, tzinfo=utc),
        dt.datetime(2024, 1, 1), [], {}, (None, []),
    )  # fmt: skip
    return [first, second, (None,) * len(first)]


def _state() -> StateSchema:
    types = [field.dataType for field in StructType.fromDDL(SCHEMA)]
    return StateSchema((types[0],), tuple(types[1:]))


def _handed_over(spark: SparkSession, folder: Path, frame: DataFrame) -> DataFrame:
    """The published files of a state: path and bytes."""
    state = BatchState(Checkpoint(spark, str(folder)), "op", 1)
    state.write_handed_over(lambda: frame, 0)
    assert state.whole_files() is not None
    (folder / seeds_of("op")).mkdir(parents=True)
    state.publish()
    return spark.read.format("binaryFile").load(str(folder / seeds_of("op"))).select("path", "content")


def _unpacked(frame: DataFrame, state: StateSchema) -> list[tuple[int, pa.RecordBatch]]:
    return [(row.origin, from_bytes(bytes(row.data), state.arrow())) for row in frame.collect()]


def _texts(tables: list[pa.RecordBatch]) -> list[str]:
    return sorted(str(row) for table in tables for row in table.to_pylist())


def test_files_give_the_values_that_spark_has_written(spark: SparkSession, tmp_path: Path) -> None:
    state = _state()
    assert state.is_read_from_files
    rows = [(n, *values) for n, values in enumerate(_values())]
    frame = spark.createDataFrame(rows, state.spark())
    with session_conf(spark, HOSTILE):
        files = _handed_over(spark, tmp_path, frame)
    found = map_in_arrow(files, PackFiles(state, GROUPS, True, ChosenRows()), SEED_SCHEMA)
    tables = [rows for _, rows in _unpacked(found, state)]
    # Decoded by Spark, from the same bytes as a stream would send it.
    packed = map_in_arrow(frame, PackState(state, GROUPS, True), SEED_SCHEMA)
    expected = [rows for _, rows in _unpacked(packed, state)]
    # As text, in which NaN equals itself and 0.0 is not -0.0.
    assert _texts(tables) == _texts(expected)
    assert len(_texts(tables)) == len(rows)


@pytest.mark.usefixtures("spark")
def test_types_that_arrow_reads_differently_are_left_to_spark() -> None:
    for kind in ("interval day to second", "array<interval year to month>", "struct<a: variant>", "map<int, void>"):
        assert not StateSchema((LongType(),), (DataType.fromDDL(kind),)).is_read_from_files


def test_columns_that_files_do_not_have_yet_are_null(spark: SparkSession, tmp_path: Path) -> None:
    old, new = StateSchema((LongType(),), (LongType(),)), StateSchema((LongType(),), (LongType(), StringType()))
    files = _handed_over(spark, tmp_path, spark.createDataFrame([(1, 2, 3)], old.spark()))
    found = map_in_arrow(files, PackFiles(new, GROUPS, False, ChosenRows()), SEED_SCHEMA)
    assert [rows.to_pylist() for _, rows in _unpacked(found, new)] == [[{"__hash": 1, "k0": 2, "s0": 3, "s1": None}]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FOLDS, "changes"])
def test_the_rows_of_a_version_that_are_state(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    fold: Fold = {
        **FOLDS,
        "changes": lambda: AggregateFold(["k"], [Sum("v", name="total")], ROWS_OF_FOLDS, GROUPS, changes="x"),
    }[kind]()
    checkpoint = Checkpoint(spark, str(tmp_path))
    state = BatchState(checkpoint, "op", 0)
    for batch in range(2):
        state.write(
            fold, spark.createDataFrame([(n % 70, batch) for n in range(50 + 50 * batch)], ROWS_OF_FOLDS), batch
        )
    expected = fold.state_of(state.read(spark, fold, 1))
    (tmp_path / seeds_of("op")).mkdir(parents=True)
    plain = [tuple(row) for row in expected.collect()]
    state.publish()
    files = spark.read.format("binaryFile").load(str(tmp_path / seeds_of("op"))).select("path", "content")
    chosen = fold.chosen_rows()
    assert chosen is not None
    # By its name a file is of the first epoch, whose keys have been put out.
    found = _unpacked(map_in_arrow(files, PackFiles(fold.state, GROUPS, None, chosen), SEED_SCHEMA), fold.state)
    assert {origin for origin, _ in found} == {SEED_SILENT}
    assert sorted(tuple(row.values()) for _, batch in found for row in batch.to_pylist()) == sorted(plain)
    assert len(plain) == 70


def test_files_are_read_whatever_the_session_takes_for_a_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    _handed_over(spark, tmp_path, spark.createDataFrame([(1, 2, 3)], STATE.spark()))
    plans = Plans(spark, lambda _: spark.range(0), lambda name: str(tmp_path / seeds_of(name)))
    with session_conf(spark, {"spark.sql.timestampType": "TIMESTAMP_NTZ"}):
        files = plans._read_seeds("op", vehicles._FILES, "binaryFile")
        query = files.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
    assert query.lastProgress is not None
    assert query.lastProgress.numInputRows == len(list((tmp_path / seeds_of("op")).glob("*.parquet")))


def test_wide_rows_are_packed_by_their_bytes(spark: SparkSession, tmp_path: Path) -> None:
    # Few different texts, which a file has once each: it is small, and what comes out of it is not.
    state = StateSchema((LongType(),), (StringType(),))
    texts = f"CASE id % 3 WHEN 0 THEN repeat('a', {1 << 12}) WHEN 1 THEN repeat('b', {1 << 12}) ELSE 'c' END"
    frame = spark.range(40_000).selectExpr("id AS __hash", "id AS k0", f"{texts} AS s0")
    files = _handed_over(spark, tmp_path, frame.coalesce(1)).collect()
    assert sum(len(file.content) for file in files) < 8 << 20
    batches = [
        pa.RecordBatch.from_arrays([pa.array([f.path]), pa.array([bytes(f.content)])], ["p", "c"]) for f in files
    ]
    found = list(PackFiles(state, 1, True, ChosenRows())(iter(batches)))
    assert max(batch.nbytes for batch in found) < 128 << 20
    rows = [from_bytes(data.as_py(), state.arrow()) for batch in found for data in batch.column(3)]
    assert sum(batch.num_rows for batch in rows) == 40_000
