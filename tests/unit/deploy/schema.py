"""Checks manifests against the schemas of Kubernetes and of custom resources.

Kubernetes' own come with the package kubernetes-validate. Those of KServe, the gateway API, KEDA
and the Prometheus operator are CustomResourceDefinitions in the folder that NAIAD_CRDS names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(os.environ.get("NAIAD_CRDS", "/nonexistent"))
Manifest = dict[str, Any]


def manifests(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def custom_schema(group: str, version: str, kind: str) -> Manifest | None:
    """Returns the schema as JSON schema that allows no unknown fields, or None if it is absent."""
    for path in sorted(CRDS.glob("*.yaml")):
        for document in manifests(path.read_text()):
            spec = document["spec"]
            if (spec["group"], spec["names"]["kind"]) == (group, kind):
                for each in spec["versions"]:
                    if each["name"] == version:
                        schema: Manifest = closed(each["schema"]["openAPIV3Schema"], is_root=True)
                        return schema
    return None


def closed(schema: Any, is_root: bool = False) -> Any:
    """The API server drops unknown fields, so a misspelt one would be lost without this."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {
        key: {name: closed(entry) for name, entry in value.items()}
        if key == "properties"
        else closed(value)
        for key, value in schema.items()
        if key not in ("format", "pattern", "default", "description") or isinstance(value, dict)
    }
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not is_open and schema.get("type") == "object":
        if is_root:
            result["properties"]["metadata"] = {"type": "object"}
        result["additionalProperties"] = False
    return result
