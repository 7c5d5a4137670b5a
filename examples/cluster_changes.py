"""The applications of the cluster demo: they fill MySQL, files and a topic, and change them while the job reads."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from backlog_spark.errors import BacklogError

from . import demo, demo_hybrid
from .cluster_data import PARTS, Database, await_file, parser

_SERVERS_SECONDS = 180


def retried(step: Callable[[], Any]) -> Any:
    """Wait for a server that is still starting."""
    deadline = time.monotonic() + _SERVERS_SECONDS
    while True:
        try:
            return step()
        except Exception as error:
            if time.monotonic() > deadline:
                raise BacklogError(f"a server of the demo does not answer: {error}.", "Look into its log.") from error
            time.sleep(1)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--rows", type=int, default=200_000, help="orders in MySQL at the start, and in the files")
    arguments = found.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the stack ends the two programs
    folder, rows = arguments.folder, arguments.rows
    folder.mkdir(parents=True, exist_ok=True)
    database: Any = Database(arguments.mysql, "root", "MYSQL_ROOT_PASSWORD")
    with contextlib.ExitStack() as stack:
        retried(lambda: database.connect().close())
        demo.load(database, rows)
        writer = [sys.executable, "-m", "examples.demo_writer", "--host", database.host, "--port", str(database.port)]
        process = subprocess.Popen([*writer, "--keys", str(rows), "--password-env", "MYSQL_ROOT_PASSWORD"])
        stack.callback(_end, process)
        print(f"{rows:,} orders in MySQL; a writer changes them", flush=True)
        (folder / "ready-mysql").touch()
        demo_hybrid.write_files(folder / "history", rows)
        producer = retried(lambda: stack.enter_context(demo_hybrid.producer(arguments.broker, rows)))
        print(f"{rows:,} orders in files; a producer adds more to the topic", flush=True)
        (folder / "ready-hybrid").touch()
        for part, running in zip(PARTS, (process, producer), strict=True):
            await_file(folder / f"follows-{part}")
            _end(running)
            (folder / f"ended-{part}").touch()
            print(f"{part}: no more changes", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


if __name__ == "__main__":
    main()
