"""Texts in other encodings than UTF-8, turned into UTF-8 before they are cut into records (pure)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import Protocol

__all__ = ["UTF_8", "Readable", "Transcoder", "as_utf8", "is_bytewise", "known_encoding"]

UTF_8 = "utf-8"
_MARK = "\ufeff"
_SAMPLE = "a,1\n"
# Without a byte order mark Java takes big-endian for these, Python the order of the machine.
_MARKED = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def known_encoding(name: str) -> str | None:
    """Python's name of an encoding, given any of its names (those of Java too); None if there is none for text."""
    try:
        found = codecs.lookup(name.strip())
        data = _SAMPLE.encode(found.name)  # refuses codecs between bytes and bytes
        whole = found.incrementaldecoder("replace").decode(data, True)
    except (LookupError, ValueError, TypeError):
        return None
    if whole != _SAMPLE:
        return None
    return UTF_8 if found.name == "utf-8-sig" else found.name


@cache
def is_bytewise(encoding: str) -> bool:
    r"""Whether each byte is a character, and those of ASCII are themselves. So a byte ``\n`` always ends a line."""
    if encoding == UTF_8:  # several bytes a character, but none of them is one of ASCII
        return True
    each = [bytes([byte]).decode(encoding, "replace") for byte in range(256)]
    pairs = bytes(byte for pair in product(range(256), repeat=2) for byte in pair)
    try:
        whole = pairs.decode(encoding, "replace")
    except ValueError:
        return False
    is_ascii = "".join(each[:128]) == bytes(range(128)).decode("ascii")
    return is_ascii and whole == "".join(each[a] + each[b] for a, b in product(range(256), repeat=2))


def as_utf8(blocks: Iterable[list[bytes]], encoding: str) -> Iterator[list[bytes]]:
    """Lines of an encoding with a byte for each character. Bytes without a character become U+FFFD, as in Java."""
    for block in blocks:
        whole = b"\n".join(block)
        yield block if whole.isascii() else whole.decode(encoding, "replace").encode().split(b"\n")


class Transcoder:
    """A stream in any encoding as one of UTF-8, without a byte order mark.

    Parameters
    ----------
    source : Readable
        At its beginning.
    encoding : str
        From `known_encoding`.
    """

    def __init__(self, source: Readable, encoding: str) -> None:
        self._source = source
        start = b""
        if encoding in _MARKED:
            start = bytes(source.read(4))
            encoding += "" if start.startswith(_MARKED[encoding]) else "-be"
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ready = self._decoder.decode(start)
        self._is_first = True

    def all(self) -> bytes:
        """The rest."""
        return b"".join(iter(lambda: self.read(1 << 20), b""))

    def read(self, size: int, /) -> bytes:
        """The next bytes, about ``size``; none at the end."""
        while True:
            data = bytes(self._source.read(size))
            found = self._ready + self._decoder.decode(data, not data)
            self._ready = ""
            if found and self._is_first:
                found, self._is_first = found.removeprefix(_MARK), False
            if found or not data:
                # Half of a surrogate pair, which only UTF-16 and UTF-32 with "surrogatepass" give, is not text.
                return found.encode("utf-8", "replace")
