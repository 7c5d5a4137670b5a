"""Plans where the Kafka phase begins and where its next batch ends. Runs in a process next to the driver."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backlog_spark.common.patience import patiently
from backlog_spark.errors import BacklogError, SettingError

from .backlog import Flag
from .client import Lookups, Topic, TopicGone, looked_again
from .losses import Gap, Loss, reconciled, shown_time
from .offsets import EARLIEST, LATEST, Partition, shown
from .options import Boundary, KafkaOptions
from .pinned_offsets import Pin
from .positions import KafkaPosition
from .ranges import limited

__all__ = ["Planned", "Planner"]

_log = logging.getLogger(__name__)

_SECOND_LOOK_S = 1.0
"""If a log seems to end before what was read of it, look again after this: a new leader may learn its end late."""

_CLOCKS_DIFFER_MS = 60_000
"""Rows may be this much newer than the planner's clock, because another clock dated them."""


@dataclass(frozen=True)
class _Cluster:
    """What the brokers have at a moment."""

    topics: Mapping[str, Topic]
    earliest: Mapping[Partition, int]
    latest: Mapping[Partition, int]

    @property
    def ids(self) -> dict[str, str]:
        return {name: topic.id for name, topic in self.topics.items()}


@dataclass(frozen=True)
class Planned:
    """A batch.

    Parameters
    ----------
    end : KafkaPosition
        The start itself if there is nothing new.
    rows : int
        Number of offsets in the batch.
    is_at_end : bool
        Whether all partitions have reached the bound up to which to read, if there is one.
    total : int
        Number of offsets from the phase's begin to that bound, or to the end of the logs.
    is_behind : bool
        Whether offsets after the batch exist already.
    """

    end: KafkaPosition
    rows: int
    is_at_end: bool
    total: int
    is_behind: bool = False


