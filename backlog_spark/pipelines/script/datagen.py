"""Columns of Flink's datagen connector, as expressions over the number of a row (pure).

A value is a hash of the row's number and the column's name, so that a batch that is repeated has the same rows.

Source: Flink's "DataGen SQL Connector", "Connector Options" and "Data Types".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from backlog_spark.common.durations import parse_duration
from backlog_spark.common.familiar_names import choice
from backlog_spark.errors import SettingError
from backlog_spark.pipelines.script.connectors import Given
from backlog_spark.pipelines.script.tokens import Refused

__all__ = ["KEYS", "generated"]

_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
# Flink's own bounds of a float are its least positive number and its greatest.
_MOST: Final = {"FLOAT": "3.4028234663852886E38", "DOUBLE": "1.7976931348623157E308"}
KEYS: Final = ("kind", "min", "max", "max-past", "length", "start", "end")
_LONGEST: Final = 10_000
_DEFAULT_LENGTH: Final = 100
_DIGITS_OF_A_HASH: Final = 64


def generated(column: str, kind: str, given: Mapping[str, Given], start: int) -> tuple[str, int | None]:
    """The expression of a column, and after how many rows it ends.

    Parameters
    ----------
    column : str
    kind : str
        Its type in Spark's DDL.
    given : mapping
        The table's options by Flink's names.
    start : int
        Where the column is in the script.

    Raises
    ------
    Refused
    """
    prefix = f"fields.{column}."
    own = {name.removeprefix(prefix): each for name, each in given.items() if name.startswith(prefix)}
    for key, each in own.items():
        if key not in KEYS:
            raise Refused(each.start, f"{each.name}: datagen has no such option.", choice(key, KEYS, "There are"))
    if "kind" in own and own["kind"].value not in ("random", "sequence"):
        raise Refused(own["kind"].start, f"{own['kind'].value}: there is no such kind.", "Write random or sequence.")
    if "kind" in own and own["kind"].value == "sequence":
        if not {"start", "end"} <= own.keys():
            raise Refused(own["kind"].start, f"{column}: a sequence needs start and end.", "Set both.")
        first, last = _whole(own["start"]), _whole(own["end"])
        if last < first:
            raise Refused(own["end"].start, f"{own['end'].name}: is less than start.", "Set a greater number.")
        return f"CAST(value + {first} AS {kind})", last - first + 1
    return _random(column, kind, own, start), None


def _random(column: str, kind: str, own: Mapping[str, Given], start: int) -> str:
    name = column.replace("'", "''").replace("\\", "\\\\")
    hashed = f"xxhash64(value, '{name}')"
    share = f"(shiftrightunsigned({hashed}, 11) / 9007199254740992D)"  # 53 bits: below 1
    if kind in _BITS:
        half = 2 ** (_BITS[kind] - 1)
        least, most = _bounds(own, -half, half - 1)
        count = most - least + 1
        wide = ("CAST({} AS DECIMAL(20, 0))", count) if count >= 2**63 else ("{}", f"{count}L")
        return f"CAST({least} + pmod({wide[0].format(hashed)}, {wide[1]}) AS {kind})"
    if kind in _MOST or kind.startswith("DECIMAL"):
        precision, scale = map(int, re.findall(r"\d+", kind)) if kind.startswith("DECIMAL") else (0, 0)
        most_text = own["max"].value if "max" in own else _MOST.get(kind) or f"{10 ** (precision - scale) - 1}"
        least_text = own["min"].value if "min" in own else "0"
        for each in ("min", "max"):
            if each in own and not re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", own[each].value):
                raise Refused(own[each].start, f"{own[each].name}: is not a number.", "Write such as 0 or 99.5.")
        least_d, most_d = (f"CAST('{text}' AS DOUBLE)" for text in (least_text, most_text))
        return f"CAST({least_d} + ({most_d} - {least_d}) * {share} AS {kind})"
    if kind in ("STRING", "BINARY"):
        length = _whole(own["length"]) if "length" in own else _DEFAULT_LENGTH
        if not 0 < length <= _LONGEST:
            raise Refused(own["length"].start, f"{own['length'].name}: is not between 1 and {_LONGEST}.", "Change it.")
        digits = length * (2 if kind == "BINARY" else 1)
        parts = [f"sha2(concat(value, '#{name}#{n}'), 256)" for n in range(-(-digits // _DIGITS_OF_A_HASH))]
        text = f"substr(concat({', '.join(parts)}), 1, {digits})"
        return f"unhex({text})" if kind == "BINARY" else text
    if kind == "BOOLEAN":
        return f"{hashed} % 2 = 0"
    if kind in ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE"):
        past = _milliseconds(own["max-past"]) if "max-past" in own else 0
        time = f"timestamp - make_dt_interval(0, 0, 0, pmod({hashed}, {past}L) / 1000)" if past else "timestamp"
        return f"CAST({time} AS {kind})"
    raise Refused(start, f"{column}: datagen has no values of the type {kind}.", "Make it in a view: ARRAY(a, b).")


def _bounds(own: Mapping[str, Given], least: int, most: int) -> tuple[int, int]:
    found = [_whole(own[key]) if key in own else default for key, default in (("min", least), ("max", most))]
    for key, value in zip(("min", "max"), found, strict=True):
        if not least <= value <= most:
            raise Refused(own[key].start, f"{own[key].name}: is not between {least} and {most}.", "Change it.")
    if found[0] > found[1]:
        key = "max" if "max" in own else "min"
        raise Refused(own[key].start, f"{own[key].name}: max is less than min.", "Change one of them.")
    return found[0], found[1]


def _whole(given: Given) -> int:
    if not re.fullmatch(r"-?\d{1,19}", given.value):
        raise Refused(given.start, f"{given.name}: is not a whole number.", "Write such as 0 or 100.")
    return int(given.value)


def _milliseconds(given: Given) -> int:
    try:
        return parse_duration(given.value, given.name)
    except SettingError as error:
        problem = error.problem.removeprefix(f"{given.name} = {given.value!r}: ")
        raise Refused(given.start, f"{given.name}: {problem}", error.hint) from None
