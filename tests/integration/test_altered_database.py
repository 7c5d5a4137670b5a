"""Random ALTER TABLEs of all tables of a copied database: each Delta table equals its source, or the query names it.

The statements are those of tests/connectors/mysql_cdc/test_altered_random.py, which tries many more without Spark.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

import backlog_spark as bs
from backlog_spark.errors import BacklogError
from tests.connectors.mysql_cdc.altered import snapshot_of
from tests.connectors.mysql_cdc.replay import is_mariadb, options
from tests.connectors.mysql_cdc.schema.ddl.altering import FORMS, Attempt
from tests.connectors.mysql_cdc.test_altered_random import Round

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

_META = "_change_type,_commit_timestamp,_commit_seq,_database,_table,_columns"


class Copy:
    """Tables that random statements alter, and the query that copies them.

    Parameters
    ----------
    seed : int
    tables : int
    """

    def __init__(self, spark: SparkSession, server: MySQLServer, folder: Path, seed: int, tables: int) -> None:
        self._spark, self._server, self._folder = spark, server, folder
        self.rounds: dict[str, tuple[Round, Attempt]] = {}
        self.stopped: Counter[str] = Counter()
        forms = [f for f in FORMS if not f.only or (f.only == "mariadb") == is_mariadb(server)]
        chance = random.Random(seed)
        for number in range(tables):
            one = Round(server, chance.randrange(10**9), f"alter{number}")
            attempt = one.made(chance.choice(forms))
            if attempt is not None and self._is_readable(one.database):
                self.rounds[one.database] = one, attempt

    def _is_readable(self, database: str) -> bool:
        """Whether a snapshot can have all rows: some values, such as a date of zeros in a key, stop it."""
        try:
            snapshot_of(options(self._server, f"{database}.t", format="debezium"))
        except BacklogError:
            return False
        return True

    def start(self, *, target: str = "lake", ends: bool = False) -> bs.BacklogQuery:
        source = bs.source(
            "mysql_cdc", name="all", host="127.0.0.1", port=self._server.port, user="root",
            tablePattern="|".join(rf"{name}\.t" for name in self.rounds), format="debezium", metadataColumns=_META,
            chunkSize=3, maxRowsPerBatch=10,
        )  # fmt: skip
        write = source.write("all").option("checkpointLocation", str(self._folder / f"of-{target}"))
        write = write.trigger(available_now=True) if ends else write.trigger(processing_time="100 ms")
        return write.to(bs.DeltaTables(str(self._folder / target))).start(self._spark)

    def alter(self, names: list[str]) -> None:
        """Run some tables' statements, between changes of their rows."""
        for name in names:
            if name in self.rounds:
                one, attempt = self.rounds[name]
                one.change_rows(attempt)
                one.alter(attempt, lambda: None)
                one.change_rows(attempt)

    def follow(self, query: bs.BacklogQuery) -> bs.BacklogQuery:
        """Wait until the query has read all. A table that stops it is left out from then on."""
        while True:
            try:
                query.processAllAvailable()
                return query
            except (StreamingQueryException, BacklogError) as error:
                problem = str(error)
            if not self._goes_on(query):
                query.stop()
                self._leave_out(problem)
                query = self.start()

    @staticmethod
    def _goes_on(query: bs.BacklogQuery) -> bool:
        """Whether a query that has failed begins another run by itself."""
        try:
            query.awaitTermination(3)
        except (StreamingQueryException, BacklogError):
            return False
        return query.isActive

    def _leave_out(self, problem: str) -> None:
        problem = problem.partition("SQLSTATE")[0].strip().rpartition("\n")[2]
        named = {name for name in re.findall(r"alter\d+", problem) if name in self.rounds}
        assert len(named) == 1, f"it does not say which table: {problem}"
        self.stopped[re.sub(r"alter\d+|`.*?`|'.*?'|\d+", "…", problem)[:80]] += 1
        self.rounds.pop(named.pop())[0].close()

    def differences(self) -> list[str]:
        """Tables that a new copy has with other rows."""
        fresh = self.start(target="fresh", ends=True)
        fresh.awaitTermination(300)
        return [name for name in self.rounds if not self._is_equal(name)]

    def _is_equal(self, name: str) -> bool:
        fresh, kept = (self._folder / root / name / "t" for root in ("fresh", "lake"))
        if not (fresh / "_delta_log").exists():  # a table without rows
            return not (kept / "_delta_log").exists() or not self._read(kept).count()
        columns = self._read(fresh).columns
        return _rows(self._read(fresh), columns) == _rows(self._read(kept), columns)

    def _read(self, path: Path) -> Any:
        return self._spark.read.format("delta").load(str(path))

    def told(self, name: str) -> str:
        return "\n".join(self.rounds[name][0].told)

    def close(self) -> None:
        for one, _ in self.rounds.values():
            one.close()


def _rows(frame: Any, columns: list[str]) -> Counter[str]:
    return Counter(str(tuple(row)) for row in frame.select(*(f"`{name}`" for name in columns)).collect())


def _try(spark: SparkSession, server: MySQLServer, folder: Path, seed: int, tables: int) -> None:
    copy = Copy(spark, server, folder, seed, tables)
    names = list(copy.rounds)
    try:
        query = copy.start()
        try:
            copy.alter(names[::3])  # in the snapshot, or soon after it
            query = copy.follow(query)
            copy.alter(names[1::3])  # live
            query = copy.follow(query)
            query.stop()
            copy.alter(names[2::3])  # stopped
            query = copy.follow(copy.start())
        finally:
            query.stop()
        print(seed, {"equal": len(copy.rounds), "stopped": sum(copy.stopped.values()), **copy.stopped})
        different = copy.differences()
        assert not different, "\n\n".join(copy.told(name) for name in different)
        assert len(copy.rounds) > tables // 3
    finally:
        copy.close()


@pytest.mark.grid
def test_each_altered_table_of_a_copied_database_equals_its_source(
    spark: SparkSession, mysql: MySQLServer, tmp_path: Path
) -> None:
    _try(spark, mysql, tmp_path, 1, 9)


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(2, 12))
def test_each_of_many_altered_tables_equals_its_source(
    spark: SparkSession, pool: Callable[..., MySQLServer], tmp_path: Path, seed: int
) -> None:
    from servers.mariadb import MariaDBServer
    from servers.mysql import MySQLServer

    _try(spark, pool(MySQLServer if seed % 2 else MariaDBServer), tmp_path, seed, 24)
