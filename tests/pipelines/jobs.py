"""Functions that pipelines of the tests name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import backlog_spark as bs


def large(orders: bs.BacklogStream, least: int) -> bs.BacklogStream:
    """Orders of at least this amount."""
    return orders.filter(f"amount >= {least}")


class Split(bs.KeyedProcessFunction):
    """Small orders are the result, large ones the side output ``large``."""

    output = "customer int, id int"
    large = bs.OutputTag("customer int, id int, amount int")

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.amount >= 50:
            yield self.large, (row.customer, row.id, row.amount)
        else:
            yield row.customer, row.id


def split(orders: bs.BacklogStream) -> bs.BacklogStream:
    """Orders by their size."""
    return orders.key_by("customer").process(Split())


def shout(text: str) -> str:
    return text.upper()
