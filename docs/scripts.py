"""The page of Flink SQL scripts: its text, and tables of options and types from the code."""

from __future__ import annotations

from pathlib import Path

from backlog_spark.connectors.datagen import documented_options
from backlog_spark.pipelines.script.checks import METADATA
from backlog_spark.pipelines.script.connectors import CONNECTORS, LOOKUP_RELOAD, TARGETS, Connector
from backlog_spark.pipelines.script.datagen import KEYS
from backlog_spark.pipelines.script.types import PLAIN

from .option_table import option_table

__all__ = ["pages"]

_EXAMPLE = Path(__file__).parents[1] / "examples" / "sql" / "orders.sql"

_BLOB = "https://github.com/backlog-spark/backlog-spark/blob/main"

_TEXT = """# Flink SQL scripts

A Flink SQL script runs as it is: `CREATE TABLE`, `CREATE VIEW`, `SET`, `INSERT INTO`. Each `INSERT` becomes a query.
The script is read as a [pipeline](pipelines.md), so it has the same checks, commands and guarantees as a YAML file.

```sql
{example}```

```console
$ pip install 'backlog-spark[spark,delta,mysql,sql,cli] @ git+https://github.com/backlog-spark/backlog-spark'
$ export DB_PASSWORD=…
$ backlog-spark check orders.sql
$ backlog-spark sql orders.sql
```

The example is [examples/sql/orders.sql]({blob}/examples/sql/orders.sql). The commands `run`, `check` and `reset` take
a script too, if its name ends with `.sql`. `backlog-spark sql orders.sql --explain` shows the operators of each INSERT.

In Python, `bs.sql_script(spark, text)` starts the queries and returns them:

```python
from pathlib import Path

import backlog_spark as bs

queries = bs.sql_script(spark, Path("orders.sql").read_text(), checkpoint="/lake/_checkpoints/orders_sql")
```

Mistakes are told before Spark starts, all at once, with line and column of the script. `${{NAME}}` and
`${{NAME:-default}}` in a text of WITH or SET are [variables of the environment](pipelines.md#variables). Errors never
show a password.

## Statements

| statement | |
|---|---|
| `CREATE [TEMPORARY] TABLE` | Columns, also computed and of metadata, WATERMARK, PRIMARY KEY, PARTITIONED BY, WITH. |
| `CREATE [TEMPORARY] VIEW` | A SELECT of [SQL](sql.md). |
| `CREATE [TEMPORARY] FUNCTION f AS 'module:function' LANGUAGE PYTHON` | A Python function. Its annotation, such as \
`-> str`, says what it returns; or it is a `udf` of PySpark. The module is in the script's directory or in \
`PYTHONPATH`. |
| `INSERT INTO t [(columns)] SELECT …` | A query. Columns go by position, and are cast within numbers, within times \
and to STRING. |
| `EXECUTE STATEMENT SET BEGIN … END`, `BEGIN STATEMENT SET; … END` | Its INSERTs. Each is a query of its own anyway. |
| `SET 'name' = 'value'` | Flink's settings that [have a meaning here](coming_from.md#flink), and Spark's `spark.*`. |
| `DROP … IF EXISTS` | Has no effect at the beginning of a script. |

Others are refused with what to write instead, among them `INSERT … VALUES`, `USE`, Java functions and
`CREATE TABLE … LIKE`.

| setting | here |
|---|---|
| `execution.checkpointing.dir`, `state.checkpoints.dir` | Directory of the checkpoints. Each query has the directory \
below it with its target's name. `--checkpoint` and `checkpoint=` override it. |
| `execution.checkpointing.interval`, `…interval-during-backlog` | The two intervals. |
| `execution.runtime-mode` = `batch` | Read what is there, then end. |
| `pipeline.name` | Name of the queries. Default: that of the file. |
| `table.local-time-zone` | `spark.sql.session.timeZone` |
| `table.exec.source.idle-timeout` | The `idleTimeout` of all watermarks. |

## Differences from Flink

* A query is Spark's SQL, with the functions and rules of [sql.md](sql.md). Names of tables and columns are the same in
  any case.
* `TIMESTAMP(3)` is Spark's TIMESTAMP_NTZ. Only the watermark's column is a TIMESTAMP, in the session's time zone: set
  `table.local-time-zone` to `UTC`. Lengths of texts and precisions of times do not count. NOT NULL is not checked.
* Rows of a target without a primary key are only added. A query whose results change needs a primary key, or `print`
  or `blackhole`. With a primary key, a row replaces the earlier row of its key.
* A table of `kafka` needs `scan.startup.mode`. Flink's default, `group-offsets`, is not possible: the checkpoint has
  the positions.
* `server-id` is a range of at least 16 ids.
* A table of `filesystem` without a watermark may be joined `FOR SYSTEM_TIME AS OF` the processing time. It is
  [looked up](sql.md#bounded-tables) then: read at each start, and after `{reload}`.
* A table of `filesystem` with `source.monitor-interval` is read on and on: [new files](hybrid.md#new-files). A file
  that was written again stops the query, while Flink does not look; set `'rewrittenFiles' = 'ignore'` for that.
* Any other table of `filesystem` is read once, and has an end. So have `kafka` with `scan.bounded.mode`, `mysql-cdc`
  with `scan.startup.mode` = `snapshot`, and `datagen` with `number-of-rows` or a sequence.
* `key.format` of a `kafka` table counts with `'value.fields-include' = 'EXCEPT_KEY'`. With `ALL` the value has all
  columns, as in Flink.
* A table is read or written, not both. `kafka` and `filesystem` take rows that are only added. For
  upserts write to `upsert-kafka`; records of `kafka` have no key. Times in JSON are ISO 8601, in UTC:
  [topics.md](topics.md). Files of `filesystem` are those of
  Spark's file sink, visible by its log: [small_sinks.md](small_sinks.md). So there is no partition commit to wait for.
* Each INSERT reads its tables itself. A table that a query names twice is read twice, unless it is joined with its own
  aggregates.

## Connectors

A table may also have an option of the source or sink here by its own name, such as `'maxRowsPerBatch' = '1000'`. Any
option that is not in the tables is refused.

{connectors}
Metadata columns:

| connector | `METADATA FROM` |
|---|---|
{metadata}
## Types

| Flink | Spark |
|---|---|
{types}| `ARRAY<t>`, `MAP<k, v>` | the same |
| `ROW<name t, …>` | `STRUCT` |

`MULTISET`, `TIME`, `INTERVAL`, `RAW` and `TIMESTAMP WITH TIME ZONE` are refused.

## print, blackhole and datagen in YAML

A [pipeline's file](pipelines.md) and Python may have the sinks `print` and `blackhole` and the source `datagen` too:
`bs.Print`, `bs.BlackHole`, `bs.source("datagen", …)`.

* `print` prints `+I[1, a]` for a new row, and `-U`, `+U` and `-D` for changes, in the driver. A batch is printed when
  it is complete. After a crash the last batch may be printed again.
* `blackhole` computes all rows and drops them.
* `datagen` gives rows with a number, `value`, and the time at which the row became due, `timestamp`. A row that is
  read again is the same.

{datagen}"""


