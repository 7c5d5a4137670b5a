"""The offset of ``mysql_cdc``: a small JSON object that fixes what a batch reads (pure).

A batch goes from its start offset to its end offset. In the snapshot phase the end offset adds ranges: a table, the
upper end of a range of its keys, and the low watermark (LW) at which the range is read. In the binary log phase the end
offset moves the position. So a batch that is replayed after a failure reads the same rows, whenever it runs.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backlog_spark.common.stored_values import check_version, checked, reading_stored
from backlog_spark.spi.offset_flags import FILLS, NO_ROWS_YET
from backlog_spark.spi.signals import HEARD

from .binlog.positions import BinlogPosition
from .schema.columns import columns_from_json, columns_to_json
from .schema.keys import Key, key_from_json, key_to_json
from .schema.table import TableSchema
from .snapshot.requests import Requests

__all__ = ["NO_TABLE", "Offset", "RangeAgain", "SnapshotRange"]

_VERSION = 2
_LONG = 4_096  # characters
# Of a part of an offset. The tables of 100,000 have some 200 MB.
_MOST_INFLATED = 1 << 29

NO_TABLE = -1
"""The form of a range of a table that was dropped: it has no rows."""

_NO_REQUESTS = Requests()


@dataclass(frozen=True)
class SnapshotRange:
    """Part of a snapshot batch: a table's keys after the ``end`` of its previous range, up to and including ``end``.

    Parameters
    ----------
    end : tuple or None
        Greatest chunk key of the range. None: the table's last range, which is open.
    low : str
        The low watermark, as `watermark` reads it: MySQL's GTID set, or a position in MariaDB's log. The rows include
        exactly these transactions. All ranges of a batch have the same one.
    at_ms : int
        Server time of the low watermark, milliseconds since 1970 (UTC). It becomes ``_commit_timestamp``.
    table : int
        Index of the table in the offset's ``tables``.
    rows : int
        Its rows, as the planner counted them. For progress only, never for reading.
    form : int
        The table's definition at the low watermark: 0 for that in the offset's ``tables``, n for ``forms[n - 1]``.
        `NO_TABLE`: there was no such table then.
    """

    end: Key | None
    low: str
    at_ms: int
    table: int = 0
    rows: int = 0
    form: int = 0


@dataclass(frozen=True)
class RangeAgain(SnapshotRange):
    """A range of a table whose snapshot was read long ago, read again as of an offset of the log (`requests`).

    Its rows are upserts.

    Parameters
    ----------
    sequence : int
        Their ``_commit_seq``: after all changes up to the offset, before all later ones.
    condition : str
        SQL; only rows that meet it are read. "" for all.
    in_target : tuple of keys
        Primary keys that become deletes if the table does not have them.
    """

    sequence: int = 0
    condition: str = ""
    in_target: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Offset:
    """A point between two batches.

    Parameters
    ----------
    server : str
        The server whose log the positions refer to: MySQL's ``server_uuid``, or a substitute for MariaDB.
    tables : tuple of TableSchema
        The captured tables, in the order of their snapshots. They have the definition that they had at ``position``
        or, before there is one, at the first low watermark.
    forms : tuple of TableSchema
        Definitions at later low watermarks, of tables that were altered before those.
    ranges : tuple of SnapshotRange
        Ranges that the snapshot batches have read so far. Batches that share a low watermark share one range. In the
        binary log phase the ranges say which changes the snapshot already holds. Emptied once the log has passed
        ``filter_until``.
    complete : bool
        The snapshot has been read: this is the binary log phase.
    joining : tuple of int
        Binary log phase: tables that were found later and whose snapshots are being read.
    start : str
        Binary log phase, before its first batch: the first LW, after which reading starts. Otherwise "".
    position : BinlogPosition or None
        Binary log phase: all transactions up to here have been read.
    gtid : str
        GTIDs at ``position``. MySQL: the set of all transactions that were read or that the snapshot includes; with it
        the query can continue on another server. MariaDB: the last transaction of each domain; it shows that a log was
        reset or is another one. "" without GTIDs.
    gtid_until : BinlogPosition or None
        After a move to another server: up to here its log may have, in another order, transactions that were already
        read on the server before. So reading starts by ``gtid``.
    shift : int
        Added to the numbers of the server's binary log files in ``_commit_seq``, so that it grows across servers.
    excess : int
        Added to ``_commit_seq`` as well. Rows of compressed transactions may need more numbers than they have bytes in
        the log: the sum of these differences so far.
    salt_check : str
        `ColumnChoice.salt_check` when the newest batch was planned.
    filter_until : BinlogPosition or None
        A position at or after every transaction of the last LW.
    rows, total : int
        Rows of the snapshot so far, as the planner counted them, and an estimate of all rows. For progress only, never
        for reading.
    is_backlog : bool
        ``isProcessingBacklog`` at the start of the batch that ended here (FLIP-327's RecordAttributes).
    is_lagging : bool
        Binary log phase: so far behind the log's end that this is backlog.
    is_finished : bool
        Nothing follows: the stream was a snapshot only (FLIP-147).
    gone : tuple of (str, str)
        Database and name of each table that left the stream, and joins it again when the server has a table of this
        name.
    rejoining : tuple of (str, str)
        Tables that left because a statement changed the values of the key, until they have been read again: backlog.
    table_events : frozenset of str
        Kinds of statements that the batch that ended here has rows for: ``"truncate"``, ``"drop"``.
    requests : Requests
        Binary log phase: ranges of captured tables that are to be read again.
    committed_ms : (int, int) or None
        When the first and the last transaction of the binary log batch that ended here were committed, milliseconds
        since 1970 by the server's clock; None without rows. For the query's freshness only.
    emptied : tuple of (str, str)
        Tables that left the stream, with a row of type ``truncate``, at the end of the batch that ended here: their
        last statement there changed the values of the key.
    fills : tuple of (str, str, str)
        Database and name of tables that got new columns at the end of the batch that ended here, and the values that
        sinks give to old rows: `Rewriting.values`.
    to_empty : tuple of (str, str)
        Before the first batch of a snapshot that is read again: the tables that its rows replace; see
        `snapshot.resnapshot`.
    no_rows_yet : bool
        Without a snapshot: the log has given no row up to here. See `has_given_none`.
    """

    server: str
    tables: tuple[TableSchema, ...] = ()
    forms: tuple[TableSchema, ...] = ()
    ranges: tuple[SnapshotRange, ...] = ()
    complete: bool = False
    joining: tuple[int, ...] = ()
    start: str = ""
    position: BinlogPosition | None = None
    gtid: str = ""
    gtid_until: BinlogPosition | None = None
    shift: int = 0
    excess: int = 0
    salt_check: str = ""
    filter_until: BinlogPosition | None = None
    rows: int = 0
    total: int = 0
    is_backlog: bool = True
    is_lagging: bool = False
    is_finished: bool = False
    gone: tuple[tuple[str, str], ...] = ()
    rejoining: tuple[tuple[str, str], ...] = ()
    table_events: frozenset[str] = frozenset()
    requests: Requests = _NO_REQUESTS
    committed_ms: tuple[int, int] | None = None
    to_empty: tuple[tuple[str, str], ...] = ()
    emptied: tuple[tuple[str, str], ...] = ()
    fills: tuple[tuple[str, str, str], ...] = ()
    no_rows_yet: bool = False

    @property
    def is_undecided(self) -> bool:
        """The first batch is still to come. It decides where in the log a stream without a snapshot starts."""
        return self.complete and not self.start and self.position is None

    @property
    def is_processing_backlog(self) -> bool:
        """FLIP-309: the snapshot is backlog, and a table that is read again after an ALTER TABLE.

        The binary log is backlog only while it lags.
        """
        return not self.complete or self.is_lagging or self.requests.is_backlog or bool(self.rejoining)

    @property
    def has_given_none(self) -> bool:
        """Whether the stream has certainly given no row yet. Once it is false in the log, it stays false."""
        reads = (self.ranges, self.joining, self.gone, self.rejoining, self.emptied, self.to_empty)
        return self.no_rows_yet and self.complete and not any(reads) and self.requests == _NO_REQUESTS

    def ranges_of(self, table: int) -> tuple[SnapshotRange, ...]:
        """The ranges of a table that have been read."""
        return tuple(r for r in self.ranges if r.table == table)

    def form_of(self, found: SnapshotRange) -> TableSchema:
        """The definition that a range's table had at the range's low watermark."""
        return self.forms[found.form - 1] if found.form > 0 else self.tables[found.table]

    def added_since(self, before: Offset) -> tuple[SnapshotRange, ...]:
        """The ranges that the batch from ``before`` to here has read. Each starts where its table's last one ended.

        A range that went on at the same low watermark is one entry, which has grown.
        """
        same = len(before.ranges)
        if len(self.ranges) < same:  # they are no longer needed, and the batch has read none
            return ()
        grown = same > 0 and self.ranges[same - 1].end != before.ranges[same - 1].end
        return self.ranges[same - 1 if grown else same :]

    def unread(self) -> list[tuple[int, Key | None]]:
        """Tables whose snapshot is not complete, each with the greatest key read so far; None if no key was read."""
        reached: dict[int, SnapshotRange] = {r.table: r for r in self.ranges}
        found = [(i, reached.get(i)) for i in (self.joining if self.complete else range(len(self.tables)))]
        return [(i, r.end if r else None) for i, r in found if r is None or r.end is not None]

    def with_snapshot(
        self, ranges: Sequence[SnapshotRange], total: int, until: BinlogPosition | None, *, is_lagging: bool = False
    ) -> Offset:
        """The end offset of a snapshot batch. Only the last batch has ``until``."""
        every = _joined(self.ranges, ranges)
        return replace(
            self,
            ranges=every,
            complete=until is not None,
            start=every[0].low if every and until is not None else "",
            filter_until=until,
            rows=self.rows + sum(r.rows for r in ranges),
            total=total,
            is_backlog=self.is_processing_backlog,
            is_lagging=is_lagging,
            committed_ms=None,
            table_events=frozenset({"truncate"} if self.to_empty else ()),
            to_empty=(),
            emptied=(),
            fills=(),
        )

    def at(
        self,
        position: BinlogPosition,
        gtid: str = "",
        *,
        tables: tuple[TableSchema, ...] = (),
        is_lagging: bool = False,
        excess: int | None = None,
    ) -> Offset:
        """The end offset of a binary log batch, without what is no longer needed. ``tables``: given if altered."""
        by_gtid = self.gtid_until is not None and position.sort_key() < self.gtid_until.sort_key()
        passed = self.filter_until is None or position.sort_key() >= self.filter_until.sort_key()
        passed = passed and not self.joining
        return replace(
            self.quiet(),
            position=position,
            gtid=gtid,
            gtid_until=self.gtid_until if by_gtid else None,
            excess=self.excess if excess is None else excess,
            start="",
            tables=tables or self.tables,
            forms=() if passed else self.forms,
            ranges=() if passed else self.ranges,
            filter_until=None if passed else self.filter_until,
            is_lagging=is_lagging,
        )

    def quiet(self) -> Offset:
        """The end offset of a batch of the binary log phase that reads nothing."""
        return replace(
            self,
            is_backlog=self.is_processing_backlog,
            table_events=frozenset(),
            emptied=(),
            fills=(),
            requests=self.requests.without_reads(),
            committed_ms=None,
        )

    def without(self, names: Collection[tuple[str, str]], *, come_back: bool) -> Offset:
        """The end offset of a batch with which some tables leave the stream.

        Parameters
        ----------
        come_back : bool
            They are `gone`, and join again when there are such tables. Else the batch reads nothing.
        """
        kept = [i for i, t in enumerate(self.tables) if (t.database, t.table) not in names]
        number = {old: new for new, old in enumerate(kept)}
        gone = tuple(name for name in self.gone if name not in names)
        left = tuple((t.database, t.table) for t in self.tables if (t.database, t.table) in names)
        end = self if come_back else self.quiet()
        return replace(
            end,
            tables=tuple(self.tables[i] for i in kept),
            ranges=tuple(replace(r, table=number[r.table]) for r in self.ranges if r.table in number),
            joining=tuple(number[i] for i in self.joining if i in number),
            gone=(*gone, *left) if come_back else gone,
            rejoining=tuple(name for name in self.rejoining if come_back or name not in names),
            to_empty=tuple(name for name in self.to_empty if come_back or name not in names),
            requests=end.requests.without_tables(names),
        )

    def to_json(self) -> dict[str, Any]:
        """The form that Spark's offset log keeps. The order of keys is fixed, as Spark compares offsets as text."""
        lows = list(dict.fromkeys((r.low, r.at_ms) for r in self.ranges))
        number = {low: i for i, low in enumerate(lows)}
        out: dict[str, Any] = {
            "version": _VERSION,
            "isProcessingBacklog": self.is_processing_backlog,
            "isBacklog": self.is_backlog,
            "isSnapshot": not self.complete,
            "phase": "start" if self.is_undecided else "binlog" if self.complete else "snapshot",
            "server": self.server,
            "tables": _tables_to_json(self.tables),
            "rows": self.rows,
            "total": self.total,
            # Watermarks are long, and all ranges of a batch share one.
            "lows": _packed([list(low) for low in lows]),
            "ranges": _packed(
                [
                    [r.table, key_to_json(r.end), number[r.low, r.at_ms], r.rows, *([r.form] if r.form else [])]
                    for r in self.ranges
                ]
            ),
        }
        others: dict[str, Any] = {
            "forms": _tables_to_json(self.forms),
            "joining": list(self.joining),
            "start": self.start,
            "position": _position_to_json(self.position),
            "gtid": self.gtid,
            "gtidUntil": _position_to_json(self.gtid_until),
            "shift": self.shift,
            "saltCheck": self.salt_check,
            "excess": self.excess,
            "isLagging": self.is_lagging,
            "isFinished": self.is_finished,
            "gone": [list(name) for name in self.gone],
            "rejoining": [list(name) for name in self.rejoining],
            "hasTableEvents": bool(self.table_events),
            "tableEvents": sorted(self.table_events),
            "requests": _packed(self.requests.to_json()),
            HEARD: self.requests.heard,
            "committedMs": self.committed_ms and list(self.committed_ms),
            "toEmpty": [list(name) for name in self.to_empty],
            "hasChanges": self.is_backlog and self.position is not None,
            "emptied": [list(name) for name in self.emptied],
            FILLS: [list(fill) for fill in self.fills],
            NO_ROWS_YET: self.has_given_none,
            "filterUntil": _position_to_json(self.filter_until),
        }
        return out | {name: value for name, value in others.items() if value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Offset:
        """Read back what `to_json` wrote.

        Raises
        ------
        BacklogError
            The offset is of another version, damaged, or not an offset of ``mysql_cdc``.
        """
        check_version("The offset of mysql_cdc in the checkpoint", data.get("version"), _VERSION)
        with reading_stored("The offset of mysql_cdc in the checkpoint"):
            lows = _unpacked(data["lows"])
            found = cls(
                server=data["server"],
                tables=_tables_from_json(data["tables"]),
                forms=_tables_from_json(data.get("forms", [])),
                ranges=tuple(
                    SnapshotRange(key_from_json(end), lows[low][0], lows[low][1], table, rows, *form)
                    for table, end, low, rows, *form in _unpacked(data["ranges"])
                ),
                complete=data["phase"] != "snapshot",
                joining=tuple(data.get("joining", ())),
                start=data.get("start", ""),
                position=BinlogPosition(*data["position"]) if "position" in data else None,
                gtid=data.get("gtid", ""),
                gtid_until=BinlogPosition(*data["gtidUntil"]) if "gtidUntil" in data else None,
                shift=data.get("shift", 0),
                excess=data.get("excess", 0),
                salt_check=data.get("saltCheck", ""),
                filter_until=BinlogPosition(*data["filterUntil"]) if "filterUntil" in data else None,
                rows=data["rows"],
                total=data["total"],
                is_backlog=data["isBacklog"],
                is_lagging=data.get("isLagging", False),
                is_finished=data.get("isFinished", False),
                gone=tuple((database, table) for database, table in data.get("gone", ())),
                rejoining=tuple((database, table) for database, table in data.get("rejoining", ())),
                table_events=frozenset(data.get("tableEvents", ())),
                requests=Requests.from_json(_unpacked(data.get("requests", {})), data.get(HEARD, 0)),
                committed_ms=(data["committedMs"][0], data["committedMs"][1]) if "committedMs" in data else None,
                to_empty=tuple((database, table) for database, table in data.get("toEmpty", ())),
                emptied=tuple((database, table) for database, table in data.get("emptied", ())),
                fills=tuple((database, table, values) for database, table, values in data.get(FILLS, ())),
                no_rows_yet=data.get(NO_ROWS_YET) is True,
            )
            return checked(found)._consistent()

    def _consistent(self) -> Offset:
        """The offset, if its parts fit together. ValueError if not."""
        tables = range(len(self.tables))
        for each in self.ranges:
            if each.table not in tables or not NO_TABLE <= each.form <= len(self.forms):
                raise ValueError(f"a range is of table {each.table} in form {each.form}")
        if not {*self.joining} <= {*tables}:
            raise ValueError("a table joins that is not there")
        for table in (*self.tables, *self.forms):
            if not {*table.key, *table.chunk_key} <= {column.name for column in table.columns}:
                raise ValueError(f"a key column of {table.name} is missing")
        return self


def _tables_to_json(tables: Sequence[TableSchema]) -> Any:
    """Tables as JSON, compressed if it is long."""
    found = [
        [
            t.database,
            t.table,
            columns_to_json(t.columns),
            list(t.key),
            *([] if t.chunk_key == t.key and not t.past else [list(t.chunk_key)]),
            *([sorted(t.past)] if t.past else []),
        ]
        for t in tables
    ]
    return _packed(found)


def _position_to_json(position: BinlogPosition | None) -> list[Any] | None:
    return None if position is None else [position.file, position.pos]


def _packed(found: Any) -> Any:
    """A value for JSON, compressed if it is long."""
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return found if len(text) <= _LONG else {"zlib": base64.b64encode(zlib.compress(text.encode(), 9)).decode()}


def _unpacked(data: Any) -> Any:
    """Read back what `_packed` wrote."""
    packed = isinstance(data, dict) and "zlib" in data
    if not packed:
        return data
    inflate = zlib.decompressobj()
    text = inflate.decompress(base64.b64decode(data["zlib"]), _MOST_INFLATED)
    if not inflate.eof:
        raise ValueError(f"a part has more than {_MOST_INFLATED} bytes, or is cut")
    return json.loads(text)


def _joined(ranges: Sequence[SnapshotRange], more: Sequence[SnapshotRange]) -> tuple[SnapshotRange, ...]:
    """Both, with a range that goes on at the same low watermark as one entry."""
    last = ranges[-1] if ranges else None
    if last is None or not more or replace(more[0], end=last.end, rows=last.rows) != last:
        return (*ranges, *more)
    return (*ranges[:-1], replace(more[0], rows=last.rows + more[0].rows), *more[1:])


def _tables_from_json(data: Any) -> tuple[TableSchema, ...]:
    return tuple(
        TableSchema(
            database,
            table,
            columns_from_json(columns),
            tuple(key),
            tuple(more[0] if more else key),
            past=frozenset(more[1] if len(more) > 1 else ()),
        )
        for database, table, columns, key, *more in _unpacked(data)
    )
