# Read by the scripts beside it: where Spark is, and settings of a small daemon.
# SPARK_HOME is the installed PySpark unless it is set: its directory holds all of Spark's jars and scripts.
set -eu
SPARK_HOME=${SPARK_HOME:-$("${PYSPARK_PYTHON:-python3}" -c \
	'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("pyspark").origin))')}
# A daemon only keeps lists of workers and executors. Spark's own default for it is 1 GiB.
SPARK_DAEMON_MEMORY=${SPARK_DAEMON_MEMORY:-256m}
SPARK_DAEMON_JAVA_OPTS=${SPARK_DAEMON_JAVA_OPTS:--XX:+UseSerialGC -XX:TieredStopAtLevel=1}
export SPARK_HOME SPARK_DAEMON_MEMORY SPARK_DAEMON_JAVA_OPTS
