"""The errors of backlog_spark: one root, each with its values and the next step to take."""

from __future__ import annotations

__all__ = ["BacklogError", "RejectedRowError", "SettingError"]


# More than the longest sensible value of one setting. A wrong one may be a whole file.
_LONGEST = 500


class BacklogError(Exception):
    """Root of every error that backlog_spark or one of its connectors raises on purpose.

    Parameters
    ----------
    problem : str
        What was found, with the values that matter. Never a password.
    hint : str, optional
        The next step: the setting to change, the statement to run, the page to read.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(problem, hint)

    def __str__(self) -> str:
        # What others have raised often ends without a full stop.
        stop = "." if self.hint and self.problem[-1:].isalnum() else ""
        return f"{self.problem}{stop} {self.hint}".strip()


class RejectedRowError(BacklogError):
    """A constraint of a target rejects a row of a batch. It would again after a restart, so the query ends."""


class SettingError(BacklogError):
    """A setting or option that is missing, malformed, out of bounds, or contradicts another.

    Parameters
    ----------
    setting : str
        Name of the setting as the user writes it.
    value : object
        The value found. Pass ``"***"`` for anything secret.
    problem : str
        What is wrong with it.
    hint : str, optional
        What to set instead.
    """

    def __init__(self, setting: str, value: object, problem: str, hint: str = "") -> None:
        self.setting = setting
        self.value = value
        super().__init__(f"{setting} = {_shown(value)}: {problem}", hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), self.__dict__.copy(), self.args))


def _shown(value: object) -> str:
    """A value as in Python; of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _restore(cls: type[SettingError], state: dict[str, object], args: tuple[object, ...]) -> SettingError:
    """Unpickle without calling ``__init__``: Python workers send errors to the driver by pickle."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
