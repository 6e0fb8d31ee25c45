"""The genuine Triton's responses, stored in golden/<suite>/<subject>.json.

With them, tests can replay the corpus without the genuine Triton. A file maps the name of each case
to the normalised response, one case per line, so that changes are readable in a diff.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.differential.case import Response

FOLDER = Path(__file__).with_name("golden")


def path(suite: str, subject: str) -> Path:
    return FOLDER / suite / f"{subject}.json"


def read(suite: str, subject: str) -> dict[str, Response]:
    responses: dict[str, Response] = json.loads(path(suite, subject).read_text())
    return responses


def write(suite: str, subject: str, responses: dict[str, Response]) -> None:
    file = path(suite, subject)
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(response, ensure_ascii=False)}"
        for name, response in responses.items()
    )
    file.write_text(f"{{\n{lines}\n}}\n")
