"""The fenced blocks of README and docs/, with what a comment in front of each says about it.

A fence names its language. A comment `<!-- docs-run: MARK -->` on the line before it is invisible
to readers. MARK is one of MARKS, for a block that is not run, or `output`, for text that the shell
block before it prints. `<!-- docs-run: make serve -->` anywhere on a page starts the server of
`make serve` before the first block of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]

MARKS = {
    "gpu": "it needs a GPU",
    "cluster": "it needs several machines, or Kubernetes",
    "container": "it needs a container engine",
    "minutes": "it takes minutes",
    "network-service": "it needs something on the network: a package index, a collector, a store",
}
OUTPUT = "output"
SERVE = "make serve"
LANGUAGES = {
    "sh", "python", "json", "toml", "yaml", "protobuf", "text", "nginx", "haproxy", "caddy",
}  # fmt: skip

_FENCE = re.compile(r"^( *)```(\S*)\s*$")
_COMMENT = re.compile(r"^\s*<!-- docs-run: ([a-z -]+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Page:
    name: str
    blocks: list[Block]
    needs_server: bool


def read_page(path: Path) -> Page:
    name = str(path.relative_to(ROOT))
    lines = path.read_text().split("\n")
    blocks: list[Block] = []
    needs_server = False
    mark = ""
    number = 0
    while number < len(lines):
        comment = _COMMENT.match(lines[number])
        fence = _FENCE.match(lines[number])
        if comment is not None:
            mark = comment[1]
            needs_server |= mark == SERVE
        elif fence is not None:
            end = next(
                index for index in range(number + 1, len(lines)) if lines[index].strip() == "```"
            )
            indent = len(fence[1])
            text = "\n".join(line[indent:] for line in lines[number + 1 : end])
            blocks.append(Block(name, number + 1, fence[2], mark, text))
            number = end
            mark = ""
        elif lines[number].strip():
            mark = ""
        number += 1
    return Page(name, blocks, needs_server)


def read_pages() -> list[Page]:
    return [read_page(path) for path in PAGES]
