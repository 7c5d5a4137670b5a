"""Structured fields of log records, and a formatter that writes each record as a line of JSON (pure).

All modules log below the logger ``backlog_spark``. Records of a switch, a restart, a refused start and an end carry
their values beside the text. They are the fields of docs/events.md.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

__all__ = ["JsonLines", "event"]

_EVENT, _FIELDS = "backlog_event", "backlog_fields"


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """The argument ``extra`` of a log call.

    Parameters
    ----------
    kind : str
        ``switch``, ``restart``, ``refused`` or ``end``.
    **fields
        Values of JSON; those that are None are left out.
    """
    return {_EVENT: kind, _FIELDS: {name: value for name, value in fields.items() if value is not None}}


class JsonLines(logging.Formatter):
    """Formats a record as one line: ``at``, ``level``, ``logger``, ``message``, and ``event`` with its fields.

    Name it in a configuration: ``"()": "backlog_spark.common.log_fields.JsonLines"`` (conf/logging.json).

    Examples
    --------
    >>> record = logging.LogRecord("backlog_spark.runner", logging.INFO, "", 0, "It %s", ("switched",), None)
    >>> record.created, record.__dict__["backlog_event"] = 0.0, "switch"
    >>> JsonLines().format(record)
    '{"at": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "logger": "backlog_spark.runner", "message": "It switched", "event": "switch"}'
    """  # noqa: E501

    def format(self, record: logging.LogRecord) -> str:
        """One line. A trace is in the field ``trace``."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        kind = getattr(record, _EVENT, None)
        if kind is not None:
            line = {**line, "event": kind, **getattr(record, _FIELDS, {})}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
