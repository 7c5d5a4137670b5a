"""Reading the binary log stops at whatever could lose or shift changes, and at nothing else. No row comes twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pymysql
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from backlog_spark.connectors.mysql_cdc.binlog.positions import BinlogPosition
from backlog_spark.connectors.mysql_cdc.binlog.reading import RowsChange, TransactionEnd, read_changes
from backlog_spark.connectors.mysql_cdc.options import MySqlOptions
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged, TableSchema
from backlog_spark.connectors.mysql_cdc.server.mysql import connect, end_position
from backlog_spark.connectors.mysql_cdc.source import check
from backlog_spark.errors import BacklogError, SettingError
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.replay import SERVERS, SERVERS_IN_GRID, is_mariadb, options, read, reader

pytestmark = pytest.mark.both


@pytest.fixture(scope="module", params=SERVERS_IN_GRID)
def own(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A server whose global variables these tests set and which they restart; not waiting for the disk."""
    # A handshake takes longer than most tests. Newer servers have another word for that.
    no_tls = {"skip-ssl": None} if request.param.own_executable() is None else {"tls-version": ""}
    with request.param(options=no_tls, fast=True) as server:
        yield server


every_server = pytest.mark.parametrize("own", SERVERS, indirect=True)


@dataclass
class Capture:
    """A fresh table `database.orders` with three rows, its schema and the log's end when it was ready."""

    server: MySQLServer
    database: str
    width: int = 20
    options: dict[str, str] = field(init=False)
    parsed: MySqlOptions = field(init=False)
    schema: TableSchema = field(init=False)
    start: BinlogPosition = field(init=False)

    def __post_init__(self) -> None:
        self.server.execute(f"DROP DATABASE IF EXISTS {self.database}")
        self.server.execute(f"CREATE DATABASE {self.database}")
        self.run(
            f"CREATE TABLE orders (id INT PRIMARY KEY, n INT, m INT, v VARCHAR({self.width})) CHARACTER SET latin1",
            "INSERT INTO orders VALUES (1, 1, 10, 'a'), (2, 2, 20, 'b'), (3, 3, 30, 'c')",
        )
        self.options = options(self.server, f"{self.database}.orders", schemaChange="fail", tableEvents="fail")
        self.parsed, self.schema = MySqlOptions.parse(self.options), check(self.options)[0]
        self.start = self.end()

    def run(self, *statements: str) -> None:
        """Run statements in one session whose default database is the table's."""
        with self.server.connect(database=self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def end(self) -> BinlogPosition:
        with connect(self.parsed) as connection:
            return end_position(connection, self.parsed)

    def changes(self, start: BinlogPosition | None = None) -> list[tuple[str, object, object]]:
        """Kind, before-image and after-image of every change after `start`, or since the table was made."""
        found = read_changes(self.parsed, (self.schema,), start or self.start)
        return [(c.kind, old, new) for c in found if isinstance(c, RowsChange) for _, old, new in c.rows]


_DIGITS = "(SELECT 0 d" + "".join(f" UNION SELECT {d}" for d in range(1, 10)) + ")"
# The numbers from 0 to 99,999 as column i.
NUMBERS = (
    "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS i FROM "
    f"{_DIGITS} a, {_DIGITS} b, {_DIGITS} c, {_DIGITS} e, {_DIGITS} f"
)
INSERT_FOUR = "INSERT INTO orders VALUES (4, 4, 40, 'd')"
FOUR = ("insert", None, [4, 4, 40, "d"])

CHECKSUMS = """
  db CHAR(64) NOT NULL, tbl CHAR(64) NOT NULL, chunk INT NOT NULL, chunk_time FLOAT NULL, chunk_index VARCHAR(200) NULL,
  lower_boundary TEXT NULL, upper_boundary TEXT NULL, this_crc CHAR(40) NOT NULL, this_cnt INT NOT NULL,
  master_crc CHAR(40) NULL, master_cnt INT NULL, ts TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE
  CURRENT_TIMESTAMP, PRIMARY KEY (db, tbl, chunk), INDEX ts_db_tbl (ts, db, tbl)
"""
CHECKSUM = """
REPLACE INTO `percona`.`checksums` (db, tbl, chunk, chunk_index, lower_boundary, upper_boundary, this_cnt, this_crc)
SELECT 'checked', 'orders', '1', NULL, NULL, NULL, COUNT(*) AS cnt, COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS(
'#', `id`, `n`, `m`, CONVERT(`v` USING utf8mb4), CONCAT(ISNULL(`n`), ISNULL(`m`), ISNULL(`v`)))) AS UNSIGNED)), 10, 16)
), 0) AS crc FROM `checked`.`orders` /*checksum table*/
"""

ALTERED = [
    "ALTER TABLE orders ADD COLUMN x INT",
    "ALTER TABLE orders ADD COLUMN x INT FIRST, ADD INDEX i (n)",
    "ALTER TABLE orders ADD INDEX i (n), ADD COLUMN x INT",
    "ALTER TABLE orders DROP COLUMN m",
    "ALTER TABLE orders MODIFY n BIGINT",
    "ALTER TABLE orders MODIFY n INT UNSIGNED",
    "ALTER TABLE orders CHANGE n renamed INT",
    "ALTER TABLE orders RENAME COLUMN n TO renamed",
    "ALTER TABLE orders MODIFY n INT AFTER m",
    "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE orders COMMENT 'see #12', MODIFY n INT AFTER m",
    r"ALTER TABLE orders COMMENT 'it\'s', MODIFY n INT AFTER m",
    "ALTER TABLE orders COMMENT '/*', MODIFY n INT AFTER m, COMMENT '*/'",
    "ALTER /*!50000 TABLE */ orders MODIFY n INT AFTER m",
    "/* a tool */ ALTER TABLE`orders`MODIFY n INT AFTER m",
]
GONE = ["TRUNCATE TABLE orders", "TRUNCATE`orders`", "DROP TABLE orders", "RENAME TABLE orders TO moved"]


def stops(capture: Capture, statement: str) -> None:
    """Run the statement after a change; reading the log, and the chunk of an earlier watermark, stops there."""
    stream = reader(capture.options)
    start = stream.initialOffset()
    (partition,) = stream.partitions(start, stream.latestOffset(start, ReadMaxRows(100)))
    capture.run(INSERT_FOUR, statement)
    changes = read_changes(capture.parsed, (capture.schema,), capture.start)
    assert [type(next(changes)) for _ in range(2)] == [RowsChange, TransactionEnd]  # what came before is read
    with pytest.raises(SchemaChanged, match=rf"{capture.database}\.orders.*new checkpoint"):
        next(changes)
    with pytest.raises(SchemaChanged, match=r"orders.*new checkpoint"):
        read(stream, partition)


@pytest.mark.parametrize("statement", [*ALTERED, *GONE, "ALTER TABLE orders RENAME moved"])
def test_a_statement_that_alters_the_table_stops_the_log_and_a_chunk(own: MySQLServer, statement: str) -> None:
    stops(Capture(own, "stopped"), statement)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE orders ADD COLUMN x INT",
        "ALTER TABLE orders DROP COLUMN m",
        "ALTER TABLE orders CHANGE n renamed INT",
        "ALTER TABLE orders MODIFY n INT UNSIGNED",
        "ALTER TABLE orders MODIFY n INT AFTER m",
        "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4",
    ],
)
def test_without_column_names_in_the_log_an_alter_stops_it_all_the_same(own: MySQLServer, statement: str) -> None:
    own.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        stops(Capture(own, "minimal"), statement)
    finally:
        own.execute("SET GLOBAL binlog_row_metadata = FULL")


