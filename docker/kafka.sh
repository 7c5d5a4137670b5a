#!/bin/sh
# Runs one Kafka broker, with its controller, in the foreground: kafka.sh RUNNER…, which runs a class of Kafka.
# KAFKA_HOST, KAFKA_PORT: where clients reach it. KAFKA_LISTEN: the address it listens on. KAFKA_DATA: its directory.
set -eu
port=${KAFKA_PORT:-9092} controller=${KAFKA_CONTROLLER_PORT:-9093}
properties=$KAFKA_DATA/server.properties
mkdir -p "$KAFKA_DATA/log"
cat >"$properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:$controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://${KAFKA_LISTEN:-0.0.0.0}:$port,CONTROLLER://localhost:$controller
advertised.listeners=PLAINTEXT://$KAFKA_HOST:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$KAFKA_DATA/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
END
"$@" kafka.tools.StorageTool format --ignore-formatted --config "$properties" \
	--cluster-id "${KAFKA_CLUSTER_ID:-YmFja2xvZ19zcGFya19fXw}"
exec "$@" kafka.Kafka "$properties"
