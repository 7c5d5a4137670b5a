"""The phase of files of the ``hybrid`` source, and what it shares with other phases that read files."""

from .phase import FilePhase

__all__ = ["FilePhase"]
