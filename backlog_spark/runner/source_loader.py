"""Checks and loads the sources of a query, with the options that the runner adds to them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from backlog_spark.common.hadoop_arguments import with_keys
from backlog_spark.common.intervals import INTERVAL_OPTIONS
from backlog_spark.common.loopback import LoopbackServer
from backlog_spark.model.nodes import Node, SourceNode, SourceSpec
from backlog_spark.model.trees import state_name
from backlog_spark.runner.signal_log import SignalLog
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.jvm.session import hadoop_settings, load, loading
from backlog_spark.spark.plan.columns_read import columns_read, restored, with_paths
from backlog_spark.spi.pacing import POLL_WAIT, QUERY_TOKEN
from backlog_spark.spi.registry import (
    CONNECTORS,
    KEEPS_METADATA,
    MAY_KEEP_METADATA,
    READS_COLUMNS,
    check_resume,
    check_start,
    inspect,
)
from backlog_spark.spi.signals import SIGNALS_TOKEN, answer_signals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from backlog_spark.decide.coordinator import Coordinator
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["SourceLoader"]

# How long a source waits for rows in one call. Spark checks for a stop between calls.
_POLL_WAIT_MS = 500


class SourceLoader:
    """Checks and loads sources.

    Parameters
    ----------
    spark : SparkSession
    checkpoint : Checkpoint
    signals : SignalLog
        The query's signals. The sources may ask for them.
    """

    def __init__(self, spark: SparkSession, checkpoint: Checkpoint, signals: SignalLog) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._signals = signals
        self._server: LoopbackServer | None = None
        self._coordinator: Coordinator | None = None  # asked by the sources
        self._needed: dict[str, tuple[StructType, StructType]] = {}

    def inspect(self, spec: SourceSpec) -> SourceInfo | None:
        """What a source says about itself; None if it is not a connector's.

        Raises
        ------
        BacklogError
            Raised by the connector.
        """
        return inspect(spec.format, self._options(spec))

    def check(self, specs: Sequence[SourceSpec], offsets: Sequence[Mapping[str, Any] | None]) -> None:
        """Check that sources can continue from their offsets.

        Raises
        ------
        BacklogError
            Raised by a connector.
        """
        for spec, offset in zip(specs, offsets, strict=True):
            if offset is not None:
                with loading(spec.format):
                    check_resume(spec.format, self._options(spec), offset)

    def check_first(self, specs: Sequence[SourceSpec]) -> None:
        """Check that everything in the sources' options exists, before the first batch.

        Later the start position may no longer exist. It is not needed then.

        Raises
        ------
        BacklogError
            Raised by a connector.
        """
        for spec in specs:
            with loading(spec.format):
                check_start(spec.format, self._options(spec))

    def load(self, node: SourceNode, root: Node, coordinator: Coordinator, of_old_rows: Mapping[str, str]) -> DataFrame:
        """Load a source. If the trigger does the pacing, the options for intervals are removed.

        Parameters
        ----------
        root : Node
            The query.
        coordinator : Coordinator
            It has decided the run. Sources may ask whether the query is in backlog.
        of_old_rows : mapping of str to str
            Options for a source with `SourceInfo.notices_old_rows`. Those of the user win.
        """
        self._coordinator, facts, target = coordinator, coordinator.facts, coordinator.step.target
        more: dict[str, str | None] = {}
        if node.spec.format in CONNECTORS:
            more = {**dict.fromkeys(INTERVAL_OPTIONS), **self._metadata_location(node.spec)}
            of_it = [n for n in root.walk() if isinstance(n, SourceNode) and n.spec.name == node.spec.name]
            if node.spec.format in MAY_KEEP_METADATA and len(of_it) > 1:
                more["metadataLocation"] = None  # Spark reads it several times
            if facts.sources_pace:
                more["interval"] = f"{facts.interval_ms} ms"
            if (during := facts.batch_target_ms(ends_by_itself=target is not None)) is not None:
                more["intervalDuringBacklog"] = f"{during} ms"
                # A run that ends with the backlog does not wait for others, but rules may prolong its backlog.
                if coordinator.source_rules.rule(node.spec.name) and target != "none":
                    more[QUERY_TOKEN] = f"{self._token()}:{node.spec.name}"
                elif target is None:
                    more[QUERY_TOKEN] = self._token()
            if node.info is not None and node.info.takes_signals and target is None and not facts.is_keyed:
                more[SIGNALS_TOKEN] = f"{self._token()}:{state_name(node.spec.name)}"
            if target is None and facts.source_waits:
                more[POLL_WAIT] = str(_POLL_WAIT_MS)
            if target is not None:
                more["availableNowTarget"] = target
            if node.info is not None and node.info.notices_old_rows:
                given = {name.lower() for name in node.spec.options}
                more |= {name: value for name, value in of_old_rows.items() if name.lower() not in given}
        if node.spec.format in READS_COLUMNS:
            return self._with_needed_columns(node.spec, root, more)
        return load(self._spark, node.spec, more)

    def _with_needed_columns(self, spec: SourceSpec, root: Node, more: Mapping[str, str | None]) -> DataFrame:
        """Load a source that need not read columns that the query does not read."""
        frame = load(self._spark, spec, more)
        declared, needed = self._needed.get(spec.name, (None, frame.schema))
        if declared != frame.schema:
            paths = columns_read(self._spark, root, spec, frame.schema)
            needed = with_paths(frame.schema, paths) if paths else frame.schema
            self._needed[spec.name] = frame.schema, needed
        if needed == frame.schema:
            return frame
        text = json.dumps({"declared": frame.schema.jsonValue(), "read": needed.jsonValue()})
        return restored(load(self._spark, spec, {**more, "neededColumns": text}), frame.schema)

    def close(self) -> None:
        """Called when the query has ended."""
        if self._server is not None:
            self._server.close()

    def _token(self) -> str:
        """Address and token with which sources ask whether the query is in backlog. `close` ends it."""
        if self._server is None:
            self._server = LoopbackServer(self._answer)
        return f"{self._server.port}:{self._server.token}"

    def _answer(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answers a source. Called from a thread of its own."""
        if "signals" in asked:
            return answer_signals(asked, self._signals.of(asked["signals"]))
        asks = self._coordinator
        if "rulesFor" in asked:
            return {"isProcessingBacklog": asks is not None and asks.source_rules.says_backlog(asked["rulesFor"])}
        return {"isProcessingBacklog": asks is not None and (asks.in_backlog or asks.rules.is_backlog)}

    def _options(self, spec: SourceSpec) -> dict[str, str]:
        options = {**spec.options, **self._metadata_location(spec)}
        return with_keys(spec.format, options, lambda: hadoop_settings(self._spark))

    def _metadata_location(self, spec: SourceSpec) -> dict[str, str]:
        """The option for a source that keeps files of its own, unless the user has set it."""
        given = "metadatalocation" in {option.lower() for option in spec.options}
        if given or spec.format not in KEEPS_METADATA | MAY_KEEP_METADATA:
            return {}
        return {"metadataLocation": self._checkpoint.location_of(f"backlog/sources/{state_name(spec.name)}")}
