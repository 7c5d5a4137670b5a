"""Cutting keys into chunks: no chunk is too large, for any distribution of keys."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.mysql import connect
from backlog_spark.connectors.mysql_cdc.snapshot.chunks import Splitter, estimated_rows, even_step, even_steps
from backlog_spark.connectors.mysql_cdc.source import check
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import options, read, reader

# Flink CDC's defaults, as its page "MySQL CDC Connector" gives them
FLINK = (0.05, 1000.0)


@pytest.mark.parametrize(
    ("low", "high", "scale", "rows", "step"),
    [
        (1, 1_000, 0, 1_000, 10),  # dense: one key a row, chunks of ten rows
        (1, 500_000, 0, 1_000, 5_000),
        (1, 1_000_000, 0, 1_000, 10_000),  # the upper bound itself
        (1, 1_000_001, 0, 1_000, None),
        (1, 50, 0, 1_000, 1),  # the lower bound itself: two rows in a hundred keys is one
        (1, 49, 0, 1_000, None),
        (-500, 499, 0, 1_000, 10),
        (0, 2**64 - 1, 0, 2**60, 160),
        (100, 100_000, 2, 1_000, 1_000),  # 1.00 to 1000.00, a thousand rows
    ],
)
def test_the_distribution_factor_decides(low: int, high: int, scale: int, rows: int, step: int | None) -> None:
    assert even_step(low, high, scale, rows, 10, FLINK) == step


@given(
    st.integers(-(2**63), 2**63),
    st.integers(0, 2**64),
    st.integers(1, 10**10),
    st.integers(1, 10**6),
    st.integers(0, 10),
)
def test_a_step_holds_a_chunks_rows_on_average(low: int, span: int, rows: int, size: int, scale: int) -> None:
    step = even_step(low, low + span, scale, rows, size, FLINK)
    factor = Fraction(span + 10**scale, 10**scale * rows)
    assert (step is not None) == (0.05 <= float(factor) <= 1000)
    if step is not None:
        per_step = Fraction(step * rows, span + 10**scale)
        assert size - Fraction(rows, span + 1) <= per_step <= size or step == 1


def counters(
    keys: list[int], wrong: Callable[[int], int]
) -> tuple[Callable[[int, int], int], Callable[[int, int], Iterator[int]]]:
    """The server's answers for sorted keys: estimates that may be wrong, and exact steps of three."""

    def between(low: int, high: int) -> list[int]:
        return keys[bisect.bisect_right(keys, low) : bisect.bisect_right(keys, high)]

    return (
        lambda low, high: wrong(len(between(low, high))),
        lambda low, high: (end for end in between(low, high)[SIZE - 1 :: SIZE] if end != high),
    )


SIZE = 3
GAPS = st.lists(st.one_of(st.just(1), st.integers(1, 10**4)), min_size=1, max_size=80)


@given(GAPS, st.integers(1, 10**4), st.one_of(st.none(), st.integers(1, 60)), st.sampled_from([0.5, 1.0, 2.0]))
@example([1] * 60 + [10**4] * 20, 3_000, None, 1.0)  # a crowd, then a desert
@example([10**4] * 20 + [1] * 60, 3_000, None, 1.0)
def test_chunks_follow_one_another_and_none_is_giant(
    gaps: list[int], step: int, wanted: int | None, off: float
) -> None:
    keys = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    count, crowded = counters(keys, lambda n: math.ceil(n * off))  # as InnoDB: never 0 where a row is
    ends, _, open_end = even_steps(0, keys[-1], step, SIZE, wanted, count, crowded)
    assert ends == sorted(set(ends))
    assert all(0 < end < keys[-1] for end in ends)
    assert open_end or wanted is not None
    bounds = [0, *ends, *([keys[-1]] if open_end else [])]
    sizes = [len([k for k in keys if a < k <= b]) for a, b in itertools.pairwise(bounds)]
    # Three chunks' rows are let through, by an estimate that may be half of them
    assert max(sizes, default=0) <= 3 * SIZE / min(off, 1) + 1
    if not open_end:  # the batch has about what was wanted, also where it ends within a crowd
        # A whole chunk that is left of a crowd counts as half of one.
        assert sum(sizes) <= 1.5 * (wanted or 0) / min(off, 1) + 3 * SIZE / min(off, 1) + 1
    if open_end:
        assert sum(sizes) == len(keys)
        assert len(sizes) <= keys[-1] // step + 1 + len(keys) // SIZE


def test_empty_pieces_are_joined() -> None:
    keys = [*range(1, 10), *range(10_001, 10_010)]
    count, crowded = counters(keys, lambda n: n)
    ends, rows, open_end = even_steps(0, keys[-1], 3, SIZE, None, count, crowded)
    assert (ends, rows, open_end) == ([3, 6, 9_999, 10_002, 10_005, 10_008], 18, True)


