"""Makes a phase of files: with or without an end."""

from __future__ import annotations

from collections.abc import Mapping

from .continuous import ContinuousFilePhase
from .options import FileOptions
from .phase import FilePhase

__all__ = ["file_phase"]


def file_phase(name: str, options: Mapping[str, str]) -> FilePhase:
    """The phase for some options.

    Raises
    ------
    SettingError
    """
    return (ContinuousFilePhase if FileOptions.parse(options).discovery.is_continuous else FilePhase)(name, options)
