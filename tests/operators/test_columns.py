"""User columns with the names of internal columns, and types with parts that are never NULL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT

from .conftest import Collect, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
AT = pa.timestamp("us", "UTC")


def put_out(
    spark: SparkSession, root: Path, stream: bs.BacklogStream, is_complete: Callable[[list[Any]], bool]
) -> list[Any]:
    """All emitted rows, until they are complete."""
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(root / "check")).to(sink).start(spark)

    def rows() -> list[Any]:
        return [row for _, batch in sorted(sink.batches.items()) for row in batch]

    try:
        wait(lambda: is_complete(rows()), query)
        query.processAllAvailable()
    finally:
        query.stop()
    return rows()


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_parts_that_are_never_null(spark: SparkSession, tmp_path: Path) -> None:
    """In rows of the other side, and of no match, they are."""
    for name in "ab":
        for first, backlog in ((0, True), (3, False)):
            rows = pa.table({"k": range(first, first + 3), name: range(3)})
            append(tmp_path / name, rows.slice(name == "b"), backlog=backlog)
    sides = [
        bs.source("scripted", name=name, path=tmp_path / name).map("*", f"struct(1 AS q, array(k) AS r) AS s{name}")
        for name in "ab"
    ]
    joined = sides[0].key_by("k").join(sides[1].key_by("k"), how="left")
    found: Counter[Any] = Counter()
    for row in put_out(spark, tmp_path, joined.changes(), lambda rows: len(rows) >= 6):
        found[row.k, row.sa.q, row.sb and row.sb.q] += 1 if row[CHANGE_TYPE] == INSERT else -1
    assert +found == Counter((k, 1, None if k in (0, 3) else 1) for k in range(6))


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_windows_of_rows_with_a_column_rows(spark: SparkSession, tmp_path: Path) -> None:
    for second, backlog in ((0, True), (20, False), (100, False)):
        at = pa.array([START + timedelta(seconds=second + n) for n in range(4)], AT)
        append(tmp_path / "s", pa.table({"k": [1, 1, 2, 2], "rows": [1, 2, 3, 4], "at": at}), backlog=backlog)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("at", "0 seconds").key_by("k")
    windows = stream.window(bs.TumblingEventTimeWindows.of("10 seconds")).sum("rows")
    found = put_out(spark, tmp_path, windows, lambda rows: len(rows) >= 4)
    assert sorted((row.k, row.rows) for row in found) == [(1, 3), (1, 3), (2, 7), (2, 7)]


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_changes_of_rows_with_columns_row_and_sign(spark: SparkSession, tmp_path: Path) -> None:
    kinds = {"row": ["a", "a", "b"], "sign": [5, 9, 1], CHANGE_TYPE: [INSERT] * 3}
    append(tmp_path / "s", pa.table(kinds), backlog=True)
    append(tmp_path / "s", pa.table({"row": ["a"], "sign": [9], CHANGE_TYPE: [DELETE]}), backlog=False)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").key_by("row").max("sign")
    newest: dict[str, int] = {}
    for row in put_out(spark, tmp_path, stream, lambda rows: len(rows) >= 4):
        if row[CHANGE_TYPE] in (INSERT, "update_postimage"):
            newest[row.row] = row.sign
    assert newest == {"a": 5, "b": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
def test_functions_see_the_change_type(spark: SparkSession, tmp_path: Path) -> None:
    class Told(bs.KeyedProcessFunction):
        output = "k int, kind string"

        def process_element(self, row: Any, ctx: Any) -> Any:
            yield row.k, row._change_type

    append(tmp_path / "s", pa.table({"k": pa.array([1, 2], pa.int32()), CHANGE_TYPE: [INSERT, DELETE]}), backlog=True)
    append(tmp_path / "s", pa.table({"k": pa.array([3], pa.int32()), CHANGE_TYPE: [DELETE]}), backlog=False)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k").process(Told())
    found = put_out(spark, tmp_path, stream, lambda rows: len(rows) >= 3)
    assert sorted(map(tuple, found)) == [(1, INSERT), (2, DELETE), (3, DELETE)]


class Sums(bs.CoGroupFunction):
    output = "lefts long, rights long"

    def co_group(self, left: Any, right: Any) -> Any:
        yield tuple(sum(getattr(row, "__order") for row in rows) for rows in (left, right))


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_names_of_internal_columns_of_operators(spark: SparkSession, tmp_path: Path) -> None:
    names = ["__start", "__end", "__window", "__rows", "__sign", "__code", "__side", "__order"]
    for second, backlog in ((0, True), (20, False), (100, False)):
        at = pa.array([START + timedelta(seconds=second + n) for n in range(2)], AT)
        append(tmp_path / "s", pa.table({"at": at, **{name: [1, 2] for name in names}}), backlog=backlog)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("at", "0 seconds")
    ten = bs.TumblingEventTimeWindows.of("10 seconds")
    windows = stream.key_by("__start", "__side").window(ten)
    found = put_out(
        spark,
        tmp_path,
        windows.aggregate(*(f"sum({name}) AS `{name}s`" for name in names)),
        lambda rows: len(rows) >= 4,
    )
    assert sorted(tuple(row)[:2] + tuple(row)[5:] for row in found) == [(n,) * 10 for n in (1, 1, 2, 2)]
    (tmp_path / "co").mkdir()
    grouped = (
        stream.co_group(stream.filter("`__side` = 1")).where("__side").equal_to("__side").window(ten).apply(Sums())
    )
    found = put_out(spark, tmp_path / "co", grouped, lambda rows: len(rows) >= 4)
    assert sorted(map(tuple, found)) == [(1, 1), (1, 1), (2, 0), (2, 0)]


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_rows_of_windows_are_reduced_in_others(spark: SparkSession, tmp_path: Path) -> None:
    for second, backlog in ((0, True), (25, False), (100, False)):
        at = pa.array([START + timedelta(seconds=second + n) for n in (0, 12)], AT)
        append(tmp_path / "s", pa.table({"k": [1, 1], "v": [1, 2], "at": at}), backlog=backlog)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("at", "0 seconds").key_by("k")
    small = stream.window(bs.TumblingEventTimeWindows.of("10 seconds")).sum("v")
    large = small.key_by("k").window(bs.TumblingEventTimeWindows.of("20 seconds"))
    reduced = large.reduce(lambda a, b: a._replace(v=a.v + b.v))
    found = put_out(spark, tmp_path, reduced, lambda rows: len(rows) >= 2)
    assert [(row.k, row.v, row.window_end.minute * 60 + row.window_end.second) for row in found] == [
        (1, 3, 20),
        (1, 3, 40),
    ]


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_windows_without_a_time_keep_the_columns_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    for second, backlog in ((0, True), (25, False), (100, False)):
        at = pa.array([START + timedelta(seconds=second)], AT)
        append(tmp_path / "s", pa.table({"k": [1], "v": [1], "at": at}), backlog=backlog)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").with_watermark("at", "0 seconds").key_by("k")
    windows = stream.window(bs.TumblingEventTimeWindows.of("10 seconds")).sum("v")
    stream = windows.key_by("k").count_window(1).reduce(lambda a, b: a)
    found = put_out(spark, tmp_path, stream, lambda rows: len(rows) >= 2)
    assert [(row.k, row.v, row.window_end.second) for row in found] == [(1, 1, 10), (1, 1, 30)]


IN_SQL = {
    "SELECT sum(`__all`) + 0 AS s FROM t": [(3,), (6,)],
    "SELECT sum(`__all`) + 0 AS s, max(`__key1`) AS m FROM t GROUP BY `__result1` % 1": [(3, 2), (6, 2)],
    "SELECT DISTINCT `__backlog_count` FROM t": [(1,), (2,)],
    "SELECT max(`__Key2`) AS m, sum(`__all`) AS s FROM (SELECT `__all`, `__key1` AS `__key2` FROM t) "
    "GROUP BY `__all` % 1, `__KEY2` % 1": [(2, 3), (2, 6)],
}


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("text", [pytest.param(t, marks=[pytest.mark.grid] * (t.count("%") != 1)) for t in IN_SQL])
def test_names_of_internal_columns_of_sql(spark: SparkSession, tmp_path: Path, text: str) -> None:
    names = ["__all", "__key1", "__result1", "__backlog_count"]
    for backlog in (True, False):
        append(tmp_path / "s", pa.table({name: [1, 2] for name in names}), backlog=backlog)
    stream = bs.source("scripted", name="s", path=tmp_path / "s")
    expected = IN_SQL[text]
    found = put_out(spark, tmp_path, bs.sql(spark, text, t=stream), lambda rows: len(rows) >= len(expected))
    assert sorted(map(tuple, found)) == expected


@pytest.mark.usefixtures("spark")
def test_keys_with_names_of_output_columns() -> None:
    stream = bs.source("backlog_flag", name="s", ddl="_change_type string, Window_Start timestamp, v long")
    assert stream.key_by("_change_type").count()
    for name in ("_change_type", "_CHANGE_type"):
        with pytest.raises(BacklogError, match=rf"the key '{name}' has the name.*withColumnRenamed\('{name}'"):
            stream.map(f"_change_type AS {name}").key_by(name).count().changes()


def late(stream: bs.BacklogStream) -> bs.BacklogStream:
    windows = stream.with_watermark("at", "0 seconds").key_by(CHANGE_TYPE).window(TEN)
    return windows.allowed_lateness("5 seconds").sum("v").changes()


TEN = bs.TumblingEventTimeWindows.of("10 seconds")
TAKEN = {
    "late windows": ("_change_type string, at timestamp, v long", late, "the key '_change_type' has the name"),
    "outer join": (
        "_change_type string, v long",
        lambda stream: stream.key_by(CHANGE_TYPE).join(
            stream.map(CHANGE_TYPE, "v AS w").key_by(CHANGE_TYPE), how="left"
        ),
        "join: the column '_change_type' has the name",
    ),
    "reduced windows": (
        "Window_Start string, k long, at timestamp",
        lambda stream: stream.with_watermark("at", "0 seconds").key_by("k").window(TEN).reduce(lambda a, b: a),
        "the column 'Window_Start' has the name of a column of the result",
    ),
}


@pytest.mark.parametrize("which", TAKEN)
def test_columns_with_names_of_output_columns(spark: SparkSession, tmp_path: Path, which: str) -> None:
    ddl, made, message = TAKEN[which]
    (tmp_path / "in").mkdir()
    stream = made(bs.stream(spark.readStream.schema(ddl).parquet(str(tmp_path / "in"))))
    writer = stream.write("q").option("checkpointLocation", str(tmp_path / "check"))
    with pytest.raises(BacklogError, match=rf"{message}.*withColumnRenamed"):
        writer.to(Collect()).start(spark)
