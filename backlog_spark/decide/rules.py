"""Rules: when a query whose sources carry no flag is in backlog (pure).

A connector's source reports itself whether it is processing backlog. Spark's own sources (Kafka, Delta, files) have
figures only. A rule turns them into a flag: a threshold to enter, a lower one to leave, and a minimum stay, so that the
flag does not flap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from backlog_spark.common.durations import format_duration
from backlog_spark.decide.reports import ProgressReport, SourceReport
from backlog_spark.errors import BacklogError, SettingError

__all__ = [
    "RULES",
    "Figures",
    "Judge",
    "Rule",
    "UserRule",
    "check_user_rule",
    "figures",
    "flagged",
    "offsets_behind",
    "parse_rules",
]

UserRule = Callable[[ProgressReport], bool | None]
"""A rule of the user's own. None: it does not know."""

_PREFIX = "spark.backlog.rule."
_LEAVE = ".leave"
_MIN_STAY = "spark.backlog.rule.minStay"

# Each has a setting of its name, which describes its figure, and one that ends in ".leave".
RULES = ("offsetsBehindLatest", "filesOutstanding", "bytesOutstanding", "watermarkLag", "busyRatio")

# A batch of every few hundred is slow for reasons of its own; three in a row are not.
_BUSY_OVER = 3


@dataclass(frozen=True)
class Rule:
    """Thresholds of one figure.

    Parameters
    ----------
    name : str
        One of `RULES`.
    enter : float
        Backlog begins with a figure above it.
    leave : float
        Backlog ends with all figures at or below theirs.
    """

    name: str
    enter: float
    leave: float


@dataclass(frozen=True)
class Figures:
    """The figures known after a batch, by rule. Unknown ones are missing."""

    values: Mapping[str, float]


def parse_rules(settings: Mapping[str, int | float | str | None]) -> tuple[tuple[Rule, ...], int]:
    """The rules that are set, and the least stay in milliseconds.

    Parameters
    ----------
    settings : mapping
        From `backlog_spark.common.settings.parse_settings`.

    Raises
    ------
    SettingError
        For a leave threshold above the enter threshold, or without one.
    """
    rules = []
    for name in RULES:
        enter, leave = settings[_PREFIX + name], settings[_PREFIX + name + _LEAVE]
        if enter is None and leave is not None:
            raise SettingError(
                _PREFIX + name + _LEAVE,
                leave,
                "needs the threshold to enter.",
                f"Set {_PREFIX}{name} too, or remove this one.",
            )
        if enter is None:
            continue
        if leave is not None and float(leave) > float(enter):
            shown = [format_duration(int(x)) if name == "watermarkLag" else x for x in (leave, enter)]
            raise SettingError(
                _PREFIX + name + _LEAVE, shown[0], f"is more than {_PREFIX}{name} = {shown[1]!r}.",
                "Backlog has to end below the figure at which it begins. By default it ends at half of it.",
            )  # fmt: skip
        rules.append(Rule(name, float(enter), float(enter) / 2 if leave is None else float(leave)))
    return tuple(rules), int(settings[_MIN_STAY] or 0)


def check_user_rule(rule: object) -> None:
    """Refuse what is no rule of the user's own.

    Raises
    ------
    SettingError
    """
    if not callable(rule):
        raise SettingError(
            "backlog_when", rule, "is no function.",
            "Pass a function of a batch's report that returns True, False or None: lambda report: event.is_set().",
        )  # fmt: skip


