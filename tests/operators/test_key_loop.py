"""Functions without Spark: random batches, with state and timers compared with a simple model."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructType, TimestampType

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from backlog_spark.model.watermarks import EVENT_TIME, MIN_WATERMARK
from backlog_spark.operators.fold import Arrived, Clock
from backlog_spark.operators.key_loop import epoch_millis
from backlog_spark.operators.process.fold import ProcessFold
from backlog_spark.operators.state_arrays import state_array
from backlog_spark.spark.plan.group_processor import GroupProcessor
from backlog_spark.state.tables import arrow_schema, combine, from_bytes

SCHEMA = (
    StructType()
    .add("key", StringType())
    .add("level", DoubleType())
    .add("ts", TimestampType(), metadata={EVENT_TIME: "ts"})
    .add("seq", LongType())
)
OUTPUT = StructType().add("key", StringType()).add("what", StringType()).add("at", LongType()).add("n", LongType())
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAN = float("nan")


class Alarm(bs.KeyedProcessFunction):
    """Sets a timer ten milliseconds after each row. Counts and stores rows."""

    output = OUTPUT
    n = bs.ValueState(LongType(), default=0)
    waiting = bs.MapState(LongType(), LongType())

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.n.update(self.n.value() + 1)
        due = ctx.timestamp() + 10
        self.waiting.put(due, self.waiting.get(due, 0) + 1)
        ctx.timer_service().register_event_time_timer(due)
        yield row.key, "row", row.seq, self.n.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert ctx.timer_service().current_watermark() >= timestamp
        yield ctx.get_current_key()[0], "timer", timestamp, self.waiting.get(timestamp)
        self.waiting.remove(timestamp)


def fold(function: bs.KeyedProcessFunction | None = None, **options: Any) -> ProcessFold:
    return ProcessFold(("key", "level"), function or Alarm(), SCHEMA, 4, order="seq", **options)


def live(operator: ProcessFold, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows as `lift` has them; hashes of few values, so that keys share them."""
    made = [
        (hash_of(key, level), key, level, key, level, EPOCH + dt.timedelta(milliseconds=at), seq)
        for key, level, at, seq in rows
    ]
    schema = operator.live_schema()
    columns = zip(*made, strict=True) if made else [[] for _ in schema]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def hash_of(key: Any, level: Any) -> int:
    return len(key or "") % 2


def drive(operator: ProcessFold, batches: list[tuple[list[Any], int | None]]) -> tuple[Counter[Any], pa.RecordBatch]:
    """Batches of rows, each with a watermark."""
    state = combine([], operator.state.arrow())
    watermark = MIN_WATERMARK
    out: Counter[Any] = Counter()
    for rows, mark in batches:
        new = watermark if mark is None else max(watermark, mark)
        result = operator.step(state, Arrived((), live(operator, rows)), Clock(watermark, new, None, 0))
        state, watermark = state if result.state is None else result.state, new
        for tag, batch in result.outputs:
            out.update((tag, *row.values()) for row in batch.to_pylist())
        out["late"] += result.late
    return out, state


