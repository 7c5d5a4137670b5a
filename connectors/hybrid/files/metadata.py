"""The column ``_metadata`` of files, with the fields of Spark's own (pure)."""

from __future__ import annotations

import re
from typing import Any

from .entries import Piece

__all__ = ["file_metadata", "spark_path"]

# What java.net.URI writes in hexadecimal: all of ASCII but these, and other controls and blanks.
_QUOTED = re.compile(
    r"[^A-Za-z0-9_.!~*'():@&=+$,;/\-\u00a1-\U0010ffff]|[\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def spark_path(name: str) -> str:
    """The name of a file as Spark writes it."""
    return f"file:{name}" if name.startswith("/") else name


def _as_uri(text: str) -> str:
    return _QUOTED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace")), text)


def file_metadata(name: str, piece: Piece, modified_ms: int, has_bytes: bool) -> dict[str, Any]:
    """The value for the rows of a piece.

    Parameters
    ----------
    name : str
        Of the file.
    piece : Piece
    modified_ms : int
        Time of the file's last change, milliseconds since 1970.
    has_bytes : bool
        Whether the bounds of the piece are bytes. Otherwise the whole file is its block.
    """
    size = piece.file.size
    first = piece.first if has_bytes else 0
    end = piece.end if has_bytes and piece.end is not None else size
    return {
        "file_path": _as_uri(spark_path(name)),
        "file_name": _as_uri(name.rpartition("/")[2]),
        "file_size": size,
        "file_block_start": first,
        "file_block_length": end - first,
        "file_modification_time": modified_ms * 1000,
    }
