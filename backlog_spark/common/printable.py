"""Makes texts of servers and files harmless for terminals and for one line of a file (pure)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["printable"]

# Control characters, line separators, halves of surrogate pairs, and marks that turn the direction of text.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    r"""A text with control characters written as in Python and YAML: ``\x1b``, ``\u2028``.

    Parameters
    ----------
    keep : str
        Control characters that stay, such as a line feed.
    """
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
