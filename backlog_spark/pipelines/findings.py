"""What the checks of a pipeline tell, and what several of them ask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from backlog_spark.errors import BacklogError
from backlog_spark.pipelines.document import Path as DocumentPath
from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.model import DeclaredSource, Pipeline
from backlog_spark.pipelines.sql_names import Columns
from backlog_spark.spi.examination import Examination, Finding, Severity

__all__ = ["columns_of", "failed", "has_begun", "of_fault", "plain_secrets"]


def failed(subject: str, problem: BacklogError) -> Finding:
    """An error as a finding."""
    return Finding(Severity.ERROR, subject, problem.problem, problem.hint)


def of_fault(pipeline: Pipeline, error: PipelineError) -> Finding:
    """The only mistake of an error in the file, with its place."""
    (fault,) = error.faults
    return Finding(
        Severity.ERROR, f"{pipeline.file}:{fault.place.line}:{fault.place.column}", fault.problem, fault.hint
    )


def plain_secrets(
    pipeline: Pipeline, subject: str, path: DocumentPath, options: Mapping[str, str], secrets: str
) -> Iterator[Finding]:
    """Options with secret values that are written in the file. ``secrets`` matches their names."""
    hidden = pipeline.document.hidden
    for option, text in options.items():
        if re.fullmatch(secrets, option, re.IGNORECASE) and text and not any(value in text for value in hidden):
            line = pipeline.document.place((*path, option)).line
            yield Finding(
                Severity.WARNING, subject, f"{option} stands in the file, in line {line}.",
                "Write ${NAME}, and set that variable.",
            )  # fmt: skip


def has_begun(checkpoint: Path | None) -> bool:
    """Whether a checkpoint on this machine has batches."""
    try:
        return checkpoint is not None and any(name.name.isdecimal() for name in (checkpoint / "offsets").iterdir())
    except OSError:
        return False


def columns_of(declared: DeclaredSource, found: Examination | None) -> Columns:
    """The columns of a source's rows, if they are those of one table."""
    plain = declared.section.type == "mysql_cdc" and "table" in map(str.lower, declared.options)
    shaped = {"format", "columns.include", "columns.exclude", "metadatacolumns"} & set(map(str.lower, declared.options))
    if found is None or len(found.tables) != 1 or not plain or shaped:
        return None
    return {name.lower() for name, _ in found.tables[0].columns} or None
