"""Where a database is, and who logs in to it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from backlog_spark.common.table_names import TableName
from backlog_spark.errors import SettingError
from backlog_spark.spi.registry import connector_module
from backlog_spark.spi.user_options import UserOptions

__all__ = ["PORTS", "Account", "Address", "Place", "parse_table"]

PORTS: Final = {"mysql": 3306, "mariadb": 3306, "postgresql": 5432}
"""The kinds of servers, by the scheme of their URLs, and their usual ports."""

_FOR_EXAMPLE: Final = 'Write url="postgresql://host:5432/database", or mysql:// or mariadb://.'


class Place(NamedTuple):
    """A table.

    Parameters
    ----------
    schema : str
        PostgreSQL's schema, or the database of MySQL; "" for that of the connection.
    table : str
    """

    schema: str
    table: str

    def __str__(self) -> str:
        return str(TableName(self.schema, self.table)) if self.schema else self.table


@dataclass(frozen=True)
class Address:
    """A database on a server.

    Parameters
    ----------
    scheme : str
        One of `PORTS`.
    host : str
    port : int
    database : str
        "" only for MySQL and MariaDB.
    """

    scheme: str
    host: str
    port: int
    database: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}/{quote(self.database)}"

    @classmethod
    def parse(cls, url: str) -> Address:
        """The address that a URL names, with or without ``jdbc:`` before it.

        Raises
        ------
        SettingError
            It is no such URL, or has a user, a password or parameters. It may have a secret then, so it is not shown.
        """
        shown = "***" if "@" in url or "?" in url else url
        try:
            parts = urlsplit(url.strip().removeprefix("jdbc:"))
            port = parts.port
        except ValueError:
            raise SettingError("url", shown, "is no URL.", _FOR_EXAMPLE) from None
        if "@" in url:
            raise SettingError(
                "url", shown, "has a user or a password in it: others would see them in logs and reports.",
                "Write user=… and password_file=…, and leave them out of the url.",
            )  # fmt: skip
        if parts.query or parts.fragment:
            raise SettingError(
                "url", shown, "has parameters, which are not read.", "Write ssl_mode=…, ssl_ca=… and so on instead."
            )
        if parts.scheme not in PORTS:
            raise SettingError("url", shown, f"does not begin with {', '.join(PORTS)}.", _FOR_EXAMPLE)
        database = unquote(parts.path.strip("/"))
        if not parts.hostname or "/" in parts.path.strip("/") or (parts.scheme == "postgresql" and not database):
            raise SettingError("url", shown, "needs a host and a database.", _FOR_EXAMPLE)
        return cls(parts.scheme, parts.hostname, port or PORTS[parts.scheme], database)


def parse_table(text: str, address: Address) -> Place:
    """The table that a sink's argument ``table`` names: ``table`` or ``schema.table``, quoted as in `TableName`.

    Raises
    ------
    SettingError
        It names none or several, or MySQL's database is neither in it nor in the URL.
    """
    hint = 'Write table="orders" or "shop.orders". A name with a dot is quoted: "`my.shop`.`my.orders`".'
    try:
        is_whole = any(char in text for char in ".,`")
        found = Place(*TableName.parse(text)) if is_whole else Place("", text.strip())
    except ValueError:
        raise SettingError("table", text, "is not table or schema.table.", hint) from None
    if not found.table:
        raise SettingError("table", text, "is empty.", hint)
    if address.scheme == "postgresql" or found.schema:
        return found
    if not address.database:
        raise SettingError("table", text, "names no database, and neither does the url.", hint)
    return Place(address.database, found.table)


@dataclass(frozen=True)
class Account:
    """A user and how it logs in. The password of a file or a variable is read by the process that connects.

    Parameters
    ----------
    user : str
    secret : str
        The password, if it was given itself.
    login : object
        ``mysql_cdc``'s `Login`: files, TLS, and what an unverified server may get.
    """

    user: str
    secret: str = field(repr=False)
    login: Any

    @classmethod
    def parse(cls, user: str, password: str, options: Mapping[str, str]) -> Account:
        """``options``: those of the source ``mysql_cdc`` with their names there.

        Raises
        ------
        SettingError
            As of `Login.parse`.
        """
        given = {name: text for name, text in {"password": password, **options}.items() if text}
        return cls(user, password, connector_module("mysql_cdc", "server.login").Login.parse(UserOptions(given)))

    def password(self, address: Address) -> str:
        """The password for a new connection; "" if there is none."""
        found: str = self.login.password(address.host, address.port, self.user)
        return found or self.secret
