"""Names of tables as one text, from which database and table can be told again (pure)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["TableName"]

# Whatever is quoted, or a database up to the first dot and a table up to the next comma.
_NAME: Final = re.compile(
    r"(?:`((?:[^`]|``)+)`|([^`.,\s][^.,]*))\s*\.\s*(?:`((?:[^`]|``)+)`(?=\s*(?:,|\Z))|([^,\s][^,]*))"
)
_END: Final = re.compile(r"\s*(?:(,)\s*|\Z)")


class TableName(NamedTuple):
    """A table of a database.

    As text it is ``database.table``, and the first dot separates the two. So a database with a dot is quoted with
    backquotes, as in MySQL. So is a name with a comma, or with spaces or a backquote at its beginning or end.
    """

    database: str
    table: str

    def __str__(self) -> str:
        database = _quoted(self.database) if _is_odd(self.database) or "." in self.database else self.database
        return f"{database}.{_quoted(self.table) if _is_odd(self.table) else self.table}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """The table that a text names.

        Raises
        ------
        ValueError
            It names none, or several.
        """
        (found,) = cls.parse_all(text)
        return found

    @classmethod
    def parse_all(cls, text: str) -> list[TableName]:
        """The tables that a text names, separated by commas.

        Raises
        ------
        ValueError
            With a part that is no name.
        """
        names, at, text = [], 0, text.strip()
        while True:
            found = _NAME.match(text, at)
            end = found and _END.match(text, found.end())
            if not (found and end):
                raise ValueError(text[at:].partition(",")[0].strip())
            quoted_database, database, quoted_table, table = found.groups()
            names.append(cls(_plain(quoted_database, database), _plain(quoted_table, table)))
            if not end[1]:
                return names
            at = end.end()


def _is_odd(name: str) -> bool:
    return "," in name or name != name.strip() or name.startswith("`") or not name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(quoted: str | None, name: str | None) -> str:
    return (name or "").strip() if quoted is None else quoted.replace("``", "`")
