"""What a source does with fields of files that are not in its schema (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Evolution"]


@dataclass(frozen=True)
class Evolution:
    """What the phases of files do with fields that the schema does not have.

    Parameters
    ----------
    rescued : str
        The column for values that do not fit the schema; "": they are not kept.
    mode : str
        The option ``schemaEvolutionMode``.
    infers_types : bool
        Whether a new column of JSON or CSV gets the type of its values. If not, it is text.
    location : str
        Where the schema is stored.
    storage : mapping
        Arguments of its file system. Secret.
    """

    rescued: str = ""
    mode: str = "none"
    infers_types: bool = False
    location: str = ""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def stops(self) -> bool:
        """Whether a new column stops the query."""
        return self.mode in ("addNewColumns", "failOnNewColumns")
