#!/bin/sh
# Runs a worker of a standalone cluster in the foreground.
# SPARK_MASTER_URL: its master. SPARK_WORKER_HOST, SPARK_WORKER_PORT, SPARK_WORKER_WEBUI_PORT: where it listens.
# SPARK_WORKER_CORES, SPARK_WORKER_MEMORY: what it offers. SPARK_WORKER_DIR: directories of its executors.
. "$(dirname "$0")/spark-env.sh"
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker \
	--host "$SPARK_WORKER_HOST" --port "${SPARK_WORKER_PORT:-7078}" --webui-port "${SPARK_WORKER_WEBUI_PORT:-8081}" \
	--cores "${SPARK_WORKER_CORES:-1}" --memory "${SPARK_WORKER_MEMORY:-1g}" \
	--work-dir "${SPARK_WORKER_DIR:-/tmp/spark-worker}" "$SPARK_MASTER_URL"
