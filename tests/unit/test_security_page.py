"""docs/security.md is true: every test that it names exists, and a row without one says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from naiad.machine.telemetry import OFF

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE[PAGE.index("## Attacks") :].splitlines()
    if line.startswith("| ") and not line.startswith(("| attack |", "| fault |"))
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_the_named_tests_exist(row: list[str]) -> None:
    _, verdict, names = row
    assert re.match(r"yes$|partly: .|does not apply: .", verdict), verdict
    if verdict.startswith("does not apply"):
        return
    assert names
    for name in names.split(", "):
        path, _, test = name.partition("::")
        text = (ROOT / "tests" / path).read_text()
        assert not test or re.search(rf"\b(def|class) {test}\b", text), name


def test_there_are_rows_of_both_kinds() -> None:
    assert len(ROWS) > 45


def test_the_page_names_every_variable_that_switches_a_report_off() -> None:
    assert [name for name, value in OFF.items() if f"`{name}={value}`" not in PAGE] == []
