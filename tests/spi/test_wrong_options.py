"""Wrong values of every option and setting, at random: each is refused by name, with what was found and what to do."""

from __future__ import annotations

import ast
import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from backlog_spark.common.durations import format_duration
from backlog_spark.common.settings import SETTINGS, Setting, parse_settings
from backlog_spark.connectors.hybrid.decode.options import DecodeOptions
from backlog_spark.connectors.hybrid.files.options import DeltaOptions, FileOptions, ReadOptions
from backlog_spark.connectors.hybrid.kafka.options import KafkaOptions
from backlog_spark.connectors.hybrid.options import HybridOptions
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.decide.rules import parse_rules
from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.options import Option
from backlog_spark.spi.registry import check_options
from backlog_spark.spi.registry import documented_options as documented
from backlog_spark.spi.user_options import UserOptions

documented_options = functools.cache(documented)
ROOT = Path(__file__).parents[2]
KAFKA = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
FILES = {"path": "/x", "schema": "id BIGINT", "metadataLocation": "/m"}
BASES: dict[str, tuple[dict[str, str], ...]] = {
    "mysql_cdc": (
        {"host": "h", "user": "u", "table": "a.b"},
        {"host": "h", "user": "u", "tablePattern": "a[.].*", "format": "debezium"},
    ),
    "hybrid": (
        {"phases": "files, kafka", **FILES, **KAFKA, "valueFormat": "json"},
        {"phases": "files", **FILES, "fileFormat": "csv"},
        {"phases": "delta", "path": "/x", "schema": "id BIGINT"},
        {"phases": "kafka", **KAFKA},
        {"phases": "kafka", **KAFKA, "valueFormat": "avro", "avroSchema": '"long"'},
    ),
}
"""Options that are right, for each form of a source."""

ANY = (
    "", " ", "abc", "-1", "0", "1", "1e9", "9" * 30, "9" * 5000, "1.5", "nan", "inf", "1e400", "5 parsecs", "30",
    "-5 s", "P1Y", "1 µs", "100 w" * 999, "9" * 40 + " s", "true!", "TRUE", "\x00", "[", "(", "+", "{}", "[]",
    '{"t": 1}', '{"t": {"x": 1}}', '{"t": {"0": "a"}}', "a,b", "a.b", "a.b,a.b", "`a.b", "a..b", "ü", "٣", "²", "²-³³",
    "1-9" + "9" * 20, "0x10", "1_000", "s3://b/k,/x", "://", "%", "${X}", "\ud800", "id BIGINT", "a:b:c", "earliest",
    "json", "orc",
)  # fmt: skip

WRONG: dict[str, tuple[str, ...]] = {
    "int": ("", "abc", "1.5", "1e3", "5 s", "²", "9" * 30, "9" * 5000, "none", "0x10"),
    "float": ("", "abc", "nan", "inf", "1e400", "1,5", "5 s"),
    "duration": ("", "abc", "30", "5 parsecs", "-5 s", "P1Y", "0.0001 ms", "9" * 40 + " s", "1 s" * 999, "now"),
    "boolean": ("", "yes", "1", "tru", "on"),
}
"""Texts that no option of the type may have."""


def refusal(problem: str, name: str, error: SettingError, found: str) -> None:
    """A refusal names the option, shows the value that was found, and says what to do."""
    text = str(error)
    assert name.lower() in text.lower(), (problem, text)
    assert error.hint, (problem, text)
    assert "\n" not in text or "\n" in found
    assert len(text) < 6_500, (problem, len(text))
    if error.setting.lower() == name.lower() and isinstance(error.value, str) and error.value != "***":
        assert repr(found)[1:20].strip("'\" ") in text or found.strip()[:20] in text, (problem, text)


def options() -> Iterator[tuple[str, int, Option]]:
    for source, bases in BASES.items():
        for number in range(len(bases)):
            for each in documented_options(source):
                yield source, number, each


