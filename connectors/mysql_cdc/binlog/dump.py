"""The connection over which a server sends its binary log, and the errors when it refuses.

python-mysql-replication opens the connection, negotiates checksums and sends the dump command. `events` reads the
answer.
"""

from __future__ import annotations

import random
import re
import struct
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader

from backlog_spark.errors import BacklogError

from ..options import MySqlOptions
from ..server.connection import ServerConnection, check_identity, log_files
from ..server.gtid import GtidSet, MariaDbGtids
from ..server.log_gone import LogGone
from .positions import FAR, FIRST_EVENT, BinlogPosition

__all__ = ["Dump", "broken_off", "explained", "is_gone", "lacks_file", "open_dump"]

# A dump is dead if it is silent for so many heartbeats. MySQL also sends them while it skips transactions.
_MISSED = 3
_COM_BINLOG_DUMP_GTID, _NON_BLOCK, _THROUGH_GTID = 0x1E, 1, 4

# The file is shorter than the position, or another GTID stands there.
_NO_SUCH_PLACE = ("position > file size", "impossible position", "not in the master's binlog", "missing the gtid")
_NO_FILE = "could not find first log file"
_LAST_READ = re.compile(r"last event read from '(?:.*/)?([^'/]+)' at")


class Dump(BinLogStreamReader):  # type: ignore[misc]
    """The library's connection and dump command, without its event loop.

    Attributes
    ----------
    large : set of str or None
        Set when the dump is open. For a dump by GTID: the log's files of 4 GiB or more; empty for MariaDB. Else None.
    after : int
        Offset of the wanted part in the first file, if the dump has to begin before it.
    """

    wanted_server = ""
    large: frozenset[str] | None = None
    after = 0

    def open(self) -> Any:
        if self.auto_position and not self.is_mariadb:
            self._ask_by_gtid(GtidSet(self.auto_position))
        else:
            self._BinLogStreamReader__connect_to_stream()
        return self._stream_connection

    def _ask_by_gtid(self, gtids: GtidSet) -> None:
        """As the library does it. The library does not know sets with tags."""
        self._stream_connection = connection = ServerConnection(**self._BinLogStreamReader__connection_settings)
        self._BinLogStreamReader__checksum_enabled()
        with connection.cursor() as cursor:
            cursor.execute(f"SET @master_heartbeat_period = {int(self.slave_heartbeat * 1e9)}")
        server_id = self._BinLogStreamReader__server_id
        # No file name, and the position of the first event.
        head = struct.pack("<BHIIQ", _COM_BINLOG_DUMP_GTID, _NON_BLOCK | _THROUGH_GTID, server_id, 0, FIRST_EVENT)
        asked = gtids.encoded()
        asked = head + struct.pack("<I", len(asked)) + asked
        connection._write_bytes(struct.pack("<I", len(asked)) + asked)
        connection._next_seq_id = 1

    def _BinLogStreamReader__checksum_enabled(self) -> bool:
        # The library follows today's binlog_checksum. Files that were written before it was switched differ, and the
        # server refuses to send them to a reader that does not announce checksums. The format event of each file says
        # which it has.
        with self._stream_connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = 'CRC32'")
        if self.wanted_server:
            check_identity(self._stream_connection, self.wanted_server)
        if self.auto_position:
            files = log_files(self._stream_connection)
            self.large = frozenset(name for name, size in files if size >= FAR and not self.is_mariadb)
        return False

    def abandon(self) -> None:
        """Close the socket at once, as the server may still have much to send."""
        stream = getattr(self, "_stream_connection", None)
        if stream is not None and stream.open:
            stream._force_close()


def broken_off(error: Exception) -> str | None:
    """The log file that ends in the middle of an event, if that is the error; else None."""
    text = str(error.args[1]) if isinstance(error, pymysql.err.OperationalError) and len(error.args) > 1 else ""
    if not text or error.args[0] != 1236 or "truncated in the middle of event" not in text.lower():
        return None
    found = _LAST_READ.search(text)
    return found[1] if found else None


