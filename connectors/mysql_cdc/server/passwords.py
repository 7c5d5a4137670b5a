"""Passwords from files, variables, programs and functions: read when a connection is made, by the process that makes
it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Final

from backlog_spark.errors import SettingError
from backlog_spark.spi.user_functions import call_function

__all__ = ["forget", "of_command", "of_file", "of_function", "of_variable"]

_LIMIT_S: Final = 30
_KEPT_S: Final = 60
"""A command of a cloud takes a second. Its tokens are valid for minutes."""

_HERE: Final = "Driver and executors need it."
_kept: dict[str, tuple[float, str]] = {}


def of_variable(name: str) -> str:
    """The value of an environment variable.

    Raises
    ------
    SettingError
        There is none, or it is empty.
    """
    if value := os.environ.get(name, ""):
        return value
    raise SettingError(
        "passwordEnv", name, "there is no such variable, or it is empty, in this process.",
        "Set it for the driver and, with spark.executorEnv, for the executors.",
    )  # fmt: skip


def of_file(path: str) -> str:
    """The text of a file, without its line end.

    Raises
    ------
    SettingError
        It cannot be read, or is empty.
    """
    try:
        value = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingError("passwordFile", path, f"cannot be read: {why}.", _HERE) from None
    if not value:
        raise SettingError("passwordFile", path, "is empty.", "Write the password into it.")
    return value


def of_command(command: str) -> str:
    """What a program prints, without its line end. It is kept for a minute, or until `forget`.

    Raises
    ------
    SettingError
        It cannot be run, fails, takes longer than 30 s or prints nothing. What it prints is never shown.
    """
    at, value = _kept.get(command, (0.0, ""))
    if value and time.monotonic() - at < _KEPT_S:
        return value
    program, by_hand = f"{command.split()[0]} …", f"Run it by hand. {_HERE}"  # arguments may be secret
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise SettingError("passwordCommand", program, f"cannot be run: {error.strerror}.", _HERE) from None
    except ValueError:
        raise SettingError("passwordCommand", program, "has a quote without its other one.", by_hand) from None
    except subprocess.TimeoutExpired:
        raise SettingError("passwordCommand", program, f"did not end within {_LIMIT_S} s.", by_hand) from None
    if done.returncode:
        raise SettingError("passwordCommand", program, f"ended with the exit code {done.returncode}.", by_hand)
    try:
        value = done.stdout.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SettingError("passwordCommand", program, "prints bytes that are not UTF-8.", by_hand) from None
    if not value:
        raise SettingError("passwordCommand", program, "printed nothing.", by_hand)
    _kept[command] = time.monotonic(), value
    return value


def forget(command: str) -> bool:
    """Run a command anew for the next connection. Whether its last answer was kept."""
    return _kept.pop(command, None) is not None


def of_function(name: str, host: str, port: int, user: str) -> str:
    """The result of a Python function, which is called with the arguments ``host``, ``port`` and ``user``.

    Parameters
    ----------
    name : str
        ``module:function``.
    host : str
    port : int
    user : str

    Raises
    ------
    SettingError
        It cannot be imported, fails, or gives no text. What it raises is named, but its text is never shown.
    """
    value = call_function(
        "passwordFunction", name, "Call it by hand with host, port and user.", host=host, port=port, user=user
    )
    if not isinstance(value, str) or not value:
        raise SettingError("passwordFunction", name, "gave no text.", "Return the password as a str.")
    return value
