"""Change streams: retracted rows, and operators after operators with changing results.

However the input is cut into backlog and live batches, what is there at the end is what Spark's batch SQL makes of the
rows that are there at the end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.changes import (
    ASKED,
    CHANGE_TYPE,
    DELETE,
    INSERT,
    POSTIMAGE,
    PREIMAGE,
    TYPES,
    identity_of,
    sign,
)
from backlog_spark.operators.aggregates.retracting import SignedAggregateFold
from backlog_spark.operators.aggregates.signed import signed
from backlog_spark.operators.aggregates.sums import Avg
from backlog_spark.operators.multiset import netted_rows, present
from backlog_spark.spark.jvm.session import session_conf

from .conftest import Collect, plain, wait
from .scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user", pa.string()),
        ("amount", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("d", pa.float64()),
        (CHANGE_TYPE, pa.string()),
        ("_commit_seq", pa.int64()),
    ]
)


class Table:
    """A changing table and its change stream."""

    def __init__(self, seed: object) -> None:
        self._chance = random.Random(str(seed))
        self.rows: dict[int, tuple[Any, ...]] = {}
        self._seq = 0

    def change(self, count: int) -> pa.Table:
        chance = self._chance
        log: list[tuple[Any, ...]] = []

        def tell(kind: str, key: int, row: tuple[Any, ...]) -> None:
            self._seq += 1
            log.append((key, *row, kind, self._seq))

        for _ in range(count):
            key = chance.randrange(60)
            if key not in self.rows:
                self.rows[key] = self._row()
                tell(INSERT, key, self.rows[key])
            elif chance.random() < 0.3:
                tell(DELETE, key, self.rows.pop(key))
            else:
                tell(PREIMAGE, key, self.rows[key])
                self.rows[key] = self._row()
                tell(POSTIMAGE, key, self.rows[key])
        return pa.table([pa.array(c, f.type) for c, f in zip(zip(*log, strict=True), SCHEMA, strict=True)], SCHEMA)

    def _row(self) -> tuple[Any, ...]:
        chance = self._chance
        return (
            chance.choice([None, "", *"abcde"]),
            chance.choice([None, chance.randrange(-(2**55), 2**55), 7]),
            chance.choice([None, Decimal(chance.randrange(-(10**6), 10**6)) / 100]),
            chance.choice([None, 0.1, -0.0, float("inf"), float("nan"), chance.uniform(-1, 1)]),
        )

    def now(self, spark: SparkSession) -> None:
        """As a view ``given``."""
        rows = [(key, *row) for key, row in self.rows.items()]
        columns = list(zip(*rows, strict=True)) or [()] * 5
        kinds = list(SCHEMA)[:5]
        spark.createDataFrame(
            pa.table({f.name: pa.array(c, f.type) for c, f in zip(columns, kinds, strict=True)})
        ).createOrReplaceTempView("given")


def there(sink: Collect) -> Counter[Any]:
    """The rows that a reader of the changes has."""
    out: Counter[Any] = Counter()
    for _, batch in sorted(sink.batches.items()):
        for row in batch:
            values = row.asDict()
            kind = values.pop(CHANGE_TYPE)
            out[plain(tuple(values.values()))] += 1 if kind in (INSERT, POSTIMAGE) else -1
        assert min(out.values(), default=0) >= 0, "nothing is taken back that was not put out"
    return +out


def run(
    spark: SparkSession,
    root: Path,
    make: Callable[[bs.BacklogStream], bs.BacklogStream],
    sql: str,
    sizes: Sequence[int],
    backlog: int,
) -> Collect:
    """Run a query over a table that is changed, and compare with Spark's SQL over the table as it is at the end."""
    table = Table(f"{sql}{sizes}{backlog}")
    tables = [table.change(size) for size in sizes]
    for number, each in enumerate(tables):
        append(root / "s", each, backlog=number < backlog)
    stream = make(bs.source("scripted", name="s", path=root / "s", partitions=2))
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(root / "c")).to(sink).start(spark)
    table.now(spark)
    expected = Counter(plain(tuple(row)) for row in spark.sql(sql).collect())
    try:
        wait(lambda: there(sink) == expected, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert there(sink) == expected
    return sink


GROUPED = "SELECT user, {} FROM given GROUP BY user"
SUMS = "sum(amount) AS total, count(*) AS n, count(price) AS known, avg(price) AS mean, sum(price) AS worth"
WITH_ROWS = "min(d) AS lo, max(amount) AS hi, sum(amount) AS total, bool_or(d IS NULL) AS some"
HISTOGRAM = "SELECT n, count(*) AS users FROM (SELECT user, count(*) AS n FROM given GROUP BY user) GROUP BY n"
FIRST = "first(user) AS u"


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("make", "sql", "sizes", "backlog"),
    [
        pytest.param(
            lambda s: s.key_by("user").aggregate(SUMS), GROUPED.format(SUMS), (120, 30, 30), 1, marks=pytest.mark.grid
        ),
        (lambda s: s.key_by("user").aggregate(WITH_ROWS), GROUPED.format(WITH_ROWS), (120, 30, 30), 2),
        pytest.param(
            lambda s: (
                s.key_by("user").count().map("user AS u", "count AS n").key_by("n").aggregate("count(*) AS users")
            ),
            HISTOGRAM,
            (120, 30, 30),
            1,
            marks=pytest.mark.grid,
        ),
        pytest.param(
            lambda s: s.key_by("user").aggregate(SUMS), GROUPED.format(SUMS), (40, 40, 40), 0, marks=pytest.mark.grid
        ),
        pytest.param(
            lambda s: s.key_by("user").aggregate(WITH_ROWS),
            GROUPED.format(WITH_ROWS),
            (40, 40, 40),
            0,
            marks=pytest.mark.grid,
        ),
        pytest.param(
            lambda s: s.key_by("user").aggregate("count(*) AS n").key_by("n").aggregate("max(user) AS last"),
            "SELECT n, max(user) AS last FROM (SELECT user, count(*) AS n FROM given GROUP BY user) GROUP BY n",
            (120, 30, 30),
            2,
            marks=pytest.mark.grid,
        ),
    ],
)
def test_aggregates_of_the_present_rows(
    spark: SparkSession, tmp_path: Path, make: Any, sql: str, sizes: Sequence[int], backlog: int
) -> None:
    run(spark, tmp_path, make, sql, sizes, backlog)


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_chosen_rows_replace_each_other_in_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """An older row that is chosen again counts, although its change is older."""

    def change(*rows: tuple[Any, ...]) -> pa.Table:
        columns = ("id", "user", "amount", CHANGE_TYPE, "_commit_seq")
        return pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))

    append(tmp_path / "s", change((1, "a", 5, INSERT, 1), (2, "a", 9, INSERT, 2), (3, "b", 1, INSERT, 3)), backlog=True)
    append(tmp_path / "s", change((2, "a", 9, DELETE, 4)), backlog=False)
    stream = bs.source("scripted", name="s", path=tmp_path / "s").key_by("user").max_by("amount")
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    sink = bs.DeltaUpsert(str(tmp_path / "t"), keys=["user"])
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows == 4, query)
        query.processAllAvailable()
    finally:
        query.stop()
    table = spark.read.format("delta").load(str(tmp_path / "t"))
    assert table.columns == ["user", "id", "amount"]
    assert sorted(map(tuple, table.collect())) == [("a", 1, 5), ("b", 3, 1)]


