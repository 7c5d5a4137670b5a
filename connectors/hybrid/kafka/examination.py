"""What ``backlog-spark check`` tells of topics: brokers, partitions, offsets, rows behind, retention."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from backlog_spark.common.durations import format_duration
from backlog_spark.errors import BacklogError
from backlog_spark.spi.examination import Examination, Finding, Severity

from ..phases import Outlook, Seen
from .losses import shown_time
from .native_starts import SPARKS_DEFAULTS, SPARKS_OPTIONS
from .options import KafkaOptions
from .pinned_offsets import Pin
from .planner import Planner
from .positions import KafkaPosition
from .workers import group_id, open_client

if TYPE_CHECKING:
    from .confluent import KafkaClient

__all__ = ["examine_spark", "examine_topics"]

_ANSWER_MS = 15_000
"""A person waits for the answer, so brokers that are away are given less time than in a query."""

_SHOWN = 8
"""Partitions whose offsets are shown, and whose first record is asked for."""


def examine_topics(options: KafkaOptions, subject: str, before: Outlook, now_ms: float) -> Seen:
    """Look at the brokers and topics of a phase.

    Parameters
    ----------
    options : KafkaOptions
    subject : str
        For findings.
    before : Outlook
    now_ms : float
        Milliseconds since 1970.

    Raises
    ------
    BacklogError
        No broker answers, or a topic does not exist.
    """
    quick = replace(options.properties, api_timeout_ms=min(options.properties.api_timeout_ms, _ANSWER_MS))
    options = replace(options, properties=quick, poll_timeout_ms=min(options.poll_timeout_ms, _ANSWER_MS))
    client = open_client(quick, group_id(options), options.poll_timeout_ms / 1000)
    try:
        now = Planner(options, client).present(now_ms)
        there = sum(now.latest[p] - now.earliest[p] for p in now.latest)
        found = Finding(
            Severity.OK, subject,
            f"{quick} answers: {', '.join(sorted(now.topics)) or 'no topic'}, {len(now.latest):,} partitions, "
            f"{there:,} offsets{_offsets(now)}.",
        )  # fmt: skip
        first = _of_begin(options, client, subject, before, now, now_ms)
    finally:
        client.close()
    return Seen([found], first, Outlook(is_sure=False, wait_ms=before.wait_ms))


def _offsets(now: Pin) -> str:
    """Earliest and latest offset of the first partitions."""
    shown = [f"{topic}-{n} has {now.earliest[topic, n]} to {now.latest[topic, n]}" for topic, n in sorted(now.latest)]
    more = ", …" if len(shown) > _SHOWN else ""
    return f": {', '.join(shown[:_SHOWN])}{more}" if shown else ""


def _of_begin(
    options: KafkaOptions, client: KafkaClient, subject: str, before: Outlook, now: Pin, now_ms: float
) -> list[Finding]:
    """Where reading begins, and whether the records from there on still exist then."""
    if options.from_files and not before.is_sure:
        return [
            Finding(
                Severity.NOTE, subject,
                "it begins at the time of the newest row of the phases before, which is known when they have been "
                f"read. {_oldest(client, now)}",
                "Records from that time on must still exist then.",
            )
        ]  # fmt: skip
    lost: list[Finding] = []
    strict = replace(options, fail_on_data_loss=True)
    try:
        start = Planner(strict, client).begin(before.last_ms, "", now_ms, now)
    except BacklogError as problem:
        if options.fail_on_data_loss:
            return [_error(subject, problem)]
        told = f"{problem.problem} failOnDataLoss=false: the query starts nevertheless."
        lost = [Finding(Severity.WARNING, subject, told)]
        try:
            start = Planner(options, client).begin(before.last_ms, "", now_ms, now)
        except BacklogError as other:
            return [_error(subject, other)]
    return [*lost, *_of_rows(options, client, subject, before, now, start, now_ms)]


def _of_rows(
    options: KafkaOptions,
    client: KafkaClient,
    subject: str,
    before: Outlook,
    now: Pin,
    start: KafkaPosition,
    now_ms: float,
) -> list[Finding]:
    ends = now.latest if start.until is None else start.until
    unread = {p: at for p, at in start.offsets.items() if at < ends.get(p, 0)}
    rows = sum(min(ends[p], now.latest.get(p, at)) - at for p, at in unread.items())
    since = (
        f", from {shown_time(before.last_ms - options.overlap_ms)} on" if before.last_ms and options.from_files else ""
    )
    found = [Finding(Severity.OK, subject, f"about {rows:,} records wait{since}.")]
    if not before.wait_ms:
        return found  # they are read at once
    times = [client.first_time(p, at, now.latest[p]) for p, at in islice(sorted(unread.items()), _SHOWN)]
    oldest = min((at for at in times if at is not None), default=None)
    kept = _kept_ms(client, {topic for topic, _ in unread})
    if oldest is None or kept is None:
        return found
    left = int(oldest + kept - now_ms)
    if left <= 2 * before.wait_ms:
        words = f"in {format_duration(left)}" if left > 0 else "at any time"
        found.append(
            Finding(
                Severity.WARNING, subject,
                f"retention (retention.ms = {format_duration(kept)}) may remove the first records {words}: the oldest "
                f"that is needed is of {shown_time(oldest)}, and the phases before take roughly "
                f"{format_duration(before.wait_ms)}.",
                "Set a longer retention.ms for the topic before the query starts.",
            )
        )  # fmt: skip
    return found


def _kept_ms(client: KafkaClient, topics: set[str]) -> int | None:
    """The shortest time that a topic keeps its records; None if unlimited or unknown (the user may lack the right)."""
    if not topics:
        return None
    try:
        found = client.configs(topics)
    except BacklogError:
        return None
    times = [
        int(of_topic.get("retention.ms", -1))
        for of_topic in found.values()
        if "delete" in of_topic.get("cleanup.policy", "delete")
    ]
    return min((ms for ms in times if ms >= 0), default=None)


def _oldest(client: KafkaClient, now: Pin) -> str:
    there = [p for p in sorted(now.latest) if now.earliest[p] < now.latest[p]][:_SHOWN]
    times = [client.first_time(p, now.earliest[p], now.latest[p]) for p in there]
    known = [at for at in times if at is not None]
    return f"The oldest record is of {shown_time(min(known))}." if known else "There is no record yet."


def examine_spark(options: Mapping[str, str]) -> Examination | None:
    """Look at brokers and topics for Spark's own Kafka source, with the client of the source ``hybrid``.

    Properties that only a Java client has keep it from asking. Then a note says so. None without the client's package.
    """
    lower = {name.lower(): value for name, value in options.items()}
    asked = {n: v for n, v in lower.items() if n in SPARKS_OPTIONS or n.startswith("kafka.")}
    try:
        parsed = KafkaOptions.parse({**SPARKS_DEFAULTS, **asked})
    except BacklogError as problem:
        told = f"the brokers are not asked without Spark: {problem.problem}"
        return Examination((Finding(Severity.NOTE, "kafka", told, "The query asks them when it starts."),))
    try:
        seen = examine_topics(parsed, "kafka", Outlook(), time.time() * 1000)
    except BacklogError as problem:
        return None if isinstance(problem.__cause__, ImportError) else Examination((_error("kafka", problem),))
    return Examination(tuple(seen.findings), first=tuple(seen.first))


def _error(subject: str, problem: BacklogError) -> Finding:
    return Finding(Severity.ERROR, subject, problem.problem, problem.hint)
