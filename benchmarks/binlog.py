"""Decoding row changes of a MySQL binary log: this project's source against mysql-replication, in processor time.

The table is the demo's orders (10 columns of mixed types) in an embedded MySQL. The log has checksums and full row
metadata. Both read three ranges of the log in turn:

* ``insert``: statements of many rows.
* ``update``: statements of many rows. Each row has two images.
* ``single``: transactions of one row.

``ours`` is the work of a task of the source for a batch: events, rows, and the Arrow batches for Spark.
``mysql_replication`` is the library's own reader over the same events. Its rows are Python objects, which are dropped.
The figure is the processor time of this process, so the server and waiting do not count. A further figure, ``other
tables``, is a range without rows of the captured table: ours skips the rows, and so does the library, which is told to
read that table only.

Before the measurement the rows that both read are compared: their number, and the sums of two columns.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from backlog_spark.connectors.mysql_cdc.binlog.batches import read_batch
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import TableSchema
from backlog_spark.connectors.mysql_cdc.source import check
from benchmarks.common import arguments_parser, interleave, main, progress, require_equal, result, show
from examples.demo import load
from servers.mysql import MySQLServer

_DATABASE, _NAME = "shop", "orders"
_SINGLE = 10  # fewer transactions of one row, by this factor
_BLOCK = 5_000

Range = tuple[BinlogPosition, BinlogPosition]
Sums = tuple[int, int, Decimal]


def _end(server: MySQLServer) -> BinlogPosition:
    file, position = server.binlog_end()
    return BinlogPosition(str(file), int(position))


def _written(server: MySQLServer, rows: int) -> Iterator[tuple[str, int, Range]]:
    """Write each range. Yields its name, its number of output rows and its position."""
    start = _end(server)
    load(server, rows)
    yield "insert", rows, (start, start := _end(server))
    for first in range(1, rows + 1, _BLOCK):
        last = first + _BLOCK
        server.execute(f"UPDATE shop.orders SET amount = amount + 1 WHERE id >= {first} AND id < {last}")
    yield "update", 2 * rows, (start, start := _end(server))
    single = max(1, rows // _SINGLE)
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for number in range(1, single + 1):
            cursor.execute(f"UPDATE shop.orders SET amount = amount - 1 WHERE id = {number}")
    yield "single", 2 * single, (start, start := _end(server))
    server.execute("CREATE TABLE shop.others LIKE shop.orders")
    server.execute("INSERT INTO shop.others SELECT * FROM shop.orders")
    yield "other tables", rows, (start, _end(server))


def _ours(options: MySqlOptions, schema: TableSchema, log_range: Range) -> Sums:
    rows, ids, amounts = 0, 0, Decimal(0)
    for batch in read_batch(options, (schema,), _start(schema, log_range), log_range[1]):
        rows += batch.num_rows
        ids += pc.sum(batch.column("id")).as_py()
        amounts += pc.sum(batch.column("amount")).as_py()
    return rows, ids, amounts


def _library(server: MySQLServer, log_range: Range) -> Iterator[Any]:
    """The events of the table, decoded by the library."""
    settings = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
    reader = BinLogStreamReader(
        connection_settings={**settings, "ssl_disabled": True},
        server_id=4242,
        log_file=log_range[0].file,
        log_pos=log_range[0].pos,
        resume_stream=True,
        blocking=False,
        only_schemas=[_DATABASE],
        only_tables=[_NAME],
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    end = log_range[1].sort_key()
    try:
        for event in reader:
            if BinlogPosition(reader.log_file, reader.log_pos).sort_key() > end:
                return
            yield event
    finally:
        reader.close()


def _library_sums(server: MySQLServer, log_range: Range) -> Sums:
    rows, ids, amounts = 0, 0, Decimal(0)
    for event in _library(server, log_range):
        for row in event.rows:
            for image in ("values", "before_values", "after_values"):
                if image in row:
                    rows += 1
                    ids += row[image]["id"]
                    amounts += row[image]["amount"]
    return rows, ids, amounts


def _timed(read: Callable[[], object]) -> float:
    began = time.process_time()
    read()
    return time.process_time() - began


def run(arguments: argparse.Namespace) -> None:
    """Write the log, compare the rows, then measure."""
    with contextlib.ExitStack() as stack:
        progress("starting MySQL")
        server = stack.enter_context(MySQLServer(fast=True))
        given = {"host": "127.0.0.1", "port": str(server.port), "user": server.user, "ssl.mode": "disabled"}
        ranges = []
        for name, rows, log_range in _written(server, arguments.rows):
            progress(f"written: {name}")
            ranges.append((name, rows, log_range))
        given["table"] = f"{_DATABASE}.{_NAME}"
        options, schema = MySqlOptions.parse(given), check(given)[0]
        for name, rows, log_range in ranges:
            found = {"ours": _ours(options, schema, log_range), "mysql_replication": _library_sums(server, log_range)}
            require_equal(found)
            require_equal({"read": found["ours"][0], "written": 0 if name == "other tables" else rows})

            def ours(log_range: Range = log_range) -> float:
                return _timed(lambda: list(read_batch(options, (schema,), _start(schema, log_range), log_range[1])))

            def library(log_range: Range = log_range) -> float:
                return _timed(lambda: [event.rows for event in _library(server, log_range)])

            times = interleave({"ours": ours, "mysql_replication": library}, arguments.runs)
            mine, theirs = show(f"ours, {name}", rows, times["ours"]), show(name, rows, times["mysql_replication"])
            result("binlog", name, mine, {"mysql_replication": theirs})


def _start(schema: TableSchema, log_range: Range) -> Offset:
    return Offset(server="", tables=(schema,), complete=True, position=log_range[0])


if __name__ == "__main__":
    sys.exit(main(run, arguments_parser(__doc__, rows=200_000)))
