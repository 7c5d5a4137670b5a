"""Options of a source that Spark hides: every secret, and those that the user has hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

import backlog_spark as bs
import backlog_spark.spark.jvm.session
from backlog_spark.connectors.hybrid import HybridDataSource
from backlog_spark.connectors.hybrid.kafka.security import SECURITY_NAMES
from backlog_spark.connectors.mysql_cdc import MySqlCdcDataSource
from backlog_spark.spark.jvm.session import REDACTION
from backlog_spark.spi.registry import documented_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each option of the sources is in one of these: whoever adds one decides.
SECRET = {
    "mysql_cdc": ["password", "queryToken", "signalsToken", "columns.mask.secretSalt"],
    "hybrid": [
        "fs.*", "kafka.sasl.jaas.config", "kafka.sasl.password", "kafka.ssl.key.password", "kafka.ssl.key.pem",
        "kafka.ssl.keystore.key", "queryToken", "schema.registry.basic.auth.user.info",
        "schema.registry.ssl.key.password",
    ],
}  # fmt: skip
PLAIN = {
    "mysql_cdc": """
        host port user passwordFile passwordEnv ssl.mode ssl.ca ssl.cert ssl.key serverId table tablePattern
        allowPublicKeyRetrieval connect.timeout connect.max-retries connect.backoff heartbeat.interval maxRowBytes
        binlog.statement.ignore maxInflatedBytes tables.exclude columns.include columns.exclude columns.mask
        tinyInt1isBit tableSwap rewritingAlter fillsColumns messageKeyColumns skipped.operations signal.table
        scanNewlyAddedTables format schemaChange tableEvents zeroDate chunkSize chunkKeyColumn distributionFactorLower
        distributionFactorUpper maxRowsPerBatch metadataColumns interval intervalDuringBacklog
        backlogLagThreshold pollWait
        useProcessingTimeDuringBinlog availableNowTarget startup.mode snapshot.mode startup.timestampMillis
        startup.file startup.position startup.gtidSet
    """,
    "hybrid": """
        phases schema metadataColumns maxRowsPerBatch maxOffsetsPerTrigger metadataLocation interval neededColumns
        intervalDuringBacklog useProcessingTimeAfterBacklog availableNowTarget maxFilesPerBatch filePartitionBytes
        failOnDataLoss timestampColumn dedupKey startingOverlap fileFormat path basePath pathGlobFilter allowEmpty
        recursiveFileLookup timeZone header sep delimiter quote escape nullValue multiLine encoding versionAsOf
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
        kafka.ssl.endpoint.identification.algorithm
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
