"""The main job, which also sends signals to its query once the snapshot is over. Runs until it is killed."""

from __future__ import annotations

import json
import sys
import time

import backlog_spark as bs

from .job import start
from .session import job_session


def is_begun(query: bs.BacklogQuery) -> bool:
    """Whether a batch is committed and reported."""
    return query.backlogProgress.commits_in_backlog + query.backlogProgress.commits_after > 0


def main() -> None:
    job = json.loads(sys.argv[1])
    query = start(job_session(), job)
    while query.isProcessingBacklog or not is_begun(query):
        time.sleep(0.05)
    for kind, data in job["signals"]:
        query.signal(kind, data)
        print("sent", kind, flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main()
