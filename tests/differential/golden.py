"""The genuine Triton's answers, kept in golden/<suite>/<subject>.json so that tests can replay the
corpus without it.

A file maps the name of each case to the normalised answer, one case per line so that changes can be
read in a diff.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.differential.case import Answer

FOLDER = Path(__file__).with_name("golden")


def path(suite: str, subject: str) -> Path:
    return FOLDER / suite / f"{subject}.json"


def read(suite: str, subject: str) -> dict[str, Answer]:
    answers: dict[str, Answer] = json.loads(path(suite, subject).read_text())
    return answers


def write(suite: str, subject: str, answers: dict[str, Answer]) -> None:
    file = path(suite, subject)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(answer, ensure_ascii=False)}"
        for name, answer in answers.items()
    )
    file.write_text(f"{{\n{lines}\n}}\n")
