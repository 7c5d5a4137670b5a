"""Writes the reference pages from the code's own tables: ``python -m docs.generate``."""

from __future__ import annotations

import json
from pathlib import Path

from backlog_spark.common.settings import settings_table
from backlog_spark.pipelines.schema import pipeline_schema
from backlog_spark.runner.metrics import metrics_table
from backlog_spark.spark.jvm.internals import SEEN, SWITCH
from backlog_spark.spark.jvm.internals import table as internals_table

from . import errors, hybrid, mysql_cdc, scripts

HERE = Path(__file__).parent

_INTERNALS = f"""# Spark's internals

Some of what backlog_spark does is not in Spark's public API. The table lists each part: the module of \
`backlog_spark/spark/` that does it, the classes and members of Spark {SEEN} that the module reaches for, and what \
happens where another version does not have them.

When a session is registered, a *probe* asks Java's reflection for these members. It starts no job. A part that is \
missing is logged once, and its fallback is used: slower, with the same results. A part without a fallback is \
required: a query that needs it is refused before it reads a row. The error names the version of Spark.

`{SWITCH}=off` in the driver's environment forces all fallbacks. `make test-plain` runs the integration and kill \
tests with it; `make test` tests the fallbacks, and CI runs a sample of `make test-plain`.

Three things depend on "a run that ends between two batches". If Spark lacks it:

* A query is refused if it reads streaming DataFrames beside a source and sorts the backlog. Live rows of the \
DataFrames would be sorted with the backlog.
* A query that somebody stops by Spark's own handle may start again. Use the query's own `stop()`.
* An `availableNow` query over a source that cannot say what is available, such as `rate`, ends only when \
the source has no new rows.

"""

_BLOB = "https://github.com/backlog-spark/backlog-spark/blob/main"

_SETTINGS = """# Settings

Set these in spark-defaults, with `--conf`, or with `spark.conf.set` before the query starts. The later one wins.

"""

_METRICS = f"""# Metrics

A driver can serve the state of its queries to Prometheus. It is off by default. Install the package and set a port:

```console
$ pip install 'backlog-spark[metrics]'
$ spark-submit --conf spark.backlog.metrics.port=9400 job.py
$ curl http://127.0.0.1:9400/metrics
```

`curl` shows lines such as `backlog_spark_query_running{{query="orders"}} 1.0`. If nothing answers, the \
driver's log says on which port the metrics are served, or `start()` has raised an error.

* All queries of a driver share the port. The port serves only the metrics in the table below: none of the Python \
process, none of other libraries, and no `_created` series.
* `spark.backlog.metrics.host` is 127.0.0.1 by default. If Prometheus runs on another machine, set an address of the \
driver that Prometheus can reach, or 0.0.0.0. There is no password and no TLS: whoever reaches the port can read names \
of queries and sources, and numbers.
* If the port is taken, the address is wrong or the package is missing, `start()` raises `SettingError` before a row \
is read.
* A query that has ended keeps its last values until the driver ends. `backlog_spark_query_running` is 0 then.
* A batch is counted when Spark has reported its commit, up to two seconds after the commit. While a batch of the \
backlog runs, only `backlog_spark_source_rows_behind` changes, every 15 seconds.

For Spark's own metrics, [conf/metrics.properties]({_BLOB}/conf/metrics.properties) is an example. In Spark's UI, \
the description of a batch's job has the query's name, the batch, and `backlog` or `live rows`.

"""

_DASHBOARD = f"""
## Dashboard and alerts

[conf/grafana-dashboard.json]({_BLOB}/conf/grafana-dashboard.json) shows these metrics in Grafana: import it and \
choose the data source. [conf/prometheus-rules.yml]({_BLOB}/conf/prometheus-rules.yml) has alert rules. In Prometheus:

```yaml
rule_files: [prometheus-rules.yml]
scrape_configs:
  - job_name: backlog_spark
    scrape_interval: 5s
    static_configs:
      - targets: ["driver-host:9400"]
```

Rules and panels distinguish drivers, also if their queries have the same name. The legends show only the query's name.
With several drivers choose one at the top of the dashboard.

`make test-prometheus` installs Prometheus, checks the rules with its `promtool`, and lets a server scrape metrics.
It checks the dashboard's file by Grafana's types, and each panel's query by its result. It does not start Grafana.
"""


def pages() -> dict[str, str]:
    """File name -> text."""
    return {
        "settings.md": _SETTINGS + settings_table(),
        "metrics.md": _METRICS + metrics_table() + _DASHBOARD,
        "internals.md": _INTERNALS + internals_table(),
        **errors.pages(),
        **hybrid.pages(),
        **mysql_cdc.pages(),
        **scripts.pages(),
        "pipeline.schema.json": json.dumps(pipeline_schema(), indent=1, ensure_ascii=False),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text.rstrip("\n") + "\n")
