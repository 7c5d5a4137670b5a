"""The Delta table that a candidate writes, read by DuckDB outside of the candidate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import deltalake
import duckdb

from benchmarks.lake_table import Fingerprint

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DeltaTarget", "Version", "first_equal", "micros"]

# The same texts as in MySQL: see `Orders`.
_HASH = """
SELECT count(*), coalesce(sum(('0x' || left(md5(concat_ws('|', id, customer_id, status, (amount * 100)::BIGINT,
  coalesce(round(discount * 1000000000)::BIGINT::VARCHAR, '~'), quantity, coalesce(note, '~'),
  coalesce((ordered_on::DATE - DATE '1970-01-01')::VARCHAR, '~'), epoch_us(created_at),
  epoch_us(updated_at))), 8))::BIGINT), 0)
FROM read_parquet($files)"""
_QUICK = "SELECT count(*), max(epoch_us(updated_at)) FROM read_parquet($files)"


class Version(NamedTuple):
    """A version of the table, the time of its commit in seconds since 1970, and its files."""

    number: int
    at: float
    files: Sequence[str]


class DeltaTarget:
    """A Delta table without deletion vectors. It may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: dict[int, Version] = {}
        self._quick: dict[int, tuple[int, int]] = {}

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
        with _duckdb() as connection:
            where = ""
            if without:
                import pyarrow as pa

                connection.register("without", pa.table({"id": without}))
                where = " WHERE id NOT IN (SELECT id FROM without)"
            rows, hashes = _one(connection, _HASH + where, version)
        return Fingerprint(rows, int(hashes))


def micros(at: datetime) -> int:
    """Microseconds since 1970 of a time in UTC without a zone."""
    passed = at - datetime(1970, 1, 1)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def first_equal(target: DeltaTarget, found: Version) -> Version:
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
