"""Each fault in each phase, with each source and each operator: exact rows, exact state, and nothing left over."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cells import Run, cells_of, runs
from .results import FAILED, Results
from .world import Query, World

pytestmark = pytest.mark.process

# Three cells for `make slow`.
SAMPLE = [
    Run("mysql_cdc", "keyed sum", "driver SIGKILL", ("hand-over", "first live batch")),
    Run("mysql_cdc", "stateless", "MySQL crash", ("backlog",)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("grid"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def results() -> Results:
    """`make faults` says where the page is."""
    directory = os.environ.get("FAULTS_PAGE")
    return Results(Path(directory) if directory else None)


@pytest.mark.parametrize(
    "run",
    [
        *(pytest.param(run, id=f"{run.name}-sample", marks=pytest.mark.slow) for run in SAMPLE),
        *(pytest.param(run, id=run.name, marks=pytest.mark.grid) for run in runs()),
    ],
)
def test_a_fault_in_each_phase(world: World, results: Results, run: Run) -> None:
    if run.fault.startswith("disk full") and not world.is_own_disk:
        pytest.skip("a disk cannot be mounted here: it needs the rights of root")
    query, began = Query(world, run), time.monotonic()
    try:
        query.go()
    except BaseException:
        query.outcomes = dict.fromkeys(run.phases, FAILED)
        raise
    finally:
        for cell in cells_of(run):
            results.add(cell, query.outcomes[cell.phase], (time.monotonic() - began) / len(run.phases))
