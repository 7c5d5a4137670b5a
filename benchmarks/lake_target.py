"""The Delta table that a candidate writes, read by DuckDB outside of the candidate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import deltalake
import duckdb
import pyarrow as pa

from benchmarks.lake_table import Fingerprint

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DeltaTarget", "Target", "Version", "duckdb_hash", "first_equal", "micros", "micros_of_text"]

# The same texts as in MySQL: see `Orders`.
_HASH = """
SELECT count(*), coalesce(sum(('0x' || left(md5(concat_ws('|', id, customer_id, status, (amount * 100)::BIGINT,
  coalesce(round(discount * 1000000000)::BIGINT::VARCHAR, '~'), quantity, coalesce(note, '~'),
  coalesce((ordered_on::DATE - DATE '1970-01-01')::VARCHAR, '~'), epoch_us(created_at),
  epoch_us(updated_at))), 8))::BIGINT), 0)
FROM """
_QUICK = "SELECT count(*), max(epoch_us(updated_at)) FROM read_parquet($files)"


class Version(NamedTuple):
    """A version of the table, the time of its commit in seconds since 1970, and its files."""

    number: int
    at: float
    files: Sequence[str]


class Target(Protocol):
    """What a candidate writes: see `DeltaTarget`."""

    def newest(self, below: int | None = None) -> Version | None: ...

    def quick(self, version: Version) -> tuple[int, int]: ...

    def fingerprint(self, version: Version, without: Sequence[int] = ()) -> Fingerprint: ...

    def close(self) -> None: ...


class DeltaTarget:
    """A Delta table without deletion vectors. It may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: dict[int, Version] = {}
        self._quick: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        """It holds nothing open."""

    def newest(self, below: int | None = None) -> Version | None:
        """The newest version, or the one before ``below``."""
        logs = sorted((self.path / "_delta_log").glob("*.json"))
        numbers = [int(log.stem) for log in logs if log.stem.isdigit()]
        if below is not None:
            numbers = [number for number in numbers if number < below]
        if not numbers:
            return None
        number = numbers[-1]
        if number not in self._read:
            table = deltalake.DeltaTable(str(self.path), version=number)
            at = (self.path / "_delta_log" / f"{number:020}.json").stat().st_mtime
            self._read[number] = Version(number, at, table.file_uris())
        return self._read[number]

    def quick(self, version: Version) -> tuple[int, int]:
        """Number of rows, and the newest ``updated_at`` in microseconds since 1970."""
        if version.number not in self._quick:
            with _duckdb() as connection:
                rows, newest = _one(connection, _QUICK, version) if version.files else (0, None)
            self._quick[version.number] = rows, newest or 0
        return self._quick[version.number]

    def fingerprint(self, version: Version, without: Sequence[int] = ()) -> Fingerprint:
        """Of the rows whose ``id`` is none of ``without``."""
        where = " WHERE id NOT IN (SELECT id FROM without)" if without else ""
        return duckdb_hash(f"read_parquet($files){where}", version, without)


def duckdb_hash(rows: str, version: Version, without: Sequence[int] = ()) -> Fingerprint:
    """The fingerprint of rows.

    Parameters
    ----------
    rows : str
        What follows FROM, where ``$files`` are the version's and ``without`` is a table of the ``id`` given.
    """
    with _duckdb() as connection:
        connection.register("without", pa.table({"id": pa.array(without, pa.int64())}))
        found, hashes = _one(connection, _HASH + rows, version)
    return Fingerprint(found, int(hashes))


def micros(at: datetime) -> int:
    """Microseconds since 1970 of a time in UTC without a zone."""
    passed = at - datetime(1970, 1, 1)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def micros_of_text(text: str) -> int:
    """As `micros`, of a time as text. 0 if it is empty."""
    return micros(datetime.fromisoformat(text)) if text else 0


def first_equal(target: Target, found: Version) -> Version:
    """The first of the versions up to ``found`` that have as many rows, and as new ones."""
    wanted = target.quick(found)
    while (before := target.newest(found.number)) and target.quick(before) == wanted:
        found = before
    return found


def _duckdb() -> DuckDBPyConnection:
    # The tool under measurement shares these cores.
    return duckdb.connect(config={"threads": 1})


def _one(connection: DuckDBPyConnection, sql: str, version: Version) -> tuple[int, int]:
    row = connection.execute(sql, {"files": list(version.files)}).fetchone()
    assert row is not None
    return row[0], row[1]
