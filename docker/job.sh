#!/bin/sh
# Submits the demo's job in client mode: job.sh [OPTION of examples/cluster_job.py…]. This process is the driver.
# SPARK_MASTER_URL: the cluster. SPARK_DRIVER_HOST: where executors reach the driver.
# SPARK_PACKAGES or SPARK_JARS: Delta, from Maven or as files. METRICS_PORT: where Prometheus gets the metrics.
. "$(dirname "$0")/spark-env.sh"
here=$(cd "$(dirname "$0")" && pwd)
exec "$SPARK_HOME/bin/spark-submit" --master "$SPARK_MASTER_URL" --properties-file "$here/spark.conf" \
	--conf "spark.driver.host=$SPARK_DRIVER_HOST" --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND:-0.0.0.0}" \
	${METRICS_PORT:+--conf "spark.backlog.metrics.port=$METRICS_PORT" \
	--conf "spark.backlog.metrics.host=${SPARK_DRIVER_BIND:-0.0.0.0}"} \
	${SPARK_PACKAGES:+--packages "$SPARK_PACKAGES"} ${SPARK_JARS:+--jars "$SPARK_JARS"} \
	"$here/../examples/cluster_job.py" "$@"
