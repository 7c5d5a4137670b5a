"""Files that were removed or replaced after they were listed."""

import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backlog_spark.connectors.hybrid.files import FilePhase
from backlog_spark.connectors.hybrid.phases import Columns, Limit
from backlog_spark.errors import BacklogError

from .reading import rows_between, steps

SCHEMA = pa.schema([("id", pa.int64())])


def write(root: Path, number: int, first: int = 0) -> Path:
    path = root / f"data/{number}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [number * 10 + first + i for i in range(4)]
    pq.write_table(pa.table({"id": values}, schema=SCHEMA), path, row_group_size=2)
    os.utime(path, (1_700_000_000 + number,) * 2)
    return path


def phase(root: Path, **options: str) -> FilePhase:
    made = FilePhase("old", {"path": str(root / "data"), "metadataLocation": str(root / "meta")} | options)
    made.open(Columns(SCHEMA))
    return made


def lose(root: Path, how: str) -> Path:
    """Change or remove the second of three files."""
    path = root / "data/1.parquet"
    if how == "gone":
        path.unlink()
    elif how == "touched":
        os.utime(path, (1_800_000_000,) * 2)
    elif how == "of another size":
        pq.write_table(pa.table({"id": [1]}, schema=SCHEMA), path)
        os.utime(path, (1_700_000_001,) * 2)
    return path


@pytest.mark.parametrize("how", ["gone", "touched", "of another size"])
@pytest.mark.parametrize("limit", [None, 5])
def test_a_lost_file_is_an_error_that_names_it(tmp_path: Path, how: str, limit: int | None) -> None:
    for number in range(3):
        write(tmp_path, number)
    source = phase(tmp_path)
    start = source.begin({})
    path = lose(tmp_path, how)
    words = "is gone" if how == "gone" else "was changed"

    def read_all() -> None:
        for step in steps(source, [limit], start):
            rows_between(source, start, step.position)

    with pytest.raises(BacklogError, match=f"{path} {words} since.*failOnDataLoss=false"):
        read_all()


@pytest.mark.parametrize("how", ["gone", "touched", "of another size"])
@pytest.mark.parametrize("limit", [None, 1, 5])
def test_a_lost_file_is_left_out_as_a_whole(
    tmp_path: Path, how: str, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        write(tmp_path, number)
    source = phase(tmp_path, failOnDataLoss="false")
    start = source.begin({})
    path = lose(tmp_path, how)
    found = []
    for step in steps(source, [limit], start):
        found += [row["id"] for row in rows_between(source, start, step.position)]
        start = step.position
    assert found == [0, 1, 2, 3, 20, 21, 22, 23]
    assert f"{path} {'is gone' if how == 'gone' else 'was changed'}" in caplog.text


def test_a_file_that_is_lost_half_read(tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1)
    source = phase(tmp_path, failOnDataLoss="false", filePartitionBytes="1k")
    start = source.begin({})
    half = source.next(start, Limit(6), 0).position
    assert (half["file"], half["offset"]) == (1, 1)
    assert [row["id"] for row in rows_between(source, start, half)] == [0, 1, 2, 3, 10, 11]
    lose(tmp_path, "of another size")
    again = phase(tmp_path, failOnDataLoss="false", filePartitionBytes="1k")
    end = again.next(half, Limit(6), 0)
    assert end.is_finished
    assert rows_between(again, half, end.position) == []


def test_a_file_put_back_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, 0)
    source = phase(tmp_path)
    start = source.begin({})
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(BacklogError, match="is gone"):
        source.next(start, Limit(1), 0)
    path.write_bytes(kept)
    os.utime(path, (1_700_000_000,) * 2)
    end = source.next(start, Limit(), 0).position
    assert len(rows_between(source, start, end)) == 4


def test_a_file_replaced_in_an_object_store(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/loss/a.parquet", write(tmp_path, 0).read_bytes())
    source = phase(tmp_path, path="memory://loss/*.parquet")
    start = source.begin({})
    end = source.next(start, Limit(), 0).position
    assert len(rows_between(source, start, end)) == 4
    memory.rm("/loss/a.parquet")
    memory.pipe_file("/loss/a.parquet", write(tmp_path, 0, first=4).read_bytes())
    with pytest.raises(BacklogError, match="was changed"):
        rows_between(source, start, end)
