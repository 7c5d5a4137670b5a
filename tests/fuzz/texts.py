"""Texts that people write: pipelines in YAML, Flink scripts, and SQL, with and without a session to look columns up."""

from __future__ import annotations

import functools
import random
import re
from pathlib import Path
from typing import Any

from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.parsing import parse, parse_script
from backlog_spark.streamsql.parsing import parsed
from tests.fuzz.kinds import ANY, Kind, Wrong, mutated_text
from tests.pipelines import test_sql_script
from tests.streamsql.test_random_queries import Maker
from tests.streamsql.test_refusals import REFUSED

__all__ = ["KINDS", "SPARK"]

_ROOT = Path(__file__).parents[2]
_SECRET = "fuzz-s3cret-4711"
_ENVIRONMENT = {"DB_PASSWORD": _SECRET, "DB_HOST": "db", "LAKE": "/lake"}


@functools.cache
def _blocks(language: str) -> list[str]:
    """The code blocks of the documentation in a language."""
    found: list[str] = []
    for page in sorted((_ROOT / "docs").glob("*.md")):
        found += re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    return found


# -- pipelines ----------------------------------------------------------------------------------------------------


@functools.cache
def _pipelines() -> list[tuple[str, bool]]:
    examples = [path.read_text() for path in sorted((_ROOT / "examples" / "pipelines").glob("*.yaml"))]
    return [*((text, True) for text in examples), *((text, False) for text in _blocks("yaml"))]


def _yaml(chance: random.Random) -> tuple[Any, Any]:
    text, is_whole = chance.choice(_pipelines())
    return text, None if is_whole else ANY


def _checked(error: PipelineError) -> None:
    if _SECRET in str(error):
        raise Wrong("the error has a secret") from None


def _judge_yaml(text: str, told: Any) -> None:
    try:
        parse(text, "p.yaml", _ENVIRONMENT)
    except PipelineError as error:
        _checked(error)
        raise


# -- Flink scripts ------------------------------------------------------------------------------------------------


@functools.cache
def _scripts() -> list[tuple[str, bool]]:
    made = [test_sql_script.GOOD, (_ROOT / "examples" / "sql" / "orders.sql").read_text()]
    columns = "id INT, v STRING, ts TIMESTAMP(3), WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
    source = f"CREATE TABLE o ({columns}) WITH ({test_sql_script.KAFKA});\n"
    changes = f"CREATE TABLE o (id INT, PRIMARY KEY (id) NOT ENFORCED) WITH ({test_sql_script.MYSQL});\n"
    more = [
        source + test_sql_script.SINK + test_sql_script.INSERT,
        changes + test_sql_script.SINK + test_sql_script.INSERT,
    ]
    return [*((text, True) for text in (*made, *more)), *((text, False) for text in _blocks("sql"))]


def _script(chance: random.Random) -> tuple[Any, Any]:
    text, is_whole = chance.choice(_scripts())
    return text, None if is_whole else ANY


def _judge_script(text: str, told: Any) -> None:
    try:
        parse_script(text, "s.sql", _ENVIRONMENT, checkpoint="/c")
    except PipelineError as error:
        _checked(error)
        raise


# -- SQL ----------------------------------------------------------------------------------------------------------

_WORDS = (  # noqa: SIM905
    "SELECT FROM WHERE GROUP BY HAVING JOIN LEFT ON AND OR NOT IN EXISTS UNION ALL DISTINCT CASE WHEN THEN ELSE "
    "END CAST AS OVER PARTITION ORDER INTERVAL '1' MINUTE TABLE DESCRIPTOR NULL IS BETWEEN LIKE LATERAL VIEW "
    "explode sum count max a.v b.item * 1.5 -1 ts window_start TUMBLE HOP SESSION FOR SYSTEM_TIME OF PROCTIME() "
    "ROWS UNBOUNDED PRECEDING GROUPING SETS"
).split()


def _sql(chance: random.Random) -> tuple[Any, Any]:
    match chance.randrange(4):
        case 0:
            return chance.choice(REFUSED)[0], ANY
        case 1:
            return chance.choice(_blocks("sql") or ["SELECT 1"]), ANY
        case _:
            return Maker(chance).query(chance.choice((1, 2, 3))).text, None


def _mutate_sql(chance: random.Random, text: str, other: str) -> str:
    if chance.random() < 0.4:
        words = text.split(" ")
        for _ in range(chance.choice((1, 2, 4))):
            at = chance.randrange(len(words) + 1)
            words[at : at + chance.choice((0, 1, 2))] = chance.choices(
                [*_WORDS, *other.split(" ")], k=chance.choice((0, 1, 2))
            )
        return " ".join(words)
    return mutated_text(chance, text, other)


def _judge_parsed(text: str, told: Any) -> None:
    for dialect in ("spark", "flink"):
        parsed(text, dialect)  # type: ignore[arg-type]


@functools.cache
def _session() -> tuple[Any, dict[str, Any]]:
    import backlog_spark as bs
    from servers.session import local_session

    spark = local_session("fuzz", conf={"spark.ui.enabled": "false"})
    rows = spark.readStream.format("rate").load()

    def table(*items: str) -> Any:
        return bs.stream(rows.selectExpr(*items))

    person = "CAST(value AS STRING) AS user"
    tables = {
        "a": table(person, "CAST(value AS STRING) AS item", "value AS v", "value AS seq", "timestamp AS ts"),
        "b": table(person, "CAST(value AS STRING) AS item", "value AS seq", "timestamp AS ts"),
        "orders": table("value AS id", person, "value AS amount"),
    }
    return spark, tables


def _judge_translated(text: str, told: Any) -> None:
    import backlog_spark as bs

    spark, tables = _session()
    bs.sql(spark, text, **tables)


def _stop() -> None:
    if _session.cache_info().currsize:
        _session()[0].stop()


SPARK = Kind(
    "SQL over streams",
    lambda chance: (_sql(chance)[0], ANY),
    _judge_translated,
    _mutate_sql,
    corpus=8,
    begin=_session,
    close=_stop,
    is_apart=False,
    deadline_s=30.0,
)
KINDS = [
    Kind("pipelines", _yaml, _judge_yaml),
    Kind("Flink scripts", _script, _judge_script),
    Kind("SQL texts", _sql, _judge_parsed, _mutate_sql),
]
