"""What a query promises its sink, and what it asks of its sources when old rows change (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.model.nodes import (
    Node,
    SourceNode,
    UnionNode,
    WatermarkNode,
)
from backlog_spark.model.trees import sources_of
from backlog_spark.spi.source_info import FILLS_COLUMNS, REWRITING_ALTER

if TYPE_CHECKING:
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["Promises", "refuse_rows_again"]


def refuse_rows_again(node: Node, infos: Sequence[SourceInfo | None]) -> None:
    """Refuse sources that may give rows once more to keyed operators.

    Raises
    ------
    BacklogError
        Names the option.
    """
    if not node.is_keyed:
        return
    if any(info is not None and info.reads_again for info in infos):
        raise BacklogError(
            "A source of this query may give rows again (signal.table). Keyed operators would count them twice.",
            "Leave out signal.table, or write the rows to a Delta table and aggregate that.",
        )
    for spec in sources_of(node):
        asked = {name.lower(): value for name, value in spec.options.items()}.get(REWRITING_ALTER.lower(), "")
        if asked.strip().lower() == "snapshot":
            raise SettingError(
                REWRITING_ALTER, asked, "the source would give rows again, and keyed operators would count them twice.",
                "Leave it out: the query then stops at such a statement. Or set ignore.",
            )  # fmt: skip


class Promises:
    """The promises of one query.

    Parameters
    ----------
    node : Node
        The query.
    infos : sequence of SourceInfo or None
        Of its sources, in order.
    keeps_newest : bool
        `Sink.keeps_newest` of any target.
    fills : callable
        `Sink.fills` of all targets.
    """

    def __init__(
        self,
        node: Node,
        infos: Sequence[SourceInfo | None],
        *,
        keeps_newest: bool,
        fills: Callable[[bool], bool],
    ) -> None:
        self._node = node
        self._infos = infos
        self._keeps_newest = keeps_newest
        self._fills = fills
        self._reads_only_sources = all(isinstance(leaf, SourceNode) for leaf in node.walk() if not leaf.parents)

    @property
    def is_of_one_table(self) -> bool:
        """`SinkContext.of_one_table`."""
        info = self._infos[0] if len(self._infos) == 1 else None
        return bool(info and info.of_one_table and self._reads_only_sources)

    def is_unique_in_backlog(self, keys: Collection[str]) -> bool:
        """`SinkContext.key_is_unique_in_backlog`: one source, rows unchanged, and the sink's key is the source's."""
        info = self._infos[0] if len(self._infos) == 1 else None
        return bool(
            info
            and info.unique_in_backlog
            and isinstance(self._node, SourceNode)
            and {key.lower() for key in keys} == {key.lower() for key in info.key}
        )

    @property
    def snapshots(self) -> tuple[tuple[str, str], ...]:
        """The tables whose complete snapshots the sink gets.

        Results of keyed operators need not have each of their keys again at the end of a snapshot.
        """
        if self._node.is_keyed or not self._reads_only_sources:
            return ()
        every = [() if info is None else info.snapshot_of for info in self._infos]
        return tuple(dict.fromkeys(name for names in every for name in names)) if all(every) else ()

    @property
    def of_old_rows(self) -> Mapping[str, str]:
        """Options for a source that notices that old rows have other values by now.

        Rows that come again are upserts. Only a sink of the newest rows can use them, and only if it gets each of them:
        a filter would keep those from it that do not pass any more.
        """
        if self._node.is_keyed:
            return {REWRITING_ALTER: "stop", FILLS_COLUMNS: "nothing"}  # an operator's rows lack the new column
        if not self._keeps_newest:
            return {REWRITING_ALTER: "ignore"}
        if isinstance(self._node, SourceNode) and self._fills(self.is_of_one_table):
            return {FILLS_COLUMNS: "sink"}
        if all(isinstance(node, SourceNode | UnionNode | WatermarkNode) for node in self._node.walk()):
            return {}
        return {REWRITING_ALTER: "stop", FILLS_COLUMNS: "again"}