@pytest.mark.parametrize("source", list(BASES))
def test_the_options_of_the_bases_are_right(source: str) -> None:
    for base in BASES[source]:
        check_options(source, base)


@pytest.mark.parametrize("source", list(BASES))
def test_a_text_of_the_wrong_type_is_refused(source: str) -> None:
    """Whatever base: for options of a phase that the base does not have the option itself is refused."""
    for number, base in enumerate(BASES[source]):
        for option in documented_options(source):
            texts = WRONG.get(option.type, ()) if not option.choices or option.type == "boolean" else ("none of them",)
            for text in texts:
                given = {name: value for name, value in base.items() if name.lower() != option.name.lower()}
                problem = f"{source} {number}: {option.name} = {text[:40]!r}"
                try:
                    check_options(source, {**given, option.name: text})
                except SettingError as error:
                    refusal(problem, option.name, error, text)
                else:
                    raise AssertionError(problem)


@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_taken_or_refused_by_name(seed: int) -> None:
    rng = random.Random(seed)
    for source, number, option in options():
        for text in rng.sample(ANY, 5):
            name = option.name.replace("*", "x")
            problem = f"{source} {number}: {name} = {text[:40]!r}"
            try:
                check_options(source, {**BASES[source][number], name: text})
            except SettingError as error:
                # valueFormat=avro: the error names the option that it needs.
                named = "avroSchema" if (name, text) == ("valueFormat", "avro") else option.name.partition("*")[0]
                refusal(problem, named, error, text)


@pytest.mark.parametrize("seed", range(3))
def test_options_that_contradict_each_other_are_refused_by_name(seed: int) -> None:
    """Several options at once, each with a text that it may have alone: nothing but refusals that name one of them."""
    rng = random.Random(seed)
    for source, bases in BASES.items():
        known = documented_options(source)
        for _ in range(150):
            base = dict(rng.choice(bases))
            for missing in rng.sample(sorted(base), rng.randrange(2)):
                del base[missing]
            chosen = rng.sample(known, rng.randrange(1, 6))
            given = {**base, **{each.name.replace("*", "x"): right(each, rng) for each in chosen}}
            try:
                check_options(source, given)
            except SettingError as error:
                refusal(str(given), error.setting, error, str(error.value))


def right(option: Option, rng: random.Random) -> str:
    """A text that fits the option's type."""
    if option.choices:
        return rng.choice(option.choices)
    if option.type == "int":
        return str(rng.choice((1, 4, 100, 2_000_000)))
    if option.type == "float":
        return rng.choice(("0.5", "1", "2"))
    if option.type == "duration":
        return rng.choice(("1 s", "5 min", "2 h", "PT30S", "0"))
    return rng.choice(("a", "a.b", "x,y", "*", "c"))


@pytest.mark.parametrize("source", list(BASES))
def test_secrets_are_in_no_error_and_no_text(source: str) -> None:
    rng = random.Random(source)
    secret = "S3cr3t-of-the-test"
    told: list[str] = []
    for base in BASES[source]:
        for option in documented_options(source):
            if not option.secret:
                continue
            for other in rng.sample(documented_options(source), 12):
                given = {
                    **base,
                    option.name.replace("*", "secret"): secret,
                    other.name.replace("*", "x"): rng.choice(ANY),
                }
                given[f"{option.name.replace('*', 'secre')}t"] = secret  # a misspelt name has a secret too
                try:
                    check_options(source, given)
                except BacklogError as error:
                    told.append(f"{error} {error!r} {error.__dict__}")
    assert told
    assert not [text for text in told if secret in text]


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_any_text_of_a_setting_is_taken_or_refused_by_name(setting: Setting) -> None:
    for text in ANY:
        try:
            parse_rules(parse_settings({setting.name: text}))
        except SettingError as error:
            refusal(f"{setting.name} = {text[:40]!r}", setting.name, error, text)
        else:
            assert text not in WRONG.get(setting.type, ()), setting.name


