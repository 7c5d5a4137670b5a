"""Which table a statement-format change writes, and which statements may write others too."""

from __future__ import annotations

import pytest

from backlog_spark.connectors.mysql_cdc.schema.ddl.statements import named_tables
from backlog_spark.connectors.mysql_cdc.schema.ddl.writes import (
    fills_by_functions,
    has_rules_of,
    is_system,
    named_for_people,
    written_table,
)

CHECKSUM = (
    "REPLACE INTO `percona`.`checksums` (db, tbl, chunk, chunk_index, lower_boundary, upper_boundary, this_cnt, "
    "this_crc) SELECT /*!99997*/ 'shop', 'orders', '2', 'PRIMARY', '1001', '2000', COUNT(*) AS cnt, COALESCE(LOWER("
    "CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`, UNIX_TIMESTAMP(`at`), CONVERT(`v` USING utf8mb4), CONCAT(ISNULL(`n`),"
    " ISNULL(`v`)))) AS UNSIGNED)), 10, 16)), 0) AS crc FROM `shop`.`orders` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= "
    "'1001')) AND ((`id` <= '2000')) /*checksum chunk*/"
)


def passes_as_system(text: str, default: str) -> bool:
    target = written_table(text, default)
    return target is not None and is_system(target[0])


@pytest.mark.parametrize(
    ("text", "default", "passes"),
    [
        (
            "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,1483041015005) "
            "ON DUPLICATE KEY UPDATE value = 1483041015005",
            "",
            True,
        ),
        ("INSERT INTO rds_heartbeat2 VALUES (1, 2)", "mysql", True),
        ("INSERT INTO rds_heartbeat2 VALUES (1, 2)", "shop", False),
        ("INSERT INTO .rds_heartbeat2 VALUES (1, 2)", "mysql", True),
        ("REPLACE `mysql`.`hb` SET id = 1, at = NOW(), text = 'FROM shop.orders'", "shop", True),
        ("UPDATE mysql.hb SET n = (n + 1) WHERE (id = 1)", "shop", True),
        ("DELETE FROM mysql.hb", "shop", True),
        ("DELETE FROM mysql.hb WHERE id IN (1, 2) ORDER BY id LIMIT 1", "shop", True),
        ("INSERT INTO MYSQL.hb VALUES (1)", "shop", False),  # where names differ by case, a user's
        ("INSERT INTO mysql_shop.hb VALUES (1)", "mysql", False),
        ("INSERT INTO sys.hb VALUES (1)", "", False),  # there triggers may be
        ("INSERT INTO mysql.hb SELECT 1", "mysql", False),
        ("INSERT INTO mysql.hb (id) TABLE shop.orders", "mysql", False),
        ("INSERT INTO mysql.hb VALUES (1 + (SELECT writes()))", "mysql", False),
        ("INSERT INTO mysql.hb VALUES (writes())", "shop", False),
        ("INSERT INTO mysql.hb VALUES (shop.now())", "shop", False),
        ("UPDATE mysql.hb, shop.orders SET n = 1", "mysql", False),
        ("UPDATE mysql.hb JOIN orders SET n = 1", "mysql", False),
        ("DELETE FROM mysql.hb, orders USING mysql.hb, orders", "mysql", False),
        ("DELETE mysql.hb, orders FROM mysql.hb, orders", "mysql", False),
        ("WITH a AS (SELECT 1) UPDATE mysql.hb SET n = 1", "mysql", False),
        ("CALL mysql.proc()", "mysql", False),
        ("INSERT INTO mysql.hb VALUES ('it\\'s', writes(), ' ')", "mysql", False),
        ("INSERT INTO mysql.hb VALUES ('x", "mysql", False),
        # As the services were seen to write.
        (
            "INSERT INTO mysql.rds_sysinfo(name, value) values ('innodb_txn_key','Thu Nov 15 10:30:07 UTC 2018')",
            "",
            True,
        ),
        (
            "SET STATEMENT max_statement_time=60 FOR DELETE FROM mysql.rds_sysinfo where name = 'innodb_txn_key'",
            "",
            True,
        ),
        (
            "INSERT INTO mysql.heartbeat(id, master_time) VALUE(1, UTC_TIMESTAMP(6)) "
            "ON DUPLICATE KEY UPDATE master_time=UTC_TIMESTAMP(6)",
            "",
            True,
        ),
        (
            "UPDATE mysql.rds_configuration SET mysql.rds_configuration.value = NAME_CONST('value',24) WHERE BINARY "
            "mysql.rds_configuration.name = NAME_CONST('name',_utf8'binlog retention hours' COLLATE 'utf8_general_ci')",
            "",
            True,
        ),
        ("UPDATE mysql.ha_health_check SET type = '0' WHERE id = 1", "mysql", True),
    ],
)
def test_writes_of_the_servers_own_tables(text: str, default: str, passes: bool) -> None:
    assert passes_as_system(text, default) is passes
    if not passes and "orders" in text:
        assert any(table == "orders" for _, table in named_tables(text, default))


