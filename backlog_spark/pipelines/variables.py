"""Variables in a pipeline's values: of the environment, and of files that hold secrets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["VARIABLE", "Missing", "Variable"]

VARIABLE: Final = re.compile(
    r"\$\$\{|\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
    r"|\$\{file:(?P<path>[^}:]+)(?::(?P<key>[^}]+))?\}|\$\{[^}]*\}?"
)
"""``${NAME}``, ``${env:NAME}``, ``${NAME:-default}``, ``${file:PATH}`` and ``${file:PATH:KEY}``; ``$${`` is ``${``."""


class Missing(Exception):
    """A variable without a value.

    Parameters
    ----------
    problem, hint : str
    """

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.problem, self.hint = problem, hint


class Variable(NamedTuple):
    """The value of a variable.

    Parameters
    ----------
    value : str
    is_given : bool
        False for a default, which stands in the file and is no secret.
    """

    value: str
    is_given: bool

    @classmethod
    def of(cls, found: re.Match[str], environment: Mapping[str, str]) -> Variable:
        """The value for a match of `VARIABLE`.

        Raises
        ------
        Missing
            There is no such variable, file or key, or the text is no variable.
        """
        if found[0] == "$${":
            return cls("${", False)
        if found["path"]:
            return cls(_of_file(Path(found["path"]), found["key"]), True)
        if not found["name"]:
            raise Missing(
                "${ begins no variable.",
                "Write ${NAME}, ${NAME:-default}, ${file:PATH}, ${file:PATH:KEY}, or $${ for the text ${.",
            )
        return _of_environment(found["name"], found["default"], environment)


def _of_environment(name: str, default: str | None, environment: Mapping[str, str]) -> Variable:
    value = environment.get(name)
    if default is not None and not value:  # an empty one too, as in a shell
        return Variable(default, False)
    if value is None:
        near = difflib.get_close_matches(name, environment, 1, 0.8)
        hint = f"Did you mean ${{{near[0]}}}? " if near else ""
        raise Missing(f"The environment has no variable {name}.", f"{hint}Set it, or write ${{{name}:-default}}.")
    return Variable(value, True)


def _of_file(path: Path, key: str | None) -> str:
    """The text of a file without the line end, or the value of a key in a file of lines ``key=value``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Missing(f"The file {path} cannot be read: {why}.", "The driver needs it.") from None
    if key is None:
        if found := text.rstrip("\r\n"):
            return found
        raise Missing(f"The file {path} is empty.", "Write the value into it.")
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith(("#", "!")))
    values = {name.strip(): value.strip() for name, equals, value in pairs if equals}
    if key not in values:
        raise Missing(f"The file {path} has no line {key}=….", f"Its keys are {', '.join(values) or 'none'}.")
    return values[key]
