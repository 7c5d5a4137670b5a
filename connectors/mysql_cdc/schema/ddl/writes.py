"""Finds the table whose rows a statement of the binary log changes, if it can change no other table (pure).

A statement that is not understood counts as changing any table. So does one that calls a function of a user.

Sources: MySQL Reference Manual, "Built-In Function and Operator Reference", "Function Name Parsing and Resolution";
the statements of pt-table-checksum and pt-heartbeat (Percona Toolkit).
"""

from __future__ import annotations

import re

from backlog_spark.common.lazy_patterns import lazy_pattern

from .statements import NAME, TABLE, able_readings, parts, without_values

__all__ = ["KNOWN_TOOLS", "fills_by_functions", "has_rules_of", "is_system", "named_for_people", "written_table"]

KNOWN_TOOLS = r"percona\.(?:checksums|heartbeat)"
"""The tables that pt-table-checksum and pt-heartbeat write by default, in statement format."""

# The servers allow no triggers in these databases.
_SYSTEM = {"mysql", "performance_schema", "information_schema"}
_PRIORITY = r"(?:\s+(?:LOW_PRIORITY|HIGH_PRIORITY|DELAYED|QUICK|IGNORE))*"
_WRITE = lazy_pattern(
    rf"\s*(?:(?:INSERT|REPLACE){_PRIORITY}(?:\s+INTO\b)?\s*({TABLE})|UPDATE{_PRIORITY}\s*({TABLE})(?=\s*SET\b)|"
    rf"DELETE{_PRIORITY}\s+FROM\b\s*({TABLE})(?=\s*(?:WHERE|ORDER|LIMIT)\b|[\s;]*\Z))",
    re.I,
)
_WITH_TABLES = lazy_pattern(r"\b(?:SELECT|TABLE|FROM|JOIN|USING|WITH)\b", re.I)
# They run a routine, or write a sequence or a file.
_WRITES_MORE = lazy_pattern(r"\b(?:CALL|NEXT|PREVIOUS|OUTFILE|DUMPFILE)\b", re.I)
_CALLED = lazy_pattern(rf"(\.\s*)?({NAME})(\s*)\(")
# With a blank before the bracket these may be a user's functions, unless the session has IGNORE_SPACE.
_NO_BLANK = {
    "ADDDATE", "BIT_AND", "BIT_OR", "BIT_XOR", "CAST", "COUNT", "CURDATE", "CURTIME", "DATE_ADD", "DATE_SUB",
    "EXTRACT", "GROUP_CONCAT", "MAX", "MID", "MIN", "NOW", "POSITION", "STD", "STDDEV", "STDDEV_POP", "STDDEV_SAMP",
    "SUBDATE", "SUBSTR", "SUBSTRING", "SUM", "SYSDATE", "TRIM", "VARIANCE", "VAR_POP", "VAR_SAMP",
}  # fmt: skip
# The server's own words and functions that may come before a bracket. No user's function can hide them.
_OWN_WORDS = _NO_BLANK | {
    # reserved words
    "ALL", "AND", "AS", "BETWEEN", "BINARY", "BY", "CASE", "CHAR", "DECIMAL", "DISTINCT", "DIV", "ELSE", "EXISTS",
    "FROM", "HAVING", "IN", "INDEX", "INTERVAL", "JOIN", "KEY", "LIKE", "LIMIT", "NOT", "ON", "OR", "REGEXP", "RLIKE",
    "SELECT", "SET", "THEN", "UNION", "USING", "VALUES", "WHEN", "WHERE", "XOR",
    # functions
    "ABS", "ADDTIME", "ASCII", "AVG", "BIN", "BIT_COUNT", "BIT_LENGTH", "CEIL", "CEILING", "CHARACTER_LENGTH",
    "CHAR_LENGTH", "COALESCE", "COLLATION", "CONCAT", "CONCAT_WS", "CONNECTION_ID", "CONV", "CONVERT", "CONVERT_TZ",
    "CRC32", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "DATABASE", "DATE", "DATEDIFF",
    "DATE_FORMAT", "DAY", "DAYNAME", "DAYOFMONTH", "DAYOFWEEK", "DAYOFYEAR", "ELT", "FIELD", "FIND_IN_SET", "FLOOR",
    "FORMAT", "FROM_DAYS", "FROM_UNIXTIME", "GREATEST", "HEX", "HOUR", "IF", "IFNULL", "INET_ATON", "INET_NTOA",
    "INSERT", "INSTR", "ISNULL", "JSON_ARRAY", "JSON_EXTRACT", "JSON_OBJECT", "JSON_SET", "JSON_UNQUOTE",
    "JSON_VALID", "LAST_INSERT_ID", "LCASE", "LEAST", "LEFT", "LENGTH", "LOCALTIME", "LOCALTIMESTAMP", "LOCATE",
    "LOWER", "LPAD", "LTRIM", "MD5", "MICROSECOND", "MINUTE", "MOD", "MONTH", "NAME_CONST", "NULLIF", "OCT", "ORD",
    "POW", "POWER", "QUARTER", "QUOTE", "RAND", "REPEAT", "REPLACE", "REVERSE", "RIGHT", "ROUND", "ROW", "RPAD",
    "RTRIM", "SCHEMA", "SECOND", "SEC_TO_TIME", "SHA", "SHA1", "SHA2", "SIGN", "SPACE", "STRCMP", "STR_TO_DATE",
    "SUBSTRING_INDEX", "SUBTIME", "TIME", "TIMEDIFF", "TIMESTAMP", "TIMESTAMPADD", "TIMESTAMPDIFF", "TIME_FORMAT",
    "TIME_TO_SEC", "TO_DAYS", "TRUNCATE", "UCASE", "UNHEX", "UNIX_TIMESTAMP", "UPPER", "USER", "UTC_DATE",
    "UTC_TIME", "UTC_TIMESTAMP", "UUID", "UUID_SHORT", "VALUE", "VERSION", "WEEK", "WEEKDAY", "YEAR", "YEARWEEK",
}  # fmt: skip