def test_a_row_is_found_again_in_another_time_zone(spark: SparkSession) -> None:
    row = spark.sql("SELECT array(timestamp_seconds(0)) AS a, named_struct('t', timestamp_seconds(1)) AS s")
    found = []
    for zone in ("UTC", "Europe/Paris"):
        with session_conf(spark, {"spark.sql.session.timeZone": zone}):
            found.append(row.select(identity_of([(f, F.col(f.name)) for f in row.schema])).first())
    assert found[0] == found[1]


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_rows_that_are_only_added_have_results_that_change(spark: SparkSession, tmp_path: Path) -> None:
    """Aggregate, filter, join, aggregate: a result that no longer passes the filter retracts its pairs."""
    chance = random.Random(5)
    orders = [{"user": chance.choice("abcdef"), "amount": chance.randrange(-9, 10)} for _ in range(90)]
    users = [{"id": name, "country": country} for name, country in zip("abcdefg", "xxyyzzz", strict=True)]
    for number in range(3):
        append(tmp_path / "o", pa.Table.from_pylist(orders[number * 30 : number * 30 + 30]), backlog=not number)
    append(tmp_path / "u", pa.Table.from_pylist(users), backlog=True)
    append(tmp_path / "u", pa.Table.from_pylist([{"id": "b", "country": "w"}]), backlog=False)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "ou"}
    positive = source["o"].key_by("user").sum("amount").changes().filter("amount > 0")
    joined = positive.key_by("user").join(source["u"].key_by("id"), how="left")
    stream = joined.key_by("country").aggregate("count(*) AS users, sum(amount) AS total")
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
    spark.createDataFrame(pa.Table.from_pylist(orders)).createOrReplaceTempView("o")
    users.append({"id": "b", "country": "w"})
    spark.createDataFrame(pa.Table.from_pylist(users)).createOrReplaceTempView("u")
    found = spark.sql(
        "SELECT country, count(*), sum(amount) FROM (SELECT user, sum(amount) AS amount FROM o GROUP BY user HAVING "
        "sum(amount) > 0) LEFT JOIN u ON user = id GROUP BY country"
    )
    expected = Counter(plain(tuple(row)) for row in found.collect())
    try:
        wait(lambda: there(sink) == expected, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert there(sink) == expected
    assert sink.backlog[min(sink.batches)], "the results of the backlog come with the batch that ends it"


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(("backlog", "ttl"), [((1, 2), None), pytest.param((0, 1), "1 hour", marks=pytest.mark.grid)])
def test_both_inputs_are_results(
    spark: SparkSession, tmp_path: Path, backlog: tuple[int, int], ttl: str | None
) -> None:
    """Both inputs are results, and both read the same source."""
    tables = [Table("left"), Table("right")]
    logs = {name: [table.change(60) for _ in range(3)] for table, name in zip(tables, "lr", strict=True)}
    for name, count in zip("lr", backlog, strict=True):
        for number, log in enumerate(logs[name]):
            append(tmp_path / name, log, backlog=number < count)
    left, right = (bs.source("scripted", name=name, path=tmp_path / name) for name in "lr")
    counts = left.key_by("user").count()
    sums = left.union(right).key_by("user").sum("amount")
    stream = counts.key_by("user").join(sums.key_by("user"), how="full", ttl=ttl)
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink)
    for table, view in zip(tables, "lr", strict=True):
        table.now(spark)
        spark.table("given").createOrReplaceTempView(view)
    expected = Counter(
        plain(tuple(row))
        for row in spark.sql(
            "SELECT coalesce(a.user, b.user), n, amount FROM (SELECT user, count(*) AS n FROM l GROUP BY user) a "
            "FULL JOIN (SELECT user, sum(amount) AS amount FROM (TABLE l UNION ALL TABLE r) GROUP BY user) b "
            "ON a.user = b.user"
        ).collect()
    )
    query = writer.start(spark)
    try:
        wait(lambda: there(sink) == expected, query)
        query.processAllAvailable()
        assert there(sink) == expected
        # The left source is read twice, as two; what stands in the plans for their order alone is never read.
        counted = 2 * sum(log.num_rows for log in logs["l"]) + sum(log.num_rows for log in logs["r"])
        wait(lambda: query.backlogProgress.rows == counted, query)
        for name, at in (("user_count", 1), ("user_sum_amount", 2)):
            found = {plain(tuple(row)) for row in query.state(name).collect()}
            # A NULL key is one key to an aggregate, and comes out of the join by itself.
            assert {row for row in found if row[0] is not None} == {
                (row[0], row[at]) for row in expected if row[0] is not None and (row[1] if at == 1 else True)
            }
    finally:
        query.stop()
    # It goes on from there.
    query = writer.start(spark)
    try:
        append(tmp_path / "r", tables[1].change(5), backlog=False)
        wait(lambda: query.backlogProgress.rows > 0, query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert not query.exception()


@pytest.mark.grid
def test_state_is_read_with_changes_that_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    """In one key group with many buckets. Live batches delete, change and add some keys."""
    keys = 12_000

    def changes(kind: str, ids: Iterable[int], amount: int) -> list[dict[str, Any]]:
        return [{"id": id, "user": f"u{id}", "amount": amount, CHANGE_TYPE: kind, "_commit_seq": id} for id in ids]

    log = [
        changes(INSERT, range(keys), 1),
        changes(INSERT, range(50, keys + 200, 100), 5),  # comes with the state that is handed over
        changes(DELETE, range(0, keys, 100), 1),
    ]
    for number, each in enumerate(log):
        columns = pa.Table.from_pylist(each, pa.schema([f for f in SCHEMA if f.name not in ("price", "d")]))
        append(tmp_path / "s", columns, backlog=not number)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    sink = Collect()
    writer = source.key_by("user").aggregate("sum(amount) AS total, count(*) AS n", name="sums").write("q")
    writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
    with session_conf(spark, {"spark.backlog.keyGroups": "1"}):
        query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
        try:
            wait(lambda: query.backlogProgress.rows == sum(map(len, log)), query)
            query.processAllAvailable()
            found = {tuple(row) for row in query.state("sums").collect()}
        finally:
            query.stop()
    heads = spark.read.format("statestore").option("stateVarName", "head").load(str(tmp_path / "c"))
    (head,) = heads.select("value.rows", "value.recent", "value.gone").collect()
    assert len(head["gone"]) > 8 * keys // 100, "what is gone is kept apart"
    left = {f"u{id}": (1, 1) for id in range(keys) if id % 100}
    for id in range(50, keys + 200, 100):
        total, n = left.get(f"u{id}", (0, 0))
        left[f"u{id}"] = total + 5, n + 1
    assert head["rows"] == len(left)
    assert found == {(user, *values) for user, values in left.items()}


@pytest.mark.usefixtures("small_plans")
def test_changes_that_are_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """For an aggregate over rows that are only added, in several sorted batches and in stream mode."""
    tables = [pa.table({"k": list("aab"), "v": [1, 2, 3]}), pa.table({"k": list("bc"), "v": [4, 5]})]
    tables.append(pa.table({"k": list("cd"), "v": [6, 7]}))
    for number, each in enumerate(tables):
        append(tmp_path / "s", each, backlog=number < 2)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    sink = Collect()
    stream = source.key_by("k").reduce(lambda a, b: a._replace(v=a.v + b.v)).changes()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog="1 hour")
    spark.conf.set("spark.backlog.sortedBatch.enabled", "true")
    try:
        query = writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)
        wait(lambda: sum(there(sink).values()) == 4, query)
        query.stop()
    finally:
        spark.conf.unset("spark.backlog.sortedBatch.enabled")
    assert there(sink) == Counter([("a", 3), ("b", 7), ("c", 11), ("d", 7)])
    told = Counter((r["k"], r[CHANGE_TYPE]) for b in sink.batches.values() for r in b)
    assert told[("a", INSERT)] == told[("d", INSERT)] == 1
    assert told[("c", PREIMAGE)] == told[("c", POSTIMAGE)] == 1
    assert set(sink.schema.names) == {"k", "v", CHANGE_TYPE}
    assert not sink.schema[CHANGE_TYPE].metadata, "our mark is not for a table"


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("kind", "asks_first"),
    [
        ("aggregate", False),
        ("reduce", True),
        pytest.param("aggregate", True, marks=pytest.mark.grid),
        pytest.param("reduce", False, marks=pytest.mark.grid),
    ],
)
def test_a_checkpoint_is_with_changes_or_without(
    spark: SparkSession, tmp_path: Path, kind: str, asks_first: bool
) -> None:
    """Each kind would misread the versions of the other."""
    append(tmp_path / "s", pa.table({"k": list("aab"), "v": [1, 2, 3]}), backlog=True)

    def start(*, asks: bool) -> bs.BacklogQuery:
        keyed = bs.source("scripted", name="s", path=tmp_path / "s").key_by("k")
        if kind == "aggregate":
            stream = keyed.aggregate("sum(v) AS v", name="totals")
        else:
            stream = keyed.reduce(lambda a, b: a._replace(v=a.v + b.v), name="totals")
        writer = (stream.changes() if asks else stream).write("q")
        writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
        return writer.option("checkpointLocation", str(tmp_path / "c")).to(sink).start(spark)

    sink = Collect()
    query = start(asks=asks_first)
    wait(lambda: query.backlogProgress.rows == 3, query)
    query.stop()
    plain = "by k string: reduce" if kind == "reduce" else "by k string"
    now, before = (plain, f"{plain}, with changes") if asks_first else (f"{plain}, with changes", plain)
    with pytest.raises(BacklogError, match=f"'totals' is now {now}; in the checkpoint it is {before}\\."):
        start(asks=not asks_first)


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_an_upserting_table_follows(spark: SparkSession, tmp_path: Path) -> None:
    """HAVING: a key whose result no longer passes leaves the table, as does one whose last row is deleted."""
    table = Table("delta")
    logs = [table.change(80) for _ in range(4)]
    for number, log in enumerate(logs):
        append(tmp_path / "s", log, backlog=number < 2)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    stream = source.key_by("user").aggregate("count(*) AS n, max(amount) AS hi").filter("n > 3")
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    writer = writer.option("checkpointLocation", str(tmp_path / "c"))
    query = writer.to(bs.DeltaUpsert(str(tmp_path / "t"), ["user"])).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows == sum(log.num_rows for log in logs), query)
        query.processAllAvailable()
    finally:
        query.stop()
    table.now(spark)
    found = spark.read.format("delta").load(str(tmp_path / "t"))
    assert found.columns == ["user", "n", "hi"]
    expected = spark.sql("SELECT user, count(*) AS n, max(amount) AS hi FROM given GROUP BY user HAVING count(*) > 3")
    assert Counter(map(tuple, found.collect())) == Counter(map(tuple, expected.collect()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.key_by("user").over("sum(amount) AS t"), "over: the stream's rows have a column '_change_type'"),
        (
            lambda s: s.key_by("user").window(bs.ProcessingTimeSessionWindows.with_gap("1 s")).count(),
            "a session window: the stream's rows have a column '_change_type'",
        ),
        (
            lambda s: s.key_by("user").count().key_by("count").window(bs.EndOfStreamWindows.get()).aggregate(FIRST),
            r"window: the stream retracts rows, and first\(user\) cannot do so in a window",
        ),
        (
            lambda s: s.key_by("user").count().key_by("count").count_window(2).count(),
            "window: the results of the operator before it change",
        ),
        (
            lambda s: (
                s.key_by("user")
                .interval_join(s.map("id AS i", "user", CHANGE_TYPE).key_by("user"))
                .between("0 s", "1 s")
            ),
            "interval_join: the stream's rows have a column '_change_type'",
        ),
    ],
)
def test_operators_that_cannot_retract_rows_refuse_changes(
    spark: SparkSession, tmp_path: Path, make: Any, message: str
) -> None:
    append(tmp_path / "s", Table("r").change(5), backlog=False)
    writer = make(bs.source("scripted", name="s", path=tmp_path / "s")).write("q")
    with pytest.raises(BacklogError, match=message):
        writer.option("checkpointLocation", str(tmp_path / "c")).to(Collect()).start(spark)


