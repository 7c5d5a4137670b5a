"""``check``, ``init``, ``reset`` and ``verify`` on real servers."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from backlog_spark.pipelines.building import sink_of
from backlog_spark.pipelines.parsing import load, parse
from backlog_spark.pipelines.preflight import preflight
from backlog_spark.pipelines.running import session_for, start, wait
from backlog_spark.spi.examination import Severity
from backlog_spark.tools.command import command
from tests.connectors.mysql_cdc.replay import SERVERS_IN_GRID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

PASSWORD = "not-to-be-shown"


def invoke(*arguments: str, **environment: str) -> Result:
    made = CliRunner().invoke(command, arguments, env=environment)
    assert PASSWORD not in made.output
    return made


def findings(file: Path, **environment: str) -> dict[str, list[str]]:
    """By severity: subject and problem of each finding."""
    made = invoke("check", str(file), "--json", **environment)
    report = json.loads(made.stdout)
    assert made.exit_code == (0 if report["ok"] else 1)
    found: dict[str, list[str]] = {}
    for each in report["findings"]:
        found.setdefault(each["severity"], []).append(f"{each['subject']}: {each['problem']} {each['hint']}")
    return found


def write(path: Path, port: int, root: Path, *, user: str = "root", source: str = "table: checked.orders") -> Path:
    path.write_text(f"""\
source:
  type: mysql_cdc
  name: orders
  host: 127.0.0.1
  port: {port}
  user: {user}
  password: ${{THE_PASSWORD:-}}
  {source}
