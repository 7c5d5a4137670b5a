"""Options that a class declares: their values, their documentation, and refusals."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from backlog_spark.errors import SettingError
from backlog_spark.spi.options import (
    Option,
    choice,
    duration,
    flag,
    integer,
    number,
    option,
    options_of,
    parsed,
    switch,
    text,
    values,
)  # fmt: skip
from backlog_spark.spi.user_options import UserOptions


@dataclass(frozen=True)
class Limits:
    share: float = number("share", 0.5, 0, 1)
    """Part of
    the rows."""


@dataclass(frozen=True)
class Clicks:
    host: str = text("host", spark="server")
    """The server."""
    token: str = text("token", secret=True)
    """The login."""
    port: int = integer("port", 80, 1, 65535)
    """Its port."""
    batch: int | None = integer("batch", None, 1)
    """Rows of a batch."""
    wait_ms: int = duration("wait", 10_000, 0, 60_000)
    """How long to wait."""
    lag_ms: int | None = duration("lag", None, 1)
    """When it lags."""
    mode: str = choice("mode", ("all", "new"))
    """What is read."""
    follows: bool = flag("follow")
    """Whether it goes on."""
    drops: bool = switch("bad", ("keep", "drop"), "drop")
    """What happens to bad rows."""
    names: tuple[str, ...] = option("names", lambda given, name: tuple(given.text(name).split()), ())
    """Their names."""
    limits: Limits = parsed(lambda given: Limits(**values(Limits, given)), Limits, default=Limits())
    # The class sets it.
    span_ms: int = parsed(None, Option("from", doc="Where it begins."), Option("to", doc="Where it ends."), default=3)


def made(**given: str) -> Clicks:
    return Clicks(**values(Clicks, UserOptions(given)))


def test_defaults_are_those_of_the_class() -> None:
    assert made() == Clicks() == Clicks("", "", 80, None, 10_000, None, "all", False, False, (), Limits(0.5), 3)


def test_names_and_words_in_any_case() -> None:
    found = made(
        HOST="h", token="t", port="8080", batch="5", wait="1 min", lag="2 s", mode="NEW", Follow="True", bad="drop",
        names="a b", share="1",
    )  # fmt: skip
    assert found == Clicks("h", "t", 8080, 5, 60_000, 2000, "new", True, True, ("a", "b"), Limits(1.0))
    assert "'t'" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_options_in_order_with_the_texts_below_them() -> None:
    found = {o.name: o for o in options_of(Clicks, with_docs=True)}
    assert list(found) == [
        "host",
        "token",
        "port",
        "batch",
        "wait",
        "lag",
        "mode",
        "follow",
        "bad",
        "names",
        "share",
        "from",
        "to",
    ]
    assert found["host"] == Option("host", spark="server", doc="The server.")
    assert found["port"] == Option("port", "int", "80", "1..65535", doc="Its port.")
    assert found["batch"] == Option("batch", "int", "unset", ">= 1", doc="Rows of a batch.")
    assert found["wait"] == Option("wait", "duration", "10 s", "0..1 min", doc="How long to wait.")
    assert found["lag"] == Option("lag", "duration", "unset", "> 0", doc="When it lags.")
    assert found["mode"] == Option("mode", shown="all", choices=("all", "new"), doc="What is read.")
    assert found["follow"] == Option("follow", "boolean", "false", choices=("true", "false"), doc="Whether it goes on.")
    assert found["bad"] == Option("bad", shown="keep", choices=("keep", "drop"), doc="What happens to bad rows.")
    assert found["share"] == Option("share", "float", "0.5", "0..1", doc="Part of the rows.")
    assert found["to"] == Option("to", doc="Where it ends.")
    assert [o.name for o in options_of(Clicks) if o.secret] == ["token"]
    assert not options_of(Clicks)[0].doc


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("port", "0", "is not an integer 1..65535."),
        ("batch", "x", "is not an integer >= 1."),
        ("wait", "2 min", "is not between 0 and 1 min."),
        ("lag", "0 s", 'must be above 0. For example "5 min".'),
        ("mode", "old", "is none of all, new. Set one of these, or leave out mode."),
        ("follow", "yes", "is none of true, false."),
        ("share", "2", "is not a number 0..1."),
    ],
)
def test_refused(name: str, value: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        made(**{name: value})
    assert str(caught.value).startswith(f"{name} = {value!r}: {problem}")


def test_without_its_source_a_class_has_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "__module__", "nowhere")
    assert [o.doc for o in options_of(Limits, with_docs=True)] == [""]
