"""The options of ``hybrid``, each declared once; separates the source's own from those of its phases (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog_spark.common.intervals import INTERVAL_OPTIONS, resolve_intervals
from backlog_spark.errors import SettingError
from backlog_spark.spi.kafka_security import SECRET_NAMES
from backlog_spark.spi.options import Option, choice, flag, option, options_of, parsed, text, values
from backlog_spark.spi.user_options import UserOptions, unknown_option

from .changes.options import CHANGE_COLUMNS, CHANGE_FORMATS, OF_CHANGES
from .decode.keys import KeyOptions
from .decode.options import CSV, FORMATS, DecodeOptions, parse
from .kafka.options import KafkaOptions
from .kinds import KINDS
from .needed import NeededColumns
from .phases import METADATA

__all__ = ["SECRETS", "HybridOptions"]

_OF_PHASE = "phase."
_FORMAT = "valueFormat"
_FEED = "readChangeFeed"
_DECODE = {o.name.lower() for o in options_of(DecodeOptions)}
_OF_KEY = {o.name.lower() for o in options_of(KeyOptions)}
_CSV = {o.name.lower() for o in CSV}
_TEXT = ("json", "csv")  # formats of files that hold records
_ROWS = ("maxRowsPerBatch", "maxOffsetsPerTrigger")
_MAX_ROWS = 1_000_000
_MIN_ROWS = "minOffsetsPerTrigger"
_MAX_DELAY_MS = 15 * 60_000


def _phases(given: UserOptions, option: str) -> tuple[tuple[str, str], ...]:
    text = given.text(option, "files, kafka")
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        name, colon, kind = (piece.strip() for piece in part.partition(":"))
        kind = kind if colon else name
        if kind not in KINDS:
            raise SettingError(
                "phases", text, f"{kind!r} is not a kind of phase.",
                f'Kinds: {", ".join(KINDS)}. For example phases="files, kafka" or "history:files, live:kafka".',
            )  # fmt: skip
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
            raise SettingError("phases", text, f"{name!r} is not a valid name.", "Use letters, digits, _ and -.")
        if name in (n for n, _ in found):
            raise SettingError("phases", text, f"has two phases named {name!r}.", f'Write "a:{kind}, b:{kind}".')
        found.append((name, kind))
    return tuple(found)


def _are_changes(given: UserOptions) -> bool:
    """Whether the records of a topic are changes."""
    form = given.text(_FORMAT).strip().lower()
    return form in CHANGE_FORMATS and any(kind == "kafka" for _, kind in _phases(given, "phases"))


def _reads_feed(given: UserOptions) -> bool:
    """Whether the last phase reads the changes of a Delta table."""
    name, kind = _phases(given, "phases")[-1]
    own = f"{_OF_PHASE}{name}.{_FEED}"
    return kind == "delta" and given.flag(own if given.has(own) else _FEED, False)


def _metadata(given: UserOptions, option: str) -> tuple[str, ...]:
    changes = _are_changes(given) or _reads_feed(given)
    text = given.text(option, ", ".join(CHANGE_COLUMNS) if changes else "")
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in METADATA:
            raise SettingError(
                "metadataColumns", text, f"{name!r} is not a metadata column.", f"Columns: {', '.join(METADATA)}."
            )
        if names.count(name) > 1:
            raise SettingError("metadataColumns", text, f"names {name} twice.", "Name each column once.")
    if changes and CHANGE_COLUMNS[0] not in names:
        raise SettingError(
            "metadataColumns", text, f"lacks {CHANGE_COLUMNS[0]}, which tells a delete from an insert.",
            f"Name it too: {', '.join(CHANGE_COLUMNS)}.",
        )  # fmt: skip
    has_topic = any(kind == "kafka" for _, kind in _phases(given, "phases"))
    for name in names if has_topic and not changes else ():
        if name in OF_CHANGES:
            raise SettingError(
                "metadataColumns", text, f"{name} is a column of changes.",
                f"Set valueFormat to one of {', '.join(CHANGE_FORMATS)}, or declare it in the schema as data.",
            )  # fmt: skip
    return names


def _rows(given: UserOptions) -> int:
    """The maximum number of rows of a batch, under either of the two names."""
    found = [(name, given.text(name)) for name in _ROWS if given.has(name)]
    if len(found) == 2:
        raise SettingError(*found[1], f"is the same option as {found[0][0]}.", "Give one of them.")
    for name, _ in found:
        return given.integer(name, _MAX_ROWS, 1, hint="Leave it out for 1000000.")
    return _MAX_ROWS


def _min_rows(given: UserOptions, name: str) -> int | None:
    """The offsets for which a live batch waits, if any."""
    least = given.integer(name, None, 1)
    if least is None:
        return None
    if all(kind != "kafka" for _, kind in _phases(given, "phases")):
        raise SettingError(name, least, "is for a Kafka phase.", "Leave it out, or set the trigger's interval.")
    if least > (most := _rows(given)):
        raise SettingError(name, least, f"is above the {most} rows of a batch.", "Set maxOffsetsPerTrigger to more.")
    return least


def _max_delay(given: UserOptions, name: str) -> int:
    if given.has(name) and not given.has(_MIN_ROWS):
        raise SettingError(name, given.text(name), f"has no meaning without {_MIN_ROWS}.", f"Set {_MIN_ROWS} too.")
    return given.duration(name, _MAX_DELAY_MS)


@dataclass(frozen=True, kw_only=True)
class HybridOptions:
    """Parsed options.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, malformed or out of bounds.
    """

    phases: tuple[tuple[str, str], ...] = option(
        "phases", _phases, type="names", shown="files, kafka", bounds="files, delta, kafka; an unbounded one last"
    )
    """The phases in their order, each a kind or `name:kind`. An option holds for all phases that know it,
    `phase.<name>.<option>` for one phase."""
    # The options of each phase.
    of_phase: tuple[Mapping[str, str], ...] = field(repr=False)
    # For each phase with records in bytes: the options for decoding them; empty for other phases.
    decoded: tuple[Mapping[str, str], ...] = field(repr=False)
    schema: str = option(
        "schema",
        lambda given, name: given.text(name).strip(),
        "",
        type="DDL",
        shown="the first phase's",
        spark="schema",
    )
    """The columns of the stream, such as `id BIGINT, at TIMESTAMP`. `readStream.schema(…)` does the same. Parquet, ORC
    and Delta declare their own."""
    metadata: tuple[str, ...] = option(
        "metadataColumns",
        _metadata,
        (),
        type="names",
        shown=f"none; of changes {', '.join(CHANGE_COLUMNS)}",
        bounds=", ".join(METADATA),
    )
    """Extra columns at the end that show where a row comes from. A column is NULL in phases that do not have it. A
    schema set with `readStream.schema(…)` must end with them. Columns with these names that are not listed here are
    data."""
    max_rows: int = parsed(
        _rows,
        Option(
            "maxRowsPerBatch",
            "int",
            str(_MAX_ROWS),
            ">= 1",
            doc="Rows per batch, approximately: files are cut at row groups. With `intervalDuringBacklog` batches of "
            "backlog are sized by time. This option then also limits them, but only if it is set.",
        ),
        Option(
            "maxOffsetsPerTrigger",
            "int",
            bounds=">= 1",
            spark="maxOffsetsPerTrigger",
            doc="The same under the name of Spark's Kafka source.",
        ),
        Option(
            "metadataLocation",
            "path",
            "set by a query's runner",
            doc="Directory for the lists of files and the keys for a hand-over: a local path of the driver, or a URL. "
            "A plain `readStream` must set it if a phase needs it. Keep the directory as long as the checkpoint.",
        ),
        default=_MAX_ROWS,
    )
    # Whether the user set it. Then it also limits batches that are sized by time.
    max_rows_given: bool = parsed(lambda given: any(given.has(name) for name in _ROWS), default=False)
    min_rows: int | None = option(
        _MIN_ROWS, _min_rows, None, type="int", bounds="1..maxOffsetsPerTrigger", spark=_MIN_ROWS
    )
    """A live batch of Kafka waits until this many new offsets exist, or until `maxTriggerDelay` is over. Nothing waits
    in backlog, with the trigger `availableNow`, in a phase with an end, or when the query has just started."""
    max_delay_ms: int = option(
        "maxTriggerDelay", _max_delay, _MAX_DELAY_MS, type="duration", shown="15 min", spark="maxTriggerDelay"
    )
    """Longest time since the last batch that `minOffsetsPerTrigger` delays the next one, if there are new offsets."""
    interval_ms: int | None = parsed(None, Option("interval", "duration"), default=None)
    """Batches of live data begin at multiples of it. A query's runner sets it. `execution.checkpointing.interval` works
    too."""
    during_backlog_ms: int | None = parsed(
        None, Option("intervalDuringBacklog", "duration", bounds="0, or at least `interval`"), default=None
    )
    """Batches of backlog are sized to take this long. 0: the whole backlog is one batch. A query's runner sets it.
    `execution.checkpointing.interval-during-backlog` works too."""
    by_clock: bool = flag("useProcessingTimeAfterBacklog")
    """After the backlog, event time follows the system time (FLIP-326), for the timers of the next operators. Excludes
    `with_watermark`. Works in queries of `backlog_spark`; it does not change a plain `readStream`."""
    needed: NeededColumns | None = parsed(
        lambda given: NeededColumns.parse(given.text("neededColumns")),
        Option(
            "neededColumns",
            "JSON",
            shown="set by a query's runner",
            doc="All columns, and those that the query reads. Others are not read from Parquet, ORC and Delta.",
        ),
        default=None,
    )
    query_token: str = text("queryToken", shown="set by a query's runner", secret=True)
    """Lets the source ask the query whether other sources are in backlog, and what its rules say of this one."""
    target: str = choice("availableNowTarget", ("latest", "backlogEnd", "none"))
    """Where a run with the trigger `availableNow` ends. latest: after the data present at its start. backlogEnd: at the
    end of the backlog. none: at once."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The phases, as named in offsets."""
        return tuple(f"{name}:{kind}" for name, kind in self.phases)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> HybridOptions:
        """Parse the options of ``readStream``; names in any case."""
        given = UserOptions(options)
        own_names = {name.lower() for name in (*(o.name for o in options_of(cls)), *INTERVAL_OPTIONS)}
        phases = _phases(given, "phases")
        of_phase: list[dict[str, str]] = [{} for _ in phases]
        decode: dict[str, str] = {}
        for written, value in options.items():
            name = written.lower()
            if name.startswith(_OF_PHASE):
                index, own = _of_phase(written, phases)
                of_phase[index][own] = value
                continue
            takers = [i for i, (_, kind) in enumerate(phases) if KINDS[kind].knows(written)]
            for index in takers:
                of_phase[index][written] = value
            if name in _DECODE:
                decode[written] = value
            elif not takers and name not in own_names:
                raise _unknown(written, phases)
        _check_unused(given, decode)
        for index, (name, _) in enumerate(phases):
            # An option with the phase's name overrides one for all phases, in whatever case either is written.
            of_phase[index] = _by_name(of_phase[index], options, name)
            if _file_format(of_phase[index]) != "csv":  # options of the CSV format then belong to other phases
                of_phase[index] = {o: v for o, v in of_phase[index].items() if o.lower() not in _CSV}
        intervals = resolve_intervals({}, {}, [("hybrid", dict(options))])
        return cls(
            **values(cls, given),
            of_phase=tuple(of_phase),
            decoded=tuple(_decode(kind, of, decode) for (_, kind), of in zip(phases, of_phase, strict=True)),
            interval_ms=None if intervals.interval_origin == "default" else intervals.interval_ms,
            during_backlog_ms=intervals.during_backlog_ms,
        )


