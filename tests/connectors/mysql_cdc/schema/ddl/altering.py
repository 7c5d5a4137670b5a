"""Random tables with the edge values of every type, and random ALTER TABLEs of them (pure).

A form is a kind of ALTER TABLE. It makes columns, and statements that alter them. Forms of one table use columns of
their own, so one statement can be put together from several of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["FORMS", "MODES", "TYPES", "Attempt", "Form", "Made", "edge_values", "session_of"]

# -- types and their edge values ---------------------------------------------------------------------------

_CHARSETS = ("utf8mb4", "utf8mb3", "latin1", "ascii", "binary")
_COLLATIONS = {
    "utf8mb4": ("utf8mb4_general_ci", "utf8mb4_bin", "utf8mb4_unicode_ci"),
    "utf8mb3": ("utf8_general_ci", "utf8_bin"),
    "latin1": ("latin1_swedish_ci", "latin1_bin", "latin1_general_cs"),
    "ascii": ("ascii_general_ci", "ascii_bin"),
}
_OTHER_CHARSETS = ("cp1251", "utf16", "ucs2", "gbk", "sjis", "koi8r", "latin2", "utf32", "cp850", "swe7")
INTS = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")
_BITS = dict(zip(INTS, (8, 16, 24, 32, 64), strict=True))
TEXTS = ("TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
BLOBS = ("TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
_SHAPES = {
    "POINT": ("POINT(1 2)", "POINT(-0.5 1e10)"),
    "LINESTRING": ("LINESTRING(0 0,1 1)",),
    "POLYGON": ("POLYGON((0 0,1 0,1 1,0 0))",),
    "MULTIPOINT": ("MULTIPOINT(0 0,1 1)",),
    "GEOMETRYCOLLECTION": ("GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))",),
}
DECIMALS = [
    "DECIMAL(5,0)", "DECIMAL(5,2)", "DECIMAL(7,4)", "DECIMAL(10,2)", "DECIMAL(12,6)", "DECIMAL(20,0)", "DECIMAL(38,10)",
    "DECIMAL(38,0)", "DECIMAL(9,9)",
]  # fmt: skip
WIDE_DECIMALS = ["DECIMAL(39,0)", "DECIMAL(40,2)", "DECIMAL(48,10)", "DECIMAL(65,30)", "DECIMAL(65,0)"]
FLOATS = ["FLOAT", "FLOAT(7,4)", "FLOAT(10,2)", "FLOAT UNSIGNED", "FLOAT(20,0)"]
DOUBLES = ["DOUBLE", "DOUBLE(10,3)", "DOUBLE(20,6)", "DOUBLE UNSIGNED", "DOUBLE(53,0)"]
LABELS = ["a", "b", "C", "é", "x y", "0", "1", "d''e"]


def _fractions(name: str) -> list[str]:
    return [name, *(f"{name}({n})" for n in range(1, 7))]


def _texts(kinds: Iterable[str], charsets: Sequence[str] = _CHARSETS) -> list[str]:
    """The kinds in each character set; in some with a collation."""
    found = []
    for kind in kinds:
        for charset in charsets:
            found.append(f"{kind} CHARACTER SET {charset}")
            found += [f"{kind} CHARACTER SET {charset} COLLATE {c}" for c in _COLLATIONS.get(charset, ())[1:2]]
    return found


def _labelled(kind: str, *orders: Sequence[str], charset: str = "utf8mb4") -> list[str]:
    quoted = [",".join(f"'{label}'" for label in order) for order in orders]
    return [f"{kind}({labels}) CHARACTER SET {charset}" for labels in quoted]


SIGNED, UNSIGNED = [*INTS], [f"{name} UNSIGNED" for name in INTS]
ZEROFILL = [f"{name}(7) ZEROFILL" for name in INTS]
BITS = ["BIT(1)", "BIT(4)", "BIT(8)", "BIT(9)", "BIT(33)", "BIT(63)", "BIT(64)"]
DATETIMES, TIMESTAMPS, TIMES = _fractions("DATETIME"), _fractions("TIMESTAMP"), _fractions("TIME")
CHARS = _texts(["CHAR(1)", "CHAR(9)", "CHAR(60)"], _CHARSETS[:4])
VARCHARS = _texts(["VARCHAR(2)", "VARCHAR(9)", "VARCHAR(63)", "VARCHAR(300)"], _CHARSETS[:4])
LONG_TEXTS = _texts(TEXTS, _CHARSETS[:4])
ENUMS = _labelled("ENUM", LABELS[:3], LABELS, LABELS[::-1], LABELS[2:6])
SETS = _labelled("SET", LABELS[:3], LABELS, LABELS[::-1], LABELS[2:6])
BINARIES = ["BINARY(1)", "BINARY(4)", "BINARY(16)", "BINARY(60)"]
VARBINARIES = ["VARBINARY(4)", "VARBINARY(16)", "VARBINARY(300)"]
GEOMETRIES = ["GEOMETRY", *_SHAPES]
OF_MARIADB = ["UUID", "INET4", "INET6"]
TYPES: dict[str, list[str]] = {
    "int": SIGNED,
    "unsigned": UNSIGNED,
    "zerofill": ZEROFILL,
    "decimal": DECIMALS,
    "decimal unsigned": ["DECIMAL(9,2) UNSIGNED", "DECIMAL(12,2) UNSIGNED", "DECIMAL(9,2) ZEROFILL"],
    "wide decimal": WIDE_DECIMALS,
    "float": FLOATS,
    "double": DOUBLES,
    "bit": BITS,
    "year": ["YEAR"],
    "date": ["DATE"],
    "datetime": DATETIMES,
    "timestamp": TIMESTAMPS,
    "time": TIMES,
    "char": CHARS,
    "varchar": VARCHARS,
    "text": LONG_TEXTS,
    "enum": ENUMS,
    "set": SETS,
    "binary": BINARIES,
    "varbinary": VARBINARIES,
    "blob": [*BLOBS],
    "json": ["JSON"],
    "geometry": GEOMETRIES,
}
_ADDRESSES = {"uuid": ["UUID"], "inet4": ["INET4"], "inet6": ["INET6"]}

_TEXT_VALUES = [
    "''", "' '", "'a'", "'a  '", "'A'", "'0'", "'12'", "'-7.50'", "'1e3'", "' 5'", "'2020-01-02'", "'é'", "'😀'", "'€'",
    "'ß'", "'a\\tb'", "'a\\0'", "'12:30:00.5'", "'b'", "'null'", "'::1'", "'1.2.3.4'", "'d''e'", "'a,b'", "'\\t'",
]  # fmt: skip
_DATES = ["'0000-00-00'", "'2020-00-00'", "'2020-02-30'", "'0001-01-01'", "'9999-12-31'", "'1970-01-01'",
          "'2024-02-29'", "'1999-05-06'"]  # fmt: skip
_MOMENTS = [
    "'0000-00-00 00:00:00'", "'2020-02-30 01:02:03'", "'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'",
    "'9999-12-31 23:59:59'", "'2020-01-02 03:04:05.5'", "'2020-01-02 03:04:05.999999'", "'2020-10-25 02:30:00.25'",
    "'2020-03-29 02:30:00'", "'1970-01-01 00:00:00'", "'2020-01-02 00:00:00'",
]  # fmt: skip
_STAMPS = [
    "'0000-00-00 00:00:00'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2038-01-19 03:14:07.999999'",
    "'2020-10-25 00:30:00.25'", "'2020-10-25 01:30:00.25'", "'2020-03-29 01:00:00'", "'2020-01-02 03:04:05.999999'",
]  # fmt: skip
_CLOCKS = ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:00.5'", "'12:34:56.999999'", "'100:00:00.123456'",
           "'-01:02:03'", "'23:59:59.5'"]  # fmt: skip
_BYTES = ["x''", "x'00'", "x'6100'", "'ab'", "x'FFFEFD'", "x'2020'", "x'6120'", "x'C3A9'", "'7'", "x'00000001'",
          "x'01020304'"]  # fmt: skip
_JSON = ["""'{"a": 1, "b": [1.0, "x"]}'""", "'null'", "'\"a\"'", "'1'", "'[]'", "'1.50'", "'\"é😀\"'", "'true'"]
_ADDRESS_VALUES = {
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'6ccd780c-baba-1026-9564-0040f4311e29'",
             "'ffffffff-ffff-4fff-bfff-ffffffffffff'", "UUID()"],
    "INET4": ["'0.0.0.0'", "'255.255.255.255'", "'1.2.3.4'"],
    "INET6": ["'::'", "'::1'", "'::ffff:1.2.3.4'", "'2001:db8::1'", "'fe80::'"],
}  # fmt: skip


def edge_values(kind: str) -> list[str]:
    """SQL literals for a type: its ends, and what servers convert in other ways than one expects.

    A session without strict mode takes all of them.
    """
    name = re.match(r"\w+", kind).group().upper()  # type: ignore[union-attr]
    brackets = re.match(r"\w+\((.*?)\)", kind)
    numbers = [int(n) for n in re.findall(r"\d+", brackets.group(1))] if brackets else []
    if name in _BITS:
        top = 1 << _BITS[name]
        if "UNSIGNED" in kind or "ZEROFILL" in kind:
            ends = [0, 1, top // 2, top - 1]
        else:
            ends = [-top // 2, top // 2 - 1, 0, 1, -1]
        more = [n for n in (127, 128, 255, 2024, 20200102, 16777217, 2**53 + 1) if n <= max(ends)]
        return [str(n) for n in (*ends, *more)]
    if name in ("DECIMAL", "FLOAT", "DOUBLE"):
        return _fractional(name, numbers, "UNSIGNED" in kind)
    if name == "BIT":
        return [str(n) for n in {0, 1, (1 << numbers[0]) - 1, (1 << numbers[0]) // 2}]
    if name in ("ENUM", "SET"):
        labels = re.findall(r"'((?:[^']|'')*)'", kind)
        several = [f"'{labels[0]},{labels[-1]}'", f"'{','.join(labels[:3])}'"] if name == "SET" else []
        return [*(f"'{label}'" for label in labels), *several, "'no label'", "''"]
    if name in ("BINARY", "VARBINARY", *BLOBS):
        most = {"TINYBLOB": 255, "BLOB": 65535}.get(name, numbers[0] if numbers else 300)
        return [*_BYTES, f"REPEAT('y', {most})", f"CONCAT(REPEAT('y', {max(most - 1, 0)}), x'00')"]
    if name in ("CHAR", "VARCHAR", *TEXTS):
        most = {"TINYTEXT": 255, "TEXT": 65535}.get(name, numbers[0] if numbers else 300)
        whole = [f"REPEAT('{c}', {most})" for c in "x ß"]
        return [
            *_TEXT_VALUES,
            *whole,
            f"CONCAT(REPEAT('z', {max(most - 1, 0)}), ' ')",
            "_latin1 x'81'",
            "_latin1 x'80'",
        ]
    if name in ("GEOMETRY", *_SHAPES):
        shapes = [s for of in _SHAPES.values() for s in of] if name == "GEOMETRY" else _SHAPES[name]
        return [f"ST_GeomFromText('{s}')" for s in shapes]
    return {
        "YEAR": ["0", "1901", "2155", "2024", "'0000'"],
        "DATE": _DATES,
        "DATETIME": _MOMENTS,
        "TIMESTAMP": _STAMPS,
        "TIME": _CLOCKS,
        "JSON": _JSON,
        **_ADDRESS_VALUES,
    }[name]


def _fractional(name: str, numbers: list[int], unsigned: bool) -> list[str]:
    small = ["0", "1", "0.5", "0.1", "0.005", "1.10", "123", "2024", "2.5", "3.5", "1.4999"]
    if name == "DECIMAL":
        precision, scale = (*numbers, 0, 0)[:2]
        digits = "9" * precision
        top = f"{digits[scale:]}.{digits[:scale]}".rstrip(".")
        found = [*small, top, f"-{top}", "-0.5", "0.000000001"]
    else:
        found = [*small, "-0e0", "0.30000000000000004", "16777217", "9007199254740993", "123.4567", "-7.25", "1e15"]
        found += ["3.4e38", "1.17549e-38", "1e-45"] if name == "FLOAT" else ["1.7976931348623157e308", "5e-324"]
    return [v for v in found if not (unsigned and v.startswith("-"))]


# -- sessions ----------------------------------------------------------------------------------------------

_STRICT = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
_NO_ZEROS = "NO_ZERO_IN_DATE,NO_ZERO_DATE"
# Modes of sessions with their weight. Both servers are strict by default; MySQL also has NO_ZERO_DATE.
MODES = [
    (f"{_STRICT},{_NO_ZEROS}", 6),
    (_STRICT, 6),
    ("", 8),
    ("STRICT_ALL_TABLES", 2),
    (f"STRICT_TRANS_TABLES,{_NO_ZEROS}", 2),
    (_NO_ZEROS, 2),
    ("PAD_CHAR_TO_FULL_LENGTH", 2),
    ("STRICT_TRANS_TABLES,PAD_CHAR_TO_FULL_LENGTH", 3),
    ("STRICT_TRANS_TABLES,NO_AUTO_VALUE_ON_ZERO", 2),
    ("STRICT_TRANS_TABLES,ANSI_QUOTES,PIPES_AS_CONCAT,REAL_AS_FLOAT", 1),
    ("STRICT_TRANS_TABLES,ALLOW_INVALID_DATES", 2),
    ("STRICT_TRANS_TABLES,TIME", 1),  # fractions are cut or rounded, where the server by default does the other
    ("NO_UNSIGNED_SUBTRACTION,HIGH_NOT_PRECEDENCE", 1),
    ("STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL,NO_BACKSLASH_ESCAPES", 1),
]
_ZONES = [("+00:00", 4), ("+05:30", 1), ("Test/Summer", 2)]
_OTHERS = [
    ("div_precision_increment = 4, default_week_format = 0", 3),
    ("div_precision_increment = 0, default_week_format = 3", 1),
]


@dataclass(frozen=True)
class SessionSettings:
    """What a session that alters tables has set."""

    sql_mode: str
    time_zone: str
    explicit_timestamps: bool
    others: str  # variables that generated columns' values depend on

    @property
    def is_strict(self) -> bool:
        return "STRICT" in self.sql_mode

    def statement(self, of_mariadb: bool) -> str:
        """Sets them, and lets the log have what follows."""
        named = {"TIME": "TIME_ROUND_FRACTIONAL" if of_mariadb else "TIME_TRUNCATE_FRACTIONAL"}
        if not of_mariadb:
            named["EMPTY_STRING_IS_NULL"] = "PIPES_AS_CONCAT"  # MySQL has no such mode
        modes = [named.get(mode, mode) for mode in self.sql_mode.split(",")]
        return (
            f"SET SESSION sql_log_bin = 1, sql_mode = '{','.join(modes)}', time_zone = '{self.time_zone}', "
            f"explicit_defaults_for_timestamp = {int(self.explicit_timestamps)}, {self.others}"
        )


def session_of(chance: random.Random) -> SessionSettings:
    """A session's settings by chance."""

    def pick(of: list[tuple[str, int]]) -> str:
        return chance.choices([v for v, _ in of], [w for _, w in of])[0]

    return SessionSettings(pick(MODES), pick(_ZONES), chance.random() < 0.93, pick(_OTHERS))


