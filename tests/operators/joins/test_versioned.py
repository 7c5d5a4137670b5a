"""The event-time temporal join against models of it: a plain loop over versions, and DuckDB's ASOF JOIN."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import SparkRuntimeException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.changes import CHANGE_TYPE, DELETE, INSERT, POSTIMAGE, PREIMAGE
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.joins.versioned import VersionedJoinFold
from backlog_spark.operators.sides import LEFT, RIGHT, SIDE
from backlog_spark.operators.waiting_fold import StayEnd
from backlog_spark.state.store import NEVER
from backlog_spark.state.tables import combine
from tests.operators.conftest import Collect, wait
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UTC = dt.UTC
FOREVER = 10**15


class Row(NamedTuple):
    """A row of either side; ``number`` is its value and tells it from others."""

    side: int
    key: str | None
    micros: int
    number: int
    seq: int | None = None
    gone: bool = False

    @property
    def millis(self) -> int:
        return self.micros // 1000


class Kind(NamedTuple):
    """The kind of build side: with or without changes and a sequence."""

    changes: bool
    seq: bool


def schema(kind: Kind, build_time: str = "rts") -> StructType:
    """The rows of both sides: key, event time, value, and the build side's change columns."""
    out = StructType().add(SIDE, IntegerType())
    for prefix, time, value in (("l:", "ts", "v"), ("r:", build_time, "w")):
        marked = StructField(prefix + time, TimestampType(), True, {EVENT_TIME: time})
        out = out.add(prefix + "user", StringType()).add(marked).add(prefix + value, LongType())
    out = out.add("r:" + CHANGE_TYPE, StringType()) if kind.changes else out
    return out.add("r:_commit_seq", LongType()) if kind.seq else out


def fold_of(kind: Kind, how: str = "left", given: StructType | None = None, **more: Any) -> VersionedJoinFold:
    return VersionedJoinFold(given or schema(kind), ["user"], ["user"], 4, **{"as_of": "ts", "how": how, **more})


def instant(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, UTC) + dt.timedelta(microseconds=micros)


def batch(rows: Iterable[Row], fold: VersionedJoinFold, *, state: bool = False) -> pa.RecordBatch:
    """Live rows, or rows of state; keys share hashes."""
    made = []
    for row in rows:
        plain = {"user": row.key, "ts": instant(row.micros), "rts": instant(row.micros), "_commit_seq": row.seq}
        plain |= {"v": row.number, "w": row.number}
        names = zip(fold.values(row.side), fold.sides[row.side].schema.names, strict=True)
        own = {"__hash": sum((row.key or "").encode()) % 2, "k0": row.key, "side": row.side, "t": row.millis}
        made.append(own | {r: plain[name] for r, name in names} | {"at": row.micros, "gone": row.gone, "seq": row.seq})
    arrow = fold.state.arrow() if state else fold.live_schema()
    return pa.RecordBatch.from_pylist([{n: row.get(n) for n in arrow.names} for row in made], arrow)


class Model:
    """Everything row by row: kept rows, waiting rows, and the output as numbers of both rows."""

    def __init__(self, how: str, *, control_first: bool = True) -> None:
        self.how, self.control_first = how, control_first
        self.versions: dict[str, dict[int, Row]] = {}
        self.waiting: list[Row] = []
        self.watermark, self.late = MIN_WATERMARK, 0
        self.out: Counter[Any] = Counter()

    def take(self, rows: Sequence[Row], watermark: int, loud: Sequence[Row] = (), *, woken: bool = False) -> None:
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        late_at = self.watermark if self.control_first else before
        in_time = [row for row in rows if row.side == RIGHT or row.millis > late_at]
        self.late += len(rows) - len(in_time)
        if not (woken or in_time or loud or any(row.millis <= self.watermark for row in self.waiting)):
            return
        for row in (*loud, *in_time):
            if row.side == RIGHT and row.key is not None:
                there = self.versions.setdefault(row.key, {})
                order = [-1 if r.seq is None else r.seq for r in (there.get(row.micros, row), row)]
                there[row.micros] = there[row.micros] if order[0] > order[1] else row
        waiting = self.waiting + [row for row in (*loud, *in_time) if row.side == LEFT]
        waiting = [row for row in waiting if row.key is not None or self.how == "left"]
        self.waiting = [row for row in waiting if row.millis > self.watermark]
        for row in waiting:
            if row.millis > self.watermark:
                continue
            before_it = [v for at, v in self.versions.get(row.key or "", {}).items() if at <= row.micros]
            met = max(before_it, key=lambda v: v.micros, default=None)
            if met is not None and not met.gone:
                self.out[(row.number, met.number)] += 1
            elif self.how == "left":
                self.out[(row.number, None)] += 1
        for there in self.versions.values():
            past = sorted(at for at, version in there.items() if version.millis <= self.watermark)
            for at in past[:-1] + [at for at in past[-1:] if there[at].gone]:
                del there[at]

    def rows(self) -> list[Row]:
        return [*self.waiting, *(v for there in self.versions.values() for v in there.values())]


