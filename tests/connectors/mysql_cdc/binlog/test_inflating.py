"""Compressed transactions and events are inflated piece by piece, up to a limit."""

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.binlog.inflating import inflated, payload_events
from backlog_spark.errors import BacklogError, SettingError

MOST = 1 << 20


def event(body: bytes) -> bytes:
    return b"\0" * 4 + bytes([30]) + b"\0" * 4 + (19 + len(body)).to_bytes(4, "little") + b"\0" * 6 + body


def length(number: int) -> bytes:
    if number < 251:
        return bytes([number])
    return b"\xfc" + number.to_bytes(2, "little") if number < 1 << 16 else b"\xfd" + number.to_bytes(3, "little")


def payload(content: bytes, compression: int = 0, size: int | None = None) -> bytes:
    packed = pa.compress(content, "zstd", asbytes=True) if compression == 0 else content
    fields = [(2, length(compression)), (1, length(len(packed))), (9, b"new"), (3, length(size or len(content)))]
    return b"".join(bytes([kind, len(value)]) + value for kind, value in fields) + b"\0" + packed


bodies = st.lists(st.binary(max_size=300) | st.integers(0, 200_000).map(lambda n: b"x" * n), max_size=6)


@given(bodies, st.sampled_from([0, 255]))
def test_a_payload_gives_its_events_each_after_a_byte(bodies: list[bytes], compression: int) -> None:
    events = [event(body) for body in bodies]
    found = list(payload_events(payload(b"".join(events), compression), 1 << 22))
    assert found == [b"\0" + each for each in events]


def test_a_payload_may_inflate_to_the_bound_and_no_further() -> None:
    content = event(b"x" * 1000) * 50
    assert len(list(payload_events(payload(content), len(content)))) == 50
    with pytest.raises(
        SettingError, match=f"maxInflatedBytes = {len(content) - 1}.*inflates to {len(content):,} bytes"
    ):
        list(payload_events(payload(content), len(content) - 1))


def test_a_payload_that_hides_its_size_is_stopped_while_it_inflates() -> None:
    content = event(b"x" * 100_000) * 100
    with pytest.raises(SettingError, match="maxInflatedBytes"):
        list(payload_events(payload(content, size=10), MOST))


def test_events_come_before_the_whole_is_inflated() -> None:
    content = event(b"x" * 100_000) * 100
    events = payload_events(payload(content, size=10), MOST)
    assert next(events) == b"\0" + event(b"x" * 100_000)


@pytest.mark.parametrize("content", [event(b"abc")[:-1], event(b"abc") + b"1234", b"\0" * 40])
def test_a_payload_of_broken_events_is_refused(content: bytes) -> None:
    with pytest.raises(BacklogError, match="cannot be inflated"):
        list(payload_events(payload(content), MOST))


def test_damaged_and_unknown_compression_is_refused_and_not_taken_for_a_lost_connection() -> None:
    whole = payload(event(bytes(range(256)) * 20))
    for damaged in (whole[:-9], whole[:-40] + b"?" * 40):
        with pytest.raises(BacklogError, match="cannot be inflated"):
            list(payload_events(damaged, MOST))
    with pytest.raises(BacklogError, match="compressed by method 7"):
        list(payload_events(payload(b"", 7), MOST))


def of_mariadb(content: bytes, size: int | None = None) -> bytes:
    told = len(content) if size is None else size
    width = (told.bit_length() + 7) // 8
    return bytes([0x80 | width]) + told.to_bytes(width, "big") + zlib.compress(content)


@given(st.binary(max_size=2_000))
def test_what_mariadb_compressed_is_inflated(content: bytes) -> None:
    assert inflated(of_mariadb(content), MOST) == content


def test_what_mariadb_compressed_is_bounded_and_checked() -> None:
    with pytest.raises(SettingError, match="maxInflatedBytes = 999"):
        inflated(of_mariadb(b"x" * 1000), 999)
    for wrong in (
        of_mariadb(b"x" * 1000, 999),
        of_mariadb(b"x" * 1000, 1001),
        of_mariadb(b"x" * 1000)[:-1],
        b"\x81\x05?",
    ):
        with pytest.raises(BacklogError, match="cannot be inflated"):
            inflated(wrong, MOST)