sink: {{type: delta_upsert, path: "{root}/t", keys: [id]}}
pipeline: {{name: checked, checkpoint: "{root}/c", interval: 100 ms, availableNow: true}}
""")
    return path


def create(server: MySQLServer) -> None:
    for statement in (
        "DROP DATABASE IF EXISTS checked",
        "CREATE DATABASE checked",
        "CREATE TABLE checked.orders (id INT PRIMARY KEY, customer INT, amount INT)",
        "CREATE TABLE checked.lines (a INT, b INT, PRIMARY KEY (a, b))",
        "CREATE TABLE checked.keyless (a INT)",
        "INSERT INTO checked.orders VALUES (1, 1, 1), (2, 2, 2)",
        "DROP USER IF EXISTS poor",
        f"CREATE USER poor IDENTIFIED BY '{PASSWORD}'",
        "GRANT SELECT ON checked.orders TO poor",
    ):
        server.execute(statement)


@pytest.fixture(params=SERVERS_IN_GRID)
def server(request: pytest.FixtureRequest, pool: Callable[..., MySQLServer]) -> MySQLServer:
    """A real server of each kind that the source reads."""
    return pool(request.param)


def test_check_of_a_good_server(server: MySQLServer, tmp_path: Path) -> None:
    create(server)
    file = write(tmp_path / "p.yaml", server.port, tmp_path)
    found = findings(file)
    assert not {"error", "warning"} & set(found), found
    told = "\n".join(found["ok"])
    assert "the binary log has whole rows" in told
    assert "root may read the binary log." in told
    assert "snapshot: 2 rows" in told
    shown = invoke("check", str(file))
    assert shown.exit_code == 0
    assert "checked.orders" in shown.output
    poor = findings(write(file, server.port, tmp_path, user="poor"), THE_PASSWORD=PASSWORD)["error"]
    assert any("'poor' has no REPLICATION SLAVE" in each for each in poor), poor


@pytest.mark.parametrize("kind", SERVERS_IN_GRID)
def test_a_server_without_a_log_is_one_error_and_no_figures(kind: type[MySQLServer], tmp_path: Path) -> None:
    with kind(fast=True, options={"skip-log-bin": None}) as server:
        create(server)
        found = findings(write(tmp_path / "p.yaml", server.port, tmp_path))
    (error,) = found["error"]
    assert error.startswith("log_bin: log_bin = 'OFF': without a binary log changes cannot be followed")
    assert not any("keeps its binary log" in told or " rows" in told for told in found["ok"]), found


def test_small_tables_are_counted(mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    mysql.execute("SET SESSION cte_max_recursion_depth = 20000")
    numbers = "WITH RECURSIVE n (i) AS (SELECT 3 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i, 0, 0 FROM n"
    file = write(tmp_path / "p.yaml", mysql.port, tmp_path)
    for rows, told in ((1, "1 row,"), (9_999, "9,999 rows,"), (10_001, "about 10,001 rows,")):
        mysql.execute("DELETE FROM checked.orders WHERE id > 1")
        if rows > 1:
            hint = "/*+ SET_VAR(cte_max_recursion_depth = 20000) */"
            counted = numbers.format(rows + 1).replace("SELECT i, 0", f"SELECT {hint} i, 0")
            mysql.execute(f"INSERT INTO checked.orders {counted}")
        assert f"snapshot: {told}" in "\n".join(findings(file)["ok"])


def test_check_reports_everything_at_once(mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    root = tmp_path / "root"
    (root / "t").mkdir(parents=True)
    (root / "t" / "other").write_text("x")
    file = write(tmp_path / "p.yaml", mysql.port, root, user="poor", source=r"tablePattern: checked\..*")
    file.write_text(file.read_text().replace("keys: [id]", "keys: [idd]") + "transform: [{name: x, sql: SELECT (}]\n")
    file.write_text(file.read_text().replace("type: delta_upsert,", "type: delta_upsert, from: orders,"))
    before = mysql.execute("SELECT @@global.binlog_row_image, @@global.binlog_format")[0]
    try:
        mysql.execute("SET GLOBAL binlog_row_image = 'MINIMAL'")
        mysql.execute("SET GLOBAL binlog_format = 'STATEMENT'")
        mysql.execute("SET GLOBAL binlog_expire_logs_seconds = 1")
        found = findings(file, THE_PASSWORD=PASSWORD)
        unstaged = write(
            tmp_path / "u.yaml", mysql.port, root, source="tablePattern: checked\\..*\n  stagingMaxBytes: 0"
        )
        of_unstaged = findings(unstaged)
    finally:
        mysql.execute(f"SET GLOBAL binlog_row_image = '{before[0]}'")
        mysql.execute(f"SET GLOBAL binlog_format = '{before[1]}'")
        mysql.execute("SET GLOBAL binlog_expire_logs_seconds = 2592000")
    told = "\n".join(found["error"])
    for each in (
        "binlog_format: binlog_format = 'STATEMENT'",
        "binlog_row_image: binlog_row_image = 'MINIMAL'",
        "User 'poor' may not read the binary log's position",
        "rights: user 'poor' has no REPLICATION SLAVE",
        "checked.orders has no column idd of keys.",
        f"{root}/t is no Delta table, and not empty.",
        "p.yaml:11:23: ",
    ):
        assert each in told, told
    assert "the server keeps its binary log for 1 s, and what it logs meanwhile is staged" in "\n".join(found["ok"])
    assert "the server keeps its binary log for 1 s, which may be too short" in "\n".join(of_unstaged["warning"])


def test_check_finds_tables_that_would_lie_in_one_directory(mysql: MySQLServer, tmp_path: Path) -> None:
    """As `run` does with their first rows. The server of the tests tells names apart by case."""
    create(mysql)
    mysql.execute("DROP TABLE checked.keyless")
    mysql.execute("CREATE TABLE checked.Orders (id INT PRIMARY KEY)")
    mysql.execute("CREATE TABLE checked.`a.b` (id INT PRIMARY KEY)")
    mysql.execute("DROP DATABASE IF EXISTS `checked.a`")
    mysql.execute("CREATE DATABASE `checked.a`")
    mysql.execute("CREATE TABLE `checked.a`.b (id INT PRIMARY KEY)")
    file = tmp_path / "p.yaml"

    def problems(*routes: str) -> list[str]:
        listed = "".join(f"  - {{source-table: {table}, sink-table: {at}}}\n" for table, at in map(str.split, routes))
        file.write_text(f"""\
