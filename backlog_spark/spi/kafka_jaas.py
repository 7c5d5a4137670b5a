"""Reads the line ``sasl.jaas.config`` of Java's clients (pure)."""

from __future__ import annotations

import re

from backlog_spark.errors import SettingError

__all__ = ["parse_jaas", "read_jaas"]

_NAME = "kafka.sasl.jaas.config"
_MODULES = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
_LINE = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*", re.DOTALL
)
_OPTION = re.compile(r"""\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""", re.DOTALL)
_EXAMPLE = (
    "For example org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="reader" password="…"; or set kafka.sasl.username and kafka.sasl.password instead.'
)


def parse_jaas(text: str, mechanism: str) -> tuple[str, str]:
    """User and password.

    Parameters
    ----------
    text : str
        Such as ``org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";``. Of a
        class with another package only its last name counts, as some platforms shade Kafka's.
    mechanism : str
        The value of ``kafka.sasl.mechanism``. The class must fit it.

    Raises
    ------
    SettingError
        If it is not such a line. The value is not shown.
    """
    module, found = read_jaas(text)
    if mechanism not in _MODULES.get(module, ()):
        raise SettingError(
            _NAME, "***", f"its module {module} does not fit kafka.sasl.mechanism={mechanism}.", _EXAMPLE
        )
    if not found.get("username") or "password" not in found:
        raise SettingError(_NAME, "***", "gives no username and password.", _EXAMPLE)
    return found["username"], found["password"]


def read_jaas(text: str) -> tuple[str, dict[str, str]]:
    """The module without its package, and the options.

    Raises
    ------
    SettingError
        If it is not such a line. The value is not shown.
    """
    line = _LINE.fullmatch(text)
    if line is None:
        raise SettingError(_NAME, "***", "is not a JAAS line: module, flag, options and a semicolon.", _EXAMPLE)
    found: dict[str, str] = {}
    at, options = 0, line["options"].rstrip()
    while at < len(options):
        option = _OPTION.match(options, at)
        if option is None:
            raise SettingError(_NAME, "***", "has an option that is not name=value.", _EXAMPLE)
        quoted = option[2] if option[2] is not None else option[3]
        found[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        at = option.end()
    return line["module"].rpartition(".")[2], found
