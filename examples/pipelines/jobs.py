"""Functions of totals.yaml."""

import backlog_spark as bs


def large(orders: bs.BacklogStream, least: int) -> bs.BacklogStream:
    """Orders of at least this amount."""
    return orders.filter(f"amount >= {least}")