class Group:
    """Drives one key group like a worker, batch by batch."""

    def __init__(self, fold: VersionedJoinFold) -> None:
        self.fold = fold
        self.state = combine([], fold.state.arrow())
        self.watermark, self.late = MIN_WATERMARK, 0
        self.out: Counter[Any] = Counter()

    def take(self, rows: Sequence[Row], watermark: int, seeds: Sequence[tuple[pa.RecordBatch, bool]] = ()) -> None:
        clock = Clock(before=self.watermark, watermark=max(self.watermark, watermark), now=None, backlog=0)
        step = self.fold.step(self.state, Arrived(tuple(seeds), batch(rows, self.fold)), clock)
        if step.state is not None:
            self.state = step.state
        self.watermark = clock.watermark
        self.late += step.late
        assert not any(number for number, _ in step.outputs)
        self.out += Counter((r["v"], r["w"]) for _, part in step.outputs for r in part.to_pylist())


def of_rows(rows: Iterable[Row]) -> Counter[Any]:
    return Counter((row.side, row.number) for row in rows)


def numbers(fold: VersionedJoinFold, state: pa.RecordBatch) -> Counter[Any]:
    """The rows of a state."""
    return Counter((r["side"], r[fold.value(r["side"], "vw"[r["side"]])]) for r in state.to_pylist())


# Several microseconds of a millisecond, of which a watermark knows nothing, and the ends of the calendar.
times = st.integers(0, 24).map(lambda n: n * 400) | st.sampled_from([-62_135_596_800_000_000, 253_402_300_799_999_999])
keys, seqs = st.sampled_from(["a", "b", "c", None]), st.none() | st.integers(0, 3)
rows_of_any_kind = st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), keys, times, seqs, st.booleans()), max_size=24)
kinds = st.builds(Kind, st.booleans(), st.booleans())
ways = st.sampled_from(["left", "inner"])


def made(plain: Sequence[Any], kind: Kind) -> list[Row]:
    """Rows. Those of the build side have the change columns of its kind."""
    found = [Row(side, key, micros, n, seq, gone) for n, (side, key, micros, seq, gone) in enumerate(plain)]
    told = [(kind.seq and r.side == RIGHT, kind.changes and r.side == RIGHT) for r in found]
    return [r._replace(seq=r.seq if s else None, gone=r.gone and g) for r, (s, g) in zip(found, told, strict=True)]


