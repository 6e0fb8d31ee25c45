"""The pages hold together: every relative link and anchor leads somewhere.

Pages that name code name code that exists, and the README shows every folder and every page.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
LIVES = sorted(DOCS.glob("life-of-*.md"))
RECORD_HEADINGS = ["Context", "Decision", "Measured effect", "How to switch it off"]


class Link(NamedTuple):
    text: str
    target: str


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code_blocks(text: str) -> str:
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)


def prose_of(text: str) -> str:
    """Removes code, where brackets mean something else, except code that is the text of a link."""
    return re.sub(r"(?<!\[)`[^`\n]*`(?!\])", "", without_code_blocks(text))


def links_of(text: str) -> list[Link]:
    return [
        Link(*found)
        for found in re.findall(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", prose_of(text))
    ]


@cache
def links_in(page: Path) -> tuple[Link, ...]:
    return tuple(links_of(page.read_text()))


def anchors_of(text: str) -> set[str]:
    """The anchors that code hosts and mkdocs make of headings."""
    counts: Counter[str] = Counter()
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", without_code_blocks(text), flags=re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        anchors.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return anchors


@cache
def anchors_in(page: Path) -> frozenset[str]:
    return frozenset(anchors_of(page.read_text()))


def fault_of(page: Path, link: Link) -> str | None:
    """None for a link that leads somewhere. Links to other sites are not followed."""
    if re.match(r"[a-z]+:", link.target):
        return None
    path, _, anchor = link.target.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{link.target}: there is no such file"
    if anchor and (target.suffix != ".md" or anchor not in anchors_in(target)):
        return f"{link.target}: there is no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    faults = [fault for link in links_in(page) if (fault := fault_of(page, link)) is not None]
    assert not faults, "\n".join(faults)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = "[a](#a-page) [b](#b) [c](c.md) [d](page.md#a-page)"
    page.write_text(f"# A page\n\n{links} `[e](e.md)`\n\n```\n[f](f.md)\n```\n")
    faults = [fault_of(page, link) for link in links_in(page)]
    assert faults == [None, "#b: there is no such heading", "c.md: there is no such file", None]


@pytest.mark.parametrize("page", LIVES, ids=name_of)
def test_a_named_function_or_class_is_in_the_file_it_links_to(page: Path) -> None:
    missing = [
        f"{text} is not in {target}"
        for text, target in links_in(page)
        if target.endswith(".py") and text.startswith("`") and "/" not in text
        for name in text.strip("`").split(".")
        if not re.search(
            rf"\b(?:class|def) {name}\b|^{name}\b",
            (page.parent / target).read_text(),
            flags=re.MULTILINE,
        )
    ]
    assert not missing, "\n".join(missing)


def linked_pages(page: Path) -> set[Path]:
    return {(page.parent / link.target.partition("#")[0]).resolve() for link in links_in(page)}


def test_the_index_links_to_every_page_and_the_readme_to_the_index() -> None:
    pages = set(DOCS.glob("*.md")) | {DOCS / "decisions" / "index.md"}
    index = DOCS / "index.md"
    assert index in linked_pages(ROOT / "README.md")
    assert not {name_of(page) for page in pages - linked_pages(index) - {index}}


def test_the_readme_shows_every_folder() -> None:
    tree = (ROOT / "README.md").read_text().partition("## Where things are")[2]
    shown = set(re.findall(r"([a-z0-9_]+)/", tree))
    folders = {path.parent.name for path in (ROOT / "naiad").rglob("__init__.py")}
    assert folders <= shown, folders - shown


RECORDS = sorted((DOCS / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_a_decision_record_is_complete(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {record.name[:3]}. ")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == RECORD_HEADINGS


def test_decision_records_are_numbered_without_gaps_and_all_in_the_index() -> None:
    numbers = [f"{number:03d}" for number in range(1, len(RECORDS) + 1)]
    assert [record.name[:3] for record in RECORDS] == numbers
    assert set(RECORDS) <= linked_pages(DOCS / "decisions" / "index.md")