def written_table(text: str, default: str) -> tuple[str, str] | None:
    """Database and name, as written, of the one table whose rows a statement changes; None if there may be others.

    In the server's own databases such a statement reaches no other table: Amazon RDS writes its heartbeat this way,
    ``INSERT INTO mysql.rds_heartbeat2 …``, and Google Cloud SQL ``INSERT INTO mysql.heartbeat …``. It must not read
    tables either. In other databases the table may be a view or have triggers: the caller must rule that out.
    """
    found = {_written(plain, default) for plain in able_readings(text)}
    return found.pop() if len(found) == 1 else None


def is_system(database: str) -> bool:
    """Whether a database is the server's own. If upper and lower case matter, MYSQL is a user's database."""
    return database in _SYSTEM


def _written(plain: str, default: str) -> tuple[str, str] | None:
    write = _WRITE.match(plain)
    if write is None:
        return None
    database, table = parts(next(filter(None, write.groups())), default)
    rest = plain[write.end() :].lstrip().removeprefix("(")  # a bracket here opens the list of columns
    if is_system(database) and _WITH_TABLES.search(rest):
        return None
    return (database, table) if _runs_own_functions(rest) else None


def _runs_own_functions(plain: str) -> bool:
    """Whether a part of a statement runs only functions of the server that write nothing."""
    return not _WRITES_MORE.search(plain) and all(_is_own(*called) for called in _CALLED.findall(plain))


def _is_own(dot: str, name: str, blank: str) -> bool:
    word = name.upper()
    return not dot and word in _OWN_WORDS and not (blank and word in _NO_BLANK)


_CREATE_TABLE = lazy_pattern(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?TABLE\b", re.I)
_QUERY_WORD = lazy_pattern(r"`(?:[^`]|``)*`|\b(SELECT|VALUES(?!\s*(?:LESS|IN)\b))\b", re.I)


def fills_by_functions(text: str) -> bool:
    """Whether a CREATE TABLE fills the table with a query that may run a user's function, which may change any table.

    The server logs the query only in statement format. A definition without a query runs no such function.
    """
    return any(not _runs_own_functions(_query_of(plain)) for plain in able_readings(text))


def _query_of(plain: str) -> str:
    """The query in a CREATE TABLE; "" if there is none."""
    head = _CREATE_TABLE.match(plain)
    words = _QUERY_WORD.finditer(plain, head.end()) if head is not None else ()
    return next((plain[word.end() :] for word in words if word.group(1)), "")


_RULE = lazy_pattern(
    r"\s*CREATE\b(?!\s+(?:TEMPORARY\s+)?TABLE\b).*?\b(?:"
    rf"TRIGGER\b.*?\bON\s*({TABLE})\s*FOR\s+EACH\b|VIEW\s*(?:IF\s+NOT\s+EXISTS\b\s*)?({TABLE}))",
    re.I | re.S,
)


def has_rules_of(text: str, default: str) -> set[tuple[str, str]]:
    """Tables that a statement gives a trigger, and views that it creates: writing them may change other tables."""
    found = [_RULE.match(plain) for plain in able_readings(text)]
    return {parts(next(filter(None, each.groups())), default) for each in found if each is not None}


# Tables come after these words. KEY UPDATE is followed by a column.
_FOLLOWS = lazy_pattern(
    r"(?<!KEY )\b(?:INTO|FROM|JOIN|TABLE|(?:UPDATE|INSERT|REPLACE|DELETE)"
    rf"(?:\s+(?:LOW_PRIORITY|HIGH_PRIORITY|DELAYED|QUICK|IGNORE))*)\b(?=\s*({TABLE}(?:\s*,\s*{TABLE})*))",
    re.I,
)
_TABLE = lazy_pattern(TABLE)
_NO_TABLE = {"delayed", "from", "high_priority", "ignore", "in", "into", "lateral", "low_priority", "outfile", "quick",
             "select", "set", "table", "values"}  # fmt: skip


def named_for_people(text: str, default: str) -> list[str]:
    """``database.table`` of the tables that a statement names, for messages. Nothing that may be a value."""
    found: list[set[str]] = []
    for plain in without_values(text):
        names = [name for listed in _FOLLOWS.findall(" ".join(plain.split())) for name in _TABLE.findall(listed)]
        names = [name for name in names if name.lower() not in _NO_TABLE and not name[0].isdecimal()]
        found.append({".".join(filter(None, parts(name, default))) for name in names})
    # A name in one reading may be part of a value in another.
    return sorted(set.intersection(*found)) if found else []
