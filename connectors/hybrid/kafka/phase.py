"""Kafka as a phase of a hybrid source: usually its last, which has no end."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from backlog_spark.errors import SettingError

from ..phases import Columns, DecoderOf, Limit, Outlook, Phase, Position, Seen, Step
from .arrow import Shape, raw_schema
from .dedup import known
from .options import KafkaOptions
from .pinned_offsets import Pin
from .planner import Planned, Planner
from .positions import KafkaPosition
from .ranges import Range, split
from .reading import KafkaRange, read_range
from .workers import group_id, open_client, worker_client

if TYPE_CHECKING:
    from .confluent import KafkaClient

__all__ = ["KafkaPhase"]

_STORAGE = "fs."


class KafkaPhase(Phase):
    """Records of Kafka topics.

    Parameters
    ----------
    name : str
        The user's name for the phase.
    options : mapping of str to str
        Those of `KafkaOptions`, and ``fs.*`` for the file system that has the file of keys from the phase
        before.
    decoder_of : callable, optional
        Makes the decoder, which makes data columns of the records' values; may be set later. Without it the columns are
        those of Spark's Kafka source.
    others : collection of str, optional
        Names of options that others read, such as the decoder.

    Raises
    ------
    SettingError
        An option is wrong.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        decoder_of: DecoderOf | None = None,
        *,
        others: Collection[str] = (),
    ) -> None:
        super().__init__(name)
        own = {k: v for k, v in options.items() if not k.lower().startswith(_STORAGE)}
        self._options = KafkaOptions.parse(own, others)
        self._storage_options = {k[len(_STORAGE) :].lower(): v for k, v in options.items() if k not in own}
        self.decoder_of = decoder_of
        self._shape: Shape | None = None
        self._client: KafkaClient | None = None

    @property
    def is_bounded(self) -> bool:  # type: ignore[override]
        """Whether an end is given (``endingOffsets`` and the like)."""
        return self._options.ending is not None

    @property
    def may_lag(self) -> bool:  # type: ignore[override]
        """Whether there is a threshold, and no end."""
        thresholds = self._options.thresholds
        return not self.is_bounded and (thresholds.lag_ms is not None or thresholds.offsets is not None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def __repr__(self) -> str:
        return f"KafkaPhase({self.name!r}, {self._options.properties}, {self._options.topics})"

    def schema(self) -> pa.Schema | None:
        return raw_schema(self._options.include_headers) if self.decoder_of is None else None

    def open(self, columns: Columns) -> None:
        o = self._options
        for name in o.dedup_key:
            if name not in columns.data.names:
                raise SettingError(
                    "dedupKey", ",".join(o.dedup_key), f"the stream has no column {name!r}.",
                    f"Data columns: {', '.join(columns.data.names)}.",
                )  # fmt: skip
        decoder = None if self.decoder_of is None else self.decoder_of(columns.data)
        shape = Shape(columns, decoder, self.name, o.drop_tombstones, o.include_headers)
        shape.check()
        self._shape = shape

    def pin(self) -> Position:
        return self._planner.pin(time.time() * 1000).to_json()

    def check(self) -> None:
        self._planner.check()

    def examine(self, before: Outlook) -> Seen:
        from .examination import examine_topics  # not needed in a query

        return examine_topics(self._options, f"phase {self.name}", before, time.time() * 1000)

    def columns_at_hand(self) -> list[pa.Schema] | None:
        found = self.schema()
        return None if found is None else [found]

    def begin(self, before: Mapping[str, Any]) -> Position:
        """See `Phase.begin`.

        Parameters
        ----------
        before : mapping
            ``lastTimestamp``: time of the newest row of the phases before, milliseconds since 1970. ``dedup``: path of
            a parquet file with the columns of ``dedupKey``: the keys of rows that those phases had. ``pinned``: the
            result of `pin` when the query first started. ``fixedAt``: when all files of the phases before were listed.
        """
        last, dedup = before.get("lastTimestamp"), before.get("dedup")
        if dedup and not self._options.dedup_key:
            raise SettingError(
                "dedupKey", None, "the phase before has kept keys for de-duplication, but this phase has no dedupKey.",
                "Set dedupKey to the columns that identify a row.",
            )  # fmt: skip
        pin = Pin.from_json(before["pinned"]) if before.get("pinned") else None
        if pin is not None:
            # Listing files may take minutes, so they may have rows that are newer than the pin.
            pin = replace(pin, at_ms=max(pin.at_ms, before.get("fixedAt") or 0))
        last_ms = None if last is None else int(last)
        return self._planner.begin(last_ms, dedup or "", time.time() * 1000, pin).to_json()

    def is_backlog(self, position: Position) -> bool:
        """Whether the records after the position are backlog, as `begin` or the step that ended there found."""
        return KafkaPosition.from_json(position).flag.is_backlog

    def first(self, position: Position) -> Position:
        return KafkaPosition.from_json(position).first.to_json()

    def next(self, start: Position, limit: Limit, now_ms: float) -> Step:
        planned = self._planner.next(KafkaPosition.from_json(start), None, limit.rows, now_ms, limit.least)
        return self._step(start, planned, is_finished=planned.is_at_end)

    def target(self, start: Position) -> Position | None:
        return None if self.is_bounded else self._planner.target(KafkaPosition.from_json(start)).to_json()

    def next_until(self, start: Position, target: Position, limit: Limit, now_ms: float) -> Step:
        goal = KafkaPosition.from_json(target)
        planned = self._planner.next(KafkaPosition.from_json(start), goal, limit.rows, now_ms)
        return self._step(start, planned, is_finished=planned.is_at_end)

    def _step(self, start: Position, planned: Planned, *, is_finished: bool) -> Step:
        is_backlog = planned.end.flag.is_backlog
        position = planned.end.to_json()
        return Step(
            position=start if position == start else position,
            rows=planned.rows,
            is_finished=is_finished,
            is_backlog=is_backlog,
            total=planned.total if is_backlog else None,
            is_behind=planned.is_behind and not self.is_bounded,
        )

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """See `Phase.partitions`. The positions are those of one batch, or the first position and any later one."""
        begin, until = KafkaPosition.from_json(start), KafkaPosition.from_json(end)
        ranges = [Range(p, begin.start_of(until, p), offset) for p, offset in sorted(until.offsets.items())]
        return [
            KafkaRange(
                topic=r.partition[0],
                number=r.partition[1],
                topic_id=until.topics.get(r.partition[0], ""),
                start=r.start,
                until=r.until,
                dedup=begin.dedup
                if begin.dedup_ms is not None or r.start < begin.dedup_until.get(r.partition, 0)
                else "",
                dedup_ms=begin.dedup_ms,
                dedup_until=begin.dedup_until.get(r.partition, 0),
            )
            for r in split(ranges, self._options.min_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, KafkaRange)
        assert self._shape is not None, "open comes first"
        o = self._options
        by = "timestamp" if partition.dedup and partition.dedup_ms is not None else "offset"
        with worker_client(o) as client:
            for records in read_range(client, partition, o):
                batch, stamps = self._shape.rows(records, partition.partition, by)
                if partition.dedup:
                    batch = self._without_known(batch, stamps, partition)
                del stamps
                del records
                if batch.num_rows:
                    yield batch
                del batch

    def _without_known(self, batch: pa.RecordBatch, stamps: pa.Array, partition: KafkaRange) -> pa.RecordBatch:
        """The rows without those of the files. ``stamps`` are the rows' timestamps or offsets."""
        if partition.dedup_ms is None:
            may_be = pc.less(stamps, partition.dedup_until)
        else:
            last = pa.scalar(partition.dedup_ms * 1000, stamps.type)
            may_be = pc.fill_null(pc.less_equal(stamps, last), False)
        if not pc.any(may_be).as_py():
            return batch  # when all records are newer, the keys are not even read
        return known(partition.dedup, self._options.dedup_key, self._storage_options).without(batch, may_be)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @property
    def _planner(self) -> Planner:
        o = self._options
        if self._client is None:
            self._client = open_client(o.properties, group_id(o), o.poll_timeout_ms / 1000)
        return Planner(o, self._client)
