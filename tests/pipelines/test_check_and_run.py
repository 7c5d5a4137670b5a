"""What ``check`` passes, ``run`` starts, and what ``check`` refuses, ``run`` refuses: pipelines with one fault each."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from backlog_spark.pipelines.parsing import load
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.pipelines.sql_names import unknown_names
from backlog_spark.spi.examination import Severity
from backlog_spark.streamsql.refusals import SqlError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

DATABASE = "compared"


class Case:
    """A pipeline that works, of a random kind. A fault changes it or what it meets."""

    def __init__(self, server: MySQLServer, root: Path, rng: random.Random) -> None:
        self.server, self.root, self.rng = server, root, rng
        self.source: dict[str, Any] = {
            "type": "mysql_cdc", "name": "orders", "host": "127.0.0.1", "port": server.port, "user": "root",
            "startup.mode": rng.choice(["initial", "snapshot"]), "table": f"{DATABASE}.orders",
        }  # fmt: skip
        kind = rng.choice(["delta_upsert", "delta_append", "delta_tables"])
        self.sink: dict[str, Any] = {"type": kind, "path": f"{root}/t"}
        if kind == "delta_upsert":
            self.sink["keys"] = ["id"]
        if kind == "delta_tables":
            del self.source["table"]
            self.source |= {"tables": f"{DATABASE}.*", "startup.mode": "initial"}
        self.transform: list[dict[str, Any]] = []
        self.pipeline: dict[str, Any] = {
            "name": "compared", "checkpoint": f"{root}/c", "interval": "100 ms", "availableNow": True,
        }  # fmt: skip
        if rng.random() < 0.5:
            self.pipeline["intervalDuringBacklog"] = rng.choice([0, "1 min"])
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        server.execute(f"CREATE DATABASE {DATABASE}")
        server.execute(f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, customer INT, amount INT)")
        server.execute(f"INSERT INTO {DATABASE}.orders VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30)")

    def one_table(self, kind: str = "delta_upsert") -> None:
        """Let it copy the one table into one Delta table."""
        self.source.pop("tables", None)
        self.source["table"] = f"{DATABASE}.orders"
        self.sink = {"type": kind, "path": self.sink["path"], **({"keys": ["id"]} if kind == "delta_upsert" else {})}

    def runs(self) -> None:
        """Run it as it is."""
        pipeline = load(self.write())
        assert wait(start(pipeline, session_for(pipeline)))

    def write(self) -> str:
        file = self.root / "p.yaml"
        parts = {"source": self.source, "sink": self.sink, "pipeline": self.pipeline}
        file.write_text(json.dumps({**parts, **({"transform": self.transform} if self.transform else {})}))
        return str(file)


FAULTS: dict[str, Callable[[Case], Any]] = {}


def fault(function: Callable[[Case], Any]) -> Callable[[Case], Any]:
    FAULTS[function.__name__] = function
    return function


@fault
def none(case: Case) -> None:
    pass


@contextmanager
def _listener(says: bytes | None) -> Iterator[int]:
    """A server of something else, that says something at once, or when it was asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if says is not None:
                        connection.sendall(says)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@fault
def a_web_server(case: Case) -> Any:
    return _serving(case, b"HTTP/1.1 400 Bad Request\r\n\r\n")


@fault
def a_mail_server(case: Case) -> Any:
    return _serving(case, b"220 mail.example.com ESMTP\r\n")


@fault
def a_server_that_hangs_up(case: Case) -> Any:
    return _serving(case, None)


@contextmanager
def _serving(case: Case, says: bytes | None) -> Iterator[None]:
    with _listener(says) as port:
        case.source["port"] = port
        case.source["connect.max-retries"] = 1
        yield


