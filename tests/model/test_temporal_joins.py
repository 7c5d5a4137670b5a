"""The planner's rules of FLIP-326, as a table."""

from __future__ import annotations

import pytest

import backlog_spark as bs
from backlog_spark.connectors.hybrid import inspect
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.errors import BacklogError
from backlog_spark.model.plan_checks import check_tree
from backlog_spark.model.temporal_joins import TemporalJoinKind, choose_temporal_join
from backlog_spark.model.trees import informed
from backlog_spark.spi import SourceInfo
from backlog_spark.spi.source_info import WatermarkCharacteristic

ANY, UNDEFINED = WatermarkCharacteristic.ANY_WATERMARK, WatermarkCharacteristic.UNDEFINED
EVENT_TIME, WAITING, AT_ONCE = TemporalJoinKind


@pytest.mark.parametrize(
    ("probe", "build", "event_time", "wait", "expected"),
    [
        (ANY, ANY, True, True, EVENT_TIME),
        (ANY, UNDEFINED, True, True, EVENT_TIME),
        (UNDEFINED, UNDEFINED, True, False, EVENT_TIME),
        (ANY, ANY, False, True, WAITING),
        (ANY, UNDEFINED, False, True, None),
        (UNDEFINED, ANY, False, True, None),
        (UNDEFINED, UNDEFINED, False, True, None),
        (ANY, ANY, False, False, AT_ONCE),
        (UNDEFINED, ANY, False, False, AT_ONCE),
        (UNDEFINED, UNDEFINED, False, False, AT_ONCE),
    ],
)
def test_the_choice(
    probe: WatermarkCharacteristic,
    build: WatermarkCharacteristic,
    event_time: bool,
    wait: bool,
    expected: TemporalJoinKind | None,
) -> None:
    given = {"clicks": probe, "users": build}
    if expected is not None:
        assert choose_temporal_join(given, event_time=event_time, wait=wait) is expected
        return
    named = ", ".join(name for name, each in given.items() if each is UNDEFINED)
    with pytest.raises(BacklogError, match=f"characteristic of {named} is UNDEFINED.*use_processing_time=True"):
        choose_temporal_join(given, event_time=event_time, wait=wait)


def test_a_connector_says_its_own() -> None:
    """The connector reports it in its `SourceInfo`, at the start. FLIP-326's default is UNDEFINED."""
    clicks, users = (bs.source("mysql_cdc", name=name) for name in ("clicks", "users"))
    waiting = clicks.temporal_join(users, on="id")._node
    any_watermark = SourceInfo(watermark_characteristic=ANY)
    check_tree(informed(waiting, [any_watermark, any_watermark]))
    with pytest.raises(BacklogError, match=r"characteristic of users is UNDEFINED.*SourceInfo says ANY_WATERMARK"):
        check_tree(informed(waiting, [any_watermark, SourceInfo()]))
    at_once = clicks.temporal_join(users, on="id", wait=False)._node
    check_tree(informed(at_once, [SourceInfo(), SourceInfo()]))
    # Of a format without a connector nothing is told at the start either.
    with pytest.raises(BacklogError, match="characteristic of rate is UNDEFINED"):
        clicks.temporal_join(bs.source("rate", name="rate"), on="id")
    with pytest.raises(BacklogError, match="uses processing time, and its watermark characteristic is UNDEFINED"):
        SourceInfo(use_processing_time=True)


def test_a_source_that_is_read_twice_stays_one() -> None:
    shared = bs.source("mysql_cdc", name="a")
    node = informed(shared.filter("x").union(shared, shared.filter("y"))._node, [SourceInfo()] * 3)
    assert len({id(leaf) for leaf in node.walk() if not leaf.parents}) == 1
    assert [leaf.spec.name for leaf in node.walk() if not leaf.parents] == ["a"] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["TRUE", "false"])
def test_our_connectors_say_theirs(text: str) -> None:
    files = {"phases": "files", "path": "/lake/orders", "metadataLocation": "/lake/m"}
    found = inspect({**files, "useProcessingTimeAfterBacklog": text})
    assert (found.watermark_characteristic, found.use_processing_time) == (ANY, text == "TRUE")
    mysql = {"host": "db", "user": "reader", "table": "shop.orders", "useProcessingTimeDuringBinlog": text}
    assert MySqlOptions.parse(mysql).by_clock is (text == "TRUE")