def _check_unused(given: UserOptions, decode: Mapping[str, str]) -> None:
    """Refuse wrong values also of options for another format than that of the phases, which nobody else reads."""
    texts = UserOptions({name: value for name, value in decode.items() if name.lower() not in _CSV})
    values(DecodeOptions, texts)
    form = texts.choice(_FORMAT, FORMATS, FORMATS[-1])
    if form == "raw" and not _OF_KEY.isdisjoint(name.lower() for name in decode):
        parse({**decode, _FORMAT: form})
    for name in ("header", "multiLine", "enforceSchema"):
        given.flag(name, False)


def _of_phase(option: str, phases: tuple[tuple[str, str], ...]) -> tuple[int, str]:
    """The phase that an option names, and the option's own name."""
    name, _, own = option[len(_OF_PHASE) :].partition(".")
    for index, (known, kind) in enumerate(phases):
        if known.lower() == name.lower():
            if not KINDS[kind].knows(own):
                names = KINDS[kind].names()
                near = difflib.get_close_matches(own, names)
                hint = (
                    f"Did you mean phase.{known}.{near[0]}?" if near else f"Options: {', '.join(KINDS[kind].names())}."
                )
                raise SettingError(option, "***", f"a phase of {kind} has no such option.", hint)
            return index, own
    raise SettingError(
        option, "***", f"there is no phase {name!r}.", f"Phases: {', '.join(known for known, _ in phases)}."
    )


