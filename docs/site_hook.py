"""mkdocs hook: pages and source files outside docs/ that a page links to become pages of the site.

In:  Markdown whose links are relative to the repository, as they work on a code host.
Out: the same page with links that work in the site. A file `naiad/server.py` becomes the page
     `repository/naiad/server.py.md` that shows its source.
Rule: a link to a file that does not exist stays as it is: `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
OUTSIDE = "repository"
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".proto": "protobuf",
    ".yml": "yaml",
    ".pbtxt": "text",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds every file outside docs/ that can be reached by links from its pages."""
    waiting = [Path(DOCS, file.src_uri) for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        if page.suffix != ".md":
            continue
        for target in _targets(page):
            if target in known or not (ROOT / target).is_file():
                continue
            known.add(target)
            waiting.append(target)
            if target.parts[0] != DOCS:
                files.append(_outside_file(target, config))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = _repository_path(page.file.src_uri)
    if place.suffix != ".md":
        return markdown

    def rewrite(match: re.Match[str]) -> str:
        target = _resolve(place, match[1])
        if not (ROOT / target).is_file():
            return match[0]
        link = os.path.relpath(_site_path(target), Path(page.file.src_uri).parent)
        return link + (match[2] or "")

    return LINK.sub(rewrite, markdown)


def _targets(page: Path) -> list[Path]:
    return [_resolve(page, match[1]) for match in LINK.finditer((ROOT / page).read_text())]


def _resolve(page: Path, link: str) -> Path:
    return Path(os.path.normpath(page.parent / link))


def _outside_file(target: Path, config: Any) -> File:
    text = (ROOT / target).read_text()
    if target.suffix != ".md":
        text = f"# {target}\n\n~~~~~~ {LANGUAGES.get(target.suffix, 'text')}\n{text}\n~~~~~~\n"
    return File.generated(config, str(_site_path(target)), content=text)


def _site_path(target: Path) -> Path:
    if target.parts[0] == DOCS:
        return target.relative_to(DOCS)
    place = Path(OUTSIDE, target)
    return place if target.suffix == ".md" else place.with_name(f"{place.name}.md")


def _repository_path(src_uri: str) -> Path:
    place = Path(src_uri)
    if place.parts[0] != OUTSIDE:
        return DOCS / place
    target = place.relative_to(OUTSIDE)
    return target if (ROOT / target).is_file() else target.with_suffix("")