class Judge:
    """Applies rules to one query, batch after batch. The caller gives the time.

    Parameters
    ----------
    rules : sequence of Rule
        Empty: never backlog.
    min_stay_ms : int
        Minimum time between two changes of the flag.
    own : callable, optional
        A rule of the user's own, `UserRule`.

    Examples
    --------
    >>> judge = Judge([Rule("filesOutstanding", 100, 50)], 60_000)
    >>> judge.take(Figures({"filesOutstanding": 4000}), now_ms=0)
    True
    >>> judge.take(Figures({"filesOutstanding": 20}), now_ms=10_000)  # too soon
    True
    >>> judge.take(Figures({"filesOutstanding": 80}), now_ms=70_000)  # not low enough
    True
    >>> judge.take(Figures({"filesOutstanding": 20}), now_ms=80_000)
    False
    """

    def __init__(self, rules: Any, min_stay_ms: int = 0, own: UserRule | None = None) -> None:
        self._rules: tuple[Rule, ...] = tuple(rules)
        self._own = own
        self._min_stay_ms = min_stay_ms
        self._is_backlog = False
        self._since: float | None = None
        self._busy: list[float] = []

    @property
    def needs(self) -> frozenset[str]:
        """The figures that the rules need, and ``"report"`` for the user's own."""
        return frozenset(rule.name for rule in self._rules) | ({"report"} if self._own else frozenset())

    @property
    def is_backlog(self) -> bool:
        """The answer of the last `take`; false before the first."""
        return self._is_backlog

    def end(self, now_ms: float) -> None:
        """Report that everything has been read. Then there is no backlog, whatever the figures are."""
        if self._is_backlog:
            self._is_backlog, self._since = False, now_ms

    def take(self, found: Figures, now_ms: float, report: ProgressReport | None = None) -> bool:
        """Whether there is backlog after a batch.

        Parameters
        ----------
        found : Figures
            A missing figure neither enters backlog nor prevents leaving it.
        now_ms : float
            Milliseconds of any clock that only goes forward.
        report : ProgressReport, optional
            Of the batch, for the user's own rule.

        Raises
        ------
        BacklogError
            The user's own rule has failed.
        """
        values = dict(found.values)
        if "busyRatio" in values:
            self._busy = [*self._busy[1 - _BUSY_OVER :], values["busyRatio"]]
            values["busyRatio"] = sum(self._busy) / _BUSY_OVER
        else:
            self._busy = []
        known = [(values[rule.name], rule) for rule in self._rules if rule.name in values]
        if self._is_backlog:
            wanted = any(value > rule.leave for value, rule in known)
        else:
            wanted = any(value > rule.enter for value, rule in known)
        wanted = self._asked(report) or wanted
        stays = self._since is not None and now_ms - self._since < self._min_stay_ms
        if wanted != self._is_backlog and not stays:
            self._is_backlog, self._since = wanted, now_ms
        return self._is_backlog

    def _asked(self, report: ProgressReport | None) -> bool:
        """The answer of the user's own rule."""
        if self._own is None or report is None:
            return False
        again = "It is given a batch's report, and returns True, False or None."
        try:
            answer = self._own(report)
        except Exception as error:
            raise BacklogError(
                f"The function of backlog_when has failed with {type(error).__name__}: {error}.", again
            ) from error
        if answer is not None and not isinstance(answer, bool):
            raise BacklogError(f"The function of backlog_when has returned {answer!r}.", again)
        return bool(answer)


def figures(
    report: ProgressReport, now_ms: float, interval_ms: int | None, outstanding: Mapping[str, float] | None = None
) -> Figures:
    """The figures of a progress report.

    Parameters
    ----------
    now_ms : float
        Milliseconds since 1970.
    interval_ms : int or None
        The trigger's interval; None if the run has none, so that it cannot be late.
    outstanding : mapping, optional
        ``filesOutstanding`` and ``bytesOutstanding``, which no report has.
    """
    values = dict(outstanding or {})
    behind = [b for source in report.sources if (b := offsets_behind(source)) is not None]
    if behind:
        values["offsetsBehindLatest"] = float(sum(behind))
    # Without rows the watermark stands still, however old it grows.
    if report.watermark_ms and report.num_input_rows:
        values["watermarkLag"] = max(0.0, now_ms - report.watermark_ms)
    if interval_ms and "triggerExecution" in report.duration_ms:
        values["busyRatio"] = report.duration_ms["triggerExecution"] / interval_ms
    return Figures(values)


def offsets_behind(source: SourceReport) -> int | None:
    """Unread records of a Kafka source, as of the batch's beginning; None for another source.

    Both offsets are JSON of the form ``{"topic": {"0": 12}}`` (Spark's ``KafkaSourceOffset``).
    """
    end, latest = source.end_offset, source.latest_offset
    if not source.description.startswith("KafkaV2[") or end is None or latest is None:
        return None
    return sum(
        max(0, int(until) - int(end.get(topic, {}).get(partition, 0)))
        for topic, partitions in latest.items()
        for partition, until in partitions.items()
    )


def flagged(report: ProgressReport, flags: Mapping[int, bool], before: Mapping[int, bool]) -> ProgressReport:
    """The report with flags for foreign sources: ``before`` for its rows, ``flags`` from its end on."""
    return replace(
        report,
        sources=tuple(
            replace(s, is_processing_backlog=flags[s.index], is_backlog=before[s.index]) if s.index in flags else s
            for s in report.sources
        ),
    )
