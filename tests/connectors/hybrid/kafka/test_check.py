"""``backlog-spark check`` of sources with Kafka, on a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from backlog_spark.tools.command import command

from .broker import PASSWORD, USER, Broker

DAY_MS = 86_400_000
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def now() -> int:
    return int(time.time() * 1000)


def checked(root: Path, source: dict[str, Any], **settings: str) -> dict[str, str]:
    """The findings by severity, as lines of subject, problem and hint."""
    # JSON is YAML.
    pipeline = {
        "source": {"name": "events", **source},
        "sink": {"type": "delta_append", "path": f"{root}/t"},
        "pipeline": {"name": "checked", "checkpoint": f"{root}/c", "settings": settings},
    }
    (root / "p.yaml").write_text(json.dumps(pipeline))
    made = CliRunner().invoke(command, ["check", str(root / "p.yaml"), "--json"])
    assert PASSWORD not in made.output
    assert json.dumps(PASSWORD)[1:-1] not in made.output
    report = json.loads(made.stdout)
    assert made.exit_code == (0 if report["ok"] else 1)
    found: dict[str, str] = {}
    for each in report["findings"]:
        line = f"{each['subject']}: {each['problem']} {each['hint']}\n"
        found[each["severity"]] = found.get(each["severity"], "") + line
    return found


def hybrid(broker: Broker, topic: str, root: Path, **more: Any) -> dict[str, Any]:
    return {
        "type": "hybrid",
        "path": f"{root}/old",
        "fileFormat": "parquet",
        "timestampColumn": "at",
        "valueFormat": "json",
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingFrom": "lastFileTimestamp",
        **more,
    }


def write(root: Path, *times: int) -> None:
    (root / "old").mkdir(exist_ok=True)
    at = pa.array([ms * 1000 for ms in times], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": pa.array(range(len(times))), "at": at}), root / "old" / "1.parquet")


def test_files_then_kafka(broker: Broker, tmp_path: Path) -> None:
    topic, begin = broker.topic(2), now() - 10_000
    broker.send(topic, ["{}"] * 5, at=begin)
    broker.send(topic, ["{}"] * 3, partition=1, at=begin)
    write(tmp_path, begin - 1_000, begin + 2)
    found = checked(tmp_path, hybrid(broker, topic, tmp_path))
    assert not {"error", "warning"} & set(found), found
    size = (tmp_path / "old" / "1.parquet").stat().st_size
    assert f"phase files: 1 file, {size:,} bytes, in {tmp_path}/old: roughly 1 s" in found["ok"]
    assert f"{topic}, 2 partitions, 8 offsets: {topic}-0 has 0 to 5, {topic}-1 has 0 to 3." in found["ok"]
    # From the newest row's time on: 3 of the first partition and 1 of the second.
    assert "phase kafka: about 4 records wait, from 20" in found["ok"]


def test_records_that_retention_removed_or_may_remove(broker: Broker, tmp_path: Path) -> None:
    topic, begin = broker.topic(retention_ms=str(7 * DAY_MS)), now() - 7 * DAY_MS + 1_000
    broker.send(topic, ["{}"] * 5, at=begin)
    write(tmp_path, begin + 1)
    source = hybrid(broker, topic, tmp_path)
    found = checked(tmp_path, source)
    assert "retention (retention.ms = 7 d) may remove the first records" in found["warning"]
    assert "error" not in found
    broker.remove_before(topic, 4)
    told = checked(tmp_path, source)["error"]
    assert f"Records of {topic}-0 from " in told
    assert "may be lost: reading should begin at that time, but retention has removed all earlier records" in told
    told = checked(tmp_path, {**source, "failOnDataLoss": "false"})["warning"]
    assert "failOnDataLoss=false: the query starts nevertheless." in told
    # A query that has begun does not begin there again.
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "offsets" / "0").write_text("v1")
    assert "error" not in checked(tmp_path, source)


def test_what_is_missing_is_told_at_once(broker: Broker, tmp_path: Path) -> None:
    found = checked(tmp_path, hybrid(broker, "no-such-topic", tmp_path))["error"]
    assert f"phase files: path = '{tmp_path}/old': is not there." in found
    assert "phase kafka: Kafka at " in found
    assert "has no no-such-topic. Create it, or correct subscribe." in found
    topic = broker.topic()
    write(tmp_path, now())
    found = checked(tmp_path, hybrid(broker, topic, tmp_path, schema="id BIGINT, att TIMESTAMP", valueFormat="raw"))
    assert "columns: schema = 'att': no phase has such a column. " in found["error"]
    found = checked(tmp_path, hybrid(broker, topic, tmp_path, timestampColumn="id"))
    assert "columns: timestampColumn: id is int64, not a timestamp." in found["error"]
    (tmp_path / "old" / "2.parquet").write_text("no parquet")
    told = checked(tmp_path, hybrid(broker, topic, tmp_path))["error"]
    assert f"{tmp_path}/old/2.parquet cannot be read as parquet" in told


def test_a_time_that_only_the_rows_tell(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic()
    broker.send(topic, ["{}"])
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "1.json").write_text('{"at": "2024-01-01T00:00:00Z"}\n')
    found = checked(tmp_path, hybrid(broker, topic, tmp_path, fileFormat="json", schema="at TIMESTAMP"))
    assert "it begins at the time of the newest row of the phases before" in found["note"]
    assert "The oldest record is of 20" in found["note"]


def test_passwords_and_brokers_that_are_away(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.topic()
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    login = {
        "kafka.bootstrap.servers": broker.server.address("SASL_PLAINTEXT"),
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{MODULE} required username="{USER}" password="{quoted}";',
    }
    source = {"type": "hybrid", "phases": "kafka", "subscribe": topic, **login}
    found = checked(tmp_path, source)
    assert "error" not in found
    assert f"as '{USER}' answers: {topic}, 1 partitions, 0 offsets" in found["ok"]
    assert "kafka.sasl.jaas.config stands in the file" in found["warning"]
    monkeypatch.setenv("LOGIN", login["kafka.sasl.jaas.config"])
    assert "warning" not in checked(tmp_path, {**source, "kafka.sasl.jaas.config": "${LOGIN}"})
    wrong = {**source, "kafka.sasl.jaas.config": login["kafka.sasl.jaas.config"].replace(USER, "other")}
    assert "phase kafka: Kafka at " in checked(tmp_path, wrong)["error"]
    away = {**source, "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "500"}
    assert "Kafka at 127.0.0.1:1 as 'reader' did not answer" in checked(tmp_path, away)["error"]


@pytest.mark.parametrize("packages", ["", "io.delta:delta-spark_4.2_2.13:4.4.0"])
def test_sparks_own_kafka_source(broker: Broker, tmp_path: Path, packages: str) -> None:
    topic = broker.topic()
    broker.send(topic, ["a"] * 3)
    broker.remove_before(topic, 1)
    source = {"type": "kafka", "kafka.bootstrap.servers": broker.address, "subscribe": topic}
    settings = {"spark.jars.packages": packages} if packages else {}
    found = checked(tmp_path, {**source, "startingOffsets": "earliest"}, **settings)
    assert f"{topic}-0 has 1 to 3." in found["ok"]
    assert "kafka: about 2 records wait." in found["ok"]
    needed = "org.apache.spark:spark-sql-kafka-0-10_2.13:"
    assert f"Add {needed}" in found["error"]
    named = ",".join(filter(None, [packages or "io.delta:delta-spark_4.2_2.13:4.4.0", f"{needed}4.2.0"]))
    assert "error" not in checked(tmp_path, source, **{"spark.jars.packages": named})
    gone = checked(tmp_path, {**source, "startingOffsets": json.dumps({topic: {"0": 0}})})["error"]
    assert f"Records of {topic}-0 are lost: the next offset is 0, the earliest is 1" in gone
    kerberos = {**source, "kafka.sasl.kerberos.service.name": "kafka"}
    assert "the brokers are not asked without Spark" in checked(tmp_path, kerberos)["note"]