def test_an_average_of_whole_numbers_forgets_nothing(spark: SparkSession) -> None:
    """A double of 2^53 would swallow the 1 that is left."""
    rows = [("a", 2**53, INSERT), ("a", 1, INSERT), ("a", 2**53, DELETE), ("b", 2, INSERT), ("b", 2, DELETE)]
    given = spark.createDataFrame(rows, f"k string, v long, {CHANGE_TYPE} string")
    average = signed(Avg("v", name="m"), given.schema)
    assert average is not None
    fold = SignedAggregateFold(["k"], [average], given.schema, 4, ASKED)
    base = fold.state_of(fold.fold(given.limit(2), None))
    merged = fold.finish(fold.state_of(fold.fold(given.subtract(given.limit(2)), base)))
    assert [tuple(row) for row in merged.collect()] == [("a", 1.0)]


def test_grouping_by_the_change_type_makes_it_data(spark: SparkSession, tmp_path: Path) -> None:
    given_rows = Table("k").change(50)
    append(tmp_path / "s", given_rows, backlog=False)
    sink = Collect()
    stream = bs.source("scripted", name="s", path=tmp_path / "s").key_by(CHANGE_TYPE).count()
    writer = stream.write("q").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(available_now=True).to(sink).start(spark)
    query.awaitTermination(300)
    found = [(row[0], row[1]) for batch in sink.batches.values() for row in batch]
    assert Counter(dict(found)) == Counter(given_rows[CHANGE_TYPE].to_pylist())
    assert len(found) == len(TYPES)