# -- forms -------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """A column of a new table. ``values``: those that its rows get in turn; empty for a generated column."""

    name: str
    kind: str
    null: str = "NULL"
    values: list[str] = field(default_factory=list)
    more: str = ""

    @property
    def definition(self) -> str:
        return f"`{self.name}` {self.kind} {self.null} {self.more}"


@dataclass
class Attempt:
    """Columns, and statements that alter them, each as its clauses. ``keys``: further definitions of the table.

    ``touched``: names whose values the statements are about.
    """

    made: list[Made]
    statements: list[list[str]]
    keys: list[str] = field(default_factory=list)
    touched: tuple[str, ...] = ()
    whole: bool = False  # about all columns of the table
    alone: bool = False  # cannot be put together with other clauses
    verb: str = "ALTER TABLE"


class Maker:
    """Makes a form's columns under names that no other form of the table has."""

    def __init__(self, chance: random.Random, number: int, of_mariadb: bool) -> None:
        self.chance, self.of_mariadb, self._number = chance, of_mariadb, number
        self.made: list[Made] = []

    def pick(self, of: Sequence[str]) -> str:
        return self.chance.choice(of)

    def any_kind(self) -> str:
        pools = [*TYPES.values(), *(_ADDRESSES.values() if self.of_mariadb else ())]
        return self.pick(self.chance.choice(pools))

    def name(self, letter: str) -> str:
        return f"{letter}{self._number}"

    def column(self, letter: str, kind: str, null: str | None = None, more: str = "") -> Made:
        every = edge_values(kind)
        # Few values often convert where one of many would end the statement.
        few = self.chance.randint(1, len(every)) if self.chance.random() < 0.6 else min(3, len(every))
        values = self.chance.sample(every, few)
        null = null if null is not None else self.pick(["NULL", "NULL", "NOT NULL"])
        if null == "NULL" and self.chance.random() < 0.7:
            values.append("NULL")
        made = Made(self.name(letter), kind, null, values, more)
        self.made.append(made)
        return made

    def generated(self, letter: str, kind: str, expression: str, stored: str | None = None) -> Made:
        stored = stored or self.pick(["STORED", "VIRTUAL"])
        made = Made(self.name(letter), f"{kind} AS ({expression}) {stored}", "")
        self.made.append(made)
        return made

    def attempt(self, *statements: str | list[str], touched: Sequence[Made | str] = (), **more: object) -> Attempt:
        names = tuple(each if isinstance(each, str) else each.name for each in (touched or self.made))
        lists = [[each] if isinstance(each, str) else each for each in statements]
        return Attempt(self.made, lists, touched=names, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Form:
    """A kind of ALTER TABLE. ``expected``: whether one would think that it keeps values in strict mode."""

    name: str
    make: Callable[[Maker], Attempt]
    only: str = ""  # "mysql", "mariadb" or both
    expected: bool = False


FORMS: list[Form] = []


def _modify(maker: Maker, made: Made, kind: str, null: str) -> str:
    head = maker.pick([f"MODIFY {made.name}", f"MODIFY COLUMN `{made.name}`", f"CHANGE {made.name} {made.name}"])
    tail = maker.pick(
        ["", "", "", "", " COMMENT 'x'", " FIRST", " AFTER rid", " DEFAULT NULL" if null == "NULL" else ""]
    )
    return f"{head} {kind} {null}{tail}"


def _conversion(name: str, old: Sequence[str], new: Sequence[str], *, only: str = "", expected: bool = False) -> None:
    def make(maker: Maker) -> Attempt:
        before, after = maker.pick(old), maker.pick(new)
        while before == after and len({*old, *new}) > 1:
            before, after = maker.pick(old), maker.pick(new)
        made = maker.column("c", before)
        return maker.attempt(_modify(maker, made, after, made.null))

    FORMS.append(Form(name, make, only, expected))


def _pairs(name: str, pairs: Sequence[tuple[str, str]], *, only: str = "", expected: bool = False) -> None:
    def make(maker: Maker) -> Attempt:
        before, after = maker.chance.choice(pairs)
        made = maker.column("c", before)
        return maker.attempt(_modify(maker, made, after, made.null))

    FORMS.append(Form(name, make, only, expected))


def _upwards(kinds: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for i, a in enumerate(kinds) for b in kinds[i + 1 :]]


def _downwards(kinds: Sequence[str]) -> list[tuple[str, str]]:
    return _upwards(kinds[::-1])


def _product(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in old for b in new]


_pairs("int to larger int", _upwards(SIGNED), expected=True)
_pairs("int to smaller int", _downwards(SIGNED))
_pairs("unsigned to larger unsigned", _upwards(UNSIGNED), expected=True)
_pairs("unsigned to smaller unsigned", _downwards(UNSIGNED))
_pairs("unsigned to larger signed", [(a, b) for i, a in enumerate(UNSIGNED) for b in SIGNED[i + 1 :]], expected=True)
_pairs("signed to unsigned", _product(SIGNED, UNSIGNED))
_pairs("unsigned to signed of the same size", list(zip(UNSIGNED, SIGNED, strict=True)))
_pairs("int to ZEROFILL", [*zip(SIGNED, ZEROFILL, strict=True), *zip(UNSIGNED, ZEROFILL, strict=True)])
_pairs("ZEROFILL to unsigned", list(zip(ZEROFILL, UNSIGNED, strict=True)), expected=True)
_pairs("display width", [("INT", "INT(3)"), ("BIGINT", "BIGINT(40)"), ("TINYINT", "TINYINT(1)"), ("YEAR", "YEAR(4)")],
       expected=True)  # fmt: skip
_pairs("int to DECIMAL that holds all", _product([*SIGNED[:4], *UNSIGNED[:4]], ["DECIMAL(12,2)", "DECIMAL(20,0)",
       "DECIMAL(38,10)", "DECIMAL(40,2)"]), expected=True)  # fmt: skip
_conversion("int to small DECIMAL", [*SIGNED, *UNSIGNED], ["DECIMAL(2,0)", "DECIMAL(5,2)", "DECIMAL(9,2) UNSIGNED"])
_conversion("int to FLOAT", [*SIGNED, *UNSIGNED], FLOATS)
_conversion("int to DOUBLE", [*SIGNED, *UNSIGNED], DOUBLES)
_conversion("int to text", [*SIGNED, *UNSIGNED, *ZEROFILL], [*VARCHARS, *CHARS, "TEXT"])
_conversion("int to bytes", [*SIGNED, *UNSIGNED], [*BINARIES, *VARBINARIES, "BLOB"])
_conversion("int to BIT", [*SIGNED, *UNSIGNED], BITS)
_conversion("int to YEAR, DATE, TIME", [*SIGNED, *UNSIGNED], ["YEAR", "DATE", "TIME", "DATETIME", "TIMESTAMP"])
_conversion("int to ENUM, SET", [*SIGNED, *UNSIGNED], [*ENUMS, *SETS])
_pairs("BIT to longer BIT", _upwards(BITS), expected=True)
_pairs("BIT to shorter BIT", _downwards(BITS))
_conversion("BIT to int", BITS, [*SIGNED, *UNSIGNED])
_conversion("BIT to text, bytes, DECIMAL", BITS, [*VARCHARS, *VARBINARIES, *BINARIES, *DECIMALS])
_conversion("YEAR to int, DECIMAL", ["YEAR"], ["SMALLINT", "INT UNSIGNED", "DECIMAL(6,2)", "TINYINT"], expected=True)
_conversion("YEAR to text, DATE, TIME", ["YEAR"], ["VARCHAR(9)", "DATE", "DATETIME", "CHAR(2)", "TIME"])
_pairs("DECIMAL to more digits before and after the point", [("DECIMAL(5,2)", "DECIMAL(7,4)"),
       ("DECIMAL(5,2)", "DECIMAL(38,10)"), ("DECIMAL(5,0)", "DECIMAL(10,2)"), ("DECIMAL(10,2)", "DECIMAL(38,4)"),
       ("DECIMAL(9,2) UNSIGNED", "DECIMAL(12,2) UNSIGNED"), ("DECIMAL(9,2) UNSIGNED", "DECIMAL(12,4)"),
       ("DECIMAL(5,2)", "DECIMAL(6,2)")], expected=True)  # fmt: skip
_pairs("DECIMAL to a larger scale, fewer digits before the point", [("DECIMAL(5,2)", "DECIMAL(5,3)"),
       ("DECIMAL(10,2)", "DECIMAL(12,6)"), ("DECIMAL(38,0)", "DECIMAL(38,10)")])  # fmt: skip
_pairs("DECIMAL to a smaller scale", [("DECIMAL(5,2)", "DECIMAL(5,0)"), ("DECIMAL(12,6)", "DECIMAL(12,2)"),
       ("DECIMAL(38,10)", "DECIMAL(38,0)"), ("DECIMAL(7,4)", "DECIMAL(7,2)")])  # fmt: skip
_conversion("DECIMAL to more than 38 digits", DECIMALS, WIDE_DECIMALS)
_conversion("DECIMAL above 38 digits", WIDE_DECIMALS, WIDE_DECIMALS)
_conversion("DECIMAL from more than 38 digits", WIDE_DECIMALS, DECIMALS)
_pairs("DECIMAL and UNSIGNED, ZEROFILL", [("DECIMAL(9,2)", "DECIMAL(9,2) UNSIGNED"), ("DECIMAL(9,2)",
       "DECIMAL(9,2) ZEROFILL"), ("DECIMAL(9,2) ZEROFILL", "DECIMAL(9,2)"), ("DECIMAL(9,2) UNSIGNED", "DECIMAL(9,2)"),
       ("DECIMAL(9,2) ZEROFILL", "DECIMAL(11,3) ZEROFILL")])  # fmt: skip
_conversion("DECIMAL to int", DECIMALS, [*SIGNED, *UNSIGNED])
_conversion("DECIMAL to FLOAT, DOUBLE", [*DECIMALS, *WIDE_DECIMALS], [*FLOATS, *DOUBLES])
_conversion("DECIMAL to text, bytes", [*DECIMALS, *WIDE_DECIMALS], [*VARCHARS, *CHARS, *VARBINARIES])
_conversion("FLOAT to DOUBLE", FLOATS, DOUBLES)
_conversion("DOUBLE to FLOAT", DOUBLES, FLOATS)
_pairs("FLOAT to FLOAT(m,d)", _product(["FLOAT", "FLOAT UNSIGNED"], ["FLOAT(7,4)", "FLOAT(10,2)", "FLOAT(20,0)"]))
_pairs("FLOAT(m,d) to FLOAT", _product(["FLOAT(7,4)", "FLOAT(10,2)", "FLOAT(20,0)"], ["FLOAT"]), expected=True)
_pairs("FLOAT(m,d) to FLOAT(m,d)", [("FLOAT(7,4)", "FLOAT(10,2)"), ("FLOAT(7,2)", "FLOAT(12,4)"),
       ("FLOAT(20,0)", "FLOAT(22,2)")])  # fmt: skip
_pairs("DOUBLE(m,d) to DOUBLE", _product(["DOUBLE(10,3)", "DOUBLE(20,6)", "DOUBLE(53,0)"], ["DOUBLE"]), expected=True)
_pairs("DOUBLE(m,d) to DOUBLE(m,d)", [("DOUBLE(10,3)", "DOUBLE(20,6)"), ("DOUBLE(20,6)", "DOUBLE(20,3)"),
       ("DOUBLE", "DOUBLE(20,6)")])  # fmt: skip
_pairs("FLOAT, DOUBLE UNSIGNED to signed", [("FLOAT UNSIGNED", "FLOAT"), ("DOUBLE UNSIGNED", "DOUBLE")], expected=True)
_pairs("FLOAT, DOUBLE to UNSIGNED", [("FLOAT", "FLOAT UNSIGNED"), ("DOUBLE", "DOUBLE UNSIGNED")])
_conversion("FLOAT, DOUBLE to DECIMAL, int", [*FLOATS, *DOUBLES], [*DECIMALS, *SIGNED, *UNSIGNED])
_conversion("FLOAT, DOUBLE to text", [*FLOATS, *DOUBLES], [*VARCHARS, "TEXT"])
_conversion("DATE to DATETIME", ["DATE"], DATETIMES)
_conversion("DATE to TIMESTAMP", ["DATE"], TIMESTAMPS)
_conversion("DATE to text, int, TIME, YEAR", ["DATE"], ["VARCHAR(20)", "CHAR(10)", "INT", "TIME", "YEAR", "BIGINT"])
_pairs("DATETIME to more digits of a second", _upwards(DATETIMES), expected=True)
_pairs("DATETIME to fewer digits of a second", _downwards(DATETIMES))
_conversion("DATETIME to TIMESTAMP", DATETIMES, TIMESTAMPS)
_conversion("TIMESTAMP to DATETIME", TIMESTAMPS, DATETIMES)
_pairs("TIMESTAMP to more digits of a second", _upwards(TIMESTAMPS), expected=True)
_pairs("TIMESTAMP to fewer digits of a second", _downwards(TIMESTAMPS))
_conversion("DATETIME, TIMESTAMP to DATE, TIME", [*DATETIMES, *TIMESTAMPS], ["DATE", *TIMES])
_conversion("DATETIME, TIMESTAMP to text, int", [*DATETIMES, *TIMESTAMPS], ["VARCHAR(30)", "CHAR(19)", "BIGINT"])
_pairs("TIME to more digits of a second", _upwards(TIMES))
_pairs("TIME to fewer digits of a second", _downwards(TIMES))
_conversion("TIME to text, int, DATETIME", TIMES, ["VARCHAR(30)", "INT", "DATETIME", "DECIMAL(12,2)"])

_WIDEN = [(a, b) for charset in _CHARSETS[:4] for n, (a, b) in enumerate([
    (f"CHAR(9) CHARACTER SET {charset}", f"CHAR(60) CHARACTER SET {charset}"),
    (f"CHAR(1) CHARACTER SET {charset}", f"CHAR(9) CHARACTER SET {charset}")])]  # fmt: skip
_pairs("CHAR to longer CHAR", _WIDEN, expected=True)
_pairs("CHAR to shorter CHAR", [(b, a) for a, b in _WIDEN])
_pairs("CHAR to VARCHAR", [(a, b.replace("CHAR", "VARCHAR", 1)) for a, b in _WIDEN], expected=True)
_pairs("CHAR to a text type", [(a, f"{t} CHARACTER SET {a.split()[-1]}") for a, _ in _WIDEN for t in TEXTS],
       expected=True)  # fmt: skip
_VARY = [(f"VARCHAR({n}) CHARACTER SET {charset}", f"VARCHAR({m}) CHARACTER SET {charset}")
         for charset in _CHARSETS[:4] for n, m in ((2, 9), (9, 63), (9, 300), (63, 300))]  # fmt: skip
_pairs("VARCHAR to longer VARCHAR", _VARY, expected=True)
_pairs("VARCHAR to shorter VARCHAR", [(b, a) for a, b in _VARY])
_pairs("VARCHAR to CHAR", [(a, b.replace("VARCHAR", "CHAR").replace("300", "255")) for a, b in _VARY])
_pairs("VARCHAR to a text type", [(a, f"{t} CHARACTER SET {a.split()[-1]}") for a, _ in _VARY for t in TEXTS],
       expected=True)  # fmt: skip
_pairs("a text type to a larger one", [(f"{a} CHARACTER SET {c}", f"{b} CHARACTER SET {c}") for c in _CHARSETS[:4]
       for a, b in _upwards(TEXTS)], expected=True)  # fmt: skip
_pairs("a text type to a smaller one", [(f"{a} CHARACTER SET {c}", f"{b} CHARACTER SET {c}") for c in _CHARSETS[:4]
       for a, b in _downwards(TEXTS)])  # fmt: skip
_pairs("a text type to VARCHAR, CHAR", [(f"{a} CHARACTER SET {c}", f"{b} CHARACTER SET {c}") for c in _CHARSETS[:4]
       for a in TEXTS for b in ("VARCHAR(300)", "CHAR(60)", "VARCHAR(9)")])  # fmt: skip


def _recoded(kinds: Sequence[str], old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    return [(f"{k} CHARACTER SET {a}", f"{k} CHARACTER SET {b}") for k in kinds for a in old for b in new if a != b]


_SHORT = ["CHAR(9)", "VARCHAR(9)", "VARCHAR(63)", "VARCHAR(300)"]
_pairs("charset to a wider one, CHAR and VARCHAR", [*_recoded(_SHORT, ["latin1", "ascii"], ["utf8mb3", "utf8mb4"]),
       *_recoded(_SHORT, ["utf8mb3"], ["utf8mb4"]), *_recoded(_SHORT, ["ascii"], ["latin1"])],
       expected=True)  # fmt: skip
_pairs("charset to a wider one, text types", [*_recoded(TEXTS, ["latin1", "ascii"], ["utf8mb3", "utf8mb4"]),
       *_recoded(TEXTS, ["utf8mb3"], ["utf8mb4"])])  # fmt: skip
_pairs("charset to a wider one, larger text type", [(f"{a} CHARACTER SET {x}", f"{b} CHARACTER SET {y}")
       for a, b in _upwards(TEXTS) for x, y in (("latin1", "utf8mb4"), ("utf8mb3", "utf8mb4"), ("ascii", "utf8mb3"))],
       expected=True)  # fmt: skip
_pairs("charset to a narrower one", [*_recoded([*_SHORT, *TEXTS], ["utf8mb4"], ["utf8mb3", "latin1", "ascii"]),
       *_recoded([*_SHORT, *TEXTS], ["utf8mb3", "latin1"], ["ascii", "latin1"])])  # fmt: skip
_pairs("other charsets to utf8mb4", _recoded([*_SHORT, "TEXT"], _OTHER_CHARSETS, ["utf8mb4"]))
_pairs("utf8mb4 to other charsets", _recoded([*_SHORT, "TEXT"], ["utf8mb4"], _OTHER_CHARSETS))
_pairs("another collation", [(f"{k} CHARACTER SET {c} COLLATE {a}", f"{k} CHARACTER SET {c} COLLATE {b}")
       for k in (*_SHORT, *TEXTS, "ENUM('a','b')", "SET('a','b')") for c, found in _COLLATIONS.items() for a in found
       for b in found if a != b], expected=True)  # fmt: skip
_pairs("utf8mb3 and utf8", [(f"{k} CHARACTER SET utf8", f"{k} CHARACTER SET utf8mb3") for k in _SHORT], expected=True)
_conversion("text to bytes", [*VARCHARS, *CHARS, *LONG_TEXTS], [*BINARIES, *VARBINARIES, *BLOBS])
_conversion("bytes to text", [*BINARIES, *VARBINARIES, *BLOBS], [*VARCHARS, *CHARS, *LONG_TEXTS])
_pairs("CHARACTER SET binary", [(f"{k} CHARACTER SET {c}", f"{k} CHARACTER SET binary") for k in (*_SHORT, *TEXTS)
       for c in _CHARSETS[:4]])  # fmt: skip
_conversion("text to number", [*VARCHARS, *CHARS], [*SIGNED, *UNSIGNED, *DECIMALS, *FLOATS, *DOUBLES, *BITS])
_conversion("text to date, time", [*VARCHARS, *CHARS], ["DATE", *DATETIMES, *TIMESTAMPS, *TIMES, "YEAR"])
_conversion("text to ENUM, SET", [*VARCHARS, *CHARS], [*ENUMS, *SETS])
_conversion("text to JSON", [*VARCHARS, "LONGTEXT CHARACTER SET utf8mb4"], ["JSON"])
_conversion("JSON to text", ["JSON"], [*LONG_TEXTS, "VARCHAR(300)"])
_conversion("JSON to bytes, number", ["JSON"], ["LONGBLOB", "INT", "VARBINARY(300)", "DOUBLE"])


def _label_pairs(kind: str, change: str) -> list[tuple[str, str]]:
    a = LABELS
    orders = {
        "added at the end": [(a[:3], a), (a[:5], [*a[:5], "z"])],
        "added before others": [(a[:3], ["z", *a[:3]]), (a[:3], [a[0], "z", *a[1:3]])],
        "removed": [(a, a[:3]), (a, a[3:]), (a[:5], [a[0], a[2], a[4]])],
        "in another order": [(a, a[::-1]), (a[:3], [a[2], a[0], a[1]])],
        "with other names": [(a[:3], ["n", *a[1:3]]), (a[:3], [*a[:2], "c"]), (a, [*a[:3], "e", *a[4:]])],
        "swapped": [(a[:3], [a[1], a[0], a[2]])],
    }[change]
    return [pair for old, new in orders for pair in zip(_labelled(kind, old), _labelled(kind, new), strict=True)]


for _kind in ("ENUM", "SET"):
    _pairs(f"{_kind}'s labels added at the end", _label_pairs(_kind, "added at the end"), expected=True)
    _pairs(f"{_kind}'s labels added before others", _label_pairs(_kind, "added before others"), expected=True)
    _pairs(f"{_kind}'s labels removed", _label_pairs(_kind, "removed"))
    _pairs(f"{_kind}'s labels in another order", [*_label_pairs(_kind, "in another order"),
           *_label_pairs(_kind, "swapped")])  # fmt: skip
    _pairs(f"{_kind}'s labels with other names", _label_pairs(_kind, "with other names"))
    _pairs(f"{_kind} in another charset", [
        (_labelled(_kind, o, charset=x)[0], _labelled(_kind, o, charset=y)[0]) for o in (LABELS[:4], LABELS)
        for x, y in (("latin1", "utf8mb4"), ("utf8mb3", "utf8mb4"), ("latin1", "utf8mb3"), ("utf8mb4", "latin1"))
    ])  # fmt: skip
_conversion("ENUM, SET to text", [*ENUMS, *SETS], [*VARCHARS, *CHARS, "TEXT"])
_conversion("ENUM to SET and back, to int, bytes", [*ENUMS, *SETS], [*SETS, *ENUMS, "INT", "TINYINT", "VARBINARY(60)"])
_pairs("BINARY to longer BINARY", _upwards(BINARIES))
_pairs("BINARY to shorter BINARY", _downwards(BINARIES))
_pairs("BINARY to VARBINARY that holds all", [("BINARY(1)", "VARBINARY(4)"), ("BINARY(4)", "VARBINARY(4)"),
       ("BINARY(16)", "VARBINARY(300)")], expected=True)  # fmt: skip
_conversion("VARBINARY to BINARY", VARBINARIES, BINARIES)
_pairs("VARBINARY to longer VARBINARY", _upwards(VARBINARIES), expected=True)
_pairs("VARBINARY to shorter VARBINARY", _downwards(VARBINARIES))
_conversion("BINARY, VARBINARY to a BLOB", [*BINARIES, *VARBINARIES], BLOBS)
_pairs("a BLOB to a larger one", _upwards(BLOBS), expected=True)
_pairs("a BLOB to a smaller one", _downwards(BLOBS))
_conversion("a BLOB to BINARY, VARBINARY", BLOBS, [*BINARIES, *VARBINARIES])
_conversion("bytes to number, date", [*BINARIES, *VARBINARIES], ["INT", "DOUBLE", "DATE", "BIT(64)", "DECIMAL(10,2)"])
_pairs("POINT … to GEOMETRY", _product([*_SHAPES], ["GEOMETRY"]), expected=True)
_pairs("GEOMETRY to POINT …", _product(["GEOMETRY"], [*_SHAPES]))
_conversion("GEOMETRY to bytes, text", GEOMETRIES, ["BLOB", "LONGBLOB", "LONGTEXT"])
_conversion("UUID, INET to text", OF_MARIADB, ["CHAR(36)", "VARCHAR(60)", "TEXT"], only="mariadb")
_conversion("UUID, INET to bytes", OF_MARIADB, ["BINARY(16)", "VARBINARY(16)", "BINARY(4)"], only="mariadb")
_conversion("text, bytes to UUID, INET", ["CHAR(36)", "VARCHAR(63)", "BINARY(16)", "BINARY(4)"], OF_MARIADB,
            only="mariadb")  # fmt: skip
_conversion("INET4 and INET6", ["INET4", "INET6"], ["INET6", "INET4"], only="mariadb")


def _form(name: str, *, only: str = "", expected: bool = False) -> Callable[[Callable[[Maker], Attempt]], None]:
    def register(make: Callable[[Maker], Attempt]) -> None:
        FORMS.append(Form(name, make, only, expected))

    return register


@_form("any type to any type")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    return m.attempt(_modify(m, made, m.any_kind(), m.pick(["NULL", "NOT NULL"])))


@_form("any type to another of its family, any nullability")
def _(m: Maker) -> Attempt:
    pool = m.chance.choice([*TYPES.values()])
    made = m.column("c", m.pick(pool))
    return m.attempt(_modify(m, made, m.pick(pool), m.pick(["NULL", "NOT NULL"])))


@_form("NULL to NOT NULL")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind(), "NULL")
    return m.attempt(_modify(m, made, made.kind, "NOT NULL"))


@_form("NULL to NOT NULL with a default")
def _(m: Maker) -> Attempt:
    kind = m.any_kind()
    made = m.column("c", kind, "NULL")
    return m.attempt(f"MODIFY {made.name} {kind} NOT NULL DEFAULT {m.pick(edge_values(kind))}")


@_form("NULL to NOT NULL, TIMESTAMP")
def _(m: Maker) -> Attempt:
    kind = m.pick(TIMESTAMPS)
    made = m.column("c", kind, "NULL")
    digits = kind.removeprefix("TIMESTAMP")
    more = m.pick(["", f"DEFAULT CURRENT_TIMESTAMP{digits}", "DEFAULT '2020-01-01 00:00:00'",
                   f"DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits}"])  # fmt: skip
    return m.attempt(f"MODIFY {made.name} {kind} NOT NULL {more}")


@_form("NOT NULL to NULL", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind(), "NOT NULL")
    return m.attempt(_modify(m, made, made.kind, "NULL"))


@_form("TIMESTAMP without NULL or NOT NULL")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.pick(TIMESTAMPS))
    return m.attempt(f"MODIFY {made.name} {m.pick([made.kind, *TIMESTAMPS])}")


