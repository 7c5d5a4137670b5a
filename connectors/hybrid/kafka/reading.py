"""Reads one range of a partition, in a worker."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from .client import OffsetGone, TopicGone, looked_again
from .losses import Loss
from .offsets import EARLIEST, Partition
from .options import KafkaOptions

if TYPE_CHECKING:
    from .confluent import KafkaClient, Records

__all__ = ["KafkaRange", "read_range"]

_log = logging.getLogger(__name__)

_TRIES, _PAUSE_S = 5, 0.2
"""How often a range is retried without any record in between. Pauses double: 6 s in all."""


@dataclass(frozen=True)
class KafkaRange(InputPartition):
    """Offsets of a partition from ``start`` on, before ``until``.

    Parameters
    ----------
    topic, number : str, int
        The partition.
    topic_id : str
        Id of the topic when the batch was planned; "" if brokers give none.
    start, until : int
    dedup : str
        File with the keys of rows that came before; "" for none.
    dedup_ms : int or None
        Records up to this time may have such a key.
    dedup_until : int
        Without ``dedup_ms``: records before this offset may have such a key.
    """

    topic: str
    number: int
    topic_id: str
    start: int
    until: int
    dedup: str = ""
    dedup_ms: int | None = None
    dedup_until: int = 0

    @property
    def partition(self) -> Partition:
        """Topic and number."""
        return self.topic, self.number


def read_range(client: KafkaClient, wanted: KafkaRange, options: KafkaOptions) -> Iterator[Records]:
    """The records of a range, in order.

    Raises
    ------
    BacklogError
        Records are gone and ``failOnDataLoss`` is true, or no broker answers for ``kafkaConsumer.pollTimeoutMs``.
    """
    at, tries = wanted.start, 0
    while at < wanted.until and _is_there(client, wanted, at, options):
        try:
            for records in client.fetch(wanted.partition, at, wanted.until):
                at, tries = records.next_offset(), 0
                yield records
                del records  # do not keep them while the next ones are fetched
            return
        except (OffsetGone, TopicGone) as error:
            earliest = _earliest(client, wanted.partition)
            if earliest is not None and at < earliest:
                # Retention removed records before or during the read.
                _lost(options, Loss(wanted.partition, at, earliest, f"retention has removed them ({error})"))
                at = earliest
            elif tries < _TRIES:
                # A broker that has just started may not know yet which partitions it leads, or where their logs end.
                time.sleep(_PAUSE_S * 2**tries)
                tries += 1
            else:
                _lost(options, Loss(wanted.partition, at, None, str(error)))
                return


def _is_there(client: KafkaClient, wanted: KafkaRange, at: int, options: KafkaOptions) -> bool:
    """Whether the same topic and partition still exist."""
    topic = looked_again(
        lambda: client.topic_of(wanted.partition),
        lambda topic: topic is not None and wanted.number in topic.partitions,
    )
    if topic is None or wanted.number not in topic.partitions:
        why = "the topic or the partition no longer exists"
    elif topic.id and wanted.topic_id and topic.id != wanted.topic_id:
        why = "the topic was deleted and recreated"  # the next batch begins with its earliest record
    else:
        return True
    _lost(options, Loss(wanted.partition, at, None, why))
    return False


def _lost(options: KafkaOptions, loss: Loss) -> None:
    if options.fail_on_data_loss:
        raise loss.error()
    _log.warning("%s failOnDataLoss=false: %s", loss, loss.going_on)


def _earliest(client: KafkaClient, partition: Partition) -> int | None:
    try:
        return client.offsets([partition], EARLIEST, committed=False)[partition]
    except TopicGone:
        return None
