"""Logins by token: OAUTHBEARER and AWS_MSK_IAM, from properties of Java's clients and librdkafka (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.kafka_jaas import read_jaas
from backlog_spark.spi.options import Option, parsed

__all__ = ["AWS", "OAUTH", "OAUTH_NAMES", "OAUTH_SECRETS", "TOKEN_FUNCTION", "OAuth"]

OAUTH: Final = "OAUTHBEARER"
AWS: Final = "AWS_MSK_IAM"
TOKEN_FUNCTION: Final = "kafka.sasl.oauthbearer.token.function"
_HANDLER: Final = "sasl.login.callback.handler.class"
_AWS_HANDLER: Final = "sasl.client.callback.handler.class"
_METHOD: Final = "sasl.oauthbearer.method"
_JAAS: Final = "kafka.sasl.jaas.config"
_INSTEAD: Final = f"Write a Python function that returns a token, and set {TOKEN_FUNCTION}=module:function."

# By field: librdkafka's name, then Java's, then that of the JAAS line.
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "url": ("sasl.oauthbearer.token.endpoint.url",),
    "client_id": ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id", "clientId"),
    "client_secret": (
        "sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret", "clientSecret",
    ),
    "scope": ("sasl.oauthbearer.scope", "scope"),
    "extensions": ("sasl.oauthbearer.extensions",),
    "function": (TOKEN_FUNCTION.removeprefix("kafka."),),
    "aws_region": ("sasl.aws.region",),
}  # fmt: skip
OAUTH_NAMES: Final = (
    *(name for names in _FIELDS.values() for name in names if "." in name), _METHOD, _HANDLER, _AWS_HANDLER,
)  # fmt: skip
"""Properties that `OAuth.parse` reads, without ``kafka.``"""
OAUTH_SECRETS: Final = _FIELDS["client_secret"][:2]


@dataclass(frozen=True)
class OAuth:
    """Where tokens come from: the function, a server of OpenID Connect (``url``), or AWS.

    Parameters
    ----------
    url, client_id, client_secret, scope, extensions : str
        Of librdkafka's own client; ``extensions`` as ``name=value,…``.
    is_aws : bool
        Whether AWS's library signs the tokens.
    """

    function: str = parsed(None, Option(TOKEN_FUNCTION, "name", bounds="module:function"), default="")
    """Python function without arguments for OAUTHBEARER. It returns a token and the time at which it expires, in
    seconds since 1970. Driver and executors call it when a client starts, then after 80 % of a token's life."""
    aws_region: str = parsed(None, Option("kafka.sasl.aws.region", shown="AWS_REGION"), default="")
    """Region of the cluster for AWS_MSK_IAM, whose tokens AWS's library signs with the credentials of each machine."""
    url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    extensions: str = ""
    is_aws: bool = False

    @property
    def has_function(self) -> bool:
        """Whether Python makes the tokens, not librdkafka."""
        return bool(self.function) or self.is_aws

    def for_librdkafka(self) -> dict[str, str]:
        """librdkafka's properties, if its own client fetches the tokens."""
        if not self.url:
            return {}
        given = {_METHOD: "oidc"}
        for name in ("url", "client_id", "client_secret", "scope", "extensions"):
            if value := getattr(self, name):
                given[_FIELDS[name][0]] = value
        return given

    @classmethod
    def parse(cls, given: Mapping[str, str], mechanism: str) -> Self:
        """From properties without ``kafka.``

        Parameters
        ----------
        given : mapping of str to str
        mechanism : str
            ``"OAUTHBEARER"``, ``"AWS_MSK_IAM"`` or any other.

        Raises
        ------
        SettingError
            Properties contradict each other, or only Java can do what they say.
        """
        there = [name for name in OAUTH_NAMES if given.get(name)]
        if mechanism not in (OAUTH, AWS):
            if there:
                raise SettingError(
                    f"kafka.{there[0]}", "***", f"has no meaning with kafka.sasl.mechanism={mechanism}.",
                    f"Set kafka.sasl.mechanism={AWS if 'aws' in there[0] else OAUTH}, or leave it out.",
                )  # fmt: skip
            return cls()
        jaas = _of_jaas(given, mechanism)
        if mechanism == AWS:
            _check_aws(given, there)
            return cls(is_aws=True, aws_region=given.get("sasl.aws.region", ""))
        _check_handlers(given)
        found: dict[str, Any] = {name: _one({**given, **jaas}, names) for name, names in _FIELDS.items()}
        more = ",".join(
            f"{name.removeprefix('extension_')}={value}"
            for name, value in jaas.items()
            if name.startswith("extension_")
        )
        found["extensions"] = ",".join(text for text in (found["extensions"], more) if text)
        if found["aws_region"]:
            raise SettingError("kafka.sasl.aws.region", found["aws_region"], f"is only for {AWS}.", "Leave it out.")
        if found["function"]:
            if others := [name for name in there if name != _FIELDS["function"][0]]:
                raise SettingError(
                    f"kafka.{others[0]}", "***", f"has no meaning with {TOKEN_FUNCTION}.", "Set one of them."
                )
        elif not (found["url"] and found["client_id"] and found["client_secret"]):
            raise SettingError(
                TOKEN_FUNCTION, None, f"kafka.sasl.mechanism={OAUTH} needs a way to get tokens.",
                "Set it, or kafka.sasl.oauthbearer.token.endpoint.url, kafka.sasl.oauthbearer.client.id and "
                "kafka.sasl.oauthbearer.client.secret.",
            )  # fmt: skip
        return cls(**found)


