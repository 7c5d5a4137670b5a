"""Every ``spark.backlog.*`` setting: one registry that parses, checks and documents them.

Pure Python: no Spark import, so that option handling is tested in milliseconds and usable in any process.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from backlog_spark.durations import format_duration, parse_duration
from backlog_spark.errors import SettingError

__all__ = [
    "BUILDER_NAMES",
    "MAX_KEY_GROUPS",
    "PREFIX",
    "SETTINGS",
    "Intervals",
    "Setting",
    "check_intervals",
    "parse_settings",
    "resolve_intervals",
    "settings_table",
]

PREFIX: Final = "spark.backlog."
MAX_KEY_GROUPS: Final = 32_768


@dataclass(frozen=True)
class Setting:
    """One ``spark.backlog.*`` setting.

    Parameters
    ----------
    name : str
        Full name, as in spark-defaults.conf.
    type : str
        Type as shown to users: duration, int, or the choices.
    default : int, str or None
        Parsed default: durations in milliseconds; None means unset.
    bounds : str
        Accepted values in words.
    source : str
        Where the behaviour was taken from: a FLIP and Flink's name for it, or this project.
    description : str
        One or two sentences for the settings table.
    parser : callable
        ``(text, name) -> value``; raises SettingError when the text is malformed or out of bounds.
    """

    name: str
    type: str
    default: int | str | None
    bounds: str
    source: str
    description: str
    parser: Callable[[str, str], int | str]

    def parse(self, text: str) -> int | str:
        """Parse and bound-check a value as written. Raises SettingError."""
        return self.parser(text, self.name)

    @property
    def default_text(self) -> str:
        """The default as a user would write it."""
        if self.default is None:
            return "unset"
        if self.type == "duration" and isinstance(self.default, int):
            return format_duration(self.default)
        return str(self.default)


def _duration(most_ms: int | None = None) -> Callable[[str, str], int]:
    def parse(text: str, name: str) -> int:
        ms = parse_duration(text, name)
        if most_ms is not None and ms > most_ms:
            raise SettingError(name, text, f"must be at most {format_duration(most_ms)}.")
        return ms

    return parse


def _integer(least: int, most: int) -> Callable[[str, str], int]:
    def parse(text: str, name: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise SettingError(name, text, f"must be a whole number from {least} to {most}.") from None
        if not least <= number <= most:
            raise SettingError(name, text, f"must be from {least} to {most}.")
        return number

    return parse


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(text: str, name: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise SettingError(name, text, f"must be one of {', '.join(choices)}.")
        return word

    return parse


_INTERVAL: Final = "spark.backlog.interval"
_DURING_BACKLOG: Final = "spark.backlog.intervalDuringBacklog"

# A fault that lasts (a full disk, a dropped table) must end the query within minutes, one that passes (a
# server that restarts) must not: 1 + 2 + 4 s with the defaults, and no single wait above a minute.
_LONGEST_DELAY_MS: Final = 60_000

_REGISTRY: Final = (
    Setting(
        name=_INTERVAL,
        type="duration",
        default=None,
        bounds="0 or more; unset or 0: the next batch starts as soon as the last is done",
        source="FLIP-309, `execution.checkpointing.interval`",
        description="Normal commit (trigger) interval. May be delayed by the interval during backlog.",
        parser=_duration(),
    ),
    Setting(
        name=_DURING_BACKLOG,
        type="duration",
        default=None,
        bounds="unset, 0, or at least the interval",
        source="FLIP-309, `execution.checkpointing.interval-during-backlog`",
        description=(
            "Commit interval while any running source is processing backlog. "
            "Unset: feature off. 0: no commit until every source has left backlog."
        ),
        parser=_duration(),
    ),
    Setting(
        name="spark.backlog.restart.maxAttempts",
        type="int",
        default=3,
        bounds="0 to 1000",
        source="backlog_spark",
        description="Restarts in a row without progress before the query fails. 0: never restart.",
        parser=_integer(0, 1000),
    ),
    Setting(
        name="spark.backlog.restart.delay",
        type="duration",
        default=1_000,
        bounds=f"0 to {format_duration(_LONGEST_DELAY_MS)}",
        source="backlog_spark",
        description="Wait before a restart; doubled at each attempt in a row, up to 1 min.",
        parser=_duration(_LONGEST_DELAY_MS),
    ),
    Setting(
        name="spark.backlog.keyGroups",
        type="int",
        default=None,
        bounds=f"1 to {MAX_KEY_GROUPS}; unset: 16 for each core, at least 32; fixed by the first start on a checkpoint",
        source="Flink's key groups (`pipeline.max-parallelism`)",
        description="Into how many groups keys are hashed; a group is the unit of keyed state and of its work.",
        parser=_integer(1, MAX_KEY_GROUPS),
    ),
    Setting(
        name="spark.backlog.sortedBatch.enabled",
        type="true or false",
        default="false",
        bounds="true, false",
        source="backlog_spark; FLIP-327 has sorted input with an interval of 0 only",
        description=(
            "Run keyed operators sorted also with an interval during backlog above 0: batch by batch, each merged "
            "into the state and put out. With 0 they always are."
        ),
        parser=_choice("true", "false"),
    ),
    Setting(
        name="spark.backlog.fastPythonStart",
        type="true or false",
        default="true",
        bounds="true, false",
        source="backlog_spark",
        description=(
            "Let Spark's Python processes take pyspark from its directory, which has byte code, and not from "
            "pyspark.zip, which has none: 0.6 s less for each. Done through `PYTHONPATH`."
        ),
        parser=_choice("true", "false"),
    ),
    Setting(
        name="spark.backlog.progress",
        type="auto, on or off",
        default="auto",
        bounds="auto, on, off",
        source="backlog_spark",
        description="The progress line on stderr. auto: only if stderr is a terminal.",
        parser=_choice("auto", "on", "off"),
    ),
)

SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({setting.name: setting for setting in _REGISTRY})
"""Every setting by full name, in the order of the documentation."""


def parse_settings(conf: Mapping[str, str]) -> dict[str, int | str | None]:
    """Parse and check the ``spark.backlog.*`` entries of a Spark configuration.

    Parameters
    ----------
    conf : mapping of str to str
        Any Spark configuration; keys that do not start with ``spark.backlog.`` are left alone.

    Returns
    -------
    dict
        Every name of `SETTINGS`, with the value found or else the default. Durations in milliseconds.

    Raises
    ------
    SettingError
        For an unknown ``spark.backlog.*`` key (it names the closest known one: a misspelt setting would
        otherwise do nothing, silently), and for a malformed or out-of-bounds value.
    """
    values: dict[str, int | str | None] = {setting.name: setting.default for setting in SETTINGS.values()}
    for key, text in conf.items():
        if not key.startswith(PREFIX):
            continue
        setting = SETTINGS.get(key)
        if setting is None:
            raise _unknown(key, text)
        values[key] = setting.parse(text)
    return values


def _unknown(key: str, text: str) -> SettingError:
    # Without case and prefix: every name shares the prefix, which would make any two of them look close.
    tails = {name[len(PREFIX) :].lower(): name for name in SETTINGS}
    close = difflib.get_close_matches(key[len(PREFIX) :].lower(), tails, n=1, cutoff=0.5)
    hint = f"Did you mean {tails[close[0]]}?" if close else f"Known settings: {', '.join(SETTINGS)}."
    return SettingError(key, text, "there is no such setting.", hint)


def settings_table() -> str:
    """The settings as a Markdown table, one row each, in the order of `SETTINGS`; ends with a newline."""
    rows = ["| setting | type | default | accepted | from | what it does |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{s.name}` | {s.type} | {s.default_text} | {s.bounds} | {s.source} | {s.description} |"
        for s in SETTINGS.values()
    ]
    return "\n".join(rows) + "\n"


BUILDER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "interval": "trigger(processing_time=…)",
        "interval_during_backlog": "trigger(interval_during_backlog=…)",
    }
)
"""Key of a builder value -> the name under which the user wrote it."""


@dataclass(frozen=True)
class Intervals:
    """The two commit intervals of a query and where each was set.

    Parameters
    ----------
    interval_ms : int
        Normal interval in milliseconds; 0 means the next batch starts as soon as the last is done.
    during_backlog_ms : int or None
        None: feature off. 0: no commit until every source has left backlog. Else at least `interval_ms`.
    interval_origin, during_backlog_origin : str
        The setting as the user wrote it, such as ``"spark.backlog.interval"`` or ``"option interval of source
        orders"``; ``"default"`` when it was not set.
    """

    interval_ms: int
    during_backlog_ms: int | None
    interval_origin: str
    during_backlog_origin: str


@dataclass(frozen=True)
class _Found:
    """A duration that somebody set: parsed, as written, and where."""

    ms: int
    value: object
    origin: str


def resolve_intervals(
    builder: Mapping[str, object],
    conf: Mapping[str, str],
    sources: Sequence[tuple[str, Mapping[str, str]]],
) -> Intervals:
    """Find the commit intervals of a query: builder over configuration over source options.

    Parameters
    ----------
    builder : mapping
        ``interval`` and ``interval_during_backlog`` as passed to ``trigger(…)``; absent or None means not
        set.
    conf : mapping of str to str
        The Spark configuration (``spark.backlog.interval``, ``spark.backlog.intervalDuringBacklog``).
    sources : sequence of (name, options)
        The query's sources with their options ``interval`` and ``intervalDuringBacklog``, in any case.

    Returns
    -------
    Intervals

    Raises
    ------
    SettingError
        For a malformed value anywhere, even one that is overruled; for two sources that give different
        durations for one option when nothing stronger decides it; and when the interval during backlog is
        neither 0 nor at least the interval (FLIP-309), naming both settings and both values as written.
    """
    interval = _strongest("interval", _INTERVAL, "interval", builder, conf, sources)
    during = _strongest("interval_during_backlog", _DURING_BACKLOG, "intervalDuringBacklog", builder, conf, sources)
    if during is not None:
        check_intervals(
            interval.ms if interval else 0,
            during.ms,
            interval_name=interval.origin if interval else "the default interval",
            interval_value=interval.value if interval else 0,
            during_backlog_name=during.origin,
            during_backlog_value=during.value,
        )
    return Intervals(
        interval_ms=interval.ms if interval else 0,
        during_backlog_ms=during.ms if during else None,
        interval_origin=interval.origin if interval else "default",
        during_backlog_origin=during.origin if during else "default",
    )


def check_intervals(
    interval_ms: int,
    during_backlog_ms: int,
    *,
    interval_name: str,
    interval_value: object,
    during_backlog_name: str,
    during_backlog_value: object,
) -> None:
    """Hold FLIP-309's rule: the interval during backlog is 0 or at least the interval.

    Parameters
    ----------
    interval_ms, during_backlog_ms : int
        The durations in milliseconds.
    interval_name, during_backlog_name : str
        The settings as the user wrote them.
    interval_value, during_backlog_value : object
        The values as the user wrote them.

    Raises
    ------
    SettingError
        If the rule is broken; it names both settings and both values.
    """
    if during_backlog_ms != 0 and during_backlog_ms < interval_ms:
        raise SettingError(
            during_backlog_name,
            during_backlog_value,
            f"is less than {interval_name} = {interval_value!r}.",
            "Commits get rarer in backlog, never more frequent: set 0 (no commit until the backlog ends), "
            f"at least {format_duration(interval_ms)}, or leave it unset to switch the feature off.",
        )


def _strongest(
    builder_key: str,
    conf_key: str,
    option: str,
    builder: Mapping[str, object],
    conf: Mapping[str, str],
    sources: Sequence[tuple[str, Mapping[str, str]]],
) -> _Found | None:
    """The value that decides one interval, or None when nobody set it. Parses the weaker ones too."""
    from_builder = from_conf = None
    builder_value = builder.get(builder_key)
    if builder_value is not None:
        name = BUILDER_NAMES[builder_key]
        # parse_duration refuses whatever is not a duration, by type name.
        ms = parse_duration(builder_value, name)  # type: ignore[arg-type]
        from_builder = _Found(ms, builder_value, name)
    if conf_key in conf:
        from_conf = _Found(parse_duration(conf[conf_key], conf_key), conf[conf_key], conf_key)
    from_sources = [
        _Found(parse_duration(text, origin), text, origin)
        for source, options in sources
        for key, text in options.items()
        if key.lower() == option.lower()
        for origin in (f"option {key} of source {source}",)
    ]
    if from_builder or from_conf:
        return from_builder or from_conf
    if not from_sources:
        return None
    first = from_sources[0]
    for other in from_sources[1:]:
        if other.ms != first.ms:
            raise SettingError(
                other.origin,
                other.value,
                f"contradicts {first.origin} = {first.value!r}.",
                f"A query has one {option}: give both the same, or set {conf_key} or "
                f"{BUILDER_NAMES[builder_key]}, which overrule source options.",
            )
    return first
