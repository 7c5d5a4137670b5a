"""Login and TLS of a connection, from the properties of Java's clients (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import Option, parsed

__all__ = ["SECRET_NAMES", "SECURITY_NAMES", "Security", "parse_jaas"]

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
    line = _LINE.fullmatch(text)
    if line is None:
        raise SettingError(_NAME, "***", "is not a JAAS line: module, flag, options and a semicolon.", _EXAMPLE)
    module = line["module"].rpartition(".")[2]
    if mechanism not in _MODULES.get(module, ()):
        raise SettingError(
            _NAME, "***", f"its module {module} does not fit kafka.sasl.mechanism={mechanism}.", _EXAMPLE
        )
    found: dict[str, str] = {}
    at, options = 0, line["options"].rstrip()
    while at < len(options):
        option = _OPTION.match(options, at)
        if option is None:
            raise SettingError(_NAME, "***", "has an option that is not name=value.", _EXAMPLE)
        quoted = option[2] if option[2] is not None else option[3]
        found[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        at = option.end()
    if not found.get("username") or "password" not in found:
        raise SettingError(_NAME, "***", "gives no username and password.", _EXAMPLE)
    return found["username"], found["password"]


_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PEM_HINT = (
    "Write it as PEM, with `keytool -exportcert -rfc` or `openssl pkcs12`, and set kafka.{store}.type=PEM;"
    " PEM text itself can be given as kafka.{text}."
)

# Java's name, and librdkafka's if it differs. Both names are accepted for both clients.
_FIELDS: dict[str, tuple[str, ...]] = {
    "protocol": ("security.protocol",),
    "mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "username": ("sasl.username",),
    "password": ("sasl.password",),
    "ca_file": ("ssl.truststore.location", "ssl.ca.location"),
    "ca_text": ("ssl.truststore.certificates", "ssl.ca.pem"),
    "certificate_file": ("ssl.keystore.location", "ssl.certificate.location"),
    "certificate_text": ("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
    "key_file": ("ssl.key.location",),
    "key_text": ("ssl.keystore.key", "ssl.key.pem"),
    "key_password": ("ssl.key.password",),
}
_OTHERS = (
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.keystore.type",
    "ssl.endpoint.identification.algorithm",
)
SECURITY_NAMES = (*(name for names in _FIELDS.values() for name in names), *_OTHERS)
"""Properties that `Security.parse` reads, without ``kafka.``"""
SECRET_NAMES = (
    "sasl.jaas.config",
    *(name for field in ("password", "key_text", "key_password") for name in _FIELDS[field]),
    *("ssl.keystore.password", "ssl.truststore.password"),  # refused, but Spark has seen them before
)
"""Properties with secret values."""


@dataclass(frozen=True)
class Security:
    """Parsed properties. A file name or text is "" if it is not given.

    Parameters
    ----------
    protocol : str
        ``"PLAINTEXT"``, ``"SSL"``, ``"SASL_PLAINTEXT"`` or ``"SASL_SSL"``.
    mechanism : str
        ``"PLAIN"``, ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"`` with SASL, else "".
    ca_file, ca_text : str
        Certificates (PEM) of trusted authorities; without either, the system's.
    certificate_file, certificate_text, key_file, key_text, key_password : str
        The client's certificate and private key (PEM), if brokers ask for one.
    checks_host : bool
        Whether a broker's certificate must name its host.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = parsed(None, Option("kafka.sasl.username"), default="")
    """Replaces `kafka.sasl.jaas.config`."""
    password: str = parsed(None, Option("kafka.sasl.password", secret=True), default="")
    """The same. Never written to logs, offsets or errors."""
    ca_file: str = ""
    ca_text: str = field(default="", repr=False)
    certificate_file: str = ""
    certificate_text: str = field(default="", repr=False)
    key_file: str = ""
    key_text: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host: bool = True

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_login(self) -> bool:
        """Whether connections log in by SASL."""
        return self.protocol.startswith("SASL")

    def secrets(self) -> tuple[str, ...]:
        """Values that no message may contain."""
        return tuple(text for text in (self.password, self.key_password, self.key_text) if text)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """From properties without ``kafka.``, names as they are.

        Raises
        ------
        SettingError
            If properties contradict each other, or are not supported here.
        """
        found = {name: _one(given, names) for name, names in _FIELDS.items()}
        found["protocol"] = (found["protocol"] or "PLAINTEXT").upper()
        if found["protocol"] not in _PROTOCOLS:
            raise SettingError(
                "kafka.security.protocol",
                found["protocol"],
                f"is none of {', '.join(_PROTOCOLS)}.",
                "Set one of these, or leave it out.",
            )
        _check_stores(given, found)
        if found["protocol"].startswith("SASL"):
            _log_in(given, found)
        else:
            _refuse(given, (*_FIELDS["mechanism"], *_FIELDS["username"], *_FIELDS["password"], "sasl.jaas.config"),
                    found["protocol"], "SASL_SSL or SASL_PLAINTEXT")  # fmt: skip
        if not found["protocol"].endswith("SSL"):
            names = [n for n in SECURITY_NAMES if n.startswith("ssl.")]
            _refuse(given, names, found["protocol"], "SSL or SASL_SSL")
        algorithm = given.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in ("https", "", "none"):
            raise SettingError(
                "kafka.ssl.endpoint.identification.algorithm", algorithm, "is neither https nor none.", "Leave it out."
            )
        return cls(**found, checks_host=algorithm == "https")

    def __str__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if f.repr)
        return ", ".join(f"{name}={value!r}" for name, value in shown if value)


