"""Reads a range of the binary log: the changes of some tables, in order, with every transaction's end.

Source: MySQL source documentation, "COM_BINLOG_DUMP" and "COM_BINLOG_DUMP_GTID".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pymysql

from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from ..schema.ddl.statements import DROP, TRUNCATE
from ..schema.ddl.timeline import TableAltered, Timeline
from ..schema.table import TableSchema
from ..server.connection import connect, log_files, query
from ..server.gtid import GtidSet, MariaDbGtids
from ..server.purged import present
from ..server.retries import Retries, is_transient
from ..staging.staged_dump import StagedDump, staged_dump
from .dump import Dump, broken_off, explained, is_gone, lacks_file, open_dump
from .events import Events, NotYetSent
from .log_position import LargeFile
from .positions import FIRST_EVENT, BinlogPosition, file_number
from .records import (
    DELETE,
    INSERT,
    UPDATE,
    Change,
    RowsChange,
    Savepoint,
    TableEmptied,
    TransactionBroken,
    TransactionEnd,
)
from .transactions import whole_transactions

__all__ = [
    "DELETE",
    "INSERT",
    "UPDATE",
    "RowsChange",
    "TableAltered",
    "TableEmptied",
    "TransactionEnd",
    "first_position",
    "folds_case",
    "read_changes",
]

_T = TypeVar("_T")
# The server syncs what it has written within milliseconds, or longer on a disk that stalls.
_FIRST_SYNC_S, _LONGEST_SYNC_S = 0.002, 60.0


def read_changes(
    options: MySqlOptions,
    tables: Sequence[TableSchema],
    start: BinlogPosition | str,
    until: BinlogPosition | None = None,
    wait: Callable[[float], None] = time.sleep,
    timeline: Timeline | None = None,
    counts: Callable[[int], bool] | None = None,
    signals: TableSchema | None = None,
) -> Iterator[Change]:
    """Changes after ``start`` up to ``until``. Without ``until``: up to the log's end at some time after the call.

    Parameters
    ----------
    options, tables
        Where to read and which tables. Rows of other tables are skipped undecoded.
    start : BinlogPosition or str
        The end of a transaction, or a GTID set whose transactions are skipped. If the server has purged the file of a
        position whose GTIDs are known, and no transaction after it, reading begins with the log.
    until : BinlogPosition, optional
        The end of a transaction or of the log. Transactions that begin at or after it are not read. All before it have
        been read when this returns, even if that means to wait for the server.
    wait : callable
        Called with seconds, to wait before another attempt.
    timeline : Timeline, optional
        The columns that the tables have along the log; by default always the declared ones.

    counts : callable, optional
        Called with the bytes of an event before its rows are decoded. If it returns True, they are only counted: they
        have no values.
    signals : TableSchema, optional
        The signal table, whose rows are read too.

    Yields
    ------
    RowsChange, TableAltered, TableEmptied or TransactionEnd
        In log order. After a DROP TABLE there are no more changes of the table. A lost connection is opened again at
        the last transaction's end: if ``start`` is a GTID set, by that set and the transactions since. No change of the
        broken transaction is yielded twice. After ``connect.max-retries`` attempts without progress the error is
        raised.

    Raises
    ------
    SchemaChanged
        A table was altered or renamed or, with ``tableEvents=fail``, truncated or dropped.
    BacklogError
        Purged log, statement-format change, partial row image, XA transaction or unknown event; or the server does not
        send its log up to ``until``.
    """
    # MySQL: what starts by GTID also resumes by GTID. Another server of the replication, or the same one after a crash,
    # may have the same transactions at other positions.
    passed = GtidSet(start) if isinstance(start, str) else None
    # If it resumes by position, transactions of the set may follow there.
    left_out = GtidSet(start) if isinstance(start, str) else None
    dropped: set[TableSchema] = set()
    done = 0  # changes of the unfinished transaction that the caller already has
    unfinished = "", 0
    retries = Retries(options, wait)
    waited = 0.0  # seconds, for the part of the log that is not sent yet
    while True:
        skip = done
        if not done:
            tables = [schema for schema in tables if schema not in dropped]
        try:
            read = _read_once(options, tables, start, until, timeline or Timeline(), left_out, counts, signals)
            for change in whole_transactions(read, start, partial(_ends, options)):
                if skip and not isinstance(change, TransactionEnd):
                    skip -= 1
                    if isinstance(change, RowsChange) and (change.uuid, change.number) != unfinished:
                        raise _other_order(options, unfinished)
                    continue
                if skip:
                    raise _other_order(options, unfinished)
                if retries.failed:
                    retries.succeeded()
                waited = 0.0
                if isinstance(change, TableEmptied) and change.kind == DROP:
                    dropped.add(change.schema)
                if isinstance(change, TransactionEnd):
                    start, done = change.position, 0
                    if passed is not None:
                        passed.add(change.uuid, change.number)
                else:
                    done += 1
                    unfinished = (change.uuid, change.number) if isinstance(change, RowsChange) else unfinished
                yield change
            return
        except NotYetSent as sent:
            if waited >= _LONGEST_SYNC_S:
                raise BacklogError(
                    f"The binary log of {options.host}:{options.port} reaches to {until}, but for {waited:.0f} s the "
                    f"server has sent it up to {sent} only.",
                    "The server sends only what it has synced: check its disk. The query resumes from its checkpoint.",
                ) from None
            pause = min(max(waited, _FIRST_SYNC_S), 1.0)
            wait(pause)
            waited += pause
        except (pymysql.err.MySQLError, OSError) as error:
            if broken := broken_off(error):
                following = _file_after(options, broken)
                if following:
                    start, done, passed = BinlogPosition(following, FIRST_EVENT), 0, None
                    continue
            if isinstance(start, BinlogPosition) and lacks_file(error):
                with connect(options) as connection:
                    found = present(connection, start)
                if found != start:
                    start = found
                    continue
            if isinstance(error, pymysql.err.MySQLError) and not is_transient(error):
                raise explained(error, start) from None
            if not retries.again():
                raise BacklogError(
                    f"The binary log of {options.host}:{options.port} could not be read, {retries.failed} times: "
                    f"{error}.",
                    "Check that the server runs; the query resumes from its checkpoint.",
                ) from None
            if passed is not None:
                start = str(passed)


def _other_order(options: MySqlOptions, unfinished: tuple[str, int]) -> BacklogError:
    return BacklogError(
        f"The connection to {options.host}:{options.port} was lost inside a transaction, {unfinished[0]}:"
        f"{unfinished[1]}, and a new one has other changes there.",
        "The batch is read again from its beginning.",
    )


def _read_once(
    options: MySqlOptions,
    tables: Sequence[TableSchema],
    start: BinlogPosition | str,
    until: BinlogPosition | None,
    timeline: Timeline,
    left_out: GtidSet | None = None,
    counts: Callable[[int], bool] | None = None,
    signals: TableSchema | None = None,
) -> Iterator[Change | Savepoint | TransactionBroken]:
    if isinstance(start, BinlogPosition) and until and start.sort_key() >= until.sort_key():
        return
    yield from _taken(options, tables, start, until, timeline, Events.read, left_out, counts, signals)


def first_position(options: MySqlOptions, start: BinlogPosition | str | MariaDbGtids) -> BinlogPosition | None:
    """Position where the first transaction of a dump begins; None if there is none up to the log's end.

    Only the server's own log is looked at.
    """
    options = replace(options, metadata_location="")
    with closing(_taken(options, (), start, None, Timeline(), lambda events: iter([events.first_position()]))) as found:
        return next(found)


def _taken(
    options: MySqlOptions,
    tables: Sequence[TableSchema],
    start: BinlogPosition | str | MariaDbGtids,
    until: BinlogPosition | None,
    timeline: Timeline,
    take: Callable[[Events], Iterator[_T]],
    left_out: GtidSet | None = None,
    counts: Callable[[int], bool] | None = None,
    signals: TableSchema | None = None,
) -> Generator[_T]:
    """Run ``take`` on the events of a dump, without the transactions of a set.

    What the server has purged is read from the staged log, if that has it.
    """
    dump: Dump | StagedDump = open_dump(options, start)
    has_begun = False
    while True:
        try:
            connection = dump.open()
            large, after = dump.large, dump.after
            for found in take(
                Events(
                    connection,
                    tables,
                    until,
                    timeline,
                    options.zero_date_fails,
                    large=large,
                    after=after,
                    left_out=left_out,
                    ignored=options.statement_ignore,
                    max_row_bytes=options.max_row_bytes,
                    most_inflated=options.most_inflated,
                    counts=counts,
                    signals=signals,
                    removals=frozenset(k for k in (TRUNCATE, DROP) if options.event_policy(k) != "fail"),
                    reads_swaps_again=options.reads_swaps_again,
                    folds_case=partial(folds_case, options),
                )
            ):
                has_begun = True
                yield found
            return
        except LargeFile as large_file:
            # Read the whole file, and skip the unwanted transactions here.
            left_out, start = GtidSet(str(start)), BinlogPosition(large_file.file, FIRST_EVENT)
            following: Dump | StagedDump = open_dump(options, start)
        except pymysql.err.MySQLError as error:
            if has_begun or isinstance(start, MariaDbGtids) or not is_gone(error):
                raise
            staged = staged_dump(options, start)
            if staged is None:
                raise
            following = staged
            if isinstance(start, str):
                left_out = GtidSet(start)  # as the server would
        finally:
            dump.abandon()
        dump = following


def folds_case(options: MySqlOptions) -> bool:
    """Whether the server takes names of tables for equal that differ in case."""
    with connect(options) as connection:
        return bool(int(query(connection, "SELECT @@global.lower_case_table_names")[0][0]))


def _ends(options: MySqlOptions, start: BinlogPosition | str, change: RowsChange) -> bool:
    """Whether the transaction after ``start``, to which the change belongs, ends in the same file with a commit."""
    try:
        for end in _read_once(options, (), start, None, Timeline()):
            if not isinstance(end, Savepoint):
                whole = isinstance(end, TransactionEnd) and end.file == change.file
                return whole and not (isinstance(end, TransactionEnd) and end.is_rolled_back)
    except pymysql.err.OperationalError as error:
        if not broken_off(error):
            raise
    return False


def _file_after(options: MySqlOptions, file: str) -> str | None:
    """The log's next file. None if there is none: then the server may still be writing the rest of this one."""
    with connect(options) as connection:
        later = [name for name, _ in log_files(connection) if file_number(name) > file_number(file)]
    return later[0] if later else None
