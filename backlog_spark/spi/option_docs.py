"""What a connector says about one of its options, for editors and for errors (pure)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OptionDoc"]


@dataclass(frozen=True)
class OptionDoc:
    """An option of a source.

    Parameters
    ----------
    name : str
    doc : str
        What it means.
    choices : tuple of str
        All values that it may have; empty if there are others.
    secret : bool
        Whether its value is secret.
    """

    name: str
    doc: str
    choices: tuple[str, ...] = ()
    secret: bool = False
