"""A database of its own on a real server, and batches of changes for it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from backlog_spark.sinks import BatchInfo, JdbcUpsert, SinkContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from servers.mysql import MySQLServer
    from servers.postgres import PostgresServer

SCHEMA = (
    StructType()
    .add("id", LongType())
    .add("name", StringType())
    .add("_change_type", StringType())
    .add("_commit_timestamp", TimestampType())
    .add("_commit_seq", LongType())
)
Change = tuple[int | None, str | None, str, int | None]
# Roads of a batch: executors and a staging table, or the driver.
STAGED, LIVE = True, False


def changes(spark: SparkSession, *rows: Change) -> DataFrame:
    """A batch of (id, name, change type, sequence)."""
    return spark.createDataFrame([(key, name, kind, None, seq) for key, name, kind, seq in rows], SCHEMA)


@dataclass
class Target:
    """A database of its own.

    Parameters
    ----------
    server : MySQLServer or PostgresServer
    scheme : str
        Of its URL.
    """

    server: MySQLServer | PostgresServer
    scheme: str
    database: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")

    def __post_init__(self) -> None:
        self.server.execute(f"CREATE DATABASE {self.database}")

    @property
    def is_postgres(self) -> bool:
        return self.scheme == "postgresql"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.port}/{self.database}"

    def run(self, sql: str, args: Sequence[Any] | None = None, **settings: Any) -> list[tuple[Any, ...]]:
        """A statement in this database. Names are in double quotes."""
        if self.is_postgres:
            return list(self.server.execute(sql, args, **{"dbname": self.database, **settings}))
        session = {"database": self.database, "init_command": "SET sql_mode = 'ANSI_QUOTES', time_zone = '+00:00'"}
        with self.server.connect(**{**session, **settings}) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return list(cursor.fetchall())

    def rows(self, table: str = "t", columns: str = "id, name") -> Counter[tuple[Any, ...]]:
        """The table as a multiset."""
        return Counter(self.run(f'SELECT {columns} FROM "{table}"'))

    def marks(self) -> list[tuple[Any, ...]]:
        return sorted(self.run('SELECT app_id, table_name, batch_id FROM "_backlog_spark_marks"'))

    def tables(self) -> set[str]:
        """The names of all tables."""
        schema = "public" if self.is_postgres else self.database
        found = self.run("SELECT table_name FROM information_schema.tables WHERE table_schema = %s", (schema,))
        return {name for (name,) in found}

    def sink(self, table: str = "t", keys: Sequence[str] = ("id",), **more: Any) -> JdbcUpsert:
        given = {"user": self.server.user, "ssl_mode": "disabled", **more}
        return JdbcUpsert(given.pop("url", self.url), table, list(keys), **given)

    def opened(self, spark: SparkSession, *args: Any, context: dict[str, Any] | None = None, **more: Any) -> JdbcUpsert:
        """A sink that is open for batches of SCHEMA."""
        sink = self.sink(*args, **more)
        sink.open(SinkContext(**{**self.context(spark), **(context or {})}))
        return sink

    def context(self, spark: SparkSession) -> dict[str, Any]:
        return {"spark": spark, "txn_app_id": "app", "schema": SCHEMA, "key_is_unique_in_backlog": False}

    def drop(self) -> None:
        force = " WITH (FORCE)" if self.is_postgres else ""
        self.server.execute(f"DROP DATABASE {self.database}{force}")


def batch(number: int, is_backlog: bool = LIVE, **more: Any) -> BatchInfo:
    return BatchInfo(number, is_backlog, **more)


def writer_of(sink: JdbcUpsert) -> str:
    assert sink.written is not None
    return sink.written.writer
