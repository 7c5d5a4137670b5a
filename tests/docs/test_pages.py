"""The reference pages have the code's tables. The links of all pages work."""

import re
from pathlib import Path

import pytest

from docs.generate import HERE, pages

ROOT = HERE.parent
PAGES = [*sorted(HERE.glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]


def test_the_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (HERE / name).read_text() == text.rstrip("\n") + "\n", f"{name}: run python -m docs.generate"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]
    for file, _, heading in (link.partition("#") for link in links):
        target = page.parent / file if file else page
        assert target.exists(), file
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if heading else [heading]
        assert heading in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], (file, heading)
