"""Functions that pipelines of the tests name."""

from __future__ import annotations

import backlog_spark as bs


def large(orders: bs.BacklogStream, least: int) -> bs.BacklogStream:
    """Orders of at least this amount."""
    return orders.filter(f"amount >= {least}")
