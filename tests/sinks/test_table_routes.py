"""Directories of tables: none is that of another table or in it, also on a disk that ignores case."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import PurePosixPath

import pytest

from backlog_spark.errors import BacklogError
from backlog_spark.sinks.table_routes import TablePlace, TableRoutes, overlaps, refuse_overlap


def overlap(one: str, other: str) -> bool:
    """A second implementation, by the parts of paths."""
    parts = [PurePosixPath(path.lower()).parts for path in (one, other)]
    shorter, longer = sorted(parts, key=len)
    return longer[: len(shorter)] == shorter


@pytest.mark.parametrize("seed", range(200))
def test_overlaps_are_found_among_all_tables(seed: int) -> None:
    drawn = random.Random(seed)
    paths = [
        "/lake/" + "/".join(drawn.choice(["a", "A", "a-", "a.b", "b", "Ab"]) for _ in range(drawn.randint(1, 3)))
        for _ in range(drawn.randint(2, 6))
    ]
    places = [TablePlace(f"t.{number}", path) for number, path in enumerate(paths)]
    refused = []
    for one, other in combinations(places, 2):
        try:
            refuse_overlap(one, other)
        except BacklogError:
            refused.append((one.path, other.path))
    assert refused == [pair for pair in combinations(paths, 2) if overlap(*pair)]
    assert bool(list(overlaps(places))) == bool(refused)


def test_what_is_said_of_them() -> None:
    routes = TableRoutes("/lake", [("shop.o*", "one")])
    both = [TablePlace(f"shop.{name}", routes.path_of("shop", name)) for name in ("orders", "others")]
    (found,) = overlaps(both)
    assert found.problem == "shop.orders would lie at /lake/one, in the directory of shop.others, /lake/one."
    cased = [
        TablePlace(f"shop.{name}", TableRoutes("/lake", []).path_of("shop", name)) for name in ("Orders", "orders")
    ]
    (found,) = overlaps(cased)
    assert found.problem == (
        "The directories of shop.Orders and shop.orders, /lake/shop/Orders and /lake/shop/orders, overlap on a "
        "disk that ignores upper and lower case."
    )
    assert "a route of its own" in found.hint
    # That route tells them apart on a server that does.
    routes = TableRoutes("/lake", [("shop.Orders", "shop/orders_2")])
    assert list(overlaps(TablePlace(name, routes.path_of("shop", name)) for name in ("Orders", "orders"))) == []
    # Other letters than ASCII are escaped.
    accents = TableRoutes("/lake", [])
    assert list(overlaps(TablePlace(name, accents.path_of("shop", name)) for name in ("Ä", "ä"))) == []