KEYS = st.tuples(st.sampled_from(["", "a", "b", "bb", None]), st.sampled_from([0.0, 1.5, NAN, None]))
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 200)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(ROWS, st.one_of(st.none(), st.integers(-50, 250))), min_size=1, max_size=6))
def test_stream(script: list[tuple[list[Any], int | None]]) -> None:
    """Against a model: each row is late or counts, and each timer fires once when the watermark reaches it."""
    batches, seq = [], 0
    for given_rows, mark in script:
        rows = []
        for (key, level), at in given_rows:
            rows.append((key, level, at, seq))
            seq += 1
        batches.append((rows, mark))
    expected: Counter[Any] = Counter()
    counts: Counter[Any] = Counter()
    timers: dict[Any, Counter[int]] = defaultdict(Counter)
    watermark = MIN_WATERMARK
    for rows, mark in batches:
        watermark = watermark if mark is None else max(watermark, mark)

        def fire(until: int) -> None:
            for (key, _), waiting in timers.items():
                for due in [d for d in waiting if d <= until]:
                    expected[(0, key, "timer", due, waiting.pop(due))] += 1

        fire(watermark)
        for key, level, at, number in rows:
            if at <= watermark:
                expected["late"] += 1
                continue
            mine = (key, "NaN" if level != level else level)
            counts[mine] += 1
            timers[mine][at + 10] += 1
            expected[(0, key, "row", number, counts[mine])] += 1
        fire(watermark)
    found, state = drive(fold(), batches)
    assert +found == +expected
    assert {(r["k0"], "NaN" if r["k1"] != r["k1"] else r["k1"]): r["s_n"] for r in state.to_pylist()} == dict(counts)
    firsts, _ = fold().due(state)
    assert sorted(firsts.tolist()) == sorted(min(timers[key], default=2**63 - 1) for key in counts)


def sorted_run(
    operator: ProcessFold, rows: list[Any], cuts: list[int], base: pa.RecordBatch | None = None
) -> tuple[Counter[Any], pa.RecordBatch]:
    """The worker side of the sorted vehicle, on sorted rows in random batches."""
    from pyspark.sql.types import IntegerType

    new = live(operator, rows)
    state = operator.state.arrow()
    fields = [*new.schema, ("__origin", pa.int32())]
    placed = [*new.columns, pa.array([1] * new.num_rows, pa.int32())]
    old = base if base is not None else combine([], state)
    width = 1 + len(operator.keys)
    filled = [
        *old.columns[:width],
        *(pa.nulls(old.num_rows, f.type) for f in list(new.schema)[width:]),
        pa.array([0] * old.num_rows, pa.int32()),
    ]
    slots = list(state)[width:]
    columns = [pa.concat_arrays([a, b]) for a, b in zip(filled, placed, strict=True)]
    columns += [pa.concat_arrays([c, pa.nulls(new.num_rows, c.type)]) for c in old.columns[width:]]
    schema = pa.schema([*(pa.field(*f) if isinstance(f, tuple) else f for f in fields), *slots])
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    keys = whole.to_pylist()

    def place(i: int) -> Any:
        row = keys[i]
        level = row["k1"]
        text = (row["k0"] is not None, row["k0"] or "")
        key = (text, (level is not None, level != level, 0.0 if level != level else level or 0.0), row["__origin"])
        # Without state before them rows are sorted by hash alone, and those of two keys of one hash alternate.
        return (row["__hash"], () if base is None else key, row["r3"] or 0)

    if base is None:
        whole = whole.select([n for n in whole.schema.names if n in new.schema.names])
        schema = whole.schema
    ordered = whole.take(pa.array(sorted(range(whole.num_rows), key=place), pa.int64()))
    ends = sorted({c % (whole.num_rows + 1) for c in cuts} | {0, whole.num_rows})
    pieces = [ordered.slice(a, b - a) for a, b in itertools.pairwise(ends)]
    out_schema = arrow_schema(operator.version_schema())
    loop = operator.sorted_loop(schema, out_schema, has_base=base is not None)
    out: Counter[Any] = Counter()
    states = []
    for batch in loop(iter(pieces)):
        assert batch.schema == out_schema
        assert IntegerType  # the tag's
        for row in batch.filter(batch.column("__tag").is_valid()).to_pylist():
            packed = from_bytes(row["__data"], operator._loop_schema.outputs[row["__tag"]][1])
            out.update((row["__tag"], *r.values()) for r in packed.to_pylist())
        rest = batch.filter(batch.column("__tag").is_null())
        states.append(rest.select(list(range(len(state)))))
    return out, combine(states, state)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(ROWS, ROWS, st.lists(st.integers(0, 100), max_size=6), st.lists(st.integers(0, 100), max_size=6))
