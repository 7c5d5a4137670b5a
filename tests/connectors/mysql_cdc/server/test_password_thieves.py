"""A fake server that asks for the password in unsafe ways does not get it."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.server.connection import open_connection
from backlog_spark.connectors.mysql_cdc.server.login import warn_unverified
from backlog_spark.errors import BacklogError, SettingError

from .test_login import Authority

SECRET = b"open sesame"
_PROTOCOL_41, _SSL, _SECURE, _PLUGIN_AUTH = 1 << 9, 1 << 11, 1 << 15, 1 << 19
_SALT = b"12345678", b"123456789012\0"
_OK = b"\0\0\0\2\0\0\0"
_KEY = rsa.generate_private_key(65537, 2048)
_PEM = _KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Thief:
    """Speaks the handshake, and asks for the password.

    Parameters
    ----------
    plugin : str
        Its first words name this plugin.
    asks : list of bytes
        What it sends, one packet after each of the client's.
    tls : tuple of paths, optional
        Certificate and key; without, it has no TLS.
    """

    def __init__(self, plugin: str, asks: list[bytes], tls: tuple[Path, Path] | None = None) -> None:
        self._plugin, self._asks, self._tls = plugin.encode(), asks, tls
        self.got: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Thief:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
            with client:
                self._talk(client)
        except OSError:
            pass

    def _talk(self, client: socket.socket) -> None:
        flags = _PROTOCOL_41 | _SECURE | _PLUGIN_AUTH | (_SSL if self._tls else 0)
        low, high = struct.pack("<H", flags & 0xFFFF), struct.pack("<H", flags >> 16)
        hello = b"\x0a8.0.36\0" + struct.pack("<I", 7) + _SALT[0] + b"\0" + low + b"\x2d\2\0" + high
        number = self._send(client, 0, hello + bytes([21]) + bytes(10) + _SALT[1] + self._plugin + b"\0")
        number = self._receive(client)
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._tls)
            client = context.wrap_socket(client, server_side=True)
            number = self._receive(client)
        for ask in self._asks:
            self._send(client, number + 1, ask)
            number = self._receive(client)
        self._send(client, number + 1, _OK)

    def _send(self, client: socket.socket, number: int, body: bytes) -> int:
        client.sendall(struct.pack("<I", len(body) | number << 24) + body)
        return number

    def _receive(self, client: socket.socket) -> int:
        header = self._exactly(client, 4)
        self.got.append(self._exactly(client, int.from_bytes(header[:3], "little")))
        return header[3]

    def _exactly(self, client: socket.socket, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = client.recv(size - len(found))
            if not piece:
                raise OSError("closed")
            found += piece
        return found

    def has_the_password(self) -> bool:
        """In clear text, or encrypted for its own key."""
        return any(SECRET in each or self._opens(each) for each in self.got)

    @staticmethod
    def _opens(packet: bytes) -> bool:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        try:
            found = _KEY.decrypt(packet, padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
        except ValueError:
            return False
        salt = b"".join(_SALT)[:20]
        return bytes(b ^ salt[i % 20] for i, b in enumerate(found)) == SECRET + b"\0"


def switch(plugin: str, data: bytes = b"") -> bytes:
    return b"\xfe" + plugin.encode() + b"\0" + data


CLEAR, DIALOG = switch("mysql_clear_password"), switch("dialog", b"\4Password: ")
ASKS = {
    "clear text": ("mysql_native_password", [CLEAR], "ssl.mode.*clear text .mysql_clear_password"),
    "dialog": ("mysql_native_password", [DIALOG], "ssl.mode.*clear text .dialog"),
    "key of caching_sha2": (
        "caching_sha2_password", [b"\1\4", b"\1" + _PEM], "allowPublicKeyRetrieval.*its public key",
    ),
    "key of caching_sha2 after a switch": (
        "mysql_native_password",
        [switch("caching_sha2_password", b"".join(_SALT)), b"\1\4", b"\1" + _PEM],
        "allowPublicKeyRetrieval.*its public key",
    ),
    "key of sha256": ("sha256_password", [b"\1" + _PEM], "allowPublicKeyRetrieval.*its public key"),
    "key of sha256 after a switch": (
        "mysql_native_password",
        [switch("sha256_password", b"".join(_SALT)), b"\1" + _PEM],
        "allowPublicKeyRetrieval.*its public key",
    ),
}  # fmt: skip


def log_in(thief: Thief, **more: object) -> None:
    given = {"host": "127.0.0.1", "port": thief.port, "user": "u", "table": "a.b", "password": SECRET.decode(), **more}
    open_connection(MySqlOptions.parse({k.replace("__", "."): str(v) for k, v in given.items()}))


@pytest.mark.parametrize("mode", ["disabled", "preferred"])
@pytest.mark.parametrize("name", ASKS)
def test_a_server_without_tls_gets_nothing(name: str, mode: str) -> None:
    plugin, asks, problem = ASKS[name]
    with Thief(plugin, asks) as thief:
        with pytest.raises(SettingError, match=problem) as caught:
            log_in(thief, ssl__mode=mode)
        assert SECRET.decode() not in f"{caught.value!r}{caught.value}"
    assert thief.got
    assert not thief.has_the_password()


@pytest.mark.parametrize("mode", ["preferred", "required"])
@pytest.mark.parametrize("ask", [CLEAR, DIALOG], ids=["clear text", "dialog"])
def test_tls_that_is_not_verified_does_not_make_clear_text_safe(tmp_path: Path, ask: bytes, mode: str) -> None:
    tls = Authority(tmp_path, "own").sign("server", "localhost")
    with (
        Thief("mysql_native_password", [ask], tls) as thief,
        pytest.raises(SettingError, match=r"ssl\.mode.*clear text"),
    ):
        log_in(thief, ssl__mode=mode)
    assert len(thief.got) == 2  # for TLS, and inside it
    assert not thief.has_the_password()


@pytest.mark.parametrize("ask", [CLEAR, DIALOG], ids=["clear text", "dialog"])
def test_a_verified_server_gets_the_password_as_it_asks(tmp_path: Path, ask: bytes) -> None:
    """As a server with LDAP or PAM."""
    authority = Authority(tmp_path, "own")
    with (
        Thief("mysql_native_password", [ask], authority.sign("server", "localhost")) as thief,
        pytest.raises(BacklogError, match="cannot be reached"),  # it says no more
    ):
        log_in(thief, host="localhost", ssl__mode="verify_identity", ssl__ca=authority.path)
    assert thief.got[2] == SECRET + b"\0"


@pytest.mark.parametrize("name", [name for name in ASKS if name.startswith("key")])
def test_a_key_is_taken_when_that_is_allowed(name: str) -> None:
    plugin, asks, _ = ASKS[name]
    with Thief(plugin, asks) as thief, pytest.raises(BacklogError, match="cannot be reached"):
        log_in(thief, ssl__mode="disabled", allowPublicKeyRetrieval="true")
    assert thief.has_the_password()


def test_a_packet_without_end_is_not_collected() -> None:
    """Pieces of 16 MiB that never end: refused at the size that no server exceeds."""

    class Endless(Thief):
        def _talk(self, client: socket.socket) -> None:
            piece = bytes(0xFFFFFF)
            for number in range(200):
                client.sendall(struct.pack("<I", 0xFFFFFF | number % 256 << 24) + piece)

    from backlog_spark.connectors.mysql_cdc.server import connection

    with pytest.MonkeyPatch.context() as patch, Endless("", []) as thief:
        patch.setattr(connection, "_MOST_JOINED", 64 << 20)
        with pytest.raises(BacklogError, match="a packet of more than 67,108,864 bytes"):
            log_in(thief)


@pytest.mark.parametrize(
    ("host", "mode", "warns"),
    [
        ("db.example.org", "preferred", True),
        ("10.0.0.7", "preferred", True),
        ("db.example.org", "required", False),
        ("db.example.org", "verify_ca", False),
        ("localhost", "preferred", False),
        ("127.0.0.2", "preferred", False),
        ("::1", "preferred", False),
    ],
)
def test_another_machine_that_is_not_verified_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, host: str, mode: str, warns: bool
) -> None:
    warn_unverified.cache_clear()
    with caplog.at_level(logging.WARNING):
        warn_unverified(host, mode)
        warn_unverified(host, mode)
    assert [host in record.getMessage() for record in caplog.records] == [True] * warns


def parse(value: str) -> Any:
    return MySqlOptions.parse({"host": "h", "user": "u", "table": "a.b", "allowPublicKeyRetrieval": value})


def test_the_option_is_true_or_false() -> None:
    assert parse("TRUE").login.takes_public_key
    with pytest.raises(SettingError, match="none of true, false"):
        parse("yes")
