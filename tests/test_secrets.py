"""Options of a source that Spark hides: every secret, and those that the user has hidden."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import backlog_spark as bs
import backlog_spark.spark.jvm.session
from backlog_spark.connectors.hybrid import HybridDataSource
from backlog_spark.connectors.mysql_cdc import MySqlCdcDataSource
from backlog_spark.spark.jvm.session import REDACTION
from backlog_spark.spi.kafka_security import SECURITY_NAMES
from backlog_spark.spi.registry import documented_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from servers.mysql import MySQLServer

# Each option of the sources is in one of these: whoever adds one decides.
SECRET = {
    "mysql_cdc": ["password", "passwordCommand", "queryToken", "signalsToken", "columns.mask.secretSalt", "fs.*"],
    "hybrid": [
        "fs.*", "kafka.sasl.jaas.config", "kafka.sasl.password", "kafka.ssl.key.password", "kafka.ssl.key.pem",
        "kafka.ssl.keystore.key", "queryToken", "kafka.sasl.oauthbearer.client.secret",
        "kafka.sasl.oauthbearer.client.credentials.client.secret", "schema.registry.basic.auth.user.info",
        "schema.registry.ssl.key.password", "kafka.ssl.truststore.password", "kafka.ssl.keystore.password",
    ],
}  # fmt: skip
PLAIN = {
    "mysql_cdc": """
        host port user passwordFile passwordEnv passwordFunction
        ssl.mode ssl.ca ssl.cert ssl.key serverId table tablePattern
        allowPublicKeyRetrieval connect.timeout connect.max-retries connect.backoff heartbeat.interval maxRowBytes
        binlog.statement.ignore maxInflatedBytes tables.exclude columns.include columns.exclude columns.mask
        tinyInt1isBit tableSwap rewritingAlter fillsColumns messageKeyColumns skipped.operations signal.table
        scanNewlyAddedTables format schemaChange tableEvents zeroDate chunkSize chunkKeyColumn distributionFactorLower
        distributionFactorUpper maxRowsPerBatch metadataColumns interval intervalDuringBacklog
        backlogLagThreshold pollWait
        useProcessingTimeDuringBinlog availableNowTarget startup.mode snapshot.mode snapshot.host snapshot.port
        startup.timestampMillis
        startup.file startup.position startup.gtidSet metadataLocation stagingMaxBytes
    """,
    "hybrid": """
        phases schema metadataColumns maxRowsPerBatch maxOffsetsPerTrigger metadataLocation interval neededColumns
        minOffsetsPerTrigger maxTriggerDelay keyFormat keyFields keyFieldsPrefix keyAvroSchema keyAvroSchemaFile
        protobufDescriptorFile protobufMessage emit.default.values
        intervalDuringBacklog useProcessingTimeAfterBacklog availableNowTarget maxFilesPerBatch filePartitionBytes
        failOnDataLoss timestampColumn dedupKey startingOverlap fileFormat path basePath pathGlobFilter allowEmpty
        recursiveFileLookup maxBytesPerBatch modifiedAfter modifiedBefore discovery discoveryInterval discoveryOrder
        lateFiles rewrittenFiles cleanSource sourceArchiveDir backlogFilesThreshold backlogFilesLeaveThreshold
        backlogBytesThreshold backlogBytesLeaveThreshold backlogVersionsThreshold backlogVersionsLeaveThreshold
        readChangeFeed skipChangeCommits addedColumns schemaLocation schemaEvolutionMode inferColumnTypes schemaHints
        rescuedDataColumn schemaInferenceFiles schemaInferenceBytes
        timeZone header sep delimiter quote escape nullValue multiLine encoding versionAsOf
        enforceSchema wholetext lineSep
        timestampAsOf subscribe subscribePattern assign startingFrom startingOffsets startingTimestamp
        startingOffsetsByTimestamp startingOffsetsByTimestampStrategy endingOffsets endingTimestamp
        endingOffsetsByTimestamp minPartitions includeHeaders tombstones backlogLagThreshold backlogLagLeaveThreshold
        backlogOffsetsThreshold backlogOffsetsLeaveThreshold backlogMinStay kafka.bootstrap.servers kafka.*
        kafka.sasl.username groupIdPrefix kafkaConsumer.pollTimeoutMs valueFormat mode columnNameOfCorruptRecord
        dateFormat timestampFormat timestampNTZFormat allowNonNumericNumbers avroSchema avroSchemaFile
        schema.registry.url schema.registry.ssl.ca.location schema.registry.ssl.certificate.location
        schema.registry.ssl.key.location kafka.security.protocol kafka.sasl.mechanism kafka.sasl.mechanisms
        kafka.ssl.truststore.location kafka.ssl.ca.location kafka.ssl.truststore.certificates kafka.ssl.ca.pem
        kafka.ssl.keystore.location kafka.ssl.certificate.location kafka.ssl.keystore.certificate.chain
        kafka.ssl.certificate.pem kafka.ssl.key.location kafka.ssl.truststore.type kafka.ssl.keystore.type
        kafka.ssl.endpoint.identification.algorithm avroRecordName decimal.handling.mode binary.handling.mode
        time.precision.mode columnEncodings changeOrder startingPosition unknownColumns beforeImages tableEvents
        changeTables kafka.sasl.oauthbearer.token.endpoint.url kafka.sasl.oauthbearer.client.id kafka.sasl.aws.region
        kafka.sasl.oauthbearer.client.credentials.client.id kafka.sasl.oauthbearer.scope
        kafka.sasl.oauthbearer.extensions kafka.sasl.oauthbearer.token.function kafka.sasl.oauthbearer.method
        kafka.sasl.login.callback.handler.class kafka.sasl.client.callback.handler.class
    """,
}


def test_every_option_is_a_secret_or_is_none() -> None:
    kafka = {f"kafka.{name}" for name in SECURITY_NAMES}
    sources = {"mysql_cdc": MySqlCdcDataSource, "hybrid": HybridDataSource}
    for name, source in sources.items():
        options = documented_options(name)
        assert all(o.doc for o in options)
        listed = {o.name for o in options} | (kafka if name == "hybrid" else set())
        assert listed == {*SECRET[name], *PLAIN[name].split()}
        assert {o.name for o in options if o.secret} == {o.name for o in options} & set(SECRET[name])
        hidden = re.compile(source.secrets, re.IGNORECASE)
        assert all(hidden.fullmatch(option.replace("*", "anything")) for option in SECRET[name])
        assert not any(hidden.fullmatch(option) for option in PLAIN[name].split())
    assert re.fullmatch(HybridDataSource.secrets, "phase.old.fs.key")


@pytest.fixture
def fresh(spark: SparkSession, monkeypatch: Any) -> Iterator[SparkSession]:
    """The session as if nothing had been registered with it."""
    before = spark.conf.get(REDACTION)
    monkeypatch.setattr(backlog_spark.spark.jvm.session, "_hidden", type(backlog_spark.spark.jvm.session._hidden)())
    spark.conf.unset(REDACTION)
    yield spark
    spark.conf.set(REDACTION, before)


def test_what_the_user_hides_stays_hidden(fresh: SparkSession, monkeypatch: Any) -> None:
    fresh.conf.set(REDACTION, "(?i)mine")
    bs.register(fresh)
    found = fresh.conf.get(REDACTION)
    assert found.endswith("|(?i)mine")
    bs.register(fresh)
    backlog_spark.spark.jvm.session.register_source(fresh, HybridDataSource)
    assert fresh.conf.get(REDACTION) == found
    # Another process that has the same session begins with what is there.
    monkeypatch.setattr(backlog_spark.spark.jvm.session, "_hidden", type(backlog_spark.spark.jvm.session._hidden)())
    bs.register(fresh)
    assert fresh.conf.get(REDACTION) == found


def test_no_plan_and_no_error_has_a_secret(fresh: SparkSession) -> None:
    bs.register(fresh)
    fresh.conf.set("spark.sql.debug.maxToStringFields", "100")
    secret = "s3cr3t-77"
    names = [name.replace("*", "account_key") for name in SECRET["hybrid"]]
    reader = fresh.readStream.format("hybrid").schema("id BIGINT").option("path", "/shown")
    for name in (*names, *(f"phase.old.{name}" for name in names), "fs.CONNECTION_string"):
        reader = reader.option(name, f"{secret} of {len(name)}")
    frame = reader.load()
    plan = frame._jdf.queryExecution().toString()
    assert "path=/shown" in plan
    with pytest.raises(AnalysisException) as error:
        frame.select("nope")
    assert "path=/shown" in str(error.value)
    for text in (plan, str(error.value)):
        assert secret not in text
        assert text.count("redacted") >= 2 * len(names) + 1


def _command_lines() -> Iterator[bytes]:
    """Of all processes, as ``ps`` shows them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:  # it has ended
            continue


