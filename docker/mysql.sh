#!/bin/sh
# Runs a MySQL server with what mysql_cdc needs: mysql.sh SERVER [OPTION…].
# A binary log by row with full images and column names, and GTIDs. It is kept for three days: longer than a job is down.
set -eu
exec "$@" --server-id=1 --log-bin=binlog --binlog-format=ROW --binlog-row-image=FULL --binlog-row-metadata=FULL \
	--gtid-mode=ON --enforce-gtid-consistency=ON --binlog-expire-logs-seconds=259200