def test_an_alter_stops_the_planner_and_a_replay_of_the_batch(own: MySQLServer) -> None:
    capture = Capture(own, "planned")
    stream = reader(capture.options)
    live = stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))
    capture.run(INSERT_FOUR, "ALTER TABLE orders ADD COLUMN x INT", "INSERT INTO orders VALUES (5, 5, 50, 'e', 0)")
    before = stream.latestOffset(live, ReadMaxRows(100))
    assert [row[0] for p in stream.partitions(live, before) for row in read(stream, p)] == [4]
    with pytest.raises(SchemaChanged, match="ADD COLUMN x INT"):
        stream.latestOffset(before, ReadMaxRows(100))


def test_dropping_the_database_stops_the_log(own: MySQLServer) -> None:
    for drop in ("DROP DATABASE gone", "DROP SCHEMA IF EXISTS`gone`"):
        capture = Capture(own, "gone")
        own.execute(drop)
        with pytest.raises(SchemaChanged, match="dropped"):
            capture.changes()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE orders SET n = 7",
        "UPDATE through SET n = 7",  # a view
        "INSERT INTO others VALUES (1)",  # a trigger
        "SELECT writes()",
        "DO writes()",
        "DELETE FROM `statements`.`orders`",
    ],
)
def test_a_change_logged_as_a_statement_stops_the_log(own: MySQLServer, statement: str) -> None:
    capture = Capture(own, "statements")
    own.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    capture.run(
        "CREATE VIEW through AS SELECT * FROM orders",
        "CREATE TABLE others (id INT PRIMARY KEY)",
        "CREATE TRIGGER t AFTER INSERT ON others FOR EACH ROW UPDATE orders SET n = 8",
        "CREATE FUNCTION writes() RETURNS INT BEGIN UPDATE orders SET n = 9; RETURN 1; END",
    )
    assert capture.changes() == []
    capture.run("SET SESSION binlog_format = STATEMENT", statement)
    with pytest.raises(BacklogError, match=r"statement-format.*statements\.orders.*binlog_format=ROW"):
        capture.changes()


