"""The temporal join against a model and in real queries: no row is joined before the build side is complete."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.joins.temporal import TemporalJoinFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE
from backlog_spark.state.tables import combine
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Row(NamedTuple):
    """A probe row or a change of the build side; equal values make equal rows."""

    side: int
    key: str | None
    value: int
    sign: int = 1


def fold_of(how: str, *, changes: bool) -> TemporalJoinFold:
    schema = StructType().add(SIDE, IntegerType())
    for prefix, value in (("l:", "v"), ("r:", "w")):
        schema = schema.add(prefix + "k", StringType()).add(prefix + value, LongType())
    if changes:
        schema = schema.add("r:" + CHANGE_TYPE, StringType())
    return TemporalJoinFold(schema, ["k"], ["k"], 4, how=how, order=None if changes else "w")


class Model:
    """The present rows and the output, batch by batch."""

    def __init__(self, how: str, *, changes: bool) -> None:
        self.how = how
        self.changes = changes
        self.build: Counter[tuple[str, int]] = Counter()
        self.waiting: list[Row] = []
        self.out: Counter[Any] = Counter()

    def take(self, rows: Sequence[Row], *, backlog: bool) -> None:
        for row in rows:
            if row.side == RIGHT and row.key is not None:
                self.build[row.key, row.value] += row.sign
        self.waiting += [row for row in rows if row.side == LEFT]
        if backlog:
            return
        for row in self.waiting:
            found = [value for (key, value), n in (+self.build).items() if key == row.key for _ in range(n)]
            if not self.changes and found:
                found = [max(found)]
            if row.key is None:
                found = []
            for value in found:
                self.out[(row.key, row.value, value)] += 1
            if not found and self.how == "left":
                self.out[(row.key, row.value, None)] += 1
        self.waiting = []


class Group:
    """Drives one key group like a worker, batch by batch."""

    def __init__(self, fold: TemporalJoinFold) -> None:
        self.fold = fold
        self.state = combine([], fold.state.arrow())
        self.out: Counter[Any] = Counter()

    def take(self, rows: Sequence[Row], *, backlog: bool, now: int | None = None) -> None:
        fold = self.fold
        made = [
            {
                "__hash": sum((row.key or "").encode()) % 2,
                "k0": row.key,
                "side": row.side,
                **dict(zip(fold.values(row.side), (row.key, row.value), strict=True)),
                **({"row": hash((row.key, row.value)), "sign": row.sign} if fold.takes_back else {}),
            }
            for row in rows
        ]
        live = pa.RecordBatch.from_pylist(made, fold.live_schema())
        clock = Clock(MIN_WATERMARK, MIN_WATERMARK, now, 2 * backlog)
        step = fold.step(self.state, Arrived((), live), clock)
        if step.state is not None:
            self.state = step.state
        for number, part in step.outputs:
            assert number == 0
            assert part.schema.names == ["k", "v", "w"]
            self.out += Counter((r["k"], r["v"], r["w"]) for r in part.to_pylist())


rows_of_any_key = st.lists(
    st.tuples(st.sampled_from([LEFT, RIGHT]), st.sampled_from(["a", "b", "c", None]), st.integers(0, 3)), max_size=24
)


@given(st.data(), rows_of_any_key, st.sampled_from(["left", "inner"]), st.booleans())
def test_each_row_is_joined_with_the_rows_present_at_that_time(
    data: Any, plain: list[Any], how: str, changes: bool
) -> None:
    rows = [Row(*row) for row in plain]
    if changes:
        for row in [row for row in rows if row.side == RIGHT]:
            if data.draw(st.booleans()):
                rows.insert(data.draw(st.integers(rows.index(row) + 1, len(rows))), row._replace(sign=-1))
        there: Counter[Row] = Counter()
        valid = []
        for row in rows:
            there[row._replace(sign=1)] += row.sign
            if there[row._replace(sign=1)] >= 0:
                valid.append(row)
            else:
                there[row._replace(sign=1)] = 0
        rows = valid
    group, model = Group(fold_of(how, changes=changes)), Model(how, changes=changes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    at = 0
    for end in cuts:
        # A snapshot ends once; a log may be far behind again later.
        backlog = data.draw(st.booleans())
        for each in (group, model):
            each.take(rows[at:end], backlog=backlog)
        if not backlog:
            group.take([], backlog=False, now=10)
            assert group.out == model.out
            assert not any(row["side"] == LEFT for row in group.state.to_pylist())
        at = end
    for each in (group, model):
        each.take(rows[at:], backlog=False)
    group.take([], backlog=False, now=10)
    assert group.out == model.out


def test_rows_that_wait_are_due_at_once_and_others_never() -> None:
    group = Group(fold_of("left", changes=True))
    group.take([Row(LEFT, "a", 1), Row(RIGHT, "a", 2)], backlog=True)
    assert not group.out
    event, processing = group.fold.due(group.state)
    assert sorted(processing) == [1, event.max()]
    group.take([], backlog=True, now=5)
    assert not group.out
    group.take([], backlog=False, now=6)
    assert group.out == Counter([("a", 1, 2)])


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (lambda a, b: a.temporal_join(b, on="k", how="full"), "how.*'full'.*left, inner"),
        (lambda a, b: a.temporal_join(b.map("k", "w"), on="k"), "no column that orders the rows"),
        (lambda a, b: a.temporal_join(b.map("k", "w"), on="k", order="x"), "cannot be ordered by 'x'; it has k, w"),
        (lambda a, b: b.temporal_join(a, on="k", order="v"), "temporal_join: the stream's rows have .*_change_type"),
        (lambda a, b: a.temporal_join(b, on="j"), "no column 'j'"),
        (lambda a, b: a.temporal_join("b", on="k"), "temporal_join was given 'b'"),
    ],
)
def test_refusals(spark: SparkSession, tmp_path: Path, join: Any, message: str) -> None:
    append(tmp_path / "l", pa.table({"k": ["a"], "v": [1]}), backlog=False)
    append(tmp_path / "r", pa.table({"k": ["a"], "w": [1], CHANGE_TYPE: [INSERT]}), backlog=False)
    left, right = (bs.source("scripted", name=n, path=tmp_path / n) for n in "lr")

    def start() -> None:
        writer = join(left, right).write("q").option("checkpointLocation", str(tmp_path / "c"))
        writer.to(Collect()).start(spark)

    with pytest.raises((BacklogError, SettingError), match=message):
        start()


# -- real queries ---------------------------------------------------------------------------------------------


def clicks(first: int, count: int) -> pa.Table:
    chance = random.Random(first)
    users = [chance.choice([None, *range(8)]) for _ in range(count)]
    return pa.table({"user_id": pa.array(users, pa.int64()), "item": pa.array(range(first, first + count), pa.int64())})


def users(rows: Sequence[tuple[int | None, str, str]]) -> pa.Table:
    names = ["user_id", "gender", CHANGE_TYPE]
    schema = pa.schema([("user_id", pa.int64()), ("gender", pa.string()), (CHANGE_TYPE, pa.string())])
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), schema=schema)


SNAPSHOT = [users([(n, "f" if n % 2 else "m", INSERT) for n in range(0, 4)]), users([(n, "f", INSERT) for n in (4, 5)])]
LOG = users([(5, "f", PREIMAGE), (5, "m", POSTIMAGE), (0, "m", DELETE), (6, "f", INSERT), (None, "f", INSERT)])


@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("during", [0, pytest.param("1 hour", marks=pytest.mark.grid)])
def test_no_click_is_joined_before_the_snapshot_is_there(spark: SparkSession, tmp_path: Path, during: Any) -> None:
    """At an interval of 0, as one batch, and above it, where the operators run as stream."""
    for number in range(2):
        append(tmp_path / "c", clicks(number * 100, 30), backlog=False)
    for each in SNAPSHOT:
        append(tmp_path / "u", each, backlog=True)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "cu"}
    stream = source["c"].temporal_join(source["u"], on="user_id")
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=during)
    writer = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink)

    def put_out() -> Counter[Any]:
        return Counter(tuple(row) for batch in sink.batches.values() for row in batch)

    query = writer.start(spark)
    if during:
        # The clicks have been read, and wait; also when the query is started again.
        wait(lambda: query.backlogProgress.rows == 60 + 6, query)
        query.stop()
        assert not put_out()
        query = writer.start(spark)
    try:
        append(tmp_path / "u", SNAPSHOT[0].slice(0, 0), backlog=False)
        before = {0: "m", 1: "f", 2: "m", 3: "f", 4: "f", 5: "f"}
        rows = pa.concat_tables([clicks(0, 30), clicks(100, 30)]).to_pylist()
        expected = Counter((r["user_id"], r["item"], before.get(r["user_id"])) for r in rows)
        wait(lambda: put_out().total() >= 60, query)
        assert put_out() == expected
        append(tmp_path / "u", LOG, backlog=False)
        query.processAllAvailable()
        append(tmp_path / "c", clicks(200, 30), backlog=False)
        wait(lambda: put_out().total() >= 90, query)
        query.processAllAvailable()
    finally:
        query.stop()
    after = {1: "f", 2: "m", 3: "f", 4: "f", 5: "m", 6: "f"}
    expected += Counter((r["user_id"], r["item"], after.get(r["user_id"])) for r in clicks(200, 30).to_pylist())
    assert put_out() == expected
    assert sink.schema.names == ["user_id", "item", "gender"]


@pytest.mark.usefixtures("small_plans")
def test_a_run_that_ends_when_all_is_read_joins_what_waited(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "c", clicks(0, 30), backlog=False)
    append(tmp_path / "u", SNAPSHOT[0], backlog=True)
    append(tmp_path / "u", SNAPSHOT[0].slice(0, 0), backlog=False)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "cu"}
    sink = Collect()
    writer = source["c"].temporal_join(source["u"], on="user_id").write("q")
    writer = writer.trigger(available_now=True, interval_during_backlog="1 hour")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink).start(spark)
    assert query.awaitTermination(300)
    assert query.jobStatus is bs.JobStatus.FINISHED
    genders = {0: "m", 1: "f", 2: "m", 3: "f"}
    expected = Counter((r["user_id"], r["item"], genders.get(r["user_id"])) for r in clicks(0, 30).to_pylist())
    assert Counter(tuple(row) for batch in sink.batches.values() for row in batch) == expected


@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize("backlog", [pytest.param(True, marks=pytest.mark.grid), False])
def test_the_newest_row_where_the_order_is_null_or_no_number(
    spark: SparkSession, tmp_path: Path, backlog: bool
) -> None:
    """As in Spark NULL is smallest (and still a row) and NaN greatest, in both vehicles."""
    nan = float("nan")
    given = [(0, "none", None), (1, "old", None), (1, "one", 1.0), (2, "nan", nan), (2, "two", 2.0), (3, "x", -0.5)]
    kinds = [pa.int64(), pa.string(), pa.float64()]
    columns = [pa.array(c, k) for c, k in zip(zip(*given, strict=True), kinds, strict=True)]
    build = pa.table(dict(zip(("user_id", "name", "at"), columns, strict=True)))
    append(tmp_path / "u", build, backlog=backlog)
    append(tmp_path / "u", build.slice(0, 0), backlog=False)
    append(tmp_path / "c", clicks(0, 30).slice(0, 0), backlog=backlog)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "cu"}
    stream = source["c"].temporal_join(source["u"], on="user_id", how="inner", order="at")
    sink = Collect()
    writer = stream.map("user_id", "name").write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink).start(spark)
    try:
        wait(lambda: query.backlogProgress.rows >= len(given), query)
        query.processAllAvailable()
        append(tmp_path / "c", clicks(50, 30), backlog=False)
        names = {0: "none", 1: "one", 2: "nan", 3: "x"}
        expected = Counter(
            (r["user_id"], names[r["user_id"]]) for r in clicks(50, 30).to_pylist() if r["user_id"] in names
        )
        wait(lambda: sum(map(len, sink.batches.values())) >= expected.total(), query)
    finally:
        query.stop()
    assert Counter(tuple(row) for batch in sink.batches.values() for row in batch) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
def test_rows_equal_in_order_always_give_the_same_match(spark: SparkSession, tmp_path: Path) -> None:
    """The results of the backlog and the handed-over state are computed one after the other."""
    kinds = {"user_id": pa.int64(), "name": pa.string(), "more": pa.map_(pa.string(), pa.int64()), "at": pa.int64()}
    for part in range(8):  # in tasks of their own
        rows = [(user, f"name {part}", [("n", part)], 1) for user in range(6)]
        build = pa.table({n: pa.array(c, k) for (n, k), c in zip(kinds.items(), zip(*rows, strict=True), strict=True)})
        append(tmp_path / "u", build, backlog=True)
    append(tmp_path / "u", build.slice(0, 0), backlog=False)
    append(tmp_path / "c", clicks(0, 30), backlog=True)
    append(tmp_path / "c", clicks(50, 30), backlog=False)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "cu"}
    stream = source["c"].temporal_join(source["u"], on="user_id", how="inner", order="at")
    sink = Collect()
    writer = stream.map("user_id", "name").write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink).start(spark)
    users = Counter(r["user_id"] for r in pa.concat_tables([clicks(0, 30), clicks(50, 30)]).to_pylist())
    expected = Counter({user: n for user, n in users.items() if user in range(6)})
    try:
        wait(lambda: sum(map(len, sink.batches.values())) >= expected.total(), query)
    finally:
        query.stop()
    found = Counter(tuple(row) for batch in sink.batches.values() for row in batch)
    assert Counter({user: found[user, name] for user, name in found}) == expected, "one name of each user"


@pytest.mark.grid
@pytest.mark.usefixtures("small_plans")
def test_newer_rows_of_a_build_side_without_changes(spark: SparkSession, tmp_path: Path) -> None:
    build = pa.table({"id": [1, 1, 2, 1], "rate": [5, 7, 9, 6], "at": [1, 3, 1, 2]})
    append(tmp_path / "u", build, backlog=True)
    append(tmp_path / "u", build.slice(0, 0), backlog=False)
    append(tmp_path / "c", clicks(0, 30), backlog=True)
    append(tmp_path / "c", clicks(50, 30), backlog=False)
    source = {name: bs.source("scripted", name=name, path=tmp_path / name) for name in "cu"}
    stream = source["c"].temporal_join(source["u"], on="user_id", build_on="id", how="inner", order="at")
    sink = Collect()
    writer = stream.write("q").trigger(processing_time="50 ms", interval_during_backlog=0)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).to(sink).start(spark)
    rows = pa.concat_tables([clicks(0, 30), clicks(50, 30)]).to_pylist()
    newest = {1: (7, 3), 2: (9, 1)}
    expected = Counter(
        (r["user_id"], r["item"], r["user_id"], *newest[r["user_id"]]) for r in rows if r["user_id"] in newest
    )
    try:
        wait(lambda: sum(map(len, sink.batches.values())) >= expected.total(), query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert Counter(tuple(row) for batch in sink.batches.values() for row in batch) == expected
