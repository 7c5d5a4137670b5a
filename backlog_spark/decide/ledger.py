"""The ledger of a keyed query: which batch ran in which vehicle, and which state was handed over (pure).

It is kept as ``<checkpoint>/backlog/plan-<n>.json``, written before each run; the newest counts. A batch that is logged
but not committed is replayed in the vehicle that it was planned for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from backlog_spark.common.stored_values import check_version, checked, reading_stored
from backlog_spark.errors import BacklogError, SettingError

__all__ = ["Ledger", "Run", "Vehicle"]

# 3: key groups are placed evenly; state is text, in pieces, with what has changed kept apart.
_VERSION = 3


class Vehicle(StrEnum):
    """How the folds run: as sorted batch or in Spark's stateful operator."""

    SORTED = "sorted"
    STREAM = "stream"


@dataclass(frozen=True)
class Run:
    """Batches from ``first_batch`` on, up to the next run's.

    Parameters
    ----------
    first_batch : int
    vehicle : Vehicle
    epoch : int
        Number of the stay in backlog, from 0; -1 in stream mode.
    """

    first_batch: int
    vehicle: Vehicle
    epoch: int = -1


@dataclass(frozen=True)
class Ledger:
    """The pinned parts of a keyed query and its runs so far.

    Parameters
    ----------
    key_groups, partitions : int
        Fixed at the first start: Spark's state is partitioned by them.
    operators : tuple of (str, dict)
        Name of each keyed operator and meaning of its state (`Fold.describe`), in plan order.
    runs : tuple of Run
        By ascending first batches; only runs that batches still refer to.
    published : int
        The newest epoch whose state was handed to stream mode; -1 for none.
    publishing : int
        The newest epoch whose publication was begun. It must be finished first, and the epoch takes no more batches.
    puts_out_each : bool
        Whether each batch of the first epoch emits its changes. Else all results come at the epoch's end: from its
        last batch, or from the stream vehicle if no batch was known to be the last.
    in_pandas : bool
        Whether stream mode gives rows to the state in pandas. Spark keeps that with the state and refuses a change.
    """

    key_groups: int
    partitions: int
    operators: tuple[tuple[str, dict[str, Any]], ...]
    runs: tuple[Run, ...] = ()
    published: int = -1
    publishing: int = -1
    puts_out_each: bool = True
    in_pandas: bool = False

    @property
    def last_epoch(self) -> int:
        """The newest epoch that was begun; -1 for none. A run that planned nothing is forgotten, its epoch is not."""
        return max((self.published, *(run.epoch for run in self.runs)))

    @property
    def unpublished(self) -> bool:
        """Whether an epoch has not been handed to stream mode."""
        return self.last_epoch > self.published

    @property
    def is_half_published(self) -> bool:
        """Whether a publication was begun and not finished."""
        return self.publishing > self.published

    @property
    def is_mergeable(self) -> bool:
        """Whether the first operator's state can take in what a later stay collects."""
        return not self.operators or bool(self.operators[0][1].get("mergeable"))

    def next_run(
        self,
        planned: int | None,
        committed: int | None,
        *,
        in_backlog: bool,
        mergeable: bool = True,
        is_first_stay: bool = False,
    ) -> Run:
        """The run to start now.

        Parameters
        ----------
        planned, committed : int or None
            Newest batch in Spark's offset log and in its commit log.
        in_backlog : bool
            Whether the query is in mixed mode and any running source reports backlog.
        mergeable : bool
            Whether the rows of a later stay can be merged into the state. Else it runs as stream.
        is_first_stay : bool
            Whether a stay that begins now finds no state, although there were batches: they had no rows.
        """
        if planned is not None and planned != committed:
            return replace(self._run_of(planned), first_batch=planned)
        first = 0 if committed is None else committed + 1
        if not in_backlog:
            return Run(first, Vehicle.STREAM)
        if self.unpublished:
            return Run(first, Vehicle.SORTED, self.last_epoch)
        # Epoch 0 is the one that finds no state: its batches emit what they have. Any other is added to a state.
        epoch = max(self.last_epoch + 1, 0 if first == 0 or is_first_stay else 1)
        return Run(first, Vehicle.SORTED, epoch) if mergeable or epoch == 0 else Run(first, Vehicle.STREAM)

    def _run_of(self, batch: int) -> Run:
        before = [run for run in self.runs if run.first_batch <= batch]
        if not before:
            raise BacklogError(
                f"The checkpoint's backlog/plan-<n>.json does not say how batch {batch} was planned.",
                "Restore the checkpoint's directory backlog, or start with a new checkpointLocation.",
            )
        return before[-1]

    def begin(self, run: Run) -> Ledger:
        """With a run that is about to start. Later ones, whose first batch was never planned, are forgotten."""
        kept = tuple(r for r in self.runs if r.first_batch < run.first_batch)
        goes_on = bool(kept) and (kept[-1].vehicle, kept[-1].epoch) == (run.vehicle, run.epoch)
        return replace(self, runs=kept if goes_on else (*kept, run))

    def publish(self, epoch: int) -> Ledger:
        """With an epoch that stream mode has been given."""
        return replace(self, published=epoch, publishing=epoch)

    def begin_publication(self, epoch: int) -> Ledger:
        """With an epoch that is about to be given to stream mode."""
        return replace(self, publishing=epoch)

    def check(self, key_groups: int, operators: Sequence[tuple[str, dict[str, Any]]]) -> Ledger:
        """Refuse changes that an existing checkpoint does not allow; else return the ledger with the present operators.

        Raises
        ------
        SettingError or BacklogError
            It names the checkpoint's value, the present value and the next step.
        """
        if key_groups != self.key_groups:
            raise SettingError(
                "spark.backlog.keyGroups",
                key_groups,
                f"the checkpoint was made with {self.key_groups}, and its state is split by this number.",
                f"Set {self.key_groups}, or start with a new checkpointLocation.",
            )
        there, given = [name for name, _ in self.operators], [name for name, _ in operators]
        if there != given:
            raise BacklogError(
                f"The query's keyed operators are {', '.join(given)}, those of its checkpoint {', '.join(there)}.",
                "Keep their number, order and names, or start with a new checkpointLocation.",
            )
        for (name, before), (_, now) in zip(self.operators, operators, strict=True):
            if before["meaning"] != now["meaning"]:
                raise BacklogError(
                    f"The keyed operator {name!r} is now {now['meaning']}; in the checkpoint it is "
                    f"{before['meaning']}.",
                    "Keep its keys and what it does, or start with a new checkpointLocation.",
                )
            grows = now.get("grows", True)
            if before["slots"] != (now["slots"][: len(before["slots"])] if grows else now["slots"]):
                may = (
                    "State can be added at its end, where it begins as NULL or its default; nothing can be removed, "
                    "moved or given another type."
                    if grows
                    else "Nothing can be added to it either: rows that it never counted would be retracted."
                )
                raise BacklogError(
                    f"The state of the keyed operator {name!r} is now ({', '.join(now['slots'])}); in the "
                    f"checkpoint it is ({', '.join(before['slots'])}).",
                    f"{may} Put it back, or start with a new checkpointLocation.",
                )
        return replace(self, operators=tuple(operators))

    def configuration(self) -> dict[str, str]:
        """The Spark configuration that each run needs."""
        return {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.stateStore.providerClass": (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            ),
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            # For what stands in a plan for the order of its sources alone: Spark would read it, and drop all.
            "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
        }

    def to_json(self) -> dict[str, Any]:
        """As kept in the checkpoint."""
        return {
            "version": _VERSION,
            "keyGroups": self.key_groups,
            "partitions": self.partitions,
            "operators": [list(o) for o in self.operators],
            "runs": [[r.first_batch, str(r.vehicle), r.epoch] for r in self.runs],
            "published": self.published,
            "publishing": self.publishing,
            "putsOutEach": self.puts_out_each,
            "inPandas": self.in_pandas,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ledger:
        """Read back what `to_json` wrote.

        Raises
        ------
        BacklogError
            If it is of another version, or damaged.
        """
        check_version("backlog/plan-<n>.json of the checkpoint", data.get("version"), _VERSION)
        with reading_stored("backlog/plan-<n>.json of the checkpoint"):
            return checked(
                cls(
                    data["keyGroups"],
                    data["partitions"],
                    tuple((name, dict(state)) for name, state in data["operators"]),
                    tuple(Run(first, Vehicle(vehicle), epoch) for first, vehicle, epoch in data["runs"]),
                    data["published"],
                    data["publishing"],
                    data.get("putsOutEach", True),
                    data.get("inPandas", True),  # written since there is another way
                )
            )
