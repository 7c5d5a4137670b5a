"""Order bytes of keys: they compare as the server compares the keys. For text the server is asked.

``'a' = 'A' = 'á'`` in utf8mb4_0900_ai_ci, and no Python library knows the 229 collations of MySQL 8.0. The server gives
a text's weights, by which it sorts too; the bytes of the weights compare as the texts do. Tests check this for every
collation that is accepted.

Source: MySQL Reference Manual, "String Functions and Operators", WEIGHT_STRING.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backlog_spark.errors import BacklogError

from .keys import Key, KeyValue, key_kind, order_encoder, text_literal, weight_order
from .types import Column

__all__ = ["OrderBytes"]

# Texts of one statement: their literals, twice as long as their bytes, stay far below max_allowed_packet.
_TEXTS = 1_000
_CHARACTERS = 200_000


class OrderBytes:
    """Finds the order bytes of keys.

    Parameters
    ----------
    columns : sequence of Column
        The key's columns. May be empty: then all keys have the same order bytes.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        kinds = [key_kind(c) for c in columns]
        self._texts = [kind is not None and kind.text for kind in kinds]
        self._spaces: dict[str, bytes] = {}
        self._parts = [order_encoder(c) for c in columns]

    @property
    def asks(self) -> bool:
        """Whether the server must be asked, because a column is text."""
        return any(self._texts)

    def known(self, key: Sequence[Any]) -> bytes:
        """Order bytes of a key without text."""
        parts = self._parts
        return parts[0](key[0]) if len(parts) == 1 else b"".join([part(v) for part, v in zip(parts, key, strict=True)])

    def of(self, ask: Callable[[str], list[tuple[Any, ...]]], keys: Sequence[Key]) -> list[bytes]:
        """Order bytes of keys. ``ask`` runs a statement on the server."""
        if not self.asks or not keys:
            return [self.known(key) for key in keys]
        parts: list[list[bytes]] = []
        for i, column in enumerate(self._columns):
            values = [key[i] for key in keys]
            if self._texts[i]:
                weights = self._weights(ask, column, list(dict.fromkeys(v for v in values if v is not None)))
                start, null = (b"\1", b"\0") if column.nullable else (b"", b"")
                parts.append([null if v is None else start + weights[v] for v in values])
            else:
                parts.append([self._parts[i](v) for v in values])
        return [b"".join(key) for key in zip(*parts, strict=True)]

    def _weights(
        self, ask: Callable[[str], list[tuple[Any, ...]]], column: Column, texts: list[KeyValue]
    ) -> dict[KeyValue, bytes]:
        if column.name not in self._spaces:
            a, padded, blank = (text_literal(column, text) for text in ("a", "a ", " "))
            same, space = ask(f"SELECT {a} = {padded}, WEIGHT_STRING({blank})")[0]
            self._spaces[column.name] = bytes(space) if int(same) else b""
        space = self._spaces[column.name]
        weights: dict[KeyValue, bytes] = {}
        block: list[str] = []
        size = 0

        def fetch() -> None:
            row = ask("SELECT " + ", ".join(f"WEIGHT_STRING({text_literal(column, text)})" for text in block))[0]
            for text, found in zip(block, row, strict=True):
                if found is None:
                    raise BacklogError(
                        f"The server gives no weights for a value of {column.name!r} of {len(text)} characters.",
                        "Raise max_allowed_packet on the server.",
                    )
                weights[text] = weight_order(bytes(found), space)

        for text in texts:
            assert isinstance(text, str)
            if block and (len(block) == _TEXTS or size + len(text) > _CHARACTERS):
                fetch()
                block, size = [], 0
            block.append(text)
            size += len(text)
        if block:
            fetch()
        return weights