@every_server
def test_a_table_that_is_made_of_a_query(own: MySQLServer) -> None:
    """MariaDB lets its functions write other tables. In statement format only the statement is in the log then."""
    capture = Capture(own, "made")
    own.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    capture.run("CREATE FUNCTION writes() RETURNS INT BEGIN UPDATE orders SET n = 9; RETURN 1; END")
    capture.run("SET SESSION binlog_format = STATEMENT", "CREATE TEMPORARY TABLE a SELECT COUNT(*) FROM orders")
    if is_mariadb(own):
        capture.run("CREATE TABLE b SELECT writes() AS n")
        assert len(capture.changes()) == 3, "with ROW it logs the rows"
        capture.start = capture.end()
        capture.run("SET SESSION binlog_format = STATEMENT", "CREATE OR REPLACE TABLE b SELECT writes() AS n")
        with pytest.raises(BacklogError, match=r"statement-format change, CREATE with.*made\.orders"):
            capture.changes()
    else:
        with pytest.raises(pymysql.err.OperationalError, match="while 'b' is being created"):
            capture.run("CREATE TEMPORARY TABLE b SELECT writes() AS n")
        assert capture.changes() == []


@every_server
def test_a_heartbeat_that_is_logged_as_a_statement_passes(own: MySQLServer) -> None:
    """Amazon RDS writes one so, whatever the session's binlog_format is."""
    capture = Capture(own, "beaten")
    own.execute("DROP TABLE IF EXISTS mysql.rds_heartbeat2")
    own.execute("CREATE TABLE mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)")
    beat = "INSERT INTO {}rds_heartbeat2(id, value) values (1,1483041015005) ON DUPLICATE KEY UPDATE value = 2"
    capture.run("SET SESSION binlog_format = STATEMENT", beat.format("mysql."), "USE mysql", beat.format(""))
    capture.run("BEGIN", INSERT_FOUR, "SET SESSION sql_mode = ''", "COMMIT")
    assert capture.changes() == [FOUR]
    ends = [c for c in read_changes(capture.parsed, (), capture.start) if isinstance(c, TransactionEnd)]
    assert len({(end.uuid, end.number) for end in ends}) == len(ends), "a transaction ends once"
    capture.run("SET SESSION binlog_format = STATEMENT", f"{beat.format('mysql.')} + (SELECT COUNT(*) FROM orders)")
    with pytest.raises(BacklogError, match=r"statement-format.*beaten\.orders.*binlog_format=ROW"):
        capture.changes()
    own.execute("DROP TABLE mysql.rds_heartbeat2")


@every_server
def test_the_statements_of_pt_table_checksum_pass(own: MySQLServer) -> None:
    """It reads a captured table, and writes only its own."""
    capture = Capture(own, "checked")
    own.execute("DROP DATABASE IF EXISTS percona")
    capture.run(
        "SET SESSION binlog_format = STATEMENT",
        "CREATE DATABASE IF NOT EXISTS `percona` /* pt-table-checksum */",
        f"CREATE TABLE IF NOT EXISTS `percona`.`checksums` ({CHECKSUMS})",
        "DELETE FROM `percona`.`checksums` WHERE db = 'checked' AND tbl = 'orders'",
        CHECKSUM,
        "UPDATE `percona`.`checksums` SET chunk_time = '0.003', master_crc = '5d5da2a5', master_cnt = '3' "
        "WHERE db = 'checked' AND tbl = 'orders' AND chunk = '1'",
        "SET SESSION binlog_format = ROW",
        INSERT_FOUR,
        "SET SESSION binlog_format = STATEMENT",
        "TRUNCATE TABLE `percona`.`checksums`",
    )
    assert capture.changes() == [FOUR]
    own.execute("DROP DATABASE percona")


