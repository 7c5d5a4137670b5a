"""The parts of a merge by delta-rs: its source, and its condition in the SQL of DataFusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from backlog_spark.sinks.delta.deltars.key_ranges import key_ranges
from backlog_spark.sinks.delta.deltars.limits import has_exact_statistics

__all__ = ["MergeParts", "quoted"]

_SOURCE: Final = "c"


@dataclass(frozen=True)
class MergeParts:
    """The parts of a merge of rows by key.

    Parameters
    ----------
    source : dict of str to Any
        The source's columns, with the table's types. Those of the rows are called c0, c1 and so on.
    values : dict of str to str
        The source's column of each column of the table that the rows have.
    on : tuple of str
        Conditions that the keys are the same.
    """

    source: dict[str, Any]
    values: dict[str, str]
    on: tuple[str, ...]

    @classmethod
    def of(cls, rows: pa.Table, schema: pa.Schema, keys: Sequence[str]) -> MergeParts:
        """The parts for a batch.

        Parameters
        ----------
        schema : pyarrow.Schema
            The table's.
        keys : sequence of str
            NULL is a value like any other.
        """
        types = {field.name.lower(): field for field in schema}
        # delta-rs resolves column names of source and table in one scope.
        source, values, on, found = {}, {}, [], {}
        for number, name in enumerate(rows.column_names):
            field = types[name.lower()]
            source[f"{_SOURCE}{number}"] = rows[name].cast(field.type)
            values[quoted(field.name)] = f"s.{_SOURCE}{number}"
            if name in keys:
                found[field.name] = source[f"{_SOURCE}{number}"]
                # Only "=" lets delta-rs skip files by their statistics, so the statistics must be exact. In
                # parentheses: the other operator would take the rest of a conjunction as its right side.
                prunes = has_exact_statistics(field.type) and not rows[name].null_count
                compare = "=" if prunes else "IS NOT DISTINCT FROM"
                on.append(f"(t.{quoted(field.name)} {compare} s.{_SOURCE}{number})")
        if ranges := key_ranges(pa.table(found)):
            on.append(f"({ranges})")
        return cls(source, values, tuple(on))

    def named(self, schema: pa.Schema, name: str) -> str:
        """A column of the table, quoted. The table may have its name in another case."""
        return next(quoted(field.name) for field in schema if field.name.lower() == name.lower())

    def same(self, schema: pa.Schema, names: Sequence[str]) -> str:
        """The condition that these columns have the same values in source and table, as Spark's ``<=>`` has it."""
        found = []
        for name in names:
            column = self.named(schema, name)
            one, other = f"t.{column}", self.values[column]
            if pa.types.is_floating(schema.field(column[1:-1].replace('""', '"')).type):
                one, other = f"({one} + 0.0)", f"({other} + 0.0)"  # -0.0 is 0.0
            found.append(f"({one} IS NOT DISTINCT FROM {other})")
        return " AND ".join(found) or "true"


def quoted(name: str) -> str:
    """A column's name in DataFusion's SQL."""
    return '"' + name.replace('"', '""') + '"'
