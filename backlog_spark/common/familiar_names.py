"""Names from Spark's DataFrames and from Flink that users try on a stream, and what to write instead (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from backlog_spark.errors import BacklogError

__all__ = [
    "HANDLE",
    "KEYED",
    "PAIRED",
    "PUBLIC",
    "STREAM",
    "WINDOWED",
    "WRITER",
    "Guided",
    "NoSuchName",
    "choice",
    "described",
    "nearest",
]


class NoSuchName(BacklogError, AttributeError):
    """An attribute that an object does not have. ``hasattr``, ``copy`` and notebooks see an ``AttributeError``."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name, ignoring case and underscores; empty if none is similar."""
    plain = {_plain(each): each for each in sorted(known)}
    found = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.65)
    return plain[found[0]] if found else ""


def choice(name: str, known: Iterable[str], what: str = "Known") -> str:
    """A question with the most similar name, if there is one, and all names."""
    known = sorted(known)
    near = nearest(name, known)
    return f"{f'Did you mean {near}? ' if near else ''}{what}: {', '.join(known)}."


def described(value: object) -> str:
    """A short description of a wrong argument, for messages."""
    if getattr(value, "isStreaming", None) is False:
        return "a DataFrame that is no stream"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return f"{value!r:.60}"
    if getattr(value, "__name__", "") == "<lambda>":
        return "a lambda"
    return f"a {type(value).__name__}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


class Guided:
    """An object that answers an unknown name with what to write instead."""

    _habits: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # else type checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            # Called only when the normal lookup has failed. copy, pickle and notebooks ask for private names.
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the error of a property's own code again
            raise _no_such_name(type(self), name, self._habits)


def _no_such_name(kind: type, name: str, habits: Mapping[str, str]) -> NoSuchName:
    public = [each for each in dir(kind) if not each.startswith("_")]
    hint = habits.get(_plain(name))
    if hint is None:
        near = nearest(name, public)
        hint = f"Did you mean {near}? " if near else habits.get("*", "")
        hint = f"{hint}Known names: {', '.join(public)}."
    article = "An" if kind.__name__[0] in "AEIOU" else "A"
    return NoSuchName(f"{article} {kind.__name__} has no {name!r}.", hint)


def _table(*rows: tuple[str, str]) -> dict[str, str]:
    """Hints by lower-case name. Names with the same hint are separated by spaces; * stands for any other name."""
    return {name: hint for names, hint in rows for name in names.split()}


_COLUMNS: Final = "Write .map('id', 'amount * 2 AS twice'), with names, SQL expressions or Columns."
_ROWS: Final = "Write .transform(lambda df: df.…), with any DataFrame operation that looks at single rows."
_WRITE: Final = (
    "Write .write('name').trigger(processing_time='30 seconds').option('checkpointLocation', path)"
    ".to(bs.DeltaUpsert(path, keys=['id'])).start()."
)
_GROUP: Final = "Group the rows first: .key_by('user_id').aggregate('sum(amount) AS total')."
_JOIN: Final = (
    "Key both streams: a.key_by('id').join(b.key_by('id')); for the newest row of a table "
    "a.temporal_join(b, on='id'). A table at rest joins in .transform(lambda df: df.join(table, 'id'))."
)
_NO_END: Final = "Leave it out, and apply it where the result is read: a stream has no end."
_LOOK: Final = "A stream has rows only while a query runs. Write it to a sink, and read the sink's table."
_SCHEMA: Final = "The columns are known when the source is loaded: use df.columns in .transform(lambda df: …)."
_SQL: Final = "Write bs.sql(spark, 'SELECT … FROM orders', orders=stream)."
_TIME: Final = "Write .with_watermark('ts', '10 seconds')."
_AFTER: Final = "Do it before .key_by(…), or after the operator that follows key_by."
_FUNCTION: Final = "Write .process(function), with a subclass of bs.KeyedProcessFunction."
_AVG: Final = "Write .aggregate('avg(amount) AS mean'), with any aggregate of docs/operators.md."
_SINK: Final = "Write a subclass of bs.Sink, with open() and write(batch_df, batch), and pass it to .to(…)."
_ALL_ROWS: Final = (
    "A window over all rows would be one task's work, as in Flink. Key the rows by a constant to have that: "
    ".map('*', '1 AS everything').key_by('everything').window(…) or .count_window(…); declared aggregates are computed "
    "in parts first. Or aggregate by key and window, and then by window."
)
_EVICTOR: Final = (
    "Windows merge rows as they come, so an evictor would find none. Write .process(function), with a subclass of "
    "bs.ProcessWindowFunction that skips rows. For the last rows of a key write .count_window(size, slide)."
)
_TIMED_TRIGGER: Final = (
    "Windows of time are merged without looking at single rows, and fire when they end: leave the trigger out. For "
    "other moments write a subclass of bs.Trigger for bs.GlobalWindows, or of bs.KeyedProcessFunction with timers."
)
_KEYED_FIRST: Final = "Add an operator first: .key_by('id').sum('amount').write('name')."
_WINDOWED_FIRST: Final = "Add an operator first: .window(…).sum('amount').write('name')."
_TO: Final = "Write .to(bs.DeltaUpsert(path, keys=['id'])) or .to(bs.DeltaAppend(path))."
_TRIGGER: Final = "Write .trigger(processing_time='30 seconds', interval_during_backlog='30 minutes')."

