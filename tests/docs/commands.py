"""The commands on a page: bash reads them as a reader's shell would; their words are checked one program at a time."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from configparser import ConfigParser
from pathlib import Path

import click
import pyspark
from packaging.requirements import Requirement

from backlog_spark.common.settings import parse_settings
from backlog_spark.tools.command import command
from servers import jars
from servers.mysql import MySQLServer

from .blocks import ROOT

# PATH has no program, so bash calls the handler for each: it writes down the program's words, with a NUL after each.
_BASH = """
PATH=/nowhere
command_not_found_handle() {
    if [ "$1" = python ] && [ "$2" = -c ]; then "$PYTHON" "${@:2}"; return; fi
    printf '%s\\0' "$@" '' >>"$CALLS"
}
"""
_MAKEFILE = (ROOT / "Makefile").read_text()
_SETUP = ConfigParser()
_SETUP.read(ROOT / "setup.cfg")
_IMAGES = dict(re.findall(r"^(\w+)=(\S+)$", (ROOT / ".env").read_text(), re.MULTILINE))
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
_JARS = {f"{jar.organisation}:{jar.name}:{jar.revision}" for jar in (*jars._DELTA, *jars._SPARK_KAFKA)}


def typed(code: str, *, console: bool) -> str:
    """What the reader types: all of it, or the lines after ``$`` and those that continue them; ``…`` is left out."""
    if console:
        code = "".join(re.findall(r"^\$ ((?:.*\\\n)*.*\n)", code, re.MULTILINE))
    return code.replace("…", "")


def calls(script: str, folder: Path) -> list[list[str]]:
    """The words of each program that ``script`` calls, as bash makes them. None of the programs runs."""
    (folder / "venv" / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "venv" / "bin" / "activate").touch()
    log = folder / "calls"
    log.write_text("")
    ran = subprocess.run(
        ["bash", "-eu", "-o", "pipefail"],
        input=_BASH + script, cwd=folder, capture_output=True, text=True,
        env={"CALLS": str(log), "PYTHON": sys.executable},
    )  # fmt: skip
    assert ran.returncode == 0, f"{ran.stderr}\n{script}"
    found: list[list[str]] = [[]]
    for word in log.read_text().split("\0")[:-1]:
        if word:
            found[-1].append(word)
        else:
            found.append([])
    return found[:-1]


def check(words: Sequence[str], *, whole: bool = True) -> None:
    """Refuse a program that is not in `PROGRAMS`, words that it would not take and, if ``whole``, words that miss."""
    program, *arguments = words
    assert program in PROGRAMS, f"nothing checks {program!r}: add it to PROGRAMS in {__file__}"
    try:
        PROGRAMS[program](arguments)
    except click.ClickException as error:
        if whole or not isinstance(error, click.MissingParameter):
            raise AssertionError(f"{' '.join(words)}: {error.format_message()}") from error
    except AssertionError as error:
        raise AssertionError(f"{' '.join(words)}: {error}") from error


def _backlog_spark(arguments: list[str]) -> None:
    if not arguments:  # with the variable of shell completion
        return
    with (
        contextlib.suppress(click.exceptions.Exit),  # --help
        command.make_context("backlog-spark", [*arguments]) as context,
    ):
        name, chosen, rest = command.resolve_command(context, arguments)
        assert name
        assert chosen
        chosen.make_context(name, rest, parent=context)


def _spark_submit(arguments: list[str]) -> None:
    values = dict.fromkeys(_spark_options(), "")
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            _job(word, list(rest))
            break
        assert word in values, f"spark-submit has no {word}"
        values[word] = next(rest, "")
        if word == "--conf" and values[word]:
            _conf(values[word])
    for coordinates in filter(None, values["--packages"].split(",")):
        assert coordinates in _JARS, f"not the version that the tests run with: {coordinates}"
    for option in ("--py-files", "--archives"):
        _distribution(values[option].partition("#")[0])
    if values["--properties-file"]:
        assert (ROOT / values["--properties-file"]).is_file(), values["--properties-file"]


@functools.cache
def _spark_options() -> frozenset[str]:
    """The options in spark-submit's own help that take a value."""
    script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    told = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    found = frozenset(re.findall(r"^ +(--[\w-]+)", told.stdout + told.stderr, re.MULTILINE))
    return found - {"--help", "--load-spark-defaults", "--supervise", "--verbose", "--version"}


def _job(file: str, arguments: list[str]) -> None:
    assert file.endswith(".py"), f"no job: {file}"
    if Path(file).name == "__main__.py":
        assert Path(file).is_file()
        _backlog_spark(arguments)


