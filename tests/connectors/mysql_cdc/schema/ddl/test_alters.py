"""What an ALTER TABLE does to columns: each clause, and several clauses of one statement."""

from __future__ import annotations

import pytest

from backlog_spark.connectors.mysql_cdc.schema.ddl.alters import (
    COMPUTED,
    FIRST,
    LITERAL,
    Add,
    Change,
    ConvertAll,
    Drop,
    Rename,
    Step,
    after,
    column_steps,
)
from backlog_spark.connectors.mysql_cdc.schema.table import SchemaChanged


@pytest.mark.parametrize(
    ("clauses", "steps"),
    [
        ("ADD a INT", [Add("a")]),
        ("add column a int unsigned not null default 7 comment 'x, DROP b' first", [Add("a", FIRST, default=LITERAL)]),
        ("ADD COLUMN `a b` DECIMAL(10,2) AFTER `c,``d`", [Add("a b", "c,`d")]),
        ('ADD "a" ENUM("x","y(") AFTER "b"', [Add("a", "b")]),
        ("ADD (a INT, b ENUM('x','y'), KEY (a), CONSTRAINT c CHECK (a > b))", [Add("a"), Add("b")]),
        ("ADD COLUMN IF NOT EXISTS a INT AFTER b", [Add("a", "b", idle=True)]),
        ("ADD IF NOT EXISTS (a INT, UNIQUE (a), b INT)", [Add("a", idle=True), Add("b", idle=True)]),
        ("ADD after INT", [Add("after")]),
        ("ADD first INT AFTER after", [Add("first", "after")]),
        ("ADD date DATE, ADD time TIME FIRST", [Add("date"), Add("time", FIRST)]),
        ("ADD `index` INT", [Add("index")]),
        ("ADD index_no INT", [Add("index_no")]),
        ("ADD unique$ INT", [Add("unique$")]),
        ("ADD a INT GENERATED ALWAYS AS (b + (c)) STORED AFTER c", [Add("a", "c", default=COMPUTED)]),
        ("ADD a INT UNIQUE KEY AFTER b", [Add("a", "b")]),
        ("ADD a SERIAL", [Add("a", default=COMPUTED)]),
        (
            "ADD a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT 'AFTER' FIRST",
            [Add("a", FIRST, default=LITERAL)],
        ),
        ("ADD a DATETIME DEFAULT NOW() ON UPDATE NOW() AFTER b", [Add("a", "b", default=COMPUTED)]),
        (
            "ADD a DECIMAL(9,2) DEFAULT -1.50, ADD b BIT(3) DEFAULT b'101'",
            [
                Add("a", default=LITERAL),
                Add("b", default=LITERAL),
            ],
        ),
        ("ADD a VARCHAR(36) DEFAULT (UUID())", [Add("a", default=COMPUTED)]),
        ("ADD `DEFAULT` INT NULL", [Add("DEFAULT")]),
        ("ADD a INT REFERENCES o (b) ON DELETE RESTRICT FIRST", [Add("a", FIRST)]),
        ("ADD a INT PARTITION BY HASH (a) PARTITIONS 2", [Add("a")]),
        ("ADD a INT AFTER b REMOVE PARTITIONING", [Add("a", "b")]),
        ("DROP a", [Drop("a")]),
        ("DROP COLUMN `a` CASCADE, DROP b RESTRICT", [Drop("a"), Drop("b")]),
        ("DROP COLUMN IF EXISTS a, DROP t.b", [Drop("a", idle=True), Drop("b")]),
        ("RENAME COLUMN a TO b, RENAME COLUMN IF EXISTS `c` TO d", [Rename("a", "b"), Rename("c", "d", idle=True)]),
        ("CHANGE a b INT", [Change("a", "b")]),
        ("CHANGE COLUMN IF EXISTS a a BIGINT FIRST", [Change("a", "a", FIRST, idle=True)]),
        ("MODIFY a DOUBLE(10,3) AFTER b", [Change("a", "a", "b")]),
        ("MODIFY COLUMN IF EXISTS `a` TEXT", [Change("a", "a", idle=True)]),
        ("MODIFY date DATETIME", [Change("date", "date")]),
        ("CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", [ConvertAll()]),
        ("CONVERT TO CHARSET DEFAULT", [ConvertAll()]),
        ("ENGINE=InnoDB COMMENT='it''s', DROP a", [Drop("a")]),
        ("ALGORITHM=INSTANT, ADD a INT, LOCK NONE", [Add("a")]),
        ("WAIT 5 DROP a", [Drop("a")]),
        ("NOWAIT DROP a", [Drop("a")]),
        ("DROP a, ORDER BY b, t.c DESC", [Drop("a")]),
        ("DROP a;", [Drop("a")]),
    ],
)
def test_steps_of_clauses(clauses: str, steps: list[Step]) -> None:
    assert column_steps(f"ALTER TABLE t {clauses}") == tuple(steps)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP a",
        "alter table`t`drop`a`",
        "/* a tool */ ALTER ONLINE TABLE `d`.`t` -- DROP b\n DROP a # DROP c",
        "ALTER TABLE IF EXISTS d . t DROP a",
        "SET STATEMENT max_statement_time=1, a=(SUBSTRING('x' FROM 1 FOR 1)) FOR ALTER TABLE t DROP a",
        "/*!40000 ALTER TABLE t DROP a */",
        "ALTER /*!50503 TABLE */ t /*! DROP a */",
        "/*!80016 ALTER TABLE t DROP a */",  # it was run, else it would not be in the log
        r"ALTER TABLE t COMMENT 'it\'s', DROP a",
        r"ALTER TABLE t COMMENT 'a\', DROP a, COMMENT ''",  # NO_BACKSLASH_ESCAPES: else the last quote would be open
        r"""ALTER TABLE t COMMENT 'it\'s', ADD INDEX "\" (n), DROP a, ADD INDEX "x" (n)""",  # ANSI_QUOTES, likewise
        'ALTER TABLE "t" COMMENT "`", DROP "a"',
        "ALTER TABLE `t t``t` DROP a",
    ],
)
def test_a_statement_in_many_forms(statement: str) -> None:
    assert column_steps(statement) == (Drop("a"),)


