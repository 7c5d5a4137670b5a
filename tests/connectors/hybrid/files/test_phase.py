"""A phase of Parquet and ORC reads every row once, with any limits, and the same rows in a replay."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import METADATA, OF_HISTORY, Columns, Limit
from backlog_spark.errors import BacklogError, SettingError

from .reading import bag, batches_between, rows_between, rows_of, steps

UTC_US = pa.timestamp("us", "UTC")
ALL = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("share", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("day", pa.date32()),
        ("at", UTC_US),
        ("local", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("town", pa.string()), ("spot", pa.list_(pa.float64()))])),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": i,
        "small": i % 100,
        "name": None if i % 7 == 0 else f"Köln 日本 {i}",
        "raw": bytes([i % 256]),
        "flag": i % 2 == 0,
        "share": i / 3,
        "price": Decimal(i) / 10_000,
        "day": date(2024, 1, 1 + i % 28),
        "at": datetime(2024, 1, 1, microsecond=i, tzinfo=UTC),
        "local": datetime(1969, 12, 31, 23, 59, 59, i),
        "tags": [None, "a"] if i % 3 else None,
        "place": {"town": "Ulm", "spot": [0.5, None]} if i % 5 else None,
        "counts": [("x", i)] if i % 2 else [],
    }
    for i in range(600)
]
# Zones as Arrow gives them.
ROWS = pa.Table.from_pylist(ROWS, ALL).to_pylist()


def phase(root: Path, **options: str) -> FilePhase:
    return FilePhase("old", {"path": str(root / "data"), "metadataLocation": str(root / "meta")} | options)


def write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = ALL, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, **options)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """One for each of hypothesis's examples."""
    root = Path(tempfile.mkdtemp())
    try:
        yield root
    finally:
        shutil.rmtree(root)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=6),
    st.lists(st.integers(1, 150) | st.none(), min_size=1, max_size=8),
    st.sampled_from(["1k", "4k", "64m"]),
)
def test_every_row_once_at_any_limits(files: list[tuple[int, int]], limits: list[int | None], size: str) -> None:
    with directory() as root:
        (root / "data").mkdir()
        written = []
        for number, (count, group) in enumerate(files):
            rows = [row | {"id": number * 1_000 + row["id"]} for row in ROWS[:count]]
            write(root / f"data/{number}.parquet", rows, row_group_size=group)
            written += rows
        source = phase(root, filePartitionBytes=size, allowEmpty="true")
        source.open(Columns(ALL))
        start = source.begin({})
        ends = [step.position for step in steps(source, limits, start)]
        positions = [start, *ends]
        found = [batches_between(source, a, b) for a, b in pairwise(positions)]
        assert bag(row for batch in found for part in batch for row in part.to_pylist()) == bag(written)
        assert all(part.schema == ALL for batch in found for part in batch)
        again = phase(root, filePartitionBytes=size)
        again.open(Columns(ALL))
        for (a, b), batch in reversed(list(zip(pairwise(positions), found, strict=True))):
            assert again.partitions(a, b) == source.partitions(a, b)
            assert batches_between(again, a, b) == batch
        assert again.first(positions[-1]) == start


@pytest.mark.parametrize("limit", [None, 1, 100])
def test_orc_gives_the_same(tmp_path: Path, limit: int | None) -> None:
    (tmp_path / "data").mkdir()
    orc.write_table(pa.Table.from_pylist(ROWS[:300], ALL), tmp_path / "data/a.orc", stripe_size=4_096, batch_size=64)
    orc.write_table(pa.Table.from_pylist(ROWS[300:], ALL), tmp_path / "data/b.orc")
    orc.write_table(pa.Table.from_pylist([], ALL), tmp_path / "data/c.orc")
    assert orc.ORCFile(tmp_path / "data/a.orc").nstripes > 1
    source = phase(tmp_path, fileFormat="orc")
    assert source.schema() == ALL
    assert bag(rows_of(source, Columns(ALL), [limit])) == bag(ROWS)


