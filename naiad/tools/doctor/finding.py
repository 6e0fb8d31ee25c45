"""What `naiad doctor` found out about one part of the machine."""

from __future__ import annotations

import enum

import msgspec


class Level(enum.StrEnum):
    OK = "OK"
    WARNING = "WARNING"
    """The server runs, but something is slow, missing or at risk."""
    PROBLEM = "PROBLEM"
    """The server does not start, or fails under load."""


class Finding(msgspec.Struct, frozen=True):
    topic: str
    level: Level
    text: str
    """What was seen."""
    mend: str = ""
    """The command, or the setting, that mends it."""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, Level.OK, text)


def warning(topic: str, text: str, mend: str) -> Finding:
    return Finding(topic, Level.WARNING, text, mend)


def problem(topic: str, text: str, mend: str) -> Finding:
    return Finding(topic, Level.PROBLEM, text, mend)


def render(findings: list[Finding]) -> str:
    """One line for each finding; what mends it follows on a line of its own."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.topic:<{width}}  {finding.level:<7}  {finding.text}")
        if finding.mend:
            lines.append(f"{'':<{width}}           -> {finding.mend}")
    return "\n".join(lines) + "\n"
