"""Splits one CSV record into fields (pure).

Source: univocity's CsvParser as configured by Spark's CSVOptions. White space is kept. With a quote that is not escaped
the field ends at the next separator, including the quotes. A record may contain line feeds.
"""

from __future__ import annotations

__all__ = ["Splitter"]


class Splitter:
    """Splits records into fields.

    Parameters
    ----------
    sep : str
        One character or more.
    quote, escape : str
        One character each; "": none.
    """

    def __init__(self, sep: str, quote: str, escape: str) -> None:
        self.sep, self.quote, self.escape = sep, quote, escape

    def __call__(self, record: str) -> list[str | None]:
        """The fields without their quotes; None for an empty field."""
        if not self.quote or self.quote not in record:
            return [field or None for field in record.split(self.sep)]
        fields: list[str | None] = []
        at = 0
        while True:
            if record.startswith(self.quote, at):
                field, at = self._quoted(record, at + 1)
                fields.append(field)
            else:
                end = self._end(record, at)
                fields.append(record[at:end] or None)
                at = end
            if at >= len(record):
                return fields
            at += len(self.sep)

    def _end(self, record: str, at: int) -> int:
        end = record.find(self.sep, at)
        return len(record) if end < 0 else end

    def _quoted(self, record: str, at: int) -> tuple[str, int]:
        """A field after its opening quote, and the index of the next separator, or of the end of the record."""
        quote, escape, size = self.quote, self.escape, len(record)
        if at == size:
            return quote, size  # the field is a single quote
        content: list[str] = []
        before = ""
        while at < size:
            char = record[at]
            if before == quote and (char <= " " or record.startswith(self.sep, at)):
                break
            if before == quote != char:
                return self._unescaped(record, "".join(content), at)
            if char not in (quote, escape):
                if before == escape and escape:
                    content.append(escape)
                content.append(char)
                before = char
            elif char == escape != quote and before == escape:
                content.append(escape)
                before = ""
            elif before == escape:  # char is a quote
                content.append(quote)
                before = ""
            else:
                if char == quote == before:
                    content.append(quote)
                before = char
            at += 1
        else:
            return "".join(content), size
        after = at
        while after < size and record[after] <= " " and not record.startswith(self.sep, after):
            after += 1
        if after < size and not record.startswith(self.sep, after):
            return self._unescaped(record, "".join(content), at)
        return "".join(content), after

    def _unescaped(self, record: str, content: str, at: int) -> tuple[str, int]:
        """A field with a quote that does not end it: everything up to the separator."""
        end = self._end(record, at)
        return self.quote + content + self.quote + record[at:end], end
