"""The reference pages have the code's tables. The links of all pages work."""

import re
from pathlib import Path

import pytest

from docs.generate import HERE, pages

ROOT = HERE.parent
README = ROOT / "README.md"
PAGES = [*sorted(HERE.glob("*.md")), *sorted(ROOT.glob("conf/*.md")), README, ROOT / "CHANGELOG.md"]
HOME = "https://github.com/backlog-spark/backlog-spark/blob/main/"


def test_the_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (HERE / name).read_text() == text.rstrip("\n") + "\n", f"{name}: run python -m docs.generate"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    # [text](link), and the definitions of [text] at the end of the README.
    found = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    links = [link.replace(HOME, "") for link in map("".join, found) if "://" not in link.replace(HOME, "")]
    for file, _, heading in (link.partition("#") for link in links):
        target = page.parent / file if file else page
        assert target.exists(), file
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if heading else [heading]
        assert heading in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], (file, heading)


def test_the_readme_has_absolute_links_for_the_page_of_the_package_index() -> None:
    text = README.read_text()
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    assert all(link.startswith(HOME) for link in defined.values())
    assert not re.findall(r"\]\((?!https://)", text), "define it at the end: [docs/page.md]: https://…"
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert set(re.findall(r"\[([^\]]+)\](?![:(])", prose)) == set(defined)