def _table(name: str, connector: Connector) -> str:
    lines = [f"**{name}**: {'the source' if connector.reads else 'the sink'} `{_here(connector)}`", ""]
    lines += ["| Flink | here |", "|---|---|"]
    for option in connector.known().values():
        values = [f"`{flink}`" for flink in option.values or ()]
        told = f"`{option.ours}`" if option.ours else "no effect"
        if option.name == "fields.*":
            told = f"a column's values: {', '.join(f'`fields.<column>.{key}`' for key in KEYS)}"
        flink = f"`{option.name}`" + (", required" if option.required else "")
        lines.append(f"| {flink} | {told}{': ' if values else ''}{', '.join(values)} |")
    return "\n".join(lines) + "\n"


def _here(connector: Connector) -> str:
    return {"delta_append": "delta_upsert` if the table has a primary key, else `delta_append"}.get(
        connector.type, connector.type
    )


def pages() -> dict[str, str]:
    """File name -> text."""
    metadata = "".join(
        f"| `{name}` | {', '.join(f'`{each}`' for each in columns)} |\n" for name, columns in METADATA.items()
    )
    types: dict[str, list[str]] = {}
    for flink, spark in PLAIN.items():
        types.setdefault(spark, []).append(f"`{flink}`")
    return {
        "scripts.md": _TEXT.format(
            blob=_BLOB,
            reload=LOOKUP_RELOAD,
            example=_EXAMPLE.read_text(),
            connectors="\n".join(_table(name, each) for every in (CONNECTORS, TARGETS) for name, each in every.items()),
            metadata=metadata,
            types="".join(f"| {', '.join(names)} | `{spark}` |\n" for spark, names in types.items()),
            datagen=option_table(documented_options()),
        )
    }