@every_server
def test_tables_whose_statements_are_ignored(own: MySQLServer) -> None:
    capture = Capture(own, "ignoring")
    name = "binlog.statement.ignore"
    write = "INSERT INTO beats SELECT COUNT(*), 'a secret' FROM orders"
    capture.run("CREATE TABLE beats (id INT, v TEXT)", "SET SESSION binlog_format = STATEMENT", write)
    with pytest.raises(BacklogError, match=rf"INSERT with the tables ignoring\.beats.*{re.escape(name)}") as refused:
        capture.changes()
    assert "secret" not in str(refused.value)
    capture.parsed = MySqlOptions.parse({**capture.options, name: r"ignoring\.b.*"})
    assert capture.changes() == []
    capture.run("SET SESSION binlog_format = STATEMENT", "UPDATE orders SET n = 3")
    with pytest.raises(BacklogError, match=r"UPDATE with the tables ignoring\.orders"):
        capture.changes()

    capture.start = capture.end()
    own.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    capture.run("CREATE TRIGGER t AFTER INSERT ON beats FOR EACH ROW UPDATE orders SET n = 8")
    with pytest.raises(SchemaChanged, match=r"ignoring\.beats became a view or got a trigger"):
        capture.changes()
    capture.run("CREATE VIEW v AS SELECT * FROM orders")
    for pattern, what in (
        (r"ignoring\..*", "captured table"),
        (r".*\.v", "view"),
        (r".*\.beats", "triggers"),
        ("(", "not a regular"),
    ):
        with pytest.raises(SettingError, match=what):
            check({**capture.options, name: pattern})


def test_row_images_without_all_columns_stop_the_log(own: MySQLServer) -> None:
    capture = Capture(own, "images")
    capture.run("SET SESSION binlog_row_image = MINIMAL", "UPDATE orders SET n = 7 WHERE id = 1")
    with pytest.raises(BacklogError, match="binlog_row_image"):
        capture.changes()


@every_server
def test_an_xa_transaction_on_the_table_stops_the_log(own: MySQLServer) -> None:
    capture = Capture(own, "xa")
    capture.run("XA START 'x'", INSERT_FOUR, "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    with pytest.raises(BacklogError, match=r"XA transaction on xa\.orders"):
        capture.changes()


def test_an_xa_transaction_of_one_phase_is_read_where_it_is_logged_as_any_other(own: MySQLServer) -> None:
    capture = Capture(own, "xa")
    capture.run("XA START 'x'", INSERT_FOUR, "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
    if is_mariadb(own):
        assert capture.changes() == [FOUR]
        return
    with pytest.raises(BacklogError, match=r"XA transaction on xa\.orders"):
        capture.changes()


ELSEWHERE = ["XA START 'x'", "INSERT INTO o VALUES (1)", "XA END 'x'"]


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE orders ADD INDEX i (n), ADD UNIQUE u (m), ALGORITHM=INPLACE", "ALTER TABLE orders DROP INDEX i"],
        ["CREATE INDEX i ON orders (n)", "ALTER TABLE orders RENAME INDEX i TO j", "DROP INDEX j ON orders"],
        ["ANALYZE TABLE orders", "OPTIMIZE TABLE orders"],
        ["ALTER TABLE orders ENGINE=InnoDB", "ALTER TABLE orders FORCE"],
        ["ALTER TABLE orders COMMENT = 'ADD COLUMN, DROP COLUMN (', AUTO_INCREMENT = 9"],
        ["CREATE TABLE copied LIKE orders", "ALTER TABLE copied ADD COLUMN x INT", "DROP TABLE copied"],
        ["CREATE TABLE made (id INT)", "INSERT INTO made SELECT id FROM orders", "TRUNCATE made"],
        ["CREATE TABLE noted (id INT COMMENT 'orders')", "ALTER TABLE noted MODIFY id INT COMMENT 'of orders'"],
        ["CREATE TABLE child (o INT)", "ALTER TABLE child ADD FOREIGN KEY (o) REFERENCES orders (id)"],
        ["CREATE TABLE orders_old (id INT)", "RENAME TABLE orders_old TO old_orders", "DROP TABLE old_orders"],
        ["CREATE TABLE orders2 (orders INT)", "ALTER TABLE orders2 DROP COLUMN orders, ADD COLUMN x INT"],
        ["CREATE VIEW seen AS SELECT * FROM orders", "DROP VIEW seen"],
        ["CREATE TRIGGER tr BEFORE DELETE ON orders FOR EACH ROW SET @a = 1", "DROP TRIGGER tr"],
        [
            "CREATE TEMPORARY TABLE orders (id INT)",
            "INSERT INTO orders VALUES (1)",
            "ALTER TABLE orders ADD COLUMN x INT",
            "TRUNCATE TABLE orders",
            "DROP TEMPORARY TABLE orders",
        ],
        ["CREATE TABLE o (id INT)", *ELSEWHERE, "XA COMMIT 'x' ONE PHASE"],
        ["CREATE TABLE o (id INT)", *ELSEWHERE, "XA PREPARE 'x'", "XA ROLLBACK 'x'"],
        ["CREATE TABLE o (id INT)", *ELSEWHERE, "XA PREPARE 'x'", "XA COMMIT 'x'"],
        ["GRANT SELECT ON orders TO CURRENT_USER()", "SAVEPOINT a", "ROLLBACK"],
    ],
)  # fmt: skip
def test_statements_that_leave_the_table_as_it_is_do_not_stop_the_log(own: MySQLServer, statements: list[str]) -> None:
    capture = Capture(own, "going")
    capture.run(*statements, INSERT_FOUR)
    assert capture.changes() == [FOUR]


