"""The options of ``hybrid``: separates the source's own from those of its phases (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from backlog_spark.common.intervals import INTERVAL_OPTIONS, resolve_intervals
from backlog_spark.errors import SettingError
from backlog_spark.spi.user_options import UserOptions, unknown_option

from .catalogue import OPTIONS
from .decode.catalogue import OPTIONS as DECODE_OPTIONS
from .kinds import KINDS
from .phases import METADATA

__all__ = ["HybridOptions"]

_OF_PHASE = "phase."
_OWN = {name.lower() for name in (*(o.name for o in OPTIONS), *INTERVAL_OPTIONS)}
_FORMAT = "valueFormat"
_DECODE = {o.name.lower() for o in DECODE_OPTIONS}
_CSV = {"sep", "delimiter", "quote", "escape", "nullvalue"}
_TEXT = ("json", "csv")  # formats of files that hold records
_ROWS = ("maxRowsPerBatch", "maxOffsetsPerTrigger")
_TARGETS = ("latest", "backlogEnd", "none")


@dataclass(frozen=True)
class HybridOptions:
    """Parsed options.

    Parameters
    ----------
    phases : tuple of (str, str)
        Name and kind of each phase, in order.
    of_phase : tuple of mapping
        The options of each phase.
    decoded : tuple of mapping
        For each phase with records in bytes: the options for decoding them; empty for other phases.
    schema : str
        The data columns as DDL. "": take them from the first phase that declares its own.
    metadata : tuple of str
        Metadata columns, which follow the data columns.
    max_rows : int
        Approximate number of rows of a batch.
    max_rows_given : bool
        Whether the user set it. Then it also limits batches that are sized by time.
    interval_ms, during_backlog_ms : int or None
        Milliseconds; None when unset.
    target : str
        ``"latest"``, ``"backlogEnd"`` or ``"none"``.
    by_clock : bool
        Whether event time follows the system time after the backlog.
    query_token : str
        Token for `backlog_spark.spi.pacing.QueryBacklog`.

    Raises
    ------
    SettingError
        From `parse`, for an option that is unknown, malformed or out of bounds.
    """

    phases: tuple[tuple[str, str], ...]
    of_phase: tuple[Mapping[str, str], ...] = field(repr=False)
    decoded: tuple[Mapping[str, str], ...] = field(repr=False)
    schema: str = ""
    metadata: tuple[str, ...] = ()
    max_rows: int = 1_000_000
    max_rows_given: bool = False
    interval_ms: int | None = None
    during_backlog_ms: int | None = None
    target: str = "latest"
    by_clock: bool = False
    query_token: str = field(default="", repr=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The phases, as named in offsets."""
        return tuple(f"{name}:{kind}" for name, kind in self.phases)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> HybridOptions:
        """Parse the options of ``readStream``; names in any case."""
        given = UserOptions(options)
        phases = _phases(given.get("phases", "files, kafka"))
        of_phase: list[dict[str, str]] = [{} for _ in phases]
        decode: dict[str, str] = {}
        for option, value in options.items():
            name = option.lower()
            if name.startswith(_OF_PHASE):
                index, own = _of_phase(option, phases)
                of_phase[index][own] = value
                continue
            takers = [i for i, (_, kind) in enumerate(phases) if KINDS[kind].knows(option)]
            for index in takers:
                of_phase[index][option] = value
            if name in _DECODE:
                decode[option] = value
            elif not takers and name not in _OWN:
                raise _unknown(option, phases)
        for index, (name, _) in enumerate(phases):
            # An option with the phase's name overrides one for all phases, in whatever case either is written.
            of_phase[index] = _by_name(of_phase[index], options, name)
            if _file_format(of_phase[index]) != "csv":  # options of the CSV format then belong to other phases
                of_phase[index] = {o: v for o, v in of_phase[index].items() if o.lower() not in _CSV}
        intervals = resolve_intervals({}, {}, [("hybrid", dict(options))])
        return cls(
            phases=phases,
            of_phase=tuple(of_phase),
            by_clock=given.flag("useProcessingTimeAfterBacklog", False),
            decoded=tuple(_decode(kind, of, decode) for (_, kind), of in zip(phases, of_phase, strict=True)),
            schema=given.get("schema", "").strip(),
            metadata=_metadata(given.get("metadatacolumns", "")),
            max_rows=_rows(given),
            max_rows_given=any(name.lower() in given for name in _ROWS),
            interval_ms=None if intervals.interval_origin == "default" else intervals.interval_ms,
            during_backlog_ms=intervals.during_backlog_ms,
            target=given.choice("availableNowTarget", _TARGETS),
            query_token=given.get("querytoken", ""),
        )


def _phases(text: str) -> tuple[tuple[str, str], ...]:
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
        lower = {_FORMAT.lower(), *(o.lower() for o in own)}
        rest = {o: v for o, v in decode.items() if o.lower() not in lower}
        return {**rest, **own, _FORMAT: form} if form in _TEXT else {}
    form = next((v for o, v in decode.items() if o.lower() == _FORMAT.lower()), "raw")
    return decode if kind == "kafka" and form.strip().lower() != "raw" else {}


def _unknown(option: str, phases: tuple[tuple[str, str], ...]) -> SettingError:
    known = [o.name for o in (*OPTIONS, *DECODE_OPTIONS)]
    for kind in dict.fromkeys(kind for _, kind in phases):
        known += KINDS[kind].names()
    return unknown_option(option, known, "hybrid has no such option with these phases.")


def _metadata(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in METADATA:
            raise SettingError(
                "metadataColumns", text, f"{name!r} is not a metadata column.", f"Columns: {', '.join(METADATA)}."
            )
        if names.count(name) > 1:
            raise SettingError("metadataColumns", text, f"names {name} twice.", "Name each column once.")
    return names


def _rows(given: Mapping[str, str]) -> int:
    """The maximum number of rows of a batch, under either of the two names."""
    found = [(name, given[name.lower()]) for name in _ROWS if name.lower() in given]
    if len(found) == 2:
        raise SettingError(*found[1], f"is the same option as {found[0][0]}.", "Give one of them.")
    for name, text in found:
        if not text.strip().isdigit() or int(text) < 1:
            raise SettingError(name, text, "is not an integer >= 1.", "Leave it out for 1000000.")
        return int(text)
    return HybridOptions.max_rows
