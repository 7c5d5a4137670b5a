"""The events of Nexmark: persons, auctions and bids, as Parquet files and as JSON records of Kafka.

An event is a function of its number: its fields are hashes of the number. So the same arguments always give the same
events, on any number of threads. Distributions are those of the public generator (github.com/nexmark/nexmark,
``nexmark-flink``, its defaults):

* Of 50 events, one is a person, three are auctions and 46 are bids.
* Half of the bids are for the *hot* auction, the first one of the last hundred. The others are for one of the last
  100 auctions, or for one of the next ten, which do not exist yet. Three of four bids are from the hot bidder, three
  of four auctions from the hot seller. The others are from one of the last 1,000 persons or the next ten.
* Prices are log-uniform from 100 to 100,000,000. Half of the bids are from four hot channels, the others from 10,000;
  nine of ten URLs of those have a ``channel_id``.
* ``extra`` fills up a person to about 200 bytes, an auction to 500 and a bid to 100.
* Within groups of 1,000 events, the order is mixed.

Two things differ. Events are 1 ms apart, so that no two events have the same time and each statement has one result.
Ids of bidders begin at 1,000, as those of persons do, so that bids join their bidders.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "EVENT",
    "SIDE",
    "TIME",
    "VIEWS",
    "events",
    "flush",
    "flush_of_views",
    "side_input",
    "to_json",
    "write_files",
]

BASE_MS = 1_767_225_600_000
"""Time of event 0: 2026-01-01, in UTC."""

GAP_MS = 1
GROUP = 1_000
"""Events of a group come in mixed order. With the gap of 1 ms, an event is less than a second late."""

_OF_50_PERSONS, _OF_50_AUCTIONS = 1, 3
_IN_FLIGHT, _ACTIVE, _LEAD, _HOT = 100, 1_000, 10, 100
_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1_000, 10, 5
_CHANNELS = 10_000
_EVENTS_OF_A_FILE, _LEAST_FILES = 100_000, 4

_STRUCTS = {
    "person": "STRUCT<id: BIGINT, name: STRING, emailAddress: STRING, creditCard: STRING, city: STRING, state: STRING, "
    "dateTime: TIMESTAMP, extra: STRING>",
    "auction": "STRUCT<id: BIGINT, itemName: STRING, description: STRING, initialBid: BIGINT, reserve: BIGINT, "
    "dateTime: TIMESTAMP, expires: TIMESTAMP, seller: BIGINT, category: BIGINT, extra: STRING>",
    "bid": "STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING, dateTime: TIMESTAMP, "
    "extra: STRING>",
}
EVENT = ", ".join(["event_type INT", *(f"{name} {struct}" for name, struct in _STRUCTS.items())])
"""Columns of the one table with all events."""

TIME = "CASE event_type WHEN 0 THEN person.dateTime WHEN 1 THEN auction.dateTime ELSE bid.dateTime END AS dateTime"
"""The time of an event."""

VIEWS: dict[str, tuple[int, Sequence[str]]] = {
    "person": (0, ("id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra")),
    "auction": (
        1,
        (
            *("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller"),
            *("category", "extra"),
        ),
    ),
    "bid": (2, ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")),
}
"""The ``event_type`` of each view, and its columns. ``dateTime`` is `TIME`, all others are of the view's struct."""

SIDE = "key BIGINT, value STRING"
_SIDE_ROWS = 10_000


def _pick(salt: int, below: str | int) -> str:
    """A number from 0 on, below ``below``. Each field of an event has a salt of its own."""
    return f"pmod(xxhash64(e, {salt}), {below})"


def _price(salt: int) -> str:
    return f"CAST(round(pow(10D, shiftrightunsigned(xxhash64(e, {salt}), 11) / 9007199254740992D * 6) * 100) AS BIGINT)"