@given(st.data(), rows_of_any_kind, rows_of_any_kind, kinds, ways, st.booleans(), st.booleans())
def test_each_row_is_joined_with_the_version_of_its_time(
    data: Any, before: list[Any], after: list[Any], kind: Kind, how: str, control_first: bool, was_put_out: bool
) -> None:
    """After a stay with results nothing is emitted again; rows of another stay count as new."""
    rows = made(before + after, kind)
    stay, rows = rows[: len(before)], rows[len(before) :]
    group, model = Group(fold_of(kind, how, control_first=control_first)), Model(how, control_first=control_first)
    left, watermark = stay, data.draw(st.integers(-5, 10))
    if was_put_out:
        model.take([], watermark, loud=stay)
        stay, left, model.watermark = [], model.rows(), MIN_WATERMARK
    done = Counter(model.out)
    seeds = [(batch(left, group.fold, state=True), not was_put_out)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    for at, end in itertools.pairwise([0, *cuts, len(rows)]):
        group.take(rows[at:end], watermark, seeds)
        model.take(rows[at:end], watermark, loud=stay, woken=was_put_out and bool(seeds))
        seeds, stay = [], []
        assert done + group.out == model.out, "neither early nor behind time"
        assert (group.late, group.watermark) == (model.late, model.watermark)
        assert numbers(group.fold, group.state) == of_rows(model.rows())
        event, processing = group.fold.due(group.state)
        assert sorted(event[event < NEVER]) == sorted(row.millis for row in model.waiting)
        assert (processing == NEVER).all()
        # Rows may come behind it.
        watermark = data.draw(st.integers(watermark, 10))
    for each in (group, model):
        each.take([], FOREVER)
    assert done + group.out == model.out
    assert not any(row["side"] == LEFT for row in group.state.to_pylist())


def test_late_rows() -> None:
    group = Group(fold_of(Kind(True, True)))
    group.take([Row(LEFT, "a", 8_000, 1), Row(RIGHT, "a", 2_000, 2)], 4)
    group.take([Row(LEFT, "a", 4_999, 3), Row(LEFT, None, 4_000, 4), Row(RIGHT, "a", 3_000, 5)], 4)
    assert (group.late, group.out) == (2, Counter())
    group.take([Row(RIGHT, "a", 2_500, 6)], 4)
    assert numbers(group.fold, group.state) == Counter([(LEFT, 1), (RIGHT, 5)]), "the older version is not needed"
    group.take([], 8)
    assert group.out == Counter([(1, 5)])


def test_a_version_that_is_gone_is_forgotten() -> None:
    group = Group(fold_of(Kind(True, False)))
    group.take([Row(RIGHT, "a", 1_000, 1), Row(RIGHT, "a", 5_000, 2, gone=True)], 2)
    assert numbers(group.fold, group.state) == Counter([(RIGHT, 1), (RIGHT, 2)])
    group.take([Row(LEFT, "a", 4_999, 3), Row(LEFT, "a", 5_000, 4)], 3)
    group.take([], 5)
    assert group.out == Counter([(3, 1), (4, None)])
    assert not group.state.num_rows


def test_a_key_with_very_many_rows_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backlog_spark.operators.joins.versioned.PIECE_ROWS", 50_000)
    fold = fold_of(Kind(False, False))
    count = 1_000_000
    few = batch([Row(LEFT, "a", 0, 1), Row(RIGHT, "a", 0, 1)], fold, state=True)
    many = few.take(pa.array([0] * count + [1] * 1000))
    micros = pa.array([*range(count), *range(0, count, 1000)], pa.int64())
    columns = {"at": micros, "t": pc.divide(micros, 1000), fold.value(LEFT, "v"): micros}
    columns[fold.value(RIGHT, "w")] = pc.divide(micros, 1000)
    for name, values in columns.items():
        many = many.set_column(many.schema.get_field_index(name), name, values)
    state, out = fold.advance(many.slice(0, 0), many, Clock(0, 899, None, 0))
    assert [part.num_rows for part in out] == [50_000] * 18
    assert state.num_rows == 100_000 + 101
    whole = pa.Table.from_batches(out)
    assert whole["w"].equals(pa.chunked_array([pc.divide(part["v"], 1000) for part in out]))


def test_columns_of_the_output() -> None:
    told, plain = Kind(True, True), Kind(False, True)
    columns = fold_of(told).output_schema()
    assert columns.names == ["user", "ts", "v", "rts", "w"], "without those that tell of changes"
    assert [f.metadata for f in columns] == [{}, {EVENT_TIME: "ts"}, {}, {}, {}]
    by_commit = fold_of(told, given=schema(told, "_commit_timestamp"))
    assert by_commit.output_schema().names == ["user", "ts", "v", "w"]
    by_commit = fold_of(plain, given=schema(plain, "_commit_timestamp"))
    assert by_commit.output_schema().names == ["user", "ts", "v", "_commit_timestamp", "w", "_commit_seq"]


def test_mistakes_are_refused() -> None:
    kind = Kind(False, False)

    def changed(name: str, *field: Any) -> StructType:
        return StructType([StructField(name, *field) if f.name == name else f for f in schema(kind)])

    told = schema(kind).add("l:" + CHANGE_TYPE, StringType())
    for rows, as_of, message in (
        (changed("l:ts", TimestampType()), "ts", r"as_of='ts', but the probe side has no event time.*with_watermark"),
        (schema(kind), "v", r"as_of='v' is not the event time of the probe side, which is 'ts'\. Use as_of='ts'"),
        (changed("r:rts", TimestampType()), "ts", r"the build side has no event time.*with_watermark"),
        (changed("r:rts", StringType(), True, {EVENT_TIME: "rts"}), "ts", r"the event time 'rts' has become string"),
        (told, "ts", r"temporal_join: the stream's rows have .*_change_type"),
    ):
        with pytest.raises(BacklogError, match=message):
            fold_of(kind, given=rows, as_of=as_of)
    with pytest.raises(SettingError, match=r"how = 'full': is not a kind of temporal join\. Use one of left, inner"):
        fold_of(kind, "full")
    fold = fold_of(kind)
    row = batch([Row(RIGHT, "a", 1, 1)], fold, state=True).to_pylist()[0] | {"t": None}
    without = pa.RecordBatch.from_pylist([row], fold.state.arrow())
    with pytest.raises(BacklogError, match=r"column 'rts' of a row of the build side is NULL.*an event time in each"):
        fold.advance(without.slice(1), without, Clock(0, 0, None, 0))
    left, right = (bs.source("scripted", name=name, path="/nowhere") for name in "lr")
    with pytest.raises(BacklogError, match=r"order='w' together with as_of='ts'.*Leave order out"):
        left.temporal_join(right, on="user", as_of="ts", order="w")


# -- through Spark ------------------------------------------------------------------------------------------


def version_of(spark: SparkSession, rows: Iterable[Row], kind: Kind) -> DataFrame:
    """Rows of a stay in the form of the sorted vehicle's input."""
    plain = []
    for row in rows:
        own = (row.key, instant(row.micros), row.number)
        sides = (*own, None, None, None) if row.side == LEFT else (None, None, None, *own)
        told = (None if row.side == LEFT else DELETE if row.gone else INSERT, row.seq)
        plain.append((row.side, *sides, *(t for t, there in zip(told, kind, strict=True) if there)))
    return spark.createDataFrame(plain, schema(kind))


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("how", "kind", "late_end"),
    [("left", Kind(True, True), False), ("inner", Kind(False, True), False), ("left", Kind(False, False), True)],
)
def test_a_stay_and_what_follows(spark: SparkSession, how: str, kind: Kind, late_end: bool) -> None:
    """The results of Spark at the end of a stay, and of the stream vehicle after the hand-over."""
    chance = random.Random(f"{how}{kind}")
    # Without a sequence nothing tells versions of one time apart.
    plain = [
        (int(chance.random() < 0.3), key, chance.randrange(9_000) * 400 if kind.seq else 200 * n, n, gone)
        for n in range(6_000)
        for key, gone in [(chance.choice([*"aaaaaab", None]), chance.random() < 0.4)]
    ]
    rows = made(plain, kind)
    watermark = 1_000
    backlog = [row for row in rows if row.millis <= watermark or chance.random() < 0.5]
    live = [row for row in rows if row not in backlog]
    fold = fold_of(kind, how)
    end = StayEnd(None if late_end else watermark)
    version = fold.fold(version_of(spark, backlog, kind), None)
    output = fold.output_at_end(version, end)
    assert output.schema == fold.output_schema()
    done = Counter((r.v, r.w) for r in output.collect())
    model = Model(how)
    model.take([], MIN_WATERMARK if late_end else watermark, loud=backlog)
    assert done == model.out
    handed = fold.handed_over(version, end).toArrow()
    seeds = combine(handed.to_batches(), fold.state.arrow())
    if not late_end:
        assert numbers(fold, seeds) >= of_rows(model.rows())
        assert done.total() > 500
    group = Group(fold)
    hashes = pa.array([sum((key or "").encode()) % 2 for key in seeds.column("k0").to_pylist()], pa.int64())
    seeds = seeds.set_column(0, "__hash", hashes)
    group.take(live, watermark, [(seeds, False)])
    model.take(live, watermark)
    assert done + group.out == model.out
    group.take([], FOREVER)
    model.take([], FOREVER)
    assert done + group.out == model.out
    assert numbers(group.fold, group.state) == of_rows(model.rows())