@pytest.mark.parametrize(
    "clauses",
    [
        "",
        "FORCE",
        "ADD INDEX i (a, b(3)), ADD KEY (c), ADD UNIQUE (a), ADD UNIQUE KEY date (b), ADD FULLTEXT (c)",
        "ADD INDEX IF NOT EXISTS i USING BTREE (a) COMMENT 'x'",
        "ADD CONSTRAINT CHECK (a > 1), ADD CHECK (b > 1), ADD CONSTRAINT c UNIQUE (a), ADD CONSTRAINT UNIQUE (b)",
        "ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES o (a) ON DELETE RESTRICT ON UPDATE NO ACTION",
        "DROP INDEX i, DROP KEY IF EXISTS j, DROP FOREIGN KEY f, DROP CONSTRAINT c, DROP CHECK d",
        "RENAME INDEX a TO b, RENAME KEY `c` TO d, ALTER INDEX i INVISIBLE, ALTER KEY j NOT IGNORED",
        "ALTER a SET DEFAULT 7, ALTER COLUMN b DROP DEFAULT, ALTER c SET INVISIBLE, ALTER d SET DEFAULT (a + 1)",
        "ALTER CHECK c NOT ENFORCED",
        "COMMENT 'DROP a', AUTO_INCREMENT 7 ROW_FORMAT=DYNAMIC KEY_BLOCK_SIZE 8, STATS_PERSISTENT=DEFAULT",
        "DEFAULT CHARACTER SET = latin1 COLLATE latin1_bin, CHARSET utf8mb4",
        "ENGINE=InnoDB",
        "engine innodb, ALGORITHM=INPLACE, LOCK=SHARED, WITHOUT VALIDATION",
        "ENABLE KEYS, DISABLE KEYS",
        "ORDER BY a, b DESC",
        "PARTITION BY RANGE (a) (PARTITION p0 VALUES LESS THAN (9), PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "REMOVE PARTITIONING",
        "ADD PARTITION (PARTITION p2 VALUES LESS THAN (99))",
        "REORGANIZE PARTITION p0 INTO (PARTITION p1 VALUES LESS THAN (9), PARTITION p2 VALUES LESS THAN (19))",
        "COALESCE PARTITION 2",
        "ANALYZE PARTITION ALL",
    ],
)
def test_clauses_that_leave_the_columns_as_they_are(clauses: str) -> None:
    assert column_steps(f"ALTER TABLE t {clauses}") == ()


