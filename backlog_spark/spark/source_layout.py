"""Which source of a query is which in Spark's offset log and in its progress events.

Spark's offset log has an entry for each *place* where a plan reads a source: a DataFrame that is united with itself has
two. Progress events list each source once, by its *number*. Counting sources in the tree of a query gives neither. So
sources are matched by identity: by the relation that Spark's plan has for each.

At the next start Spark gives the offset at a place to the source that stands there then. So the checkpoint keeps the
layout, and a query with another one is refused.

Source: Spark 4.2, ``MicroBatchExecution.logicalPlan`` and ``ProgressContext``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backlog_spark.errors import BacklogError
from backlog_spark.model.nodes import FrameNode, KeyedNode, Node, SourceNode
from backlog_spark.spark.py4j_helpers import streaming_relations
from backlog_spark.spi import offset_flags

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backlog_spark.decide.reports import ProgressReport
    from backlog_spark.spark.checkpoint import Checkpoint
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["DeclaredSources", "SourceLayout"]

# In the checkpoint.
_FILE = "sources"
_VERSION = 1


@dataclass(frozen=True)
class SourceLayout:
    """Where the sources of one query are in one plan.

    Parameters
    ----------
    names : tuple of str
        The declared sources, in the order of the tree. One that is read twice stands here twice.
    places : tuple of int
        The place of each in Spark's offset log, from 0. Of a source with several places it is the first one.
    numbers : tuple of int
        The number of each in Spark's progress events, from 0.
    foreign : frozenset of int
        Numbers of the sources of streaming DataFrames, which carry no flag.
    inner : frozenset of int
        Numbers of our own: seeds and control sources.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    numbers: tuple[int, ...]
    foreign: frozenset[int]
    inner: frozenset[int]

    def to_json(self) -> dict[str, Any]:
        """As kept in the checkpoint. Numbers are not kept: they follow from the plan."""
        return {"version": _VERSION, "names": list(self.names), "places": list(self.places)}

    def check(self, kept: Mapping[str, Any]) -> None:
        """See that the sources stand where the checkpoint has them.

        Raises
        ------
        BacklogError
            If Spark would give a source the offset of another one.
        """
        before, now = _by_name(kept["names"], kept["places"]), _by_name(self.names, self.places)
        moved = [name for name in now if name in before and now[name] != before[name]]
        if moved or sorted(before.values()) != sorted(now.values()):
            raise BacklogError(
                f"The checkpoint has the sources {_listed(before)}; the query has {_listed(now)}. Spark would go on "
                "reading one of them from the offset of another.",
                "Give the query its sources, and the DataFrames united with them, in the order that it was started "
                "with, or start with a new checkpoint.",
            )

    @property
    def count(self) -> int:
        """How many sources a progress event lists."""
        return len({*self.numbers, *self.foreign, *self.inner})


