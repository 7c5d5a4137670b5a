"""Everything that is stored has a version, and a later one is refused: what was found, what is read, and what to do.

A new place that stores something fails here until it is in `STORED`. A format without a version of its own is guarded
by another one, which is read before it: whoever changes the former raises the version of the latter.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from backlog_spark.common.stored_values import CHECKPOINT_VERSION, OTHER_VERSION
from backlog_spark.connectors import datagen
from backlog_spark.connectors.hybrid.files import ledger as file_lists
from backlog_spark.connectors.hybrid.files.found import FOUND
from backlog_spark.connectors.hybrid.kafka.positions import KafkaPosition
from backlog_spark.connectors.hybrid.offsets import HybridOffset
from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.offsets import Offset
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.staging import segments as staged
from backlog_spark.decide.ledger import Ledger
from backlog_spark.decide.query_record import LAYOUT_VERSION, check_layout_version
from backlog_spark.errors import BacklogError
from backlog_spark.native.hybrid import check_phases_version
from backlog_spark.runner.event_log import VERSION as EVENTS_VERSION
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spi.read_limits import ReadAllAvailable
from backlog_spark.tools.stored_checkpoint import StoredCheckpoint
from tests.tools.stories import checkpoint_of, line

ROOT = Path(__file__).parents[2]
NEWER = 99

# By format: the modules that write it. Those of the same line have one version.
STORED: dict[str, str] = {
    # what a query keeps in its checkpoint and its targets
    "the checkpoint": """
        spark/checkpoint/logs.py spark/checkpoint/store.py spark/checkpoint/offset_log.py handover/stay_ends.py
        runner/batch_writer.py runner/query_time.py runner/signal_log.py
        sinks/begun_tables.py sinks/files.py sinks/iceberg/marks.py sinks/kafka/marks.py sinks/leftovers.py
        sinks/newest_batches.py sinks/replays.py
    """,
    "the ledger": "decide/ledger.py handover/state_handover.py handover/versions.py state/seeds.py state/tables.py",
    "the layout": "decide/query_record.py spark/checkpoint/source_layout.py",
    "the event log": "runner/event_log.py",
    "the phases": "native/hybrid.py native/phase_handoff.py",
    # what sources keep in Spark's log, and beside the checkpoint
    "mysql_cdc": "connectors/mysql_cdc/offsets.py connectors/mysql_cdc/snapshot/requests.py",
    "the staged log": "connectors/mysql_cdc/staging/segments.py",
    "hybrid": """
        connectors/hybrid/offsets.py connectors/hybrid/live_position.py connectors/hybrid/files/cleaning.py
        connectors/hybrid/files/phase_handoff.py connectors/hybrid/kafka/pinned_offsets.py
    """,
    "positions of Kafka": "connectors/hybrid/kafka/offsets.py connectors/hybrid/kafka/positions.py",
    "lists of files": "connectors/hybrid/files/ledger.py connectors/hybrid/files/manifest.py",
    "datagen": "connectors/datagen/__init__.py",
    # Another version's claim is one, too: a newer driver counts whatever it is. See tests/spark/test_driver_claim.py.
    "no version: claims": "spark/checkpoint/driver_claim.py",
    # Spark's JSON form of a schema, which people may edit.
    "no version: Spark's schemas": "connectors/hybrid/files/schemas/stored.py",
}
_WRITES = {"write_metadata", "replace_metadata", "write_file", "create_file", "replace_file"}
_FORMS = {"to_json", "to_text", "to_bytes"}
_OFFSETS = {"initialOffset", "latestOffset"}
# Classes that pass offsets on, and the control source, whose messages are in `state/seeds.py`.
_PASS_ON = {
    "spi/reduced_reader.py", "runner/control.py", "connectors/hybrid/reader.py",
    "connectors/mysql_cdc/stream/reader.py",
}  # fmt: skip


def writers() -> set[str]:
    """The modules that store something, or have the stored form of something."""
    found = set()
    for folder in ("backlog_spark", "connectors"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix().removeprefix("backlog_spark/")
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(attr=attr)) if attr in _WRITES:
                        found.add(name)
                    case ast.Call(
                        func=ast.Attribute(attr="write" | "put", value=ast.Attribute(attr=on) | ast.Name(id=on))
                    ):
                        if on.lstrip("_") in ("store", "metadata"):
                            found.add(name)
                    case ast.FunctionDef(name=defined) if defined in _FORMS | _OFFSETS:
                        found.add(name)
    return found - _PASS_ON


def test_each_stored_format_is_listed() -> None:
    listed = [module for modules in STORED.values() for module in modules.split()]
    assert sorted(listed) == sorted(writers())


def _of_checkpoint(newer: int, _: Path) -> None:
    checkpoint = object.__new__(Checkpoint)  # without Spark
    checkpoint.location = "orders"
    checkpoint._check_version({"version": newer, "id": "x"})


def _of_inspected(newer: int, place: Path) -> None:
    root = checkpoint_of(place, [])
    (root / "backlog").mkdir(exist_ok=True)
    (root / "backlog" / "identity.json").write_text(json.dumps({"version": newer, "id": "x"}))
    _ = StoredCheckpoint(str(root)).identity


def _of_events(newer: int, place: Path) -> None:
    _ = StoredCheckpoint(str(checkpoint_of(place, [{**line("end", 70), "v": newer}]))).events


def _of_lists(newer: int, _: Path) -> None:
    file_lists.Head.from_json({**file_lists.Head().to_json(), "version": newer})


def _of_staged(newer: int, place: Path) -> None:
    at = BinlogPosition("binlog.000001", 4)
    found = staged.Segments(
        MySqlOptions.parse({"host": "h", "user": "u", "table": "a.b", "metadataLocation": str(place)}), "server"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged, "_VERSION", newer)
        found.mark(at)
    (segment,) = found.every()
    found.trailer(segment)


def _of_datagen(newer: int, _: Path) -> None:
    reader = datagen.DatagenReader(datagen.Options.parse({}))
    reader.latestOffset({**reader.initialOffset(), "version": newer}, ReadAllAvailable())


def _of_planned_datagen(newer: int, _: Path) -> None:
    reader = datagen.DatagenReader(datagen.Options.parse({}))
    reader.partitions(reader.initialOffset(), {**reader.initialOffset(), "version": newer})


REFUSALS: dict[str, tuple[int, list[Callable[[int, Path], Any]]]] = {
    "the checkpoint": (CHECKPOINT_VERSION, [_of_checkpoint, _of_inspected]),
    "the ledger": (3, [lambda n, _: Ledger.from_json({**Ledger(8, 2, ()).to_json(), "version": n})]),
    "the layout": (LAYOUT_VERSION, [lambda n, _: check_layout_version({"version": n, "names": []})]),
    "the event log": (EVENTS_VERSION, [_of_events]),
    "the phases": (1, [lambda n, _: check_phases_version({"version": n})]),
    "mysql_cdc": (2, [lambda n, _: Offset.from_json({**_mysql(), "version": n})]),
    "the staged log": (1, [_of_staged]),
    "hybrid": (1, [lambda n, _: HybridOffset.from_json({**_hybrid(), "version": n})]),
    "positions of Kafka": (
        1,
        [lambda n, _: KafkaPosition.from_json({**KafkaPosition({}, {}).to_json(), "version": n})],
    ),
    "lists of files": (1, [_of_lists]),
    "datagen": (1, [_of_datagen, _of_planned_datagen]),
}


def _mysql() -> dict[str, Any]:
    return Offset(server="s", tables=(), ranges=(), complete=False).to_json()


def _hybrid() -> dict[str, Any]:
    return HybridOffset(("files",), 0, None).to_json()


def test_each_version_has_a_refusal() -> None:
    assert REFUSALS.keys() == {name for name in STORED if not name.startswith("no version")}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_later_version_is_refused_by_name(name: str, tmp_path: Path) -> None:
    reads, refuse = REFUSALS[name]
    for number, each in enumerate(refuse):
        place = tmp_path / str(number)
        place.mkdir()
        each(reads, place)  # that of this version is not
        for newer in (reads + 1, NEWER):
            other = tmp_path / f"{number}-{newer}"
            other.mkdir()
            with pytest.raises(BacklogError) as caught:
                each(newer, other)
            assert f"has version {newer} of its format; this version of backlog_spark reads version {reads}." in (
                caught.value.problem
            )
            assert "Use the version of backlog_spark that " in caught.value.hint


@pytest.mark.parametrize("name", ["the ledger", "mysql_cdc", "hybrid", "positions of Kafka", "lists of files"])
@pytest.mark.parametrize("found", [None, True, "1", 1.0, 0])
def test_what_is_no_version_of_ours_is_refused_too(name: str, found: Any, tmp_path: Path) -> None:
    _, (refuse, *_) = REFUSALS[name]
    with pytest.raises(BacklogError, match=f"has version {found!r} of its format") as caught:
        refuse(found, tmp_path)
    assert caught.value.hint == OTHER_VERSION


def test_the_list_of_files_says_its_version(tmp_path: Path) -> None:
    """As written, not only as made here."""
    from backlog_spark.common.stores import store_of

    lists = file_lists.Ledger(store_of(str(tmp_path), {})[0], str(tmp_path))
    name = lists.begin(FOUND.empty_table())
    assert json.loads((tmp_path / name).read_text())["version"] == 1
    assert pa.Table.equals(lists.window(name).table, FOUND.empty_table())
