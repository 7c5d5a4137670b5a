r"""Cutting text files into records: JSON at line ends, CSV at those outside of quotes.

A line ends with ``\n``, ``\r\n`` or ``\r``, as Hadoop's LineReader has it for Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from .formats import Unreadable
from .options import CsvOptions

__all__ = ["MAX_RECORD_BYTES", "csv_records", "ends_by_return", "line_records", "lines"]

# Read at once: some 10,000 records of 100 bytes, which is what is decoded at once.
BLOCK_BYTES = 1 << 20
# A quote that is never closed would make one record of the rest of a file, and take its memory.
MAX_RECORD_BYTES = 64 << 20
_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?|\n")


def lines(
    source: pa.NativeFile,
    first: int,
    end: int | None,
    block: int = BLOCK_BYTES,
    ends_by_return: Callable[[bytes], bool] | None = None,
) -> Iterator[list[bytes]]:
    r"""The lines that begin between two bytes of a file, block by block, without their ends.

    Between the ``\r`` and the ``\n`` of one end there is an empty line more, which is no record.

    Parameters
    ----------
    source : pyarrow.NativeFile
        At its beginning.
    first, end : int, int or None
        Bytes. A line that begins before ``first`` is left out, and the last one is read to its end.
    block : int
        Bytes to read at once.
    ends_by_return : callable, optional
        Told the beginning of the file, whether ``\r`` ends a line; if not it is text. By default it does.
    """
    begins = first  # where `rest` does
    rest = b""
    returns = True
    is_inside = first > 0  # the line before the first one wanted, which may end just before it
    if is_inside:
        begins = first - 1
        source.seek(begins)
    while True:
        data = source.read(block)
        if ends_by_return is not None:
            while data.endswith(b"\r") and (following := source.read(1)):  # is it an end of its own?
                data += following
            returns, ends_by_return = ends_by_return(data.removeprefix(_MARK)), None
        if returns:
            # As long as before, and no matter whether a block or a piece ends between a \r and its \n.
            data = data.replace(b"\r", b"\n")
        if not data:
            if rest and not is_inside:
                yield [rest]
            return
        if is_inside:
            ended = data.find(b"\n")
            if ended < 0:
                begins += len(data)
                continue
            begins, data, is_inside = begins + ended + 1, data[ended + 1 :], False
        elif begins == 0 and not rest:
            stripped = data.removeprefix(_MARK)
            begins, data = len(data) - len(stripped), stripped
        if end is not None and begins >= end:
            return
        rest += data
        if end is not None:
            last = rest.find(b"\n", max(0, end - 1 - begins))
            if last >= 0:
                yield rest[:last].split(b"\n")
                return
        cut = rest.rfind(b"\n")
        if cut >= 0:
            yield rest[:cut].split(b"\n")
            begins, rest = begins + cut + 1, rest[cut + 1 :]
        elif len(rest) > MAX_RECORD_BYTES:
            raise Unreadable(f"the line at byte {begins} has more than {MAX_RECORD_BYTES} bytes")


def line_records(blocks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """One record a line. Those of white space alone are none."""
    for block in blocks:
        yield [line for line in block if line and not line.isspace()]


def csv_records(blocks: Iterable[list[bytes]], options: CsvOptions) -> Iterator[list[bytes]]:
    """Records of CSV, whose fields in quotes may go over lines."""
    if options.splits_at_lines:
        yield from line_records(blocks)
        return
    quote = options.quote.encode()
    ends_open = _open_after(options)
    parts: list[bytes] = []  # the lines so far of a record that goes on
    size = 0
    for block in blocks:
        records = []
        for line in block:
            if parts:
                size += len(line) + 1
                if size > MAX_RECORD_BYTES:
                    raise Unreadable(f"a quote is opened and not closed in {MAX_RECORD_BYTES} bytes: {parts[0][:80]!r}")
                parts.append(line)
                if not ends_open(line, True):
                    records.append(b"\n".join(parts).removesuffix(b"\r"))
                    parts = []
            elif quote in line and ends_open(line, False):
                parts, size = [line], len(line)
            elif line and not line.isspace():
                records.append(line.removesuffix(b"\r"))
        yield records
    if parts:
        # As Spark does: what is there is the field.
        yield [b"\n".join(parts)]


def ends_by_return(beginning: bytes, options: CsvOptions) -> bool:
    r"""Whether ``\r`` alone ends the lines of a CSV file: if the first line end outside of quotes is one.

    Else it is text. So does univocity's LineSeparatorDetector, which Spark asks where fields go over lines; but it
    takes a line end within quotes for the first, and then finds no others.
    """
    ends_open = _open_after(options)
    is_open, at = False, 0
    for found in _LINE_END.finditer(beginning):
        is_open = ends_open(beginning[at : found.start()], is_open)
        if not is_open:
            return found[0] == b"\r"
        at = found.end()
    return False


def _open_after(options: CsvOptions) -> Callable[[bytes, bool], bool]:
    """Whether a line ends within quotes, told whether it begins so.

    A field is in quotes if a quote is its first character. Within, a quote that is doubled or follows the escape
    character is text; any other ends them, and the field goes on to the next separator.
    """
    quote, separator = options.quote.encode(), options.sep.encode()
    q, e = re.escape(quote), re.escape(options.escape.encode())
    inside = rb"[^%b%b]|%b.?+|%b%b" % (q, e, e, q, q) if e and e != q else rb"[^%b]|%b%b" % (q, q, q)
    closing = re.compile(rb"(?:%b)*+%b" % (inside, q), re.DOTALL)
    opening = separator + quote

    def is_open(line: bytes, begins_open: bool) -> bool:
        at = 0 if begins_open else len(quote) if line.startswith(quote) else -1
        while True:
            if at < 0:
                found = line.find(opening)
                if found < 0:
                    return False
                at = found + len(opening)
            closed = closing.match(line, at)
            if closed is None:
                return True
            found = line.find(opening, closed.end())
            if found < 0:
                return False
            at = found + len(opening)

    return is_open