@pytest.mark.parametrize(
    ("value", "own"),
    [("now()", True), ("now (3)", False), ("cast (1 AS CHAR)", False), ("NAME_CONST('a', 1)", True), ("uuid ()", True)],
)
def test_a_blank_before_the_bracket_may_call_a_users_function(value: str, own: bool) -> None:
    assert passes_as_system(f"INSERT INTO mysql.beat VALUES ({value})", "d") is own


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (CHECKSUM, ("percona", "checksums")),
        (
            "UPDATE `percona`.`checksums` SET chunk_time = '0.003', master_crc = 'ab', master_cnt = '4' WHERE db = "
            "'shop' AND tbl = 'orders' AND chunk = '2'",
            ("percona", "checksums"),
        ),
        ("DELETE FROM `percona`.`checksums` WHERE db = 'shop' AND tbl = 'orders'", ("percona", "checksums")),
        ("INSERT INTO audit.day (d, n) SELECT DATE(at), COUNT(*) FROM shop.orders GROUP BY 1", ("audit", "day")),
        ("INSERT INTO beats VALUES (1) ON DUPLICATE KEY UPDATE n = VALUES(n)", ("shop", "beats")),
        ("UPDATE audit.a SET n = (SELECT MAX(id) FROM shop.orders)", ("audit", "a")),
    ],
)
def test_the_table_that_a_statement_writes(text: str, target: tuple[str, str]) -> None:
    assert written_table(text, "shop") == target


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE audit.a, shop.orders SET orders.n = 1",
        "UPDATE audit.a JOIN shop.orders USING (id) SET orders.n = 1",
        "DELETE orders FROM audit.a JOIN shop.orders USING (id)",
        "DELETE FROM audit.a, shop.orders USING audit.a JOIN shop.orders USING (id)",
        "INSERT INTO audit.a SELECT writes()",
        "INSERT INTO audit.a SELECT shop.crc32(1)",
        "INSERT INTO audit.a SELECT COUNT (*) FROM shop.orders",  # may be a user's function of this name
        "INSERT INTO audit.a SELECT `AND`(1)",
        "INSERT INTO audit.a VALUES (NEXT VALUE FOR s)",
        "INSERT INTO audit.a WITH x (a) AS (SELECT 1) SELECT * FROM x",
        "WITH x AS (SELECT 1) UPDATE audit.a SET n = 1",
        "LOAD DATA INFILE 'x' INTO TABLE audit.a",
        "CALL audit.a()",
        "SELECT writes()",
        "DO writes()",
        r"INSERT INTO audit.a VALUES ('it\'s', writes(), ' ')",  # so with NO_BACKSLASH_ESCAPES
        "INSERT /*!80000 INTO shop.orders SELECT * FROM */ audit.a",
    ],
)
def test_a_statement_that_may_write_more_is_not_told(text: str) -> None:
    assert written_table(text, "shop") is None


def test_statements_that_let_a_write_reach_other_tables() -> None:
    trigger = "CREATE DEFINER=`root`@`%` TRIGGER audit.x AFTER INSERT ON a FOR EACH ROW UPDATE orders SET n = 1"
    assert has_rules_of(trigger, "audit") == {("audit", "a")}
    assert has_rules_of("create or replace algorithm=merge view `audit`.v as select * from t", "") == {("audit", "v")}
    assert has_rules_of("CREATE TABLE a (`view` INT)", "audit") == set()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("INSERT INTO orders VALUES (1, 'secret')", ["shop.orders"]),
        ("INSERT INTO a.b SELECT 'FROM secret' FROM `c`.`d`, e JOIN f", ["a.b", "c.d", "shop.e", "shop.f"]),
        ('UPDATE orders SET v = "FROM secret" WHERE TRIM("x" FROM "secret") = 1', ["shop.orders"]),
        (r"UPDATE orders SET v = 'it\'s FROM secret'", ["shop.orders"]),
        (r'UPDATE orders SET v = "it\"s FROM secret" ', ["shop.orders"]),
        ("REPLACE LOW_PRIORITY orders SET n = SUBSTRING(v FROM 4711)", ["shop.orders"]),
        ("INSERT orders (id) VALUES (1) ON DUPLICATE  KEY\nUPDATE n = 1", ["shop.orders"]),
        ("DELETE FROM a USING a JOIN b.c", ["b.c", "shop.a"]),
    ],
)
def test_an_error_names_tables_and_no_values(text: str, told: list[str]) -> None:
    assert named_for_people(text, "shop") == told
    assert "secret" not in str(named_for_people(text, "shop"))
    assert all((name.partition(".")[0], name.partition(".")[2]) in named_tables(text, "shop") for name in told)


@pytest.mark.parametrize(
    ("text", "may_write"),
    [
        ("CREATE TABLE a SELECT writes()", True),
        ("CREATE TABLE a (n INT) AS (SELECT shop.writes() AS n)", True),
        ("CREATE OR REPLACE TABLE a (KEY k (n)) IGNORE SELECT n FROM b WHERE writes(n) = 1", True),
        ("CREATE TEMPORARY TABLE IF NOT EXISTS `a` /* x */ SELECT/**/writes()", True),
        ("CREATE TABLE a VALUES ROW(writes(), 2)", True),
        ("CREATE TABLE a AS WITH c AS (SELECT writes()) SELECT * FROM c", True),
        ("CREATE TABLE a SELECT NEXT VALUE FOR s", True),
        ("CREATE TABLE a SELECT COUNT(*), MAX(n), 'writes()' FROM b JOIN c USING (id) GROUP BY (n)", False),
        ("CREATE TABLE a (`select` INT, v VARCHAR(20), KEY k (v), CHECK (LENGTH(v) > own(2)))", False),
        ("CREATE TABLE a (id INT) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9), PARTITION q "
         "VALUES LESS THAN (MAXVALUE))", False),
        ("CREATE TABLE a LIKE b", False),
        ("CREATE VIEW a AS SELECT writes()", False),
        ("CREATE FUNCTION f() RETURNS INT RETURN (SELECT writes())", False),
    ],
)  # fmt: skip
def test_a_table_that_is_made_of_a_query_which_may_write(text: str, may_write: bool) -> None:
    assert fills_by_functions(text) is may_write