def test_large_files_come_in_batches_of_bounded_size_and_small_ones_are_put_together(tmp_path: Path) -> None:
    many = pa.schema([("id", pa.int64())])
    write(tmp_path / "data/large.parquet", [{"id": i} for i in range(120_000)], many)
    for i in range(100):
        write(tmp_path / f"data/small{i:02}.parquet", [{"id": i}] * 10, many)
    source = phase(tmp_path, filePartitionBytes="1g")
    source.open(Columns(many))
    (last,) = steps(source, [None])
    found = [batch.num_rows for batch in batches_between(source, source.first(last.position), last.position)]
    assert sum(found) == 121_000
    assert len(found) < 20
    assert all(1_000 <= rows <= 50_000 for rows in found)


def test_batches_end_within_a_file_at_row_groups(tmp_path: Path) -> None:
    write(tmp_path / "data/a.parquet", ROWS, row_group_size=100)
    source = phase(tmp_path)
    source.open(Columns(ALL))
    found = [(step.position["file"], step.position["offset"], step.rows) for step in steps(source, [150])]
    assert found == [(0, 2, 200), (0, 4, 200), (1, 0, 200)]


def test_the_schema_of_files_and_directories(tmp_path: Path) -> None:
    write(tmp_path / "data/year=2024/kind=a%2Fb/p.parquet", ROWS[:1])
    write(tmp_path / "data/year=2025/kind=7/p.parquet", ROWS[1:2])
    assert phase(tmp_path).schema() == pa.schema([*ALL, ("year", pa.int32()), ("kind", pa.string())])
    assert phase(tmp_path, recursiveFileLookup="true").schema() == ALL
    assert phase(tmp_path, path=str(tmp_path / "data/none*"), allowEmpty="true").schema() is None
    odd = pa.schema(
        [("a", pa.uint32()), ("b", pa.uint64()), ("c", pa.large_string()), ("d", pa.timestamp("ns")), ("e", pa.null())]
    )
    write(tmp_path / "odd/p.parquet", [], odd)
    pq.write_table(pa.table({"t": pa.array([[1]], pa.list_(UTC_US))}), tmp_path / "int96.parquet",
                   use_deprecated_int96_timestamps=True, store_schema=False)  # fmt: skip
    assert phase(tmp_path, path=str(tmp_path / "odd")).schema() == pa.schema(
        [("a", pa.int64()), ("b", pa.decimal128(20)), ("c", pa.string()), ("d", pa.timestamp("us")), ("e", pa.string())]
    )
    assert phase(tmp_path, path=str(tmp_path / "int96.parquet")).schema() == pa.schema([("t", pa.list_(UTC_US))])
    write(tmp_path / "time/p.parquet", [], pa.schema([("a", pa.time64("us"))]))
    with pytest.raises(BacklogError, match=r"column a is time64\[us\]: Spark has no such type"):
        phase(tmp_path, path=str(tmp_path / "time")).schema()


def test_columns_of_directories_and_file_metadata(tmp_path: Path) -> None:
    one = pa.schema([("id", pa.int64()), ("Year", pa.string())])
    write(tmp_path / "data/year=2024/kind=a%2Fb/p.parquet", [{"id": 1, "Year": "of the file"}], one)
    write(tmp_path / "data/year=__HIVE_DEFAULT_PARTITION__/p.parquet", [{"id": 2, "Year": "of the file"}], one)
    declared = pa.schema([("kind", pa.string()), ("id", pa.int64()), ("year", pa.int16())])
    source = phase(tmp_path)
    found = rows_of(source, Columns(declared, tuple(METADATA)))
    sizes = [row.pop("_metadata")["file_size"] for row in found]
    assert sizes == [Path(row["_file"]).stat().st_size for row in found]
    none = dict.fromkeys(set(METADATA) - {"_metadata"}) | OF_HISTORY
    data = tmp_path / "data"
    assert found == [
        none
        | {"kind": "a/b", "id": 1, "year": 2024, "_phase": "old", "_file": f"{data}/year=2024/kind=a%2Fb/p.parquet"},
        none
        | {"kind": None, "id": 2, "year": None, "_phase": "old"}
        | {"_file": f"{data}/year=__HIVE_DEFAULT_PARTITION__/p.parquet"},
    ]
    assert bag(rows_of(phase(tmp_path), Columns(pa.schema([("year", pa.int16())])))) == bag(
        [{"year": 2024}, {"year": None}]
    )


