"""Makes a phase of Delta: with or without an end."""

from __future__ import annotations

from collections.abc import Mapping

from ..delta import DeltaPhase
from ..files.options import DeltaOptions
from .phase import FollowingDeltaPhase

__all__ = ["delta_phase"]


def delta_phase(name: str, options: Mapping[str, str]) -> DeltaPhase:
    """The phase for some options.

    Raises
    ------
    SettingError
    """
    return (FollowingDeltaPhase if DeltaOptions.parse(options).following.is_continuous else DeltaPhase)(name, options)