source: {{type: mysql_cdc, host: 127.0.0.1, port: {mysql.port}, user: root, tables: checked.*}}
sink: {{type: delta_tables, name: lake, path: {tmp_path}/lake}}
pipeline: {{name: checked, checkpoint: {tmp_path}/c}}
{"route:" if routes else ""}
{listed}""")
        return [text for text in findings(file).get("error", []) if "sink lake: " in text]

    (found,) = problems()
    assert f"{tmp_path}/lake/checked/Orders and {tmp_path}/lake/checked/orders, overlap on a disk that" in found
    # A route of its own is the way out.
    assert problems("checked.Orders other/orders") == []
    (found,) = problems("checked.Orders other", "checked.lines other/lines")
    assert f"checked.lines would lie at {tmp_path}/lake/other/lines, in the directory of checked.Orders" in found
    found = " ".join(problems("checked.* one"))
    assert "`checked.a`.b" in found
    assert "checked.a.b would lie" in found or "of checked.a.b, " in found


@pytest.mark.process
def test_check_of_a_file_with_mistakes_and_of_no_server(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", 1, tmp_path, source="chunkSizze: 1")
    found = findings(file)
    assert found["error"] == [f"{file}:8:3: chunkSizze: mysql_cdc has no such option. Did you mean chunkSize?"]
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    (told,) = findings(file)["error"]
    assert told.startswith("source orders: ")
    assert "127.0.0.1:1" in told


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that the user nobody can reach. Each run of pytest closes the folder above `tmp_path` to others."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made).resolve()


@pytest.mark.process
@pytest.mark.parametrize("what", ["sink sink", "checkpoint"])
@pytest.mark.parametrize(
    ("below", "told"),
    [
        ("file", "{root}/file is a file, and no directory."),
        ("file/a/b", "{root}/file is a file, and no directory."),
        ("link/a", "{root}/link is a link to nothing, and no directory."),
        ("loop/a", "{root}/loop is a link to nothing, and no directory."),
        ("x" * 300, "{root}/{below} cannot be written: File name too long."),
        ("/proc/none", "/proc/none cannot be written: "),
        ("/proc/self/none", "/proc/self/none cannot be written: "),
        ("/sys/none", "/sys/none cannot be written: "),
        ("closed/a", "{root}/closed/a cannot be written: Permission denied."),
        ("read/a", "{root}/read/a cannot be written: Permission denied."),
        ("a/b/c", ""),
        ("linked/a", ""),
        ("lake", ""),
    ],
)
def test_check_tries_to_write(reachable: Path, what: str, below: str, told: str) -> None:
    """It makes what the query would make, and removes it."""
    root = reachable / "root"
    for name in ("closed", "read", "lake/_delta_log"):
        (root / name).mkdir(parents=True)
    (root / "file").write_text("x")
    (root / "link").symlink_to(root / "nowhere")
    (root / "loop").symlink_to(root / "loop")
    (root / "linked").symlink_to(root / "lake")
    path, file = str(root / below), reachable / "p.yaml"
    file.write_text(f"""\