@pytest.mark.usefixtures("small_plans")
def test_a_row_without_event_time_fails_both_vehicles(spark: SparkSession) -> None:
    kind = Kind(True, False)
    fold = fold_of(kind)
    version = version_of(spark, [Row(LEFT, "a", 1, 1), Row(RIGHT, "a", 1, 2)], kind)
    for name, problem in (("l:ts", "'ts' of a row of the probe"), ("r:rts", "'rts' of a row of the build")):
        marked = version.schema[name].metadata
        without = version.withColumn(name, F.lit(None).cast("timestamp").alias(name, metadata=marked))
        for frame in (fold.fold(without, None), fold.lift(without)):
            with pytest.raises(SparkRuntimeException, match=f"{problem} side is NULL.*needs an event time in each row"):
                frame.collect()
    before = F.when(F.col(SIDE) == RIGHT, PREIMAGE)
    ignored = version.withColumn("r:" + CHANGE_TYPE, before).withColumn("r:rts", F.lit(None).cast("timestamp"))
    assert [row["side"] for row in fold.lift(ignored).collect()] == [LEFT]
    unknown = version.withColumn("r:" + CHANGE_TYPE, F.lit(None).cast("string"))
    with pytest.raises(SparkRuntimeException, match="_change_type is NULL; known: insert"):
        fold.lift(unknown).collect()


