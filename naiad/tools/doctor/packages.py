"""Checks the interpreter and the versions of the packages that Naiad and its extras need.

In:  the metadata of the installed packages. Nothing is imported, because torch alone takes longer
     than the whole command may.
"""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata

import msgspec

from naiad.core.install_advice import install_command
from naiad.tools.doctor.finding import Finding, ok, problem, warning

_LEAST_PYTHON = (3, 11)
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?\s*(?P<bounds>[^;]*)"
    r"(;.*extra == ['\"](?P<extra>[^'\"]+))?"
)
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9A-Za-z.]*)")


class Requirement(msgspec.Struct, frozen=True):
    name: str
    bounds: str
    extra: str
    """Empty for what Naiad always needs."""


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    text = f"Python {'.'.join(map(str, version))}, {platform.system()} {platform.machine()}"
    if version[:2] < _LEAST_PYTHON:
        return problem("python", f"{text}: Naiad needs 3.11 or newer", "uv venv --python 3.12")
    if platform.system() != "Linux":
        return problem("python", f"{text}: Naiad needs Linux", "use a container or WSL 2")
    return ok("python", f"{text}, {sys.executable}")


def check_packages() -> list[Finding]:
    requirements = read_requirements()
    findings = [_check_needed([each for each in requirements if not each.extra])]
    extras = dict.fromkeys(each.extra for each in requirements if each.extra)
    for extra in extras:
        if extra != "all":
            parts = [each for each in requirements if each.extra == extra]
            findings.append(_check_extra(extra, parts))
    if _version("onnxruntime") and _version("onnxruntime-gpu"):
        findings.append(
            warning(
                "onnxruntime",
                "onnxruntime and onnxruntime-gpu are both installed and overwrite each other",
                "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
            )
        )
    return findings


def read_requirements() -> list[Requirement]:
    """Returns an empty list if Naiad runs from a folder and was never installed."""
    try:
        lines = metadata.requires("naiad") or []
    except metadata.PackageNotFoundError:
        return []
    matches = [_REQUIREMENT.match(line) for line in lines]
    return [
        Requirement(match["name"], match["bounds"].strip(), match["extra"] or "")
        for match in matches
        if match
    ]


def satisfies(version: str, bounds: str) -> bool:
    """Compares the numbers of versions only: "2.13.0+cpu" is 2.13.0."""
    compare = {
        ">=": lambda order: order >= 0,
        "<=": lambda order: order <= 0,
        "==": lambda order: order == 0,
        "!=": lambda order: order != 0,
        "<": lambda order: order < 0,
        ">": lambda order: order > 0,
    }
    return all(
        compare[operator](_order(version, bound)) for operator, bound in _BOUND.findall(bounds)
    )


def _order(left: str, right: str) -> int:
    numbers = [
        [int(part) for part in re.split(r"[^0-9.]", text)[0].split(".") if part]
        for text in (left, right)
    ]
    length = max(map(len, numbers))
    first, second = (each + [0] * (length - len(each)) for each in numbers)
    return (first > second) - (first < second)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _check_needed(requirements: list[Requirement]) -> Finding:
    if not requirements:
        return ok("packages", "Naiad runs from a folder; its requirements are not recorded")
    for each in requirements:
        version = _version(each.name)
        if version is None or not satisfies(version, each.bounds):
            has = "is missing" if version is None else f"is {version}"
            return problem(
                "packages",
                f"{each.name} {has}, and Naiad needs {each.bounds}",
                f"pip install '{each.name}{each.bounds}'",
            )
    return ok("packages", f"all {len(requirements)} that Naiad always needs")


def _check_extra(extra: str, requirements: list[Requirement]) -> Finding:
    topic = f"[{extra}]"
    versions = [(each, _version(each.name)) for each in requirements]
    wrong = [
        f"{each.name} {version}, where {each.bounds} is needed"
        for each, version in versions
        if version and not satisfies(version, each.bounds)
    ]
    if wrong:
        return warning(topic, "; ".join(wrong), install_command(extra))
    missing = [each.name for each, version in versions if not version]
    present = [f"{each.name} {version}" for each, version in versions if version]
    if not missing:
        return ok(topic, ", ".join(present))
    return ok(topic, f"not installed ({', '.join(missing)}): {install_command(extra)}")