class DeclaredSources:
    """The declared sources of one query, over all its runs: where they are, and what their offsets say.

    Parameters
    ----------
    checkpoint : Checkpoint
    root : Node
    infos : sequence of (SourceInfo or None)
        What the connectors say of them, in the order of the tree.
    """

    def __init__(self, checkpoint: Checkpoint, root: Node, infos: Sequence[SourceInfo | None]) -> None:
        self._checkpoint = checkpoint
        self._root = root
        self._infos = infos
        self._loaded: list[tuple[SourceNode, DataFrame]] = []
        self._places: Sequence[int] | None = None
        self._layout: SourceLayout | None = None

    # -- where they are ------------------------------------------------------------------------------------

    def recall(self) -> None:
        """Read where they are in the offset log, if they have been there. Called once, before the first run.

        Raises
        ------
        BacklogError
            If the checkpoint has batches and does not say it.
        """
        kept = self._kept()
        newest = self._checkpoint.latest_batch()
        if kept is None and newest is not None:
            raise BacklogError(
                f"The checkpoint has batches up to {newest}, but no backlog/{_FILE}-….json that says which source is "
                "which: it was made by plain Spark or by an older version, or the file was deleted.",
                "Restore the file, or start with a new checkpointLocation.",
            )
        self._places = None if kept is None else kept["places"]

    def load_again(self) -> None:
        """A run is being prepared: what was loaded for the last one does not count."""
        self._loaded = []

    def add(self, node: SourceNode, frame: DataFrame) -> None:
        """A declared source has been loaded for the run that is being prepared."""
        self._loaded.append((node, frame))

    def settle(self, plan: DataFrame) -> bool:
        """Find the sources in the plan of a run, and see that the checkpoint has the same. True for the first run.

        Raises
        ------
        BacklogError
            If the plan does not read the sources of the tree and no others, or if Spark would give a source the offset
            of another one.
        """
        first, layout = self._layout is None, self._layout_of(plan)
        kept = self._kept()
        if kept != layout.to_json():
            if kept is not None and self._checkpoint.latest_batch() is not None:
                layout.check(kept)
            self._checkpoint.replace_metadata(_FILE, layout.to_json())
        self._layout, self._places = layout, layout.places
        return first

    def _kept(self) -> dict[str, Any] | None:
        kept = self._checkpoint.newest_metadata(_FILE)
        if kept is not None and kept.get("version") != _VERSION:
            raise BacklogError(
                f"backlog/{_FILE}-….json of the checkpoint has the version {kept.get('version')!r}.",
                "Go on with the version of backlog_spark that wrote it.",
            )
        return kept

    def _layout_of(self, plan: DataFrame) -> SourceLayout:
        relations = streaming_relations(plan)
        numbers = _numbers(relations)
        names: list[str] = []
        places: list[int] = []
        for node, frame in self._visited():
            (relation,) = streaming_relations(frame)
            at = _index(relation, relations)
            if at is None:
                raise BacklogError(
                    f"The query does not read the source {node.spec.name!r}, though it has it.",
                    "A transform left its rows out: return a DataFrame made of the one that the transform is given.",
                )
            names.append(node.spec.name)
            places.append(at)
        frames = [node.frame for node in self._root.walk() if isinstance(node, FrameNode)]
        found = (_index(relation, relations) for frame in frames for relation in streaming_relations(frame))
        foreign = frozenset(numbers[at] for at in found if at is not None)
        known = {*(numbers[at] for at in places), *foreign}
        inner = frozenset(numbers) - known
        # Seeds, and the control source of an operator that needs time.
        expected = sum(1 + node.is_timed for node in self._root.walk() if isinstance(node, KeyedNode))
        if len(inner) != expected:
            raise BacklogError(
                f"The query reads {len(inner) - expected} more streaming sources than it declares: a transform brings "
                "in another stream, or joins its own with itself.",
                "Unite the other stream by .union(bs.stream(df)), or join it by key.",
            )
        return SourceLayout(tuple(names), tuple(places), tuple(numbers[at] for at in places), foreign, inner)

    def _visited(self) -> Iterator[tuple[SourceNode, DataFrame]]:
        """The declared sources in the order of the tree, each with what was loaded for it there."""
        left = list(self._loaded)
        last: dict[int, DataFrame] = {}
        for node in self._root.walk():
            if not isinstance(node, SourceNode):
                continue
            at = next((i for i, (each, _) in enumerate(left) if each is node), None)
            if at is not None:
                last[id(node)] = left.pop(at)[1]
            yield node, last[id(node)]

    # -- what their offsets say ------------------------------------------------------------------------------

    def flags(self, batch_id: int | None = None) -> list[bool]:
        """Whether each is processing backlog, at the end of a batch or of the newest one."""
        found = zip(self._offsets(batch_id), self._infos, strict=True)
        return [
            offset_flags.is_processing_backlog(offset)
            if offset is not None
            else info is not None and info.starts_in_backlog
            for offset, info in found
        ]

    def finished(self, batch_id: int | None = None) -> list[bool]:
        """Whether each has come to its end, at the end of a batch or of the newest one."""
        return list(map(offset_flags.is_finished, self._offsets(batch_id)))

    def _offsets(self, batch_id: int | None) -> list[dict[str, Any] | None]:
        newest = self._checkpoint.latest_batch() if batch_id is None else batch_id
        offsets = (self._checkpoint.offsets(newest) if newest is not None else None) or []
        if self._places is None:
            return [None] * len(self._infos)
        return [offsets[place] if place < len(offsets) else None for place in self._places]

    # -- in progress events, of a run that has been settled ---------------------------------------------------

    @property
    def foreign(self) -> frozenset[int]:
        """Numbers of the sources of streaming DataFrames, which carry no flag."""
        return self._settled.foreign

    def flags_by_number(self) -> dict[int, bool]:
        """Whether each is processing backlog, by its number."""
        return dict(zip(self._settled.numbers, self.flags(), strict=True))

    def names_by_number(self) -> dict[int, str]:
        """Their names, by their numbers."""
        return dict(zip(self._settled.numbers, self._settled.names, strict=True))

    def reported(self, report: ProgressReport) -> ProgressReport:
        """A report without our own sources, whose rows are state.

        Raises
        ------
        BacklogError
            If Spark lists other sources than the plan has: flags would be read of the wrong ones.
        """
        layout = self._settled
        if len(report.sources) != layout.count:
            raise BacklogError(
                f"Spark reports on {len(report.sources)} sources of a plan that has {layout.count}.",
                "Use a version of Spark that is known: see setup.cfg.",
            )
        return replace(report, sources=tuple(s for s in report.sources if s.index not in layout.inner))

    @property
    def _settled(self) -> SourceLayout:
        assert self._layout is not None, "settle comes first"
        return self._layout


def _numbers(relations: Sequence[Any]) -> list[int]:
    """For each place the number of its source: of the first place on, one more for each that is new."""
    first = [_index(relation, relations) for relation in relations]
    order = {at: number for number, at in enumerate(dict.fromkeys(first))}
    return [order[at] for at in first]


def _index(relation: Any, relations: Sequence[Any]) -> int | None:
    """The first place of a relation: the one that Spark takes it for."""
    code = relation[0]
    return next((at for at, (other, java) in enumerate(relations) if other == code and java.equals(relation[1])), None)


def _by_name(names: Sequence[str], places: Sequence[int]) -> dict[str, int]:
    """The places by name; a name that comes again has a number."""
    found: dict[str, int] = {}
    for name, place in zip(names, places, strict=True):
        again = sum(each == name or each.startswith(f"{name} (") for each in found)
        found[f"{name} ({again + 1})" if again else name] = place
    return found


def _listed(places: Mapping[str, int]) -> str:
    return ", ".join(f"{name!r} at place {place}" for name, place in places.items()) or "none"
