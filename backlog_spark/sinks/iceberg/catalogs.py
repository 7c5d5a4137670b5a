"""The catalog of an Iceberg table: its properties under pyiceberg's names, and texts without the secrets among them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from backlog_spark.common.requirements import require
from backlog_spark.errors import BacklogError, SettingError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["CatalogAccess", "checked_catalog", "checked_table"]

_FILE: Final = "catalog.db"
_NEXT: Final = (
    "Give a directory, {'warehouse': '/lake'}, a REST catalog, {'type': 'rest', 'uri': 'https://…'}, or the name of a "
    "catalog in pyiceberg's own configuration, {'name': 'prod'}. See docs/iceberg.md."
)
# The other properties may be secret: tokens, keys, and whatever a catalog of one's own has.
_SHOWN: Final = frozenset({"name", "type", "warehouse", "uri", "py-catalog-impl", "py-io-impl"})
_USER: Final = re.compile(r"(?<=://)[^/@]*@")
# A shorter one would also be replaced where it is a part of a word.
_SHORTEST_SECRET: Final = 4


def checked_table(table: str) -> str:
    """The sinks' argument ``table``."""
    if "." not in table.strip(".") or not all(part.strip() for part in table.split(".")):
        raise SettingError("table", table, "is no namespace and table.", "Write both, such as shop.orders.")
    return table


def checked_catalog(catalog: Mapping[str, str]) -> dict[str, str]:
    """The sinks' argument ``catalog``. A directory alone gets a catalog in SQLite there."""
    found = dict(catalog)
    if not found:
        raise SettingError("catalog", {}, "names no catalog.", _NEXT)
    if set(found) <= {"name", "warehouse", "type"} and "warehouse" in found and found.get("type", "sql") == "sql":
        warehouse = found["warehouse"].removeprefix("file://")
        if "://" in warehouse or not warehouse.strip():
            raise SettingError(
                "catalog", shown(found), "SQLite keeps a catalog on a disk of the driver only.",
                "Add the catalog's uri, of a database or a REST server.",
            )  # fmt: skip
        path = str(Path(warehouse).expanduser().absolute())
        found |= {"type": "sql", "uri": f"sqlite:///{path}/{_FILE}", "warehouse": path}
    return found


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without secrets."""
    return {name: _public(text) if name in _SHOWN else "***" for name, text in properties.items()}


def _public(text: str) -> str:
    return _USER.sub("", text.partition("?")[0])


class CatalogAccess:
    """Opens a catalog, and loads and creates its tables. Its errors have no secrets.

    Parameters
    ----------
    properties : mapping of str to str
        As of `checked_catalog`.
    table : str
        Namespace and name; "" for all tables of the catalog.
    """

    def __init__(self, properties: Mapping[str, str], table: str = "") -> None:
        self._properties = dict(properties)
        self._table = table
        self._catalog: Catalog | None = None
        self._whole: CatalogAccess | None = None

    def of(self, table: str) -> CatalogAccess:
        """Another table of the catalog, by the same client."""
        made = CatalogAccess(self._properties, table)
        made._whole = self._whole or self
        return made

    def copy(self) -> CatalogAccess:
        """The same without a client, for another thread."""
        return CatalogAccess(self._properties, self._table)

    @property
    def place(self) -> str:
        """The table's place as one text, without credentials."""
        found = self._properties
        where = _public(found["uri"]) if found.get("uri") else f"{found.get('type', 'catalog')}:/"
        parts = [where.rstrip("/")]
        # One server may have several catalogs, told apart by the warehouse or the name.
        if found.get("type") != "sql" and found.get("warehouse"):
            parts.append(_public(found["warehouse"]).strip("/"))
        if found.get("name"):
            parts.append(found["name"])
        return "/".join((*parts, self._table) if self._table else parts)

    @property
    def catalog(self) -> Catalog:
        if self._whole is not None:
            return self._whole.catalog
        if self._catalog is None:
            require("An Iceberg sink", "pyiceberg")
            from pyiceberg.catalog import load_catalog

            self._make_directory()
            named = {name: text for name, text in self._properties.items() if name != "name"}
            with self.readable():
                self._catalog = load_catalog(self._properties.get("name", "default"), **named)
        return self._catalog

    def load(self) -> Table | None:
        """The table's newest version; None if there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.readable():
            try:
                return self.catalog.load_table(self._table)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None

    @contextmanager
    def readable(self, *passing: type[Exception]) -> Iterator[None]:
        """Errors of pyiceberg and its clients, whose texts may have an address with a password, without it.

        Parameters
        ----------
        *passing : type
            Errors that pass as they are.
        """
        as_they_are: tuple[type[Exception], ...] = (BacklogError, *passing)
        try:
            yield
        except as_they_are:
            raise
        except Exception as error:
            text = self.scrubbed(f"{type(error).__name__}: {error}".partition("\n")[0])
            raise BacklogError(
                f"The catalog of the Iceberg table {self._table} cannot be used ({self.place}): {text}.",
                "Check the properties of catalog, and that its server and the storage can be reached.",
            ) from None

    def scrubbed(self, text: str) -> str:
        """A text without the values of secret properties."""
        secrets = [value for name, value in self._properties.items() if name not in _SHOWN]
        for address in (self._properties.get("uri", ""), self._properties.get("warehouse", "")):
            parts = _parts(address)
            secrets += [part for part in parts if part]
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return _USER.sub("", text)

    def _make_directory(self) -> None:
        uri, path = self._properties.get("uri", ""), self._properties.get("warehouse", "")
        if uri == f"sqlite:///{path}/{_FILE}":
            try:
                Path(path).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SettingError(
                    "catalog", shown(self._properties), f"the directory cannot be made: {error.strerror}.",
                    "Name a directory where the driver can write.",
                ) from None  # fmt: skip


def _parts(address: str) -> tuple[str | None, ...]:
    try:
        found = urlsplit(address)
        return found.password, found.query
    except ValueError:
        return (address,)