# -- on the server -----------------------------------------------------------------------------------------


def spread(mysql: MySQLServer, column: str, keys: list[object]) -> str:
    mysql.execute("CREATE DATABASE IF NOT EXISTS spread")
    mysql.execute("DROP TABLE IF EXISTS spread.t")
    mysql.execute(f"CREATE TABLE spread.t (k {column} PRIMARY KEY, pad CHAR(60) NOT NULL DEFAULT '')")
    for at in range(0, len(keys), 5_000):
        mysql.execute(f"INSERT INTO spread.t (k) VALUES {','.join(f'({k})' for k in keys[at : at + 5_000])}")
    mysql.execute("ANALYZE TABLE spread.t")
    return "spread.t"


ROWS, CHUNK = 12_000, 500
CROWD = 9_000
SPREADS: dict[str, tuple[str, list[object], bool]] = {
    "dense": ("INT", [*range(ROWS)], True),
    "every third": ("BIGINT UNSIGNED", [2**64 - 1 - 3 * n for n in range(ROWS)], True),
    "decimal": ("DECIMAL(20,4)", [Decimal(7 * n) / 4 for n in range(ROWS)], True),
    "a crowd and a desert": ("BIGINT", [*range(CROWD), *(CROWD + 3_000 * n for n in range(ROWS - CROWD))], True),
    "a desert and a crowd": ("BIGINT", [*(-3_000 * n - 1 for n in range(ROWS - CROWD)), *range(CROWD)], True),
    "one far away": ("BIGINT", [*range(ROWS), 2**62], False),
    "sparse": ("BIGINT", [n * 10**6 for n in range(ROWS)], False),
}


@pytest.mark.parametrize("name", SPREADS)
def test_uneven_keys_make_no_giant_chunks(mysql: MySQLServer, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    column, keys, arithmetic = SPREADS[name]
    given = options(mysql, spread(mysql, column, keys), chunkSize=CHUNK, intervalDuringBacklog="0")
    steps: list[int] = []
    exact = Splitter._key_after
    monkeypatch.setattr(Splitter, "_key_after", lambda self, low, high, n: steps.append(n) or exact(self, low, high, n))
    stream = reader(given)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    sizes = [len(read(stream, p)) for p in stream.partitions(start, end)]
    assert sum(sizes) == len(keys)
    # Three chunks' rows are let through, by an estimate that may be a quarter off.
    assert max(sizes) <= 4 * CHUNK
    assert len(sizes) <= 4 * len(keys) // CHUNK
    if not arithmetic:
        assert max(sizes) <= CHUNK
    assert (sum(steps) < len(keys)) == arithmetic, "index entries that were stepped over"


def test_the_bounds_of_the_factor_are_the_users(mysql: MySQLServer) -> None:
    table = spread(mysql, "BIGINT", [n * 2_000 for n in range(ROWS)])

    def ends(**more: object) -> list[int]:
        given = options(mysql, table, chunkSize=CHUNK, **more)
        parsed = MySqlOptions.parse(given)
        with connect(parsed) as connection:
            chunks = Splitter(connection, check(given)[0], parsed).next(None, None)
        return [int(end[0] or 0) for end in chunks.ends if end is not None]

    on_rows = ends()
    assert all(end % 2_000 == 0 for end in on_rows)
    assert len(on_rows) == ROWS // CHUNK - 1 or len(on_rows) == ROWS // CHUNK
    assert any(end % 2_000 for end in ends(distributionFactorUpper=3_000))


def test_pieces_count_no_more_rows_than_the_table_has(mysql: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says twice a piece's rows now and then; a progress of 170 % would look like a fault."""
    given = options(mysql, spread(mysql, "INT", [*range(ROWS)]), chunkSize=CHUNK)
    exact = Splitter._estimate
    monkeypatch.setattr(Splitter, "_estimate", lambda self, low, high: 2 * exact(self, low, high))
    parsed = MySqlOptions.parse(given)
    with connect(parsed) as connection:
        schema = check(given)[0]
        chunks = Splitter(connection, schema, parsed).next(None, None)
        assert len(chunks.ends) > 2, "cut by arithmetic"
        assert chunks.rows == estimated_rows(connection, schema)


def test_a_batch_with_a_limit_is_stepped_so_that_it_keeps_to_it(mysql: MySQLServer) -> None:
    table = spread(mysql, "INT", [*range(ROWS)])
    stream = reader(options(mysql, table, chunkSize=CHUNK))
    offset, sizes = stream.initialOffset(), []
    while offset["isProcessingBacklog"]:
        end = stream.latestOffset(offset, ReadMaxRows(2_500))
        sizes.append(sum(len(read(stream, p)) for p in stream.partitions(offset, end)))
        offset = end
    assert sizes == [2_500] * 4 + [2_000]
