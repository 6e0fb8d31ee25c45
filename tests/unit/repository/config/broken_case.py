"""Reads the broken repositories of tests/repositories/broken: text files with the files of a
repository and the expected output of `naiad check`.

`=== PATH` starts a file. A model with a config.pbtxt and without a version directory gets a valid
Python model in `1/`, unless the case contains `=== bare`. `=== expected` starts the expected
output, in which the repository is called REPO.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BROKEN = Path(__file__).parents[3] / "repositories" / "broken"
GOOD_MODEL = """class TritonPythonModel:
    def execute(self, requests):
        return []
"""


@dataclass(frozen=True)
class BrokenCase:
    name: str
    files: dict[str, str]
    expected: str

    def write(self, repository: Path) -> None:
        for name, text in self.files.items():
            path = repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def read_cases() -> list[BrokenCase]:
    return [read_case(path) for path in sorted(BROKEN.glob("*.txt"))]


def read_case(path: Path) -> BrokenCase:
    sections: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("=== "):
            name = line[4:].strip()
            sections[name] = ""
        elif name:
            sections[name] += line
    expected = sections.pop("expected")
    if sections.pop("bare", None) is None:
        for model in [name.split("/")[0] for name in sections if name.endswith("/config.pbtxt")]:
            if not any(name.startswith(f"{model}/1/") for name in sections):
                sections[f"{model}/1/model.py"] = GOOD_MODEL
    return BrokenCase(path.stem, sections, expected)