def _letters(salt: int, count: int = 128, *, blank: str = "p", of: str = "e") -> str:
    """As many letters, or one of 16 of them a ``blank``."""
    digests = ", ".join(f"sha2(concat({of}, '-{salt}-{n}'), 512)" for n in range(-(-count // 128)))
    text = digests if count <= 128 else f"concat({digests})"
    return f"translate({text}, '0123456789abcdef', 'abcdefghijklmno{blank}')"


def _text(salt: int, longest: int) -> str:
    """Three letters or more, below ``longest``, with blanks."""
    return f"trim(substring({_letters(salt, blank=' ')}, 1, 3 + {_pick(salt, longest - 3)}))"


def _filler(salt: int, size: int, used: str) -> str:
    """Text that makes an event ``size`` bytes long on average, 20 percent more or less."""
    left = f"greatest({size} - ({used}), 0)"
    length = f"CAST({left} * 0.8D + {_pick(salt, 1_000)} * {left} * 0.0004D AS INT)"
    return f"substring({_letters(salt, size)}, 1, {length})"


def _of(salt: int, values: str) -> str:
    found = values.split(",")
    listed = ", ".join(f"'{value}'" for value in found)
    return f"element_at(array({listed}), CAST({_pick(salt, len(found))} + 1 AS INT))"


def _person_id(salt: int, hot: int) -> str:
    """Someone of the last persons, or in three of four events the hot one."""
    anyone = f"people - least(people, {_ACTIVE}) + {_pick(salt, f'least(people, {_ACTIVE}) + {_LEAD}')}"
    return f"if({_pick(salt + 1, 4)} > 0, (people - 1) div {_HOT} * {_HOT} + {hot}, {anyone}) + {_FIRST_ID}"


_TIMESTAMP = f"timestamp_millis({BASE_MS} + e * {GAP_MS})"
# The average auction ends when as many further auctions have been opened as are in flight.
_HORIZON_MS = _IN_FLIGHT * 50 // _OF_50_AUCTIONS * GAP_MS
_CARD = ", ".join(f"lpad({_pick(salt, 10_000)}, 4, '0')" for salt in range(11, 15))

_PERSON = {
    "id": f"people - 1 + {_FIRST_ID}",
    "name": f"concat({_of(1, 'Ada,Ben,Cleo,Dev,Eva,Finn,Gus,Hana,Ivo,June,Kim')}, ' ', "
    f"{_of(2, 'Abel,Brandt,Costa,Dietz,Evans,Fuchs,Gallo,Holm,Ito')})",
    "emailAddress": f"concat(substring({_letters(3)}, 1, 3 + {_pick(3, 4)}), '@', "
    f"substring({_letters(4)}, 1, 3 + {_pick(4, 2)}), '.com')",
    "creditCard": f"concat_ws(' ', {_CARD})",
    "city": _of(5, "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne"),
    "state": _of(6, "AZ,CA,ID,OR,WA,WY"),
    "dateTime": _TIMESTAMP,
    "extra": _filler(7, 200, "60"),
}
_AUCTION = {
    "id": f"auctions - 1 + {_FIRST_ID}",
    "itemName": _text(21, 20),
    "description": _text(22, 100),
    "initialBid": _price(23),
    "reserve": f"{_price(23)} + {_price(24)}",
    "dateTime": _TIMESTAMP,
    "expires": f"timestamp_millis({BASE_MS} + e * {GAP_MS} + 1 + {_pick(25, 2 * _HORIZON_MS)})",
    "seller": _person_id(26, 0),
    "category": f"{_FIRST_CATEGORY} + {_pick(28, _CATEGORIES)}",
    "extra": _filler(29, 500, "110"),
}
# The number of a bid's channel; those of the hot ones are negative.
_CHANNEL = f"if({_pick(44, 2)} > 0, -1 - {_pick(45, 4)}, {_pick(46, _CHANNELS)})"
_FOLDERS = "translate(sha2(CAST(channel AS STRING), 256), '0123456789abcdef', 'abcdefghijklmno_')"
_URL = (
    f"concat('https://www.nexmark.com/', substring({_FOLDERS}, 1, 4), '/', substring({_FOLDERS}, 5, 3), '/', "
    f"substring({_FOLDERS}, 8, 4), '/item.htm?query=1', "
    "if(channel >= 0 AND pmod(hash(channel), 10) > 0, concat('&channel_id=', abs(hash(channel, 1))), ''))"
)
_BID = {
    "auction": f"if({_pick(41, 2)} > 0, (auctions - 1) div {_HOT} * {_HOT}, greatest(auctions - 1 - {_IN_FLIGHT}, 0) + "
    f"{_pick(42, f'least(auctions - 1, {_IN_FLIGHT}) + 1 + {_LEAD}')}) + {_FIRST_ID}",
    "bidder": _person_id(48, 1),
    "price": _price(43),
    "channel": "if(channel < 0, element_at(array('Google', 'Facebook', 'Baidu', 'Apple'), CAST(-channel AS INT)), "
    "concat('channel-', channel))",
    "url": _URL,
    "dateTime": _TIMESTAMP,
    "extra": _filler(47, 100, "32"),
}


def _struct(name: str, fields: dict[str, str]) -> str:
    listed = ", ".join(f"'{field}', {text}" for field, text in fields.items())
    # The cast makes all fields nullable: `toArrow` fails at a NULL with fields that are not.
    return f"CAST(named_struct({listed}) AS {_STRUCTS[name]})"


def events(spark: SparkSession, count: int, first: int = 0, *, files: int | None = None) -> DataFrame:
    """Events in their order, from number ``first`` on.

    Parameters
    ----------
    count : int
    first : int, default 0
    files : int, optional
        Partitions. Each has events that follow one another. By default 100,000 events each, or fewer in four.
    """
    numbers = spark.range(first, first + count, 1, files or max(_LEAST_FILES, -(-count // _EVENTS_OF_A_FILE)))
    mixed = numbers.selectExpr(f"id div {GROUP} * {GROUP} + id * 953 % {GROUP} AS e")
    # How many persons and auctions there are so far, with this event.
    told = mixed.selectExpr(
        "e",
        "CAST(e % 50 AS INT) AS at",
        "e div 50 + 1 AS people",
        f"e div 50 * {_OF_50_AUCTIONS} + least(e % 50, {_OF_50_AUCTIONS}) AS auctions",
        f"{_CHANNEL} AS channel",
    )
    auctions = _OF_50_PERSONS + _OF_50_AUCTIONS
    return told.selectExpr(
        f"CASE WHEN at < {_OF_50_PERSONS} THEN 0 WHEN at < {auctions} THEN 1 ELSE 2 END AS event_type",
        f"if(at < {_OF_50_PERSONS}, {_struct('person', _PERSON)}, NULL) AS person",
        f"if(at >= {_OF_50_PERSONS} AND at < {auctions}, {_struct('auction', _AUCTION)}, NULL) AS auction",
        f"if(at >= {auctions}, {_struct('bid', _BID)}, NULL) AS bid",
    )


def flush(after: int) -> bytes:
    """A record of no view, one day after this many events. It moves the watermark past all windows."""
    return json.dumps({"event_type": 3, "bid": {"dateTime": _a_day_after(after)}}).encode()


def flush_of_views(after: int) -> list[bytes]:
    """The same as a record of each view, for an engine that filters before it looks for the watermark."""
    at, nobody = _a_day_after(after), -after
    rows = {
        "person": {"id": nobody},
        "auction": {"id": nobody, "seller": nobody},
        "bid": {"auction": nobody, "bidder": nobody, "price": 0},
    }
    return [
        json.dumps({"event_type": VIEWS[name][0], name: {**row, "dateTime": at}}).encode() for name, row in rows.items()
    ]


def _a_day_after(events: int) -> str:
    at = dt.datetime.fromtimestamp((BASE_MS + events * GAP_MS) / 1000 + 86_400, dt.UTC)
    return at.isoformat(timespec="milliseconds")


def write_files(frame: DataFrame, folder: Path) -> None:
    """Parquet files whose names have the order of their events."""
    frame.write.parquet(str(folder))


def to_json(frame: DataFrame) -> list[bytes]:
    """Records of Kafka."""
    return [row[0].encode() for row in frame.selectExpr("to_json(struct(*)) AS value").collect()]


def side_input(spark: SparkSession) -> DataFrame:
    """The table of query 13: the numbers below 10,000, each with a text."""
    return spark.range(0, _SIDE_ROWS, 1, 1).selectExpr("id AS key", "CAST(id AS STRING) AS value")