TIME = pa.timestamp("us", "UTC")
CLICKS = pa.schema([("user", pa.string()), ("click_time", TIME), ("item", pa.int64())])
USERS = pa.schema([("user", pa.string()), ("plan", pa.string()), (CHANGE_TYPE, pa.string())])
USERS = USERS.append(pa.field("_commit_timestamp", TIME)).append(pa.field("_commit_seq", pa.int64()))
NAMES = ["ann", "bob", "", "ä", "cy"]


def after(seconds: float) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=UTC) + dt.timedelta(seconds=seconds)


def clicks(chance: random.Random, first: int) -> pa.Table:
    """Random rows, the n-th of about second n, less than the delay behind time."""
    made = [(chance.choice([*NAMES, None]), after(n - chance.uniform(0, 4)), n) for n in range(first, first + 60)]
    return pa.table(list(zip(*made, strict=True)), schema=CLICKS)


def log_of(chance: random.Random, first: int) -> pa.Table:
    """Changes as of about second n; some commits have one time."""
    made = []
    for n in range(first, first + 60):
        user, kinds = chance.choice(NAMES), chance.choice([(INSERT,), (DELETE,), (PREIMAGE, POSTIMAGE)])
        made += [(user, f"plan {n}", kind, after(n - n % 3), n) for kind in kinds]
    return pa.table(list(zip(*made, strict=True)), schema=USERS)


def of_duckdb(probe: pa.Table, build: pa.Table) -> Counter[Any]:
    with duckdb.connect() as database:
        database.register("clicks", probe).register("users", build)
        found = database.execute(
            f"""WITH versions AS (
                  SELECT user, _commit_timestamp AS since, arg_max(plan, _commit_seq) AS plan,
                         arg_max({CHANGE_TYPE}, _commit_seq) AS kind
                  FROM users WHERE {CHANGE_TYPE} <> '{PREIMAGE}' GROUP BY user, since)
                SELECT c.user, epoch_us(click_time), item, CASE WHEN kind <> '{DELETE}' THEN plan END
                FROM clicks AS c ASOF LEFT JOIN versions AS v ON c.user = v.user AND click_time >= since"""
        )
        return Counter(found.fetchall())