def _conf(pair: str) -> None:
    name, equals, value = pair.partition("=")
    assert name.startswith("spark."), f"Spark ignores {name}"
    assert equals
    parse_settings({name: value})
    for file in re.findall(r"=(conf/\S+)", value):
        assert (ROOT / file).is_file(), file


def _distribution(file: str) -> None:
    assert not file or re.search(rf"\s(?:\S*/)?{_unversioned(file)}", _MAKEFILE), f"`make dist` builds no {file}"


def _unversioned(file: str) -> str:
    name = Path(file).name
    if match := re.fullmatch(rf"backlog_spark-{re.escape(_SETUP['metadata']['version'])}(-py-files\.zip)", name):
        return r"\S*" + re.escape(match[1])
    return re.escape(f"dist/{name}")


def _pip(arguments: list[str]) -> None:
    assert arguments[:1] == ["install"], arguments
    rest = iter(arguments[1:])
    for word in rest:
        if word == "-c":
            assert (ROOT / next(rest)).is_file()
        elif word != "--no-deps":
            requirement(word)


def requirement(text: str) -> None:
    """Refuse a package, an extra or a version that ``pip install`` of this project would not find."""
    text = re.sub(r"^\.(?=\[)", "backlog-spark", text)  # in a checkout
    wheel = re.fullmatch(rf"\S*/backlog_spark-{re.escape(_SETUP['metadata']['version'])}-py3-none-any\.whl(.*)", text)
    wanted = Requirement(f"backlog-spark{wheel[1]}" if wheel else text)
    assert wanted.url in (None, f"git+{_SETUP['metadata']['url']}"), wanted.url
    if wanted.name == _SETUP["metadata"]["name"]:
        assert wanted.extras <= set(_SETUP["options.extras_require"]), f"no such extra: {wanted.extras}"
    else:
        assert wanted.name in PINS, f"not in constraints.txt: {wanted.name}"
        assert PINS[wanted.name] in wanted.specifier, f"{text}, but constraints.txt has {PINS[wanted.name]}"


def _make(arguments: list[str]) -> None:
    if not arguments:
        return
    target, *variables = arguments
    rule = re.search(rf"(?:^{re.escape(target)}:.*\n)+(?:(?:\t.*)?\n)*", _MAKEFILE, re.MULTILINE)
    assert rule, f"no target {target}"
    for name, value in (each.split("=", 1) for each in variables):
        # PYTHON makes the environment that every target needs.
        assert f"$({name})" in rule[0] or (name == "PYTHON" and f"$({name})" in _MAKEFILE), f"{target} reads no {name}"
        if name == "CASE" and value not in ("", "name"):
            assert (ROOT / "benchmarks" / f"{value}.py").is_file(), value


def _docker(arguments: list[str]) -> None:
    if arguments[0] == "run":
        # The servers of the tests have these settings too, by the same names.
        at = next(number for number, word in enumerate(arguments) if word.startswith("mysql:"))
        assert arguments[at] == f"mysql:{_IMAGES['MYSQL_VERSION']}"
        ours = {f"--{name}={value}" for name, value in MySQLServer.default_options.items()}
        assert set(arguments[at + 1 :]) <= ours, arguments[at + 1 :]
        return
    if arguments[0] == "exec":
        assert arguments[-3:] == ["mysql", "--user=root", "--password=owns-all"]
        return
    assert arguments[:2] == ["compose", "up"], arguments
    assert set(arguments[2:]) <= {"--build", "--detach"}
    assert (ROOT / "docker-compose.yml").is_file()


def _python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]), f"no module {arguments[1]}"
    else:
        assert arguments == ["job.py"]


def _curl(arguments: list[str]) -> None:
    # The port that the same page gives to spark.backlog.metrics.port; the tests of the metrics read this path.
    assert arguments == ["http://127.0.0.1:9400/metrics"]


def _tar(arguments: list[str]) -> None:
    assert arguments[0] == "-xzf", arguments
    if arguments[1:]:
        _distribution(arguments[1])
        assert arguments[2:] == ["-C", "environment"]


def _mkdir(arguments: list[str]) -> None:
    assert len(arguments) == 1


PROGRAMS: Mapping[str, Callable[[list[str]], None]] = {
    "backlog-spark": _backlog_spark,
    "curl": _curl,
    "docker": _docker,
    "make": _make,
    "mkdir": _mkdir,
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "spark-submit": _spark_submit,
    "tar": _tar,
}
"""What checks the words of a program. A page that shows another program adds a function here."""


def named(spans: Iterable[str]) -> list[str]:
    """Those of a page's code spans that are commands with words of their own, such as ``make demo``."""
    starts = tuple(f"{program} " for program in PROGRAMS)
    return [span.replace("…", "") for span in spans if span.startswith(starts)]