def test_the_same_name_in_another_database_does_not_stop_the_log(own: MySQLServer) -> None:
    capture = Capture(own, "here")
    for statement in (
        "DROP DATABASE IF EXISTS there",
        "CREATE DATABASE there",
        "CREATE TABLE there.orders (id INT PRIMARY KEY)",
        "ALTER TABLE there.orders ADD COLUMN x INT",
        "INSERT INTO there.orders VALUES (1, 2)",
        "TRUNCATE TABLE `there`.`orders`",
    ):
        capture.run(statement)
    with own.connect(database="there") as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE orders ADD COLUMN y INT")
        cursor.execute("RENAME TABLE orders TO orders_, orders_ TO orders")
        cursor.execute("DROP TABLE orders")
    own.execute("DROP DATABASE there")
    capture.run(INSERT_FOUR)
    assert capture.changes() == [FOUR]


@every_server
@pytest.mark.parametrize("start_checksum", ["CRC32", "NONE"])
@pytest.mark.parametrize("end_checksum", ["CRC32", "NONE"])
def test_every_file_is_read_with_the_checksum_it_was_written_with(
    own: MySQLServer, start_checksum: str, end_checksum: str
) -> None:
    try:
        own.execute(f"SET GLOBAL binlog_checksum = {start_checksum}")
        capture = Capture(own, "checksums")
        capture.run("DELETE FROM orders WHERE id = 1", "FLUSH BINARY LOGS", INSERT_FOUR)
        own.execute(f"SET GLOBAL binlog_checksum = {end_checksum}")
        capture.run("DELETE FROM orders WHERE id = 2")
        assert capture.changes() == [
            ("delete", [1, 1, 10, "a"], None),
            FOUR,
            ("delete", [2, 2, 20, "b"], None),
        ]
    finally:
        own.execute("SET GLOBAL binlog_checksum = CRC32")


@pytest.mark.slow
@every_server
def test_rotations_and_restarts_lose_and_repeat_nothing(own: MySQLServer) -> None:
    capture = Capture(own, "rotated")
    stream = reader(capture.options)
    offset = stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))
    capture.run("CREATE TABLE quick (id INT) ENGINE=MEMORY", "INSERT INTO quick VALUES (1)")
    numbers: list[int] = []
    sequences: list[int] = []
    expected = range(100, 132)
    for n in expected:
        capture.run(f"UPDATE orders SET n = {n} WHERE id = 1")
        if n % 5 == 0:
            own.execute("FLUSH BINARY LOGS")
        if n % 16 == 0:
            own.execute("FLUSH TABLES")  # the table gets another id
        if n == 115:
            own.restart()
            capture.run("SELECT * FROM quick")  # now the server empties it, and logs that as a statement
            logged = own.execute("SHOW BINLOG EVENTS IN %s", (capture.end().file,))
            # MariaDB 11.4 and MySQL 9 log a TRUNCATE TABLE
            assert any(re.search("(DELETE FROM|TABLE) `rotated`.`quick`", info) for *_, info in logged)
        if n % 7 == 0:  # sometimes a batch ends in the middle
            end = stream.latestOffset(offset, ReadMaxRows(6))
            rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
            numbers += [row[1] for row in rows if row[-3] == "update_postimage"]
            sequences += [row[-1] for row in rows]
            offset = end
    while (end := stream.latestOffset(offset, ReadMaxRows(6))) is not offset:
        rows = [row for p in stream.partitions(offset, end) for row in read(stream, p)]
        numbers += [row[1] for row in rows if row[-3] == "update_postimage"]
        sequences += [row[-1] for row in rows]
        offset = end
    assert numbers == list(expected)
    assert sequences == sorted(set(sequences))
    assert [new for _, _, new in capture.changes()] == [[1, n, 10, "a"] for n in expected]


