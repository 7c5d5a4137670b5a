"""Reads the source for ``bs.verify`` on the executors, at a limited rate, and shows the progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backlog_spark.runner.progress_outputs import bar, output_for
from backlog_spark.verification.row_comparison import PART

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

    from backlog_spark.spi.tables_at import TablesAt

__all__ = ["ChangedKeys", "ChunkReader", "ReadingLine", "pause", "render"]

_EVERY_S = 0.5


def pause(rows: int, seconds: float, rate: float | None) -> float:
    """Seconds to wait after reading ``rows`` in ``seconds``, to read at most ``rate`` rows per second.

    Examples
    --------
    >>> pause(1000, 2.0, 100.0), pause(1000, 20.0, 100.0), pause(1000, 2.0, None)
    (8.0, 0.0, 0.0)
    """
    return 0.0 if rate is None else max(0.0, rows / rate - seconds)


@dataclass
class ChunkReader:
    """Function for ``mapInArrow``: reads the rows of chunks, given their numbers, and adds the number as `PART`.

    Parameters
    ----------
    tables : TablesAt
    rate : float or None
        Most rows per second of one task.
    rows, chunks : Accumulator
        What finished tasks have read, for display.
    """

    tables: TablesAt
    rate: float | None
    rows: Accumulator[int]
    chunks: Accumulator[int]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began, rows = time.monotonic(), 0
        for numbers in batches:
            for chunk in numbers.column(0).to_pylist():
                for batch in self.tables.read(chunk):
                    rows += batch.num_rows
                    part = pa.repeat(pa.scalar(chunk, pa.int32()), batch.num_rows)
                    names: Sequence[str] = [*batch.schema.names, PART]
                    yield pa.RecordBatch.from_arrays([*batch.columns, part], names=list(names))
                    time.sleep(pause(rows, time.monotonic() - began, self.rate))
                self.chunks.add(1)
        self.rows.add(rows)


@dataclass
class ChangedKeys:
    """Step of ``mapInArrow`` from any rows to the keys that the source's stream has between two offsets."""

    tables: TablesAt
    since: Mapping[str, Any]
    until: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from self.tables.keys_changed(self.since, self.until)


def render(name: str, chunks: int, total: int, rows: int, seconds: float) -> str:
    """The progress line.

    Examples
    --------
    >>> render("shop.orders", 3, 12, 300_000, 10.0)
    'verify shop.orders [######                  ]  25%  3 of 12 chunks  300,000 rows  30,000 rows/s'
    """
    share = min(1.0, chunks / total) if total else 1.0
    rate = rows / seconds if seconds > 0 else 0
    return f"verify {name} {bar(share)}  {chunks} of {total} chunks  {rows:,} rows  {rate:,.0f} rows/s"


class ReadingLine:
    """Shows the progress of a `ChunkReader`: on a terminal and in a notebook all the time, in a log once a minute.

    Parameters
    ----------
    reader : ChunkReader
    name : str
        What is read.
    """

    def __init__(self, reader: ChunkReader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._output = output_for(sys.stderr, is_default=True)
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="verify-progress", daemon=True)

    def __enter__(self) -> ReadingLine:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        reader = self._reader
        while not self._stop.wait(_EVERY_S):
            seconds = time.monotonic() - self._began
            line = render(self._name, reader.chunks.value, reader.tables.chunks, reader.rows.value, seconds)
            self._output.show([line], news=None)
        self._output.close()
