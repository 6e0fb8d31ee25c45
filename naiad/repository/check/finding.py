"""What `naiad check` found, and how it is printed: file:line, the line itself, found, expected,
fix.

In: problems of all models of some repositories. Out: text for a terminal, in the order in which the
    findings came.
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
    """It would load, and probably not do what was meant."""


class Finding(msgspec.Struct, frozen=True):
    severity: Severity
    repository: Path
    """As the user gave it."""
    model: str
    """Empty when it is about the repository itself."""
    problem: Problem


def render_findings(findings: Sequence[Finding], *, model_count: int | None = None) -> str:
    """Ends with a summary line. `model_count` adds how many models were looked at."""
    counts = Counter(finding.severity for finding in findings)
    told = [_count(counts[severity], severity.value) for severity in Severity if counts[severity]]
    models = "" if model_count is None else f" in {_count(model_count, 'model')}"
    summary = f"{', '.join(told) or 'no problems'} found{models}"
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
