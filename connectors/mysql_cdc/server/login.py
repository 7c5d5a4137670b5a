"""The options of a login: the password's origin, TLS, and how passwords are protected from unverified servers.

Sources: MySQL Reference Manual, "Client-Side Cleartext Pluggable Authentication" and "Caching SHA-2 Pluggable
Authentication"; MariaDB Knowledge Base, "Authentication Plugin - PAM".
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import ssl
from dataclasses import dataclass
from typing import Any, Self

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import choice, flag, text, values
from backlog_spark.spi.user_options import UserOptions

from . import passwords

__all__ = ["Login", "warn_unverified", "without_authorities"]

_log = logging.getLogger(__name__)
_WAYS = ("password", "passwordFile", "passwordEnv", "passwordCommand", "passwordFunction")
_VERIFIED = ("verify_ca", "verify_identity")
_CLEARTEXT = ("mysql_clear_password", "dialog")


@dataclass(frozen=True)
class Login:
    """Parsed options. Passwords and certificates are read when a connection is made, in the process that makes it."""

    password_file: str = text("passwordFile", type="path")
    """File with the password, instead of `password`. A line end is removed. The file is read for each connection, so it
    may change. The driver and all executors need it."""
    password_env: str = text("passwordEnv")
    """Environment variable with the password, on the driver and the executors (`spark.executorEnv.…`)."""
    password_command: str = text("passwordCommand", secret=True, type="command")
    """Program that prints the password, with its arguments, on the driver and the executors ([Passwords that
    change](mysql_cdc_server.md#passwords-that-change)). There is no shell around it. Its answer is kept for a minute,
    or until the server refuses it."""
    password_function: str = text("passwordFunction", type="name", bounds="module:function")
    """Python function that returns the password. It is called for each connection, with the arguments `host`, `port`
    and `user`, on the driver and the executors."""
    ssl_mode: str = choice(
        "ssl.mode",
        ("disabled", "preferred", "required", "verify_ca", "verify_identity"),
        "preferred",
        flink="jdbc.properties.sslMode",
        debezium="database.ssl.mode",
    )
    """Like the mysql client's --ssl-mode. preferred: TLS if the server has it, without a check of its certificate.
    verify_ca: a known authority must have signed its certificate. verify_identity: the certificate must also name the
    host."""
    takes_public_key: bool = flag("allowPublicKeyRetrieval", flink="jdbc.properties.allowPublicKeyRetrieval")
    """Without TLS, whether the server may send its public key to encrypt the password for `caching_sha2_password` and
    `sha256_password`. Then somebody who poses as the server can get the password."""
    ssl_ca: str = text(
        "ssl.ca",
        type="path",
        shown="the system's",
        bounds="with verify_ca, verify_identity",
        debezium="database.ssl.truststore",
    )
    """Certificates of the known authorities (PEM)."""
    ssl_cert: str = text(
        "ssl.cert", type="path", bounds="with required, verify_ca, verify_identity", debezium="database.ssl.keystore"
    )
    """The client's certificate (PEM); needs `ssl.key`."""
    ssl_key: str = text("ssl.key", type="path", debezium="database.ssl.keystore")
    """The client's private key (PEM), not encrypted."""

    @classmethod
    def parse(cls, given: UserOptions) -> Self:
        """Parse the options.

        Raises
        ------
        SettingError
            The password is given more than once, the mode is unknown, or the mode would not use a file.
        """
        ways = [name for name in _WAYS if given.text(name)]
        if len(ways) > 1:
            raise SettingError(ways[1], "***", f"the password is given by {ways[0]} already.", "Give it once.")
        found = cls(**values(cls, given))
        mode = found.ssl_mode
        if found.ssl_ca and mode not in _VERIFIED:
            raise SettingError(
                "ssl.ca",
                found.ssl_ca,
                f"is not used with ssl.mode={mode}.",
                "Set ssl.mode=verify_ca or verify_identity.",
            )
        if bool(found.ssl_cert) != bool(found.ssl_key):
            name, other = ("ssl.cert", "ssl.key") if found.ssl_cert else ("ssl.key", "ssl.cert")
            raise SettingError(name, found.ssl_cert or found.ssl_key, f"needs {other}.", "Give both.")
        if found.ssl_cert and mode in ("disabled", "preferred"):
            raise SettingError(
                "ssl.cert", found.ssl_cert, f"may not be used with ssl.mode={mode}.", "Set ssl.mode=required or more."
            )
        return found

    def password(self, host: str, port: int, user: str) -> str:
        """The password for a new connection; "" if none of these options is set.

        Raises
        ------
        SettingError
            There is no password where the option says. It never shows what was found there.
        """
        if self.password_env:
            return passwords.of_variable(self.password_env)
        if self.password_command:
            return passwords.of_command(self.password_command)
        if self.password_function:
            return passwords.of_function(self.password_function, host, port, user)
        return passwords.of_file(self.password_file) if self.password_file else ""

    def renew(self) -> bool:
        """After the server has refused the password: whether the next connection gets another one."""
        return bool(self.password_command) and passwords.forget(self.password_command)

    def check_plugin(self, plugin: str, *, is_encrypted: bool) -> None:
        """Refuse an authentication plugin that would send the password in clear text to an unverified server.

        Raises
        ------
        SettingError
            It names the setting to change.
        """
        if plugin in _CLEARTEXT and not (is_encrypted and self.ssl_mode in _VERIFIED):
            raise SettingError(
                "ssl.mode", self.ssl_mode,
                f"the server asks for the password in clear text ({plugin}), but the server is not verified.",
                "Set ssl.mode=verify_ca or verify_identity, or use an account with another authentication plugin.",
            )  # fmt: skip

    def check_public_key(self) -> None:
        """Refuse to encrypt the password with a key that comes from an unverified server.

        Raises
        ------
        SettingError
            It names the ways to log in without such a key.
        """
        if not self.takes_public_key:
            raise SettingError(
                "allowPublicKeyRetrieval", "false",
                "without TLS the server asks for the password encrypted with its public key, but the key is not "
                "verified.",
                "Use TLS (ssl.mode=required or more). If you trust the network, set allowPublicKeyRetrieval=true.",
            )  # fmt: skip

    def tls(self) -> dict[str, Any]:
        """Arguments for ``pymysql.connect``.

        Raises
        ------
        SettingError
            A file cannot be read, or is not a certificate or key.
        """
        if self.ssl_mode == "disabled":
            return {"ssl_disabled": True}
        if self.ssl_mode == "preferred":
            return {}
        if self.ssl_mode == "required":
            context = without_authorities()
        else:
            context = self._made("ssl.ca", self.ssl_ca, lambda: ssl.create_default_context(cafile=self.ssl_ca or None))
            # MySQL's own tools create certificate authorities without extensions that newer Pythons require.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.check_hostname = self.ssl_mode == "verify_identity"
        if self.ssl_cert:
            self._made("ssl.cert", self.ssl_cert, lambda: context.load_cert_chain(self.ssl_cert, self.ssl_key))
        return {"ssl": context}

    def _made(self, name: str, path: str, make: Any) -> Any:
        try:
            return make()
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or str(error)
            raise SettingError(name, path, f"cannot be used: {why}.", "Give a PEM file that fits the others.") from None


@functools.cache
def warn_unverified(host: str, mode: str) -> None:
    """Warn once about a connection to another machine that ``ssl.mode=preferred`` does not verify."""
    if mode == "preferred" and not _is_loopback(host):
        _log.warning(
            "The connection to %s is not verified (ssl.mode=preferred): a server that poses as %s could get the "
            "password, and read or change the rows. Set ssl.mode=verify_ca or verify_identity.",
            host,
            host,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def without_authorities() -> ssl.SSLContext:
    """TLS without certificate checks. It does not read the system's trusted certificates, which would take 30 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