@fault
def no_server(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        case.source["port"] = server.getsockname()[1]
    case.source["connect.max-retries"] = 1


@fault
def a_wrong_password(case: Case) -> None:
    case.source["password"] = "no"


def _user(case: Case, *rights: str) -> None:
    case.server.execute("DROP USER IF EXISTS somebody")
    case.server.execute("CREATE USER somebody IDENTIFIED WITH mysql_native_password BY ''")
    for right in rights:
        case.server.execute(f"GRANT {right} TO somebody")
    case.source["user"] = "somebody"


@fault
def enough_rights(case: Case) -> None:
    _user(case, f"SELECT ON {DATABASE}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*")


@fault
def no_right_to_select(case: Case) -> None:
    _user(case, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*")


@fault
def no_right_to_replicate(case: Case) -> None:
    _user(case, f"SELECT ON {DATABASE}.*")


@fault
def no_right_to_ask_for_the_position(case: Case) -> None:
    _user(case, f"SELECT ON {DATABASE}.*", "REPLICATION SLAVE ON *.*")


@fault
def no_such_table(case: Case) -> None:
    case.server.execute(f"DROP TABLE {DATABASE}.orders")


@fault
def no_such_database(case: Case) -> None:
    case.server.execute(f"DROP DATABASE {DATABASE}")


@fault
def no_such_key(case: Case) -> None:
    case.one_table()
    case.sink["keys"] = ["idd"]


@fault
def no_such_column_in_sql(case: Case) -> None:
    case.one_table()
    case.transform = [{"name": "large", "sql": "SELECT id, amountt FROM orders"}]


@fault
def no_such_column_in_a_subquery(case: Case) -> None:
    case.one_table()
    inner = "SELECT id, amount AS a FROM orders WHERE amount > 0"
    case.transform = [{"name": "large", "sql": f"WITH q AS ({inner}) SELECT id, amount FROM q"}]


@fault
def no_such_function_in_sql(case: Case) -> None:
    case.one_table()
    case.transform = [{"name": "large", "sql": "SELECT id, ammount(amount) AS amount FROM orders"}]


@fault
def no_such_stream_in_sql(case: Case) -> None:
    case.one_table()
    case.transform = [{"name": "large", "sql": "SELECT id FROM order_lines"}]


@fault
def good_sql(case: Case) -> None:
    case.one_table()
    case.transform = [{"name": "large", "sql": "SELECT id, amount * 2 AS amount FROM orders WHERE amount > 10"}]


@fault
def sql_that_loses_the_key(case: Case) -> None:
    case.one_table()
    case.transform = [{"name": "large", "sql": "SELECT amount FROM orders"}]


@fault
def no_such_column_to_include(case: Case) -> None:
    case.source["columns.include"] = f"{DATABASE}[.]orders[.](id|nothing)"


@fault
def no_such_chunk_key(case: Case) -> None:
    case.one_table()
    case.source["chunkKeyColumn"] = "nothing"


@fault
def no_primary_key(case: Case) -> None:
    case.server.execute(f"ALTER TABLE {DATABASE}.orders DROP PRIMARY KEY")


@fault
def another_engine(case: Case) -> None:
    case.server.execute(f"ALTER TABLE {DATABASE}.orders ENGINE = MyISAM")


@fault
def a_cascade(case: Case) -> None:
    case.server.execute(
        f"CREATE TABLE {DATABASE}.lines_ (id INT PRIMARY KEY, o INT, "
        f"FOREIGN KEY (o) REFERENCES {DATABASE}.orders (id) ON DELETE CASCADE)"
    )
    case.one_table()
    case.source["table"] = f"{DATABASE}.lines_"


@contextmanager
def _global(case: Case, name: str, value: str) -> Iterator[None]:
    before = case.server.execute(f"SELECT @@GLOBAL.{name}")[0][0]
    case.server.execute(f"SET GLOBAL {name} = '{value}'")
    try:
        yield
    finally:
        case.server.execute(f"SET GLOBAL {name} = '{before}'")


@fault
def minimal_row_images(case: Case) -> Any:
    return _global(case, "binlog_row_image", "MINIMAL")


@fault
def statements_in_the_log(case: Case) -> Any:
    return _global(case, "binlog_format", "STATEMENT")


@fault
def minimal_metadata(case: Case) -> Any:
    return _global(case, "binlog_row_metadata", "MINIMAL")


@fault
def partial_json(case: Case) -> Any:
    return _global(case, "binlog_row_value_options", "PARTIAL_JSON")


@fault
def a_target_that_is_a_file(case: Case) -> None:
    Path(case.sink["path"]).write_text("x")


@fault
def a_target_below_a_file(case: Case) -> None:
    (case.root / "file").write_text("x")
    case.sink["path"] = f"{case.root}/file/t"


@fault
def a_checkpoint_below_a_file(case: Case) -> None:
    (case.root / "file").write_text("x")
    case.pipeline["checkpoint"] = f"{case.root}/file/c"


@fault
def a_target_that_takes_no_files(case: Case) -> None:
    case.sink["path"] = "/proc/t"


@fault
def a_checkpoint_that_takes_no_files(case: Case) -> None:
    case.pipeline["checkpoint"] = "/sys/c"


@fault
def a_target_with_other_files(case: Case) -> None:
    case.one_table()
    Path(case.sink["path"]).mkdir()
    (Path(case.sink["path"]) / "notes.txt").write_text("x")


@fault
def an_empty_target_directory(case: Case) -> None:
    Path(case.sink["path"]).mkdir()


@fault
def a_function_without_its_module(case: Case) -> None:
    case.transform = [{"name": "large", "function": "no_such_module_of_mine:large"}]
    case.one_table()


@fault
def a_module_without_the_function(case: Case) -> None:
    case.transform = [{"name": "large", "function": "tests.pipelines.jobs:larger"}]
    case.one_table()


@fault
def a_function_with_other_arguments(case: Case) -> None:
    case.transform = [{"name": "large", "function": "tests.pipelines.jobs:large", "arguments": {"most": 1}}]
    case.one_table()


@fault
def a_start_in_a_log_that_is_gone(case: Case) -> None:
    case.one_table("delta_append")
    case.source |= {"startup.mode": "specific", "startup.file": "binlog.999999"}


@fault
def a_start_within_a_transaction(case: Case) -> None:
    case.one_table("delta_append")
    last, end = case.server.execute("SHOW MASTER STATUS")[0][:2]
    case.source |= {"startup.mode": "specific", "startup.file": last, "startup.position": int(end) - 1}


@fault
def a_start_at_the_end(case: Case) -> None:
    case.one_table("delta_append")
    last, end = case.server.execute("SHOW MASTER STATUS")[0][:2]
    case.source |= {"startup.mode": "specific", "startup.file": last, "startup.position": int(end)}


@fault
def a_start_after_transactions_that_nobody_has(case: Case) -> None:
    case.one_table("delta_append")
    gtids = "11111111-1111-1111-1111-111111111111:1-5"
    case.source |= {"startup.mode": "specific", "startup.gtidSet": gtids}


@fault
def a_start_in_the_future(case: Case) -> None:
    case.one_table("delta_append")
    case.source |= {"startup.mode": "timestamp", "startup.timestampMillis": 4_000_000_000_000}


@fault
def a_second_run(case: Case) -> None:
    case.source["startup.mode"] = "initial"
    case.runs()


@fault
def a_checkpoint_of_another_table(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.server.execute(f"CREATE TABLE {DATABASE}.others LIKE {DATABASE}.orders")
    case.source["table"] = f"{DATABASE}.others"


@fault
def a_checkpoint_with_other_keys(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.sink["keys"] = ["customer"]


@fault
def a_checkpoint_of_another_sink(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.one_table("delta_append")


@fault
def a_checkpoint_of_another_target(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.sink["path"] = f"{case.root}/another"


@fault
def a_table_that_was_dropped_since(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.server.execute(f"DROP TABLE {DATABASE}.orders")


@fault
def a_target_of_another_query(case: Case) -> None:
    case.one_table()
    case.runs()
    case.pipeline["checkpoint"] = f"{case.root}/another"


@fault
def a_target_with_other_columns(case: Case) -> None:
    case.one_table()
    case.runs()
    case.pipeline["checkpoint"] = f"{case.root}/another"
    case.server.execute(f"ALTER TABLE {DATABASE}.orders MODIFY amount VARCHAR(20)")


@fault
def a_log_that_is_gone_since(case: Case) -> None:
    case.one_table()
    case.source["startup.mode"] = "initial"
    case.runs()
    case.server.execute(f"INSERT INTO {DATABASE}.orders VALUES (4, 4, 4)")
    case.server.execute("FLUSH BINARY LOGS")
    last = case.server.execute("SHOW BINARY LOGS")[-1][0]
    case.server.execute(f"PURGE BINARY LOGS TO '{last}'")


def check_then_run(case: Case) -> tuple[list[str], str]:
    """The errors that ``check`` shows, and the one that ``run`` ends with; empty without one."""
    file = case.write()
    report = preflight(file)
    errors = [f"{each.subject}: {each.problem}" for each in report.findings if each.severity is Severity.ERROR]
    try:
        pipeline = load(file)
        queries = start(pipeline, session_for(pipeline))
        assert wait(queries)
    except Exception as error:
        return errors, f"{type(error).__name__}: {error}"
    return errors, ""


FAST = ("none", "a_web_server", "no_such_table", "a_target_below_a_file")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.grid) for n in FAULTS])
@pytest.mark.usefixtures("spark")
def test_check_and_run_agree(mysql: MySQLServer, tmp_path: Path, name: str) -> None:
    case = Case(mysql, tmp_path, random.Random(name))
    with FAULTS[name](case) or _nothing():
        errors, told = check_then_run(case)
    print(f"\n@@ {name}: {case.sink['type']}\n   check: {errors}\n   run: {told[:400]}")
    assert bool(errors) == bool(told)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_server_without_a_log(pool: Callable[..., MySQLServer], tmp_path: Path) -> None:
    from servers.mysql import MySQLServer

    errors, told = check_then_run(Case(pool(MySQLServer, options={"skip-log-bin": None}), tmp_path, random.Random(1)))
    assert errors
    assert told


@pytest.mark.slow
def test_no_function_of_spark_is_refused(spark: SparkSession) -> None:
    """And what Spark does not know is."""
    names = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if row.function.isidentifier()}
    operators = {
        "table_changes",
        "table_changes_by_path",
        "and",
        "between",
        "case",
        "in",
        "like",
        "ilike",
        "not",
        "or",
        "rlike",
        "when",
    }
    refused = set()
    for name in names - operators:
        with contextlib.suppress(SqlError):  # it needs other arguments
            if unknown_names(f"SELECT {name}(id) AS x FROM orders", {"orders": ["id"]})[0]:
                refused.add(name)
    assert not refused
    [error] = unknown_names("SELECT uper(id) AS x FROM orders", {"orders": ["id"]})[0]
    assert "there is no function uper. Did you mean upper?" in str(error)


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("SELECT id, o.amount, at.day FROM orders AS o WHERE ID > 1", []),
        ("SELECT * FROM Orders", []),
        ("SELECT id AS n, n + 1 AS m FROM orders ORDER BY n", []),
        ("SELECT _change_type FROM orders", []),
        ("SELECT nothing FROM orders", ["nothing"]),
        ("SELECT orders.nothing FROM orders", ["nothing"]),
        ("SELECT sum(x) AS s FROM orders GROUP BY id", ["x"]),
        ("SELECT id FROM nothing", ["nothing"]),
        ("WITH a AS (SELECT id FROM orders) SELECT id FROM a", []),
        ("WITH a AS (SELECT id FROM orders) SELECT id FROM b", ["b"]),
        ("SELECT o.id, m.y FROM orders o JOIN made m ON o.id = m.id", []),  # of a function's stream Spark knows
        ("SELECT o.x, z FROM orders o JOIN made m ON o.id = m.id", ["x"]),
        ("SELECT a.id, b.x, y FROM orders a JOIN orders b ON a.id = b.z", ["x", "y", "z"]),
        ("SELECT q.n, m FROM (SELECT id, count(*) AS n FROM orders GROUP BY id) q WHERE q.k > 1", ["m", "k"]),
        ("WITH a AS (SELECT * FROM orders) SELECT id, x FROM a UNION ALL SELECT id, y FROM a", ["x", "y"]),
        ("WITH a(n, m) AS (SELECT id, amount FROM orders) SELECT n, id FROM a", ["id"]),
        ("SELECT id, x FROM (SELECT o.*, 1 AS x FROM orders o)", []),
        ("SELECT * FROM (SELECT id FROM orders) JOIN (SELECT amount FROM orders) ON id = amount", []),
        ("SELECT o.id FROM orders o JOIN orders o ON o.id = o.x", []),  # Spark knows
        ("WITH t AS (SELECT at, id FROM orders) SELECT window.start, window AS w, count(*) AS n FROM t "
         "GROUP BY window(at, '1 minute')", []),
        ("WITH ORDERS AS (SELECT id AS k FROM orders) SELECT k, amount FROM Orders", ["amount"]),
        ("SELECT id0 FROM (SELECT id, amount AS id FROM orders)", []),
        ("SELECT `at[0]` FROM (SELECT at[0] FROM orders)", []),
        ("SELECT amount, id FROM (SELECT * EXCEPT (id) FROM orders)", []),  # Spark knows
        ("SELECT id FROM orders WHERE id IN (SELECT id FROM orders o WHERE o.at = orders.at AND o.x > amount)", ["x"]),
        ("SELECT id, e, f FROM orders LATERAL VIEW explode(array(id, x)) t AS e", ["f", "x"]),
        ("SELECT window_start, sum(id) AS s FROM TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL 1 MINUTE) "
         "GROUP BY window_start, window_end", []),
        ("SELECT transform(array(id), y -> y + 1) AS a FROM orders", []),
        ("SELECT count(*) AS n FROM orders", []),
        ("SELECT nowhere(id) AS n FROM orders", ["nowhere"]),
        ("SELECT id FROM orders UNION ALL SELECT x FROM made", []),
    ],
)  # fmt: skip
def test_names_in_sql_that_nothing_has(query: str, unknown: list[str]) -> None:
    found, _ = unknown_names(query, {"orders": ["id", "amount", "at"], "made": None})
    assert len(found) == len(unknown)
    assert all(name in str(error) for name, error in zip(unknown, found, strict=True))


@pytest.mark.parametrize("seed", range(2))
def test_columns_in_sql_as_spark_resolves_them(spark: SparkSession, seed: int) -> None:
    """Random queries; in half of them a name is changed. The second implementation is Spark's analysis."""
    chance, seen = random.Random(seed), Counter[bool]()
    streams = {"orders": ["id", "amount", "at"], "users": ["id", "name"], "Pays": ["order_id", "paid", "by"]}
    for name, columns in streams.items():
        frame = spark.createDataFrame([], ", ".join(f"{each} INT" for each in columns))
        frame.createOrReplaceTempView(name)
    for _ in range(60):
        query = random_query(chance, streams)
        if chance.random() < 0.5:
            names = list(re.finditer(r"\b(id|amount|at|name|order_id|paid|by|x\d)\b", query))
            one = chance.choice(names)
            query = f"{query[: one.start()]}{chance.choice('zz_')}{query[one.start() :]}"
        refused = ""
        try:
            spark.sql(query)
        except AnalysisException as error:
            refused = str(error)
        assert not refused or "UNRESOLVED_COLUMN" in refused, f"{query}: {refused}"
        known = not refused or "`_" in refused  # a source may add such a column
        found, _ = unknown_names(query, streams)
        assert known == (not found), f"{query}: {found}"
        seen[known] += 1
    assert min(seen[True], seen[False]) > 10


def random_query(chance: random.Random, streams: Mapping[str, list[str]], depth: int = 2) -> str:
    """A SELECT with joins, subqueries, WITH, unions and aggregates, whose names are right."""
    froms, there = [], []
    for number in range(chance.choice([1, 1, 2])):
        name = chance.choice([*streams])
        columns, text = streams[name], chance.choice([name, name.lower()])
        if depth and chance.random() < 0.5:
            columns = [f"x{depth}{number}{i}" for i in range(2)]
            text = f"({_renamed(random_query(chance, streams, depth - 1), columns)})"
        alias = f"t{depth}{number}"
        froms.append(f"{text} AS {alias}")
        there += [f"{alias}.{column}" for column in columns]
    pick = [chance.choice(there) for _ in range(2)]
    source = froms[0] if len(froms) == 1 else f"{froms[0]} JOIN {froms[1]} ON {there[0]} = {there[-1]}"
    if chance.random() < 0.3:
        body = f"SELECT {pick[0]} AS a, count({pick[1]}) AS b FROM {source} GROUP BY {pick[0]}"
    else:
        body = f"SELECT {pick[0]} AS a, {pick[1]} + 1 AS b FROM {source} WHERE {chance.choice(there)} > 0"
    if len(froms) == 1 and chance.random() < 0.5:
        body = body.replace(f"{froms[0].rsplit(' ', 1)[1]}.", "")
    if depth and chance.random() < 0.3:
        body = f"WITH w AS ({body}) SELECT * FROM w"
    elif chance.random() < 0.2:
        body = f"{body} UNION ALL {body}"
    return body


def _renamed(query: str, columns: Sequence[str]) -> str:
    return f"SELECT a AS {columns[0]}, b AS {columns[1]} FROM ({query})"


@contextmanager
def _nothing() -> Iterator[None]:
    yield
