"""Where the Kafka phase begins, and where its next batch ends: what the planner does beside the driver."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from backlog_spark.errors import BacklogError, SettingError

from .backlog import Flag
from .client import KafkaClient, Topic, TopicGone, patiently
from .losses import Loss, reconciled
from .offsets import EARLIEST, LATEST, Partition, shown
from .options import KafkaOptions, Place
from .positions import KafkaPosition
from .ranges import limited

__all__ = ["Planned", "Planner"]

_log = logging.getLogger(__name__)

_SECOND_LOOK_S = 1.0
"""A log that ends before what has been read of it is looked at again after this: a new leader may know its end late."""


@dataclass(frozen=True)
class _Cluster:
    """What the brokers have at one time."""

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
        Offsets in it.
    is_at_end : bool
        All partitions have reached the place up to which was to be read, if there is one.
    total : int
        Offsets from the phase's begin to that place, or to the end of the logs.
    """

    end: KafkaPosition
    rows: int
    is_at_end: bool
    total: int


class Planner:
    """Plans with one client. For one thread at a time.

    Parameters
    ----------
    options : KafkaOptions
    client : KafkaClient
    """

    def __init__(self, options: KafkaOptions, client: KafkaClient) -> None:
        self._options = options
        self._client = client

    def begin(self, last_ms: int | None, dedup: str, now_ms: float) -> KafkaPosition:
        """The position before the first record.

        Parameters
        ----------
        last_ms : int or None
            Time of the newest row of the phases before, milliseconds since 1970; None without one.
        dedup : str
            File with the keys of their rows; "" without one.
        now_ms : float
            The time, for the flag.
        """
        cluster = self._look()
        self._check_there(cluster)
        partitions = list(cluster.latest)
        if self._options.from_files and last_ms is not None:
            times = dict.fromkeys(partitions, last_ms - self._options.overlap_ms)
            offsets = self._at_times(times, cluster)
        else:
            offsets = self._resolved(self._options.starting, cluster)
        if last_ms is None:
            dedup = ""
        until = self._resolved(self._options.ending, cluster) if self._options.ending else None
        flag = self._flag(None, offsets, cluster, now_ms) if until is None else Flag(True)
        return KafkaPosition(
            offsets, cluster.ids, until=until, dedup=dedup, dedup_ms=last_ms if dedup else None, flag=flag
        )

    def next(self, start: KafkaPosition, target: KafkaPosition | None, rows: int | None, now_ms: float) -> Planned:
        """The batch after ``start``, not past ``target``, of about so many rows."""
        names = start.topics if start.until is not None else None
        cluster = self._look(names)
        begins, losses = reconciled(start, cluster.topics, cluster.earliest, cluster.latest)
        begins, losses = self._judged(start, cluster, begins, losses)
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
        topics = {name: id for name, id in cluster.ids.items() if any(p[0] == name for p in ends)}
        end = start.moved(ends, topics, changed, flag)
        first = start.first.offsets
        return Planned(
            end=end,
            rows=sum(ends[p] - begins[p] for p in ends),
            is_at_end=bounds is not None and all(ends[p] >= at for p, at in bounds.items() if p in ends),
            total=sum(max(0, (bounds or cluster.latest).get(p, 0) - first.get(p, 0)) for p in ends),
        )

    def target(self, start: KafkaPosition) -> KafkaPosition:
        """Where all that is there at present has been read."""
        cluster = self._look()
        return KafkaPosition(cluster.latest, cluster.ids, flag=start.flag)

    def _look(self, names: Collection[str] | None = None) -> _Cluster:
        """Topics, first and last offsets, of one moment as far as that can be."""

        def look() -> _Cluster:
            topics = self._topics(names)
            partitions = [(name, number) for name in sorted(topics) for number in topics[name].partitions]
            earliest = self._client.offsets(partitions, EARLIEST, committed=False)
            return _Cluster(topics, earliest, self._client.latest(partitions))

        # A topic that goes, or a partition without a leader, between the requests.
        try:
            return patiently(
                look, lambda error: isinstance(error, TopicGone), self._client.properties.api_timeout_ms / 1e3
            )
        except TopicGone as error:
            raise BacklogError(
                f"{self._client.properties}: partitions are there, but nobody leads them: {error}.",
                "Look at the brokers: `kafka-topics.sh --describe --unavailable-partitions`.",
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

    def _check_there(self, cluster: _Cluster) -> None:
        topics = self._options.topics
        missing = [name for name in topics.asked if name not in cluster.topics]
        missing += [shown(p) for p in topics.partitions if p[0] in cluster.topics and p not in cluster.latest]
        if missing:
            raise BacklogError(
                f"{self._client.properties} has no {', '.join(missing)}.",
                f"Create it, or correct {'assign' if topics.partitions else 'subscribe'}.",
            )

    def _at_times(self, times: Mapping[Partition, int], cluster: _Cluster) -> dict[Partition, int]:
        """The first offset of that time or later, else the end."""
        found = self._client.offsets_for_times({p: max(0, at) for p, at in times.items()})
        return {p: cluster.latest[p] if at is None else at for p, at in found.items()}

    def _resolved(self, place: Place, cluster: _Cluster) -> dict[Partition, int]:
        partitions = set(cluster.latest)
        given = place.timestamps or place.offsets
        if given and set(given) != partitions:
            self._refuse_partitions(place, set(given), partitions)
        if place.timestamp is not None or place.timestamps:
            times = place.timestamps or dict.fromkeys(partitions, place.timestamp or 0)
            found = self._client.offsets_for_times(times)
            late = sorted(p for p, at in found.items() if at is None)
            if late and not place.or_latest:
                raise SettingError(
                    place.option, times[late[0]], f"{shown(late[0])} has no record of that time or later.",
                    "Set an earlier time, or startingOffsetsByTimestampStrategy=latest.",
                )  # fmt: skip
            return {p: cluster.latest[p] if at is None else at for p, at in found.items()}
        wanted = dict(place.offsets) or dict.fromkeys(partitions, place.everywhere)
        return {p: self._checked(place, p, at, cluster) for p, at in sorted(wanted.items())}

    def _checked(self, place: Place, partition: Partition, offset: int, cluster: _Cluster) -> int:
        earliest, latest = cluster.earliest[partition], cluster.latest[partition]
        if offset in (EARLIEST, LATEST):
            return earliest if offset == EARLIEST else latest
        if place is self._options.ending:
            return offset
        if offset < earliest:
            loss = Loss(partition, offset, earliest, "retention has removed what comes before")
            self._report({partition: loss})
            return earliest
        if offset > latest:
            raise SettingError(
                place.option, offset, f"{shown(partition)} ends at {latest}.", "Set an offset that is there, or -1."
            )
        return offset

    @staticmethod
    def _refuse_partitions(place: Place, given: set[Partition], there: set[Partition]) -> None:
        unknown, left_out = sorted(given - there), sorted(there - given)
        problem = f"{shown(unknown[0])} is not read here." if unknown else f"{shown(left_out[0])} is left out."
        raise SettingError(
            place.option, sorted(shown(p) for p in given), problem,
            "Name each partition that is read, and no other; in the place of an offset -2 is earliest, -1 latest.",
        )  # fmt: skip

    def _judged(
        self, start: KafkaPosition, cluster: _Cluster, begins: dict[Partition, int], losses: dict[Partition, Loss]
    ) -> tuple[dict[Partition, int], dict[Partition, Loss]]:
        """Look again at partitions whose log seems to end before what has been read of it."""
        short = [p for p, loss in losses.items() if loss.is_short]
        if not short:
            return begins, losses
        time.sleep(_SECOND_LOOK_S)
        # Up to the very end: what has been read may be beyond a transaction that is still open, if it was read by
        # other rules (kafka.isolation.level) before.
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
        # A topic that was made anew since is another one.
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
