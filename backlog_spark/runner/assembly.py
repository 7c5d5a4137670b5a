"""Assembles a query: from its tree, sinks and settings to the parts that `BacklogQuery` runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backlog_spark.common.intervals import Intervals, resolve_intervals
from backlog_spark.common.settings import parse_settings
from backlog_spark.decide.coordinator import Coordinator
from backlog_spark.decide.promises import Promises, refuse_rows_again
from backlog_spark.decide.rules import Judge, Rule, UserRule, parse_rules
from backlog_spark.decide.source_rules import WATERMARK_LAG, SourceRules, TimedInput
from backlog_spark.decide.steps import Facts
from backlog_spark.errors import SettingError
from backlog_spark.model.nodes import Node
from backlog_spark.model.plan_checks import check_source_names
from backlog_spark.model.trees import (
    has_frames,
    informed,
    is_timed,
    joins_results,
    sources_of,
    unobserved,
    watermark_nodes,
)
from backlog_spark.runner.identity import record_of
from backlog_spark.runner.keyed_query import KeyedPlan
from backlog_spark.runner.signal_log import SignalLog
from backlog_spark.runner.source_loader import SourceLoader
from backlog_spark.sinks.outputs import Outputs
from backlog_spark.spark.checkpoint.logs import Checkpoint
from backlog_spark.spark.checkpoint.source_layout import DeclaredSources
from backlog_spark.spark.checkpoint.store import check_is_no_pattern
from backlog_spark.spark.foreign.outstanding_files import Outstanding
from backlog_spark.spark.jvm.session import own_conf, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backlog_spark.sinks.base import Sink
    from backlog_spark.spi.source_info import SourceInfo

__all__ = ["QueryParts", "assemble"]

_log = logging.getLogger(__name__)

# How long a batch may fire timers if the query has no interval.
_FIRING_MS = 1_000


@dataclass(frozen=True)
class QueryParts:
    """The parts of one query. Each has its own docstring."""

    spark: SparkSession
    name: str
    checkpoint: Checkpoint
    settings: Mapping[str, int | float | str | None]
    intervals: Intervals
    node: Node
    infos: tuple[SourceInfo | None, ...]
    loader: SourceLoader
    signals: SignalLog
    declared: DeclaredSources
    outputs: Outputs
    promises: Promises
    outstanding: Outstanding
    coordinator: Coordinator
    keyed: KeyedPlan | None
    options: Mapping[str, str]


def assemble(
    spark: SparkSession,
    node: Node,
    sinks: Mapping[str, Sequence[Sink]],
    *,
    name: str,
    checkpoint_location: str,
    intervals: Mapping[str, object],
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
    own_rule: UserRule | None = None,
) -> QueryParts:
    """Ask the sources about themselves, check the query, and make its parts. Nothing has started then.

    Raises
    ------
    BacklogError
        For settings, sources or operators that cannot work together.
    """
    check_source_names(node)
    if node.is_keyed:
        check_is_no_pattern(checkpoint_location)
    conf = own_conf(spark)
    settings = parse_settings(conf)
    resolved = resolve_intervals(intervals, conf, [(s.name, s.options) for s in sources_of(node)])
    register(spark)
    checkpoint = Checkpoint(spark, checkpoint_location)
    signals = SignalLog(checkpoint, sources_of(node))
    loader = SourceLoader(spark, checkpoint, signals)
    infos = tuple(loader.inspect(spec) for spec in sources_of(node))
    node = informed(node, infos)
    refuse_rows_again(node, infos)
    outputs = Outputs(sinks)
    promises = Promises(
        node, infos,
        keeps_newest=any(sink.keeps_newest for sink in outputs.main),
        fills=lambda of_one_table: all(sink.fills(of_one_table=of_one_table) for sink in outputs.main),
    )  # fmt: skip
    rules, min_stay_ms = parse_rules(settings)
    facts = Facts(
        interval_ms=resolved.interval_ms,
        during_backlog_ms=resolved.during_backlog_ms,
        is_keyed=node.is_keyed,
        sorts_each_batch=settings["spark.backlog.sortedBatch.enabled"] == "true",
        available_now=available_now,
        ours=tuple(info is not None for info in infos),
        has_frames=has_frames(node),
        waits_for_rows=bool(infos and infos[0] and infos[0].waits_for_rows),
        is_timed=is_timed(node),
        joins_results=joins_results(node),
    )
    if own_rule is not None and not facts.has_frames and facts.during_backlog_ms is None:
        raise SettingError(
            "backlog_when", own_rule, "has no effect, as the query has no interval during backlog.",
            "Set interval_during_backlog in trigger(…), or spark.backlog.intervalDuringBacklog.",
        )  # fmt: skip
    if not (is_timed(node) or rules or own_rule):
        node = unobserved(node)
    source_rules = SourceRules(
        [source.name for source in sources_of(node)],
        [TimedInput(frozenset(s.name for s in sources_of(each)), each.delay_ms) for each in watermark_nodes(node)],
        rules,
        min_stay_ms,
        own=None if facts.has_frames else own_rule,
    )
    _warn_of_idle_rules(
        name,
        facts,
        rules,
        facts.during_backlog_ms is not None and any(source_rules.rule(s.name) for s in sources_of(node)),
    )
    # Of frames. While it says backlog, the sources wait: the same rule for them would make each wait for itself.
    of_frames = Judge(rules, min_stay_ms, own_rule) if facts.has_frames else None
    coordinator = Coordinator(facts, of_frames, source_rules)
    keyed = None
    if node.is_keyed:
        key_groups = int(settings["spark.backlog.keyGroups"] or 0) or None
        firing = _max_firing_ms(settings, resolved)
        keyed = KeyedPlan(spark, checkpoint, node, key_groups, coordinator, max_firing_ms=firing)
    return QueryParts(
        spark, name, checkpoint, settings, resolved, node, infos, loader, signals,
        declared=DeclaredSources(checkpoint, node, infos, record_of(spark, node, outputs)),
        outputs=outputs,
        promises=promises,
        outstanding=Outstanding(spark, checkpoint, coordinator.rules.needs),
        coordinator=coordinator,
        keyed=keyed,
        options=dict(options or {}),
    )  # fmt: skip


def _warn_of_idle_rules(name: str, facts: Facts, rules: Sequence[Rule], watermark_counts: bool) -> None:
    """Say which rules cannot have an effect."""
    idle = [r.name for r in rules if not facts.has_frames and not (r.name == WATERMARK_LAG and watermark_counts)]
    if idle:
        _log.warning(
            "Query %s: %s has no effect, as its sources say themselves whether they are in backlog. Beside that only "
            "watermarkLag counts, for sources with with_watermark in a query with an interval during backlog. For an "
            "age from which rows are backlog set their option backlogLagThreshold.",
            name, ", ".join(f"spark.backlog.rule.{rule}" for rule in idle),
        )  # fmt: skip


def _max_firing_ms(settings: Mapping[str, int | float | str | None], intervals: Intervals) -> int | None:
    """How long a batch may fire timers, in milliseconds; None: no limit."""
    if settings["spark.backlog.timers.interruptible.enabled"] != "true":
        return None
    given = settings["spark.backlog.timers.maxFiringTime"]
    return (intervals.interval_ms or _FIRING_MS) if given is None else int(given)