@pytest.mark.parametrize(
    "clauses",
    [
        # rows, name or key
        "RENAME TO x",
        "RENAME x",
        "RENAME AS x",
        "DROP PRIMARY KEY",
        "ADD PRIMARY KEY (a)",
        "ADD CONSTRAINT p PRIMARY KEY (a)",
        "ADD (a INT, PRIMARY KEY (a))",
        "ADD a INT PRIMARY KEY",
        "ADD a INT KEY AFTER b",
        "ADD a INT UNIQUE PRIMARY KEY",
        "CHANGE a b INT AUTO_INCREMENT KEY",
        "MODIFY a INT PRIMARY KEY FIRST",
        "DROP INDEX `PRIMARY`",
        "DROP CONSTRAINT `primary`",
        "DROP PARTITION p0",
        "TRUNCATE PARTITION p0",
        "EXCHANGE PARTITION p0 WITH TABLE x",
        "CONVERT PARTITION p0 TO TABLE x",
        "CONVERT TABLE x TO PARTITION p0 VALUES LESS THAN (9)",
        "DISCARD TABLESPACE",
        "IMPORT TABLESPACE",
        "DISCARD PARTITION p0 TABLESPACE",
        "ENGINE=MyISAM",
        "COMMENT 'x' ENGINE=MEMORY",
        # cascades, which no log has
        "ADD FOREIGN KEY (a) REFERENCES o (a) ON DELETE CASCADE",
        "ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES o (a) ON DELETE RESTRICT ON UPDATE SET NULL",
        "ADD a INT REFERENCES o (a) ON DELETE CASCADE",
        # versions of rows
        "ADD SYSTEM VERSIONING",
        "DROP SYSTEM VERSIONING",
        "ADD PERIOD FOR p (a, b)",
        "DROP PERIOD FOR p",
        # where FIRST and AFTER may be names
        "ADD a INT DEFAULT first",
        "ADD a INT DEFAULT after AFTER b, ADD c INT REFERENCES after (x)",
        "ADD a INT REFERENCES first",
        "ADD a INT x=first",
        "ADD a INT REFERENCES o.first",
        # unknown
        "ADD a WHATEVER",
        "ADD a",
        "MODIFY a",
        "UNION=(o)",
        "FOO BAR",
        "FOO=BAR",
        "DROP a, FOO",
        "DROP a,",
        "DROP a b",
        "ORDER BY a, DROP b",
        "COMMENT 'x' DROP a",
        "COMMENT 'x' CONVERT TO CHARACTER SET latin1",
        "PARTITION BY HASH (a), DROP b",
    ],
)
def test_clauses_that_are_refused(clauses: str) -> None:
    wanted = r'altered by ".+", (after )?which .+\. Start the query again with a new checkpoint'
    with pytest.raises(SchemaChanged, match=wanted):
        column_steps(f"ALTER TABLE t {clauses}")


@pytest.mark.parametrize(
    "statement",
    [
        r"""ALTER TABLE t COMMENT 'a\', DROP a, COMMENT "\'" #'""",
        "ALTER TABLE t ADD a INT /*!80016 AFTER b */",
        "ALTER TABLE t ADD a INT /*M! AFTER b */",
        "ALTER TABLE t ADD a INT /*!100301 , ADD b INT */",
        "ALTER IGNORE TABLE t ADD UNIQUE (a)",
        "ALTER OFFLINE TABLE t DROP a",
        "CREATE INDEX i ON t (a)",
        "/* nothing */",
    ],
)
def test_statements_that_can_be_read_in_several_ways_or_in_none(statement: str) -> None:
    with pytest.raises(SchemaChanged, match="new checkpoint"):
        column_steps(statement)


