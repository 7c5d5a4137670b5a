"""Login and TLS of a connection, from the properties of Java's clients."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any, Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.kafka_jaas import parse_jaas
from backlog_spark.spi.kafka_names import KERBEROS
from backlog_spark.spi.kafka_oauth import AWS, OAUTH, OAUTH_NAMES, OAUTH_SECRETS, OAuth
from backlog_spark.spi.kafka_tokens import token_callback
from backlog_spark.spi.options import Option, parsed

__all__ = ["SECRET_NAMES", "SECURITY_NAMES", "Security"]

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTH, AWS)
# Commands that read Java's stores, and ask for their passwords.
_PEM_HINTS = {
    "ssl.truststore": "Write its certificates as PEM with `keytool -list -rfc -keystore {file} > {pem}`",
    "ssl.keystore": (
        "Write its key and certificate as PEM with `keytool -importkeystore -srckeystore {file} -destkeystore {p12}"
        " -deststoretype PKCS12` and `openssl pkcs12 -in {p12} -nodes -out {pem}`"
    ),
}

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
_STORE_PASSWORDS = ("ssl.truststore.password", "ssl.keystore.password")
_OTHERS = (
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.keystore.type",
    "ssl.endpoint.identification.algorithm",
    *_STORE_PASSWORDS,
)
SECURITY_NAMES = (*(name for names in _FIELDS.values() for name in names), *_OTHERS, *OAUTH_NAMES)
"""Properties that `Security.parse` reads, without ``kafka.``"""
SECRET_NAMES = (
    "sasl.jaas.config",
    *(name for field in ("password", "key_text", "key_password") for name in _FIELDS[field]),
    *OAUTH_SECRETS,
    *_STORE_PASSWORDS,  # refused, but Spark has seen them before
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
        ``"PLAIN"``, ``"SCRAM-SHA-256"``, ``"SCRAM-SHA-512"`` or ``"OAUTHBEARER"`` with SASL, else "".
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
    oauth: OAuth = parsed(None, OAuth, default=OAuth())

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
        return tuple(text for text in self._secret() if text)

    def _secret(self) -> tuple[str, ...]:
        return self.password, self.key_password, self.key_text, self.oauth.client_secret

    def clean(self, text: str) -> str:
        """A client's message without secrets, on one line, without a full stop at its end."""
        for secret in self.secrets():
            text = text.replace(secret, "***")
        return " ".join(text.split()).rstrip(".")

    @property
    def who(self) -> str:
        """The user, for messages; "" without a login."""
        if not self.has_login:
            return ""
        if self.mechanism != OAUTH:
            return f" as {self.username!r}"
        return f" as {self.oauth.client_id!r}" if self.oauth.client_id else " by a token"

    def for_librdkafka(self) -> dict[str, Any]:
        """librdkafka's properties for one new client. With a token function, it is called now.

        Raises
        ------
        BacklogError
            There is no token.
        """
        given = {
            "security.protocol": self.protocol,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
            "ssl.ca.location": self.ca_file,
            "ssl.ca.pem": self.ca_text,
            "ssl.certificate.location": self.certificate_file,
            "ssl.certificate.pem": self.certificate_text,
            "ssl.key.location": self.key_file,
            "ssl.key.pem": self.key_text,
            "ssl.key.password": self.key_password,
            "ssl.endpoint.identification.algorithm": ("https" if self.checks_host else "none") if self.has_tls else "",
        }
        tokens: dict[str, Any] = dict(self.oauth.for_librdkafka())
        if self.oauth.has_function:
            tokens["oauth_cb"] = token_callback(self.oauth)
        return {**{name: value for name, value in given.items() if value}, **tokens}

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
        oauth = OAuth()
        if found["protocol"].startswith("SASL"):
            oauth = _log_in(given, found)
        else:
            names = [n for n in SECURITY_NAMES if n.startswith("sasl.")]
            _refuse(given, names, found["protocol"], "SASL_SSL or SASL_PLAINTEXT")
        if not found["protocol"].endswith("SSL"):
            names = [n for n in SECURITY_NAMES if n.startswith("ssl.")]
            _refuse(given, names, found["protocol"], "SSL or SASL_SSL")
        algorithm = given.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in ("https", "", "none"):
            raise SettingError(
                "kafka.ssl.endpoint.identification.algorithm", algorithm, "is neither https nor none.", "Leave it out."
            )
        return cls(**found, checks_host=algorithm == "https", oauth=oauth)

    def __str__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if f.repr)
        return ", ".join(f"{name}={value!r}" for name, value in shown if value)


def _one(given: Mapping[str, str], names: tuple[str, ...]) -> str:
    there = [name for name in names if given.get(name)]
    if len(there) > 1:
        raise SettingError(f"kafka.{there[1]}", "***", f"kafka.{there[0]} is the same option.", "Set one.")
    return given[there[0]] if there else ""


def _to_pem(store: str, file: str, text: str) -> str:
    base = str(PurePath(file).with_suffix(""))
    hint = _PEM_HINTS[store].format(
        file=shlex.quote(file), p12=shlex.quote(base + ".p12"), pem=shlex.quote(base + ".pem")
    )
    return (
        f"{hint}, and set kafka.{store}.type=PEM and kafka.{store}.location={base}.pem. PEM text itself can be given as"
        f" kafka.{text}."
    )


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
        named = (f"{store}.type", f"{store}.password", *names)
        if kind != "PEM" and any(given.get(name) for name in named):
            raise SettingError(
                f"kafka.{store}.type",
                kind,
                "is a store that only Java can read.",
                _to_pem(store, given.get(f"{store}.location") or "store.jks", text),
            )
        if f"{store}.password" in given:
            more = " The key's password is kafka.ssl.key.password." if store == "ssl.keystore" else ""
            raise SettingError(
                f"kafka.{store}.password",
                "***",
                f"a store with kafka.{store}.type=PEM has none.",
                "Leave it out." + more,
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


def _log_in(given: Mapping[str, str], found: dict[str, str]) -> OAuth:
    mechanism = found["mechanism"] = (found["mechanism"] or "GSSAPI").upper()
    if mechanism == "GSSAPI":
        raise SettingError("kafka.sasl.mechanism", mechanism, "is Kerberos (and Java's default).", KERBEROS)
    if mechanism not in _MECHANISMS:
        raise SettingError(
            "kafka.sasl.mechanism", mechanism, f"is none of {', '.join(_MECHANISMS)}.",
            "Set one of these that the brokers have.",
        )  # fmt: skip
    oauth = OAuth.parse(given, mechanism)
    if mechanism in (OAUTH, AWS):
        found["mechanism"] = OAUTH
        if found["username"] or found["password"]:
            raise SettingError(
                f"kafka.sasl.{'username' if found['username'] else 'password'}", "***",
                f"has no meaning with kafka.sasl.mechanism={mechanism}.", "Leave it out.",
            )  # fmt: skip
        return oauth
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
    return oauth


def _refuse(given: Mapping[str, str], names: tuple[str, ...] | list[str], protocol: str, needed: str) -> None:
    for name in names:
        if given.get(name):
            raise SettingError(
                f"kafka.{name}", "***", f"has no meaning with kafka.security.protocol={protocol}.",
                f"Set kafka.security.protocol={needed}.",
            )  # fmt: skip
