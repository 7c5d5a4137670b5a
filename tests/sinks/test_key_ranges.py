"""The predicate is true for every key of a batch, and deltalake skips by it the files that have none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backlog_spark.sinks.delta.deltars.key_ranges import key_ranges

MICROS = pa.timestamp("us", "UTC")
LOCAL_MICROS = pa.timestamp("us")


def condition(values: Sequence[Any], kind: pa.DataType) -> str | None:
    return key_ranges(pa.table({"k": pa.array(values, kind)}))


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([5], pa.int32(), '((t."k" >= 5 AND t."k" <= 5))'),
        ([9, 7, 8, 7], pa.int64(), '((t."k" >= 7 AND t."k" <= 9))'),
        ([9, None, 7], pa.int64(), '((t."k" >= 7 AND t."k" <= 7) OR (t."k" >= 9 AND t."k" <= 9) OR t."k" IS NULL)'),
        ([None], pa.int64(), '(t."k" IS NULL)'),
        (["it's"], pa.string(), """((t."k" >= 'it''s' AND t."k" <= 'it''s'))"""),
        (
            [date(1, 1, 1), date(1, 1, 2)],
            pa.date32(),
            """((t."k" >= CAST('0001-01-01' AS DATE) AND t."k" <= CAST('0001-01-02' AS DATE)))""",
        ),
        (
            [Decimal("0.01")],
            pa.decimal128(20, 2),
            """((t."k" >= CAST('0.01' AS DECIMAL(20, 2)) AND t."k" <= CAST('0.01' AS DECIMAL(20, 2))))""",
        ),
        (
            [datetime(2024, 1, 1, 0, 0, 0, 123_456)],
            LOCAL_MICROS,
            """((t."k" >= arrow_cast('2024-01-01T00:00:00.123000', 'Timestamp(Microsecond, None)')"""
            """ AND t."k" <= arrow_cast('2024-01-01T00:00:00.123456', 'Timestamp(Microsecond, None)')))""",
        ),
    ],
)
def test_the_predicate_of_a_column(values: Sequence[Any], kind: pa.DataType, expected: str) -> None:
    assert condition(values, kind) == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], pa.int64()),
        ([1.5], pa.float64()),
        ([True], pa.bool_()),
        ([b"a"], pa.binary()),
        ([{"a": 1}], pa.struct({"a": pa.int64()})),
        ([Decimal(10**15)], pa.decimal128(20, 0)),
        ([Decimal(1), Decimal(2**63)], pa.decimal128(20, 0)),
        ([Decimal("1e-20")], pa.decimal128(38, 20)),
        (["a", "b" * 257], pa.string()),
        ([-62_135_596_800_000_001], MICROS),
        ([253_402_300_800_000_000], MICROS),
    ],
)
def test_keys_without_exact_literals_or_statistics_have_no_predicate(values: Sequence[Any], kind: pa.DataType) -> None:
    assert condition(values, kind) is None


def test_a_key_of_several_columns_has_a_condition_for_each_that_can_have_one() -> None:
    keys = pa.table({'a"b': [1, 2], "f": [0.5, 1.5], "t.x": ["m", "n"]})
    assert key_ranges(keys, "target") == (
        '((target."a""b" >= 1 AND target."a""b" <= 2))'
        """ AND ((target."t.x" >= 'm' AND target."t.x" <= 'm') OR (target."t.x" >= 'n' AND target."t.x" <= 'n'))"""
    )


def test_ranges_are_split_at_the_widest_gaps() -> None:
    keys = [spot * 10**6 + step * 3 for spot in range(32) for step in range(50)]
    found = condition(keys, pa.int64())
    assert found is not None
    assert found.split(" OR ")[1] == '(t."k" >= 1000000 AND t."k" <= 1000147)'
    assert found.count(" OR ") == 31
    more = condition([spot * 10**6 for spot in range(5_000)], pa.int64())
    assert more is not None
    assert more.count(" OR ") == 31


def test_texts_are_split_after_their_common_prefix() -> None:
    keys = [f"order-{region}-{number:04}" for region in "AZ" for number in range(40)]
    found = condition(keys, pa.string())
    assert found is not None
    between = [part for part in found.split(" OR ") if "A-0039" in part and "Z-0000" in part]
    assert between == []


WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DECIMALS = st.decimals(-(10**13), 10**13, places=2).filter(lambda value: abs(value) < 10**13)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), WHOLE),
    (pa.int8(), st.integers(-128, 127)),
    (pa.string(), TEXTS),
    (pa.date32(), st.dates()),
    (pa.decimal128(20, 2), DECIMALS),
    (MICROS, st.datetimes(timezones=st.just(UTC))),
    (LOCAL_MICROS, st.datetimes()),
]


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind) for kind, _ in KINDS])
def test_every_key_of_the_batch_is_in_a_range(
    tmp_path: Path, kind: pa.DataType, values: st.SearchStrategy[Any]
) -> None:
    path = str(tmp_path / "t")

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.none() | values, min_size=1, max_size=60))
    def check(batch: list[Any]) -> None:
        keys = pa.table({"k": pa.array(batch, kind)})
        write_deltalake(path, keys, mode="overwrite")
        predicate = key_ranges(keys)
        query = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT count(*) AS n FROM t WHERE {predicate}")
        assert pa.table(query).to_pylist() == [{"n": len(batch)}]

    check()


FILES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [-(2**63), -1, 0, 5, 2**63 - 1]),
    (pa.string(), ["", "a", 'it\'s "q" \\ %_', "é😀", "{a} ${b} $1 ?", "line\nbreak"]),
    (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)]),
    (pa.decimal128(20, 0), [Decimal(0), Decimal(1), Decimal(10**15 - 1)]),
    (pa.decimal128(20, 2), [Decimal("-9999999999999.99"), Decimal("0.01"), Decimal("9999999999999.99")]),
    (MICROS, [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]),
    (MICROS, [datetime(2024, 1, 1, 0, 0, 0, 123_456, UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)]),
    (LOCAL_MICROS, [datetime(1, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 123_456)]),
]


@pytest.mark.parametrize(("kind", "values"), FILES, ids=[f"{kind} {number}" for number, (kind, _) in enumerate(FILES)])
def test_a_merge_reads_the_files_that_have_keys_of_the_batch(
    tmp_path: Path, kind: pa.DataType, values: list[Any]
) -> None:
    path = str(tmp_path / "t")
    for number, value in enumerate([*values, None]):
        write_deltalake(path, pa.table({"k": pa.array([value], kind), "v": [number]}), mode="append")
    for batch in ([value] for value in [*values, None]):
        metrics = merge(path, pa.table({"k": pa.array(batch, kind), "v": [-1]}))
        assert (metrics["num_target_files_scanned"], metrics["num_target_rows_updated"]) == (1, 1)
    metrics = merge(path, pa.table({"k": pa.array([values[0], None], kind), "v": [-2, -2]}))
    assert (metrics["num_target_files_scanned"], metrics["num_target_rows_updated"]) == (2, 2)
    assert DeltaTable(path).count() == len(values) + 1


@pytest.mark.parametrize("kind", [MICROS, LOCAL_MICROS], ids=["timestamp", "timestamp_ntz"])
def test_statistics_cut_to_milliseconds_lose_no_file(tmp_path: Path, kind: pa.DataType) -> None:
    at = datetime(2024, 1, 1, 0, 0, 0, 123_999, UTC if kind.tz else None)
    rows = pa.table({"k": pa.array([at], kind), "v": [0]})
    zone = "Z" if kind.tz else ""
    stats = {side: {"k": f"2024-01-01T00:00:00.123{zone}"} for side in ("minValues", "maxValues")}
    path = table_of(tmp_path, rows, {"numRecords": 1, **stats, "nullCount": {"k": 0}})
    assert merge(path, pa.table({"k": pa.array([at], kind), "v": [-1]}))["num_target_rows_updated"] == 1


@pytest.mark.parametrize("stats", [{}, {"numRecords": 2}], ids=["none", "no minimum"])
def test_a_file_without_statistics_is_read(tmp_path: Path, stats: dict[str, Any]) -> None:
    path = table_of(tmp_path, pa.table({"k": pa.array([1, None], pa.int64()), "v": [0, 0]}), stats)
    assert merge(path, pa.table({"k": pa.array([1, None], pa.int64()), "v": [-1, -1]}))["num_target_rows_updated"] == 2


def table_of(tmp_path: Path, rows: pa.Table, stats: dict[str, Any]) -> str:
    table = DeltaTable.create(str(tmp_path / "t"), rows.schema)
    file = tmp_path / "t" / "part-0.parquet"
    pq.write_table(rows, file)
    add = AddAction(file.name, file.stat().st_size, {}, 0, True, json.dumps(stats))
    table.create_write_transaction([add], "append", table.schema(), [])
    return str(tmp_path / "t")


def merge(path: str, source: pa.Table) -> dict[str, Any]:
    ranges = key_ranges(source.select(["k"]))
    assert ranges is not None
    return (
        DeltaTable(path)
        .merge(source, f"(t.k IS NOT DISTINCT FROM s.k) AND {ranges}", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )
