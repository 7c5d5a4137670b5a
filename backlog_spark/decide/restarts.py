"""Decides whether and when a failed query restarts (pure)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartPolicy"]

_LONGEST_MS = 60_000


@dataclass(frozen=True)
class RestartPolicy:
    """A limited number of restarts with growing pauses.

    Parameters
    ----------
    max_attempts : int
        ``spark.backlog.restart.maxAttempts``: in a row, without a commit in between.
    delay_ms : int
        ``spark.backlog.restart.delay``: before the first attempt, doubled for each further one, a minute at most.
    """

    max_attempts: int
    delay_ms: int

    def attempt_after(self, attempt: int, *, has_committed: bool) -> int:
        """The number of the next attempt, from 1. A run that committed a batch resets the count."""
        return 1 if has_committed else attempt + 1

    def wait_ms(self, attempt: int) -> int | None:
        """How long to wait before an attempt; None: the query is given up."""
        if attempt > self.max_attempts:
            return None
        return min(_LONGEST_MS, self.delay_ms << (attempt - 1))
