"""The reference pages are what the code's tables say."""

from docs.generate import HERE, pages


def test_the_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (HERE / name).read_text() == text.rstrip("\n") + "\n", f"{name}: run python -m docs.generate"