def test_sorted_then_stream_is_stream(first: list[Any], second: list[Any], cuts: list[int], more: list[int]) -> None:
    """Two backlog batches with any Arrow batches, then the switch with the greatest watermark."""
    numbered = [(key, level, at, seq) for seq, ((key, level), at) in enumerate(first + second)]
    one, two = numbered[: len(first)], numbered[len(first) :]
    operator = fold()
    out, state = sorted_run(operator, one, cuts)
    again, state = sorted_run(operator, two, more, state)
    out.update(again)
    assert not any(key[2] == "timer" for key in out), "event time stands still in backlog"
    until = max((at for _, _, at, _ in numbered), default=0)
    result = operator.step(
        combine([], operator.state.arrow()),
        Arrived(((state, False),), live(operator, [])),
        Clock(MIN_WATERMARK, until, None, 0),
    )
    for tag, batch in result.outputs:
        out.update((tag, *row.values()) for row in batch.to_pylist())
    expected, final = drive(operator, [(one, None), (two, None), ([], until)])
    assert +out == +expected

    def plain(batch: pa.RecordBatch | None) -> list[str]:
        return sorted(str(row) for row in (batch.to_pylist() if batch is not None else []))

    assert plain(result.state) == plain(final)


def test_a_hot_key_needs_memory_for_a_batch_of_it() -> None:
    """A key's rows over many Arrow batches: its state is held, its rows are not."""
    seen: list[int] = []

    class Count(bs.KeyedProcessFunction):
        output = OUTPUT
        n = bs.ValueState(LongType(), default=0)

        def process_batch(self, rows: pa.RecordBatch, ctx: Any) -> None:
            seen.append(rows.num_rows)
            self.n.update(self.n.value() + rows.num_rows)

    operator = fold(Count())
    rows = [("a", 1.5, n, n) for n in range(1_000)]
    out, state = sorted_run(operator, rows, list(range(0, 1_000, 10)))
    assert not out
    assert set(seen) == {10}
    assert state.column("s_n").to_pylist() == [1_000]


class Bad(bs.KeyedProcessFunction):
    output = OUTPUT
    n = bs.ValueState(LongType())

    def __init__(self, act: Any) -> None:
        self.act = act

    def process_element(self, row: Any, ctx: Any) -> Any:
        return self.act(self, row, ctx)


def put(value: Any) -> Any:
    return lambda me, row, ctx: [value]


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (put(("a", "b", 1)), r"Bad emitted \('a', 'b', 1\) as a row\. Yield tuples of 4 values: key, what, at, n"),
        (put(5), r"Bad emitted 5 as a row"),
        (put(("a", "b", "c", 1)), r"Bad emitted a value for 'at' that is not int64"),
        (lambda me, row, ctx: me.n.update("x"), r"Bad keeps a value in state 'n' that is not int64"),
        (
            lambda me, row, ctx: ctx.timer_service().register_event_time_timer(1.5),
            r"registered for 1\.5, of type float",
        ),
        (
            lambda me, row, ctx: ctx.timer_service().register_event_time_timer(1),
            r"Bad fires at 1, but it has no on_tim",
        ),
        (lambda me, row, ctx: [(bs.OutputTag("a long"), (1,))], r"with the tag '', which the class lacks"),
    ],
)
def test_mistakes_of_a_function_are_reported(act: Any, problem: str) -> None:
    class Tagged(Bad):
        other = bs.OutputTag(OUTPUT)

    function = Tagged(act) if "tag" in problem else Bad(act)
    type(function).__name__ = "Bad"
    with pytest.raises(BacklogError, match=problem):
        drive(fold(function), [([("a", 1.0, 0, 0)], None), ([], 100)])


