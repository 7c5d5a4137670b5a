"""Names from Spark's DataFrames and from Flink that users try on a stream, and what to write instead (pure).

Arguments may have their names in Python or those in a pipeline's file: `checked_arguments`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from backlog_spark.errors import BacklogError, SettingError

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
    "checked_arguments",
    "choice",
    "described",
    "nearest",
]

_C = TypeVar("_C", bound=Callable[..., Any])


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


def checked_arguments(function: _C) -> _C:
    """A function, or a class, whose arguments may also have their names in camel case: ``mergeSchema``, as in a file.

    Its signature stays. Other mistakes in a call raise a `SettingError` that names the argument: an unknown name, a
    missing argument, and a value that is not of the annotated type, if that is made of those in `_KINDS`. The value of
    an unknown name is not shown: the name may be a misspelt password.
    """
    if isinstance(function, type):
        function.__init__ = checked_arguments(function.__init__)  # type: ignore[misc]
        return function

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        signature = _signature(function)
        if not given.keys() <= signature.parameters.keys():
            given = _spelled(_shown(function, args), signature, given)
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise _uncallable(_shown(function, args), signature, args, given, error) from None
        for name, value in bound.arguments.items():
            _check_kind(signature.parameters[name], value)
        return function(*args, **given)

    return called  # type: ignore[return-value]


_signature = functools.cache(inspect.signature)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(each, str) for each in values)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "None": (lambda value: value is None, "None"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "os.PathLike[str]": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Sequence[str]": (lambda value: _is_list(value) and _are_texts(value), "a list of texts"),
    "Sequence[tuple[str, str]]": (
        lambda value: _is_list(value) and all(_is_list(pair) and len(pair) == 2 and _are_texts(pair) for pair in value),
        "a list of pairs of texts",
    ),
    "Mapping[str, str]": (
        lambda value: isinstance(value, Mapping) and _are_texts(value) and _are_texts(value.values()),
        "a dict of texts",
    ),
    "Mapping[str, object]": (
        lambda value: isinstance(value, Mapping) and _are_texts(value),
        "a dict with texts as keys",
    ),
}
"""Annotation -> whether a value fits, and the kind in words."""


def _check_kind(parameter: inspect.Parameter, value: object) -> None:
    kinds = str(parameter.annotation).split(" | ")
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or not _KINDS.keys() >= set(kinds):
        return
    if not any(_KINDS[kind][0](value) for kind in kinds):
        name = parameter.name
        hint = f"It is {described(value)}."
        if "bool" in kinds:
            hint = "Convert it explicitly: bool('false') is True."
        elif "Sequence[str]" in kinds and isinstance(value, str):
            hint = f"Write {name}=[{value!r:.100}]."
        may_be_secret = name == "password" or any(kind.startswith("Mapping") for kind in kinds)
        shown = "***" if may_be_secret else value
        hint = f"It is a {type(value).__name__}." if may_be_secret and hint.startswith("It is") else hint
        raise SettingError(name, shown, f"must be {' or '.join(_KINDS[kind][1] for kind in kinds)}.", hint)


def _shown(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The function as its caller writes it."""
    if function.__name__ == "__init__":
        return type(args[0]).__name__
    if isinstance(next(iter(args), None), type):
        return f"{args[0].__name__}.{function.__name__}"
    return function.__name__


def _arguments(signature: inspect.Signature) -> list[str]:
    """The names that a caller may write."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in signature.parameters.values() if p.kind in named and p.name not in ("self", "cls")]


def _spelled(what: str, signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names that the function has for them."""
    names = _arguments(signature)
    ours = {_plain(name): name for name in names}
    takes_more = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = name if name in names or takes_more else ours.get(_plain(name))
        if own is None:
            raise SettingError(f"{what}({name}=…)", "***", "there is no such argument.", choice(name, names, "It has"))
        if own in found:
            raise SettingError(f"{what}({name}=…)", "***", f"{own} is given twice.", f"Write it once, as {own}=….")
        found[own] = value
    return found


def _uncallable(
    what: str, signature: inspect.Signature, args: tuple[Any, ...], given: Mapping[str, Any], error: TypeError
) -> BacklogError:
    """The refusal of a call with too few or too many arguments."""
    names = _arguments(signature)
    hint = f"Write {what}({', '.join(f'{name}=…' for name in names)})."
    for p in list(signature.parameters.values())[len(args) :]:
        if p.default is p.empty and p.name not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return SettingError(f"{what}({p.name}=…)", None, "is needed.", hint)
    return BacklogError(f"{what}: {error}.", hint)


class Guided:
    """An object that answers an unknown name with what to write instead.

    The arguments of its methods may have `checked_arguments`.
    """

    _habits: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name, member in list(vars(cls).items()):
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(cls, name, checked_arguments(member))

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