class Planner:
    """Plans with one client. For one thread at a time.

    Parameters
    ----------
    options : KafkaOptions
    client : Lookups
    """

    def __init__(self, options: KafkaOptions, client: Lookups) -> None:
        self._options = options
        self._client = client

    def present(self, now_ms: float) -> Pin:
        """The state of the topics now. Raises a `BacklogError` if one does not exist."""
        cluster = self._look_at_start()
        return self._pin(cluster, now_ms)

    def pin(self, now_ms: float) -> Pin:
        """The state of the topics now, for a phase that begins later. Reports what can be known already."""
        cluster = self._look_at_start()
        pin = self._pin(cluster, now_ms)
        starting = self._options.starting
        if not starting.is_by_time:
            wanted = self._resolved(starting, cluster, pin)
            self._report(reconciled(KafkaPosition(wanted, pin.topics), cluster.topics, pin.earliest, pin.latest)[1])
        return pin

    def check(self) -> None:
        """Check that the brokers answer and that the topics exist."""
        self._look_at_start()

    def begin(
        self, last_ms: int | None, dedup: str, now_ms: float, pin: Pin | None = None, listed: Pin | None = None
    ) -> KafkaPosition:
        """The position before the first record.

        Parameters
        ----------
        last_ms : int or None
            Time of the newest row of the phases before, milliseconds since 1970; None without one.
        dedup : str
            File with the keys of their rows; "" without one.
        now_ms : float
            The time, for the flag.
        pin : Pin or None
            The result of `pin` when the query first started. Reading begins as if it were then, and all records that
            arrived since are read, whatever their time. None: the query starts now.
        listed : Pin or None
            The result of `pin` just before the files with the newest row were listed, if that was later.
        """
        cluster = self._look_at_start(pin.latest if pin else ())
        pin = pin or self._pin(cluster, now_ms)
        gaps: dict[Partition, Loss] = {}
        if self._options.from_files and last_ms is not None:
            listed = listed or pin
            last_ms = self._believed(last_ms, listed)
            since = last_ms - self._options.overlap_ms
            found, gaps = self._since(dict.fromkeys(pin.latest, since), cluster, {})
            # No file has records that arrived after the files were listed, however old their timestamps are.
            ends = {**cluster.latest, **listed.latest}
            wanted = {p: min(ends[p], cluster.latest[p] if at is None else at) for p, at in found.items()}
        else:
            starting = self._options.starting
            wanted = self._resolved(starting, cluster, pin)
            if starting.is_by_time:
                gaps = self._since(starting.times(wanted), cluster, pin.earliest)[1]
        gone = {p: at for p, at in pin.earliest.items() if p not in wanted}
        start = KafkaPosition({**wanted, **gone}, pin.topics)
        offsets, losses = reconciled(start, cluster.topics, cluster.earliest, cluster.latest)
        offsets, losses = self._judged(start, offsets, losses)
        self._report({**gaps, **losses})
        if last_ms is None:
            dedup = ""
        until = None
        if self._options.ending:
            until = self._resolved(self._options.ending, cluster, self._pin(cluster, now_ms), pin)
            offsets = {p: at for p, at in offsets.items() if p in until}
        flag = self._flag(None, offsets, cluster, now_ms) if until is None else Flag(True)
        return KafkaPosition(
            offsets, cluster.ids, until=until, dedup=dedup, dedup_ms=last_ms if dedup else None, flag=flag
        )

    def next(
        self, start: KafkaPosition, target: KafkaPosition | None, rows: int | None, now_ms: float, least: int = 0
    ) -> Planned:
        """The batch after ``start``, at most up to ``target``, with about ``rows`` rows.

        While there are fewer than ``least``, a batch without a bound waits, unless it would change the flag.
        """
        names = start.topics if start.until is not None else None
        cluster = self._look(names, start.offsets)
        begins, losses = reconciled(start, cluster.topics, cluster.earliest, cluster.latest)
        begins, losses = self._judged(start, begins, losses)
        bounds = self._bounds(start, target, cluster)
        if bounds is not None:
            begins = {p: at for p, at in begins.items() if p in bounds or p in start.offsets}
        self._report(losses)
        latest = cluster.latest
        if bounds is not None:
            latest = {p: min(latest[p], bounds.get(p, begins[p])) for p in begins}
        ends = limited(begins, latest, rows)
        changed = {p: at for p, at in begins.items() if start.offsets.get(p) != at or p in losses}
        flag = start.flag if start.until is not None else self._flag(start.flag, ends, cluster, now_ms)
        if bounds is None and flag == start.flag and not losses:
            new = sum(latest[p] - at for p, at in begins.items())
            if new < least:
                return Planned(start, 0, is_at_end=False, total=0, is_behind=new > 0)
        named = {name for name, _ in ends}
        topics = {name: id for name, id in cluster.ids.items() if name in named}
        end = start.moved(ends, topics, changed, flag)
        first = start.first.offsets
        return Planned(
            end=end,
            rows=sum(ends[p] - begins[p] for p in ends),
            is_at_end=bounds is not None and all(ends[p] >= at for p, at in bounds.items() if p in ends),
            total=sum(max(0, (bounds or cluster.latest).get(p, 0) - first.get(p, 0)) for p in ends),
            is_behind=any(at < cluster.latest[p] for p, at in ends.items()),
        )

    def target(self, start: KafkaPosition) -> KafkaPosition:
        """The position at which everything that exists now has been read."""
        cluster = self._look(None, start.offsets)
        return KafkaPosition(cluster.latest, cluster.ids, flag=start.flag)

    def _look_at_start(self, known: Collection[Partition] = ()) -> _Cluster:
        """All topics that the options name. Raises a `BacklogError` if one does not exist."""

        def is_whole(found: _Cluster) -> bool:
            is_there = bool(found.topics) or self._options.may_be_empty
            return is_there and not self._missing(found) and set(known) <= found.latest.keys()

        cluster = looked_again(lambda: self._seen(None), is_whole)
        self._check_there(cluster)
        return cluster

    def _look(self, names: Collection[str] | None, known: Collection[Partition]) -> _Cluster:
        """Topics, first and last offsets, as far as possible of one moment.

        Partitions that are known, and not found, are looked for again.
        """
        return looked_again(lambda: self._seen(names), lambda found: set(known) <= found.latest.keys())

    def _seen(self, names: Collection[str] | None) -> _Cluster:
        def look() -> _Cluster:
            topics = self._topics(names)
            partitions = [(name, number) for name in sorted(topics) for number in topics[name].partitions]
            earliest = self._client.offsets(partitions, EARLIEST, committed=False)
            return _Cluster(topics, earliest, self._client.latest(partitions))

        # A topic may be deleted, or a partition may lose its leader, between the requests.
        try:
            return patiently(
                look, lambda error: isinstance(error, TopicGone), self._client.properties.api_timeout_ms / 1e3
            )
        except TopicGone as error:
            raise BacklogError(
                f"{self._client.properties}: partitions exist, but have no leader: {error}.",
                "Check the brokers: `kafka-topics.sh --describe --unavailable-partitions`.",
            ) from None

    def _topics(self, names: Collection[str] | None) -> dict[str, Topic]:
        topics = self._options.topics
        if topics.pattern and names is None:
            pattern = re.compile(topics.pattern)
            found = self._client.topics([name for name in self._client.names() if pattern.fullmatch(name)])
            return {name: topic for name, topic in found.items() if not topic.is_internal}
        found = self._client.topics(topics.asked if names is None else names)
        if topics.partitions:
            wanted = set(topics.partitions)
            return {
                name: Topic(topic.id, tuple(n for n in topic.partitions if (name, n) in wanted))
                for name, topic in found.items()
            }
        return found

    def _missing(self, cluster: _Cluster) -> list[str]:
        """Topics and partitions that the options name and that do not exist."""
        topics = self._options.topics
        missing = [name for name in topics.asked if name not in cluster.topics]
        return missing + [shown(p) for p in topics.partitions if p[0] in cluster.topics and p not in cluster.latest]

    def _check_there(self, cluster: _Cluster) -> None:
        topics = self._options.topics
        if topics.pattern and not cluster.topics and not self._options.may_be_empty:
            raise SettingError(
                "subscribePattern", topics.pattern, f"no topic of {self._client.properties} matches it.",
                "It must match whole names. If its topics are created later, set allowEmpty=true.",
            )  # fmt: skip
        if missing := self._missing(cluster):
            raise BacklogError(
                f"{self._client.properties} has no {', '.join(missing)}.",
                f"Create it, or correct {'assign' if topics.partitions else 'subscribe'}.",
            )

    @staticmethod
    def _pin(cluster: _Cluster, now_ms: float) -> Pin:
        return Pin(cluster.earliest, cluster.latest, cluster.ids, int(now_ms))

    def _believed(self, last_ms: int, pin: Pin) -> int:
        """The time of the newest row. Refuses a time in the future, which would skip all present records."""
        if last_ms <= pin.at_ms + _CLOCKS_DIFFER_MS:
            return last_ms
        text = (
            f"The newest row before the topic is of {shown_time(last_ms)}. That was in the future when the files were"
            f" listed, at {shown_time(pin.at_ms)}: beginning there would skip all records to date."
        )
        if self._options.fail_on_data_loss:
            raise BacklogError(
                text,
                "Look for rows with a wrong time, or a timestamp_ntz that is not in UTC. To continue with this"
                " checkpoint set startingTimestamp to the right time (hybrid: and startingFrom=offsets), or"
                " failOnDataLoss=false: reading then begins at the time of the listing, minus the overlap. Or start a"
                " new query without these rows.",
            )
        _log.warning("%s failOnDataLoss=false: reading begins at the time of the listing, minus the overlap.", text)
        return pin.at_ms

    def _since(
        self, times: Mapping[Partition, int], cluster: _Cluster, known: Mapping[Partition, int]
    ) -> tuple[dict[Partition, int | None], dict[Partition, Loss]]:
        """The first offset of each time or later, and the partitions where records of that time may be gone.

        No record is gone if an older one is left, or if nothing was removed beyond the first offset in ``known``
        (by default 0). Logs are removed from the front.
        """
        asked = {p: max(0, at) for p, at in times.items() if p in cluster.latest}
        found = self._client.offsets_for_times(asked)
        gaps: dict[Partition, Loss] = {}
        for p, at in found.items():
            first, end = cluster.earliest[p], cluster.latest[p]
            if first > known.get(p, 0) and (end if at is None else at) <= first:
                why = "retention has removed all earlier records"
                gaps[p] = Gap(p, first, first, why, since_ms=asked[p], first_ms=self._client.first_time(p, first, end))
        return found, gaps

    def _resolved(
        self, boundary: Boundary, cluster: _Cluster, pin: Pin, least: Pin | None = None
    ) -> dict[Partition, int]:
        """The offsets of a boundary in the partitions of a pin.

        Parameters
        ----------
        pin : Pin
            Defines "earliest" and "latest".
        least : Pin or None
            Partitions that a boundary must name if it names some. It may also name newer ones.
        """
        given = boundary.timestamps or boundary.offsets
        named = set((least or pin).latest)
        if given and not named <= set(given) <= named | set(cluster.latest):
            self._refuse_partitions(boundary, set(given), named, named | set(cluster.latest))
        partitions = set(given) or set(pin.latest)
        if boundary.is_by_time:
            found = self._client.offsets_for_times(
                {p: at for p, at in boundary.times(partitions).items() if p in cluster.latest}
            )
            late = sorted(p for p, at in found.items() if at is None)
            if late and not boundary.or_latest:
                raise SettingError(
                    boundary.option, boundary.times(late)[late[0]],
                    f"{shown(late[0])} has no record of that time or later.",
                    "Set an earlier time, or startingOffsetsByTimestampStrategy=latest.",
                )  # fmt: skip
            return {p: pin.latest.get(p, cluster.latest[p]) if at is None else at for p, at in found.items()}
        wanted = dict(boundary.offsets) or dict.fromkeys(partitions, boundary.everywhere)
        return {p: self._checked(boundary, p, at, cluster, pin) for p, at in sorted(wanted.items())}

    def _checked(self, boundary: Boundary, partition: Partition, offset: int, cluster: _Cluster, pin: Pin) -> int:
        if offset == EARLIEST:
            return pin.earliest.get(partition, 0)
        if offset == LATEST:
            return pin.latest.get(partition, 0)
        latest = cluster.latest.get(partition, offset)
        if boundary is not self._options.ending and offset > latest:
            raise SettingError(
                boundary.option, offset, f"{shown(partition)} ends at {latest}.", "Set an existing offset, or -1."
            )
        return offset

    @staticmethod
    def _refuse_partitions(
        boundary: Boundary, given: set[Partition], least: set[Partition], most: set[Partition]
    ) -> None:
        unknown, left_out = sorted(given - most), sorted(least - given)
        problem = f"{shown(unknown[0])} is not read by this phase." if unknown else f"{shown(left_out[0])} is missing."
        raise SettingError(
            boundary.option, sorted(shown(p) for p in given), problem,
            "Name exactly the partitions that are read. -2 means earliest, -1 means latest.",
        )  # fmt: skip

    def _judged(
        self, start: KafkaPosition, begins: dict[Partition, int], losses: dict[Partition, Loss]
    ) -> tuple[dict[Partition, int], dict[Partition, Loss]]:
        """Look again at partitions whose log seems to end before what was read of it."""
        short = [p for p, loss in losses.items() if loss.is_short]
        if not short:
            return begins, losses
        time.sleep(_SECOND_LOOK_S)
        # Ask for the very end: earlier reads with another kafka.isolation.level may have gone beyond a transaction
        # that is still open.
        try:
            ends = self._client.offsets(short, LATEST, committed=False)
        except TopicGone:
            return begins, losses
        for partition in short:
            if ends[partition] >= start.offsets[partition]:
                del losses[partition]
                begins[partition] = start.offsets[partition]
        return begins, losses

    def _bounds(
        self, start: KafkaPosition, target: KafkaPosition | None, cluster: _Cluster
    ) -> Mapping[Partition, int] | None:
        if start.until is not None:
            return start.until
        if target is None:
            return None
        # A topic that was deleted and made again is another topic.
        return {
            p: at if target.topics.get(p[0]) == cluster.ids.get(p[0]) else cluster.latest.get(p, 0)
            for p, at in target.offsets.items()
        }

    def _flag(self, flag: Flag | None, ends: Mapping[Partition, int], cluster: _Cluster, now_ms: float) -> Flag:
        unread = {p: at for p, at in ends.items() if at < cluster.latest[p]}

        def is_unread_older(ms: int) -> bool:
            try:
                first = self._client.offsets_for_times(dict.fromkeys(unread, max(0, int(now_ms) - ms)))
            except TopicGone:
                return False  # this moment; the next batch will tell
            # None: all records of the partition are older.
            return any(first[p] is None or at < (first[p] or 0) for p, at in unread.items())

        count = sum(cluster.latest[p] - at for p, at in unread.items())
        return self._options.thresholds.next(flag, count, is_unread_older, now_ms)

    def _report(self, losses: Mapping[Partition, Loss]) -> None:
        for _, loss in sorted(losses.items()):
            if self._options.fail_on_data_loss:
                raise loss.error()
            _log.warning("%s failOnDataLoss=false: %s", loss, loss.going_on)
