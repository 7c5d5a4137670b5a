"""What a query promises its sink and asks of its sources, for each form of the query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backlog_spark.decide.promises import Promises, refuse_rows_again
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import (
    SourceNode,
    SourceSpec,
    TransformNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.spi.source_info import SourceInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backlog_spark.model.nodes import Node

ORDERS = SourceInfo(key=("Id",), unique_in_backlog=True, of_one_table=True, snapshot_of=(("shop", "orders"),))
USERS = SourceInfo(key=("id",), of_one_table=True, snapshot_of=(("shop", "users"),))
FILES = SourceInfo()


def source(info: SourceInfo | None = ORDERS, **options: str) -> SourceNode:
    return SourceNode(SourceSpec("mysql_cdc", "orders", options), info)


def keyed() -> Node:
    class _Keyed(TransformNode):
        is_keyed = True

    return _Keyed(source(), lambda frame: frame, "sum")


def promises(node: Node, *infos: SourceInfo | None, newest: bool = True) -> Promises:
    found = infos or (ORDERS,)
    return Promises(node, found, keeps_newest=newest, fills=lambda of_one_table: of_one_table)


STOP, IGNORE = {"rewritingAlter": "stop"}, {"rewritingAlter": "ignore"}
FILTERED = TransformNode(source(), lambda frame: frame, "filter")


@pytest.mark.parametrize(
    ("node", "infos", "newest", "asked"),
    [
        (source(), (ORDERS,), True, {"fillsColumns": "sink"}),
        (source(), (SourceInfo(),), True, {}),
        (UnionNode((source(), source())), (ORDERS, USERS), True, {}),
        (WatermarkNode(source(), "at", 0), (ORDERS,), True, {}),
        (FILTERED, (ORDERS,), True, {**STOP, "fillsColumns": "again"}),
        (UnionNode((FILTERED, source())), (ORDERS, USERS), True, {**STOP, "fillsColumns": "again"}),
        (source(), (ORDERS,), False, IGNORE),
        (FILTERED, (ORDERS,), False, IGNORE),
        (keyed(), (ORDERS,), True, {**STOP, "fillsColumns": "nothing"}),
        (keyed(), (ORDERS,), False, {**STOP, "fillsColumns": "nothing"}),
    ],
)
def test_rows_come_again_only_to_a_sink_that_gets_each_of_them(
    node: Node, infos: tuple[SourceInfo, ...], newest: bool, asked: Mapping[str, str]
) -> None:
    assert promises(node, *infos, newest=newest).of_old_rows == asked


def test_backlog_is_unique_if_its_rows_reach_the_sink_unchanged_by_their_own_key() -> None:
    assert promises(source()).is_unique_in_backlog(("id",))
    assert not promises(source()).is_unique_in_backlog(("n",))
    assert not promises(FILTERED).is_unique_in_backlog(("id",))
    assert not promises(source(), USERS).is_unique_in_backlog(("id",))
    assert not promises(UnionNode((source(), source())), ORDERS, ORDERS).is_unique_in_backlog(("id",))


def test_snapshots_are_those_of_sources_that_all_have_one() -> None:
    both = UnionNode((source(), source(USERS)))
    assert promises(both, ORDERS, USERS).snapshots == (("shop", "orders"), ("shop", "users"))
    assert promises(both, ORDERS, FILES).snapshots == ()
    assert promises(both, ORDERS, None).snapshots == ()
    assert promises(FILTERED).snapshots == (("shop", "orders"),)
    assert promises(keyed()).snapshots == ()


def test_one_table_is_that_of_a_single_source() -> None:
    assert promises(FILTERED).is_of_one_table
    assert not promises(UnionNode((source(), source(USERS))), ORDERS, USERS).is_of_one_table


def test_keyed_operators_refuse_rows_again() -> None:
    refuse_rows_again(source(rewritingAlter="snapshot"), [SourceInfo(reads_again=True)])
    with pytest.raises(BacklogError, match=r"signal\.table"):
        refuse_rows_again(keyed(), [SourceInfo(reads_again=True)])
    asked = keyed()
    object.__setattr__(asked, "parent", source(REWRITINGALTER=" Snapshot "))
    with pytest.raises(SettingError, match="count them twice"):
        refuse_rows_again(asked, [ORDERS])
