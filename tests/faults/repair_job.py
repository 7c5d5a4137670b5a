"""A query that is verified and repaired again and again while another writer corrupts its target. Runs until killed."""

from __future__ import annotations

import itertools
import json
import random
import sys
import time

import backlog_spark as bs
from backlog_spark.decide.steps import Mode
from tests.verify.jobs import corrupt

from .job import start
from .session import job_session


def main() -> None:
    job = json.loads(sys.argv[1])
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
