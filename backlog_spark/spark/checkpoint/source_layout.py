"""Finds the sources of a query in Spark's offset log and in its progress events.

Spark's offset log has an entry for each *position* at which a plan reads a source: a DataFrame that is united with
itself has two. Progress events list each source once, by its *number*. Counting the sources in a query's tree gives
neither. So sources are matched by identity: by the relation that Spark's plan has for each.

At the next start Spark gives the offset at a position to the source that is then at this position. So the checkpoint
keeps the layout, and a query with another layout is refused.

Reaches for: the leaves of a DataFrame's analysed plan (``QueryExecution.analyzed``; seen in Spark 4.2). There is no
fallback: counting sources would read some from the offset of another, so the query is refused.

Source: Spark 4.2, ``MicroBatchExecution.logicalPlan`` and ``ProgressContext``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backlog_spark.decide.query_record import LAYOUT_VERSION, QueryRecord, check_layout_version
from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import (
    FrameNode,
    KeyedNode,
    Node,
    SourceNode,
)
from backlog_spark.spark.jvm.internals import require
from backlog_spark.spark.jvm.py4j_helpers import streaming_relations
from backlog_spark.spi.offset_flags import BatchFlags

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.decide.reports import ProgressReport
    from backlog_spark.spark.checkpoint.logs import Checkpoint
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["DeclaredSources", "SourceLayout", "recorded_query"]

# File name in the checkpoint.
_FILE = "sources"
_QUERY = "query"


@dataclass(frozen=True)
class SourceLayout:
    """Positions and numbers of a query's sources in one plan.

    Parameters
    ----------
    names : tuple of str
        The declared sources, in the order of the tree. A source that is read twice is listed twice.
    positions : tuple of int
        The position of each in Spark's offset log, from 0. If a source has several positions, its first one.
    numbers : tuple of int
        The number of each in Spark's progress events, from 0.
    foreign : frozenset of int
        Numbers of the sources of streaming DataFrames, which carry no flag.
    inner : frozenset of int
        Numbers of our own sources: seeds and control sources.
    """

    names: tuple[str, ...]
    positions: tuple[int, ...]
    numbers: tuple[int, ...]
    foreign: frozenset[int]
    inner: frozenset[int]

    def to_json(self) -> dict[str, Any]:
        """The form that the checkpoint keeps, without numbers: they follow from the plan."""
        return {"version": LAYOUT_VERSION, "names": list(self.names), "positions": list(self.positions)}

    def check(self, kept: Mapping[str, Any]) -> None:
        """Check that the sources have the positions that they have in the checkpoint.

        Raises
        ------
        BacklogError
            Spark would give a source the offset of another one.
        """
        before, now = _by_name(kept["names"], kept["positions"]), _by_name(self.names, self.positions)
        moved = [name for name in now if name in before and now[name] != before[name]]
        if moved or sorted(before.values()) != sorted(now.values()):
            raise BacklogError(
                f"The checkpoint has the sources {_listed(before)}; the query has {_listed(now)}. Spark would continue "
                "reading one of them from the offset of another.",
                "Keep the query's sources, and the DataFrames united with them, in the order of its first start, or "
                "start with a new checkpoint.",
            )

    @property
    def count(self) -> int:
        """The number of sources in a progress event."""
        return len({*self.numbers, *self.foreign, *self.inner})


def recorded_query(checkpoint: Checkpoint) -> QueryRecord | None:
    """What the query of a checkpoint was made of; None before its first run."""
    kept = checkpoint.newest_metadata(_FILE) or {}
    return QueryRecord.from_json(kept[_QUERY]) if _QUERY in kept else None


class DeclaredSources:
    """The declared sources of one query over all its runs: their positions, and the flags in their offsets.

    Parameters
    ----------
    checkpoint : Checkpoint
    root : Node
    infos : sequence of (SourceInfo or None)
        The connectors' descriptions of the sources, in the order of the tree.
    record : QueryRecord, optional
        What the query is made of. The checkpoint keeps it with the positions.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        root: Node,
        infos: Sequence[SourceInfo | None],
        record: QueryRecord | None = None,
    ) -> None:
        self._record = record
        self._checkpoint = checkpoint
        self._root = root
        self._infos = infos
        self._loaded: list[tuple[SourceNode, DataFrame]] = []
        self._positions: Sequence[int] | None = None
        self._layout: SourceLayout | None = None

    # -- positions -----------------------------------------------------------------------------------------

    def recall(self, has_moved: Callable[[str], bool] = lambda output: False) -> None:
        """Read the sources' positions in the offset log from the checkpoint. Called once, before the first run.

        Parameters
        ----------
        has_moved : callable
            See `QueryRecord.check`.

        Raises
        ------
        BacklogError
            If the checkpoint has batches, but not the positions; or if it was made by another query (`QueryRecord`).
        """
        require("source layout")
        kept = self._kept()
        newest = self._checkpoint.latest_batch()
        if kept is None and newest is not None:
            raise BacklogError(
                f"The checkpoint has batches up to {newest}, but no backlog/{_FILE}-….json with the positions of the "
                "sources: it was made by plain Spark or by an older version, or the file was deleted.",
                "Restore the file, or start with a new checkpointLocation.",
            )
        self._positions = None if kept is None else kept["positions"]
        # Older versions did not record it. The first run does.
        if kept is not None and newest is not None and self._record is not None and _QUERY in kept:
            QueryRecord.from_json(kept[_QUERY]).check(self._record, has_moved)

    def load_again(self) -> None:
        """Prepare another run: forget the sources that were loaded for the last one."""
        self._loaded = []

    def add(self, node: SourceNode, frame: DataFrame) -> None:
        """Add a declared source that was loaded for the run that is being prepared."""
        self._loaded.append((node, frame))

    def settle(self, plan: DataFrame) -> bool:
        """Find the sources in the plan of a run and compare them with the checkpoint. True for the first run.

        Raises
        ------
        BacklogError
            The plan does not read exactly the sources of the tree; or Spark would give a source the offset of another
            one.
        """
        first, layout = self._layout is None, self._layout_of(plan)
        kept = self._kept()
        wanted = layout.to_json() | ({} if self._record is None else {_QUERY: self._record.to_json()})
        if kept != wanted:
            if kept is not None and self._checkpoint.latest_batch() is not None:
                layout.check(kept)
            self._checkpoint.replace_metadata(_FILE, wanted)
        self._layout, self._positions = layout, layout.positions
        return first

    def _kept(self) -> dict[str, Any] | None:
        kept = self._checkpoint.newest_metadata(_FILE)
        if kept is not None:
            check_layout_version(kept)
        return kept

    def _layout_of(self, plan: DataFrame) -> SourceLayout:
        relations = streaming_relations(plan)
        numbers = _numbers(relations)
        names: list[str] = []
        positions: list[int] = []
        for node, frame in self._visited():
            (relation,) = streaming_relations(frame)
            at = _index(relation, relations)
            if at is None:
                raise BacklogError(
                    f"The query does not read the source {node.spec.name!r}, though it declares it.",
                    "A transform dropped it: return a DataFrame that is derived from the transform's argument.",
                )
            names.append(node.spec.name)
            positions.append(at)
        frames = [node.frame for node in self._root.walk() if isinstance(node, FrameNode)]
        found = (_index(relation, relations) for frame in frames for relation in streaming_relations(frame))
        foreign = frozenset(numbers[at] for at in found if at is not None)
        known = {*(numbers[at] for at in positions), *foreign}
        inner = frozenset(numbers) - known
        # Our own sources: seeds, and the control source of an operator that needs time.
        expected = sum(1 + node.is_timed for node in self._root.walk() if isinstance(node, KeyedNode))
        if len(inner) != expected:
            raise BacklogError(
                f"The query reads {len(inner) - expected} more streaming sources than it declares: a transform brings "
                "in another stream, or joins its own with itself.",
                "Unite the other stream with .union(bs.stream(df)), or join it by key.",
            )
        return SourceLayout(tuple(names), tuple(positions), tuple(numbers[at] for at in positions), foreign, inner)

    def _visited(self) -> Iterator[tuple[SourceNode, DataFrame]]:
        """The declared sources in the order of the tree, each with the DataFrame that was loaded for it."""
        left = list(self._loaded)
        last: dict[int, DataFrame] = {}
        for node in self._root.walk():
            if not isinstance(node, SourceNode):
                continue
            at = next((i for i, (each, _) in enumerate(left) if each is node), None)
            if at is not None:
                last[id(node)] = left.pop(at)[1]
            yield node, last[id(node)]

    # -- flags in offsets ----------------------------------------------------------------------------------

    def flags_at(self, batch_id: int | None = None) -> BatchFlags:
        """What the offsets say about a batch, for each source; default: the newest planned batch.

        An entry of the offset log never changes, so a replay of the batch gets the same answer.

        Raises
        ------
        BacklogError
            The offset log has no such batch.
        """
        newest = self._checkpoint.latest_batch() if batch_id is None else batch_id
        ends = None if newest is None else self._checkpoint.offsets(newest)
        if ends is None and batch_id is not None:
            raise BacklogError(
                f"The offset log of {self._checkpoint.location} has no batch {batch_id} "
                f"(newest: {self._checkpoint.latest_batch()}).",
                "Ask only for a batch that Spark has planned, with the checkpointLocation of that query.",
            )
        starts = self._checkpoint.offsets(newest - 1) if newest else None
        first = [info is not None and info.starts_in_backlog for info in self._infos]
        others = [
            (starts[at] if starts and at < len(starts) else None, end)
            for at, end in enumerate(ends or ())
            if at not in (self._positions or ())
        ]
        return BatchFlags(self._of_declared(starts), self._of_declared(ends), first, others)

    def offsets(self) -> list[dict[str, Any] | None]:
        """The newest planned batch's end offset of each source; None for a source that has none."""
        newest = self._checkpoint.latest_batch()
        return self._of_declared(None if newest is None else self._checkpoint.offsets(newest))

    def _of_declared(self, offsets: Sequence[dict[str, Any] | None] | None) -> list[dict[str, Any] | None]:
        if self._positions is None or offsets is None:
            return [None] * len(self._infos)
        return [offsets[position] if position < len(offsets) else None for position in self._positions]

    # -- numbers in progress events; after `settle` ----------------------------------------------------------

    @property
    def foreign(self) -> frozenset[int]:
        """Numbers of the sources of streaming DataFrames, which carry no flag."""
        return self._settled.foreign

    def flags_by_number(self) -> dict[int, bool]:
        """Whether each source is processing backlog after the newest planned batch, by number."""
        return dict(zip(self._settled.numbers, self.flags_at().in_backlog, strict=True))

    def names_by_number(self) -> dict[int, str]:
        """Names of the sources, by number."""
        return dict(zip(self._settled.numbers, self._settled.names, strict=True))

    def reported(self, report: ProgressReport) -> ProgressReport:
        """A report without our own sources, whose rows are state.

        Raises
        ------
        BacklogError
            Spark lists other sources than the plan has. Flags would be taken from the wrong ones.
        """
        layout = self._settled
        if len(report.sources) != layout.count:
            raise BacklogError(
                f"Spark reports on {len(report.sources)} sources of a plan that has {layout.count}.",
                "Use a supported version of Spark: see setup.cfg.",
            )
        return replace(report, sources=tuple(s for s in report.sources if s.index not in layout.inner))

    @property
    def _settled(self) -> SourceLayout:
        assert self._layout is not None, "settle comes first"
        return self._layout


def _numbers(relations: Sequence[Any]) -> list[int]:
    """The number of the source at each position. Sources are numbered in the order of their first positions."""
    first = [_index(relation, relations) for relation in relations]
    order = {at: number for number, at in enumerate(dict.fromkeys(first))}
    return [order[at] for at in first]


def _index(relation: Any, relations: Sequence[Any]) -> int | None:
    """The first position of a relation, by which Spark identifies it."""
    code = relation[0]
    return next((at for at, (other, java) in enumerate(relations) if other == code and java.equals(relation[1])), None)


def _by_name(names: Sequence[str], positions: Sequence[int]) -> dict[str, int]:
    """The positions by name. A repeated name gets a number."""
    found: dict[str, int] = {}
    for name, position in zip(names, positions, strict=True):
        again = sum(each == name or each.startswith(f"{name} (") for each in found)
        found[f"{name} ({again + 1})" if again else name] = position
    return found


def _listed(positions: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} at position {position}" for name, position in positions.items()) or "none"
