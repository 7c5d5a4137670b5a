"""GTID sets against Python sets; MariaDB's GTIDs, which stand for a position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.connectors.mysql_cdc.server.gtid import GtidSet, MariaDbGtids, committed_ms
from backlog_spark.errors import BacklogError

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4a2b0000-71ca-11e1-9e33-c80aa9429562"
numbers = st.sets(st.integers(1, 40))


def build(a: set[int], b: set[int]) -> GtidSet:
    made = GtidSet()
    for uuid, wanted in ((A, a), (B, b)):
        for n in sorted(wanted, key=lambda n: (n * 7) % 41):  # out of order
            made.add(uuid, n)
    return made


@given(numbers, numbers)
def test_membership_and_text_round_trip(a: set[int], b: set[int]) -> None:
    made = build(a, b)
    again = GtidSet(str(made))
    assert again == made
    for n in range(1, 42):
        assert again.contains(A, n) == (n in a)
        assert again.contains(B, n) == (n in b)


@given(numbers, numbers, numbers, numbers)
def test_superset(a: set[int], b: set[int], c: set[int], d: set[int]) -> None:
    assert build(a, b).issuperset(build(c, d)) == (a >= c and b >= d)


def test_the_servers_own_form() -> None:
    made = GtidSet(f"{A.upper()}:1-3:5:8-9,\n{B}:7")
    assert str(made) == f"{A}:1-3:5:8-9,{B}:7"
    assert GtidSet(f"{A}:1-3:4-6") == GtidSet(f"{A}:1-6")
    assert str(GtidSet("")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        f"{A}",
        f"{A}:x",
        f"{A}:tag",
        f"{A}:1-3:tag",
        f"{A}:t-g:1",
        "1-2-3:4",
        f"{A}:5-3",
        f"{A}:0",
        f"{A}:1-{2**63}",
        f"{A}:" + "9" * 9999,
    ],
)
def test_what_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(BacklogError):
        GtidSet(text)


domains = st.dictionaries(
    st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 9), st.integers(1, 2**64 - 1)), max_size=4
)


@given(domains)
def test_mariadbs_gtids_survive_the_round_trip_in_any_order(last: dict[int, tuple[int, int]]) -> None:
    parts = [f"{domain}-{server}-{number}" for domain, (server, number) in last.items()]
    made = MariaDbGtids(",".join(parts))
    assert made == MariaDbGtids(" , ".join(reversed(parts)))
    assert MariaDbGtids(str(made)) == made
    passed = MariaDbGtids()
    for domain, (server, number) in last.items():
        passed.passed(f"{domain}-7", 1)  # an earlier one of the same domain, from another server
        passed.passed(f"{domain}-{server}", number)
    assert passed == made
    assert made.is_where(made)


@pytest.mark.parametrize(
    ("kept", "told", "same"),
    [
        ("0-1-17,7-2-3", "7-2-3,0-1-17", True),
        ("0-1-17,7-2-3", "0-1-17", True),  # the server has forgotten domain 7
        ("", "", True),
        ("0-1-17", "0-1-16", False),
        ("0-1-17", "0-2-17", False),  # as many transactions, of another server
        ("0-1-17", "0-1-17,7-2-3", False),
        ("0-1-17", "", False),  # reset
        ("", "0-1-1", False),
    ],
)
def test_a_position_is_the_same_when_all_that_the_server_tells_agrees(kept: str, told: str, same: bool) -> None:
    assert MariaDbGtids(kept).is_where(MariaDbGtids(told)) is same


@pytest.mark.parametrize("text", ["nonsense", f"{A}:1-3", "0-1", "0-1-2-3", "-1-2", "0-1-٣"])
def test_what_is_no_gtid_of_mariadb_is_refused(text: str) -> None:
    with pytest.raises(BacklogError, match="domain-server-number"):
        MariaDbGtids(text)


def test_the_time_of_a_commit() -> None:
    """The body of an event of MySQL 8: flags, source, number, kind, two logical times, then microseconds."""
    before = bytes([0]) + bytes(16) + (7).to_bytes(8, "little") + bytes([2]) + bytes(16)
    at = 1_764_172_800_123_456
    assert committed_ms(before + at.to_bytes(7, "little")) == 1_764_172_800_123
    # On a replica the time at the first server follows.
    assert committed_ms(before + (at | 1 << 55).to_bytes(7, "little") + bytes(7)) == 1_764_172_800_123
    assert committed_ms(before) == committed_ms(bytes(25)) == 0, "MySQL 5.7 does not tell"
