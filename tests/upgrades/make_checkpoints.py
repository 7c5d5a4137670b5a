"""Makes the checkpoints that later versions are tested with: ``python -m tests.upgrades.make_checkpoints``.

With names of queries it makes theirs alone.

Run it for each release, and commit the new folder. Archives of earlier versions stay as they are.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from servers.jars import spark_kafka_jars
from servers.session import local_session

from . import offsets
from .queries import FOLDER, PLACE, QUERIES, Kept, locked, pack

__all__: list[str] = []

_COMMITS = 3


def make(spark: Any, name: str, kept: Kept) -> None:
    """Run a query up to the moment that is kept."""
    if kept.is_in_backlog:
        for _ in range(2):
            kept.feed(name, kept.history // 2)
        query = kept.start(spark, name)
        while len(_numbers(name, "commits")) < _COMMITS:
            assert query.isProcessingBacklog, query.exception()
            time.sleep(0.01)
        query.stop()
        assert query.isProcessingBacklog
    else:
        kept.feed(name, kept.history)
        query = kept.start(spark, name)
        kept.settle(spark, name, query)
        for _ in range(2):
            kept.feed(name, 15, spark, query)
        query.stop()
        assert not query.isProcessingBacklog
    assert query.exception() is None
    if kept.forgets_commit:
        newest = _numbers(name, "commits")[-1]
        assert _numbers(name, "offsets")[-1] == newest or kept.is_in_backlog
        for batch in _numbers(name, "offsets"):
            if batch > newest:
                (PLACE / name / "checkpoint" / "offsets" / str(batch)).unlink()
        (PLACE / name / "checkpoint" / "commits" / str(newest)).unlink()


def _numbers(name: str, log: str) -> list[int]:
    folder = PLACE / name / "checkpoint" / log
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def main() -> None:
    folder: Path = FOLDER / version("backlog_spark")
    folder.mkdir(parents=True, exist_ok=True)
    spark = local_session("make_checkpoints", conf={"spark.jars": ",".join(map(str, spark_kafka_jars()))})
    with locked():
        for name in sys.argv[1:] or QUERIES:
            make(spark, name, QUERIES[name])
            archive = pack(name, folder)
            print(f"{archive}: {archive.stat().st_size:,} bytes")
    with tempfile.TemporaryDirectory() as place:
        (folder / "offsets.json").write_text(json.dumps(offsets.made(spark, Path(place)), indent=1) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