@every_server
def test_a_connection_lost_inside_a_transaction_loses_and_repeats_no_row(own: MySQLServer) -> None:
    capture = Capture(own, "killed", width=2000)
    capture.run(
        f"INSERT INTO orders SELECT 10 + i, i, 0, REPEAT('x', 2000) FROM ({NUMBERS}) x WHERE i < 20000 ORDER BY i"
    )
    waits: list[float] = []
    keys: list[int] = []
    ends = killed = looked_at = 0
    for change in read_changes(capture.parsed, (capture.schema,), capture.start, wait=waits.append):
        if isinstance(change, TransactionEnd):
            ends += 1
            continue
        keys += [new[0] for _, _, new in change.rows if new is not None]
        if killed < 3 and len(keys) >= looked_at:
            # 40 MB are more than the sockets buffer: the server is still sending. After a kill there is no dump
            # until the rows are used up that were read, or held, before.
            looked_at += 500
            for (dump,) in own.execute(
                "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
            ):
                own.execute(f"KILL {dump}")
                killed += 1
    assert killed >= 2
    assert len(waits) >= 1  # it did reconnect
    assert keys == list(range(10, 20_010))
    assert ends == 1


def test_reading_gives_up_after_six_attempts_without_progress(own: MySQLServer) -> None:
    capture = Capture(own, "dead")
    capture.run(INSERT_FOUR)
    stopped = MySQLServer(datadir=None)  # a port on which nothing listens
    try:
        unreachable = MySqlOptions.parse({**capture.options, "port": str(stopped.port)})
        waits: list[float] = []
        with pytest.raises(BacklogError, match=f"127.0.0.1:{stopped.port} could not be read"):
            list(read_changes(unreachable, (capture.schema,), capture.start, wait=waits.append))
        assert waits == [0.5, 1, 2, 4, 8]
    finally:
        stopped.close()


def test_reading_again_what_the_caller_has_is_no_progress(own: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Capture(own, "stuck")
    change = RowsChange(
        capture.schema, "insert", "3e11fa47-71ca-11e1-9e33-c80aa9429562", 1, 0, [(1, None, [1, 1, 1, "a"])]
    )

    def always_lost_after_one_change(*_: object) -> Iterator[RowsChange]:
        yield change
        raise pymysql.err.OperationalError(2013, "Lost connection")

    monkeypatch.setattr("backlog_spark.connectors.mysql_cdc.binlog.reading._read_once", always_lost_after_one_change)
    waits: list[float] = []
    changes = read_changes(capture.parsed, (capture.schema,), capture.start, wait=waits.append)
    assert next(changes) is change
    with pytest.raises(BacklogError, match="could not be read"):
        next(changes)
    assert waits == [0.5, 1, 2, 4, 8]


def test_one_statement_of_two_hundred_thousand_rows_is_one_transaction(own: MySQLServer) -> None:
    capture = Capture(own, "large")
    capture.run(
        f"INSERT INTO orders SELECT 10 + 2 * i + half.d, i, half.d, 'v' FROM ({NUMBERS}) x, "
        "(SELECT 0 d UNION SELECT 1) half"
    )
    rows: dict[int, object] = {}
    images = ends = 0
    for change in read_changes(capture.parsed, (capture.schema,), capture.start):
        if isinstance(change, TransactionEnd):
            ends += 1
            continue
        images += len(change.rows)
        rows.update((new[0], new) for _, _, new in change.rows if new is not None)
    assert (ends, images) == (1, 200_000)
    assert rows == {10 + 2 * i + half: [10 + 2 * i + half, i, half, "v"] for i in range(100_000) for half in (0, 1)}