@pytest.mark.slow
def test_a_whole_job_writes_its_password_nowhere(mysql: MySQLServer, tmp_path: Path) -> None:
    """Two failures with tracebacks are in it: of the sink, and of a login that is refused."""
    secret, table = "s3cret-Of-a-whole-job-4815", "secrets.t"
    mysql.execute("CREATE DATABASE IF NOT EXISTS secrets")
    mysql.execute("DROP USER IF EXISTS keeper")
    mysql.execute(f"CREATE USER keeper IDENTIFIED BY '{secret}'")
    mysql.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO keeper")
    mysql.execute(f"DROP TABLE IF EXISTS {table}")
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
    mysql.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 1), (3, 2)")
    written, work = tmp_path / "written", tmp_path / "work"
    written.mkdir()
    work.mkdir()
    seen: list[bytes] = []
    with (written / "errors").open("wb") as errors:
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.secret_job", str(mysql.port), table, str(written)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "SECRET_JOB": secret, "TMPDIR": str(work)},
        )  # fmt: skip
        assert job.stdin is not None
        assert job.stdout is not None
        output = ""

        def until(mark: str) -> None:
            nonlocal output
            for line in job.stdout or ():
                output += line
                if line.strip() == mark:
                    seen.extend(_command_lines())
                    return
            raise AssertionError(f"no {mark}: {(written / 'errors').read_text()[-2000:]}")

        until("READY")
        mysql.execute(f"INSERT INTO {table} VALUES (4, 2)")
        print("changed", file=job.stdin, flush=True)
        until("DONE")
        mysql.execute("DROP USER keeper")
        for (number,) in mysql.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'keeper'"):
            mysql.execute(f"KILL {number}")
        mysql.execute(f"INSERT INTO {table} VALUES (5, 3)")
        print("stop", file=job.stdin, flush=True)
        until("END")
        job.stdin.close()
        assert job.wait(120) == 0
    (written / "output").write_text(output)
    told = output + (written / "errors").read_text()
    assert "the disk was full" in told
    assert "refused user 'keeper'" in told
    files = [path for root in (written, work) for path in root.rglob("*") if path.is_file()]
    assert {"report.html", "spark-events", "checkpoint", "target"} <= {path.name for path in written.iterdir()}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert any(b"tests.secret_job" in line for line in seen)
    assert not any(secret.encode() in line for line in seen)
