"""GTID sets against Python sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backlog_spark.errors import BacklogError
from connectors.mysql_cdc.gtid import GtidSet

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


@pytest.mark.parametrize("text", ["nonsense", f"{A}", f"{A}:x", f"{A}:tag:1-3", "1-2-3:4"])
def test_what_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(BacklogError):
        GtidSet(text)
