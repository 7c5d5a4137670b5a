"""The help of the command: whole sentences, the default of FILE, and examples that the command takes."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from backlog_spark.tools.command import _EXAMPLES, command
from tests.docs.commands import check

NAMES = sorted(command.commands)


def helped(*words: str, columns: int = 80) -> str:
    done = CliRunner().invoke(command, [*words, "--help"], terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_summaries_are_whole(columns: int) -> None:
    text = " ".join(helped(columns=columns).split())
    assert "..." not in text.replace("[ARGS]...", "")
    for name in NAMES:
        first = " ".join((command.commands[name].help or "").partition("\n\n")[0].split())
        assert first.endswith(".")
        assert first.partition(". ")[0].removesuffix(".") in text


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_an_example_that_it_takes(name: str) -> None:
    text = helped(name, columns=200)
    assert _EXAMPLES[name]
    for example in _EXAMPLES[name]:
        assert example in [line.strip() for line in text.splitlines()]
        words = [word for word in shlex.split(example) if not re.fullmatch(r"[A-Z_]+=\S+", word)]
        assert words[:2] == ["backlog-spark", name]
        check(words)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_of_an_argument_is_said(name: str) -> None:
    for parameter in command.commands[name].params:
        if isinstance(parameter, click.Argument) and isinstance(parameter.default, str):
            text = " ".join(helped(name).split())
            assert f"{parameter.human_readable_name.upper()} is {parameter.default} by default" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_help_names_only_options_that_are_there(name: str) -> None:
    there = {option for parameter in command.commands[name].params for option in parameter.opts} | {
        "--help",
        "--py-files",
    }
    assert set(re.findall(r"--[a-z][\w-]*", helped(name))) <= there
