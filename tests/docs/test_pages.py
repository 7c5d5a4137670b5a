"""The reference pages have the code's tables. The links of all pages work."""

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from docs.generate import HERE, pages

from .blocks import python_blocks

ROOT = HERE.parent
README = ROOT / "README.md"
PAGES = [
    *sorted(HERE.rglob("*.md")),
    *sorted(ROOT.glob("conf/*.md")),
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
]
HOME = "https://github.com/backlog-spark/backlog-spark/blob/main/"


def test_the_pages_are_up_to_date() -> None:
    for name, text in pages().items():
        assert (HERE / name).read_text() == text.rstrip("\n") + "\n", f"{name}: run python -m docs.generate"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    # [text](link), and the definitions of [text] at the end of the README.
    found = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    for link in map("".join, found):
        if "://" in link.replace(HOME, ""):
            continue
        file, _, heading = link.replace(HOME, "").partition("#")
        target = (ROOT if link.startswith(HOME) else page.parent) / file if file else page
        assert target.exists(), file
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if heading else [heading]
        assert heading in [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings], (file, heading)


@pytest.mark.process
@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_the_examples_import_and_define_what_they_use(page: Path) -> None:
    """A page's blocks are read one after the other. Only the session, `spark`, is the reader's own."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F401,F821", "--config=builtins=['spark']"]
    checked = subprocess.run([*command, "-"], input="\n".join(python_blocks(page)), capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = "".join(test.read_text() for test in Path(__file__).parent.glob("test_*.py"))
    elsewhere = ("hybrid.md", "mysql_cdc.md", "spark_versions.md")
    assert f'"{page.name}"' in tested or page.name in elsewhere, f"no test runs {page.name}"


@pytest.mark.process
def test_the_site_builds_and_asks_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", ROOT / "mkdocs.yml", "--site-dir"]
    built = subprocess.run([*command, tmp_path], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    for page in tmp_path.rglob("*.html"):
        asked = re.findall(
            r"<(?:script|img|iframe)[^>]* src=\"?(https?:[^\"> ]+)|<link[^>]*stylesheet[^>]*https?:", page.read_text()
        )
        assert not asked, (page, asked)


def test_pages_name_tests_and_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        assert all((ROOT / file).exists() for file in re.findall(r"`(tests/[\w/]+\.py)`", text)), page.name
        assert set(re.findall(r"`make ([a-z-]+)\b", text)) <= targets, page.name


def test_the_table_of_extras_is_that_of_the_package() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {
        name: {Requirement(line).name for line in text.split("\n") if line} - {"backlog-spark"}
        for name, text in setup["options.extras_require"].items()
        if name not in ("test", "browser", "grafana", "dev")
    }
    rows = re.findall(r"^\| (`[`\w, ]+`) \| ([^|]+) \|.*\|$", (HERE / "install.md").read_text(), re.MULTILINE)
    shown = {name: (names, packages) for names, packages in rows for name in re.findall(r"\w+", names)}
    assert shown.keys() == extras.keys()
    for names, packages in rows:
        wanted = set().union(*(extras[name] for name in re.findall(r"\w+", names)))
        assert not wanted or {part.split()[0] for part in packages.split(", ")} == wanted, names


def test_the_readme_has_absolute_links_for_the_page_of_the_package_index() -> None:
    text = README.read_text()
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    assert all(link.startswith(HOME) for link in defined.values())
    assert not re.findall(r"\]\((?!https://)", text), "define it at the end: [docs/page.md]: https://…"
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert set(re.findall(r"\[([^\]]+)\](?![:(])", prose)) == set(defined)
