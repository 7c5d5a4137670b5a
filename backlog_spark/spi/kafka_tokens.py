"""Tokens of Kafka logins: each process calls the user's function, or AWS's library, when librdkafka asks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from backlog_spark.errors import BacklogError, SettingError
from backlog_spark.spi.kafka_oauth import TOKEN_FUNCTION, OAuth
from backlog_spark.spi.user_functions import call_function

__all__ = ["new_token", "token_callback"]

_log = logging.getLogger(__name__)
_MUCH_LATER_S = 10 * 365 * 86_400
"""A later end is one in milliseconds. The token would never be renewed."""


def token_callback(oauth: OAuth) -> Callable[[str], tuple[str, float]]:
    """librdkafka's callback of a new client. The first token is fetched now.

    Otherwise a function that fails would be told as "OAuth token not set within 10 seconds".

    Raises
    ------
    BacklogError
        There is no token.
    """
    first = [new_token(oauth)]

    def give(_: str) -> tuple[str, float]:
        if first:
            return first.pop()
        try:
            return new_token(oauth)
        except BacklogError as error:
            _log.warning("Kafka's login is not renewed, and is tried again: %s", error)  # librdkafka hides the text
            raise

    return give


def new_token(oauth: OAuth) -> tuple[str, float]:
    """A token, and the time at which it expires, in seconds since 1970.

    Raises
    ------
    BacklogError
        The function or AWS's library gives none. Neither a token nor the text of what is raised is shown.
    """
    if oauth.is_aws:
        return _of_aws(oauth.aws_region)
    found = call_function(TOKEN_FUNCTION, oauth.function, "Call it by hand without arguments.")
    match found:
        case (str() as token, int() | float() as end) if token:
            pass
        case _:
            raise SettingError(
                TOKEN_FUNCTION, oauth.function, "gave no token and time.",
                "Return a str and the seconds since 1970 at which it expires.",
            )  # fmt: skip
    left = end - time.time()
    if not 0 < left < _MUCH_LATER_S:
        raise SettingError(
            TOKEN_FUNCTION, oauth.function,
            f"gave a token that {'has expired' if left <= 0 else 'expires in more than ten years'}.",
            "Return the time at which it expires in seconds since 1970.",
        )  # fmt: skip
    return token, float(end)


def _of_aws(region: str) -> tuple[str, float]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        raise BacklogError(
            "kafka.sasl.mechanism=AWS_MSK_IAM needs the package aws-msk-iam-sasl-signer-python.",
            "Run pip install 'backlog-spark[msk]' on the driver and the executors.",
        ) from None
    region = region or os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
    if not region:
        raise SettingError(
            "kafka.sasl.aws.region", None, "AWS_MSK_IAM needs the cluster's region.", "Set it, or AWS_REGION."
        )
    try:
        token, end_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:
        raise BacklogError(
            f"AWS's library signs no token for Kafka: it raised {type(error).__name__}.",
            "Give driver and executors credentials of AWS: a role of the machine, AWS_PROFILE or AWS_ACCESS_KEY_ID.",
        ) from None
    return str(token), end_ms / 1000
