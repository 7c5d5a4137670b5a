#!/bin/sh
# Fills MySQL, the files and the topic of the demo, and goes on changing them: changes.sh OPTION….
cd "$(dirname "$0")/.."
exec "${PYSPARK_PYTHON:-python3}" -m examples.cluster_changes "$@"
