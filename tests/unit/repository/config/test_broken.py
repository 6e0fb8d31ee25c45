"""The exact output of `naiad check` for broken repositories: the place, what was found, what was
expected, and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.repository.check.check import Severity, check_repository, render_findings
from tests.unit.repository.config.broken_case import BrokenCase, read_cases

CASES = read_cases()
BACKENDS = [
    "identity",
    "llm",
    "onnxruntime",
    "openvino",
    "python",
    "pytorch",
    "tensorrtllm",
    "vllm",
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_output_for_a_broken_repository(case: BrokenCase, tmp_path: Path) -> None:
    case.write(tmp_path)
    findings = check_repository([tmp_path], backends=BACKENDS, is_installed=lambda package: True)
    assert render_findings(findings).replace(str(tmp_path), "REPO") == case.expected


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_problem_says_what_was_expected(case: BrokenCase, tmp_path: Path) -> None:
    case.write(tmp_path)
    findings = check_repository([tmp_path], backends=BACKENDS, is_installed=lambda package: True)
    assert findings
    for finding in findings:
        problem = finding.problem
        assert problem.expected or problem.fix, problem
        if finding.severity is Severity.ERROR and problem.file.endswith(".pbtxt"):
            assert problem.position, problem
            assert problem.source, problem


def test_there_are_enough_broken_repositories() -> None:
    assert len(CASES) >= 40
