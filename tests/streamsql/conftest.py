"""Fixtures for the tests of SQL: streams of each kind, which no query reads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import backlog_spark as bs
from tests.operators.conftest import _scripted, small_plans  # noqa: F401
from tests.operators.events import DELAY, EPOCH, events, source
from tests.operators.scripted import append

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = pa.schema(
    [
        ("id", pa.int64()),
        ("user", pa.string()),
        ("amount", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("_change_type", pa.string()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
        ("_commit_seq", pa.int64()),
    ]
)
"""As of ``mysql_cdc``."""


def change(kind: str, seq: int, identity: int, user: str, amount: int | None) -> tuple[Any, ...]:
    """A row of `CHANGES`."""
    at = EPOCH + dt.timedelta(seconds=seq)
    return identity, user, amount, at, kind, at, seq


@pytest.fixture(scope="session")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bs.BacklogStream]:
    """``a``, ``b``: events with their time; ``plain``: without; ``orders``: a change stream with its time."""
    root = tmp_path_factory.mktemp("streams")
    for name in "ab":
        append(root / name, events(1, 3, 0), backlog=False)
    rows = [change("insert", 1, 1, "ann", 5)]
    append(root / "orders", pa.table(list(zip(*rows, strict=True)), schema=CHANGES), backlog=False)
    orders = bs.source("scripted", name="orders", path=root / "orders")
    return {
        "a": source(root, "a"),
        "b": source(root, "b"),
        "plain": bs.source("scripted", name="plain", path=root / "a"),
        "orders": orders.with_watermark("at", DELAY),
    }


@pytest.fixture
def few_groups(spark: SparkSession) -> Iterator[None]:
    """Each key group costs a batch a call."""
    spark.conf.set("spark.backlog.keyGroups", "4")
    yield
    spark.conf.unset("spark.backlog.keyGroups")
