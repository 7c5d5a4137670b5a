"""`make fuzz`: runs all kinds of input for some time, each in a process of its own, and writes docs/proof/fuzz.md.

``--kind`` chooses kinds by a part of their name; the page is only written for all. ``--number`` judges one input again.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import platform
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.fuzz.every import FOUND, KINDS
from tests.fuzz.kinds import Kind
from tests.fuzz.running import MEMORY_BYTES, Fault, Inputs, Result, judged, run_apart

_PAGE = Path(__file__).parents[2] / "docs" / "proof" / "fuzz.md"
_PACKAGES = ("pyarrow", "numpy", "PyMySQL", "fastavro", "protobuf", "sqlglot", "pydantic", "PyYAML", "pyspark")


def main() -> int:
    """Returns whether there were faults."""
    given = _arguments()
    kinds = [kind for kind in KINDS if given.kind.lower() in kind.name.lower()]
    if not kinds:
        sys.exit(
            f"error: no kind of input is named {given.kind!r}. There are: {', '.join(kind.name for kind in KINDS)}."
        )
    seed = given.seed or str(random.SystemRandom().randrange(10**6))
    if given.number is not None:
        return _again(kinds[0], seed, given.number)
    if given.json:
        print(json.dumps(dataclasses.asdict(run_apart(kinds[0], seed, given.seconds))))
        return 0
    workers = max(1, os.cpu_count() or 1)
    each = given.seconds * min(workers, len(kinds)) / len(kinds)
    print(f"seed {seed}: {len(kinds)} kinds of input, {each:.0f} s each, {workers} at a time", flush=True)
    with ThreadPoolExecutor(workers) as pool:
        results = [found for found in pool.map(lambda kind: _in_process(kind, seed, each), kinds) if found]
    inputs = sum(result.inputs for result in results)
    print(f"{inputs:,} inputs, {sum(result.fault_count for result in results):,} faults")
    if len(kinds) == len(KINDS) == len(results):
        _PAGE.parent.mkdir(exist_ok=True)
        _PAGE.write_text(_page(results, seed, given.seconds), encoding="utf-8")
        print(f"written: {_PAGE.relative_to(Path.cwd())}")
    return 1 if len(results) < len(kinds) or any(result.fault_count for result in results) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", default="")
    parser.add_argument("--kind", default="")
    parser.add_argument("--number", type=int)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _again(kind: Kind, seed: str, number: int) -> int:
    kind.begin()
    found, told = Inputs(kind, seed).of(number)
    print(repr(found))
    try:
        print("accepted" if judged(kind, found, told) else "refused")
    finally:
        kind.close()
    return 0


def _in_process(kind: Kind, seed: str, seconds: float) -> Result | None:
    line = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--json",
        "--kind",
        kind.name,
        "--seed",
        seed,
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        print(f"{kind.name}: the process ended with {done.returncode}: {done.stderr[-2000:]}", flush=True)
        return None
    read: dict[str, Any] = json.loads(lines[-1])
    faults = {where: Fault(**fault) for where, fault in read.pop("faults").items()}
    result = Result(**read, faults=faults)
    print(
        f"{kind.name}: {result.inputs:,} inputs, {result.accepted:,} accepted, {result.fault_count:,} faults",
        flush=True,
    )
    for fault in faults.values():
        again = f"make fuzz KIND='{kind.name}' SEED={seed} NUMBER={fault.number}"
        print(f"  {fault.where}: {fault.what}\n    {fault.shown}\n    again: {again}", flush=True)
    return result


def _page(results: list[Result], seed: str, seconds: float) -> str:
    rows = [
        f"| {r.kind} | {r.inputs:,} | {r.accepted:,} | {r.refused:,} | {r.slowest_s * 1000:,.0f} | "
        f"{r.memory / 2**20:,.0f} | {r.fault_count:,} | {len(FOUND.get(r.kind, ()))} |"
        for r in results
    ]
    total = [sum(getattr(r, name) for r in results) for name in ("inputs", "accepted", "refused", "fault_count")]
    found = sum(map(len, FOUND.values()))
    rows.append(f"| **all** | {total[0]:,} | {total[1]:,} | {total[2]:,} | | | {total[3]:,} | {found} |")
    mended = [f"| {kind} | {'; '.join(texts)} |" for kind, texts in FOUND.items()]
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return "\n".join(
        [
            _HEAD.format(
                day=dt.date.today(),
                cores=os.cpu_count(),
                system=f"{platform.system()} {platform.machine()}",
                python=platform.python_version(),
                packages=packages,
                seed=seed,
                seconds=f"{seconds:.0f}",
                memory=MEMORY_BYTES >> 20,
            ),
            *rows,
            "",
            "## What it has found",
            "",
            "All of it is mended, with a test for each kind.",
            "",
            "| input | before |",
            "|---|---|",
            *mended,
            "",
        ]
    )


_HEAD = """# Bad input

Bytes come from servers, brokers, disks and people. `make fuzz` makes valid inputs of each kind, mutates them, and
judges what becomes of them.

| | |
|---|---|
| date | {day} |
| machine | {cores} cores, {system} |
| versions | Python {python}, {packages} |
| command | `make fuzz SECONDS={seconds} SEED={seed}` |

An input is cut, spliced with another one, has flipped bits, huge lengths, repeated parts, deep nesting, values
of wrong types, extreme numbers or odd Unicode. One in eight stays valid. It is a *fault* if

* anything but a `BacklogError` is raised, or with `mode=PERMISSIVE` anything at all,
* a valid input is refused, or gives another value than the one that it was made of,
* two ways to the same value differ: the fast and the exact path of a decoder, a block and its records alone,
  fastavro, a round trip,
* it takes longer than 5 seconds (30 for SQL with a session),
* the process needs {memory} MiB more than before, or dies.

The same seed gives the same inputs. `make fuzz KIND=… SEED=… NUMBER=…` judges one of them again.

| input | inputs | accepted | refused | slowest, ms | memory, MiB | faults | found before |
|---|---|---|---|---|---|---|---|"""


if __name__ == "__main__":
    sys.exit(main())