source: {{type: rate}}
sink: {{type: delta_append, path: "{path if what == "sink sink" else root / "t"}"}}
pipeline: {{name: n, checkpoint: "{path if what == "checkpoint" else root / "c"}"}}
""")
    for name, rights in ((".", 0o777), ("lake", 0o777), ("closed", 0), ("read", 0o555)):
        (root / name).chmod(rights)
    before = sorted(root.rglob("*"))
    preflight(str(file))  # imports what nobody may be unable to read
    with as_nobody():
        found = preflight(str(file))
    assert sorted(root.rglob("*")) == before
    errors = [f"{each.subject}: {each.problem}" for each in found.findings if each.severity is Severity.ERROR]
    wanted = f"{what}: {told.format(root=root, below=below)}"
    assert [error[: len(wanted)] for error in errors] == ([wanted] if told else [])


def test_a_password_in_the_file_is_a_warning(mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    file = write(tmp_path / "p.yaml", mysql.port, tmp_path, user="poor")
    file.write_text(file.read_text().replace("${THE_PASSWORD:-}", PASSWORD))
    assert "source orders: password stands in the file, in line 7." in "\n".join(findings(file)["warning"])


def test_init_writes_a_file_that_check_accepts(mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    one, many = tmp_path / "one.yaml", tmp_path / "many.yaml"
    server = ("--host", "127.0.0.1", "--port", str(mysql.port), "--user", "root", "--root", str(tmp_path / "lake"))
    made = invoke("init", *server, "--tables", "checked.orders", "--name", "orders", "-o", str(one))
    assert made.exit_code == 0, made.output
    assert "#   checked.orders: key id, 2 rows, 0 MiB" in one.read_text()
    assert not findings(one).get("error")
    (sink,) = load(str(one)).sinks
    assert sink.arguments() == {"path": f"{tmp_path}/lake/orders", "keys": ["id"]}
    again = invoke("init", *server, "--tables", "checked.orders", "-o", str(one))
    assert isinstance(again.exception, Exception)
    text = invoke("init", *server, "--tables", "checked.*").stdout
    many.write_text(text)
    assert not findings(many).get("error")
    made_many = parse(text)
    assert made_many.sources[0].options["tables.exclude"] == r"checked\.keyless"
    assert made_many.sinks[0].SYNC
    secret = invoke(
        "init", *server[:4], "--user", "poor", "--password-env", "P", "--tables", "checked.orders", "--json", P=PASSWORD
    )
    assert "password: ${P}" in json.loads(secret.stdout)["text"]


def test_run_verify_and_reset(spark: SparkSession, mysql: MySQLServer, tmp_path: Path) -> None:
    create(mysql)
    file = write(tmp_path / "p.yaml", mysql.port, tmp_path)
    pipeline = load(str(file), {})
    assert wait(start(pipeline, session_for(pipeline)))
    made = invoke("verify", str(file), "--json")
    (result,) = json.loads(made.stdout)
    assert (made.exit_code, result["sink"], result["equal"], result["source_rows"]) == (0, "sink", True, 2)
    spark.sql(f"DELETE FROM delta.`{tmp_path}/t` WHERE id = 2")
    made = invoke("verify", str(file))
    assert made.exit_code == 1
    lines = made.stdout.splitlines()
    [row] = [line for line in lines if "1 missing" in line]
    assert [cell.strip() for cell in row.split("│")][1:6] == [
        "checked.orders", f"file:{tmp_path}/t", "2", "1", "1 missing",
    ]  # fmt: skip
    assert lines[-2:] == ["checked.orders:", "  missing id=2"]
    assert invoke("verify", str(file), "--repair").exit_code == 0
    assert invoke("verify", str(file)).exit_code == 0
    told = invoke("reset", str(file), "--target")
    assert told.output.count("would delete") == 2
    assert (tmp_path / "c").exists()
    claims = tmp_path / "c" / "backlog" / "drivers"
    claims.mkdir(exist_ok=True)
    who = {"version": 1, "pid": 1, "host": "other", "machine": "other", "at": "2026-01-01"}
    (claims / f"9-{'0' * 32}.json").write_text(json.dumps(who))
    refused = invoke("reset", str(file), "--yes")
    assert "A driver runs on the checkpoint" in str(refused.exception)
    done = json.loads(invoke("reset", str(file), "--target", "--yes", "--force", "--json").stdout)
    assert {each["what"] for each in done["found"]} == {"checkpoint", "target"}
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "t").exists()
    assert "There is nothing to delete." in invoke("reset", str(file), "--target", "--yes").output


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_reset_keeps_the_tables_of_other_pipelines_below_the_same_root(tmp_path: Path, scheme: str) -> None:
    file, lake = tmp_path / "p.yaml", tmp_path / "lake [x]*"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: db, user: reader, tables: shop.*}}
sink: {{type: delta_tables, path: "{scheme}{lake}"}}
pipeline: {{name: mine, checkpoint: {tmp_path}/c, interval: 1 s}}
""")
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "backlog").mkdir()
    (tmp_path / "c" / "backlog" / "identity.json").write_text('{"version": 1, "id": "mine"}')
    sink: Any = sink_of(pipeline := load(str(file), {}), next(pipeline.outputs()))
    for owner in ("mine", "theirs"):
        marks = lake / "_backlog_tables" / owner / "tables"
        marks.mkdir(parents=True)
        for number, table in enumerate((owner, f"% {owner}#?é")):
            path = sink.path_of("shop", table)
            Path(path.removeprefix("file:").replace("//", "/"), "_delta_log").mkdir(parents=True)
            (marks / f"{number}.json").write_text(json.dumps({"path": path}))
    for _ in range(2):  # the second time there is nothing of the own query
        made = invoke("reset", str(file), "--target", "--yes")
        assert made.exit_code == 0, made.output
        assert not (tmp_path / "c").exists()
        assert {path.name for path in (lake / "shop").iterdir()} == {"theirs", "%25%20theirs%23%3F%C3%A9"}
        assert not (lake / "_backlog_tables" / "mine").exists()
        assert (lake / "_backlog_tables" / "theirs" / "tables" / "1.json").exists()