def test_an_unknown_change_type_is_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(kind,) for kind in TYPES], "c string")
    assert [row[0] for row in frame.select(sign(F.col("c"))).collect()] == [1, -1, 1, -1]
    for wrong in ("upsert", None):
        with pytest.raises(SparkRuntimeException, match=f"_change_type is {wrong or 'NULL'}; known: insert, "):
            spark.createDataFrame([(wrong,)], "c string").select(sign(F.col("c"))).collect()


def test_rows_that_differ_have_other_identities(spark: SparkSession) -> None:
    schema = "a int, b int, l array<int>, s struct<x: int, y: timestamp>"
    rows = [
        "1, NULL, NULL, NULL", "NULL, 1, NULL, NULL", "NULL, NULL, array(1, NULL), NULL",
        "NULL, NULL, array(NULL, 1), NULL", "NULL, NULL, array(), NULL", "NULL, NULL, NULL, NULL",
        "NULL, NULL, NULL, named_struct('x', 1, 'y', TIMESTAMP '2026-01-01 00:00:00.000001')",
        "NULL, NULL, NULL, named_struct('x', 1, 'y', TIMESTAMP '2026-01-01 00:00:00.000002')",
        "NULL, NULL, NULL, named_struct('x', NULL, 'y', NULL)",
    ]  # fmt: skip
    frame = spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows * 2)).toDF("a", "b", "l", "s")
    frame = spark.createDataFrame(frame.rdd, schema)
    found = frame.select(identity_of([(field, F.col(field.name)) for field in frame.schema])).collect()
    assert len({row[0] for row in found}) == len(rows)
    assert Counter(row[0] for row in found[: len(rows)]) == Counter(row[0] for row in found[len(rows) :])


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, -1]), st.booleans()), max_size=12))
def test_counting_rows(rows: list[tuple[int, int, bool]]) -> None:
    """Compares a worker with a model. Kept rows come first and have the sign 1."""
    kept = [(number, 1, True) for number, _, old in rows if old]
    every = [*kept, *((number, s, False) for number, s, old in rows if not old)]
    import numpy as np

    numbers, signs, old = (np.array(c) for c in zip(*every, strict=True)) if every else (np.array([], int),) * 3
    before, after = present([numbers], signs, old.astype(bool), np.zeros(len(every), dtype=bool))
    assert before.tolist() == [o for _, _, o in every]
    for number in range(3):
        mine = [at for at, row in enumerate(every) if row[0] == number]
        assert sum(after[at] for at in mine) == max(0, sum(every[at][1] for at in mine))
        assert not any(after[at] for at in mine if every[at][1] < 0)
        if sum(every[at][1] for at in mine if not every[at][2]) >= 0:
            assert all(after[at] for at in mine if every[at][2]), "what is kept stays, if it can"


def test_counting_rows_of_a_batch(spark: SparkSession) -> None:
    rows = [("a", 1, 1), ("a", 1, 1), ("a", 1, -1), ("a", 1, 1), ("b", 2, 1), ("b", 2, -1), ("c", 3, -1)]
    frame = spark.createDataFrame(rows, "k string, v int, s int")
    assert sorted(map(tuple, netted_rows(frame, ["k", "v"], "s").collect())) == [("a", 1, 1), ("a", 1, 1)]
