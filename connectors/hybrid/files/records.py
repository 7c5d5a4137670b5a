r"""Cuts text files into records: JSON at line ends, CSV at line ends outside of quotes.

A line ends with ``\n``, ``\r\n`` or ``\r``, as in Hadoop's LineReader, which Spark uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from .encodings import Transcoder
from .formats import Unreadable
from .textoptions import CsvOptions

__all__ = ["BLOCK_BYTES", "MAX_RECORD_BYTES", "csv_records", "ends_by_return", "line_records", "lines"]

# Bytes read at once: some 10,000 records of 100 bytes, which are decoded together.
BLOCK_BYTES = 1 << 20
# Limit of a record. Without it a quote that is never closed would make one record of the rest of the file.
MAX_RECORD_BYTES = 64 << 20
_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n?|\n")


def lines(
    source: pa.NativeFile | Transcoder,
    first: int,
    end: int | None,
    block: int = BLOCK_BYTES,
    ends_by_return: Callable[[bytes], bool] | None = None,
) -> Iterator[list[bytes]]:
    r"""The lines that begin between two bytes of a file, block by block, without their ends.

    The ``\r`` and ``\n`` of one line end enclose an additional empty line. It is not a record.

    Parameters
    ----------
    source : pyarrow.NativeFile or Transcoder
        The file, at its beginning.
    first, end : int, int or None
        Bytes. A line that begins before ``first`` is skipped; the last one is read to its end.
    block : int
        Bytes to read at once.
    ends_by_return : callable, optional
        Takes the beginning of the file and returns whether ``\r`` ends a line. If not, it is text. Default: it does.
    """
    begins = first  # offset of `rest`
    rest = b""
    returns = True
    is_inside = first > 0  # inside the line before the first one
    if is_inside:
        assert not isinstance(source, Transcoder)
        begins = first - 1
        source.seek(begins)
    while True:
        data = source.read(block)
        if ends_by_return is not None:
            while data.endswith(b"\r") and (following := source.read(1)):  # look whether LF follows
                data += following
            returns, ends_by_return = ends_by_return(data.removeprefix(_MARK)), None
        if returns:
            # Keeps the length, and works even if a block or piece ends between \r and \n.
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
            if end is not None and begins >= end:
                return
        elif begins == 0 and not rest:
            stripped = data.removeprefix(_MARK)
            begins, data = len(data) - len(stripped), stripped
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
    """One record per line. Lines of white space are skipped."""
    for block in blocks:
        yield [line for line in block if line and not line.isspace()]


def csv_records(blocks: Iterable[list[bytes]], options: CsvOptions) -> Iterator[list[bytes]]:
    """Records of CSV. Quoted fields may span lines."""
    if options.splits_at_lines:
        yield from line_records(blocks)
        return
    quote = options.quote.encode()
    ends_open = _open_after(options)
    parts: list[bytes] = []  # the lines so far of an unfinished record
    size = 0
    for block in blocks:
        records = []
        for line in block:
            if parts:
                size += len(line) + 1
                if size > MAX_RECORD_BYTES:
                    raise Unreadable(f"a quote is not closed within {MAX_RECORD_BYTES} bytes: {parts[0][:80]!r}")
                parts.append(line)
                if not ends_open(line, True):
                    records.append(b"\n".join(parts).removesuffix(b"\r"))
                    parts = []
            elif quote in line and ends_open(line, False):
                parts, size = [line], len(line)
            elif record := line.removesuffix(b"\r"):  # one of white space counts here, as in Spark
                records.append(record)
        yield records
    if parts:
        # As in Spark: the rest is the field.
        yield [b"\n".join(parts)]


def ends_by_return(beginning: bytes, options: CsvOptions) -> bool:
    r"""Whether ``\r`` alone ends the lines of a CSV file: true if the first line end outside of quotes is one.

    If false, it is text. Univocity's LineSeparatorDetector does the same, which Spark uses if fields may span lines.
    But it also counts a line end within quotes as the first, and then finds no others.
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
    """A function that says whether a line ends within quotes, given whether it begins so.

    A field is quoted if its first character is a quote. Inside, a quote that is doubled or follows the escape character
    is text. Any other quote ends the quoting, and the field continues to the next separator.
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