def _one(given: Mapping[str, str], names: tuple[str, ...]) -> str:
    there = [name for name in names if given.get(name)]
    if len(there) > 1:
        raise SettingError(f"kafka.{there[1]}", "***", f"kafka.{there[0]} is the same option.", "Set one.")
    return given[there[0]] if there else ""


def _check_stores(given: Mapping[str, str], found: dict[str, str]) -> None:
    """Read Java's stores. They must be PEM, and the type must be set: as in Java the default is JKS."""
    stores = (
        ("ssl.truststore", "ssl.truststore.certificates", ("ssl.truststore.location", "ssl.truststore.certificates")),
        (
            "ssl.keystore",
            "ssl.keystore.key",
            ("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        ),
    )
    for store, text, names in stores:
        kind = given.get(f"{store}.type", "JKS").upper()
        if kind != "PEM" and (f"{store}.type" in given or any(given.get(name) for name in names)):
            raise SettingError(
                f"kafka.{store}.type",
                kind,
                "is a store that only Java can read.",
                _PEM_HINT.format(store=store, text=text),
            )
    if given.get("ssl.keystore.location") and not found["key_file"]:
        found["key_file"] = found["certificate_file"]  # Java's PEM store holds both
    certificate = bool(found["certificate_file"] or found["certificate_text"])
    key = bool(found["key_file"] or found["key_text"])
    if certificate != key:
        given_one, other = ("certificate", "private key") if certificate else ("private key", "certificate")
        raise SettingError(
            "kafka.ssl.keystore.key", "***", f"the client's {given_one} is given without its {other}.", "Set both."
        )


def _log_in(given: Mapping[str, str], found: dict[str, str]) -> None:
    mechanism = found["mechanism"] = (found["mechanism"] or "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise SettingError(
            "kafka.sasl.mechanism", mechanism, f"is none of {', '.join(_MECHANISMS)}.",
            "Kerberos (GSSAPI, Java's default), OAUTHBEARER and AWS_MSK_IAM are not supported here: use a SCRAM user.",
        )  # fmt: skip
    jaas = given.get("sasl.jaas.config")
    if jaas:
        if found["username"] or found["password"]:
            raise SettingError("kafka.sasl.password", "***", "kafka.sasl.jaas.config is given too.", "Set one of them.")
        found["username"], found["password"] = parse_jaas(jaas, mechanism)
    if not found["username"] or not found["password"]:
        raise SettingError(
            "kafka.sasl.jaas.config", None, f"kafka.sasl.mechanism={mechanism} needs a user and a password.",
            "Set it, or set kafka.sasl.username and kafka.sasl.password.",
        )  # fmt: skip


def _refuse(given: Mapping[str, str], names: tuple[str, ...] | list[str], protocol: str, needed: str) -> None:
    for name in names:
        if given.get(name):
            raise SettingError(
                f"kafka.{name}", "***", f"has no meaning with kafka.security.protocol={protocol}.",
                f"Set kafka.security.protocol={needed}.",
            )  # fmt: skip
