"""The commit intervals of a query: finds them, decides which setting wins, and checks FLIP-309's rule (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from backlog_spark.common.durations import format_duration, parse_duration
from backlog_spark.common.flink_settings import FLINK_DURING_BACKLOG, FLINK_INTERVAL
from backlog_spark.common.settings import DURING_BACKLOG, INTERVAL
from backlog_spark.errors import SettingError

__all__ = ["BUILDER_NAMES", "INTERVAL_OPTIONS", "Intervals", "check_intervals", "resolve_intervals"]

BUILDER_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "interval": "trigger(processing_time=…)",
        "interval_during_backlog": "trigger(interval_during_backlog=…)",
    }
)
"""Key of a builder value -> the name that the user writes."""

INTERVAL_OPTIONS: Final = ("interval", FLINK_INTERVAL, "intervalDuringBacklog", FLINK_DURING_BACKLOG)
"""Source options that set an interval: our name and Flink's for each."""


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
    """A duration that was set: parsed value, text, and setting."""

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
        The Spark configuration (``spark.backlog.interval``, ``spark.backlog.intervalDuringBacklog``, and Flink's names
        for both, with ``spark.`` in front or without).
    sources : sequence of (name, options)
        The query's sources with their options ``interval`` and ``intervalDuringBacklog``, in any case, or Flink's.

    Returns
    -------
    Intervals

    Raises
    ------
    SettingError
        For a malformed value anywhere, even if another one wins. If two names of one interval have different durations
        in the same kind of setting. If two sources give different durations and nothing stronger decides. And if the
        interval during backlog is neither 0 nor at least the interval (FLIP-309); the error has both settings and both
        values as written.
    """
    interval = _strongest("interval", INTERVAL, INTERVAL_OPTIONS[:2], builder, conf, sources)
    during = _strongest("interval_during_backlog", DURING_BACKLOG, INTERVAL_OPTIONS[2:], builder, conf, sources)
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
    """Check FLIP-309's rule: the interval during backlog is 0 or at least the interval.

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
            f"In backlog commits get rarer, not more frequent. Set 0 (no commit until the backlog ends) or at least "
            f"{format_duration(interval_ms)}, or leave it unset to switch the feature off.",
        )


def _strongest(
    builder_key: str,
    conf_key: str,
    options: tuple[str, ...],
    builder: Mapping[str, object],
    conf: Mapping[str, str],
    sources: Sequence[tuple[str, Mapping[str, str]]],
) -> _Found | None:
    """The value that decides one interval; None if nobody set it. Parses the weaker values too."""
    from_builder = None
    builder_value = builder.get(builder_key)
    if builder_value is not None:
        name = BUILDER_NAMES[builder_key]
        # parse_duration refuses everything that is not a duration, with the name of its type.
        ms = parse_duration(builder_value, name)  # type: ignore[arg-type]
        from_builder = _Found(ms, builder_value, name)
    flink = options[1]
    from_conf = _agreed(
        [(conf[name], name) for name in (conf_key, flink, f"spark.{flink}") if name in conf],
        f"Set {conf_key} alone.",
    )
    names = {option.lower() for option in options}
    from_sources = [
        _agreed(
            [(text, f"option {key} of source {source}") for key, text in given.items() if key.lower() in names],
            f"Set {options[0]} alone.",
        )
        for source, given in sources
    ]
    if from_builder or from_conf:
        return from_builder or from_conf
    return _same(
        [found for found in from_sources if found is not None],
        f"A query has one {options[0]}: give both the same, or set {conf_key} or "
        f"{BUILDER_NAMES[builder_key]}, which overrule source options.",
    )


def _agreed(given: Sequence[tuple[str, str]], hint: str) -> _Found | None:
    """The value on which all names of one interval agree. ``given``: text and origin of each."""
    return _same([_Found(parse_duration(text, origin), text, origin) for text, origin in given], hint)


def _same(found: Sequence[_Found], hint: str) -> _Found | None:
    for other in found[1:]:
        if other.ms != found[0].ms:
            raise SettingError(other.origin, other.value, f"contradicts {found[0].origin} = {found[0].value!r}.", hint)
    return found[0] if found else None