def test_reset_deletes_no_table_that_is_in_the_checkpoint(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "others" / "_delta_log").mkdir(parents=True)
    made: Any = invoke("reset", str(file), "--yes")
    assert f"The table {tmp_path}/c/others is in the checkpoint" in str(made.exception)
    assert (tmp_path / "c" / "others" / "_delta_log").exists()


@pytest.mark.parametrize(
    ("checkpoint", "other", "told"),
    [
        ("t/_checkpoints/c", "", "The checkpoint {root}/t/_checkpoints/c is in the target {root}/t"),
        ("linked/c", "", "The checkpoint {root}/t/c is in the target {root}/t"),
        ("c", "t/other/_delta_log", "The table {root}/t/other is in the target {root}/t"),
        ("c", "t/other/offsets", "The checkpoint {root}/t/other is in the target {root}/t"),
        ("c", "t/[a]*?/other/_delta_log", "The table {root}/t/[a]*?/other is in the target {root}/t"),
        ("c", "c/other/offsets", "The checkpoint {root}/c/other is in the checkpoint {root}/c"),
    ],
)
def test_reset_deletes_nothing_if_one_directory_is_in_another(
    tmp_path: Path, checkpoint: str, other: str, told: str
) -> None:
    tmp_path = tmp_path / "[x]{y}"  # a pattern, for who takes it for one
    tmp_path.mkdir()
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    file.write_text(file.read_text().replace(f'{tmp_path}/c"', f'{tmp_path}/{checkpoint}"'))
    (tmp_path / "t" / "_delta_log").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "t")
    for name in ("offsets", "commits"):
        (tmp_path / checkpoint / name).mkdir(parents=True)
    if other:
        (tmp_path / other).mkdir(parents=True)
        (tmp_path / other).with_name("commits").mkdir()
    before = sorted(tmp_path.rglob("*"))
    made: Any = invoke("reset", str(file), "--target", "--yes")
    assert str(made.exception).startswith(f"{told.format(root=tmp_path)} and would be removed with it.")
    assert sorted(tmp_path.rglob("*")) == before
    if checkpoint != "c":  # alone it can be removed
        assert invoke("reset", str(file), "--yes").exit_code == 0
        assert not (tmp_path / checkpoint).exists()
        assert (tmp_path / "t" / "_delta_log").exists()


