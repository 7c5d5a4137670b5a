"""The phase of files of the ``hybrid`` source. Other phases that read files share parts of it."""

from .phase import FilePhase

__all__ = ["FilePhase"]
