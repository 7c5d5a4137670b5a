"""Every ``spark.backlog.*`` setting: one registry parses, checks and documents them.

Pure Python: no Spark import, so tests take milliseconds and any process can use it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from backlog_spark.common.durations import format_duration, parse_duration
from backlog_spark.common.flink_settings import FLINK_DURING_BACKLOG, FLINK_INTERVAL, check_flink, flink_name, ours
from backlog_spark.errors import SettingError

__all__ = [
    "DURING_BACKLOG",
    "INTERVAL",
    "MAX_KEY_GROUPS",
    "METRICS_HOST",
    "METRICS_PORT",
    "PREFIX",
    "SETTINGS",
    "Setting",
    "is_read",
    "parse_settings",
    "settings_table",
]

PREFIX: Final = "spark.backlog."
MAX_KEY_GROUPS: Final = 32_768
_SECRET: Final = re.compile("password|secret|token|credential|access.?key", re.IGNORECASE)


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
    parser: Callable[[str, str], int | float | str]

    def parse(self, text: str) -> int | float | str:
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
            raise SettingError(
                name, text, f"must be at most {format_duration(most_ms)}.", f"For example {format_duration(most_ms)}."
            )
        return ms

    return parse


def _integer(least: int, most: int) -> Callable[[str, str], int]:
    def parse(text: str, name: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise SettingError(
                name, text, f"must be a whole number from {least} to {most}.", "Set such a number, or leave it unset."
            )
        return number

    return parse


def _number(least: float, most: float) -> Callable[[str, str], float]:
    def parse(text: str, name: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            raise SettingError(
                name, text, f"must be a number from {least:g} to {most:g}.", "Set such a number, or leave it unset."
            )
        return number

    return parse


_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _bytes(text: str, name: str) -> int:
    # Sizes as in Spark's own configuration: 512m, 10g, 10gb
    found = re.fullmatch(r"([0-9]{1,19})\s*([bkmgt]?)b?", text.strip().lower())
    if not found:
        raise SettingError(name, text, "is not a size.", "Write for example 512m or 10g.")
    return int(found[1]) * _BYTES[found[2]]


def _address(text: str, name: str) -> str:
    if not re.fullmatch(r"[\w.:-]+", text.strip()):
        raise SettingError(name, text, "is no address.", "Write for example 127.0.0.1 or 0.0.0.0.")
    return text.strip()


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(text: str, name: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise SettingError(
                name, text, f"must be one of {', '.join(choices)}.", "Set one of these, or leave it unset."
            )
        return word

    return parse


INTERVAL: Final = "spark.backlog.interval"
METRICS_PORT: Final = "spark.backlog.metrics.port"
METRICS_HOST: Final = "spark.backlog.metrics.host"
DURING_BACKLOG: Final = "spark.backlog.intervalDuringBacklog"

# A lasting fault (a full disk, a dropped table) must end the query within minutes, a passing one (a restarting server)
# must not. The defaults wait 1 + 2 + 4 s. No single wait exceeds a minute.
_LONGEST_DELAY_MS: Final = 60_000

_REGISTRY: Final = (
    Setting(
        name=INTERVAL,
        type="duration",
        default=None,
        bounds="0 or more; unset or 0: the next batch starts as soon as the last is done",
        source="FLIP-309, `execution.checkpointing.interval`",
        description=(
            "Normal commit (trigger) interval. The interval during backlog may delay it. "
            f"Flink's name works too, and with `--conf` as `spark.{FLINK_INTERVAL}`."
        ),
        parser=_duration(),
    ),
    Setting(
        name=DURING_BACKLOG,
        type="duration",
        default=None,
        bounds="unset, 0, or at least the interval",
        source="FLIP-309, `execution.checkpointing.interval-during-backlog`",
        description=(
            "Commit interval while any running source is processing backlog. "
            "Unset: feature off. 0: no commit until every source has left backlog. "
            f"Flink's name works too, and with `--conf` as `spark.{FLINK_DURING_BACKLOG}`."
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
        description="Wait before a restart. It doubles at each attempt in a row, up to 1 min.",
        parser=_duration(_LONGEST_DELAY_MS),
    ),
    Setting(
        name="spark.backlog.keyGroups",
        type="int",
        default=None,
        bounds=f"1 to {MAX_KEY_GROUPS}; unset: 16 for each core, at least 32; fixed by the first start on a checkpoint",
        source="Flink's key groups (`pipeline.max-parallelism`)",
        description="Number of groups that keys are hashed into. A group is the unit of keyed state and of its work.",
        parser=_integer(1, MAX_KEY_GROUPS),
    ),
    Setting(
        name="spark.backlog.sortedBatch.enabled",
        type="true or false",
        default="false",
        bounds="true, false",
        source="backlog_spark; FLIP-327 has sorted input with an interval of 0 only",
        description=(
            "Also run keyed operators sorted with an interval during backlog above 0. Each batch is sorted, merged "
            "into the state and emitted. With 0 they always run sorted."
        ),
        parser=_choice("true", "false"),
    ),
    Setting(
        name="spark.backlog.timers.interruptible.enabled",
        type="true or false",
        default="false",
        bounds="true, false",
        source="FLIP-443, `execution.checkpointing.unaligned.splittable-timers.enabled`",
        description=(
            "Let a batch stop firing event-time timers when its commit is due. The next batch starts at once and fires "
            "the rest. Holds for windows, joins and over aggregation, and for functions that allow it "
            "(`interruptible_timers`). Flink's name works too, as do its names of other settings in this table."
        ),
        parser=_choice("true", "false"),
    ),
    Setting(
        name="spark.backlog.timers.maxFiringTime",
        type="duration",
        default=None,
        bounds="0 or more; unset: the interval, or 1 s without one; at least one timer fires",
        source="backlog_spark",
        description="How long a batch fires timers before it leaves the rest to the next batch.",
        parser=_duration(),
    ),
    Setting(
        name="spark.backlog.fastPythonStart",
        type="true or false",
        default="true",
        bounds="true, false",
        source="backlog_spark",
        description=(
            "Start Spark's Python processes faster. On the driver's machine they are forked from a process that has "
            "its imports done and takes some 100 MB until the driver ends. Elsewhere they import pyspark from its "
            "directory, which has byte code, and not from pyspark.zip, which has none. An entry at the end of "
            "`PYTHONPATH` does it."
        ),
        parser=_choice("true", "false"),
    ),
    Setting(
        name="spark.backlog.eventLog",
        type="on or off",
        default="on",
        bounds="on, off",
        source="backlog_spark",
        description=(
            "Write each start, batch, switch, restart and end as a line of JSON to `backlog/events` in the checkpoint. "
            "The query goes on if that fails."
        ),
        parser=_choice("on", "off"),
    ),
    Setting(
        name=METRICS_PORT,
        type="int",
        default=None,
        bounds="unset, or 0 to 65535; 0: a free port, which the log names",
        source="backlog_spark",
        description=(
            "Serve the query's metrics to Prometheus on this port of the driver, at `/metrics` "
            "([docs/metrics.md](metrics.md)). Queries of one driver share a port. Needs the extra `metrics`."
        ),
        parser=_integer(0, 65_535),
    ),
    Setting(
        name=METRICS_HOST,
        type="address",
        default="127.0.0.1",
        bounds="an address of the driver's machine; 0.0.0.0: all of them",
        source="backlog_spark",
        description="Address on which the metrics are served. Whoever reaches it can read them: there is no password.",
        parser=_address,
    ),
    Setting(
        name="spark.backlog.progress",
        type="auto, on or off",
        default="auto",
        bounds="auto, on, off",
        source="backlog_spark",
        description=(
            "Show progress on stderr: a line for the start, each source in backlog, each switch and the end. auto: all "
            "the time on a terminal and in Jupyter, once a minute in a file or a journal; on: there also for each "
            "commit. It ends Spark's own progress bar."
        ),
        parser=_choice("auto", "on", "off"),
    ),
)


def _rule(
    name: str, type_: str, bounds: str, figure: str, parser: Callable[[str, str], int | float | str]
) -> list[Setting]:
    """The two settings of a rule: the threshold to enter backlog, and the one to leave it."""
    full = f"spark.backlog.rule.{name}"
    return [
        Setting(
            name=full,
            type=type_,
            default=None,
            bounds=f"unset, or {bounds}",
            source="FLIP-309, section on sources that derive the flag from a lag",
            description=f"A query of sources without a flag enters backlog above this: {figure}.",
            parser=parser,
        ),
        Setting(
            name=f"{full}.leave",
            type=type_,
            default=None,
            bounds="at most the above; unset: half of it",
            source="backlog_spark",
            description="The query leaves backlog at or below this.",
            parser=parser,
        ),
    ]


_RULES: Final = (
    *_rule(
        "offsetsBehindLatest", "int", "1 or more",
        "unread records of Kafka topics, in all partitions together", _integer(1, 2**62),
    ),
    *_rule(
        "filesOutstanding", "int", "1 or more",
        "unread files of file and Delta sources", _integer(1, 2**62),
    ),
    *_rule("bytesOutstanding", "size", "1 or more", "bytes of unread files", _bytes),
    *_rule(
        "watermarkLag", "duration", "1 ms or more",
        "time that the watermark is behind the clock. It also counts for sources with a flag", _duration(),
    ),
    *_rule(
        "busyRatio", "number", "0.1 to 1000",
        "part of the trigger's interval that batches take, the mean of three", _number(0.1, 1000),
    ),
    Setting(
        name="spark.backlog.rule.minStay",
        type="duration",
        default=60_000,
        bounds="0 or more",
        source="backlog_spark",
        description="Least time between two changes of a rule's answer.",
        parser=_duration(),
    ),
)  # fmt: skip

SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({setting.name: setting for setting in (*_REGISTRY, *_RULES)})
"""Every setting by full name, in the order of the documentation."""


def parse_settings(conf: Mapping[str, str]) -> dict[str, int | float | str | None]:
    """Parse and check the ``spark.backlog.*`` entries of a Spark configuration, and settings of Flink's.

    Parameters
    ----------
    conf : mapping of str to str
        Any Spark configuration. Other keys are left alone.

    Returns
    -------
    dict
        Every name of `SETTINGS`, with the value found or else the default. Durations in milliseconds.

    Raises
    ------
    SettingError
        For an unknown ``spark.backlog.*`` key; the error has the most similar known one. A misspelt setting would
        otherwise be ignored silently. For a malformed or out-of-bounds value. For a setting of Flink's without effect
        here, and for one that contradicts ours.
    """
    values: dict[str, int | float | str | None] = {setting.name: setting.default for setting in SETTINGS.values()}
    given: dict[str, str] = {}
    for key, text in conf.items():
        if not is_read(key):
            continue
        if flink_name(key):
            check_flink(key, "***" if _SECRET.search(f"{key} {text}") else text)
        name = ours(key) or key
        if name in SETTINGS:
            value = SETTINGS[name].parser(text, key)
            if name in given and value != values[name]:
                other = given[name]
                raise SettingError(key, text, f"contradicts {other} = {conf[other]!r}.", f"Set {name} only.")
            values[name], given[name] = value, key
        elif key.startswith(PREFIX):
            raise _unknown(key, text)
    return values


def is_read(key: str) -> bool:
    """Whether `parse_settings` or the intervals read a key of a Spark configuration."""
    return key.startswith(PREFIX) or bool(flink_name(key))


def _unknown(key: str, text: str) -> SettingError:
    # Compare without the prefix and in lower case: the common prefix would make all names similar.
    tails = {name[len(PREFIX) :].lower(): name for name in SETTINGS}
    close = difflib.get_close_matches(key[len(PREFIX) :].lower(), tails, n=1, cutoff=0.5)
    hint = f"Did you mean {tails[close[0]]}?" if close else f"Known settings: {', '.join(SETTINGS)}."
    # None of our settings is a secret, but an unknown key's value may be one.
    shown = "***" if _SECRET.search(key) else text
    return SettingError(key, shown, "there is no such setting.", hint)


def settings_table() -> str:
    """The settings as a Markdown table, one row each, in the order of `SETTINGS`; ends with a newline."""
    rows = ["| setting | type | default | accepted | from | what it does |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{s.name}` | {s.type} | {s.default_text} | {s.bounds} | {s.source} | {s.description} |"
        for s in SETTINGS.values()
    ]
    return "\n".join(rows) + "\n"
