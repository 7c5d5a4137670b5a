"""The options of change topics, each declared once (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import choice, option, switch
from backlog_spark.spi.user_options import UserOptions

__all__ = [
    "AVRO",
    "CHANGE_COLUMNS",
    "CHANGE_FORMATS",
    "DEBEZIUM",
    "ENCODINGS",
    "OF_CHANGES",
    "ChangeOptions",
    "sequence_at",
]

AVRO = "debezium-avro-confluent"
DEBEZIUM = ("debezium", AVRO)
CHANGE_FORMATS = (*DEBEZIUM, "canal", "maxwell")
"""Values of ``valueFormat`` whose records are changes of rows."""

CHANGE_COLUMNS = ("_change_type", "_commit_timestamp", "_commit_seq")
"""Metadata columns that such a stream has by default."""

OF_CHANGES = (*CHANGE_COLUMNS, "_database", "_table")
"""All metadata columns that only changes have."""

ENCODINGS = (
    "number", "text", "days", "millis", "micros", "nanos", "time_millis", "time_micros", "time_nanos", "decimal",
    "bits", "base64", "base64url", "hex", "latin1", "geometry",
)  # fmt: skip
_POSITION = re.compile(r"[^:\s]*?\.?([0-9]+):([0-9]+)")
# As in mysql_cdc: files of 256 GiB, 33 million of them.
_POS_BITS, _FILE_BITS = 38, 25


def sequence_at(file: int, pos: int) -> int:
    """A position in a binary log as one number; -1 if it does not fit."""
    return (file << _POS_BITS) + pos if 0 <= pos < 1 << _POS_BITS and 0 <= file < 1 << _FILE_BITS else -1


def _encodings(given: UserOptions, name: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in given.text(name).split(","))):
        column, _, encoding = (piece.strip() for piece in part.rpartition(":"))
        if not column or encoding not in ENCODINGS or column in found:
            raise SettingError(
                name, given.text(name), f"{part!r} is not column:encoding, or repeats a column.",
                f'For example "at:micros, code:bits". Encodings: {", ".join(ENCODINGS)}.',
            )  # fmt: skip
        found[column] = encoding
    return tuple(found.items())


def _tables(given: UserOptions, name: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in given.text(name).split(",") if part.strip())
    for table in found:
        if not all(table.partition(".")):
            raise SettingError(name, given.text(name), f"{table!r} is not database.table.", "For example shop.orders.")
    return found


def _position(given: UserOptions, name: str) -> int:
    text = given.text(name).strip()
    found = _POSITION.fullmatch(text)
    if text and (not found or sequence_at(int(found[1]), int(found[2])) < 0):
        raise SettingError(name, text, "is not file:position.", "For example binlog.000012:4711.")
    return sequence_at(int(found[1]), int(found[2])) if found else 0


_ORDERS = ("position", "offset")


@dataclass(frozen=True)
class ChangeOptions:
    """How envelopes become rows."""

    decimals: str = choice("decimal.handling.mode", ("precise", "string", "double"))
    """debezium without schemas in the records: the connector's setting of this name."""
    binaries: str = choice("binary.handling.mode", ("bytes", "base64", "base64-url-safe", "hex"))
    """debezium: the connector's setting of this name."""
    times: str = choice(
        "time.precision.mode",
        ("adaptive_time_microseconds", "adaptive", "connect", "isostring", "microseconds", "nanoseconds"),
    )
    """debezium without schemas in the records: the connector's setting of this name. With the first three a
    TIMESTAMP_NTZ is read from milliseconds; name columns of four and more digits of a second in `columnEncodings`:
    `at:micros`."""
    tables: tuple[str, ...] = option("changeTables", _tables, (), type="names", shown="all of the topics")
    """The tables to read, `database.table`, for topics with several. Records of other tables give no row. A topic of
    Canal or Maxwell often has all tables of a server."""
    by_column: tuple[tuple[str, str], ...] = option(
        "columnEncodings", _encodings, (), type="names", bounds=", ".join(ENCODINGS)
    )
    """How records have the values of some columns, `column:encoding`, where this differs from what their schema or the
    options above say."""
    order: str = option(
        "changeOrder", lambda given, name: given.choice(name, _ORDERS, _ORDERS[1]) if given.has(name) else "", "",
        shown="position; canal and maxwell: offset", choices=_ORDERS,
    )  # fmt: skip
    """What `_commit_seq` is. position: the place in the database's log, from `source` of Debezium (MySQL, MariaDB,
    PostgreSQL) or `position` of Maxwell. offset: Kafka's offset, which orders the records of a partition."""
    since: int = option("startingPosition", _position, 0, type="file:position")
    """The place in the binary log that the history is as of, such as `binlog.000012:4711`. Records before it give no
    row. debezium (MySQL, MariaDB) and maxwell with `position`."""
    refuses_unknown: bool = switch("unknownColumns", ("ignore", "fail"), "fail")
    """Columns of an envelope that the schema lacks. ignore: they are not read. fail: the query stops. Without schemas
    in the records this costs much time."""
    needs_before: bool = switch("beforeImages", ("optional", "required"), "required")
    """required: an update or delete without a before-image is malformed. Aggregates, joins and SQL need this, because
    they must retract the old row. optional: such an update is an `update_postimage` alone, and a delete has the columns
    of the record's key."""
    table_events: str = choice("tableEvents", ("fail", "skip", "emit"))
    """A TRUNCATE (Debezium: `op` `t`; Canal: also DROP). fail: the query stops at it. skip: no row. emit: a row whose
    `_change_type` is `truncate` or `drop`, for your own functions; sinks refuse it."""

    @property
    def encodings(self) -> Mapping[str, str]:
        """By column."""
        return dict(self.by_column)

    @property
    def by_offset(self) -> bool:
        """Whether Kafka's offset is the order."""
        return self.order == "offset"

    def of(self, form: str) -> Self:
        """The same for one format, with its defaults.

        Raises
        ------
        SettingError
        """
        order = self.order or ("position" if form in DEBEZIUM else "offset")
        if form == "canal" and order == "position":
            raise SettingError("changeOrder", order, "Canal's records have no position.", "Leave it out.")
        if self.since and order == "offset":
            raise SettingError(
                "startingPosition", None, f"needs the positions of records, and valueFormat={form} is read by offset.",
                "Leave it out." if form == "canal" else "Set changeOrder=position.",
            )  # fmt: skip
        return replace(self, order=order)