def test_the_clause_is_quoted() -> None:
    with pytest.raises(SchemaChanged, match='by "DROP PARTITION p0", after which the stream cannot continue'):
        column_steps("ALTER TABLE t ADD a INT, DROP\n PARTITION p0")


COLUMNS = ["a", "b", "c", "d", "k"]
# Run on MySQL 8.0.15, MariaDB 11.4.5 and 10.11.5 with the columns a b c d k: which of these stand where. A new column
# has no letter behind it.
TOGETHER = [
    ("DROP a, ADD a INT AFTER b", "b=b a c=c d=d k=k"),
    ("DROP a, ADD A INT FIRST", "A b=b c=c d=d k=k"),
    ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", "b=a a=b c=c d=d k=k"),
    ("RENAME COLUMN a TO b, DROP b", "b=a c=c d=d k=k"),
    ("RENAME COLUMN a TO x, ADD a INT", "x=a b=b c=c d=d k=k a"),
    ("CHANGE a b INT, CHANGE b a INT", "b=a a=b c=c d=d k=k"),
    ("CHANGE a b INT AFTER c, CHANGE b a INT", "a=b c=c b=a d=d k=k"),
    ("RENAME COLUMN a TO b, CHANGE b a INT, MODIFY c INT AFTER a, ADD x INT AFTER b", "b=a x a=b c=c d=d k=k"),
    ("CHANGE b a INT FIRST, RENAME COLUMN a TO b, MODIFY c INT AFTER a, ADD x INT AFTER b", "a=b c=c b=a x d=d k=k"),
    ("ADD y INT FIRST, ADD x INT AFTER y", "y x a=a b=b c=c d=d k=k"),
    ("ADD x INT AFTER d, ADD y INT AFTER d", "a=a b=b c=c d=d y x k=k"),
    ("ADD x INT FIRST, ADD y INT FIRST", "y x a=a b=b c=c d=d k=k"),
    ("MODIFY a INT AFTER c, MODIFY b INT AFTER a", "c=c a=a b=b d=d k=k"),
    ("MODIFY b INT AFTER a, MODIFY a INT AFTER c", "b=b c=c a=a d=d k=k"),
    ("MODIFY a INT AFTER c, MODIFY c INT AFTER d", "b=b a=a d=d c=c k=k"),
    ("MODIFY c INT AFTER d, MODIFY a INT AFTER c", "b=b d=d c=c a=a k=k"),
    ("MODIFY d INT FIRST, MODIFY c INT FIRST", "c=c d=d a=a b=b k=k"),
    ("CHANGE a x INT AFTER c, MODIFY b INT AFTER x", "c=c x=a b=b d=d k=k"),
    ("CHANGE a x INT AFTER d, CHANGE b a INT AFTER x", "c=c d=d x=a a=b k=k"),
    ("CHANGE a b INT, CHANGE b a INT AFTER d, CHANGE c x INT AFTER b", "b=a x=c d=d a=b k=k"),
    ("RENAME COLUMN a TO x, MODIFY c INT AFTER x", "x=a c=c b=b d=d k=k"),
    ("ADD x INT AFTER a, MODIFY a INT AFTER c", "x b=b c=c a=a d=d k=k"),
    ("ADD x INT AFTER y, CHANGE a y INT", "y=a x b=b c=c d=d k=k"),
    ("ADD x INT, MODIFY a INT AFTER x", "b=b c=c d=d k=k x a=a"),
    ("ADD x INT AFTER b, MODIFY a INT AFTER c, ADD y INT AFTER a, MODIFY d INT FIRST, ADD z INT FIRST",
     "z d=d b=b x c=c a=a y k=k"),
    ("MODIFY b INT AFTER d, ADD x INT AFTER d, MODIFY a INT AFTER d, ADD y INT AFTER d", "c=c d=d y a=a x b=b k=k"),
    ("MODIFY b INT FIRST, ADD x INT FIRST, MODIFY c INT FIRST", "c=c x b=b a=a d=d k=k"),
    ("CHANGE a A INT, ADD X int after A", "A=a X b=b c=c d=d k=k"),
    ("MODIFY B INT FIRST", "B=b a=a c=c d=d k=k"),
]  # fmt: skip
# MariaDB only
IF_EXISTS = [
    ("ADD IF NOT EXISTS x INT, ADD IF NOT EXISTS A INT FIRST", "a=a b=b c=c d=d k=k x"),
    ("ADD IF NOT EXISTS x INT, ADD IF NOT EXISTS x INT FIRST", "a=a b=b c=c d=d k=k x"),
    ("DROP IF EXISTS a, ADD IF NOT EXISTS a INT", "b=b c=c d=d k=k"),
    ("DROP a, DROP IF EXISTS a, DROP IF EXISTS x", "b=b c=c d=d k=k"),
    ("RENAME COLUMN a TO x, ADD IF NOT EXISTS a INT", "x=a b=b c=c d=d k=k"),
    ("CHANGE a x INT, ADD IF NOT EXISTS x INT", "x=a b=b c=c d=d k=k"),
    ("CHANGE a x INT, MODIFY IF EXISTS x INT FIRST, DROP IF EXISTS x", "x=a b=b c=c d=d k=k"),
    ("CHANGE IF EXISTS x y INT, MODIFY IF EXISTS z INT AFTER q, RENAME COLUMN IF EXISTS q TO r", "a=a b=b c=c d=d k=k"),
    ("ADD x INT, RENAME COLUMN IF EXISTS x TO y", "a=a b=b c=c d=d k=k x"),
]
IMPOSSIBLE = [
    "DROP a, ADD a INT AFTER a",
    "ADD x INT AFTER b, DROP b",
    "ADD x INT AFTER y, ADD y INT FIRST",
    "CHANGE a x INT AFTER c, MODIFY b INT AFTER a",
    "RENAME COLUMN a TO x, ADD y INT AFTER a",
    "RENAME COLUMN a TO x, MODIFY x INT AFTER c",
    "RENAME COLUMN a TO x, MODIFY a INT AFTER c",
    "MODIFY a INT AFTER a",
    "MODIFY a INT AFTER b, MODIFY a INT AFTER c",
    "DROP a, DROP a",
    "DROP a, MODIFY a INT",
    "CHANGE a x INT, CHANGE x y INT",
    "RENAME COLUMN a TO x, RENAME COLUMN a TO y",
    "ADD x INT, ADD x INT",
    "RENAME COLUMN a TO B",
    "DROP x",
]


@pytest.mark.parametrize(("clauses", "expected"), [*TOGETHER, *IF_EXISTS])
def test_the_clauses_of_one_statement_together(clauses: str, expected: str) -> None:
    columns = after(COLUMNS, column_steps(f"ALTER TABLE t {clauses}"))
    assert " ".join(p.name + ("" if p.source is None else f"={COLUMNS[p.source]}") for p in columns) == expected


@pytest.mark.parametrize("clauses", IMPOSSIBLE)
def test_what_no_server_could_have_run_is_refused(clauses: str) -> None:
    with pytest.raises(SchemaChanged, match="does not fit the table's columns a, b, c, d, k"):
        after(COLUMNS, column_steps(f"ALTER TABLE t {clauses}"))


def test_a_new_definition_is_told_from_a_new_name() -> None:
    columns = after(
        COLUMNS, column_steps("ALTER TABLE t RENAME COLUMN a TO x, MODIFY b INT, CHANGE c c INT, ADD y INT")
    )
    assert [(p.name, p.redefined) for p in columns] == [
        ("x", False), ("b", True), ("c", True), ("d", False), ("k", False), ("y", True),
    ]  # fmt: skip