def test_columns_are_found_in_any_case_missing_ones_are_null_and_numbers_come_to_the_declared_type(
    tmp_path: Path,
) -> None:
    write(tmp_path / "data/1.parquet", [{"ID": 1, "x": 2}], pa.schema([("ID", pa.int64()), ("x", pa.int64())]))
    write(tmp_path / "data/2.parquet", [{"id": 3.0}], pa.schema([("id", pa.float64())]))
    declared = pa.schema([("x", pa.int32()), ("id", pa.int32()), ("new", pa.list_(pa.string()))])
    found = rows_of(phase(tmp_path), Columns(declared))
    assert found == [{"x": 2, "id": 1, "new": None}, {"x": None, "id": 3, "new": None}]


def test_timestamps_as_spark_writes_them_by_default(tmp_path: Path) -> None:
    # INT96 holds years that nanoseconds do not.
    times = [datetime(2500, 1, 1, tzinfo=UTC), datetime(1600, 1, 1, 0, 0, 0, 5, tzinfo=UTC)]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"at": pa.array(times, UTC_US)}), tmp_path / "data/a.parquet", store_schema=False,
                   use_deprecated_int96_timestamps=True)  # fmt: skip
    source = phase(tmp_path)
    assert source.schema() == pa.schema([("at", UTC_US)])
    assert [row["at"] for row in rows_of(source, Columns(pa.schema([("at", UTC_US)])))] == times


@pytest.mark.parametrize(
    ("kind", "values", "declared", "words"),
    [
        (pa.string(), ["x"], pa.int64(), "column a: is string there and declared as int64"),
        (pa.int64(), [2**40], pa.int32(), "column a is int64 in the file, declared as int32.*1099511627776"),
        (pa.timestamp("ns"), [1], UTC_US, "column a is timestamp.ns. in the file.*would lose data"),
        (UTC_US, [1], pa.timestamp("us"), "column a: is timestamp.us, tz=UTC. there"),
    ],
)
def test_values_that_do_not_fit_name_file_column_and_types(
    tmp_path: Path, kind: pa.DataType, values: list[Any], declared: pa.DataType, words: str
) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"a": pa.array(values, kind)}), tmp_path / "data/f.parquet")
    with pytest.raises(BacklogError, match=f"data/f.parquet: {words}.*Declare a as"):
        rows_of(phase(tmp_path), Columns(pa.schema([("a", declared)])))


def test_a_file_with_other_columns_and_one_of_another_format(tmp_path: Path) -> None:
    write(tmp_path / "data/f.parquet", [{"b": 1}], pa.schema([("b", pa.int64())]))
    with pytest.raises(BacklogError, match=r"f\.parquet has none of the columns a\. It has b"):
        rows_of(phase(tmp_path), Columns(pa.schema([("a", pa.int64())])))
    write(tmp_path / "data/f.parquet", [{"a": 1, "A": 2}], pa.schema([("a", pa.int64()), ("A", pa.int64())]))
    assert rows_of(phase(tmp_path), Columns(pa.schema([("a", pa.int64())]))) == [{"a": 1}]
    (tmp_path / "data/f.parquet").write_bytes(b"not parquet at all")
    for limit in (None, 10):
        with pytest.raises(BacklogError, match=r"f\.parquet cannot be read as parquet"):
            rows_of(phase(tmp_path), Columns(pa.schema([("a", pa.int64())])), [limit])
    with pytest.raises(BacklogError, match=r"f\.parquet cannot be read as parquet"):
        phase(tmp_path).schema()


def test_a_damaged_row_group_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "data/f.parquet", ROWS, compression="zstd")
    data = bytearray((tmp_path / "data/f.parquet").read_bytes())
    data[100:2_000] = b"\0" * 1_900
    (tmp_path / "data/f.parquet").write_bytes(data)
    with pytest.raises(BacklogError, match=r"f\.parquet cannot be read as parquet"):
        rows_of(phase(tmp_path), Columns(ALL))