def test_state_has_no_value_outside_of_a_key() -> None:
    with pytest.raises(BacklogError, match=r"State 'n' was used outside"):
        Alarm().n.value()
    with pytest.raises(BacklogError, match="neither process_element nor process_batch"):
        drive(fold(type("Nothing", (bs.KeyedProcessFunction,), {"output": OUTPUT})()), [([("a", 1.0, 0, 0)], None)])


def test_late_rows_go_where_they_are_sent() -> None:
    operator = fold(late_output="late")
    out, _ = drive(operator, [([("a", 1.0, 50, 0)], 40), ([("a", 1.0, 40, 1), ("a", 1.0, 41, 2)], None)])
    assert [row[-1] for row in out if row[0] == 1] == [1]
    assert out["late"] == 0
    # Behind another operator the rows of a batch belong before its watermark.
    out, _ = drive(fold(control_first=False), [([("a", 1.0, 50, 0)], 60), ([("a", 1.0, 55, 1)], 90)])
    assert (0, "a", "row", 0, 1) in out
    assert out["late"] == 1


def test_structs_of_state_may_be_tuples_next_to_stored_ones() -> None:
    pair = pa.struct([("n", pa.int64()), ("of", pa.list_(pa.struct([("text", pa.string())])))])
    kept, new = {"n": 1, "of": [{"text": "a"}]}, (2, [("b",), {"text": "c"}])
    told = [kept, {"n": 2, "of": [{"text": "b"}, {"text": "c"}]}, None]
    assert state_array([kept, new, None], pair).to_pylist() == told
    assert state_array([[kept, new]], pa.list_(pair)).to_pylist() == [told[:2]]
    found = state_array([[("k", kept), ("l", new)]], pa.map_(pa.string(), pair)).to_pylist()
    assert found == [[("k", told[0]), ("l", told[1])]]
    for wrong in ((1, [], 3), "text"):
        with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
            state_array([kept, wrong], pair)


def test_epoch_millis_rounds_down() -> None:
    times = pa.array([-1, 0, 999, 1_000, None], pa.timestamp("us", "UTC"))
    assert epoch_millis(times).to_pylist() == [-1, 0, 0, 1, None]
    assert np.asarray(epoch_millis(times.slice(0, 2))).tolist() == [-1, 0]


def test_a_function_is_opened_and_closed_once_a_task() -> None:
    lived: list[Any] = []

    class Opened(bs.AggregateFunction):
        accumulator = LongType()

        def open(self, ctx: bs.RuntimeContext) -> None:
            lived.append("state")

    class Lives(Alarm):
        def open(self, ctx: bs.RuntimeContext) -> None:
            lived.append((ctx.get_task_name(), ctx.get_index_of_this_subtask(), ctx.get_attempt_number()))

        def process_element(self, row: Any, ctx: Any) -> Any:
            lived.append("row")
            return super().process_element(row, ctx)

        def close(self) -> None:
            lived.append("closed")

        # That of a state is opened before the function that it belongs to.
        sum = bs.AggregatingState(Opened())

    operator = fold(Lives())
    drive(operator, [([("a", 1.0, 0, 0)], None), ([("b", 1.0, 0, 1)], None)])
    processor = GroupProcessor(operator)
    processor.close()
    processor.close()
    assert lived == ["state", ("Lives", 0, 0), "row", "row", "closed"]

    class Takes(Alarm):
        def open(self) -> None:  # type: ignore[override]
            lived.append("without a context")

    drive(fold(Takes()), [([("a", 1.0, 0, 0)], None)])
    assert lived[-1] == "without a context"

    class Asks(Alarm):
        def open(self, ctx: Any) -> None:
            ctx.get_list_state("d")

    with pytest.raises(BacklogError, match=r'total = bs\.ListState\("long"\)'):
        drive(fold(Asks()), [([("a", 1.0, 0, 0)], None)])
    again = pickle.loads(pickle.dumps(fold(Alarm())))
    assert drive(again, [([("a", 1.0, 0, 0)], None)])[0] == drive(fold(), [([("a", 1.0, 0, 0)], None)])[0]
