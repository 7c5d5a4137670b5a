"""Names of properties of Java's Kafka clients that have no meaning for librdkafka, and what to do instead (pure)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from backlog_spark.errors import SettingError

__all__ = ["KERBEROS", "check_name"]

KERBEROS: Final = (
    "The wheels of confluent-kafka have no Kerberos. Use SCRAM or OAUTHBEARER, or read with Spark's own source kafka"
    " and the rule backlog_when."
)
"""What to do instead of Kerberos."""

# By the beginning of Java's name.
_JAVAS: Final = {
    r"sasl\.kerberos\.": KERBEROS,
    r"sasl\.login\.class": "A Python client has no Java classes. Leave it out.",
    r"sasl\.(login|server)\.callback\.": "A Python client has no Java classes. Leave it out.",
    r"sasl\.login\.(connect|read|retry)\.": "librdkafka has time limits of its own for the token server. Leave it out.",
    r"sasl\.login\.refresh\.": "A token is renewed after 80 % of its life. Leave it out.",
    r"sasl\.oauthbearer\.header\.urlencode": "librdkafka writes the header by itself. Leave it out.",
    r"sasl\.oauthbearer\.(clock|expected|jwks|scope\.claim|sub\.claim|jti)": (
        "Brokers check tokens by it, not clients. Leave it out."
    ),
    r"sasl\.oauthbearer\.(assertion|client\.credentials|jwt\.)": (
        "Set kafka.sasl.oauthbearer.client.id and .client.secret, or kafka.sasl.oauthbearer.token.function."
    ),
    r"ssl\.(protocol|enabled\.protocols)": (
        "Both sides use the highest version that they have in common. Leave it out."
    ),
    r"(security\.providers|ssl\.(provider|engine|keymanager|trustmanager|secure))": "OpenSSL is used. Leave it out.",
    r"(interceptor\.classes|metric\.reporters|auto\.include\.jmx)": (
        "A Python client has no Java classes. Leave it out."
    ),
    r"(metrics\.|enable\.metrics\.push)": "The query's progress has the source's figures. Leave it out.",
    r"metadata\.recovery\.": "A client without a broker asks kafka.bootstrap.servers again. Leave it out.",
    r"socket\.connection\.setup\.timeout\.max\.": "Set kafka.socket.connection.setup.timeout.ms, which does not grow.",
    r"internal\.": "It is for Java's client alone. Leave it out.",
}


def check_name(name: str, whose: str, known: Collection[str], refused: Mapping[str, str], see: str) -> None:
    """Refuse a property that is not `known`.

    Parameters
    ----------
    name : str
        As given, without ``kafka.``.
    whose : str
        Who takes properties, such as ``"the Kafka phase"``.
    refused : Mapping
        What to do instead, by name, before the ones that nobody takes.
    see : str
        Where all are listed.

    Raises
    ------
    SettingError
        The value is never shown: the name may be a misspelt password.
    """
    if name in known and name not in refused:
        return
    instead = refused.get(name) or next((do for begin, do in _JAVAS.items() if re.match(begin, name)), "")
    if instead:
        raise SettingError(f"kafka.{name}", "***", f"is not accepted by {whose}.", instead)
    near = [f"kafka.{found}" for found in difflib.get_close_matches(name.lower(), known)]
    hint = f"Did you mean {' or '.join(near)}?" if near else see
    raise SettingError(f"kafka.{name}", "***", f"{whose} has no such property.", hint)
