"""Ends or halts the process that writes a task, once, at a chosen point of its transaction."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import backlog_spark as bs
from backlog_spark.sinks import BatchInfo
from backlog_spark.sinks.kafka.producers import SinkProducer
from backlog_spark.sinks.kafka.records import Change
from backlog_spark.sinks.kafka.task import TaskDone, TaskWriter

__all__ = ["POINTS", "KilledSink", "KilledWriter", "at_point"]

POINTS = ("before", "in", "flushed", "after")
_SENT = 3  # records before the point `in`


@contextlib.contextmanager
def at_point(point: str, flag: Path, *, halts: bool = False, group: int = 0) -> Iterator[None]:
    """Kill this process at the point, unless the file is there, which is made first.

    ``halts``: wait until a file ``<flag>.go`` is there instead. ``group``: kill that group of processes first.
    """
    real_send, real_finish, sent = SinkProducer.send, SinkProducer.finish, 0

    def reached(here: str) -> None:
        if here != point:
            return
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if group:
            os.killpg(group, signal.SIGKILL)
        if not halts:
            os.kill(os.getpid(), signal.SIGKILL)
        while not flag.with_suffix(".go").exists():
            time.sleep(0.01)

    def send(producer: SinkProducer, *arguments: object) -> None:
        nonlocal sent
        if not sent:
            reached("before")
        real_send(producer, *arguments)  # type: ignore[arg-type]
        sent += 1
        if sent == _SENT:
            producer.flush()  # the brokers have the records, in an open transaction
            reached("in")

    def finish(producer: SinkProducer) -> None:
        producer.flush()
        reached("flushed")
        real_finish(producer)
        reached("after")

    with mock.patch.object(SinkProducer, "send", send), mock.patch.object(SinkProducer, "finish", finish):
        yield


@dataclass(frozen=True)
class KilledWriter(TaskWriter):
    """A task whose process is killed once, or its driver's group."""

    point: str = ""
    flag: str = ""
    group: int = 0

    def write(self, task: int, changes: Iterable[Change]) -> TaskDone:
        with at_point(self.point, Path(self.flag), group=self.group):
            return super().write(task, changes)


class KilledSink(bs.KafkaSink):
    """A sink of which a worker, or the driver with all workers, is killed once."""

    point, flag, group = "", "", 0

    def _writer(self, batch: BatchInfo) -> TaskWriter:
        plain = super()._writer(batch)
        return KilledWriter(**vars(plain), point=self.point, flag=self.flag, group=self.group)