def test_reset_of_side_outputs(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    late = f"sideOutputs: {{late: {{type: delta_append, path: {tmp_path}/late}}}}"
    file.write_text(f"""\
source: {{type: rate}}
sink: {{type: delta_append, path: {tmp_path}/t, {late}}}
pipeline: {{name: n, checkpoint: {tmp_path}/c}}
""")
    for name in ("t/_delta_log", "late/_delta_log", "c/offsets"):
        (tmp_path / name).mkdir(parents=True)
    made = invoke("reset", str(file), "--target", "--yes")
    assert made.exit_code == 0, made.exception
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


def test_reset_of_two_sinks_with_one_table(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"""\
source: {{type: rate}}
sink:
- {{type: delta_append, name: a, path: {tmp_path}/t, checkpoint: {tmp_path}/a}}
- {{type: delta_append, name: b, path: {tmp_path}/t/, checkpoint: {tmp_path}/b}}
pipeline: {{name: n}}
""")
    for name in ("t/_delta_log", "a/offsets", "b/offsets"):
        (tmp_path / name).mkdir(parents=True)
    made = invoke("reset", str(file), "--target", "--yes")
    assert made.exit_code == 0, made.exception
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


@pytest.mark.parametrize("claim", ["", "{}", "[]", "\xff", '{"pid": 1'])
def test_reset_refuses_a_checkpoint_with_a_damaged_claim(tmp_path: Path, claim: str) -> None:
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    for name in ("offsets", "backlog/drivers"):
        (tmp_path / "c" / name).mkdir(parents=True)
    (tmp_path / "c" / "backlog" / "drivers" / "1.json").write_bytes(claim.encode("latin-1"))
    made: Any = invoke("reset", str(file), "--yes")
    assert f"A driver may run on the checkpoint {tmp_path}/c. {tmp_path}/c/backlog/drivers/1.json is damaged" in str(
        made.exception
    )
    assert invoke("reset", str(file), "--yes", "--force").exit_code == 0
    assert not (tmp_path / "c").exists()


def test_reset_deletes_nothing_by_damaged_notes(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"""\
source: {{type: mysql_cdc, host: db, user: reader, tables: shop.*}}
sink: {{type: delta_tables, path: {tmp_path}/lake}}
pipeline: {{name: mine, checkpoint: {tmp_path}/c}}
""")
    marks = tmp_path / "lake" / "_backlog_tables" / "mine" / "tables"
    for path in (tmp_path / "c" / "offsets", tmp_path / "c" / "backlog", marks):
        path.mkdir(parents=True)
    (marks / "1.json").write_text("{}")
    identity = tmp_path / "c" / "backlog" / "identity.json"
    for text, damaged in (("", identity), ('{"id": "mine"}', marks / "1.json")):
        identity.write_text(text)
        made: Any = invoke("reset", str(file), "--target", "--yes")
        assert str(made.exception).startswith(f"{damaged} is damaged")
        assert (tmp_path / "c" / "offsets").exists()


@pytest.mark.process
def test_a_module_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    for name, text in (
        ("wrong_syntax", "def"),
        ("raises_at_once", "raise RuntimeError('no\\x1b')"),
        ("lacks", "None.x"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        more = f"transform: [{{name: x, function: '{name}:f'}}]\n"
        file.write_text(write(file, 1, tmp_path).read_text() + more)
        told = "\n".join(findings(file)["error"])
        assert f"p.yaml:11:23: The module {name} cannot be imported: " in told


def test_reset_deletes_the_checkpoint_of_a_first_start_that_failed(tmp_path: Path) -> None:
    """It has no batch, and perhaps the empty table that the query has created."""
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    for name in ("c/backlog/drivers", "t/_delta_log"):
        (tmp_path / name).mkdir(parents=True)
    made: Any = invoke("reset", str(file), "--target", "--yes")
    assert made.exit_code == 0, made.exception
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


def test_reset_deletes_nothing_that_is_no_checkpoint(tmp_path: Path) -> None:
    file = write(tmp_path / "p.yaml", 1, tmp_path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine").write_text("x")
    made: Any = invoke("reset", str(file), "--yes")
    assert "is no checkpoint of a streaming query" in str(made.exception)
    assert (tmp_path / "c" / "mine").exists()