@_form("comment only", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    return m.attempt(f"MODIFY {made.name} {made.kind} {made.null} COMMENT 'DROP b, it''s'")


@_form("the same definition again", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    return m.attempt(f"MODIFY {made.name} {made.kind} {made.null}")


@_form("default only", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    value = m.pick(edge_values(made.kind))
    return m.attempt(m.pick([
        f"MODIFY {made.name} {made.kind} {made.null} DEFAULT {value}",
        f"ALTER COLUMN {made.name} SET DEFAULT {value}", f"ALTER {made.name} DROP DEFAULT",
        f"MODIFY {made.name} {made.kind} {made.null} DEFAULT ({value})",
    ]))  # fmt: skip


@_form("another position only", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    return m.attempt(f"MODIFY {made.name} {made.kind} {made.null} {m.pick(['FIRST', 'AFTER rid'])}")


@_form("AUTO_INCREMENT")
def _(m: Maker) -> Attempt:
    kind = m.pick([*SIGNED, *UNSIGNED])
    made = m.column("c", kind)
    made.values = ["0", "5", "7", "100", *(["NULL"] if made.null == "NULL" else [])]
    m.chance.shuffle(made.values)
    made.values = made.values[: m.chance.randint(1, 5)]
    wider = m.pick([kind, kind, "BIGINT UNSIGNED", "INT"])
    clauses = [f"MODIFY {made.name} {wider} NOT NULL AUTO_INCREMENT"]
    keys = [f"UNIQUE KEY (`{made.name}`)"] if m.chance.random() < 0.5 else []
    return m.attempt(clauses if keys else [*clauses, f"ADD UNIQUE ({made.name})"], keys=keys)


@_form("no more AUTO_INCREMENT", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.pick([*SIGNED, *UNSIGNED]), "NOT NULL", "AUTO_INCREMENT UNIQUE")
    return m.attempt(f"MODIFY {made.name} {made.kind} NOT NULL")


@_form("AUTO_INCREMENT of a larger int", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.pick(SIGNED[:4]), "NOT NULL", "AUTO_INCREMENT UNIQUE")
    return m.attempt(f"MODIFY {made.name} BIGINT NOT NULL AUTO_INCREMENT")


@_form("RENAME COLUMN")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    new = m.name("n")
    change = f"CHANGE {made.name} {new} {made.kind} {made.null}"
    return m.attempt(m.pick([f"RENAME COLUMN {made.name} TO {new}", change]), touched=[new])


@_form("the name's case only", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    new = made.name.upper()
    change = f"CHANGE {made.name} {new} {made.kind} {made.null}"
    return m.attempt(m.pick([f"RENAME COLUMN {made.name} TO {new}", change]), touched=[new])


def _two(m: Maker) -> tuple[Made, Made]:
    kind = m.any_kind()
    other = kind if m.chance.random() < 0.6 else m.any_kind()
    return m.column("c", kind), m.column("d", other)


@_form("names swapped")
def _(m: Maker) -> Attempt:
    c, d = _two(m)
    if m.chance.random() < 0.5:
        return m.attempt([f"RENAME COLUMN {c.name} TO {d.name}", f"RENAME COLUMN {d.name} TO {c.name}"])
    return m.attempt([f"CHANGE {c.name} {d.name} {c.kind} {c.null}", f"CHANGE {d.name} {c.name} {d.kind} {d.null}"])


@_form("names swapped by three statements")
def _(m: Maker) -> Attempt:
    c, d = _two(m)
    x = m.name("x")
    pairs = ((c.name, x), (d.name, c.name), (x, d.name))
    return m.attempt(*(f"RENAME COLUMN {a} TO {b}" for a, b in pairs), touched=[c, d, x])


@_form("DROP b, RENAME a TO b")
def _(m: Maker) -> Attempt:
    c, d = _two(m)
    return m.attempt([f"DROP {d.name}", m.pick([f"RENAME COLUMN {c.name} TO {d.name}",
                      f"CHANGE {c.name} {d.name} {c.kind} {c.null}"])], touched=[d])  # fmt: skip


@_form("DROP b; RENAME a TO b")
def _(m: Maker) -> Attempt:
    c, d = _two(m)
    return m.attempt(f"DROP COLUMN {d.name}", f"RENAME COLUMN {c.name} TO {d.name}", touched=[d])


def _added(m: Maker, letter: str, kind: str, more: str) -> str:
    if_not = " IF NOT EXISTS" if m.of_mariadb and m.chance.random() < 0.15 else ""
    where = m.pick(["", "", " FIRST", " AFTER rid"])
    return f"{m.pick(['ADD', 'ADD COLUMN'])}{if_not} {m.name(letter)} {kind} {more}{where}"


@_form("DROP and ADD of one name")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    kind = m.pick([made.kind, m.any_kind()])
    more = m.pick(["", "NULL", "NOT NULL", f"DEFAULT {m.pick(edge_values(kind))}"])
    return m.attempt([f"DROP {made.name}", f"ADD {made.name} {kind} {more}"])


@_form("DROP; ADD of one name")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    kind = m.pick([made.kind, m.any_kind()])
    more = m.pick(["", "NULL", "NOT NULL", f"DEFAULT {m.pick(edge_values(kind))}"])
    return m.attempt(f"DROP {made.name}", f"ADD {made.name} {kind} {more}")


@_form("RENAME a TO b, ADD a")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    new = m.name("n")
    return m.attempt([f"RENAME COLUMN {made.name} TO {new}", f"ADD {made.name} {m.pick([made.kind, m.any_kind()])}"],
                     touched=[made, new])  # fmt: skip


@_form("ADD without a default", expected=True)
def _(m: Maker) -> Attempt:
    return m.attempt(_added(m, "n", m.any_kind(), m.pick(["", "NULL", "NULL COMMENT 'x'"])), touched=[m.name("n")])


@_form("ADD NOT NULL without a default", expected=True)
def _(m: Maker) -> Attempt:
    return m.attempt(_added(m, "n", m.any_kind(), "NOT NULL"), touched=[m.name("n")])


@_form("ADD with a literal default", expected=True)
def _(m: Maker) -> Attempt:
    kind = m.any_kind()
    default = m.pick([v for v in edge_values(kind) if "(" not in v] or ["NULL"])
    more = m.pick([f"DEFAULT {default}", f"NOT NULL DEFAULT {default}", f"DEFAULT {default} NOT NULL COMMENT 'y'",
                   f"NULL DEFAULT {default}", "DEFAULT NULL"])  # fmt: skip
    return m.attempt(_added(m, "n", kind, more), touched=[m.name("n")])


@_form("ADD with an expression as default")
def _(m: Maker) -> Attempt:
    kind, default = m.chance.choice([
        ("INT", "(1 + 1)"), ("VARCHAR(36)", "(UUID())"), ("DOUBLE", "(RAND())"), ("VARCHAR(20)", "(CONCAT('a', 'b'))"),
        ("JSON", "(JSON_ARRAY())"), ("BIGINT", "(rid)"), ("BIGINT", "(rid + 1)"), ("TEXT", "('x')"),
        ("DATE", "(CURRENT_DATE)"), ("BLOB", "('abc')"), ("INT", "(FLOOR(RAND() * 5))"),
    ])  # fmt: skip
    return m.attempt(_added(m, "n", kind, f"{m.pick(['', 'NOT NULL '])}DEFAULT {default}"), touched=[m.name("n")])


@_form("ADD with CURRENT_TIMESTAMP")
def _(m: Maker) -> Attempt:
    digits = m.pick(["", "(3)", "(6)"])
    kind = m.pick([f"DATETIME{digits}", f"TIMESTAMP{digits}"])
    more = m.pick([f"DEFAULT CURRENT_TIMESTAMP{digits}", f"NOT NULL DEFAULT NOW{digits or '()'}",
                   f"NULL DEFAULT CURRENT_TIMESTAMP{digits}", f"NULL ON UPDATE CURRENT_TIMESTAMP{digits}",
                   f"DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits}"])  # fmt: skip
    return m.attempt(_added(m, "n", kind, more), touched=[m.name("n")])


@_form("ADD TIMESTAMP without NULL or NOT NULL")
def _(m: Maker) -> Attempt:
    return m.attempt(_added(m, "n", m.pick(TIMESTAMPS), ""), touched=[m.name("n")])


# An expression over a column, and a type that holds its value.
_EXPRESSIONS = [
    ("{c}", ""), ("LENGTH({c})", "BIGINT"), ("HEX({c})", "LONGTEXT"), ("CONCAT('<', {c}, '>')", "LONGTEXT"),
    ("{c} IS NULL", "INT"), ("{c} = 'a'", "INT"), ("COALESCE({c}, 0)", "LONGTEXT"), ("{c} + 1", "DOUBLE"),
    ("{c} > 'A'", "INT"), ("CHAR_LENGTH({c})", "INT"), ("UPPER({c})", "LONGTEXT"), ("rid * 2", "BIGINT"),
    ("CAST({c} AS CHAR(40))", "VARCHAR(40)"), ("{c} + 0", "DECIMAL(30,2)"), ("QUOTE({c})", "LONGTEXT"),
]  # fmt: skip


def _over(m: Maker, base: Made) -> tuple[str, str]:
    expression, kind = m.chance.choice(_EXPRESSIONS)
    kind = kind or m.pick([base.kind, base.kind, "LONGTEXT", "VARCHAR(300)"])
    return expression.format(c=base.name), kind


@_form("ADD a generated column")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    word = m.pick(["", "GENERATED ALWAYS "])
    stored = m.pick(["STORED", "VIRTUAL", *(["PERSISTENT"] if m.of_mariadb else [])])
    return m.attempt(_added(m, "n", kind, f"{word}AS ({expression}) {stored}"), touched=[m.name("n")])


@_form("a generated column with another expression")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    other, kind = (_over(m, base)[0], kind) if m.chance.random() < 0.6 else _over(m, base)
    stored = made.kind.rsplit(" ", 1)[1] if m.chance.random() < 0.8 else m.pick(["STORED", "VIRTUAL"])
    return m.attempt(f"MODIFY {made.name} {kind} AS ({other}) {stored}", touched=[made])


@_form("a generated column as another type")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    return m.attempt(f"MODIFY {made.name} {m.any_kind()} AS ({expression}) {made.kind.rsplit(' ', 1)[1]}",
                     touched=[made])  # fmt: skip


@_form("a generated column with the same definition, comment, position", expected=True)
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    more = m.pick(["", " COMMENT 'x'", " FIRST", " AFTER rid"])
    return m.attempt(f"MODIFY {made.name} {made.kind}{more}", touched=[made])


@_form("VIRTUAL to STORED and back")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    other = "STORED" if made.kind.endswith("VIRTUAL") else "VIRTUAL"
    return m.attempt(f"MODIFY {made.name} {kind} AS ({expression}) {other}", touched=[made])


@_form("a generated column to a plain one")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    return m.attempt(f"MODIFY {made.name} {kind}", touched=[made])


@_form("a plain column to a generated one")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.column("g", kind)
    stored = m.pick(["STORED", "VIRTUAL"])
    return m.attempt(f"MODIFY {made.name} {kind} AS ({expression}) {stored}", touched=[made])


@_form("the base column of a generated one")
def _(m: Maker) -> Attempt:
    pool = m.chance.choice([*TYPES.values()])
    base = m.column("c", m.pick(pool))
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    new = m.pick(pool) if m.chance.random() < 0.7 else m.any_kind()
    return m.attempt(_modify(m, base, new, m.pick([base.null, base.null, "NULL", "NOT NULL"])), touched=[made, base])


@_form("the base column of a chain of generated ones")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    first = m.generated("g", kind, expression)
    last = m.generated("h", "LONGTEXT", f"CONCAT({first.name}, '')")
    return m.attempt(_modify(m, base, m.any_kind(), base.null), touched=[first, last, base])


@_form("the base column of a generated one, default or comment only", expected=True)
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression)
    more = m.pick(["", "COMMENT 'x'", "FIRST"])
    return m.attempt(f"MODIFY {base.name} {base.kind} {base.null} {more}", touched=[made, base])


@_form("the base column of a generated one renamed, both redefined")
def _(m: Maker) -> Attempt:
    base = m.column("c", m.any_kind())
    other = m.column("d", base.kind)
    expression, kind = _over(m, base)
    made = m.generated("g", kind, expression, "VIRTUAL")
    return m.attempt([f"DROP {made.name}", f"DROP {base.name}", f"RENAME COLUMN {other.name} TO {base.name}",
                      f"ADD {made.name} {made.kind}"], touched=[made, base])  # fmt: skip


# Expressions whose value depends on the session, and a base type. A copy of the table computes a STORED column again.
_BY_SESSION = [
    ("CONCAT('<', {c}, '>')", "VARCHAR(300)", "CHAR(9)"), ("LENGTH({c})", "INT", "CHAR(9)"),
    ("{c} / 3", "DOUBLE", "DECIMAL(10,2)"), ("{c} / 7", "DECIMAL(30,15)", "INT"), ("WEEK({c})", "INT", "DATE"),
    ("DATE_FORMAT({c}, '%W %M')", "VARCHAR(60)", "DATETIME"), ("CAST({c} AS CHAR)", "VARCHAR(60)", "TIMESTAMP"),
    ("UNIX_TIMESTAMP({c})", "DECIMAL(20,6)", "TIMESTAMP(3)"), ("CAST({c} AS DATETIME)", "DATETIME", "TIMESTAMP"),
    ("CAST({c} AS DATE)", "DATE", "VARCHAR(30)"), ("{c} - 1", "BIGINT", "INT UNSIGNED"),
    ("{c} = 'A'", "INT", "CHAR(9)"), ("HEX({c})", "LONGTEXT", "CHAR(60)"),
    ("FORMAT({c}, 2)", "VARCHAR(60)", "DOUBLE"), ("HOUR({c})", "INT", "TIMESTAMP"),
    ("DATE_ADD({c}, INTERVAL 1 MONTH)", "DATETIME", "DATETIME"), ("{c} + 0", "DOUBLE", "VARCHAR(9)"),
    ("UNIX_TIMESTAMP({c})", "BIGINT", "DATETIME"), ("CAST({c} AS TIME)", "TIME(3)", "DATETIME(6)"),
    ("DAYOFYEAR({c})", "INT", "DATE"), ("{c} LIKE 'a%'", "INT", "VARCHAR(9)"), ("STR_TO_DATE({c}, '%Y-%m-%d')", "DATE",
    "VARCHAR(20)"), ("CAST({c} AS SIGNED)", "BIGINT", "VARCHAR(9)"), ("{c}", "DATETIME", "DATETIME(6)"),
    ("{c}", "DATETIME(6)", "TIMESTAMP(6)"), ("{c}", "DATETIME", "DATE"), ("{c}", "TIMESTAMP", "DATETIME"),
]  # fmt: skip


@_form("beside a STORED column whose value depends on the session")
def _(m: Maker) -> Attempt:
    expression, kind, of = m.chance.choice(_BY_SESSION)
    base, other = m.column("c", of), m.column("d", "SMALLINT", "NULL")
    made = m.generated("g", kind, expression.format(c=base.name), m.pick(["STORED", "STORED", "VIRTUAL"]))
    clause = m.pick([f"MODIFY {other.name} INT", "FORCE, ALGORITHM=COPY", f"DROP {other.name}, ALGORITHM=COPY"])
    return m.attempt(clause, touched=[made, base])


@_form("beside a STORED column over CHAR, which PAD_CHAR_TO_FULL_LENGTH pads")
def _(m: Maker) -> Attempt:
    base, other = m.column("c", m.pick(CHARS)), m.column("d", "SMALLINT", "NULL")
    expression = m.pick(["CHAR_LENGTH({c})", "CONCAT('<', {c}, '>')", "HEX({c})", "{c}", "COALESCE({c}, '')"])
    made = m.generated("g", "VARCHAR(300)", expression.format(c=base.name), "STORED")
    return m.attempt(m.pick([f"MODIFY {other.name} INT", "FORCE, ALGORITHM=COPY"]), touched=[made, base])


@_form("beside any column", expected=True)
def _(m: Maker) -> Attempt:
    made, other = m.column("c", m.any_kind()), m.column("d", "SMALLINT", "NULL")
    clause = m.pick([f"MODIFY {other.name} INT", "FORCE, ALGORITHM=COPY", f"DROP {other.name}", "FORCE",
                     f"ADD n{other.name} INT FIRST", f"ADD n{other.name} INT AS (1) STORED"])  # fmt: skip
    return m.attempt(clause, touched=[made])


@_form("beside AUTO_INCREMENT", expected=True)
def _(m: Maker) -> Attempt:
    made, other = m.column("c", m.pick([*SIGNED, *UNSIGNED]), "NOT NULL", "AUTO_INCREMENT UNIQUE"), m.column("d", "INT")
    return m.attempt(f"MODIFY {other.name} {m.pick(['BIGINT', 'INT NOT NULL', 'VARCHAR(20)'])}", touched=[made])


@_form("beside ON UPDATE CURRENT_TIMESTAMP", expected=True)
def _(m: Maker) -> Attempt:
    kind = m.pick(["TIMESTAMP", "DATETIME"])
    made, other = m.column("c", kind, more="ON UPDATE CURRENT_TIMESTAMP"), m.column("d", "INT")
    return m.attempt(f"MODIFY {other.name} {m.pick(['BIGINT', 'INT NOT NULL', 'VARCHAR(20)'])}", touched=[made])


@_form("ADD AUTO_INCREMENT")
def _(m: Maker) -> Attempt:
    kind = m.pick([*SIGNED, *UNSIGNED])
    added = f"ADD {m.name('n')} {kind} NOT NULL AUTO_INCREMENT UNIQUE"
    return m.attempt(m.pick([added, f"ADD {m.name('n')} SERIAL"]), touched=[m.name("n")])


@_form("ADD (several)", expected=True)
def _(m: Maker) -> Attempt:
    kinds = [m.any_kind(), m.any_kind()]
    value = m.pick([v for v in edge_values(kinds[1]) if "(" not in v] or ["NULL"])
    names = [m.name("n"), m.name("o")]
    return m.attempt(f"ADD COLUMN ({names[0]} {kinds[0]}, {names[1]} {kinds[1]} DEFAULT {value})", touched=names)


@_form("ADD, then MODIFY it")
def _(m: Maker) -> Attempt:
    kind = m.any_kind()
    value = m.pick([v for v in edge_values(kind) if "(" not in v] or ["NULL"])
    made = Made(m.name("n"), kind)
    return m.attempt(f"ADD {made.name} {kind} DEFAULT {value}", _modify(m, made, m.pick([kind, m.any_kind()]), "NULL"),
                     touched=[made])  # fmt: skip


@_form("index", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    prefix = "(9)" if any(t in made.kind for t in ("TEXT", "BLOB")) else ""
    return m.attempt(m.pick([f"ADD INDEX ({made.name}{prefix})", f"ADD UNIQUE KEY u{made.name} ({made.name}{prefix})"]))


@_form("ORDER BY, ENGINE, FORCE, ROW_FORMAT", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    clause = m.pick([f"ORDER BY {made.name}", "ENGINE=InnoDB", "FORCE", "ROW_FORMAT=COMPACT", "COMMENT='x'",
                     "FORCE, ALGORITHM=COPY", "ROW_FORMAT=REDUNDANT"])  # fmt: skip
    return m.attempt(clause, whole=True, alone=True)


@_form("the table's default charset", expected=True)
def _(m: Maker) -> Attempt:
    m.column("c", m.pick([*VARCHARS, *LONG_TEXTS]))
    return m.attempt(m.pick(["DEFAULT CHARACTER SET latin1", "CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin",
                             "COLLATE utf8_bin"]), whole=True, alone=True)  # fmt: skip


def _texts_of_table(m: Maker, charsets: Sequence[str]) -> None:
    m.column("c", m.pick(_texts([*_SHORT, *TEXTS], charsets)))
    m.column("d", m.pick(_texts([*_SHORT, *TEXTS], charsets)))
    m.column("e", m.pick(_labelled(m.pick(["ENUM", "SET"]), LABELS[:4], LABELS, charset=m.pick(charsets))))


@_form("CONVERT TO a wider charset")
def _(m: Maker) -> Attempt:
    _texts_of_table(m, ("latin1", "ascii", "utf8mb3"))
    return m.attempt(m.pick(["CONVERT TO CHARACTER SET utf8mb4", "CONVERT TO CHARSET utf8mb4 COLLATE utf8mb4_bin"]),
                     whole=True, alone=True)  # fmt: skip


@_form("CONVERT TO a narrower charset")
def _(m: Maker) -> Attempt:
    _texts_of_table(m, ("utf8mb4", "utf8mb3", "latin1"))
    return m.attempt(m.pick(["CONVERT TO CHARACTER SET latin1", "CONVERT TO CHARSET ascii",
                             "CONVERT TO CHARACTER SET utf8"]), whole=True, alone=True)  # fmt: skip


@_form("CONVERT TO CHARACTER SET binary, DEFAULT")
def _(m: Maker) -> Attempt:
    _texts_of_table(m, ("utf8mb4", "latin1"))
    return m.attempt(m.pick(["CONVERT TO CHARACTER SET binary", "CONVERT TO CHARACTER SET DEFAULT"]), whole=True,
                     alone=True)  # fmt: skip


@_form("CONVERT TO together with other clauses")
def _(m: Maker) -> Attempt:
    _texts_of_table(m, ("utf8mb4", "latin1", "utf8mb3"))
    kind = m.pick(_texts([*_SHORT, *TEXTS], _CHARSETS[:4]))
    return m.attempt([f"MODIFY {m.name('c')} {kind}", "CONVERT TO CHARACTER SET utf8mb4",
                      f"ADD {m.name('n')} VARCHAR(9) CHARACTER SET latin1 DEFAULT 'é'",
                      m.pick([f"RENAME COLUMN {m.name('d')} TO {m.name('o')}", f"DROP {m.name('d')}"])],
                     whole=True, alone=True)  # fmt: skip


@_form("IF EXISTS and IF NOT EXISTS", only="mariadb")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    there, gone = made.name, m.name("n")
    kind, new = made.kind, m.any_kind()
    return m.attempt(m.pick([
        f"ADD COLUMN IF NOT EXISTS {there} {new}", f"ADD COLUMN IF NOT EXISTS {gone} {new}",
        f"DROP COLUMN IF EXISTS {gone}", f"DROP IF EXISTS {there}", f"MODIFY IF EXISTS {gone} {new}",
        f"MODIFY COLUMN IF EXISTS {there} {kind} NULL", f"CHANGE IF EXISTS {gone} x{gone} {new}",
        f"CHANGE COLUMN IF EXISTS {there} {gone} {kind}", f"RENAME COLUMN IF EXISTS {there} TO {gone}",
        f"RENAME COLUMN IF EXISTS {gone} TO x{gone}", f"DROP IF EXISTS {there}, ADD IF NOT EXISTS {there} {new}",
        f"ADD IF NOT EXISTS ({there} {new}, {gone} {new})",
    ]), touched=[made, gone])  # fmt: skip


@_form("ALTER IGNORE, ONLINE", only="mariadb")
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    clause = _modify(m, made, m.any_kind(), m.pick(["NULL", "NOT NULL"]))
    return m.attempt(clause, alone=True, verb=m.pick(["ALTER IGNORE TABLE", "ALTER ONLINE TABLE"]))


@_form("INVISIBLE, COMPRESSED, WITH SYSTEM VERSIONING", only="mariadb")
def _(m: Maker) -> Attempt:
    kind = m.pick(["VARCHAR(63)", "TEXT", "BLOB", "INT"])
    made = m.column("c", kind)
    return m.attempt(f"MODIFY {made.name} {kind} {m.pick(['INVISIBLE', 'COMPRESSED', 'WITHOUT SYSTEM VERSIONING'])}")


@_form("CHECK, FOREIGN KEY, other constraints", expected=True)
def _(m: Maker) -> Attempt:
    made = m.column("c", m.any_kind())
    return m.attempt(m.pick([f"ADD CONSTRAINT CHECK ({made.name} IS NULL OR rid > 0)", f"ADD CHECK ({made.name} = 1)"]))