def _by_name(all_of_it: Mapping[str, str], options: Mapping[str, str], phase: str) -> dict[str, str]:
    prefix = f"{_OF_PHASE}{phase}.".lower()
    own = {o[len(prefix) :]: v for o, v in options.items() if o.lower().startswith(prefix)}
    lower = {o.lower() for o in own}
    return {**{o: v for o, v in all_of_it.items() if o.lower() not in lower}, **own}


def _file_format(options: Mapping[str, str]) -> str:
    return next((v for o, v in options.items() if o.lower() == "fileformat"), "").strip().lower()


def _decode(kind: str, of_phase: Mapping[str, str], decode: Mapping[str, str]) -> Mapping[str, str]:
    """The decoding options of one phase; empty if its rows are not records in bytes."""
    if kind == "files":
        form = _file_format(of_phase)
        own = {o: v for o, v in of_phase.items() if o.lower() in _DECODE}
        lower = {_FORMAT.lower(), *_OF_KEY, *(o.lower() for o in own)}
        rest = {o: v for o, v in decode.items() if o.lower() not in lower}
        return {**rest, **own, _FORMAT: form} if form in _TEXT else {}
    form = next((v for o, v in decode.items() if o.lower() == _FORMAT.lower()), "raw")
    return decode if kind == "kafka" and form.strip().lower() != "raw" else {}


def _unknown(option: str, phases: tuple[tuple[str, str], ...]) -> SettingError:
    known = [o.name for o in (*options_of(HybridOptions), *options_of(DecodeOptions))]
    for kind in dict.fromkeys(kind for _, kind in phases):
        known += KINDS[kind].names()
    return unknown_option(option, known, "hybrid has no such option with these phases.")


def _secrets() -> str:
    # Not from the options of files: their package takes 0.2 s to import. "fs.*" is their only secret.
    options = (*options_of(HybridOptions), *options_of(KafkaOptions), *options_of(DecodeOptions))
    names = {"fs.*", *(o.name for o in options if o.secret), *(f"kafka.{name}" for name in SECRET_NAMES)}
    return "|".join(sorted(names)).replace(".", "[.]").replace("*", ".*")


SECRETS = f"(phase[.][^.]+[.])?({_secrets()})"
"""Regular expression for Python and Java. It matches the whole names of options with secret values."""
