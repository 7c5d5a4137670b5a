"""What a candidate of the lake benchmark is told, and how it says how far it is. Needs no package."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Job"]

_GRACE_S = 30


@dataclass(frozen=True)
class Job:
    """One run of a candidate. It copies ``shop.orders`` into the Delta table ``target``, then follows.

    Parameters
    ----------
    host, port, user, password
        Of MySQL. The password is empty: it is a server for this benchmark.
    rows : int
        Of the table at the start.
    folder : str
        For all files of this run.
    kafka : str
        Address of a broker, or empty.
    """

    host: str
    port: int
    user: str
    password: str
    rows: int
    folder: str
    kafka: str = ""

    @property
    def target(self) -> str:
        return f"{self.folder}/orders"

    def write(self) -> Path:
        """Write it to a file in its folder, for `read`."""
        path = Path(self.folder) / "job.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls) -> Job:
        """The job in the file that is the program's argument."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))

    def ready(self) -> None:
        """The program has started, and its work begins."""
        print("READY", flush=True)

    def copied(self) -> None:
        """The table is in the target."""
        print("SNAPSHOT", flush=True)

    def until_end(self) -> threading.Event:
        """An event that is set when the program has to end. The process is gone half a minute later."""
        event = threading.Event()

        def wait() -> None:
            sys.stdin.read()
            event.set()
            threading.Timer(_GRACE_S, os._exit, (1,)).start()

        threading.Thread(target=wait, name="until-end", daemon=True).start()
        return event
