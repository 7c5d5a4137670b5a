"""Large rows in many pairs: the output is cut into pieces that Arrow and Spark accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField

from backlog_spark.errors import BacklogError
from backlog_spark.operators.joins import pairs
from backlog_spark.operators.joins.pairs import Output, paired
from backlog_spark.spark.plan import group_processor as processor
from backlog_spark.state.tables import cut


@pytest.mark.parametrize("size", [1, 1_000, 1 << 20])
def test_pairs_come_in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pairs, "PIECE_BYTES", size)
    texts = ["", None, "x" * 10, "y" * 400, "z" * 5_000]
    rows = pa.RecordBatch.from_pydict({"a": texts, "n": range(5), "more": [[n] * n for n in range(5)]})
    chance = np.random.default_rng(3)
    left, right = chance.integers(0, 5, (2, 300))
    fields = [StructField("a", StringType()), StructField("n", LongType())]
    columns = [Output(fields[0], "a", None), Output(fields[1], None, "n")]
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    found = [pa.RecordBatch.from_arrays(each, schema=schema) for each in paired(rows, columns, schema, left, right)]
    whole = pa.Table.from_batches(found)
    assert whole["a"].to_pylist() == [texts[at] for at in left]
    assert whole["n"].to_pylist() == right.tolist()
    largest = 2 * (5_000 + rows.nbytes // 5)
    assert all(each.nbytes <= size + largest for each in found)
    assert (len(found) == 1) == (size == 1 << 20)
    alone = list(paired(rows, columns, schema, None, right))
    assert sum(len(each[0]) for each in alone) == 300
    assert all(each[0].null_count == len(each[0]) for each in alone)
    assert not list(paired(rows, columns, schema, left[:0], None))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct({"p": pa.string(), "n": pa.int64()}), lambda text: {"p": text, "n": 1}),
        (pa.list_(pa.string()), lambda text: [None, text, "s"]),
        (pa.map_(pa.string(), pa.list_(pa.binary())), lambda text: [("k", [text.encode()]), ("l", None)]),
        (pa.list_(pa.struct({"p": pa.list_(pa.string())})), lambda text: [None, {"p": [text, text]}, {"p": None}]),
    ],
    ids=["struct", "list", "map", "list of structs"],
)
def test_values_within_others_count(monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, value: Any) -> None:
    """One large value among many small ones, in all pairs."""
    monkeypatch.setattr(pairs, "PIECE_BYTES", 1 << 20)
    values = [value("s"), None, *(value("x" * size) for size in (100_000, *[1] * 2_000))]
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["a"]).slice(1)
    left = np.full(100, 1)
    schema = pa.schema([("a", kind)])
    columns = [Output(StructField("a", StringType()), "a", None)]
    found = [pa.RecordBatch.from_arrays(each, schema=schema) for each in paired(rows, columns, schema, left, left)]
    assert sum(each.num_rows for each in found) == 100
    assert all(each["a"].to_pylist() == [values[2]] * each.num_rows for each in found)
    assert max(each.nbytes for each in found) <= (1 << 20) + 3 * 100_000
    assert len(found) <= 100


def test_a_batch_is_cut_by_rows_and_bytes() -> None:
    texts = ["x" * (10_000 if n % 50 == 7 else 10) for n in range(200)]
    whole = pa.RecordBatch.from_pydict({"a": texts})
    found = cut(whole, 60, 12_000)
    assert [text for each in found for text in each["a"].to_pylist()] == texts
    assert max(each.num_rows for each in found) <= 60
    assert all(each.nbytes <= 12_000 for each in found), "no two large rows in one"
    assert [each.num_rows for each in cut(whole, 3, 1)] == [1] * 200
    assert not cut(whole.slice(0, 0), 5)


def test_the_output_of_a_key_group_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pa.RecordBatch.from_pydict({"a": ["x" * 100] * 50})
    outputs: Any = [(0, whole), (1, whole.slice(0, 3)), (0, whole.slice(0, 0))]
    assert [tag for tag, _ in processor.pieces_of(outputs)] == [0, 1]
    monkeypatch.setattr(processor, "DATA_ROWS", 20)
    pieces = list(processor.pieces_of(outputs))
    assert [tag for tag, _ in pieces] == [0, 0, 0, 1]
    monkeypatch.setattr(processor, "_FRAME_BYTES", 3_000)
    frames = list(processor.frames_of(pieces))
    assert [len(each) for each in frames] == [2, 2]
    assert [tag for each in frames for tag in each["tag"]] == [0, 0, 0, 1]
    assert [len(each) for each in processor.frames_of([])] == [0], "Spark is given one, with its columns"


def test_more_than_spark_takes_of_a_key_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_MOST_BYTES", 3)
    with pytest.raises(BacklogError, match=r"Key group 7 of the operator 'f' emits .* spark\.backlog\.keyGroups"):
        list(processor.rows_of([(0, b"ab"), (0, b"cd")], 7, "f"))