def _of_jaas(given: Mapping[str, str], mechanism: str) -> dict[str, str]:
    if not given.get("sasl.jaas.config"):
        return {}
    module, options = read_jaas(given["sasl.jaas.config"])
    wanted = "IAMLoginModule" if mechanism == AWS else "OAuthBearerLoginModule"
    if module != wanted:
        raise SettingError(
            _JAAS, "***", f"its module {module} does not fit kafka.sasl.mechanism={mechanism}.", f"Use {wanted}."
        )
    known = ("clientId", "clientSecret", "scope") if mechanism == OAUTH else ("awsDebugCreds",)
    for name in options:
        if name not in known and not (mechanism == OAUTH and name.startswith("extension_")):
            hint = (
                "Set the profile or role by AWS's variables, such as AWS_PROFILE, on driver and executors."
                if mechanism == AWS
                else _INSTEAD
            )
            raise SettingError(_JAAS, "***", f"its option {name} is only for Java's clients.", hint)
    return options


def _check_handlers(given: Mapping[str, str]) -> None:
    handler = given.get(_HANDLER, "")
    if handler and handler.rpartition(".")[2] != "OAuthBearerLoginCallbackHandler":
        raise SettingError(f"kafka.{_HANDLER}", handler, "a Python client has no Java classes.", _INSTEAD)
    if given.get(_AWS_HANDLER):
        raise SettingError(
            f"kafka.{_AWS_HANDLER}", given[_AWS_HANDLER], "a Python client has no Java classes.",
            f"Leave it out. For AWS's IAM set kafka.sasl.mechanism={AWS}.",
        )  # fmt: skip
    method = given.get(_METHOD, "oidc").strip().lower()
    if method != "oidc" and not (method == "default" and given.get(_FIELDS["function"][0])):
        raise SettingError(f"kafka.{_METHOD}", method, "is not supported: only oidc is.", _INSTEAD)


def _check_aws(given: Mapping[str, str], there: list[str]) -> None:
    handler = given.get(_AWS_HANDLER, "")
    if handler and handler.rpartition(".")[2] != "IAMClientCallbackHandler":
        raise SettingError(f"kafka.{_AWS_HANDLER}", handler, f"does not fit {AWS}.", "Leave it out.")
    for name in there:
        if name not in (_AWS_HANDLER, "sasl.aws.region"):
            raise SettingError(f"kafka.{name}", "***", f"has no meaning with {AWS}.", f"Set {OAUTH}, or leave it out.")


def _one(given: Mapping[str, str], names: tuple[str, ...]) -> str:
    there = [name for name in names if given.get(name)]
    if len(there) > 1:
        raise SettingError(f"kafka.{there[0]}", "***", f"{there[1]} gives it too.", "Set one of them.")
    return given[there[0]] if there else ""