def lacks_file(error: Exception) -> bool:
    """Whether the server does not have the log file at which a dump should begin."""
    told = error.args if isinstance(error, pymysql.err.OperationalError) and len(error.args) > 1 else (0, "")
    return told[0] == 1236 and _NO_FILE in str(told[1]).lower()


def is_gone(error: pymysql.err.MySQLError) -> bool:
    """Whether the server says that it has purged the log at which a dump should begin."""
    told = str(error.args[1]).lower() if len(error.args) > 1 else ""
    return bool(error.args) and error.args[0] == 1236 and ("purged" in told or _NO_FILE in told)


def explained(error: pymysql.err.MySQLError, start: BinlogPosition | str) -> BacklogError:
    code, text = error.args[0], str(error.args[1] if len(error.args) > 1 else "")
    lowered = text.lower()
    if code == 1236:
        if is_gone(error):
            return LogGone(
                f"The server has purged binary logs that are still needed after {start}: {text} (1236).",
                "Their changes can no longer be read: start with a new checkpoint, and raise "
                "binlog_expire_logs_seconds above the longest time that the query may lag or be stopped.",
            )
        if "same server" in lowered:
            return BacklogError(f"Another reader took this one's server id: {text} (1236).", "Start the query again.")
        kind = LogGone if any(told in lowered for told in _NO_SUCH_PLACE) else BacklogError
        # The server says so, too, of a position that is within an event, because its log was reset.
        large = "If an event is that large, raise max_allowed_packet. " if "max_allowed_packet" in lowered else ""
        return kind(
            f"The server cannot read its binary log after {start}: {text} (1236).",
            f"{large}If the server was reset, restored or replaced, start with a new checkpoint.",
        )
    if code in (1045, 1044, 1227):
        return BacklogError(
            f"The server refused to send its binary log: {text} ({code}).",
            "GRANT REPLICATION SLAVE ON *.* to the user.",
        )
    return BacklogError(
        f"Reading the binary log failed: {text} ({code}).",
        f"Look up error {code} in the server's manual, and at its error log.",
    )


def open_dump(options: MySqlOptions, start: BinlogPosition | str | MariaDbGtids, *, blocking: bool = False) -> Dump:
    """A dump of what follows a position, MySQL's GTID set, or the last transactions of MariaDB's domains.

    Parameters
    ----------
    blocking : bool
        Whether it waits at the log's end for more. Otherwise it ends there.
    """
    # Two readers with the same server id end each other, so every dump draws its own.
    common: dict[str, Any] = {
        "connection_settings": {**options.connect_arguments(), "read_timeout": _MISSED * options.heartbeat_ms / 1000},
        "pymysql_wrapper": ServerConnection,
        "server_id": random.SystemRandom().choice(options.server_ids),
        "blocking": blocking,
        "resume_stream": True,  # without it the library ignores the position
        "slave_heartbeat": options.heartbeat_ms / 1000,
        "enable_logging": False,
    }
    if isinstance(start, BinlogPosition):
        # The command has 32 bits for the position. COM_BINLOG_DUMP_GTID has 64, but neither MariaDB nor a MySQL
        # without GTIDs has it.
        far = start.pos >= FAR
        dump = _dump(options, log_file=start.file, log_pos=FIRST_EVENT if far else start.pos, **common)
        dump.after = start.pos if far else 0
        return dump
    if isinstance(start, MariaDbGtids):
        return _dump(options, auto_position=str(start), is_mariadb=True, **common)
    if start:
        return _dump(options, auto_position=start, **common)
    # The library takes an empty GTID set for "from now on". Here it means everything.
    connection = ServerConnection(**options.connect_arguments())
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            first = cursor.fetchone()
    finally:
        connection.close()
    assert first is not None, "the binary log is on: checked before"
    return _dump(options, log_file=str(first[0]), log_pos=4, **common)


def _dump(options: MySqlOptions, **arguments: Any) -> Dump:
    dump = Dump(**arguments)
    dump.wanted_server = options.server
    return dump