def test_an_unknown_setting_is_refused_without_a_secret() -> None:
    for name in ("spark.backlog.restartDelay", "spark.backlog.password", "spark.backlog."):
        with pytest.raises(SettingError) as told:
            parse_settings({name: "S3cr3t"})
        assert name in str(told.value)
        assert told.value.hint
        assert ("password" in name) == ("S3cr3t" not in str(told.value))


# -- there and back ------------------------------------------------------------------------------------------------

DECLARED = (MySqlOptions, HybridOptions, FileOptions, DeltaOptions, ReadOptions, KafkaOptions, DecodeOptions)


def rendered(option: Option, rng: random.Random) -> tuple[str, Any] | None:
    """A value at random and the text that means it. None for a type whose values are objects of its own."""
    low, high = bounds_of(option)
    if option.type == "boolean":
        value = rng.choice((True, False))
        return rng.choice((str(value), str(value).lower(), f" {value} ")), value
    if option.choices:
        word = rng.choice(option.choices)
        return rng.choice((word, word.upper(), f"{word} ")), word
    if option.type == "int":
        number = rng.randint(int(low), int(min(high, 2**63 - 1)))
        return str(number), number
    if option.type == "float":
        part = round(rng.uniform(low, min(high, 1e6)), 6)
        return repr(part), part
    if option.type == "duration":
        ms = rng.choice((250, 1_000, 30_000, 1_500, 3_600_000))
        return format_duration(ms), ms
    if option.type == "string":
        text = rng.choice(("a", "Ä b", "x=y;z", "'quoted'", "ends with a blank "))
        return text, text
    return None


def bounds_of(option: Option) -> tuple[float, float]:
    if option.bounds.startswith(">= ") and option.bounds[3:].isdecimal():
        return int(option.bounds[3:]), float("inf")
    low, dots, high = option.bounds.partition("..")
    return (float(low), float(high)) if dots and high.replace(".", "").isdecimal() else (1, float("inf"))


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.__name__)
def test_a_value_comes_back_from_its_text(kind: Any) -> None:
    rng = random.Random(kind.__name__)
    seen = outside = 0
    for field in fields(kind):
        parse, declared = field.metadata.get("parse"), field.metadata.get("options", ())
        if parse is None or len(declared) != 1 or not isinstance(declared[0], Option):
            continue
        option = declared[0]
        for _ in range(20):
            if (made := rendered(option, rng)) is None:
                break
            text, value = made
            try:
                found = parse(UserOptions({rng.choice((option.name, option.name.upper())): text}))
            except SettingError:
                outside += 1
                continue
            if isinstance(found, bool) and option.type != "boolean":
                break  # a switch: whether one of its words is set
            if option.type == "string" and found != value:
                assert not isinstance(found, str) or found in (value.strip(), "".join(value.split())), option.name
            else:
                assert found == value, (option.name, text)
            seen += 1
    assert seen > outside or kind is DecodeOptions


# -- all errors ----------------------------------------------------------------------------------------------------


def errors_in(tree: ast.Module) -> Iterator[tuple[int, ast.Call, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            first = {"BacklogError": 0, "SettingError": 2}.get(node.func.id)
            if first is not None:
                yield node.lineno, node, first


def test_every_error_of_the_code_says_what_to_do() -> None:
    left: list[str] = []
    for folder in ("backlog_spark", "connectors"):
        for file in (ROOT / folder).rglob("*.py"):
            for line, call, first in errors_in(ast.parse(file.read_text())):
                words: Mapping[str | None, ast.expr] = {word.arg: word.value for word in call.keywords}
                given = [*call.args[first + 1 :], *([words["hint"]] if "hint" in words else [])]
                is_open = any(isinstance(each, ast.Starred) for each in call.args)
                if not is_open and (not given or (isinstance(given[0], ast.Constant) and not given[0].value)):
                    left.append(f"{file.relative_to(ROOT)}:{line}")
    assert not left
