"""Looks at files, tables and topics before anything starts, and reports all that would fail at once. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from backlog_spark.errors import BacklogError
from backlog_spark.spi.examination import Examination, Finding, Severity

from .options import HybridOptions
from .phases import Outlook, Phase
from .source import HybridDataSource, check_columns, make_phases, names_of

__all__ = ["examine"]


def examine(options: Mapping[str, str]) -> Examination:
    """Look at the data of all phases. Reads no rows, but the metadata of files.

    Raises
    ------
    BacklogError
        An option is wrong.
    """
    parsed = HybridOptions.parse(options)
    phases = make_phases(parsed)
    findings: list[Finding] = []
    first: list[Finding] = []
    before = Outlook()
    try:
        for phase in phases:
            try:
                seen = phase.examine(before)
            except (BacklogError, OSError) as problem:
                first.append(_error(f"phase {phase.name}", problem))
                before = Outlook(is_sure=False, wait_ms=before.wait_ms)
                continue
            findings += seen.findings
            first += seen.first
            before = seen.then
        if not any(finding.severity is Severity.ERROR for finding in (*findings, *first)):
            first += _columns(options, parsed, phases)
    finally:
        for phase in phases:
            phase.close()
    return Examination(tuple(findings), first=tuple(first))


def _columns(options: Mapping[str, str], parsed: HybridOptions, phases: Sequence[Phase]) -> list[Finding]:
    """What is wrong with the columns. Types in DDL are not looked at: only Spark can read them."""
    try:
        source = HybridDataSource(dict(options))
        declared = source.schema_of(parsed, stores=False)
        if isinstance(declared, str):
            check_columns(phases, pa.schema([(name, pa.null()) for name in names_of(parsed.schema)]), with_types=False)
            return []
        columns = source.columns_of(declared, parsed, phases)
        for phase in phases:
            phase.open(columns)
        check_columns(phases, columns.data)
    except (BacklogError, OSError) as problem:
        return [_error("columns", problem)]
    return []


def _error(subject: str, problem: BacklogError | OSError) -> Finding:
    if isinstance(problem, BacklogError):
        return Finding(Severity.ERROR, subject, problem.problem, problem.hint)
    where = f"{problem.filename} " if problem.filename else ""
    return Finding(
        Severity.ERROR, subject, f"{where}cannot be read: {problem.strerror or problem}.", "Check its rights."
    )
