"""Prints a software bill of materials (CycloneDX 1.6, JSON) of this environment and of Debian's
packages next to it.

Only the standard library is used, because this runs while an image is built.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import metadata
from typing import Any
from urllib.parse import quote


def main() -> None:
    components = [*python_components(), *debian_components()]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "naiad",
                "version": metadata.version("naiad"),
            }
        },
        "components": sorted(components, key=lambda component: str(component["purl"])),
    }
    print(json.dumps(document, indent=1))


def python_components() -> list[dict[str, Any]]:
    found = {}
    for package in metadata.distributions():
        name, version = package.metadata["Name"], package.version
        if name == "naiad":
            continue
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        found[purl] = component(name, version, purl, package.metadata.get("License-Expression"))
    return list(found.values())


def debian_components() -> list[dict[str, Any]]:
    if shutil.which("dpkg-query") is None:
        return []
    lines = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    rows = [line.split() for line in lines]
    return [
        component(name, version, f"pkg:deb/debian/{name}@{quote(version)}?arch={architecture}")
        for name, version, architecture in rows
    ]


def component(
    name: str, version: str, purl: str, license_expression: str | None = None
) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "library", "name": name, "version": version, "purl": purl}
    if license_expression:
        entry["licenses"] = [{"expression": license_expression}]
    return entry


if __name__ == "__main__":
    main()
