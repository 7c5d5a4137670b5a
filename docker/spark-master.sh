#!/bin/sh
# Runs the master of a standalone cluster in the foreground.
# SPARK_MASTER_HOST, SPARK_MASTER_PORT, SPARK_MASTER_WEBUI_PORT: where it listens.
. "$(dirname "$0")/spark-env.sh"
exec "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
	--host "$SPARK_MASTER_HOST" --port "${SPARK_MASTER_PORT:-7077}" --webui-port "${SPARK_MASTER_WEBUI_PORT:-8080}"