def of_sink(sink: Collect) -> Counter[Any]:
    rows = (row for rows in sink.batches.values() for row in rows)
    return Counter((r.user, round(r.click_time.timestamp() * 10**6), r.item, r.plan) for r in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("small_plans")
def test_wherever_the_switch_falls(spark: SparkSession, tmp_path: Path) -> None:
    """The build side's event time is the commit's, which the output does not have."""
    chance = random.Random(7)
    probe, build = ([make(chance, 60 * n) for n in range(4)] for make in (clicks, log_of))
    expected = of_duckdb(pa.concat_tables(probe), pa.concat_tables(build))
    assert len({plan for *_, plan in expected}) > 20
    probe.append(pa.table([[None], [after(10**5)], [-1]], schema=CLICKS))
    build.append(pa.table([[None], [""], [INSERT], [after(10**5)], [10**6]], schema=USERS))
    for number in range(5):
        # The two leave their backlogs with different batches.
        append(tmp_path / "c", probe[number], backlog=number < 2)
        append(tmp_path / "u", build[number], backlog=number < 3)
    stream, users = (
        bs.source("scripted", name=name, path=tmp_path / name).with_watermark(time, "5 seconds")
        for name, time in (("c", "click_time"), ("u", "_commit_timestamp"))
    )
    sink = Collect()
    writer = stream.temporal_join(users, on="user", as_of="click_time").write("q").to(sink)
    writer = writer.trigger(processing_time="50 ms", interval_during_backlog=0)
    # Each key group costs a batch a call.
    spark.conf.set("spark.backlog.keyGroups", "4")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).start(spark)
    try:
        wait(lambda: of_sink(sink).total() >= expected.total(), query)
        query.processAllAvailable()
    finally:
        query.stop()
        spark.conf.unset("spark.backlog.keyGroups")
    assert query.exception() is None
    assert of_sink(sink) == expected
    assert query.lateRows == 0
    assert sink.schema.names == ["user", "click_time", "item", "plan"]
    assert sum(map(bool, sink.batches.values())) > 1, "with the end of the backlog, and after it"


def test_versions_of_equal_time_always_give_the_same_match(spark: SparkSession) -> None:
    """For any difference and any origin of rows, in the results of a stay and in the handed-over state."""
    given = schema(Kind(changes=False, seq=False))
    given = given.add("r:m", MapType(BinaryType(), IntegerType())).add("r:a", ArrayType(IntegerType()))
    fold = fold_of(Kind(changes=False, seq=False), given=given)
    at = "timestamp_millis(1000)"
    probe = [f"{LEFT} AS {SIDE}", "'u' AS `l:user`", f"{at} AS `l:ts`", "id AS `l:v`"]
    build = [f"{RIGHT} AS {SIDE}", "'u' AS `r:user`", f"{at} AS `r:rts`", "1L AS `r:w`"]
    build += ["map(X'01', CAST(id % 8 AS INT)) AS `r:m`", "array(CAST(id AS INT)) AS `r:a`"]
    found = set()
    for parts in (1, 5):
        sides = spark.range(3).selectExpr(*probe), spark.range(40).repartition(parts).selectExpr(*build)
        whole = sides[0].unionByName(sides[1], allowMissingColumns=True)
        version = whole.select(*(F.col(f"`{name}`") for name in given.names))
        out = fold.output_at_end(version, StayEnd(2000)).collect()
        kept = fold.handed_over(version, StayEnd(2000)).collect()
        assert (len(out), len(kept)) == (3, 1)
        found |= {row["a"][0] for row in out} | {kept[0][fold.value(RIGHT, "a")][0]}
    assert len(found) == 1