STREAM: Final = _table(
    ("select selectexpr addcolumns", _COLUMNS),
    ("withcolumn withcolumns withcolumnrenamed withcolumnsrenamed drop todf fillna dropna na replace", _ROWS),
    ("alias hint flatmap mappartitions mapinpandas mapinarrow explode foreach repartition coalesce", _ROWS),
    ("where", "Write .filter('amount > 0')."),
    ("groupby groupbykey rollup cube partitionby", _GROUP),
    ("agg aggregate sum min max avg mean count minby maxby reduce window over countwindow pivot", _GROUP),
    ("process", "Group the rows first: .key_by('user_id').process(function)."),
    ("join crossjoin", _JOIN),
    ("connect intervaljoin", "Key both streams first: a.key_by('id').connect(b.key_by('id'))."),
    (
        "dropduplicates dropduplicateswithinwatermark distinct",
        "Write bs.sql(spark, 'SELECT DISTINCT id, name FROM orders', orders=stream), or for one row per key "
        ".key_by('id').min_by('ts').",
    ),
    ("assigntimestampsandwatermarks", _TIME),
    ("unionall unionbyname", "Write .union(other); columns are matched by name."),
    ("orderby sort sortwithinpartitions limit offset", _NO_END),
    ("show collect totoarrow topandas toarrow take head first tail display print executeandcollect", _LOOK),
    ("schema columns dtypes printschema describe", _SCHEMA),
    ("createorreplacetempview createtempview registertemptable sqlquery", _SQL),
    ("cache persist unpersist checkpoint localcheckpoint", "Leave it out: the query decides which rows it caches."),
    ("writestream writeto totable saveastable addsink sinkto foreachbatch", _WRITE),
    ("trigger option options to start execute awaittermination queryname outputmode", f"Name the query: {_WRITE}"),
    ("getsideoutput", "Write .to(sink, side_output='name') in addition to the main .to(sink)."),
    ("windowall countwindowall timewindowall", _ALL_ROWS),
    ("*", "Columns are written as text, such as .filter('amount > 0'). "),
)  # fmt: skip
KEYED: Final = _table(
    ("agg", "Write .aggregate('sum(amount) AS total, count(*) AS n')."),
    ("avg mean first last stddev collectlist collectset", _AVG),
    ("groupby keyby", "The rows are grouped already. For several keys write .key_by('a', 'b')."),
    ("apply applyinpandas applyinpandaswithstate applyinarrow", _FUNCTION),
    ("transformwithstate transformwithstateinpandas flatmapgroupswithstate mapgroupswithstate", _FUNCTION),
    ("timewindow", "Write .window(bs.TumblingEventTimeWindows.of('1 minute'))."),
    ("windowall countwindowall timewindowall", _ALL_ROWS),
    ("map filter where select selectexpr withcolumn drop transform union withwatermark changes", _AFTER),
    ("temporaljoin", "Write a.temporal_join(b, on='id'), without key_by."),
    ("cogroup", "Write a.co_group(b).where('id').equal_to('id').window(…).apply(function), without key_by."),
    ("write writestream start to trigger option show collect", _KEYED_FIRST),
)  # fmt: skip
WINDOWED: Final = _table(
    ("agg", "Write .aggregate('sum(amount) AS total, count(*) AS n')."),
    ("avg mean first last stddev collectlist collectset", _AVG),
    ("map filter where select selectexpr withcolumn drop transform union withwatermark changes", _AFTER),
    ("evictor", _EVICTOR),
    ("getsideoutput sideoutput", "Write .side_output_late_data('late') here and .to(sink, side_output='late')."),
    ("write writestream start to option show collect", _WINDOWED_FIRST),
)  # fmt: skip
PAIRED: Final = _table(
    ("write writestream start to option", "Add a function or between(…) first: see docs/windows.md."),
)
WRITER: Final = _table(
    ("queryname name", "Pass the name to .write('name')."),
    ("outputmode", "Leave it out. Operators and sink decide: bs.DeltaUpsert keeps the newest row of a key."),
    ("format table totable saveastable save insertinto parquet json csv delta", _TO),
    ("foreachbatch foreach", _SINK),
    ("addsink sinkto sink", "Write .to(sink)."),
    ("partitionby", "Write .to(bs.DeltaAppend(path, partition_by=['day']))."),
    ("options", "Write .option(key, value) for each."),
    ("interval intervalduringbacklog processingtime availablenow", _TRIGGER),
    ("awaittermination stop isactive status lastprogress exception", "Call .start() first; it returns the query."),
)  # fmt: skip
PUBLIC: Final = _table(
    ("evictor countevictor timeevictor deltaevictor", _EVICTOR),
    ("eventtimetrigger processingtimetrigger deltatrigger nevertrigger processingtimeouttrigger", _TIMED_TRIGGER),
    ("continuouseventtimetrigger continuousprocessingtimetrigger", _TIMED_TRIGGER),
    ("allwindowedstream allwindowfunction processallwindowfunction", _ALL_ROWS),
)  # fmt: skip
"""Hints for names of the package itself."""
HANDLE: Final = _table(
    ("start restart", "A query is started once. To restart, build it again with the same checkpoint."),
    ("cancel close", "Write .stop()."),
)