def test_no_files_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = phase(tmp_path, path=str(tmp_path / "none*"), allowEmpty="true")
    source.open(Columns(ALL))
    start = source.begin({})
    step = source.next(start, Limit(), 0)
    assert step.is_finished
    assert step.position is start
    assert "there is no file in" in caplog.text
    write(tmp_path / "data/empty.parquet", [])
    write(tmp_path / "data/groups.parquet", [], row_group_size=1)
    (tmp_path / "data/nothing.parquet").write_bytes(b"")
    for limit in (None, 5):
        assert rows_of(phase(tmp_path), Columns(ALL), [limit]) == []


def test_no_files_are_refused_before_the_phase_begins_and_when_it_does(tmp_path: Path) -> None:
    source = phase(tmp_path, path=str(tmp_path / "*.csv"), fileFormat="csv")
    source.open(Columns(ALL))
    for look in (source.columns_at_hand, lambda: source.begin({})):
        with pytest.raises(SettingError, match=r"path = '.*\*\.csv': no file is there"):
            look()


@pytest.mark.parametrize("form", ["csv", "json"])
def test_parquet_files_are_not_text(tmp_path: Path, form: str) -> None:
    write(tmp_path / "data/f.parquet", ROWS[:10])
    source = phase(tmp_path, fileFormat=form)
    source.open(Columns(ALL))
    with pytest.raises(BacklogError, match=rf"cannot be read as {form}: it is a file of Parquet. Set fileFormat"):
        source.columns_at_hand()
    with pytest.raises(BacklogError, match=rf"cannot be read as {form}: it is a file of Parquet"):
        source.next(source.begin({}), Limit(10), 0)


def test_an_empty_row_group_does_not_make_small_batches(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = pa.table({"id": range(5_000)})
    with pq.ParquetWriter(tmp_path / "data/a.parquet", rows.schema) as file:
        for table in (rows.slice(0, 0), rows, rows.slice(0, 0)):
            file.write_table(table)
    source = phase(tmp_path)
    source.open(Columns(rows.schema))
    start = source.begin({})
    (last,) = steps(source, [None], start)
    (batch,) = batches_between(source, start, last.position)
    assert batch.column("id").to_pylist() == list(range(5_000))


def test_files_that_come_later_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "data/a.parquet", ROWS[:5])
    source = phase(tmp_path)
    source.open(Columns(ALL))
    start = source.begin({})
    write(tmp_path / "data/b.parquet", ROWS[5:9])
    (last,) = steps(source, [None], start)
    assert bag(rows_between(source, start, last.position)) == bag(ROWS[:5])
    assert source.begin({}) != start


def test_most_files_of_a_batch(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path / f"data/{i}.parquet", ROWS[i : i + 1])
    source = phase(tmp_path, maxFilesPerBatch="2")
    source.open(Columns(ALL))
    assert [step.position["file"] for step in steps(source, [None])] == [2, 4, 5]


def test_a_file_system_of_fsspec(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for i in range(3):
        with memory.open(f"/phase/data/k={i}/p.parquet", "wb") as file:
            pq.write_table(pa.Table.from_pylist(ROWS[i * 200 : i * 200 + 200], ALL), file, row_group_size=50)
    options = {
        "path": "memory://phase/data",
        "metadataLocation": "memory://phase/meta",
        "fs.skip_instance_cache": "true",
    }
    declared = pa.schema([*ALL, ("k", pa.int32())])
    source = FilePhase("old", options)
    assert source.schema() == declared
    wanted = [row | {"k": row["id"] // 200} for row in ROWS]
    assert bag(rows_of(source, Columns(declared), [70])) == bag(wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timestampColumn": "when"}, "timestampColumn: the stream has no column when"),
        ({"timestampColumn": "id"}, "id is int64, not a timestamp"),
        (
            {"timestampColumn": "at", "dedupKey": "key", "startingOverlap": "1s"},
            "dedupKey: the stream has no column key",
        ),
        ({"timestampColumn": "at", "dedupKey": "share", "startingOverlap": "1s"}, "share is double"),
    ],
)
def test_columns_that_options_name_must_be_there(tmp_path: Path, options: dict[str, str], words: str) -> None:
    with pytest.raises(BacklogError, match=words):
        phase(tmp_path, **options).open(Columns(ALL))
