"""The findings of `naiad check`, and how they are printed: file and line, the text of the line,
found, expected, fix.

In:  the problems of all models. Out: text for a terminal, in the order of the findings.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from naiad.repository.config.problem import Problem


class Severity(enum.StrEnum):
    ERROR = "error"
    """The model would not load."""
    WARNING = "warning"
    """The model would load, but probably not work as intended."""


class Finding(msgspec.Struct, frozen=True):
    severity: Severity
    repository: Path
    """The path as the user gave it."""
    model: str
    """Empty if the finding is about the repository itself."""
    problem: Problem


def render_findings(findings: Sequence[Finding], *, model_count: int | None = None) -> str:
    """Ends with a summary line, which includes `model_count` if it is given."""
    counts = Counter(finding.severity for finding in findings)
    summary_counts = [
        _count(counts[severity], severity.value) for severity in Severity if counts[severity]
    ]
    models = "" if model_count is None else f" in {_count(model_count, 'model')}"
    summary = f"{', '.join(summary_counts) or 'no problems'} found{models}"
    return "\n\n".join([*(render_finding(finding) for finding in findings), summary]) + "\n"


def render_finding(finding: Finding) -> str:
    problem = finding.problem
    path = finding.repository / problem.file if problem.file else finding.repository
    line = f":{problem.position.line}" if problem.position else ""
    parts = [f"{path}{line}: {finding.severity.value}: {problem.brief or problem.message}"]
    if problem.source.strip():
        parts.append(f"      {problem.source.strip()[:160]}")
    for title, text in (
        ("found", problem.found),
        ("expected", problem.expected),
        ("fix", problem.fix),
    ):
        if text:
            parts.append(f"  {title + ':':<10}{text}")
    return "\n".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
