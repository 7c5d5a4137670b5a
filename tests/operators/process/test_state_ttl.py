"""State TTL against a model without Spark, and through a switch in a real query."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType

import backlog_spark as bs
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.watermarks import MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.process.fold import ProcessFold
from backlog_spark.state.store import AT_EVERY_TICK
from backlog_spark.state.tables import arrow_schema, combine, from_bytes
from tests.operators.conftest import Collect, wait
from tests.operators.events import events, multiset
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType().add("key", StringType()).add("what", StringType()).add("n", LongType()).add("seq", LongType())
START = 1_790_000_000_000


def on_write(seconds: int) -> bs.StateTtlConfig:
    return bs.StateTtlConfig.new_builder(f"{seconds} seconds").update_ttl_on_create_and_write().build()


def on_read(seconds: int) -> bs.StateTtlConfig:
    return bs.StateTtlConfig.new_builder(f"{seconds} seconds").update_ttl_on_read_and_write().build()


class Text(bs.AggregateFunction):
    accumulator = StringType()

    def create_accumulator(self) -> str:
        return ""

    def add(self, value: Any, accumulator: str) -> str:
        return f"{accumulator}{value}."

    def get_result(self, accumulator: str) -> str:
        return accumulator


class Kinds(bs.KeyedProcessFunction):
    """Changes its state as the rows say, and emits all of it when a row reads it."""

    output = StructType().add("key", StringType()).add("seq", LongType()).add("found", StringType())
    v = bs.ValueState(LongType(), ttl=on_write(10))
    r = bs.ReducingState(LongType(), lambda a, b: a + b, ttl=on_read(10))
    plain = bs.ValueState(LongType())
    l = bs.ListState(LongType(), ttl=on_write(20))  # noqa: E741
    k = bs.ListState(LongType(), ttl=on_read(5))
    m = bs.MapState(LongType(), LongType(), ttl=on_read(15))
    w = bs.MapState(LongType(), LongType(), ttl=on_write(7))
    a = bs.AggregatingState(Text(), ttl=on_write(12))

    def process_element(self, row: Any, ctx: Any) -> Any:
        key = row.n % 3
        if row.what == "write":
            self.v.update(row.n)
            self.plain.update(row.n)
            self.r.add(row.n)
        elif row.what == "add":
            for each in (self.l, self.k):
                each.add(row.n)
            self.a.add(row.n)
        elif row.what == "put":
            self.m.put(key, row.n)
            self.w.put_all({key: row.n})
        elif row.what == "remove":
            self.m.remove(key)
            self.w.remove(key)
            self.k.update(self.k.get()[1:])
        elif row.what == "look":
            yield row.key, row.seq, repr((self.m.get(key), self.w.contains(key)))
        elif row.what == "clear":
            for state in (self.l, self.m, self.v):
                state.clear()
        else:
            firsts, lists = (self.v.value(), self.r.get(), self.plain.value()), (self.l.get(), self.k.get())
            maps = sorted(self.m.items()), sorted(self.w.keys())
            yield row.key, row.seq, repr((*firsts, *lists, *maps, self.a.get()))


class Model:
    """One key: each value with the time at which it was written, None in backlog."""

    def __init__(self) -> None:
        self.v: Any = None
        self.r: Any = None
        self.plain: Any = None
        self.l: list[Any] = []
        self.k: list[Any] = []
        self.m: dict[int, Any] = {}
        self.w: dict[int, Any] = {}
        self.a: Any = None

    def expire(self, now: int) -> None:
        def lives(value: Any, seconds: int) -> bool:
            return value is not None and (value[1] is None or value[1] + seconds > now)

        def timed(value: Any) -> Any:
            return value[0], now if value[1] is None else value[1]

        for name, seconds in (("v", 10), ("r", 10), ("a", 12)):
            value = getattr(self, name)
            setattr(self, name, timed(value) if lives(value, seconds) else None)
        self.l = [timed(value) for value in self.l if lives(value, 20)]
        self.k = [timed(value) for value in self.k if lives(value, 5)]
        self.m = {key: timed(value) for key, value in self.m.items() if lives(value, 15)}
        self.w = {key: timed(value) for key, value in self.w.items() if lives(value, 7)}

    def take(self, what: str, n: int, now: int | None) -> str | None:
        key = n % 3
        if what == "write":
            self.v, self.plain = (n, now), n
            self.r = (n if self.r is None else self.r[0] + n, now)
        elif what == "add":
            self.l.append((n, now))
            self.k.append((n, now))
            self.a = ((self.a[0] if self.a else "") + f"{n}.", now)
        elif what == "put":
            self.m[key] = self.w[key] = (n, now)
        elif what == "remove":
            self.m.pop(key, None)
            self.w.pop(key, None)
            self.k = [(value, now) for value, _ in self.k[1:]]
        elif what == "look":
            if key in self.m:
                self.m[key] = (self.m[key][0], now)
            return repr((self.m[key][0] if key in self.m else None, key in self.w))
        elif what == "clear":
            self.l, self.m, self.v = [], {}, None
        else:
            self.r = self.r and (self.r[0], now)
            self.k = [(value, now) for value, _ in self.k]
            self.m = {each: (value, now) for each, (value, _) in self.m.items()}
            firsts = [value and value[0] for value in (self.v, self.r)]
            lists = [[value for value, _ in each] for each in (self.l, self.k)]
            maps = [sorted((each, value) for each, (value, _) in self.m.items()), sorted(self.w)]
            return repr((*firsts, self.plain, *lists, *maps, self.a and self.a[0]))
        return None


def live(operator: ProcessFold, rows: list[Any], now: int | None) -> pa.RecordBatch:
    """Rows in the form of `lift`; without a time in the form of the sorted vehicle."""
    schema = operator.live_schema()
    made = [(ord(key[0]) % 2, key, key, what, n, seq, now) for key, what, n, seq in rows]
    columns = list(zip(*made, strict=True)) or [()] * len(schema)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return whole if now is not None else whole.drop_columns([schema.names[-1]])


WHAT = ["write", "add", "put", "remove", "look", "clear", "read", "read"]
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(WHAT), st.integers(0, 9)), max_size=12)


@pytest.mark.grid
@settings(max_examples=300, deadline=None)
@given(
    ROWS,
    st.lists(st.integers(0, 12), max_size=3),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 12), st.booleans(), ROWS), max_size=8),
)
def test_as_a_model(backlog: list[Any], cuts: list[int], told: bool, batches: list[Any]) -> None:
    operator = ProcessFold(("key",), Kinds(), SCHEMA, 4, order="seq")
    models: dict[str, Model] = defaultdict(Model)
    expected: Counter[Any] = Counter()
    found: Counter[Any] = Counter()
    seq = 0

    def numbered(rows: list[Any], now: int | None) -> list[Any]:
        nonlocal seq
        made = []
        for key, what, n in rows:
            made.append((key, what, n, seq))
            text = models[key].take(what, n, now)
            if text is not None:
                expected[key, seq, text] += 1
            seq += 1
        return made

    # Sorted: by hash alone, keys of one hash between each other.
    placed = live(operator, sorted(numbered(backlog, None), key=lambda r: (ord(r[0]) % 2, r[3])), None)
    out_schema = arrow_schema(operator.version_schema())
    ends = sorted({min(c, placed.num_rows) for c in cuts} | {0, placed.num_rows})
    pieces = [placed.slice(a, b - a) for a, b in itertools.pairwise(ends)]
    states = []
    for batch in operator.sorted_loop(placed.schema, out_schema, has_base=False)(iter(pieces)):
        for row in batch.filter(batch.column("__tag").is_valid()).to_pylist():
            rows = from_bytes(row["__data"], operator._loop_schema.outputs[0][1]).to_pylist()
            found.update(tuple(r.values()) for r in rows)
        rest = batch.filter(batch.column("__tag").is_null())
        states.append(rest.select(list(range(len(operator.state.arrow())))))
    state, seeds, now = combine([], operator.state.arrow()), combine(states, operator.state.arrow()), 0
    ticked = 0

    def step(rows: list[Any], *, seconds: int | None, tick: bool) -> None:
        nonlocal state, seeds
        millis = None if seconds is None else START + seconds * 1000
        if seconds is not None:
            for model in models.values():
                model.expire(seconds)
        given = live(operator, numbered(rows, seconds), millis or START)
        # Batches with rows know their time by these, others by the control source.
        clock = Clock(MIN_WATERMARK, MIN_WATERMARK, millis if tick else None, 0, None, millis if tick else None)
        result = operator.step(state, Arrived(((seeds, False),) if seeds.num_rows else (), given), clock)
        state, seeds = state if result.state is None else result.state, seeds.slice(0, 0)
        for _, batch in result.outputs:
            found.update(tuple(r.values()) for r in batch.to_pylist())

    if told:
        step([], seconds=0, tick=True)
    elif seeds.num_rows:
        step([], seconds=None, tick=False)
        _, processing = operator.due(state)
        timed = [any(r[c] is not None for c in r if c.startswith("s_") and c != "s_plain") for r in state.to_pylist()]
        assert [due == AT_EVERY_TICK for due in processing] == timed
        step([], seconds=0, tick=True)
    for passed, tick, rows in batches:
        now += passed
        if tick or rows:
            step(rows, seconds=now, tick=tick)
            ticked = now if tick else ticked
    assert found == expected
    _, processing = operator.due(state)
    assert all(due > START + ticked * 1000 for due in processing), "it is not asked for again and again"
    step([], seconds=now + 1_000, tick=True)
    left = [{name for name, value in row.items() if value is not None} for row in state.to_pylist()]
    assert all(names == {"__hash", "k0", "s_plain"} for names in left), "expired state takes no space"


class Counts(bs.KeyedProcessFunction):
    output = "user string, seq long, kept long, brief long"
    kept = bs.ValueState("long", default=0, ttl=bs.StateTtlConfig.new_builder("1 day").build())
    brief = bs.MapState("string", "long", ttl=bs.StateTtlConfig.new_builder("1 second").build())

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.kept.update(self.kept.value() + 1)
        self.brief.put("n", self.brief.get("n", 0) + 1)
        yield row.user, row.seq, self.kept.value(), self.brief.get("n")


@pytest.mark.slow
def test_through_a_switch(spark: SparkSession, tmp_path: Path) -> None:
    """State from backlog expires in stream mode without another row."""
    tables = [events(n + 7, 40, n * 40) for n in range(3)]
    for table in tables[:2]:
        append(tmp_path / "s", table, backlog=True)
    append(tmp_path / "s", tables[0].slice(0, 0), backlog=False)
    source = bs.source("scripted", name="s", path=tmp_path / "s")
    stream = source.key_by("user", order="seq").process(Counts(), name="counts")
    sink = Collect()
    writer = stream.write("ttl").trigger(processing_time="100 ms", interval_during_backlog=0).to(sink)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(spark)

    def rows() -> list[Any]:
        return [row for batch in sink.batches.values() for row in batch]

    try:
        wait(lambda: len(rows()) == 80, query)
        wait(lambda: query.mode == "stream", query)
        wait(lambda: not any(row["brief"] for row in query.state("counts").collect()), query)
        append(tmp_path / "s", tables[2], backlog=False)
        wait(lambda: len(rows()) == 120, query)
    finally:
        query.stop()
    assert query.exception() is None
    expected, kept = Counter[Any](), Counter[Any]()
    for first, some in ((0, tables[:2]), (80, tables[2:])):
        brief = Counter[Any]()
        for row in sorted(pa.concat_tables(some).to_pylist(), key=lambda r: r["seq"]):
            assert row["seq"] >= first
            kept[row["user"]] += 1
            brief[row["user"]] += 1
            expected[row["user"], row["seq"], kept[row["user"]], brief[row["user"]]] += 1
    assert multiset(rows()) == expected


def test_refused() -> None:
    builder = bs.StateTtlConfig.new_builder("1 hour")
    assert builder.never_return_expired().use_processing_time().build() == bs.StateTtlConfig(3_600_000)
    with pytest.raises(BacklogError, match=r"Pass ttl=bs\.StateTtlConfig"):
        bs.ValueState("long", ttl=builder)  # type: ignore[arg-type]
    with pytest.raises(BacklogError, match="expired values are never returned"):
        builder.return_expired_if_not_cleaned_up()
    for wrong in ("0 seconds", "soon"):
        with pytest.raises(SettingError):
            bs.StateTtlConfig.new_builder(wrong)
