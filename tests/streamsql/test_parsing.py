"""Statements that the parser must not see, or cannot take."""

from __future__ import annotations

import logging

import pytest

from backlog_spark.pipelines.document import PipelineError
from backlog_spark.pipelines.parsing import parse_script
from backlog_spark.streamsql.parsing import parsed
from backlog_spark.streamsql.refusals import SqlError
from tests.pipelines.test_sql_script import SINK, SOURCE

DEEP = [
    "SELECT " + "(" * 3000 + "1" + ")" * 3000 + " FROM o",
    "SELECT " + "NOT " * 3000 + "a FROM o",
    "SELECT * FROM " + "(SELECT * FROM " * 1500 + "o" + ")" * 1500,
]


@pytest.mark.parametrize("text", DEEP, ids=["parentheses", "NOT", "subqueries"])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(SqlError, match="nested too deeply"):
        parsed(text)
    with pytest.raises(PipelineError, match="nested too deeply"):
        parse_script(f"{SOURCE}{SINK}INSERT INTO p {text};", checkpoint="/c")


@pytest.mark.parametrize(
    "text",
    ["CREATE USER reader IDENTIFIED BY 's3cret'", "ALTER USER u IDENTIFIED BY 's3cret'", "GRANT ALL TO 's3cret'"],
)
def test_a_statement_with_a_password_is_not_logged(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(SqlError, match="is no query") as refused:
        parsed(text)
    assert "s3cret" not in caplog.text + str(refused.value)
