"""A query that is verified and repaired again and again while another writer corrupts its target. Runs until killed."""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from typing import Any

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from backlog_spark.verification.delta_target import DeltaTarget
from tests.verify.jobs import corrupt

from .job import start
from .session import job_session

repaired = DeltaTarget.repair


def repair_and_wait(*arguments: Any) -> Any:
    """Leave time for a kill after a repair: the query's next batch comes as soon as it has ended."""
    found = repaired(*arguments)
    time.sleep(2)
    return found


def main() -> None:
    job = json.loads(sys.argv[1])
    DeltaTarget.repair = repair_and_wait  # type: ignore[method-assign]
    query = start(job_session(), job)
    while query.mode is not Mode.STREAM or not query.backlogProgress.commits_after:
        time.sleep(0.1)
    try:
        for seed in itertools.count():
            corrupt(job["target"], random.Random(seed), list(range(0, 300, 3)), [-1 - seed])
            bs.verify(query, repair=True)
    finally:
        query.stop()  # else the process would stay


if __name__ == "__main__":
    main()
