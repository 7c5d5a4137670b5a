"""The result of ``bs.verify`` (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backlog_spark.errors import BacklogError

__all__ = ["Difference", "TargetDiffers", "Verification"]


class TargetDiffers(BacklogError):
    """A target does not have its source's rows. The error contains no key and no value, so it may be logged."""


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ.

    Parameters
    ----------
    kind : str
        ``"missing"``: only the source has the key. ``"extra"``: only the target has it. ``"different"``: both have it,
        with other values. ``"doubled"``: the target has it more than once.
    key : mapping of str to value
        The key columns.
    columns : tuple of str
        For ``different``: the columns whose values differ.
    source, target : mapping of str to value, or None
        With ``values=True``: the other columns of the row on each side. None if there is no row, or more than one.
    """

    kind: str
    key: Mapping[str, Any]
    columns: tuple[str, ...] = ()
    source: Mapping[str, Any] | None = field(default=None, repr=False)
    target: Mapping[str, Any] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value!r}" for name, value in self.key.items())
        return f"{self.kind} {key}{': ' if self.columns else ''}{', '.join(self.columns)}"


@dataclass(frozen=True)
class Verification:
    """The comparison of a target with its source, at one position of the source's log.

    Parameters
    ----------
    tables : tuple of str
        The source's tables.
    target : str
        Location of the target.
    version : int
        The version of the target that was compared: of a Delta table, the snapshot of an Iceberg table, or the newest
        batch in a database.
    batch_id : int
        The query's newest batch in it.
    position : str
        The position in the source's log where that batch ends. Both sides are compared as of this position.
    source_rows, target_rows : int
        Rows on each side.
    missing, extra, different, doubled : int
        Numbers of differing keys, by `Difference.kind`.
    differences : tuple of Difference
        The first of them, in the order of their keys.
    columns : tuple of str
        The columns that were compared.
    left_out : tuple of str
        Columns that only one side has.
    chunks, differing_chunks : int
        Number of parts in which the source was read, and how many have missing, different or doubled keys.
    repaired : int
        Number of keys that ``repair=True`` has repaired.
    seconds : float
    """

    tables: tuple[str, ...]
    target: str
    version: int
    batch_id: int
    position: str
    source_rows: int
    target_rows: int
    missing: int = 0
    extra: int = 0
    different: int = 0
    doubled: int = 0
    differences: tuple[Difference, ...] = ()
    columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    chunks: int = 0
    differing_chunks: int = 0
    repaired: int = 0
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of differing keys."""
        return self.missing + self.extra + self.different + self.doubled

    @property
    def is_equal(self) -> bool:
        """Whether no key differs."""
        return not self.count

    @property
    def summary(self) -> str:
        """One line without any key or value."""
        at = f"version {self.version} (batch {self.batch_id}, {self.position})"
        if self.is_equal:
            return f"equal: {', '.join(self.tables)} and {self.target} at {at}, {self.source_rows:,} rows"
        kinds = {"missing": self.missing, "extra": self.extra, "different": self.different, "doubled": self.doubled}
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)
        rows = f"{self.source_rows:,} rows in the source, {self.target_rows:,} in the target"
        return f"{counts}: {', '.join(self.tables)} and {self.target} at {at}, {rows}"

    def raise_for_differences(self) -> Verification:
        """Raise an error if a key differs and was not repaired. Otherwise return this object.

        Raises
        ------
        TargetDiffers
            It has the counts, but no key and no value.
        """
        if self.count == self.repaired:
            return self
        raise TargetDiffers(f"The target differs. {self.summary}.", "The result's `differences` has the first keys.")

    def __repr__(self) -> str:
        return f"Verification({self.summary})"

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.details])

    @property
    def details(self) -> list[str]:
        """Lines of the first differing keys, of what was not compared and of repairs; none if there is none of it."""
        lines = []
        if self.left_out:
            lines.append(f"  not compared: {', '.join(self.left_out)}")
        lines += [f"  {difference}" for difference in self.differences]
        if self.count > len(self.differences):
            lines.append(f"  and {self.count - len(self.differences):,} more")
        if self.repaired:
            lines.append(f"  repaired: {self.repaired:,}")
        return lines
