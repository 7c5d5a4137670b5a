"""Says which topic the changes of each source table go to (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.sinks.table_routes import REPLACED, Routes

__all__ = ["MARKS_TOPIC", "TopicRoutes"]

MARKS_TOPIC: Final = "_backlog_spark_marks"
"""The default topic of the marks: `backlog_spark.sinks.kafka.marks`."""

_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


class TopicRoutes:
    """The topics of `KafkaSink`.

    Parameters
    ----------
    topic : str
        The topic of rows that no route matches. ``<>`` in it stands for the table's name.
    routes : sequence of (str, str)
        Patterns of tables, and their topic.

    Raises
    ------
    SettingError
        A name is no topic, or a route is no pattern of tables.
    """

    def __init__(self, topic: str, routes: Sequence[tuple[str, str]]) -> None:
        for setting, name in (("topic", topic), *(("routes", target) for _, target in routes)):
            if not _NAME.fullmatch(name.replace(REPLACED, "t")):
                raise SettingError(
                    f"KafkaSink {setting}", name, "is no name of a topic.",
                    "Use up to 249 letters, digits, dots, _ and -. <> stands for the table's name.",
                )  # fmt: skip
        self._topic = topic
        self._targets = [target for _, target in routes]
        self._routes = Routes(routes)

    @property
    def needs_tables(self) -> bool:
        """Whether a row's topic depends on its table."""
        return bool(self._routes) or REPLACED in self._topic

    def fixed(self) -> list[str]:
        """Topics that are known before the first row."""
        return [name for name in (self._topic, *self._targets) if REPLACED not in name]

    def topic_of(self, database: str | None, table: str | None) -> str:
        """The topic of a table's rows.

        Raises
        ------
        BacklogError
            The table's name cannot be in a topic's name.
        """
        found = self._routes.target_of(database, table) or self._topic
        if REPLACED not in found:
            return found
        name = found.replace(REPLACED, table or "")
        if not table or not _NAME.fullmatch(name):
            raise BacklogError(
                f"KafkaSink: the topic of {database}.{table} would be {name!r}, which is no name of a topic.",
                "Give the table a route of its own, without <>.",
            )
        return name
