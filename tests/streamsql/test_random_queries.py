"""Random queries over streams equal Spark's batch over all rows: over rows that come once, and over changing tables."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import backlog_spark as bs
from tests.operators.events import DELAY, events, multiset, run, source

from .test_results import history, known, left_over, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(60)
TABLES = {
    "a": {"user": "text", "item": "whole", "v": "whole", "seq": "whole"},
    "b": {"user": "text", "item": "whole", "seq": "whole"},
    "orders": {"id": "whole", "user": "text", "amount": "whole"},
}


@dataclass
class Query:
    """A query's text, and the kinds of its columns by name."""

    text: str
    columns: dict[str, str]


@dataclass
class Maker:
    """Makes random queries from smaller ones."""

    chance: random.Random
    names: int = field(default=0)

    def name(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def query(self, depth: int) -> Query:
        if depth == 0:
            return self.table()
        inner = self.query(depth - 1)
        forms = [
            self.filtered, self.grouped, self.distinct, self.top, self.ranked, self.has_match, self.united, self.joined,
            self.sets, self.exploded, self.compared, self.over, self.own,
        ]  # fmt: skip
        return self.chance.choice(forms)(inner)

    def table(self) -> Query:
        name = self.chance.choice(list(TABLES))
        kinds = TABLES[name]
        chosen = self.chance.sample(list(kinds), self.chance.randint(2, len(kinds)))
        renamed = {self.name(): column for column in chosen}
        items = ", ".join(f"{column} AS {new}" for new, column in renamed.items())
        return Query(f"SELECT {items} FROM {name}", {new: kinds[column] for new, column in renamed.items()})

    def of_kind(self, query: Query, kind: str) -> str | None:
        found = [name for name, each in query.columns.items() if each == kind]
        return self.chance.choice(found) if found else None

    def value(self, query: Query) -> str:
        """An expression that is a whole number."""
        column = self.of_kind(query, "whole")
        return "1" if column is None else self.chance.choice([column, f"pmod({column}, 5)", f"coalesce({column}, 0)"])

    def condition(self, query: Query) -> str:
        value, text = self.value(query), self.of_kind(query, "text")
        forms = [f"pmod({value}, 3) <> 1", f"{value} IS NOT NULL", f"pmod({value}, 7) < 5"]
        forms += [f"{text} <> 'bob'", f"{text} IS NULL OR {text} > 'a'"] if text else []
        return self.chance.choice(forms)

    def filtered(self, inner: Query) -> Query:
        new = self.name()
        value = self.value(inner)
        text = f"SELECT *, {value} AS {new} FROM ({inner.text}) WHERE {self.condition(inner)}"
        return Query(text, {**inner.columns, new: "whole"})

    def aggregates(self, inner: Query) -> dict[str, str]:
        value = self.value(inner)
        small = f"pmod({value}, 1000)"
        forms = [
            "count(*)", f"max({value})", f"min({small})", f"sum({small})", f"count(DISTINCT {small})",
            f"count(*) FILTER (WHERE {self.condition(inner)})", f"sum(DISTINCT {small})",
        ]  # fmt: skip
        return {self.name(): form for form in self.chance.sample(forms, self.chance.randint(1, 2))}

    def grouped(self, inner: Query) -> Query:
        keys = self.chance.sample(list(inner.columns), self.chance.randint(1, min(2, len(inner.columns))))
        made = self.aggregates(inner)
        items = ", ".join([*keys, *(f"{form} AS {name}" for name, form in made.items())])
        having = f" HAVING count(*) > {self.chance.randint(1, 2)}" if self.chance.random() < 0.4 else ""
        text = f"SELECT {items} FROM ({inner.text}) GROUP BY {', '.join(keys)}{having}"
        return Query(text, {**{key: inner.columns[key] for key in keys}, **dict.fromkeys(made, "whole")})

    def sets(self, inner: Query) -> Query:
        keys = self.chance.sample(list(inner.columns), min(2, len(inner.columns)))
        form = self.chance.choice(
            [
                f"ROLLUP({', '.join(keys)})",
                f"CUBE({', '.join(keys)})",
                f"GROUPING SETS (({keys[0]}), ({', '.join(keys)}))",
            ]
        )
        made = self.aggregates(inner)
        level = self.name()
        items = [*keys, *(f"{form} AS {name}" for name, form in made.items()), f"grouping({keys[-1]}) AS {level}"]
        text = f"SELECT {', '.join(items)} FROM ({inner.text}) GROUP BY {form}"
        columns = {key: inner.columns[key] for key in keys}
        return Query(text, {**columns, **dict.fromkeys(made, "whole"), level: "level"})

    def distinct(self, inner: Query) -> Query:
        keys = self.chance.sample(list(inner.columns), self.chance.randint(1, len(inner.columns)))
        return Query(
            f"SELECT DISTINCT {', '.join(keys)} FROM ({inner.text})", {key: inner.columns[key] for key in keys}
        )

    def window(self, inner: Query, *, total: bool) -> str:
        names = list(inner.columns)
        self.chance.shuffle(names)
        keys = names[: self.chance.randint(0, 1)]
        rest = [name for name in names if name not in keys] or names
        order = [f"{n} {self.chance.choice(['', 'DESC', 'DESC NULLS FIRST', 'NULLS LAST'])}" for n in rest]
        partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
        return f"({partition}ORDER BY {', '.join(order if total else order[:1])})"

    def top(self, inner: Query) -> Query:
        """The first rows of a total order: rows that are equal in it are equal."""
        new, most = self.name(), self.chance.randint(1, 4)
        numbered = f"SELECT *, ROW_NUMBER() OVER {self.window(inner, total=True)} AS {new} FROM ({inner.text})"
        shown = self.chance.random() < 0.5
        items = "*" if shown else ", ".join(inner.columns)
        columns = {**inner.columns, **({new: "whole"} if shown else {})}
        return Query(f"SELECT {items} FROM ({numbered}) WHERE {new} <= {most}", columns)

    def ranked(self, inner: Query) -> Query:
        new, call = self.name(), self.chance.choice(["RANK", "DENSE_RANK"])
        numbered = f"SELECT *, {call}() OVER {self.window(inner, total=False)} AS {new} FROM ({inner.text})"
        text = f"SELECT * FROM ({numbered}) WHERE {new} < {self.chance.randint(2, 4)}"
        return Query(text, {**inner.columns, new: "whole"})

    def over(self, inner: Query) -> Query:
        """Aggregates of all rows of a key."""
        key, new = self.chance.choice(list(inner.columns)), self.name()
        call = self.chance.choice(["sum", "max", "min", "count"]) + f"(pmod({self.value(inner)}, 1000))"
        text = f"SELECT *, {call} OVER (PARTITION BY {key}) AS {new} FROM ({inner.text})"
        return Query(text, {**inner.columns, new: "whole"})

    def own(self, inner: Query) -> Query:
        """A join with aggregates of the same rows."""
        keys = self.chance.sample(list(inner.columns), self.chance.randint(1, min(2, len(inner.columns))))
        column, new = self.of_kind(inner, "whole"), self.name()
        if column is None:
            return self.grouped(inner)
        call = self.chance.choice(["max", "min", "count"])
        how = self.chance.choice(
            ["", f" AND o.{column} = {new}", f" WHERE {new} <= o.{column}", f" WHERE o.{column} <= g.{new}"]
        )
        groups = f"SELECT {', '.join(keys)}, {call}({column}) AS {new} FROM ({inner.text}) GROUP BY {', '.join(keys)}"
        on = " AND ".join(f"o.{key} = g.{key}" for key in keys)
        items = ", ".join(f"{self.chance.choice('og') if name in keys else 'o'}.{name}" for name in inner.columns)
        text = f"SELECT {items}, g.{new} FROM ({inner.text}) AS o JOIN ({groups}) AS g ON {on}{how}"
        return Query(text, {**inner.columns, new: "whole"})

    def has_match(self, inner: Query) -> Query:
        other = self.query(self.chance.randint(0, 1))
        kind = self.chance.choice(["whole", "text"])
        mine, its = self.of_kind(inner, kind), self.of_kind(other, kind)
        if mine is None or its is None:
            return self.filtered(inner)
        forms = [
            f"{mine} IN (SELECT {its} FROM ({other.text}) AS i)",
            f"EXISTS (SELECT 1 FROM ({other.text}) AS i WHERE i.{its} = {mine} AND {self.condition(other)})",
            f"NOT EXISTS (SELECT 1 FROM ({other.text}) AS i WHERE i.{its} = {mine})",
            f"{mine} NOT IN (SELECT {its} FROM ({other.text}) AS i WHERE {its} IS NOT NULL)",
            f"{mine} NOT IN (SELECT {its} FROM ({other.text}) AS i WHERE {self.condition(other)})",
        ]
        return Query(f"SELECT * FROM ({inner.text}) AS o WHERE {self.chance.choice(forms)}", inner.columns)

    def united(self, inner: Query) -> Query:
        other = self.query(self.chance.randint(0, 1))
        columns = {}
        for kind in ("text", "whole"):
            mine, its = self.of_kind(inner, kind), self.of_kind(other, kind)
            if mine is not None and its is not None:
                columns[self.name()] = kind, mine, its
        if not columns:
            return self.distinct(inner)
        left = ", ".join(f"{self.cast(kind, mine)} AS {new}" for new, (kind, mine, _) in columns.items())
        right = ", ".join(f"{self.cast(kind, its)} AS {new}" for new, (kind, _, its) in columns.items())
        form = self.chance.choice(
            ["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"]
        )
        text = f"SELECT {left} FROM ({inner.text}) {form} SELECT {right} FROM ({other.text})"
        return Query(text, {new: kind for new, (kind, _, _) in columns.items()})

    def cast(self, kind: str, column: str) -> str:
        return f"CAST({column} AS BIGINT)" if kind == "whole" else column

    def joined(self, inner: Query) -> Query:
        other = self.query(self.chance.randint(0, 1))
        kind = self.chance.choice(["whole", "text"])
        mine, its = self.of_kind(inner, kind), self.of_kind(other, kind)
        if mine is None or its is None:
            return self.grouped(inner)
        how = self.chance.choice(["", "LEFT", "RIGHT", "FULL"])
        more = f" AND {self.condition(inner)}" if self.chance.random() < 0.5 else ""
        renamed = {self.name(): name for name in other.columns}
        items = ", ".join([*(f"l.{n}" for n in inner.columns), *(f"r.{n} AS {new}" for new, n in renamed.items())])
        text = f"SELECT {items} FROM ({inner.text}) AS l {how} JOIN ({other.text}) AS r ON l.{mine} = r.{its}{more}"
        return Query(text, {**inner.columns, **{new: other.columns[name] for new, name in renamed.items()}})

    def compared(self, inner: Query) -> Query:
        """A join without an equality, with one row."""
        value, new = self.value(inner), self.name()
        one = f"SELECT max(item) AS {new} FROM b"
        text = f"SELECT * FROM ({inner.text}) AS l JOIN ({one}) AS r ON pmod({value}, 7) >= r.{new}"
        return Query(text, {**inner.columns, new: "whole"})

    def exploded(self, inner: Query) -> Query:
        new, value = self.name(), self.value(inner)
        array = f"array(CAST({value} AS BIGINT), 1L)"
        text = f"SELECT * FROM ({inner.text}) LATERAL VIEW explode({array}) t AS {new}"
        return Query(text, {**inner.columns, new: "whole"})


def made(seed: int) -> str:
    maker = Maker(random.Random(seed))
    found = maker.query(maker.chance.randint(1, 3))
    # Fewer live rows than before, so that some results go away again.
    return found.text


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.grid) for seed in SEEDS)])
@pytest.mark.slow
@pytest.mark.usefixtures("small_plans", "few_groups")
def test_random_queries(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    query, backlog = made(seed), chance.randrange(3)
    names = [name for name in TABLES if f"FROM {name}" in query]
    given = {n: [events(seed + i * 7 + ord(n), 12, i * 12) for i in range(3)] for n in names if n != "orders"}
    if "orders" in names:
        given["orders"], table = history(seed, 3)
        spark.createDataFrame(table, "id long, user string, amount long").createOrReplaceTempView("orders")
    for name, parts in given.items():
        if name != "orders":
            spark.createDataFrame(pa.concat_tables(parts).combine_chunks()).createOrReplaceTempView(name)
    expected = multiset(spark.sql(query).collect())
    known(tmp_path, given)
    streams = {name: source(tmp_path, name) for name in given if name != "orders"}
    if "orders" in given:
        streams["orders"] = bs.source("scripted", name="orders", path=tmp_path / "orders").with_watermark("at", DELAY)
    try:
        stream = bs.sql(spark, query, **streams).changes()
    except bs.SqlError as error:
        pytest.fail(f"{error}\n{query}")

    def state(sink: object) -> Counter[tuple[object, ...]]:
        rows = [row for batch in sink.batches.values() for row in batch]  # type: ignore[attr-defined]
        changing = any("_change_type" in row.asDict() for row in rows)
        return left_over(sink) if changing else multiset(rows)  # type: ignore[arg-type]

    sink = run(spark, tmp_path, stream, given, backlog, Counter(), check=settled(state, expected))
    assert state(sink) == expected
